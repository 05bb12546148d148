"""From what lies in the files and what was asked for to what each Spark task reads. Plain values in, plain values out.

A partition is cut at batch boundaries, which its sparse indexes know, so that one big partition keeps every core busy.
A cut never changes what is read: every batch lies in exactly one piece, and each piece is filtered by the same offsets.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Final, NamedTuple, Protocol, assert_never

from seglog.core.errors import InvalidConfigError, OffsetOutOfRangeError, UnknownTopicError
from seglog.core.types import TopicPartition
from seglog.spark.options import EARLIEST, LATEST, Assign, Offsets, Selection, Subscribe, SubscribePattern

INTERNAL_TOPICS: Final = frozenset(
    {"__consumer_offsets", "__transaction_state", "__share_group_state", "__cluster_metadata"}
)
"""Read only when they are named: a consumer's pattern does not match them either (``exclude.internal.topics``)."""

WORTH_A_TASK: Final = 4 << 20
"""Bytes under which a further task costs more than it saves, when nobody asked for it."""


class SegmentExtent(NamedTuple):
    """A segment: its first offset, its file, and the bytes of whole batches in it."""

    base_offset: int
    log: str
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionExtent:
    """A partition as it lay on the disk when the query was planned. Invariant: log_start <= log_end; segments rise."""

    topic_partition: TopicPartition
    log_start: int
    log_end: int
    segments: tuple[SegmentExtent, ...]


class OffsetRange(NamedTuple):
    """Offsets ``start`` to before ``end``."""

    start: int
    end: int


class Piece(NamedTuple):
    """Bytes ``start`` to before ``end`` of a segment's file; both are batch boundaries."""

    log: str
    base_offset: int
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRange:
    """What one task reads: the records of ``pieces``, in their order, whose offset is in ``offsets``."""

    topic_partition: TopicPartition
    offsets: OffsetRange
    pieces: tuple[Piece, ...]


class Boundaries(Protocol):
    """Where batches start in a segment, as far as its index knows. Positions in bytes."""

    def start_of(self, offset: int) -> int:
        """A boundary at or before the batch with ``offset``; near to it."""

    def end_of(self, offset: int) -> int:
        """A boundary behind every batch that has an offset below ``offset``; near to the last of them."""

    def cut(self, low: int, wanted: int, high: int) -> int:
        """The last boundary in (low, wanted], else the first in (wanted, high), else ``high``."""


class Index(Protocol):
    """Hands out the boundaries of one segment."""

    def __call__(self, segment: SegmentExtent, /) -> Boundaries: ...


def select(selection: Selection, available: Sequence[TopicPartition]) -> list[TopicPartition]:
    """The partitions that were asked for, sorted. `UnknownTopicError` names one that is not there, and what is."""
    match selection:
        case None:
            chosen = [partition for partition in available if partition.topic not in INTERNAL_TOPICS]
        case SubscribePattern(pattern=pattern):
            matches = re.compile(pattern).fullmatch
            chosen = [p for p in available if matches(p.topic) and p.topic not in INTERNAL_TOPICS]
        case Subscribe(topics=topics):
            there = {partition.topic for partition in available}
            for topic in topics:
                if topic not in there:
                    raise UnknownTopicError(f"there is no topic {topic!r}; there {_listed(sorted(there))}")
            chosen = [partition for partition in available if partition.topic in topics]
        case Assign(partitions=partitions):
            for partition in partitions:
                if partition not in available:
                    raise UnknownTopicError(
                        f"there is no partition {partition}; there {_listed([str(p) for p in sorted(available)])}"
                    )
            chosen = list(partitions)
        case _:
            assert_never(selection)
    return sorted(chosen)


def _listed(names: Sequence[str]) -> str:
    if not names:
        return "is none"
    return f"{'is' if len(names) == 1 else 'are'} {', '.join(names[:10])}{' …' if len(names) > 10 else ''}"


def resolve(
    extents: Sequence[PartitionExtent], starting: Offsets, ending: Offsets
) -> Mapping[TopicPartition, OffsetRange]:
    """The offsets to read of each partition.

    As with Spark's Kafka connector, offsets for partitions must name exactly the partitions that are read. An offset
    outside of a log raises `OffsetOutOfRangeError`: what was asked for is not there, and that must not go unnoticed.
    """
    for name, offsets in (("startingOffsets", starting), ("endingOffsets", ending)):
        if not isinstance(offsets, int):
            _check_same_partitions(name, set(offsets), {extent.topic_partition for extent in extents})
    ranges = {}
    for extent in extents:
        partition = extent.topic_partition
        start = starting if isinstance(starting, int) else starting[partition]
        end = ending if isinstance(ending, int) else ending[partition]
        first = _within("startingOffsets", start, extent)
        last = _within("endingOffsets", end, extent)
        if first > last:
            raise InvalidConfigError(f"{partition}: startingOffsets {first} is above endingOffsets {last}")
        ranges[partition] = OffsetRange(first, last)
    return ranges


