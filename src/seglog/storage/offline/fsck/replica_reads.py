"""The part of `seglog fsck` that runs where a log directory is: here, or in a task on the host that has it."""

from __future__ import annotations

import os.path
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Final, NamedTuple, TypeVar
from uuid import UUID

from seglog.core.clock import SystemClock
from seglog.core.errors import CorruptError, SeglogError
from seglog.core.fs import Fs, NotRegularFileError
from seglog.core.types import TopicPartition
from seglog.storage.formats.checkpoints import EpochEntry, read_leader_epochs, read_offsets, read_partition_metadata
from seglog.storage.formats.paths import (
    CLEANER_OFFSETS,
    PartitionDir,
    is_partition,
    list_partitions,
    list_segments,
    partition_at,
)
from seglog.storage.formats.topics_file import TopicEntry, read_topics
from seglog.storage.log.manifest import SealedSegment, read_manifest
from seglog.storage.offline.compare_directories import read_side
from seglog.storage.offline.fsck.blocks import Block, OffsetRange, read_blocks
from seglog.storage.offline.kraft_metadata import read_kraft_metadata
from seglog.storage.offline.repair import RepairPlan, carry_out, lock_directory, plan_repair
from seglog.storage.offline.repair.partition_repair import RepairedPartition, RepairStep
from seglog.storage.offline.repair.replica_batches import (
    BatchRequest,
    Disagreement,
    ReplicaBatches,
    ReplicaBytes,
    TooMuch,
)
from seglog.storage.offline.top_files import TopFiles
from seglog.storage.offline.verify import VerifyReport, verify

T = TypeVar("T")
U = TypeVar("U")
MOST_BYTES: Final = 64 << 20
"""Most bytes of batches in a row that one replica gives another: they pass through the driver's memory."""
_ATTEMPTS: Final = 30
"""Looks at a partition whose files disappear meanwhile."""
Answer = ReplicaBytes | Disagreement | TooMuch | None
Answers = Mapping[tuple[str, BatchRequest], Answer]
"""The batches that other replicas have, by the name of the partition and the request."""


class ReplicaState(NamedTuple):
    """A partition in one log directory. Its own log is committed up to before ``committed``, as far as files tell.

    ``has_high_watermark``: a file told it; otherwise it is the end of the log, or its start if that file is damaged.
    ``is_compacted``: the cleaner has replaced segments, or may do so.
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
    # `verify` reports damage of these files.
    node = _sound(lambda: top.broker, None)
    claimed = _sound(lambda: top.claimed(partition.topic_partition), 0)
    log_starts: Mapping[TopicPartition, int] = _sound(lambda: top.log_starts, {})
    side = read_side(fs, partition, log_starts)
    start, end = side.log_start, side.log_end
    committed = end if claimed is None else min(max(claimed, start), end)
    sealed: Mapping[int, SealedSegment] = _sound(lambda: read_manifest(fs, path), {}) if since_manifest else {}
    epochs: Sequence[EpochEntry] = _sound(lambda: read_leader_epochs(fs, path), ())
    return ReplicaState(
        partition.topic_partition,
        path,
        node,
        _sound(lambda: read_partition_metadata(fs, path), None),
        start,
        end,
        committed,
        claimed is not None,
        tuple((one.epoch, one.start_offset) for one in epochs),
        compacted.has(partition.topic_partition),
        tuple(read_blocks(fs, path, OffsetRange(start, committed), sealed)),
    )


def _sound(read: Callable[[], T], otherwise: U) -> T | U:
    """A file's content, or ``otherwise`` if it is damaged."""
    try:
        return read()
    except (CorruptError, NotRegularFileError):
        return otherwise


class _CompactedTopics:
    """The topics that the cleaner of a log directory compacts, by its checkpoint and by configurations there."""

    def __init__(self, fs: Fs, directory: str) -> None:
        self._fs = fs
        self._directory = directory

    @cached_property
    def _policies(self) -> Mapping[str, str]:
        kraft = _sound(lambda: read_kraft_metadata(self._fs, self._directory), None)
        configs: dict[str, Mapping[str, str]] = {} if kraft is None else dict(kraft.configs)
        topics: Mapping[str, TopicEntry] = _sound(lambda: read_topics(self._fs, self._directory), {})
        configs |= {name: entry.config for name, entry in topics.items()}
        return {name: config.get("cleanup.policy", "") for name, config in configs.items()}

    @cached_property
    def _cleaned(self) -> Container[TopicPartition] | None:
        return _sound(lambda: read_offsets(self._fs, os.path.join(self._directory, CLEANER_OFFSETS)), None)

    def has(self, partition: TopicPartition) -> bool:
        """Also if the cleaner's checkpoint is damaged: it may have been there."""
        if "compact" in self._policies.get(partition.topic, ""):
            return True
        return self._cleaned is None or partition in self._cleaned


def find_batches(fs: Fs, path: str, request: BatchRequest) -> ReplicaBytes | TooMuch | None:
    """The batches of a replica, at its partition's directory, that are damaged in another one."""
    with suppress(FileNotFoundError):
        return ReplicaBatches(fs, path, MOST_BYTES).find(request)
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


class PlanChangedError(SeglogError):
    """The files have changed since the plan was made, so that another repair is needed now."""


def try_lock(fs: Fs, path: str) -> None:
    """Raise `LogDirInUseError` while a broker runs on the directory."""
    with lock_directory(path, fs=fs):
        pass


def repair(fs: Fs, path: str, answers: Answers, confirmed: Sequence[RepairStep]) -> list[RepairedPartition]:
    """Plan again, under the directory's lock, and carry it out if its steps are those that were ``confirmed``.

    `LogDirInUseError` while a broker runs on it, and `PlanChangedError`.
    """
    with lock_directory(path, fs=fs):
        made, _ = plan(fs, path, answers)
        if list(made.all_steps) != list(confirmed):
            raise PlanChangedError(f"{path} has changed since its repair was planned: check it again")
        return carry_out(made, fs=fs, clock=SystemClock())
