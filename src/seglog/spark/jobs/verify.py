"""Verification on Spark: Spark's workers check the stretches of `seglog.storage.offline.verify`.

It is the engine's own run with Spark as its pool of workers, so it reports exactly the engine's findings. Logs are
divided at batch boundaries, so one large partition uses all cores. The driver reads small files and indexes, and
combines the summaries of the stretches. All machines must see the paths. In memory, the driver holds the indexes of a
few gigabytes of logs, and a worker those of one segment.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from seglog.core.fs import OsFs
from seglog.records.compression import DEFAULT_LIMIT
from seglog.sources.directories.log_dir_mount import check_file
from seglog.spark.jobs.driver import Paths, Progress, listed, watched
from seglog.spark.runtime.processes import freeze_imports
from seglog.storage.offline.verify.partition_files import LogStretch
from seglog.storage.offline.verify.summary import Summary
from seglog.storage.offline.verify.verifier import Verifier, VerifyOptions, VerifyReport, measure, walk_stretch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["SCHEMA", "findings_frame", "measure", "verify"]

SCHEMA: Final = "severity string, file string, position bigint, offset bigint, reason string"
"""The schema of `findings_frame`; ``position`` is null if a finding concerns a whole file."""

_WAVE_BYTES: Final = 1 << 30
"""Bytes for each core in one Spark job: the start of a job (some 50 ms) is then short compared with its work."""
_WAVE_STRETCHES: Final = 4096
_WAVES: Final = 2
"""Spark jobs at a time: while one ends, its idle cores work for the next."""
_TASKS_PER_CORE: Final = 4
_SMALLEST_TASK: Final = 16 << 20


def verify(
    spark: SparkSession,
    paths: Paths,
    *,
    strict: bool = False,
    limit: int = DEFAULT_LIMIT,
    progress: Progress | None = None,
) -> VerifyReport:
    """Verify log directories, partitions' directories and single files, as `seglog.storage.offline.verify.verify` does.

    ``progress`` is called with the number of further bytes that were checked, which add up to about `measure`. Raises
    `InvalidLogDirError` if a path is none of these, OSError, and `JobFailedError` if a worker fails.
    """
    cores = spark.sparkContext.defaultParallelism
    ahead = (_WAVES + 1) * cores * _WAVE_BYTES
    with _SparkExecutor(spark, cores, progress) as executor:
        options = VerifyOptions(strict, fast=True, limit=limit)
        verifier = Verifier(OsFs(), options, executor, _WAVES * _WAVE_STRETCHES, most_ahead=ahead)
        for path in listed(paths):
            verifier.check(os.path.abspath(path))
        return verifier.report()


def findings_frame(spark: SparkSession, verified: VerifyReport) -> DataFrame:
    """The findings as a DataFrame of `SCHEMA`, in order."""
    rows = [
        (one.severity.value, one.file, one.position if one.position >= 0 else None, one.offset, one.reason)
        for one in verified.findings
    ]
    return spark.createDataFrame(rows, SCHEMA)


class _QueuedStretch(NamedTuple):
    """A stretch to check, and the future of its summary."""

    stretch: LogStretch
    future: Future[Summary]

    @property
    def size(self) -> int:
        return self.stretch.end - self.stretch.start


class _LazyFuture(Future[Summary]):
    """A future that submits the queued stretches when its result is requested."""

    def __init__(self, send: Callable[[], None]) -> None:
        super().__init__()
        self._send = send

    def result(self, timeout: float | None = None) -> Summary:
        if not self.done():
            self._send()
        return super().result(timeout)


class _SparkExecutor(Executor):
    """Queues the stretches that `Verifier` submits, and runs them as Spark jobs of a worthwhile size."""

    def __init__(self, spark: SparkSession, cores: int, progress: Progress | None) -> None:
        self._spark = spark
        self._cores = cores
        self._progress = progress
        self._waves = ThreadPoolExecutor(_WAVES)
        self._orders: list[_QueuedStretch] = []
        self._bytes = 0

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Queue a call of `walk_stretch` with the compiled loops; `Verifier` makes all other calls itself."""
        if fn is not walk_stretch or not kwargs.get("fast"):
            raise ValueError("Spark's workers only run walk_stretch")
        future = _LazyFuture(self._send)
        order = _QueuedStretch(args[1], future)
        self._orders.append(order)
        self._bytes += order.size
        if self._bytes >= self._cores * _WAVE_BYTES or len(self._orders) >= _WAVE_STRETCHES:
            self._send()
        return future

    def _send(self) -> None:
        orders, self._orders, self._bytes = self._orders, [], 0
        if orders:
            self._waves.submit(self._run, orders).add_done_callback(lambda wave: _hand_out(wave, orders))

    def _run(self, orders: Sequence[_QueuedStretch]) -> list[Summary]:
        size = sum(order.size for order in orders)
        tasks = list(_divide(orders, max(size // (self._cores * _TASKS_PER_CORE), _SMALLEST_TASK)))
        with watched(self._spark, size, len(tasks), self._progress):
            stretches = [[order.stretch for order in task] for task in tasks]
            return self._spark.sparkContext.parallelize(stretches, len(tasks)).flatMap(_walk).collect()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._waves.shutdown(wait, cancel_futures=cancel_futures)


def _hand_out(wave: Future[list[Summary]], orders: Sequence[_QueuedStretch]) -> None:
    error = wave.exception()
    for at, order in enumerate(orders):
        if error is not None:
            order.future.set_exception(error)
        else:
            order.future.set_result(wave.result()[at])


def _divide(orders: Iterable[_QueuedStretch], share: int) -> Iterator[list[_QueuedStretch]]:
    """Neighbouring stretches for each task, of about ``share`` bytes."""
    task: list[_QueuedStretch] = []
    size = 0
    for order in orders:
        if task and size + order.size > share + share // 2:
            yield task
            task, size = [], 0
        task.append(order)
        size += order.size
    if task:
        yield task


def _walk(stretches: Sequence[LogStretch]) -> list[Summary]:
    """Check stretches, in a worker."""
    fs = OsFs()
    for stretch in stretches:
        check_file(fs, stretch.facts.file)
    summaries = [walk_stretch(fs, stretch, fast=True) for stretch in stretches]
    freeze_imports()
    return summaries
