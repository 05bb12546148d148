"""Record batches with typed keys and values in; the same batches with bytes out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from seglog.core.errors import InvalidConfigError
from seglog.core.fs import Fs
from seglog.values.framing import frame
from seglog.values.reader_schema import ReaderSchema, make_format, read_schema
from seglog.values.registry import Registry, registry_of
from seglog.values.schemas import JSON
from seglog.values.value_options import HEADER, PLAIN, ColumnFormat, ValueOptions, subject_of


@dataclass(frozen=True, slots=True)
class WriteFormats:
    """The columns that a job encodes: the schema of each, and its id in the registry. Plain values:
    it is sent to Spark's workers."""

    columns: tuple[tuple[ReaderSchema, int | None], ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(schema.column.column for schema, _ in self.columns)


def resolve_write_formats(options: ValueOptions, topic: str | None, fs: Fs) -> WriteFormats:
    """Choose the schemas to write with, and register them if they are given as texts.

    ``topic`` is the one of all rows; None if a column has it. Registering the same schema again changes nothing.
    Raises `InvalidConfigError`, `SchemaError`, and `SchemaRefusedError` if the registry refuses a schema.
    """
    return WriteFormats(tuple(_resolve(one, options, topic, fs) for one in options.columns))


def _resolve(column: ColumnFormat, options: ValueOptions, topic: str | None, fs: Fs) -> tuple[ReaderSchema, int | None]:
    if column.framing == HEADER:
        raise InvalidConfigError(f"option {column.column}Framing is header: it is only for reading")
    if options.registry is None:
        assert column.schema is not None
        if column.schema_id is not None:
            raise InvalidConfigError(f"option {column.column}SchemaId needs schema.registry.url")
        schema = read_schema(fs, column)
        if column.framing != PLAIN:
            raise InvalidConfigError(f"option {column.column}Framing is {column.framing!r}: set schema.registry.url")
        return _checked(ReaderSchema(column, schema)), None
    registry = registry_of(options.registry)
    if column.schema_id is not None:
        if column.schema is not None:
            raise InvalidConfigError(f"options {column.column}Schema and {column.column}SchemaId exclude each other")
        return _checked(ReaderSchema(column, registry.schema(column.schema_id))), column.schema_id
    return _with_subject(column, registry, topic, fs)


def _with_subject(
    column: ColumnFormat, registry: Registry, topic: str | None, fs: Fs
) -> tuple[ReaderSchema, int | None]:
    """The schema of a subject: the latest, or the one that is given, which is registered."""
    if topic is None and subject_of(column, "a") != subject_of(column, "b"):
        raise InvalidConfigError(
            f"option {column.column}Format: the subject depends on the topic, and a column has the topics; set the "
            f"option topic, {column.column}Subject or {column.column}SchemaId"
        )
    subject = subject_of(column, topic or "")
    if column.schema is None:
        latest = registry.latest(subject)
        return _checked(ReaderSchema(column, latest.schema)), latest.schema_id
    schema = read_schema(fs, column)
    reader = _checked(ReaderSchema(column, schema))
    if schema.references:
        raise InvalidConfigError(
            f"option {column.column}Schema imports other files: register it with its references, and set "
            f"{column.column}SchemaId"
        )
    if column.kind == JSON and not schema.text.lstrip().startswith("{"):
        raise InvalidConfigError(
            f"option {column.column}Schema is not a JSON Schema, so it cannot be registered: write one, or set "
            f"{column.column}SchemaId"
        )
    return reader, registry.register(subject, column.kind, schema.text)


def _checked(reader: ReaderSchema) -> ReaderSchema:
    make_format(reader)
    return reader


class BatchEncoder:
    """Encodes the batches of one task."""

    def __init__(self, formats: WriteFormats) -> None:
        self._columns = [(schema, number, make_format(schema)) for schema, number in formats.columns]

    def encode_all(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """`InvalidRecordError` names a row that does not fit its schema, `InvalidConfigError` a column's type."""
        for batch in batches:
            arrays = dict(zip(batch.schema.names, batch.columns, strict=True))
            for schema, number, format_ in self._columns:
                name = schema.column.column
                if name in arrays:
                    encoded = format_.encode(arrays[name])
                    arrays[name] = frame(encoded, schema.column.framing, number, format_.message)
            yield pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))
