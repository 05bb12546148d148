"""The four offset checkpoints of a log directory: read when it is opened, and written since."""

from __future__ import annotations

import os.path
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

from seglog.core.errors import CorruptCheckpointError, SeglogError
from seglog.core.fs import Fs, write_atomically
from seglog.core.passes import for_each, raise_first
from seglog.core.types import TopicPartition
from seglog.storage.formats.checkpoints import encode_offset, join_offsets, read_offsets, write_offsets
from seglog.storage.formats.paths import CLEANER_OFFSETS, HIGH_WATERMARKS, LOG_START_OFFSETS, RECOVERY_POINTS
from seglog.storage.log.dir_health import DirHealth
from seglog.storage.log.log import Log
from seglog.storage.log.recovery import LogCheckpoint


class OffsetCheckpoints:
    """The checkpoints. Those that cannot be read are in `unreadable`, and begin empty, as in Kafka.

    `recovery_points` is None if it cannot be read: see `seglog.storage.log.recovery.LogCheckpoint`.

    A thread holds ``lock`` while it reads the logs' offsets and writes the file. Otherwise two threads could remove
    each other's temporary file, or write older offsets last. A log's lock must be taken before this one.
    """

    def __init__(
        self,
        fs: Fs,
        path: str,
        health: DirHealth,
        logs: Mapping[TopicPartition, Log],
        refused: Mapping[TopicPartition, SeglogError],
    ) -> None:
        """``logs`` and ``refused`` are the directory's own mappings, which change."""
        self._fs = fs
        self._path = path
        self._health = health
        self._logs = logs
        self._refused = refused
        self._written: dict[str, dict[TopicPartition, bytes]] = {}  # guarded by lock
        """The lines of each file, by partition in the file's order."""
        self._promised: dict[TopicPartition, int] = {}  # guarded by lock
        """Log starts that are written before the logs have them; they count in between."""
        self.lock = threading.RLock()
        self.unreadable: list[CorruptCheckpointError] = []
        self.recovery_points = self._read(RECOVERY_POINTS)
        self.log_starts = self._read(LOG_START_OFFSETS) or {}
        self.high_watermarks = self._read(HIGH_WATERMARKS) or {}
        self.cleaner_offsets = self._read(CLEANER_OFFSETS) or {}

    def _read(self, name: str) -> dict[TopicPartition, int] | None:
        try:
            offsets = read_offsets(self._fs, os.path.join(self._path, name))
            self._written[name] = _lines(offsets)
            return offsets
        except CorruptCheckpointError as error:
            self.unreadable.append(error)
            return None

    def known(self, partition: TopicPartition, *, clean: bool) -> LogCheckpoint:
        """The offsets of one partition."""
        return LogCheckpoint(
            clean=clean,
            recovery_point=None if self.recovery_points is None else self.recovery_points.get(partition, 0),
            log_start_offset=self.log_starts.get(partition, 0),
            high_watermark=self.high_watermarks.get(partition, 0),
        )

    def partitions(self) -> set[TopicPartition]:
        """The partitions that had data, by the checkpoints."""
        told = (*(self.recovery_points or {}).items(), *self.high_watermarks.items())
        return {partition for partition, offset in told if offset > 0}

    # Of logs

    def write(self) -> None:
        """Write all but the cleaner's checkpoint, which is written after each round. If one fails, the others are
        written all the same; then its error is raised."""
        writes: list[Callable[[], None]] = [
            self.write_recovery_points,
            self.write_log_starts,
            self.write_high_watermarks,
        ]
        raise_first(for_each(writes, lambda write: write()))

    def write_recovery_points(self) -> None:
        """``recovery-point-offset-checkpoint``: the offset up to which each log is flushed.

        Entries of partitions that did not load stay, so that the next start finds the damage again. If the file could
        not be read, it stays as long as there are such partitions.
        """
        known = self.recovery_points
        if known is None and self._refused:
            return
        self._write(RECOVERY_POINTS, lambda log: log.recovery_point, known or {})

    def write_log_starts(self) -> None:
        """``log-start-offset-checkpoint``: the starts of logs that begin after their first segment's start."""

        def start(log: Log) -> int | None:
            start = max(log.log_start_offset, self._promised.get(log.topic_partition, 0))
            return start if start > log.segments[0].base_offset else None

        self._write(LOG_START_OFFSETS, start, self.log_starts)

    @contextmanager
    def promised(self, starts: Mapping[TopicPartition, int]) -> Iterator[None]:
        """Write these log starts. In the block the caller moves the logs' starts; a checkpoint that is written
        meanwhile has them, too. `LogDirFullError`: nothing is written."""
        with self.lock:
            before = self._promised
            self._promised = {**before, **starts}
            try:
                self.write_log_starts()
            except BaseException:
                self._promised = before
                raise
        try:
            yield
        finally:
            with self.lock:
                left = [one for one, start in starts.items() if self._promised.get(one) == start]
                self._promised = {one: start for one, start in self._promised.items() if one not in left}
                is_kept = all(
                    (log := self._logs.get(one)) is None or log.log_start_offset >= starts[one] for one in left
                )
            if not is_kept:
                self.write_log_starts()

    def write_high_watermarks(self) -> None:
        """``replication-offset-checkpoint``.

        The next start treats missing records below it as damage. So for a log without followers, whose high watermark
        is its end, it has the flushed offset.
        """

        def mark(log: Log) -> int:
            return min(log.high_watermark, log.recovery_point) if log.hw_follows_end else log.high_watermark

        self._write(HIGH_WATERMARKS, mark, self.high_watermarks)

    def _write(self, name: str, offset_of: Callable[[Log], int | None], known: Mapping[TopicPartition, int]) -> None:
        """Write ``offset_of`` each log unless it is None, and ``known`` offsets of partitions that did not load."""
        with self.lock, self._health.guard():
            offsets = {partition: known[partition] for partition in list(self._refused) if partition in known}
            for partition, log in list(self._logs.items()):
                offset = offset_of(log)
                if offset is not None:
                    offsets[partition] = offset
            self._health.make_room(lambda: self._replace(name, offsets))

    def _replace(self, name: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Write a checkpoint, unless it has not changed."""
        lines = _lines(offsets)
        if self._written.get(name) != lines:
            self._write_lines(name, lines)

    def _write_lines(self, name: str, lines: dict[TopicPartition, bytes]) -> None:
        write_atomically(self._fs, os.path.join(self._path, name), join_offsets(lines.values()))
        self._written[name] = lines

    def forget(self, partitions: Collection[TopicPartition]) -> None:
        """Remove deleted partitions from all checkpoints, before others can have their names. The offsets of the other
        partitions are not read, and a file that names none of these stays as it is. If one fails, the others are
        written all the same; then its error is raised."""
        writes: list[Callable[[], None]] = [
            partial(self._forget, RECOVERY_POINTS, partitions, self.write_recovery_points),
            partial(self._forget, LOG_START_OFFSETS, partitions, self.write_log_starts),
            partial(self._forget, HIGH_WATERMARKS, partitions, self.write_high_watermarks),
            partial(self._forget_cleaned, partitions),
        ]
        raise_first(for_each(writes, lambda write: write()))

    def _forget(self, name: str, partitions: Collection[TopicPartition], write: Callable[[], None]) -> None:
        with self.lock:
            lines = self._written.get(name)
            if lines is None:  # it could not be read
                write()
            elif any(partition in lines for partition in partitions):
                kept = dict(lines)
                for partition in partitions:
                    kept.pop(partition, None)
                with self._health.guard():
                    self._health.make_room(partial(self._write_lines, name, kept))

    # Of the cleaner: ``cleaner-offset-checkpoint``

    def note_cleaned(self, log: Log, end_offset: int) -> None:
        """Note the end of a round, unless the log was deleted meanwhile; a new topic may have its name."""
        with self.lock:
            if self._logs.get(log.topic_partition) is log:
                self.cleaner_offsets[log.topic_partition] = end_offset
                self._write_cleaner_offsets()

    def lower_cleaned(self, ends: Mapping[TopicPartition, int]) -> None:
        """Records after truncations to these offsets are dirty."""
        with self.lock:
            lower = {one: end for one, end in ends.items() if self.cleaner_offsets.get(one, 0) > end}
            if lower:
                self.cleaner_offsets.update(lower)
                self._write_cleaner_offsets()

    def _forget_cleaned(self, partitions: Collection[TopicPartition]) -> None:
        with self.lock:
            if any(partition in self.cleaner_offsets for partition in partitions):
                for partition in partitions:
                    self.cleaner_offsets.pop(partition, None)
                self._write_cleaner_offsets()

    def _write_cleaner_offsets(self) -> None:
        there = {*list(self._logs), *list(self._refused)}
        given = {name: offset for name, offset in self.cleaner_offsets.items() if name in there}
        path = os.path.join(self._path, CLEANER_OFFSETS)
        with self._health.guard():
            self._health.make_room(lambda: write_offsets(self._fs, path, given))


def _lines(offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, bytes]:
    return {partition: encode_offset(partition, offsets[partition]) for partition in sorted(offsets)}