def _check_same_partitions(name: str, given: set[TopicPartition], read: set[TopicPartition]) -> None:
    if given == read:
        return
    missing, foreign = sorted(read - given), sorted(given - read)
    which = f"leaves out {missing[0]}" if missing else f"names {foreign[0]}, which is not read"
    raise InvalidConfigError(
        f"option {name} {which}: offsets must be given for all partitions that are read and for no other "
        "(-2 is earliest, -1 latest)"
    )


def _within(name: str, offset: int, extent: PartitionExtent) -> int:
    if offset == EARLIEST:
        return extent.log_start
    if offset == LATEST:
        return extent.log_end
    if not extent.log_start <= offset <= extent.log_end:
        raise OffsetOutOfRangeError(
            f"option {name}: {extent.topic_partition} has log start offset {extent.log_start} and log end offset "
            f"{extent.log_end}; {offset} is outside"
        )
    return offset


def plan(
    extents: Sequence[PartitionExtent],
    ranges: Mapping[TopicPartition, OffsetRange],
    index: Index,
    *,
    max_bytes: int,
    min_partitions: int | None = None,
    cores: int = 1,
) -> list[ReadRange]:
    """Cut what is to be read into tasks of at most about ``max_bytes``, in the order of partitions and offsets.

    There are at least ``min_partitions`` tasks if the batches can be told apart that far; without that option, enough
    for ``cores`` as long as each has `WORTH_A_TASK` to do. A partition with nothing to read has no task.
    """
    spans = {extent.topic_partition: _spans(extent, ranges[extent.topic_partition], index) for extent in extents}
    total = sum(piece.end - piece.start for pieces in spans.values() for piece in pieces)
    tasks: list[ReadRange] = []
    for partition, pieces in spans.items():
        size = sum(piece.end - piece.start for piece in pieces)
        if min_partitions is not None:
            wanted = _ceil(size * min_partitions, max(total, 1))
        else:
            wanted = min(_ceil(size * cores, max(total, 1)), size // WORTH_A_TASK)
        parts = max(_ceil(size, max_bytes), wanted, 1)
        tasks.extend(
            ReadRange(topic_partition=partition, offsets=ranges[partition], pieces=part)
            for part in _divide(pieces, parts, index)
        )
    return tasks


def _spans(extent: PartitionExtent, offsets: OffsetRange, index: Index) -> list[Piece]:
    """The bytes that may hold ``offsets``: without the segments that cannot, the first and the last one clipped."""
    if offsets.start >= offsets.end:
        return []
    pieces = []
    nexts = [segment.base_offset for segment in extent.segments[1:]] + [extent.log_end]
    for segment, next_base in zip(extent.segments, nexts, strict=True):
        if next_base <= offsets.start or segment.base_offset >= offsets.end:
            continue
        start = index(segment).start_of(offsets.start) if offsets.start > segment.base_offset else 0
        end = index(segment).end_of(offsets.end) if offsets.end < next_base else segment.size
        if start < end:
            pieces.append(Piece(segment.log, segment.base_offset, start, end))
    return pieces


def _divide(pieces: Sequence[Piece], parts: int, index: Index) -> list[tuple[Piece, ...]]:
    """``pieces`` as at most ``parts`` groups of about equal size, cut at batch boundaries."""
    if not pieces:
        return []
    if parts == 1:
        return [tuple(pieces)]
    ends = list(accumulate(piece.end - piece.start for piece in pieces))
    starts = [0, *ends[:-1]]
    cuts = [0]
    for number in range(1, parts):
        wanted = ends[-1] * number // parts
        at = bisect_right(ends, wanted)
        piece = pieces[at]
        shift = piece.start - starts[at]
        segment = SegmentExtent(piece.base_offset, piece.log, piece.end)
        low = max(piece.start - 1, cuts[-1] + shift)
        cut = index(segment).cut(low, wanted + shift, piece.end) - shift
        if cuts[-1] < cut < ends[-1]:
            cuts.append(cut)
    cuts.append(ends[-1])
    return [
        tuple(
            piece._replace(start=piece.start + max(low - start, 0), end=piece.end - max(end - high, 0))
            for piece, start, end in zip(pieces, starts, ends, strict=True)
            if start < high and end > low
        )
        for low, high in pairwise(cuts)
    ]


def _ceil(numerator: int, denominator: int) -> int:
    return -(-numerator // denominator)
