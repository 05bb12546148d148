"""Which partitions a query reads, from which replica, and up to which offset.

A directory that no process has open is read to the end of its logs. If a broker or another seglog process has locked
it, the newest records may not be on other replicas yet and may still be truncated: it is read up to the high watermark.
If several directories have a partition, it is one partition and is read up to the committed offset, whichever brokers
are up (`seglog.storage.offline.replica_choice`). The same holds for every partition while one of the given directories
is missing, because it may have replicas of any of them.
"""

from __future__ import annotations

import os.path
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from typing import Final
from uuid import UUID

from seglog.core.errors import CorruptError, InvalidConfigError, InvalidLogDirError
from seglog.core.fs import Fs
from seglog.core.types import TopicPartition
from seglog.sources.directories.log_dir_mount import LogDirMount
from seglog.sources.directories.partition_files import epoch_before, read_extent
from seglog.sources.directories.partitions import MissingDirectory, find_partitions
from seglog.sources.directories.planning import DirectoryExtent
from seglog.sources.options.read_options import ReadOptions
from seglog.sources.planning import select
from seglog.sources.record_source import Survey
from seglog.storage.formats.checkpoints import encode_id, read_leader_epochs, read_partition_metadata
from seglog.storage.formats.paths import HIGH_WATERMARKS, PartitionDir
from seglog.storage.formats.watermarks import WATERMARKS
from seglog.storage.log.epochs import LeaderEpochs
from seglog.storage.offline.replica_choice import ReplicaFiles, choose
from seglog.storage.offline.top_files import TopFiles
from seglog.storage.offline.transaction_state import read_transactions

LONGEST: Final = "longest"
_ATTEMPTS: Final = 4
"""Further looks at a partition whose files disappear meanwhile."""


def survey(fs: Fs, options: ReadOptions, *, may_be_away: bool = False) -> Survey[DirectoryExtent]:
    """Survey the directories of ``options``. With ``may_be_away`` some of several directories may be missing.

    Raises `InvalidConfigError`, `UnknownTopicError` or `InvalidLogDirError`. Skips a replica with a damaged end if
    there is another one.
    """
    try:
        return _survey(fs, options, [] if may_be_away else None)
    except PermissionError as error:
        raise InvalidLogDirError(
            f"{error.filename}: permission denied. The user that runs Spark's workers must be able to read the "
            "logs' files and to list their directories"
        ) from error


def _survey(fs: Fs, options: ReadOptions, away: list[MissingDirectory] | None) -> Survey[DirectoryExtent]:
    found = find_partitions(fs, options.paths, away)
    log_dirs = {path: _LogDir(fs, path) for path in {os.path.dirname(partition.path) for partition in found}}
    found = _of_replica(options.replica, found, log_dirs)
    chosen = set(select(options.selection, [partition.topic_partition for partition in found]))
    replicas: dict[TopicPartition, list[PartitionDir]] = {}
    for partition in found:
        if partition.topic_partition in chosen:
            replicas.setdefault(partition.topic_partition, []).append(partition)
    _check_topic_ids(fs, replicas)
    notes = [str(one) for one in away or ()]
    bounds = _Bounds(fs, options, log_dirs, is_partial=bool(away), notes=notes)
    extents = []
    for partition_dirs in replicas.values():
        extent = _settled(bounds, partition_dirs)
        if extent is not None:
            mounted = {os.path.dirname(path) for path in (extent.directory, *extent.others)}
            extents.append(replace(extent, mounts=tuple(log_dirs[path].mount for path in sorted(mounted))))
    for log_dir in log_dirs.values():
        notes += log_dir.notes
    return Survey(extents, notes, bool(away))


def _settled(bounds: _Bounds, partition_dirs: Sequence[PartitionDir]) -> DirectoryExtent | None:
    """`_Bounds.extent`, again if retention or compaction removes a file between listing and opening it."""
    for _ in range(_ATTEMPTS):
        with suppress(FileNotFoundError):
            return bounds.extent(partition_dirs)
    return bounds.extent(partition_dirs)


