"""The part of `seglog fsck` that runs where a log directory is: here, or in a task on the host that has it."""

from __future__ import annotations

import os.path
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Final, NamedTuple
from uuid import UUID

from seglog.core.clock import SystemClock
from seglog.core.errors import CorruptError
from seglog.core.fs import Fs
from seglog.core.types import TopicPartition
from seglog.storage.formats.checkpoints import read_leader_epochs, read_offsets
from seglog.storage.formats.paths import (
    CLEANER_OFFSETS,
    PartitionDir,
    is_partition,
    list_partitions,
    list_segments,
    partition_at,
)
from seglog.storage.formats.topics_file import read_topics
from seglog.storage.log.manifest import SealedSegment, read_manifest
from seglog.storage.offline.compare_directories import read_copy
from seglog.storage.offline.fsck.blocks import Block, OffsetRange, read_blocks
from seglog.storage.offline.kraft_metadata import read_kraft_metadata
from seglog.storage.offline.repair import RepairPlan, carry_out, lock_directory, plan_repair
from seglog.storage.offline.repair.partition_repair import RepairedPartition
from seglog.storage.offline.repair.replica_batches import (
    BatchRequest,
    Disagreement,
    ReplicaBatches,
    ReplicaBytes,
)
from seglog.storage.offline.top_files import TopFiles
from seglog.storage.offline.verify import VerifyReport, verify

_ATTEMPTS: Final = 30
"""Looks at a partition whose files disappear meanwhile."""
Answer = ReplicaBytes | Disagreement | None
Answers = Mapping[tuple[str, BatchRequest], Answer]
"""The batches that other replicas have, by the name of the partition and the request."""


class ReplicaState(NamedTuple):
    """A partition in one log directory. Its own log is committed up to before ``committed``, as far as files tell.

    ``has_high_watermark``: a file told it; otherwise it is the end of the log. ``is_compacted``: the cleaner has
    replaced segments, or may do so.
    """

    partition: TopicPartition
    path: str
    node: int | None
    topic_id: UUID | None
    log_start: int
    log_end: int
    committed: int
    has_high_watermark: bool
    epochs: tuple[tuple[int, int], ...]
    is_compacted: bool
    blocks: tuple[Block, ...]


class DirectoryReport(NamedTuple):
    """``unsettled``: partitions that were not read, as their files disappeared each time."""

    path: str
    verified: VerifyReport
    replicas: Sequence[ReplicaState]
    unsettled: Sequence[str]


def inspect(
    fs: Fs, path: str, since_manifest: bool, workers: int | None, progress: Callable[[int], None] | None = None
) -> DirectoryReport:
    """Verify a log directory or partition, and read what other replicas are compared with."""
    path = os.path.realpath(path)
    verified = verify([path], fs=fs, since_manifest=since_manifest, workers=workers, progress=progress)
    alone = partition_at(path) if is_partition(fs, path) else None
    compacted = _CompactedTopics(fs, os.path.dirname(path) if alone is not None else path)
    replicas, unsettled = [], []
    for one in [alone] if alone is not None else list_partitions(fs, path) if fs.stat(path).is_dir else []:
        found = read_replica(fs, one.path, since_manifest, compacted)
        if found is not None:
            replicas.append(found)
        elif fs.exists(one.path) and list_segments(fs, one.path):
            unsettled.append(one.path)
    return DirectoryReport(path, verified, replicas, unsettled)


def read_replica(
    fs: Fs, path: str, since_manifest: bool, compacted: _CompactedTopics | None = None
) -> ReplicaState | None:
    """None if a file disappears at each attempt, or if the partition is gone."""
    partition = partition_at(path)
    assert partition is not None
    compacted = compacted or _CompactedTopics(fs, os.path.dirname(partition.path))
    for _ in range(_ATTEMPTS):
        with suppress(FileNotFoundError):
            return _read(fs, partition, since_manifest, compacted)
    return None


def _read(fs: Fs, partition: PartitionDir, since_manifest: bool, compacted: _CompactedTopics) -> ReplicaState | None:
    """The high watermark is read before the log, which has all records below it then."""
    directory, path = os.path.dirname(partition.path), partition.path
    if not list_segments(fs, path):
        return None
    top = TopFiles(fs, directory)
    node = claimed = None
    with suppress(CorruptError):  # `verify` reports it
        claimed, node = top.claimed(partition.topic_partition), top.broker
    copy = read_copy(fs, partition, top)
    start, end = copy.side.log_start, copy.side.log_end
    committed = end if claimed is None else min(max(claimed, start), end)
    epochs: tuple[tuple[int, int], ...] = ()
    sealed: Mapping[int, SealedSegment] = {}
    with suppress(CorruptError):
        epochs = tuple((one.epoch, one.start_offset) for one in read_leader_epochs(fs, path))
        sealed = read_manifest(fs, path) if since_manifest else {}
    return ReplicaState(
        partition.topic_partition,
        path,
        node,
        copy.topic_id,
        start,
        end,
        committed,
        claimed is not None,
        epochs,
        compacted.has(partition.topic_partition),
        tuple(read_blocks(fs, path, OffsetRange(start, committed), sealed)),
    )


class _CompactedTopics:
    """The topics that the cleaner of a log directory compacts, by its checkpoint and by configurations there."""

    def __init__(self, fs: Fs, directory: str) -> None:
        self._fs = fs
        self._directory = directory

    @cached_property
    def _policies(self) -> Mapping[str, str]:
        with suppress(CorruptError):
            kraft = read_kraft_metadata(self._fs, self._directory)
            configs: dict[str, Mapping[str, str]] = {} if kraft is None else dict(kraft.configs)
            configs |= {name: entry.config for name, entry in read_topics(self._fs, self._directory).items()}
            return {name: config.get("cleanup.policy", "") for name, config in configs.items()}
        return {}

    def has(self, partition: TopicPartition) -> bool:
        if "compact" in self._policies.get(partition.topic, ""):
            return True
        with suppress(CorruptError):  # `verify` reports it
            return partition in read_offsets(self._fs, os.path.join(self._directory, CLEANER_OFFSETS))
        return False


def find_batches(fs: Fs, path: str, request: BatchRequest) -> ReplicaBytes | None:
    """The batches of a replica, at its partition's directory, that are damaged in another one."""
    with suppress(FileNotFoundError):
        return ReplicaBatches(fs, path).find(request)
    return None


# Repair


class _AnsweredDonor:
    """The batches that other replicas have; keeps requests that they were not asked for yet."""

    def __init__(self, partition: str, answers: Answers, asked: list[tuple[str, BatchRequest]]) -> None:
        self._partition = partition
        self._answers = answers
        self._asked = asked

    def find(self, request: BatchRequest) -> Answer:
        key = self._partition, request
        if key not in self._answers:
            self._asked.append(key)
        return self._answers.get(key)


def plan(fs: Fs, path: str, answers: Answers) -> tuple[RepairPlan, list[tuple[str, BatchRequest]]]:
    """The plan to repair a log directory or partition with these batches of others, and requests for more of them."""
    asked: list[tuple[str, BatchRequest]] = []
    made = plan_repair(path, fs=fs, donor_of=lambda one: _AnsweredDonor(os.path.basename(one), answers, asked))
    return made, asked


def repair(fs: Fs, path: str, answers: Answers) -> list[RepairedPartition]:
    """Plan again, under the directory's lock, and carry it out. `LogDirInUseError` while a broker runs on it."""
    with lock_directory(path, fs=fs):
        made, _ = plan(fs, path, answers)
        return carry_out(made, fs=fs, clock=SystemClock())
