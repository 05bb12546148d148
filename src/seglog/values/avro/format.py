"""Avro as a format of values."""

from __future__ import annotations

import pyarrow as pa

from seglog.values.avro.decoder import AvroDecoder
from seglog.values.avro.encoder import encode_column
from seglog.values.avro.layout import Layout
from seglog.values.avro.schema import Schema, parse_schema
from seglog.values.casting import cast_column
from seglog.values.schemas import Decode, SchemaText


class AvroFormat:
    """Reads into, and writes from, the Arrow type of one schema. `SchemaError` names a type that is not supported."""

    message: tuple[int, ...] | None = None

    def __init__(self, reader: SchemaText) -> None:
        self._reader = parse(reader)
        self._layout = Layout(self._reader)

    @property
    def type(self) -> pa.DataType:
        return self._layout.type

    def decoder(self, writer: SchemaText | None, message: tuple[int, ...]) -> Decode:
        del message
        return AvroDecoder(self._reader if writer is None else parse(writer), self._reader, self._layout).decode

    def encode(self, column: pa.Array) -> pa.Array:
        """A null is a null value, also if the schema is a union with null."""
        column = cast_column(column, self.type)
        parts = encode_column(self._reader, column)
        if column.null_count:
            parts = [part if valid else None for part, valid in zip(parts, column.is_valid().to_pylist(), strict=True)]
        return pa.array(parts, pa.binary())


def parse(schema: SchemaText) -> Schema:
    return parse_schema(schema.text, [text for _, text in schema.references])
