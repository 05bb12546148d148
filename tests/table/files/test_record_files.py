"""How the columns of a file are stored: by what they hold."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from seglog.core.fs import OsFs
from seglog.records.columns import FIELDS, SCHEMA
from seglog.table.columns.column_types import arrow_schema, iceberg_schema
from seglog.table.files.record_files import FileForm, write_records

ROWS = 20_000
NOISE = random.Random(7)
FORM = FileForm(arrow_schema(iceberg_schema(SCHEMA)))


def _batch(values: pa.Array) -> pa.RecordBatch:
    rows = len(values)
    offsets = np.arange(rows, dtype=np.int64)
    arrays = {
        "key": pa.nulls(rows, pa.binary()),
        "value": values,
        "topic": pa.array(["t"] * rows),
        "partition": pa.array([0] * rows, pa.int32()),
        "offset": pa.array(offsets),
        "timestamp": pa.array(offsets * 1000).cast(FIELDS["timestamp"].type),
        "timestampType": pa.array([0] * rows, pa.int32()),
        "headers": pa.nulls(rows, SCHEMA.field("headers").type),
    }
    return pa.RecordBatch.from_arrays([arrays[name] for name in SCHEMA.names], schema=SCHEMA)


@pytest.mark.parametrize(
    ("value", "rows", "has_dictionary"),
    [
        (lambda _: b"same" * 25, ROWS, True),
        (lambda at: b"%0100d" % (at % 100), ROWS, True),
        (lambda at: b"%0100d" % (at % 100) if at % 3 else None, ROWS, True),
        (lambda at: b"%0100d" % (at % (ROWS // 10)), ROWS, True),  # each comes four times in a sample
        (lambda at: b"%010000d" % (at % 200), 2000, True),  # a dictionary of 2 MB
        (lambda at: b"%030000d" % (at % 200), 2000, False),  # one of 6 MB
        (lambda at: b"%0100d" % at, ROWS, False),
        (lambda at: b"%0100d" % (at % (ROWS // 4)), ROWS, False),
        (lambda _: NOISE.randbytes(10), ROWS, False),
        (lambda _: None, ROWS, False),
    ],
)
def test_values_that_repeat_have_a_dictionary(
    tmp_path: Path, value: Callable[[int], bytes | None], rows: int, has_dictionary: bool
) -> None:
    batch = _batch(pa.array([value(at) for at in range(rows)], pa.binary()))
    written = write_records(OsFs(), str(tmp_path), [batch], FORM)
    assert written is not None
    footer = pq.read_metadata(written.path).row_group(0)
    columns = {name: footer.column(at) for at, name in enumerate(SCHEMA.names[:5])}
    assert ("RLE_DICTIONARY" in columns["value"].encodings) == has_dictionary
    if has_dictionary:  # one that was given up is followed by the rest of the values
        different = pc.sum(pc.binary_length(pc.unique(batch.column("value")))).as_py()
        assert footer.total_byte_size < 1.1 * different + 4 * rows
    assert "DELTA_BINARY_PACKED" in columns["offset"].encodings
    assert (
        pq.read_table(written.path)
        .select(["value", "offset"])
        .equals(pa.Table.from_batches([batch]).select(["value", "offset"]))
    )


def test_what_offsets_and_timestamps_add_to_a_file_is_small(tmp_path: Path) -> None:
    """A topic of equal values: nearly all of its table would be numbers that rise by one."""
    written = write_records(OsFs(), str(tmp_path), [_batch(pa.array([b"same" * 25] * ROWS, pa.binary()))], FORM)
    assert written is not None
    assert written.size < ROWS / 2
