"""Tasks read each offset once, from files or through brokers."""

from __future__ import annotations

from itertools import pairwise
from typing import Final
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from seglog.core.types import TopicPartition
from seglog.sources.brokers.planning import BrokerExtent, FetchRange
from seglog.sources.directories.planning import DirectoryExtent, SegmentExtent
from seglog.sources.mounted.coverage import EpochSpan
from seglog.sources.mounted.planning import MountedExtent, MountedRange, Part, SharedRange, phases, plan
from seglog.sources.ranges import OffsetRange
from tests.cases import case

PARTITION: Final = TopicPartition("t", 0)
TOPIC_ID: Final = UUID(int=7)
BYTES: Final = 10_000
"""Of each offset."""


class Even:
    """Boundaries of a segment with a batch for each offset."""

    def __init__(self, segment: SegmentExtent) -> None:
        self._base, self._size = segment.base_offset, segment.size

    def start_of(self, offset: int) -> int:
        return min((offset - self._base) * BYTES, self._size)

    def end_of(self, offset: int) -> int:
        return min((offset - self._base) * BYTES, self._size)

    def cut(self, low: int, wanted: int, high: int) -> int:
        before = wanted // BYTES * BYTES
        return before if before > low else min(before + BYTES, high)

    def offset_at(self, position: int) -> int:
        return self._base + position // BYTES


def planned(
    offsets: OffsetRange, covered: OffsetRange, *, is_empty: bool = False, max_bytes: int = 128 << 20, tasks: int | None
) -> list[SharedRange]:
    segments = tuple(
        SegmentExtent(base, f"/d/t-0/{base}.log", 0 if is_empty else 100 * BYTES) for base in range(0, 2_000, 100)
    )
    files = DirectoryExtent(
        topic_partition=PARTITION,
        directory="/d/t-0",
        log_start=covered.start,
        log_end=2_000,
        until=covered.end,
        segments=segments,
    )
    mounted = MountedExtent(files, TOPIC_ID, (EpochSpan(3, *covered),))
    extent = BrokerExtent(topic_partition=PARTITION, log_start=0, log_end=2_000, until=2_000, topic_id=TOPIC_ID)
    return plan(
        [extent],
        {PARTITION: offsets},
        {PARTITION: mounted} if covered.size else {},
        {PARTITION: float(BYTES)},
        Even,
        max_bytes=max_bytes,
        min_partitions=tasks,
        cores=4,
    )


def ranges() -> st.SearchStrategy[OffsetRange]:
    return st.tuples(st.integers(0, 1_999), st.integers(0, 1_999)).map(lambda two: OffsetRange(min(two), max(two)))


@given(
    offsets=ranges(),
    covered=ranges(),
    max_bytes=st.integers(BYTES, 300 * BYTES),
    tasks=st.none() | st.integers(1, 20),
    is_empty=st.booleans(),
)
def test_each_offset_is_in_one_part(
    offsets: OffsetRange, covered: OffsetRange, max_bytes: int, tasks: int | None, is_empty: bool
) -> None:
    case()
    covered = OffsetRange(max(covered.start, offsets.start), max(min(covered.end, offsets.end), offsets.start))
    if covered.size < 0:
        covered = OffsetRange(0, 0)
    found = planned(offsets, covered, is_empty=is_empty, max_bytes=max_bytes, tasks=tasks)
    parts = [part for shared in found for part in shared.parts]
    if offsets.size:
        assert (parts[0].offsets.start, parts[-1].offsets.end) == offsets
    else:
        assert parts == []
    for before, after in pairwise(parts):
        assert before.offsets.end == after.offsets.start
    from_files = sum(part.offsets.size for part in parts if isinstance(part, MountedRange))
    assert from_files == (0 if is_empty else covered.size)
    read: list[Part] = [part for phase in phases(found) for part in phase]
    assert read == parts


def test_a_part_that_is_not_worth_a_task_is_read_by_its_neighbours() -> None:
    (small,) = planned(OffsetRange(0, 100), OffsetRange(20, 80), tasks=None)
    assert [type(part) for part in small.parts] == [FetchRange, MountedRange, FetchRange]
    large = planned(OffsetRange(0, 2_000), OffsetRange(0, 1_000), tasks=None)
    assert {len(shared.parts) for shared in large} == {1}
    assert len(large) >= 4
