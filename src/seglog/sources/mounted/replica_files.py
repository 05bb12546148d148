"""Reads what the files of mounted replicas say about themselves. Decodes no record.

Brokers may write the directories meanwhile, and any of them may be missing, damaged or somebody else's: what cannot be
read here is read through the brokers.
"""

from __future__ import annotations

import os.path
from collections.abc import Collection, Sequence
from typing import NamedTuple

from seglog.core.errors import InvalidConfigError, SeglogError
from seglog.core.fs import Fs
from seglog.core.types import TopicPartition
from seglog.sources.directories.log_dir_mount import LogDirMount
from seglog.sources.directories.partition_files import read_segments
from seglog.sources.directories.partitions import MissingDirectory, find_partitions
from seglog.sources.directories.planning import SegmentExtent
from seglog.sources.mounted.coverage import MountedReplica, TransactionsBelow
from seglog.storage.directory.cluster_mark import read_mark
from seglog.storage.formats.checkpoints import read_leader_epochs, read_meta_properties, read_partition_metadata
from seglog.storage.formats.paths import TXN_INDEX, parse_file_name, segment_paths
from seglog.storage.log.producers import decode_snapshot
from seglog.storage.log.transaction_index import decode_aborted


class ReplicaFiles(NamedTuple):
    """A replica, its segments, and its log directory."""

    topic_partition: TopicPartition
    replica: MountedReplica
    segments: tuple[SegmentExtent, ...]
    mount: LogDirMount


class FoundReplicas(NamedTuple):
    """The replicas of each partition, and why some directories or partitions could not be read."""

    by_partition: dict[TopicPartition, list[ReplicaFiles]]
    problems: list[str]


def find_replicas(fs: Fs, paths: Sequence[str], wanted: Collection[TopicPartition]) -> FoundReplicas:
    """The replicas of the ``wanted`` partitions under ``paths``."""
    away: list[MissingDirectory] = []
    try:
        found = find_partitions(fs, paths, away)
    except (InvalidConfigError, OSError) as error:
        return FoundReplicas({}, [str(error)])
    problems = [f"{one.path}: {one.reason}" for one in away]
    chosen = [one for one in found if one.topic_partition in wanted]
    log_dirs: dict[str, tuple[str | None, LogDirMount]] = {}
    by_partition: dict[TopicPartition, list[ReplicaFiles]] = {}
    for path, topic_partition in chosen:
        log_dir = os.path.dirname(path)
        try:
            if log_dir not in log_dirs:
                log_dirs[log_dir] = _cluster_id(fs, log_dir), LogDirMount.seen(fs, log_dir)
            cluster_id, mount = log_dirs[log_dir]
            segments, replica = _read(fs, path, cluster_id)
            by_partition.setdefault(topic_partition, []).append(ReplicaFiles(topic_partition, replica, segments, mount))
        except (SeglogError, OSError) as error:
            problems.append(f"{path}: {error}")
    return FoundReplicas(by_partition, problems)


def _cluster_id(fs: Fs, log_dir: str) -> str | None:
    """The cluster in ``meta.properties``; None if the mark of a cluster of seglog names another one."""
    properties, mark = read_meta_properties(fs, log_dir), read_mark(fs, log_dir)
    if properties is None or (mark is not None and mark.cluster_id != properties.cluster_id):
        return None
    return properties.cluster_id


def _read(fs: Fs, path: str, cluster_id: str | None) -> tuple[tuple[SegmentExtent, ...], MountedReplica]:
    segments = tuple(read_segments(fs, path))
    return segments, MountedReplica(
        directory=path,
        cluster_id=cluster_id,
        topic_id=read_partition_metadata(fs, path),
        epochs=tuple(read_leader_epochs(fs, path)),
        segment_starts=tuple(segment.base_offset for segment in segments),
    )


def transactions_below(fs: Fs, directory: str, boundary: int) -> TransactionsBelow | None:
    """The transactions of a replica below the start of a segment, by the snapshot that the roll left there and the
    indexes of the segments before it; None if the files do not tell."""
    try:
        entries = decode_snapshot(fs.read(segment_paths(directory, boundary).snapshot)).entries
        opened = [one.current_txn_first_offset for one in entries.values() if one.current_txn_first_offset is not None]
        aborted = []
        for name in sorted(fs.listdir(directory)):
            file = parse_file_name(name)
            if file is not None and file.kind == TXN_INDEX and not file.state and file.base_offset < boundary:
                path = os.path.join(directory, name)
                aborted += decode_aborted(fs.read(path), path, base_offset=file.base_offset)
    except (SeglogError, OSError):
        return None
    known = tuple(txn for txn in aborted if txn.last_offset < boundary)
    return TransactionsBelow(boundary, min(opened, default=None), known)