class _LogDir(TopFiles):
    """A log directory, and warnings about it."""

    def __init__(self, fs: Fs, path: str) -> None:
        super().__init__(fs, path)
        self.notes: list[str] = []

    @cached_property
    def mount(self) -> LogDirMount:
        return LogDirMount.seen(self._fs, self.path)

    @cached_property
    def by_default(self) -> bool:
        """Whether to stop at the high watermark if no option decides. Adds a note the first time."""
        if not self.in_use:
            return False
        if self.source is None:
            self.notes.append(
                f"{self.path} is in use, and no file has its high watermarks: seglog reads to the end of its logs, "
                "where a broker may still truncate records"
            )
            return False
        self.notes.append(
            f"{self.path} is in use: seglog reads up to the high watermarks in {self.source} (option until=logEnd "
            "reads to the end of its logs)"
        )
        return True


def _of_replica(replica: str, found: list[PartitionDir], log_dirs: Mapping[str, _LogDir]) -> list[PartitionDir]:
    """The partitions of one broker (by id) or of one log directory (by path); all of them for `LONGEST`."""
    if replica.lower() == LONGEST:
        return found
    if replica.isdecimal():
        chosen = {path for path, log_dir in log_dirs.items() if log_dir.broker == int(replica)}
    else:
        chosen = {path for path in log_dirs if os.path.realpath(path) == os.path.realpath(os.path.expanduser(replica))}
    if not chosen and found:
        there = ", ".join(f"{path} (broker {log_dirs[path].broker})" for path in sorted(log_dirs))
        raise InvalidConfigError(
            f"option replica is {replica!r}: it must be longest, a broker's id or one of the log directories {there}"
        )
    return [partition for partition in found if os.path.dirname(partition.path) in chosen]


def _check_topic_ids(fs: Fs, replicas: Mapping[TopicPartition, Sequence[PartitionDir]]) -> None:
    """Refuse a topic with two ids: it was deleted and created again, and a broker that was down has the old one."""
    parents: dict[str, set[str]] = {}
    for partition, dirs in replicas.items():
        parents.setdefault(partition.topic, set()).update(os.path.dirname(one.path) for one in dirs)
    known: dict[str, tuple[UUID, str]] = {}
    for partition, dirs in replicas.items():
        for path, _ in dirs if len(parents[partition.topic]) > 1 else ():
            try:
                topic_id = read_partition_metadata(fs, path)
            except CorruptError:
                continue
            if topic_id is None:
                continue
            first, where = known.setdefault(partition.topic, (topic_id, path))
            if first != topic_id:
                raise InvalidConfigError(
                    f"topic {partition.topic!r} has two ids: {encode_id(first)} in {where}, "
                    f"{encode_id(topic_id)} in {path}. It was deleted and created again while one broker was down, "
                    "or these are two clusters: leave one directory out, or choose one with option replica"
                )


