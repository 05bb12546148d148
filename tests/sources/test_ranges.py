from __future__ import annotations

from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog.core.types import TopicPartition
from seglog.sources.ranges import OffsetRange, PartitionRange, divide
from tests.cases import case


def shares(*ranges: tuple[int, int]) -> list[PartitionRange]:
    return [PartitionRange(TopicPartition("t", number), OffsetRange(*bounds)) for number, bounds in enumerate(ranges)]


RANGES = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 2000)), max_size=6).map(
    lambda found: shares(*((start, start + size) for start, size in found))
)


@given(RANGES, st.none() | st.integers(1, 30), st.none() | st.integers(1, 300))
def test_a_division_leaves_nothing_out_and_reads_nothing_twice(
    given: list[PartitionRange], wanted: int | None, most: int | None
) -> None:
    case()
    found = divide(given, min_partitions=wanted, max_records=most)
    assert all(share.offsets.size > 0 for share in found)
    if most is not None:
        assert all(share.offsets.size <= most for share in found)
    joined = []
    for partition, parts in groupby(found, key=lambda share: share.topic_partition):
        bounds = [part.offsets for part in parts]
        assert [first for first, _ in bounds[1:]] == [last for _, last in bounds[:-1]]
        joined.append(PartitionRange(partition, OffsetRange(bounds[0].start, bounds[-1].end)))
    assert joined == [share for share in given if share.offsets.size > 0]


@pytest.mark.parametrize(
    ("ranges", "wanted", "most", "expected"),
    [
        ([(7, 8), (22, 23), (10, 11)], 22, None, [(7, 8), (22, 23), (10, 11)]),
        (
            [(25, 25), (14, 15), (33, 43), (43, 44), (15, 25)],
            8,
            173,
            [(14, 15), (33, 36), (36, 39), (39, 43), (43, 44), (15, 18), (18, 21), (21, 25)],
        ),
        ([(18, 19), (20, 21), (21, 23)], 9, None, [(18, 19), (20, 21), (21, 22), (22, 23)]),
        ([(0, 10), (0, 10)], 2, None, [(0, 10), (0, 10)]),
        ([(0, 10)], None, 4, [(0, 3), (3, 6), (6, 10)]),
        ([(0, 10)], None, None, [(0, 10)]),
    ],
)
def test_ranges_that_sparks_connector_made(
    ranges: list[tuple[int, int]], wanted: int | None, most: int | None, expected: list[tuple[int, int]]
) -> None:
    """``KafkaOffsetRangeCalculator`` of 4.2.0 was asked; tests/interop asks it for many more."""
    assert [share.offsets for share in divide(shares(*ranges), min_partitions=wanted, max_records=most)] == expected
