"""The partitioner over columns against the one for a record at a time."""

from __future__ import annotations

import itertools

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog.records.column_encoding import byte_column
from seglog.records.partition_kernels import (
    NO_PARTITION,
    SlotAssignment,
    assign_slots,
    group_rows,
    new_sticky,
    partitions_of,
)
from seglog.records.partitioner import StickyPartitioner, partition_for_key
from tests.cases import case

Row = tuple[int, bytes | None, int | None, int]
"""Topic, key, given partition, size."""


def number(values: list[int]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array(values, np.int64)


def assign(rows: list[Row], partitions: list[int], random: list[int], batch_size: int, pieces: int) -> list[int]:
    """Slots of ``rows``, given to the kernel in so many pieces."""
    first = number([0, *np.cumsum(partitions).tolist()])
    sticky, used, slots = new_sticky(len(partitions)), 0, []
    for some in np.array_split(np.arange(len(rows)), pieces):
        part = [rows[index] for index in some]
        keys = byte_column("key", pa.array([row[1] for row in part], pa.binary()), len(part))
        out = number([0] * len(part))
        done = SlotAssignment(
            *assign_slots(
                keys.data,
                keys.spans,
                number([row[3] for row in part]),
                number([NO_PARTITION if row[2] is None else row[2] for row in part]),
                number([row[0] for row in part]),
                first,
                batch_size,
                number(random[used:]),
                sticky,
                out,
            )
        )
        assert done.bad_row == -1
        used += done.used
        slots += out.tolist()
    return slots


@given(
    st.lists(
        st.tuples(
            st.integers(0, 2),
            st.none() | st.binary(max_size=30),
            st.none() | st.none() | st.integers(0, 4),
            st.sampled_from([0, 50, 100, 101]),
        ),
        max_size=60,
    ),
    st.sampled_from([1, 100, 150, 401]),
    st.integers(1, 4),
)
def test_each_row_goes_where_the_plain_partitioner_sends_it(rows: list[Row], batch_size: int, pieces: int) -> None:
    case()
    partitions = [5, 7, 1000]
    numbers = [(index * 7919 + 13) % 104729 for index in range(len(rows) * 300 + 6)]
    drawn = iter(numbers)

    def choose(n: int) -> int:
        return next(drawn) % n

    sticky: dict[int, StickyPartitioner] = {}
    first = [0, 5, 12]
    expected = []
    for topic, key, partition, size in rows:
        if partition is not None:
            chosen = partition
        elif key is not None:
            chosen = partition_for_key(key, partitions[topic])
        else:
            if topic not in sticky:
                sticky[topic] = StickyPartitioner(partitions[topic], choose, batch_size=batch_size)
            chosen = sticky[topic].partition(None, size)
        expected.append(first[topic] + chosen)
    assert assign(rows, partitions, numbers, batch_size, pieces) == expected


@given(st.lists(st.integers(0, 6), max_size=50))
def test_rows_are_grouped_in_their_order(slots: list[int]) -> None:
    case()
    starts, order = number([0] * 8), number([0] * len(slots))
    group_rows(number(slots), starts, order)
    groups = [[row for row, slot in enumerate(slots) if slot == wanted] for wanted in range(7)]
    assert [order[start:end].tolist() for start, end in itertools.pairwise(starts)] == groups


@pytest.mark.parametrize("partition", [-1, -(2**31), 3, 2**31 - 1])
def test_a_partition_that_there_is_not_is_named_by_its_row(partition: int) -> None:
    keys = byte_column("key", None, 3)
    done = assign_slots(
        keys.data,
        keys.spans,
        number([1, 1, 1]),
        number([NO_PARTITION, 2, partition]),
        number([0, 0, 0]),
        number([0, 3]),
        100,
        number([1, 1]),
        new_sticky(1),
        number([0, 0, 0]),
    )
    assert SlotAssignment(*done) == SlotAssignment(bad_row=2, used=1)


def test_a_column_of_text_and_a_slice_hash_as_their_bytes() -> None:
    column = pa.array(["a", None, "schlüssel", "", "0123456789"]).slice(2)
    keys = byte_column("key", column, 3)
    slots = number([0, 0, 0])
    nothing = number([NO_PARTITION] * 3)
    zeros = number([0, 0, 0])
    assign_slots(keys.data, keys.spans, zeros, nothing, zeros, number([0, 97]), 1, number([]), new_sticky(1), slots)
    expected = [partition_for_key(text.encode(), 97) for text in column.to_pylist()]
    assert slots.tolist() == expected == partitions_of(keys.data, keys.spans, 97).tolist()
    nulls = byte_column("key", pa.array([None, "a"]), 2)
    assert partitions_of(nulls.data, nulls.spans, 5).tolist() == [NO_PARTITION, partition_for_key(b"a", 5)]
