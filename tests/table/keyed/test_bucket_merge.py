"""A bucket's old rows and the log's news, as a dictionary by partition and key has them."""

from __future__ import annotations

from functools import partial
from tempfile import TemporaryDirectory

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog.core.fs import OsFs
from seglog.records.columns import SCHEMA
from seglog.sources.latest.spill_file import SpillFile
from seglog.table.keyed.bucket_merge import BucketMerge

Place = tuple[int, bytes]
PLACES = st.tuples(st.sampled_from([0, 1, 258, 2**31 - 1]), st.binary(max_size=2))


def _batches(values: list[tuple[Place, bytes | None]]) -> list[pa.RecordBatch]:
    rows = [
        {"key": key, "value": value, "topic": "t", "partition": partition, "offset": at}
        for at, ((partition, key), value) in enumerate(values)
    ]
    return pa.Table.from_pylist(rows, schema=SCHEMA).to_batches(3)


def _split(places: dict[Place, bytes]) -> int:
    keys = [key for _, key in places]
    return sum(keys.count(key) > 1 for key in set(keys))


@pytest.mark.parametrize("memory", [3000, 1 << 20])
@given(st.dictionaries(PLACES, st.binary(max_size=3)), st.lists(st.tuples(PLACES, st.none() | st.binary(max_size=3))))
def test_merges_as_a_dictionary_does(
    memory: int, old: dict[Place, bytes], news: list[tuple[Place, bytes | None]]
) -> None:
    with TemporaryDirectory() as directory:
        merge = BucketMerge(memory, partial(SpillFile, OsFs(), directory), (1, 2))
        found = [row for rows in merge.rows(_batches([*old.items()]), _batches(news)) for row in rows.to_pylist()]
    expected = {**old, **dict(news)}
    living = {place: value for place, value in expected.items() if value is not None}
    assert {(row["partition"], row["key"]): row["value"] for row in found} == living
    assert len(found) == len(living)
    assert merge.more_split_keys == _split(living) - _split(old)
