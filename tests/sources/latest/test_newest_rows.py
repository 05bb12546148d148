"""The newest row of each key, held to a dictionary, also when it does not fit into memory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog.core.fs import OsFs
from seglog.sources.latest.newest_rows import NewestRows
from seglog.sources.latest.spill_file import SpillFile, spill_directory
from tests.cases import case

HASH_KEY = (0x0123456789ABCDEF, 0x7EDCBA9876543210)
SCHEMA = pa.schema([("key", pa.binary()), ("offset", pa.int64()), ("value", pa.binary())])
keys = st.one_of(st.binary(max_size=3), st.sampled_from([b"", b"a" * 8, b"a" * 9, b"a" * 7 + b"\0", b"k" * 300]))


def as_batches(groups: Sequence[Sequence[bytes]], value: bytes = b"") -> list[pa.RecordBatch]:
    found, offset = [], 0
    for group in groups:
        offsets = range(offset, offset + len(group))
        columns = [
            pa.array(group, pa.binary()),
            pa.array(offsets, pa.int64()),
            pa.array([b"%d" % at + value for at in offsets], pa.binary()),
        ]
        found.append(pa.RecordBatch.from_arrays(columns, schema=SCHEMA))
        offset += len(group)
    return found


def newest(batches: Sequence[pa.RecordBatch], memory: int, directory: str) -> tuple[list[dict[str, object]], int]:
    rows = NewestRows(memory, partial(SpillFile, OsFs(), directory), HASH_KEY)
    for batch in batches:
        rows.add(batch)
    found = [row for batch in rows.take() for row in batch.to_pylist()]
    return found, rows.spills


def by_dictionary(batches: Sequence[pa.RecordBatch]) -> list[dict[str, object]]:
    return list({row["key"]: row for batch in batches for row in batch.to_pylist()}.values())


def offset_of(row: dict[str, object]) -> int:
    offset = row["offset"]
    assert isinstance(offset, int)
    return offset


@given(st.lists(st.lists(keys, max_size=40), max_size=12), st.sampled_from([1, 300, 3_000, 1 << 20]))
def test_each_key_has_its_last_row(groups: list[list[bytes]], memory: int) -> None:
    batches = as_batches(groups)
    found, _ = newest(batches, memory, spill_directory({}))
    assert sorted(found, key=offset_of) == sorted(by_dictionary(batches), key=offset_of)
    case()


def test_without_a_spill_rows_are_in_the_order_of_their_offsets(tmp_path: Path) -> None:
    batches = as_batches([[b"%d" % (at * 7 % 11) for at in range(part * 10, part * 10 + 10)] for part in range(9)])
    found, spills = newest(batches, 1 << 20, str(tmp_path))
    assert not spills
    assert found == sorted(by_dictionary(batches), key=offset_of)


def test_more_rows_than_fit_are_spilled_again_and_again_and_leave_no_file(tmp_path: Path) -> None:
    batches = as_batches([[b"%d" % (at % 4000) for at in range(part * 500, part * 500 + 500)] for part in range(20)])
    found, spills = newest(batches, 6_000, str(tmp_path))
    assert sorted(found, key=offset_of) == sorted(by_dictionary(batches), key=offset_of)
    assert spills > 100
    assert not list(tmp_path.iterdir())


def test_rows_larger_than_the_memory_are_taken(tmp_path: Path) -> None:
    batches = as_batches([[b"a", b"b"], [b"a"]], value=b"x" * 100_000)
    found, _ = newest(batches, 1_000, str(tmp_path))
    assert sorted(offset_of(row) for row in found) == [1, 2]


def test_the_memory_that_is_held_is_bounded(tmp_path: Path) -> None:
    rows = NewestRows(3 << 20, partial(SpillFile, OsFs(), str(tmp_path)), HASH_KEY)
    most = 0
    before = pa.total_allocated_bytes()
    for number in range(100):
        rows.add(as_batches([[b"%d/%d" % (number, at) for at in range(1000)]], value=b"v" * 100)[0])
        most = max(most, pa.total_allocated_bytes() - before)
    rows.close()
    assert most < 3 << 20
    assert pa.total_allocated_bytes() - before < 1 << 20


def test_a_spill_goes_where_spark_spills(tmp_path: Path) -> None:
    assert spill_directory({"SPARK_LOCAL_DIRS": f" {tmp_path} ,/other"}) == str(tmp_path)
    assert os.path.isdir(spill_directory({}))
    with pytest.raises(FileNotFoundError, match="away"):
        SpillFile(OsFs(), str(tmp_path / "away"))
