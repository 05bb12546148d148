from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog.core.errors import UnknownTopicError
from seglog.core.types import TopicPartition
from seglog.sources.directories.planning import Boundaries, DirectoryExtent, Piece, ReadRange, SegmentExtent, plan
from seglog.sources.options.read_options import Assign, Subscribe, SubscribePattern
from seglog.sources.planning import pack, select
from seglog.sources.ranges import OffsetRange
from tests.cases import case

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
OFFSETS = TopicPartition("__consumer_offsets", 3)
THERE = [A0, A1, B0, OFFSETS]


Batch = tuple[str, int, int, int, int]
"""log, start, end, first offset, last offset"""


class DumbBoundaries:
    """The rule of `Boundaries` by looking at everything that an index of every ``step``-th batch knows."""

    def __init__(self, batches: Sequence[Batch], size: int, step: int) -> None:
        self.batches = batches
        self.size = size
        self.known = sorted({0, *(batch[1] for batch in batches[::step])})

    def start_of(self, offset: int) -> int:
        before = [start for _, start, _, first, _ in self.batches if first <= offset]
        return max(known for known in self.known if known <= max(before, default=0))

    def end_of(self, offset: int) -> int:
        needed = max((end for _, _, end, first, _ in self.batches if first < offset), default=0)
        return min((known for known in self.known if known >= needed), default=self.size)

    def cut(self, low: int, wanted: int, high: int) -> int:
        if before := [known for known in self.known if low < known <= wanted]:
            return before[-1]
        return min([known for known in self.known if max(low, wanted) < known < high], default=high)

    def offset_at(self, position: int) -> int:
        return next(first for _, start, _, first, _ in self.batches if start == position)


class Partition:
    """A partition made of segments of batches of (bytes, offsets)."""

    def __init__(self, name: TopicPartition, segments: Sequence[Sequence[tuple[int, int]]], step: int) -> None:
        self.batches: list[Batch] = []
        self.boundaries: dict[str, DumbBoundaries] = {}
        listed = []
        offset = 0
        for number, sizes in enumerate(segments):
            log, base, position, batches = f"{name}/{number}", offset, 0, []
            for size, count in sizes:
                batches.append((log, position, position + size, offset, offset + count - 1))
                position += size
                offset += count
            self.batches += batches
            self.boundaries[log] = DumbBoundaries(batches, position, step)
            listed.append(SegmentExtent(base, log, position))
        self.extent = DirectoryExtent(
            topic_partition=name, directory="d", log_start=0, log_end=offset, until=offset, segments=tuple(listed)
        )

    def index(self, segment: SegmentExtent) -> Boundaries:
        return self.boundaries[segment.log]


def batches_of(partition: Partition, task: ReadRange) -> list[Batch]:
    """The batches in the pieces of a task, in their order; fails on a piece that is not cut at batch boundaries."""
    found = []
    for piece in task.pieces:
        inside = [b for b in partition.batches if b[0] == piece.log and piece.start <= b[1] < piece.end]
        assert inside
        assert (inside[0][1], inside[-1][2]) == (piece.start, piece.end)
        found += inside
    return found


def offsets_read(partition: Partition, tasks: Sequence[ReadRange]) -> list[int]:
    """The offsets of the records that the tasks find in their pieces, in their order."""
    return [
        offset
        for task in tasks
        for _, _, _, first, last in batches_of(partition, task)
        for offset in range(max(first, task.offsets.start), min(last + 1, task.offsets.end))
    ]


SEGMENTS = st.lists(
    st.lists(st.tuples(st.integers(61, 5000), st.integers(1, 20)), min_size=1, max_size=30), min_size=1, max_size=5
)


