"""The four offset checkpoints of a log directory: what they said when it was opened, and what is written since."""

from __future__ import annotations

import os.path
import threading
from collections.abc import Callable, Mapping, Set

from seglog.core.errors import CorruptCheckpointError, SeglogError
from seglog.core.fs import Fs
from seglog.core.types import TopicPartition
from seglog.storage.formats.checkpoints import encode_offsets, read_offsets, write_offsets
from seglog.storage.formats.paths import CLEANER_OFFSETS, HIGH_WATERMARKS, LOG_START_OFFSETS, RECOVERY_POINTS
from seglog.storage.log.dir_health import DirHealth
from seglog.storage.log.log import Log
from seglog.storage.log.recovery import Known


class OffsetCheckpoints:
    """Those that could not be read are in `unreadable`, and begin empty.

    Kafka goes on without them too. `recovery_points` is then None: see `seglog.storage.log.recovery.Known`.

    ``lock`` is held from looking at the logs until the file is written: two threads would take each other's temporary
    file away, or the one that looked first would write last. Whoever needs a log's lock as well takes that first.
    """

    def __init__(
        self,
        fs: Fs,
        path: str,
        health: DirHealth,
        logs: Mapping[TopicPartition, Log],
        refused: Mapping[TopicPartition, SeglogError],
    ) -> None:
        """``logs`` and ``refused`` are the directory's own, as they change."""
        self._fs = fs
        self._path = path
        self._health = health
        self._logs = logs
        self._refused = refused
        self._written: dict[str, bytes] = {}
        self.lock = threading.RLock()
        self.unreadable: list[CorruptCheckpointError] = []
        self.recovery_points = self._read(RECOVERY_POINTS)
        self.log_starts = self._read(LOG_START_OFFSETS) or {}
        self.high_watermarks = self._read(HIGH_WATERMARKS) or {}
        self.cleaner_offsets = self._read(CLEANER_OFFSETS) or {}

    def _read(self, name: str) -> dict[TopicPartition, int] | None:
        try:
            offsets = read_offsets(self._fs, os.path.join(self._path, name))
            self._written[name] = encode_offsets(dict(sorted(offsets.items())))
            return offsets
        except CorruptCheckpointError as error:
            self.unreadable.append(error)
            return None

    def known(self, partition: TopicPartition, *, clean: bool) -> Known:
        """What they say of one partition."""
        return Known(
            clean=clean,
            recovery_point=None if self.recovery_points is None else self.recovery_points.get(partition, 0),
            log_start_offset=self.log_starts.get(partition, 0),
            high_watermark=self.high_watermarks.get(partition, 0),
        )

    def partitions(self) -> set[TopicPartition]:
        """Of which the directory once had data."""
        told = (*(self.recovery_points or {}).items(), *self.high_watermarks.items())
        return {partition for partition, offset in told if offset > 0}

    # Of logs

    def write(self) -> None:
        """Write those that Kafka's broker writes while it runs; the cleaner's is written as it goes."""
        self.write_recovery_points()
        self.write_log_starts()
        self.write_high_watermarks()

    def write_recovery_points(self) -> None:
        """``recovery-point-offset-checkpoint``: up to where each log is flushed.

        What is known of refused partitions stays, so that they are refused again until they are repaired; if it is not
        known because the file cannot be read, the file stays too.
        """
        known = self.recovery_points
        if known is None and self._refused:
            return
        self._write(RECOVERY_POINTS, lambda log: log.recovery_point, known or {})

    def write_log_starts(self) -> None:
        """``log-start-offset-checkpoint``: of the logs that do not begin where their first segment does."""

        def start(log: Log) -> int | None:
            return log.log_start_offset if log.log_start_offset > log.segments[0].base_offset else None

        self._write(LOG_START_OFFSETS, start, self.log_starts)

    def write_high_watermarks(self) -> None:
        """``replication-offset-checkpoint``.

        Damage below it is refused at the next start. So of a log without followers, whose high watermark is its end, it
        says what is flushed.
        """

        def mark(log: Log) -> int:
            return min(log.high_watermark, log.recovery_point) if log.hw_follows_end else log.high_watermark

        self._write(HIGH_WATERMARKS, mark, self.high_watermarks)

    def _write(self, name: str, offset_of: Callable[[Log], int | None], known: Mapping[TopicPartition, int]) -> None:
        """Write what ``offset_of`` says of each log, None for no line, and what is ``known`` of refused partitions."""
        with self.lock, self._health.guard():
            offsets = {partition: known[partition] for partition in list(self._refused) if partition in known}
            for partition, log in list(self._logs.items()):
                offset = offset_of(log)
                if offset is not None:
                    offsets[partition] = offset
            self._health.make_room(lambda: self._replace(name, dict(sorted(offsets.items()))))

    def _replace(self, name: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Write a checkpoint, unless it says the same already."""
        data = encode_offsets(offsets)
        if self._written.get(name) != data:
            write_offsets(self._fs, os.path.join(self._path, name), offsets)
            self._written[name] = data

    # Of the cleaner: ``cleaner-offset-checkpoint``

    def note_cleaned(self, log: Log, end_offset: int) -> None:
        """A round is done; a topic that was deleted meanwhile, and may have a namesake, is not noted."""
        with self.lock:
            if self._logs.get(log.topic_partition) is log:
                self.cleaner_offsets[log.topic_partition] = end_offset
                self._write_cleaner_offsets()

    def lower_cleaned(self, partition: TopicPartition, offset: int) -> None:
        """What comes after a truncation to ``offset`` is dirty."""
        with self.lock:
            if self.cleaner_offsets.get(partition, 0) > offset:
                self.cleaner_offsets[partition] = offset
                self._write_cleaner_offsets()

    def forget_cleaned(self, partitions: Set[TopicPartition]) -> None:
        """These are deleted."""
        with self.lock:
            if self.cleaner_offsets.keys() & partitions:
                for partition in partitions:
                    self.cleaner_offsets.pop(partition, None)
                self._write_cleaner_offsets()

    def _write_cleaner_offsets(self) -> None:
        there = {*list(self._logs), *list(self._refused)}
        given = {name: offset for name, offset in self.cleaner_offsets.items() if name in there}
        path = os.path.join(self._path, CLEANER_OFFSETS)
        with self._health.guard():
            self._health.make_room(lambda: write_offsets(self._fs, path, given))
