"""Plans which bytes of which files each task reads, from plain values to plain values.

A partition is divided by offsets, like in Spark's Kafka connector, and by bytes at batch boundaries from its sparse
indexes, so that one large partition uses all cores. Dividing never changes what is read: the offsets of tasks do not
overlap and have no gaps; the bytes only tell a task where to find them quickly.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import NamedTuple, Protocol
from uuid import UUID

from seglog.core.types import TopicPartition
from seglog.sources.directories.log_dir_mount import LogDirMount
from seglog.sources.planning import spread
from seglog.sources.ranges import OffsetRange, PartitionExtent, PartitionRange, divide
from seglog.storage.log.transaction_index import AbortedTxn


class SegmentExtent(NamedTuple):
    """A segment: its first offset, its file, and the bytes of whole batches in it."""

    base_offset: int
    log: str
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryExtent(PartitionExtent):
    """A partition in ``directory``. ``log_end`` is its log end offset.

    Records of ``aborted`` transactions are skipped. ``others`` are the directories of replicas with the same records up
    to ``until``; ``mounts`` are the log directories of all of these. Segments rise.
    """

    directory: str
    segments: tuple[SegmentExtent, ...]
    aborted: tuple[AbortedTxn, ...] = ()
    others: tuple[str, ...] = ()
    mounts: tuple[LogDirMount, ...] = ()


class Piece(NamedTuple):
    """Bytes ``start`` to before ``end`` of a segment's file, batch boundaries both when the query was planned.

    ``next_base`` is the base offset of the segment after it, None for the last one.
    """

    log: str
    base_offset: int
    start: int
    end: int
    next_base: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRange:
    """The records of one task: those with an offset in ``offsets``, which were in ``pieces`` of files when planned.

    If a piece has changed, the task surveys ``directory`` again; if that is gone, or of another topic than that with
    ``topic_id`` (None: any), ``others``. ``mounts`` are their log directories. Records of ``aborted`` transactions are
    skipped.
    """

    topic_partition: TopicPartition
    directory: str
    offsets: OffsetRange
    pieces: tuple[Piece, ...]
    topic_id: UUID | None = None
    aborted: tuple[AbortedTxn, ...] = ()
    others: tuple[str, ...] = ()
    mounts: tuple[LogDirMount, ...] = ()

    @property
    def size(self) -> int:
        """Bytes to read."""
        return sum(piece.end - piece.start for piece in self.pieces)


class Boundaries(Protocol):
    """Known starts of batches in a segment, from its index. Positions are in bytes."""

    def start_of(self, offset: int) -> int:
        """A boundary at or before the batch with ``offset``; near to it."""

    def end_of(self, offset: int) -> int:
        """A boundary after every batch that has an offset below ``offset``; near to the last of them."""

    def cut(self, low: int, wanted: int, high: int) -> int:
        """The last boundary in (low, wanted], else the first in (wanted, high), else ``high``."""

    def offset_at(self, position: int) -> int:
        """An offset for the boundary ``position``: all before it are lower, and none after it is."""


class Index(Protocol):
    """Hands out the boundaries of one segment."""

    def __call__(self, segment: SegmentExtent, /) -> Boundaries: ...


def plan(
    extents: Sequence[DirectoryExtent],
    ranges: Mapping[TopicPartition, OffsetRange],
    index: Index,
    *,
    max_bytes: int,
    min_partitions: int | None = None,
    max_records: int | None = None,
    cores: int | None = 1,
) -> list[ReadRange]:
    """Divide the ranges among tasks, in the order of partitions and offsets.

    With ``min_partitions`` or ``max_records``, offsets are first divided as by the connector (`divide`). Otherwise
    there are enough tasks for all ``cores`` (None if unknown), as long as each has `WORTH_A_TASK`. Then tasks above
    about ``max_bytes`` are split at batch boundaries. An empty partition has no task.
    """
    shares = [PartitionRange(extent.topic_partition, ranges[extent.topic_partition]) for extent in extents]
    shares = divide(shares, min_partitions=min_partitions, max_records=max_records)
    asked = min_partitions is not None or max_records is not None
    return plan_shares(extents, shares, index, max_bytes=max_bytes, cores=cores, is_divided=asked)


def plan_shares(
    extents: Sequence[DirectoryExtent],
    shares: Sequence[PartitionRange],
    index: Index,
    *,
    max_bytes: int,
    cores: int | None,
    is_divided: bool,
) -> list[ReadRange]:
    """Divide ``shares`` of partitions among tasks by size alone, in their order; a share without bytes has no task."""
    by_partition = {extent.topic_partition: extent for extent in extents}
    pieces_of = [spans(by_partition[share.topic_partition], share.offsets, index) for share in shares]
    sizes = [sum(piece.end - piece.start for piece in pieces) for pieces in pieces_of]
    total = sum(sizes)
    tasks: list[ReadRange] = []
    for share, pieces, size in zip(shares, pieces_of, sizes, strict=True):
        parts = spread(size, total, max_bytes=max_bytes, cores=cores, is_divided=is_divided)
        tasks.extend(
            ReadRange(
                topic_partition=share.topic_partition,
                directory=by_partition[share.topic_partition].directory,
                offsets=offsets,
                pieces=part,
                topic_id=by_partition[share.topic_partition].topic_id,
                aborted=tuple(
                    txn
                    for txn in by_partition[share.topic_partition].aborted
                    if txn.first_offset < offsets.end and txn.last_offset >= offsets.start
                ),
                others=by_partition[share.topic_partition].others,
                mounts=by_partition[share.topic_partition].mounts,
            )
            for offsets, part in _divide(share.offsets, pieces, parts, index)
        )
    return tasks


def spans(extent: DirectoryExtent, offsets: OffsetRange, index: Index) -> tuple[Piece, ...]:
    """The bytes that may hold ``offsets``, without other segments, and with the first and the last segment clipped."""
    if offsets.start >= offsets.end:
        return ()
    pieces = []
    nexts = [*(segment.base_offset for segment in extent.segments[1:]), None]
    for segment, next_base in zip(extent.segments, nexts, strict=True):
        behind = extent.log_end if next_base is None else next_base
        if behind <= offsets.start or segment.base_offset >= offsets.end:
            continue
        start = index(segment).start_of(offsets.start) if offsets.start > segment.base_offset else 0
        end = index(segment).end_of(offsets.end) if offsets.end < behind else segment.size
        if start < end:
            pieces.append(Piece(segment.log, segment.base_offset, start, end, next_base))
    return tuple(pieces)


def _divide(
    offsets: OffsetRange, pieces: Sequence[Piece], parts: int, index: Index
) -> list[tuple[OffsetRange, tuple[Piece, ...]]]:
    """``pieces`` as at most ``parts`` groups of about equal size, cut at batch boundaries, with the offsets of each."""
    if not pieces:
        return []
    if parts == 1:
        return [(offsets, tuple(pieces))]
    ends = list(accumulate(piece.end - piece.start for piece in pieces))
    starts = [0, *ends[:-1]]
    cuts, firsts = [0], [offsets.start]
    for number in range(1, parts):
        wanted = ends[-1] * number // parts
        at = bisect_right(ends, wanted)
        piece = pieces[at]
        shift = piece.start - starts[at]
        boundaries = index(SegmentExtent(piece.base_offset, piece.log, piece.end))
        position = boundaries.cut(max(piece.start - 1, cuts[-1] + shift), wanted + shift, piece.end)
        if not cuts[-1] < position - shift < ends[-1]:
            continue
        if position == piece.end:
            first = pieces[at + 1].base_offset
        else:
            first = piece.base_offset if position == 0 else boundaries.offset_at(position)
        if firsts[-1] < first < offsets.end:
            cuts.append(position - shift)
            firsts.append(first)
    cuts.append(ends[-1])
    firsts.append(offsets.end)
    groups = [
        tuple(
            piece._replace(start=piece.start + max(low - start, 0), end=piece.end - max(end - high, 0))
            for piece, start, end in zip(pieces, starts, ends, strict=True)
            if start < high and end > low
        )
        for low, high in pairwise(cuts)
    ]
    return [(OffsetRange(*bounds), group) for bounds, group in zip(pairwise(firsts), groups, strict=True)]
