"""Memory of columns belongs to Arrow, so that any thread can drop it at any time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from seglog.records import arrow_memory
from seglog.records.batch_tables import walk_batches
from seglog.records.column_decoding import Selection, decode_parts
from seglog.records.columns import FIELDS, SourcePartition
from seglog.records.record import NewRecord, encode_batch

COUNT = 1000


@pytest.mark.parametrize("values", [np.arange(7), np.arange(12, dtype=np.int32).reshape(3, 4).T, np.zeros((0, 2))])
def test_a_copy_has_the_values_in_c_order(values: np.ndarray[Any, Any]) -> None:
    assert arrow_memory.copy(values).to_pybytes() == values.tobytes()


def allocated() -> int:
    return pa.total_allocated_bytes() + pa.system_memory_pool().bytes_allocated()


@pytest.mark.parametrize("name", FIELDS)
def test_columns_have_the_memory_of_arrow(name: str) -> None:
    records = [NewRecord(b"value" if row % 3 else None, key=b"k", headers=[("h", b"v")]) for row in range(COUNT)]
    data = encode_batch(records, base_offset=0)
    (walked,) = walk_batches(data, base=0, rows=5)
    wanted = Selection(columns=(name,))
    before = allocated()
    decoded = list(decode_parts(data, walked.table, wanted, SourcePartition("t", 3), base=0))
    assert [part.rows.num_rows for part in decoded if part.rows] == [COUNT]
    size = sum(part.rows.nbytes for part in decoded if part.rows)
    assert allocated() - before >= size > 0
    decoded.clear()
    assert allocated() == before