@given(
    SEGMENTS,
    st.integers(1, 6),
    st.integers(1, 20_000),
    st.none() | st.integers(1, 12),
    st.none() | st.integers(1, 200),
    st.data(),
)
def test_tasks_read_the_requested_offsets_exactly_once(
    segments: list[list[tuple[int, int]]],
    step: int,
    max_bytes: int,
    parts: int | None,
    records: int | None,
    data: st.DataObject,
) -> None:
    case()
    partition = Partition(A0, segments, step)
    log_end = partition.extent.log_end
    start = data.draw(st.integers(0, log_end))
    end = data.draw(st.integers(start, log_end))
    tasks = plan(
        [partition.extent],
        {A0: OffsetRange(start, end)},
        partition.index,
        max_bytes=max_bytes,
        min_partitions=parts,
        max_records=records,
    )
    assert offsets_read(partition, tasks) == list(range(start, end))
    bounds = [task.offsets for task in tasks]
    assert all(first < last for first, last in bounds)
    assert [first for first, _ in bounds[1:]] == [last for _, last in bounds[:-1]]
    assert all((task.topic_partition, task.directory) == (A0, "d") for task in tasks)
    if records is not None:
        assert all(last - first <= records for first, last in bounds)


@given(SEGMENTS, st.integers(1, 12))
def test_by_bytes_tasks_do_not_overlap_and_are_of_even_size(segments: list[list[tuple[int, int]]], parts: int) -> None:
    case()
    partition = Partition(A0, segments, 1)
    everything = {A0: OffsetRange(0, partition.extent.log_end)}
    largest = max(batch[2] - batch[1] for batch in partition.batches)
    total = sum(batch[2] - batch[1] for batch in partition.batches)
    tasks = plan([partition.extent], everything, partition.index, max_bytes=-(-total // parts))
    assert [batch for task in tasks for batch in batches_of(partition, task)] == partition.batches
    sizes = [sum(piece.end - piece.start for piece in task.pieces) for task in tasks]
    assert max(sizes) <= total / parts + largest + 1
    if total / parts > largest:
        assert len(tasks) == -(-total // -(-total // parts))


def test_a_batch_that_is_larger_than_a_task_takes_none_of_the_others() -> None:
    partition = Partition(A0, [[(100_000, 1), *[(100, 1)] * 10]], 1)
    tasks = plan([partition.extent], {A0: OffsetRange(0, 11)}, partition.index, max_bytes=20_000)
    assert offsets_read(partition, tasks) == list(range(11))
    assert tasks[0].offsets == (0, 1)


def test_a_task_takes_at_most_max_bytes_and_a_batch() -> None:
    partition = Partition(A0, [[(1000, 1)] * 100, [(1000, 1)] * 50], 4)
    tasks = plan([partition.extent], {A0: OffsetRange(0, 150)}, partition.index, max_bytes=10_000)
    assert offsets_read(partition, tasks) == list(range(150))
    assert max(sum(piece.end - piece.start for piece in task.pieces) for task in tasks) <= 14_000


def test_cores_are_kept_busy_only_where_it_is_worth_a_task() -> None:
    big = Partition(A0, [[(1 << 20, 10)] * 40], 1)
    small = Partition(A1, [[(1 << 10, 10)] * 40], 1)
    ranges = {A0: OffsetRange(0, 400), A1: OffsetRange(0, 400)}

    def index(segment: SegmentExtent) -> Boundaries:
        return (big if segment.log in big.boundaries else small).index(segment)

    tasks = plan([big.extent, small.extent], ranges, index, max_bytes=1 << 30, cores=8)
    assert [task.topic_partition for task in tasks] == [A0] * 8 + [A1]


def test_plans_by_bytes_alone_where_the_number_of_cores_is_unknown() -> None:
    partition = Partition(A0, [[(1 << 20, 10)] * 100], 1)
    tasks = plan([partition.extent], {A0: OffsetRange(0, 1000)}, partition.index, max_bytes=1 << 30, cores=None)
    assert len(tasks) == 3


def _range(partition: int, size: int) -> ReadRange:
    pieces = (Piece("log", 0, 0, size),)
    return ReadRange(
        topic_partition=TopicPartition("a", partition), directory="d", offsets=OffsetRange(0, 1), pieces=pieces
    )


@given(
    st.lists(st.integers(1, 1 << 26), max_size=400) | st.lists(st.integers(1, 200), min_size=100, max_size=400),
    st.integers(1, 64) | st.none(),
    st.integers(1, 1 << 28),
)
def test_packs_small_ranges_in_order_within_the_bounds(sizes: list[int], cores: int | None, max_bytes: int) -> None:
    case()
    ranges = [_range(number, size) for number, size in enumerate(sizes)]
    tasks = pack(ranges, max_bytes=max_bytes, cores=cores)
    assert [one for task in tasks for one in task] == ranges
    assert all(len(task) == 1 or sum(one.pieces[0].end for one in task) <= max_bytes for task in tasks)
    if len(ranges) <= min(4 * (cores or 2), 32):
        assert len(tasks) == len(ranges)
    if cores is not None and sum(sizes) <= max_bytes:
        assert len(tasks) <= max(2 * 4 * cores, 1)


def test_many_small_partitions_share_as_many_tasks_as_keep_the_cores_busy() -> None:
    ranges = [_range(number, 70) for number in range(300)]
    assert len(pack(ranges, max_bytes=1 << 27, cores=2)) == 8
    assert len(pack(ranges, max_bytes=1 << 27, cores=None)) == 2
    assert len(pack(ranges * 40, max_bytes=1 << 27, cores=2)) == 8
    assert len(pack(ranges, max_bytes=1 << 27, cores=100)) == 10
    assert {len(task) for task in pack(ranges[:32], max_bytes=1 << 27, cores=8)} == {1}


@pytest.mark.parametrize("cores", [1, 2, 8, 64, 300, 4000, None])
def test_a_thousand_partitions_with_few_records_are_read_by_fewer_than_fifty_tasks(cores: int | None) -> None:
    ranges = [_range(number, 70 * (1 + number % 40)) for number in range(1000)]
    assert len(pack(ranges, max_bytes=1 << 27, cores=cores)) < 50


def test_a_segment_that_cannot_have_the_offsets_is_not_opened() -> None:
    partition = Partition(A0, [[(100, 10)], [(100, 10)], [(100, 10)]], 1)

    def index(segment: SegmentExtent) -> Boundaries:
        raise AssertionError(f"{segment.log} was opened")

    tasks = plan([partition.extent], {A0: OffsetRange(10, 20)}, index, max_bytes=1 << 20)
    assert [piece.log for task in tasks for piece in task.pieces] == ["a-0/1"]


def test_no_task_for_an_empty_partition() -> None:
    segments = (SegmentExtent(0, "a-0/0", 0),)
    empty = DirectoryExtent(topic_partition=A0, directory="d", log_start=0, log_end=0, until=0, segments=segments)
    partition = Partition(A0, [[(61, 1)]], 1)
    assert plan([empty], {A0: OffsetRange(0, 0)}, partition.index, max_bytes=1) == []


def test_select() -> None:
    assert select(None, THERE) == [A0, A1, B0]
    assert select(SubscribePattern(pattern="[ab]"), THERE) == [A0, A1, B0]
    assert select(SubscribePattern(pattern=".*"), THERE) == [A0, A1, B0]
    assert select(SubscribePattern(pattern="none"), THERE) == []
    assert select(Subscribe(topics=("b", "a")), THERE) == [A0, A1, B0]
    assert select(Subscribe(topics=("__consumer_offsets",)), THERE) == [OFFSETS]
    assert select(Assign(partitions=(A1,)), THERE) == [A1]
    with pytest.raises(UnknownTopicError, match="there is no topic 'c'; existing: a, b"):
        select(Subscribe(topics=("a", "c")), THERE)
    with pytest.raises(UnknownTopicError, match="there is no partition a-7; existing: a-0"):
        select(Assign(partitions=(TopicPartition("a", 7),)), [A0])
    with pytest.raises(UnknownTopicError, match="existing: none"):
        select(Subscribe(topics=("a",)), [])
