"""Arrow batches as Spark takes them: of a moderate size, and of exactly its schema."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa

from seglog.records.column_decoding import Selection
from seglog.sources.options.read_options import ReadOptions

ROWS: Final = 65536
BYTES: Final = 8 << 20
"""The largest batch for Spark, unless a single record is larger."""


def selection_of(options: ReadOptions, columns: Sequence[str]) -> Selection:
    """The records and columns that a task decodes, whatever its offsets are."""
    return Selection(
        columns=tuple(columns),
        rows=ROWS,
        bytes_=BYTES,
        keys=options.keys,
        null_timestamps=options.null_timestamps,
    )


def output_batches(batch: pa.RecordBatch, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """``batch`` in parts of at most `ROWS` rows and `BYTES` bytes, with the columns and types of ``schema``."""
    for part in _halves(batch):
        yield _as(part, schema)


def _halves(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Halves of ``batch``, again and again until each is small enough; nothing is copied."""
    if batch.num_rows > 1 and (batch.num_rows > ROWS or batch.nbytes > BYTES):
        half = batch.num_rows // 2
        yield from _halves(batch.slice(0, half))
        yield from _halves(batch.slice(half))
    else:
        yield batch


def _as(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    arrays = [
        array if (array := batch.column(field.name)).type == field.type else array.cast(field.type) for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