class _Bounds:
    """Decides the end of each partition. ``is_partial``: one of the given directories is missing."""

    def __init__(
        self, fs: Fs, options: ReadOptions, log_dirs: Mapping[str, _LogDir], *, is_partial: bool, notes: list[str]
    ) -> None:
        self._fs = fs
        self._options = options
        self._log_dirs = log_dirs
        self._is_partial = is_partial
        self._notes = notes
        self._said: set[str] = set()

    def extent(self, partition_dirs: Sequence[PartitionDir]) -> DirectoryExtent | None:
        """The partition in the replica to read; None if it was just deleted. FileNotFoundError if a file was."""
        extent = self._chosen(partition_dirs)
        if extent is None or not self._options.read_committed:
            return extent
        try:
            return _stable(self._fs, extent, self._log_dirs)
        except FileNotFoundError:
            if self._fs.exists(extent.directory) or len(partition_dirs) > 1:
                raise
            return None

    def _chosen(self, partition_dirs: Sequence[PartitionDir]) -> DirectoryExtent | None:
        several = len(partition_dirs) > 1
        found, damage = [], None
        for path, partition in partition_dirs:
            log_start = self._dir(path).log_starts.get(partition, 0)
            try:
                extent = read_extent(self._fs, path, partition, log_start, permissive=self._options.permissive)
                epochs = LeaderEpochs(read_leader_epochs(self._fs, path) if several else ())
                found.append((extent, self._replica(extent, epochs)))
            except FileNotFoundError:
                if self._fs.exists(path):
                    raise
                continue
            except CorruptError as error:
                damage = damage or error
                self._notes.append(f"skipped a damaged replica: {error}")
        if not found:
            if damage is not None:
                raise damage
            return None
        if not several and not self._is_partial:
            return self._alone(found[0][0])
        return self._best({extent.directory: extent for extent, _ in found}, [replica for _, replica in found])

    def _dir(self, partition_path: str) -> _LogDir:
        return self._log_dirs[os.path.dirname(partition_path)]

    def _replica(self, extent: DirectoryExtent, epochs: LeaderEpochs) -> ReplicaFiles:
        return ReplicaFiles(
            extent.directory,
            extent.log_start,
            extent.log_end,
            self._dir(extent.directory).claimed(extent.topic_partition),
            epochs,
        )

    def _alone(self, extent: DirectoryExtent) -> DirectoryExtent:
        until, log_dir = self._options.until, self._dir(extent.directory)
        if until == "highWatermark" and log_dir.source is None:
            raise _no_watermark(log_dir.path)
        if until == "logEnd" or (until is None and not log_dir.by_default):
            return extent
        mark = log_dir.high_watermark(extent.topic_partition)
        if mark >= extent.log_end:
            return extent
        return replace(extent, until=max(mark, extent.log_start), bound=f"high watermark ({log_dir.source})")

    def _best(self, extents: Mapping[str, DirectoryExtent], replicas: list[ReplicaFiles]) -> DirectoryExtent:
        while True:
            choice = choose(replicas, to_end=self._options.until == "logEnd")
            wrong = next(
                (
                    one
                    for one in (choice.replica, *choice.others)
                    if self._is_brought_back(extents[one.directory], one, choice.until)
                ),
                None,
            )
            if wrong is None:
                break
            # Its epoch file describes another history than its batches, so its claims do not count.
            replicas = [one._replace(epochs=LeaderEpochs()) if one is wrong else one for one in replicas]
        extent = extents[choice.replica.directory]
        others = tuple(one.directory for one in choice.others)
        if choice.by is None:
            if self._options.until == "highWatermark":
                raise _no_watermark(" and ".join(sorted(os.path.dirname(path) for path in extents)))
            if self._options.until is None:
                self._say("no file has the high watermarks of some replicas: seglog reads the newest log to its end")
            return replace(extent, others=others)
        source = self._dir(choice.by.directory).source
        if self._options.until is None:
            self._say(
                "partitions with replicas in several directories, or perhaps in a missing one, are read up to their "
                "high watermark (option until=logEnd reads to the end of the newest log)"
            )
        if choice.until >= extent.log_end:
            return replace(extent, others=others)
        until = max(choice.until, extent.log_start)
        return replace(extent, until=until, bound=f"high watermark ({source})", others=others)

    def _is_brought_back(self, extent: DirectoryExtent, replica: ReplicaFiles, until: int) -> bool:
        """Whether a power cut restored a truncated tail of the log: `LeaderEpochs.agree`."""
        if self._dir(extent.directory).is_recovered or not len(replica.epochs):
            return False
        found = epoch_before(self._fs, extent, until)
        return found is not None and found.epoch != replica.epochs.epoch_for_offset(found.start_offset)

    def _say(self, note: str) -> None:
        if note not in self._said:
            self._said.add(note)
            self._notes.append(note)


def _no_watermark(where: str) -> InvalidConfigError:
    return InvalidConfigError(
        f"option until is highWatermark, but {where} has neither {WATERMARKS} nor {HIGH_WATERMARKS}, so no "
        "high watermark is known; until=logEnd reads to the end"
    )


def _stable(fs: Fs, extent: DirectoryExtent, log_dirs: Mapping[str, _LogDir]) -> DirectoryExtent:
    """Lower the end to the last stable offset, and add the aborted transactions below it."""
    aborted, stable = read_transactions(fs, extent.directory, below=extent.until)
    marks = log_dirs[os.path.dirname(extent.directory)].watermarks
    if marks is not None and extent.bound.startswith("high watermark") and extent.topic_partition in marks:
        stable = min(marks[extent.topic_partition].stable, extent.until if stable is None else stable)
    if stable is None or stable >= extent.until:
        return replace(extent, aborted=aborted)
    return replace(extent, until=max(stable, extent.log_start), bound="last stable offset", aborted=aborted)
