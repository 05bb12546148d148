"""Divides ranges of offsets of which a mounted replica covers a part. Pure.

The tasks are those of the connector, as for directories and brokers: the mount only decides from where a task reads
which of its offsets.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from seglog.core.types import TopicPartition
from seglog.sources.brokers.planning import BrokerExtent, FetchRange
from seglog.sources.brokers.planning import plan_shares as plan_fetches
from seglog.sources.directories.planning import DirectoryExtent, Index, ReadRange
from seglog.sources.directories.planning import plan_shares as plan_files
from seglog.sources.mounted.coverage import EpochSpan
from seglog.sources.planning import WORTH_A_TASK
from seglog.sources.ranges import OffsetRange, PartitionRange, divide


class MountedExtent(NamedTuple):
    """The part of a partition that is read from a replica's files: the offsets of ``spans``, which are adjacent."""

    files: DirectoryExtent
    topic_id: UUID
    spans: tuple[EpochSpan, ...]

    @property
    def offsets(self) -> OffsetRange:
        return OffsetRange(self.spans[0].start, self.spans[-1].end)


@dataclass(frozen=True, slots=True, kw_only=True)
class MountedRange:
    """Offsets that a task reads from ``files``, as long as these are of the topic with ``topic_id`` and their batches
    have the leader epochs of ``spans``; otherwise through the brokers."""

    files: ReadRange
    topic_id: UUID
    spans: tuple[EpochSpan, ...]

    @property
    def topic_partition(self) -> TopicPartition:
        return self.files.topic_partition

    @property
    def offsets(self) -> OffsetRange:
        return self.files.offsets

    @property
    def size(self) -> int:
        return self.files.size


Part = MountedRange | FetchRange


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedRange:
    """Adjacent ``parts`` of one partition, in the order of offsets, that one task reads."""

    parts: tuple[Part, ...]

    @property
    def size(self) -> int:
        return sum(part.size for part in self.parts)


def plan(
    extents: Sequence[BrokerExtent],
    ranges: Mapping[TopicPartition, OffsetRange],
    mounted: Mapping[TopicPartition, MountedExtent],
    bytes_per_offset: Mapping[TopicPartition, float],
    index: Index,
    *,
    max_bytes: int,
    min_partitions: int | None = None,
    max_records: int | None = None,
    cores: int | None = 1,
) -> list[SharedRange]:
    """Divide the ranges among tasks, in the order of partitions and offsets.

    A task reads from files and through brokers where a part alone is not worth a task, and where options have divided
    the ranges, as long as it is not above ``max_bytes``.
    """
    shares = [PartitionRange(extent.topic_partition, ranges[extent.topic_partition]) for extent in extents]
    shares = divide(shares, min_partitions=min_partitions, max_records=max_records)
    is_divided = min_partitions is not None or max_records is not None
    within, without = [], []
    for share in shares:
        extent = mounted.get(share.topic_partition)
        within += [] if extent is None else _shared(share, extent.offsets)
        without += rest(share, None if extent is None else extent.offsets)
    files = plan_files(
        [extent.files for extent in mounted.values()],
        within,
        index,
        max_bytes=max_bytes,
        cores=cores,
        is_divided=is_divided,
    )
    # A share whose files were empty at that moment has no task.
    planned = {(one.topic_partition, one.offsets.start) for one in files}
    without += [share for share in within if (share.topic_partition, share.offsets.start) not in planned]
    fetches = plan_fetches(extents, without, bytes_per_offset, max_bytes=max_bytes, cores=cores, is_divided=is_divided)
    parts: list[Part] = [_mounted_range(one, mounted[one.topic_partition]) for one in files]
    parts += fetches
    parts.sort(key=lambda part: (part.topic_partition, part.offsets))
    ends = {(share.topic_partition, share.offsets.end) for share in shares}
    return [SharedRange(parts=group) for group in _grouped(parts, ends, max_bytes, is_divided=is_divided)]


def rest(share: PartitionRange, covered: OffsetRange | None) -> list[PartitionRange]:
    """The parts of ``share`` before and after the ``covered`` offsets."""
    (start, end), (low, high) = share.offsets, covered or OffsetRange(share.offsets.end, share.offsets.end)
    found = [OffsetRange(start, min(end, low)), OffsetRange(max(start, high), end)]
    return [PartitionRange(share.topic_partition, one) for one in found if one.size > 0]


def _shared(share: PartitionRange, covered: OffsetRange) -> list[PartitionRange]:
    both = OffsetRange(max(share.offsets.start, covered.start), min(share.offsets.end, covered.end))
    return [PartitionRange(share.topic_partition, both)] if both.size > 0 else []


def _mounted_range(files: ReadRange, extent: MountedExtent) -> MountedRange:
    start, end = files.offsets
    spans = tuple(span for span in extent.spans if span.start < end and span.end > start)
    return MountedRange(files=files, topic_id=extent.topic_id, spans=spans)


def _grouped(
    parts: Sequence[Part], ends: Collection[tuple[TopicPartition, int]], max_bytes: int, *, is_divided: bool
) -> Iterator[tuple[Part, ...]]:
    """The neighbouring parts of each share, which end at ``ends``, up to ``max_bytes``; unless options have divided the
    ranges, only as long as one of them is not worth a task."""
    group: list[Part] = []
    for part in parts:
        size = sum(one.size for one in group)
        is_joined = is_divided or min(size, part.size) < WORTH_A_TASK
        if group and (size + part.size > max_bytes or not is_joined):
            yield tuple(group)
            group = []
        group.append(part)
        if (part.topic_partition, part.offsets.end) in ends:
            yield tuple(group)
            group = []


def phases(task: Sequence[SharedRange]) -> tuple[list[FetchRange], list[MountedRange], list[FetchRange]]:
    """The parts of a task in an order that keeps that of each partition's offsets, and fetches as many partitions at
    once as possible: those that lie before files, the files, and the rest."""
    files = [part for shared in task for part in shared.parts if isinstance(part, MountedRange)]
    last = {part.topic_partition: part.offsets.start for part in files}
    fetches = [part for shared in task for part in shared.parts if isinstance(part, FetchRange)]
    before = [part for part in fetches if part.offsets.start < last.get(part.topic_partition, -1)]
    return before, files, [part for part in fetches if part.offsets.start >= last.get(part.topic_partition, -1)]
