"""How far a Spark job is, told while it runs: in the unit of the caller's total, mostly bytes."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Progress = Callable[[int], None]
"""Takes how much more was done."""

_INTERVAL: Final = 0.25
_GROUP: Final = "spark.jobGroup.id"


@contextmanager
def watched(spark: SparkSession, amount: int, tasks: int, progress: Progress | None) -> Iterator[None]:
    """Tell ``progress`` about the Spark jobs that this thread starts inside: ``amount`` in all, done by ``tasks``.

    What is told never goes beyond ``amount``, and comes to it if no error is raised. Spark counts tasks, so one that is
    done counts as much as any other.
    """
    if progress is None:
        yield
        return
    context = spark.sparkContext
    group = f"seglog-{uuid.uuid4()}"
    before = context.getLocalProperty(_GROUP) or ""
    context.setLocalProperty(_GROUP, group)
    meter = _TaskMeter(spark, group, amount / max(tasks, 1), amount, progress)
    meter.start()
    try:
        yield
    finally:
        meter.stop()
        context.setLocalProperty(_GROUP, before)
    meter.tell(amount)


class _TaskMeter:
    """Looks a few times a second at how many tasks of a job group are done."""

    def __init__(self, spark: SparkSession, group: str, share: float, amount: int, progress: Progress) -> None:
        self._tracker = spark.sparkContext.statusTracker()
        self._group = group
        self._share = share
        self._amount = amount
        self._progress = progress
        self._told = 0
        self._stopped = Event()
        self._thread = Thread(target=self._run, name="seglog progress", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    def tell(self, done: int) -> None:
        if done > self._told:
            self._progress(done - self._told)
            self._told = done

    def _run(self) -> None:
        while not self._stopped.wait(_INTERVAL):
            self.tell(min(int(self._completed() * self._share), self._amount))

    def _completed(self) -> int:
        tracker = self._tracker
        completed = 0
        for job in tracker.getJobIdsForGroup(self._group):
            info = tracker.getJobInfo(job)
            for stage in info.stageIds if info is not None else ():
                stage_info = tracker.getStageInfo(stage)
                completed += stage_info.numCompletedTasks if stage_info is not None else 0
        return completed
