"""Keys and values with types: their schemas are chosen when a query is planned, and tasks decode with them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

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


def read_typed(
    read: Callable[[pa.Schema], Iterator[pa.RecordBatch]], schema: pa.Schema, formats: ReadFormats, options: ReadOptions
) -> Iterator[pa.RecordBatch]:
    """The batches of a task with exactly ``schema``; ``read`` returns them with a schema of binary keys and values."""
    from seglog.records.columns import schema_of
    from seglog.sources.output_batches import with_schema
    from seglog.values.batch_decoder import BatchDecoder
    from seglog.values.dead_letters import DeadLetters

    letters = None if options.dead_letters is None else DeadLetters(OsFs(), options.dead_letters)
    decoder = BatchDecoder(formats, permissive=options.permissive, dead_letters=letters)
    columns = decoder.input_columns(schema.names)
    for batch in decoder.decode_all(read(schema_of(columns)), schema.names):
        yield with_schema(batch, schema)
