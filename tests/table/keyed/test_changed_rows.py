"""Rows by bucket: each where its key belongs, in order, also if they do not fit into memory."""

from __future__ import annotations

import random
from contextlib import closing
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.transforms import BucketTransform
from pyiceberg.types import BinaryType

from seglog.core.fs import OsFs
from seglog.sources.latest.spill_file import SpillFile
from seglog.table.keyed.changed_rows import ChangedRows


@pytest.mark.parametrize("memory", [1, 40_000, 1 << 20])
def test_each_row_is_in_its_keys_bucket_in_order(tmp_path: Path, memory: int) -> None:
    rng, bucket_of = random.Random(memory), BucketTransform[bytes](5).transform(BinaryType())
    keys = [b"key %d" % rng.randrange(60) for _ in range(700)]
    columns = [pa.array(keys, pa.binary()), pa.array(range(700), pa.int64())]
    rows = pa.RecordBatch.from_arrays(columns, ["key", "offset"])
    with closing(ChangedRows(5, memory, partial(SpillFile, OsFs(), str(tmp_path)))) as changed:
        for at in range(0, 700, 70):
            changed.add(rows.slice(at, 70))
        touched = changed.finish()
        found = {one: [row for batch in changed.of_bucket(one) for row in batch.to_pylist()] for one in touched}
        spills = changed.spills
    assert found == {
        bucket: [{"key": key, "offset": at} for at, key in enumerate(keys) if bucket_of(key) == bucket]
        for bucket in range(5)
    }
    assert (changed.rows, spills > 0) == (700, memory < 1 << 20)
    assert list(tmp_path.iterdir()) == []


def test_without_rows_no_bucket_is_touched(tmp_path: Path) -> None:
    with closing(ChangedRows(5, 1, partial(SpillFile, OsFs(), str(tmp_path)))) as changed:
        assert changed.finish() == []
