"""Loads all partitions of a log directory, several at a time."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple
from uuid import UUID

from seglog.core.errors import DamagedPartitionError, LogDirOfflineError, SeglogError
from seglog.core.fs import NotRegularFileError
from seglog.core.ground import Workers
from seglog.core.types import TopicPartition
from seglog.storage.log.recovery import LoadResult

_logger = logging.getLogger("seglog")


class LoadProgress(NamedTuple):
    """The progress of loading. ``bytes_total`` grows with each partition that needs a check."""

    partitions_done: int
    partitions_total: int
    bytes_done: int
    bytes_total: int


class PartitionLoaded(NamedTuple):
    topic_id: UUID | None
    loaded: LoadResult


LoadOne = Callable[[TopicPartition, Callable[[int, int], None]], PartitionLoaded]


class _Meter:
    """Adds up the reports of all threads, and makes one call at a time."""

    def __init__(self, total: int, tell: Callable[[LoadProgress], None] | None) -> None:
        self._lock = threading.Lock()
        self._total = total
        self._tell = tell
        self._finished = 0  # guarded by _lock
        self._bytes: dict[TopicPartition, tuple[int, int]] = {}

    def checked(self, partition: TopicPartition, done: int, total: int) -> None:
        self._bytes[partition] = (done, total)
        self._report()

    def finished(self) -> None:
        with self._lock:
            self._finished += 1
        self._report()

    def _report(self) -> None:
        if self._tell is None:
            return
        with self._lock:
            counts = list(self._bytes.values())
            self._tell(
                LoadProgress(
                    self._finished, self._total, sum(done for done, _ in counts), sum(total for _, total in counts)
                )
            )


def load_partitions(
    partitions: Sequence[TopicPartition],
    load_one: LoadOne,
    *,
    path: str,
    workers: Workers,
    threads: int,
    progress: Callable[[LoadProgress], None] | None,
) -> tuple[dict[TopicPartition, PartitionLoaded], dict[TopicPartition, SeglogError]]:
    """Load partitions; return the loaded ones, and the errors of the damaged ones.

    Raises `LogDirOfflineError` if the disk fails; then no file stays open.
    """
    meter = _Meter(len(partitions), progress)

    def load(partition: TopicPartition) -> PartitionLoaded:
        try:
            return load_one(partition, lambda done, total: meter.checked(partition, done, total))
        finally:
            meter.finished()

    loaded: dict[TopicPartition, PartitionLoaded] = {}
    refused: dict[TopicPartition, SeglogError] = {}
    failure: OSError | LogDirOfflineError | None = None
    try:
        for partition, result in workers.spread(load, partitions, threads=threads, name="seglog-load"):
            try:
                loaded[partition] = result()
            except NotRegularFileError as error:  # its disk works
                refused[partition] = DamagedPartitionError(
                    f"{error.filename} is not a regular file. The partition is not opened: move it away, then see "
                    f"`seglog repair {os.path.dirname(error.filename)}`"
                )
                _logger.error("partition %s is not opened: %s", partition, refused[partition])
            except (OSError, LogDirOfflineError) as error:
                failure = failure or error
            except SeglogError as error:
                refused[partition] = error
                _logger.error("partition %s is not opened: %s", partition, error)
        if failure is not None:
            raise LogDirOfflineError(f"{path} cannot be loaded: {failure}") from failure
    except BaseException:
        for _, (log, _) in loaded.values():
            for segment in log.segments:
                segment.close(write=False)
        raise
    for partition, (_, (_, report)) in loaded.items():
        if report.cut is not None:
            _logger.warning("partition %s was recovered: %s", partition, report.cut)
        if report.emptied is not None:
            _logger.error("partition %s was emptied: %s", partition, report.emptied)
    return loaded, refused
