"""The schema that a query reads with, chosen once, where the query is planned."""

from __future__ import annotations

import os.path
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Final

from seglog.core.errors import InvalidConfigError
from seglog.core.extras import require
from seglog.core.fs import Fs
from seglog.values.protobuf.known_imports import imports_of, is_known
from seglog.values.registry import Registry, SchemaNotFoundError, registry_of
from seglog.values.schemas import AVRO, JSON, SchemaError, SchemaText, ValueFormat
from seglog.values.value_options import ColumnFormat, RegistryConfig, ValueOptions, subject_of

_FILES: Final = (".avsc", ".proto", ".json", ".ddl")


@dataclass(frozen=True, slots=True)
class ReaderSchema:
    """A column's format with its schema. Plain values: it is sent to Spark's workers."""

    column: ColumnFormat
    schema: SchemaText


@dataclass(frozen=True, slots=True)
class ReadFormats:
    """The typed columns of a query."""

    columns: tuple[ReaderSchema, ...]
    registry: RegistryConfig | None

    def format_of(self, column: str) -> ValueFormat | None:
        """The format of a column; None if it stays bytes."""
        return next((make_format(one) for one in self.columns if one.column.column == column), None)


def resolve_formats(options: ValueOptions, topics: Callable[[], Iterable[str]], fs: Fs) -> ReadFormats:
    """The reader's schemas: by option, or the latest of the registry now.

    ``topics`` is called only if a subject depends on the topic. Raises `InvalidConfigError` if two topics have
    different schemas, or if a schema is missing; `SchemaError` for one that is not supported; `RequestFailedError`.
    """
    columns = tuple(ReaderSchema(one, _schema_of(one, options, topics, fs)) for one in options.columns)
    for one in columns:
        make_format(one)
    return ReadFormats(columns, options.registry)


def choose_formats(options: ValueOptions, topics: Callable[[], Iterable[str]], fs: Fs) -> ReadFormats | None:
    """As `resolve_formats`; None if keys and values stay bytes."""
    return resolve_formats(options, topics, fs) if options.columns else None


def make_format(reader: ReaderSchema) -> ValueFormat:
    """The code for a format. `SchemaError` names what it does not support, and the option that has the schema;
    `MissingExtraError` names the missing package."""
    if reader.schema.kind != reader.column.kind:
        raise InvalidConfigError(
            f"option {reader.column.column}Format is {reader.column.kind.lower()}, and the schema in the registry is "
            f"{reader.schema.kind}"
        )
    for module in ("numpy", "numba", "pyarrow"):
        require(module, "formats", purpose="reading keys and values with types")
    try:
        return _make(reader)
    except SchemaError as error:
        if reader.column.schema is None:
            raise
        raise SchemaError(f"option {reader.column.column}Schema: {error}") from error


def _make(reader: ReaderSchema) -> ValueFormat:
    if reader.schema.kind == AVRO:
        from seglog.values.avro.format import AvroFormat

        return AvroFormat(reader.schema)
    if reader.schema.kind == JSON:
        from seglog.values.json.format import JsonFormat

        return JsonFormat(reader.schema)
    from seglog.values.protobuf.format import ProtobufFormat

    return ProtobufFormat(reader.schema, reader.column.record_name)


def _schema_of(column: ColumnFormat, options: ValueOptions, topics: Callable[[], Iterable[str]], fs: Fs) -> SchemaText:
    if column.schema is not None:
        return read_schema(fs, column)
    assert options.registry is not None
    registry = registry_of(options.registry)
    if subject_of(column, "a") == subject_of(column, "b"):
        return _latest(registry, column, subject_of(column, "")).schema
    found: dict[str, _Latest] = {}
    for topic in sorted(set(topics())):
        found[topic] = _latest(registry, column, subject_of(column, topic))
    if not found:
        raise InvalidConfigError(
            f"there is no topic whose schema could be the {column.column}'s: set {column.column}Schema"
        )
    first, *others = found
    for other in others:
        if found[other].schema != found[first].schema:
            raise InvalidConfigError(
                f"topics {first} and {other} have different schemas (subject {found[first].subject} has id "
                f"{found[first].schema_id}, subject {found[other].subject} has id {found[other].schema_id}): read "
                f"them in queries of their own, or set {column.column}Schema"
            )
    return found[first].schema


@dataclass(frozen=True, slots=True)
class _Latest:
    subject: str
    schema_id: int
    schema: SchemaText


def _latest(registry: Registry, column: ColumnFormat, subject: str) -> _Latest:
    try:
        found = registry.latest(subject)
    except SchemaNotFoundError as error:
        raise SchemaNotFoundError(
            f"{error}; option {column.column}Schema or {column.column}Subject would name another schema"
        ) from error
    return _Latest(subject, found.schema_id, found.schema)


def read_schema(fs: Fs, column: ColumnFormat) -> SchemaText:
    """An option's schema of a column: the text itself, or a file that ends in .avsc, .proto, .json or .ddl."""
    assert column.schema is not None
    found = _read(fs, column.kind, column.schema, f"{column.column}Schema")
    return replace(found, references=column.references) if column.references else found


def _read(fs: Fs, kind: str, text: str, option: str) -> SchemaText:
    if not text.endswith(_FILES) or "\n" in text or "{" in text:
        return SchemaText(kind, text)
    path = text.removeprefix("file://").removeprefix("file:")
    try:
        content = fs.read(path).decode()
        imports: dict[str, str] = {}
        if path.endswith(".proto"):
            _read_imports(fs, os.path.dirname(path), content, imports)
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidConfigError(f"option {option}: {path} cannot be read: {error}") from error
    return SchemaText(kind, content.strip() if kind in (AVRO, JSON) else content, tuple(imports.items()))


def _read_imports(fs: Fs, directory: str, text: str, found: dict[str, str]) -> None:
    """The files that a Protobuf file imports, by the paths it uses, relative to its own directory."""
    for name in imports_of(text):
        if name in found or (is_known(name) and not fs.exists(os.path.join(directory, name))):
            continue
        found[name] = ""
        content = fs.read(os.path.join(directory, name)).decode()
        _read_imports(fs, directory, content, found)
        del found[name]  # after those that it needs
        found[name] = content
