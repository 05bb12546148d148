"""The driver's side of every job: its paths, its progress, and errors that people can read."""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from importlib import import_module
from threading import Event, Thread
from typing import TYPE_CHECKING, Final

from seglog.core.errors import SeglogError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Path = str | os.PathLike[str]
Paths = Path | Sequence[Path]
Progress = Callable[[int], None]
"""Is called with the amount done since the last call, mostly in bytes."""

_INTERVAL: Final = 0.25
_GROUP: Final = "spark.jobGroup.id"
_OURS: Final = re.compile(r"(seglog(?:\.\w+)+)\.(\w+): (.*)")
_PYTHONS: Final = re.compile(r"^(?:\w+\.)*(\w+(?:Error|Exception)): (.*)$", re.MULTILINE)


def listed(paths: Paths) -> list[str]:
    """
    >>> listed("/data"), listed(["/data", "/more"])
    (['/data'], ['/data', '/more'])
    """
    if isinstance(paths, (str, os.PathLike)):
        return [os.fspath(paths)]
    return [os.fspath(path) for path in paths]


class JobFailedError(SeglogError):
    """A Spark job failed for a reason outside of seglog: a worker that died, no memory, no such master."""


@contextmanager
def plain_errors() -> Iterator[None]:
    """Raise an error of Spark as a `SeglogError`, with the original as its cause.

    A seglog error that a worker raised keeps its class and its text, which names the file and the position.
    """
    try:
        yield
    except (SeglogError, OSError):
        raise
    except Exception as error:
        if not _is_sparks(error):
            raise
        raise explain(str(error)) from error


def explain(text: str) -> SeglogError:
    """The error behind Spark's text about a failed job: a Java error with the traceback of a Python worker in it.

    >>> explain("Job aborted\\nseglog.core.errors.CorruptBatchError: a.log, position 7: torn\\n\\n\\tat java...")
    CorruptBatchError('a.log, position 7: torn')
    """
    if ours := _OURS.findall(text):
        module, name, reason = ours[-1]
        kind = getattr(import_module(module), name, SeglogError)
        found: SeglogError = kind(reason) if issubclass(kind, SeglogError) else SeglogError(f"{name}: {reason}")
        return found
    if pythons := _PYTHONS.findall(text):
        return JobFailedError(": ".join(pythons[-1]))
    return JobFailedError(next((line for line in text.splitlines() if line.strip()), "the job failed"))


def _is_sparks(error: Exception) -> bool:
    return type(error).__module__.split(".", maxsplit=1)[0] in ("pyspark", "py4j")


@contextmanager
def watched(spark: SparkSession, amount: int, tasks: int, progress: Progress | None) -> Iterator[None]:
    """Run Spark jobs inside with `plain_errors`, and report their ``progress``: ``amount`` in all, done by ``tasks``.

    ``progress`` never exceeds ``amount``, and reaches it if no error is raised. Every finished task counts the same.
    """
    with plain_errors(), _metered(spark, amount, tasks, progress) if progress is not None else nullcontext():
        yield


@contextmanager
def _metered(spark: SparkSession, amount: int, tasks: int, progress: Progress) -> Iterator[None]:
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
    """Counts the finished tasks of a job group a few times a second."""

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
