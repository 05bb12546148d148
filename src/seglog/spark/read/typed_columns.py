"""Keys and values with types: their schemas are chosen on the driver, and tasks decode with them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from pyspark.sql.types import BinaryType, DataType

from seglog.core.fs import OsFs
from seglog.sources.options.read_options import ReadOptions
from seglog.values.reader_schema import ReadFormats, resolve_formats
from seglog.values.value_options import ValueOptions

if TYPE_CHECKING:
    import pyarrow as pa


def choose_formats(options: ValueOptions, topics: Callable[[], Iterable[str]]) -> ReadFormats | None:
    """The formats of a query, with the schemas as they are now; None if keys and values stay bytes.

    ``topics`` is called only if subjects depend on the topics.
    """
    return resolve_formats(options, topics, OsFs()) if options.columns else None


def typed_columns(formats: ReadFormats | None, *, permissive: bool) -> dict[str, DataType]:
    """The columns that are decoded, and those with the bytes of what could not be, with their types in Spark."""
    if formats is None:
        return {}
    from pyspark.sql.pandas.types import from_arrow_type

    from seglog.values.batch_decoder import bytes_column

    types: dict[str, DataType] = {}
    for one in formats.columns:
        made = formats.format_of(one.column.column)
        assert made is not None
        types[one.column.column] = from_arrow_type(made.type)
    if permissive:
        types |= {bytes_column(one.column.column): BinaryType() for one in formats.columns}
    return types


def read_typed(
    read: Callable[[pa.Schema], Iterator[pa.RecordBatch]], schema: pa.Schema, formats: ReadFormats, options: ReadOptions
) -> Iterator[pa.RecordBatch]:
    """The batches of a task with exactly ``schema``; ``read`` returns them with a schema of binary keys and values."""
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_schema

    from seglog.spark.read.schema import record_schema
    from seglog.values.batch_decoder import BatchDecoder
    from seglog.values.dead_letters import DeadLetters

    letters = None if options.dead_letters is None else DeadLetters(OsFs(), options.dead_letters)
    decoder = BatchDecoder(formats, permissive=options.permissive, dead_letters=letters)
    columns = decoder.input_columns(schema.names)
    raw = to_arrow_schema(record_schema(include_headers=True, columns=columns), timezone="UTC")
    for batch in decoder.decode_all(read(raw), schema.names):
        arrays = [
            array if array.type == field.type else array.cast(field.type)
            for array, field in zip(batch.columns, schema, strict=True)
        ]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)
