"""What a query may read: which partitions there are, of several replicas which one, and up to which offset.

A directory that nobody has open is read to the end of its logs. In one that a broker, or another process of seglog,
has locked, the newest records may not be on other replicas yet and may still be taken back: it is read up to the high
watermark.
"""

from __future__ import annotations

import os.path
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Final, NamedTuple

from seglog.core.errors import CorruptError, InvalidConfigError, InvalidLogDirError
from seglog.core.fs import Fs, is_locked
from seglog.core.types import TopicPartition
from seglog.spark.extents import find_partitions, read_extent
from seglog.spark.options import ReadOptions
from seglog.spark.planning import select
from seglog.spark.ranges import PartitionExtent
from seglog.storage.checkpoint import read_meta_properties, read_offsets
from seglog.storage.isolation import committed
from seglog.storage.layout import HIGH_WATERMARKS, LOCK, LOG_START_OFFSETS, PartitionDir
from seglog.storage.watermarks import WATERMARKS, Watermark, read_watermarks

LONGEST: Final = "longest"


class Survey(NamedTuple):
    """The partitions to read, each once, by topic and number; and sentences that the user should see."""

    extents: list[PartitionExtent]
    notes: list[str]


def survey(fs: Fs, options: ReadOptions) -> Survey:
    """Look at what ``options`` name.

    Raises `InvalidConfigError`, `UnknownTopicError` or `InvalidLogDirError` with what is wrong and what is there. A
    replica that is damaged at its end is passed over if there is another one.
    """
    try:
        return _survey(fs, options)
    except PermissionError as error:
        raise InvalidLogDirError(
            f"{error.filename}: no permission to read it. Whoever runs Spark's workers needs to read the logs' "
            "files and to list their directories"
        ) from error


def _survey(fs: Fs, options: ReadOptions) -> Survey:
    found = find_partitions(fs, options.paths)
    log_dirs = {path: _LogDir(fs, path) for path in {os.path.dirname(partition.path) for partition in found}}
    found = _of_replica(options.replica, found, log_dirs)
    chosen = set(select(options.selection, [partition.topic_partition for partition in found]))
    replicas: dict[TopicPartition, list[PartitionDir]] = {}
    for partition in found:
        if partition.topic_partition in chosen:
            replicas.setdefault(partition.topic_partition, []).append(partition)
    notes: list[str] = []
    extents = []
    for partition_dirs in replicas.values():
        extent = _longest(fs, partition_dirs, log_dirs, options, notes)
        if extent is not None:
            extents.append(_stable(fs, extent, log_dirs) if options.read_committed else extent)
    for log_dir in log_dirs.values():
        notes += log_dir.notes
    return Survey(extents, notes)


class _LogDir:
    """What the files at the top of a log directory say; each is read once, when it is asked for."""

    def __init__(self, fs: Fs, path: str) -> None:
        self._fs = fs
        self.path = path
        self.notes: list[str] = []

    @cached_property
    def log_starts(self) -> Mapping[TopicPartition, int]:
        return read_offsets(self._fs, os.path.join(self.path, LOG_START_OFFSETS))

    @cached_property
    def broker(self) -> int | None:
        properties = read_meta_properties(self._fs, self.path)
        return properties.node_id if properties else None

    @cached_property
    def in_use(self) -> bool:
        return is_locked(os.path.join(self.path, LOCK))

    @cached_property
    def watermarks(self) -> Mapping[TopicPartition, Watermark] | None:
        return read_watermarks(self._fs, self.path)

    @cached_property
    def checkpoint(self) -> Mapping[TopicPartition, int] | None:
        path = os.path.join(self.path, HIGH_WATERMARKS)
        return read_offsets(self._fs, path) if self._fs.exists(path) else None

    @cached_property
    def source(self) -> str | None:
        """The file that has the high watermarks, None if none has."""
        if self.watermarks is not None:
            return WATERMARKS
        return HIGH_WATERMARKS if self.checkpoint is not None else None

    def high_watermark(self, partition: TopicPartition) -> int:
        """0 of a partition that the file does not have yet: a broker counts from there as well."""
        if self.watermarks is not None:
            mark = self.watermarks.get(partition)
            return mark.high if mark else 0
        return (self.checkpoint or {}).get(partition, 0)

    @cached_property
    def by_default(self) -> bool:
        """Whether the high watermark is the end where no option says so; it is noted once."""
        if not self.in_use:
            return False
        if self.source is None:
            self.notes.append(
                f"{self.path} is in use and no file has its high watermarks: it is read to the end of its logs, where "
                "records may still be taken back"
            )
            return False
        self.notes.append(
            f"{self.path} is in use: it is read up to the high watermarks in {self.source} (option until=logEnd: to "
            "the end of its logs)"
        )
        return True


