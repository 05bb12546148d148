"""Arrow batches of a moderate size, and of exactly the schema that the reader asked for, as Spark wants them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from seglog.records.column_decoding import Selection
from seglog.sources.options.read_options import ReadOptions


def selection_of(options: ReadOptions, columns: Sequence[str]) -> Selection:
    """The records and columns that a task decodes, whatever its offsets are."""
    return Selection(
        columns=tuple(columns),
        rows=options.batch_rows,
        bytes_=options.batch_bytes,
        keys=options.keys,
        times=options.times,
        null_timestamps=options.null_timestamps,
    )


def output_batches(batch: pa.RecordBatch, schema: pa.Schema, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """``batch`` in parts of as many rows and bytes as the options allow, with the columns and types of ``schema``."""
    for part in _halves(batch, options.batch_rows, options.batch_bytes):
        yield with_schema(part, schema)


def _halves(batch: pa.RecordBatch, rows: int, size: int) -> Iterator[pa.RecordBatch]:
    """Halves of ``batch``, again and again until each is small enough; nothing is copied."""
    if batch.num_rows > 1 and (batch.num_rows > rows or batch.nbytes > size):
        half = batch.num_rows // 2
        yield from _halves(batch.slice(0, half), rows, size)
        yield from _halves(batch.slice(half), rows, size)
    else:
        yield batch


def with_schema(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The columns of ``schema``, by name, with its types."""
    arrays = [
        array if (array := batch.column(field.name)).type == field.type else array.cast(field.type) for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