def _of_replica(replica: str, found: list[PartitionDir], log_dirs: Mapping[str, _LogDir]) -> list[PartitionDir]:
    """Those of one broker, by id, or of one log directory, by path; all of them for `LONGEST`."""
    if replica.lower() == LONGEST:
        return found
    if replica.isdecimal():
        chosen = {path for path, log_dir in log_dirs.items() if log_dir.broker == int(replica)}
    else:
        chosen = {path for path in log_dirs if os.path.realpath(path) == os.path.realpath(os.path.expanduser(replica))}
    if not chosen and found:
        there = ", ".join(f"{path} (broker {log_dirs[path].broker})" for path in sorted(log_dirs))
        raise InvalidConfigError(f"option replica is {replica!r}: longest, a broker's id or a log directory of {there}")
    return [partition for partition in found if os.path.dirname(partition.path) in chosen]


def _longest(
    fs: Fs,
    replicas: Iterable[PartitionDir],
    log_dirs: Mapping[str, _LogDir],
    options: ReadOptions,
    notes: list[str],
) -> PartitionExtent | None:
    """Of the replicas that can be read the one that is readable furthest; None if the partition was just deleted."""
    best: PartitionExtent | None = None
    damage: CorruptError | None = None
    for path, partition in replicas:
        log_dir = log_dirs[os.path.dirname(path)]
        try:
            extent = read_extent(
                fs, path, partition, log_dir.log_starts.get(partition, 0), permissive=options.permissive
            )
        except FileNotFoundError:
            continue
        except CorruptError as error:
            damage = damage or error
            notes.append(f"a damaged replica was passed over: {error}")
            continue
        extent = _bounded(extent, log_dir, options.until)
        if best is None or (extent.until, extent.log_end) > (best.until, best.log_end):
            best = extent
    if best is None and damage is not None:
        raise damage
    return best


def _bounded(extent: PartitionExtent, log_dir: _LogDir, until: str | None) -> PartitionExtent:
    if until == "highWatermark" and log_dir.source is None:
        raise InvalidConfigError(
            f"option until is highWatermark: {log_dir.path} has neither {WATERMARKS} nor {HIGH_WATERMARKS}, and no "
            "high watermark is known; logEnd reads to the end"
        )
    if until == "logEnd" or (until is None and not log_dir.by_default):
        return extent
    mark = log_dir.high_watermark(extent.topic_partition)
    if mark >= extent.log_end:
        return extent
    return replace(extent, until=max(mark, extent.log_start), bound=f"high watermark ({log_dir.source})")


def _stable(fs: Fs, extent: PartitionExtent, log_dirs: Mapping[str, _LogDir]) -> PartitionExtent:
    """Up to the last stable offset, and what was aborted below it."""
    aborted, stable = committed(fs, extent.directory, below=extent.until)
    marks = log_dirs[os.path.dirname(extent.directory)].watermarks
    if marks is not None and extent.bound.startswith("high watermark") and extent.topic_partition in marks:
        stable = min(marks[extent.topic_partition].stable, extent.until if stable is None else stable)
    if stable is None or stable >= extent.until:
        return replace(extent, aborted=aborted)
    return replace(extent, until=max(stable, extent.log_start), bound="last stable offset", aborted=aborted)
