"""The columns of a record as Spark sees them: those of its Kafka connector, in its order and types, all nullable."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from seglog.core.errors import InvalidConfigError
from seglog.core.suggestions import did_you_mean
from seglog.values.reader_schema import ReadFormats
from seglog.values.value_options import SECRETS

HEADERS: Final = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
"""NULL for a record without headers."""

COLUMNS: Final = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
        StructField("headers", HEADERS),
    ]
)
EXTRA: Final = StructType(
    [
        StructField("isTombstone", BooleanType()),
        StructField("isControl", BooleanType()),
        StructField("isTransactional", BooleanType()),
        StructField("producerId", LongType()),
        StructField("producerEpoch", ShortType()),
        StructField("sequence", IntegerType()),
        StructField("leaderEpoch", IntegerType()),
    ]
)
"""Columns that only ``columns`` or a schema selects; -1 if a record has no producer or no epoch."""

_OURS: Final = {field.name: field for schema in (COLUMNS, EXTRA) for field in schema.fields}
_NULLABLE: Final = frozenset({"key", "value", "headers", "timestamp"})
_UNTYPED: Final[Mapping[str, DataType]] = MappingProxyType({})
_OPTIONS: Final = "seglog"
"""Key of a column's metadata."""


def record_schema(
    *, include_headers: bool, columns: Sequence[str] | None = None, typed: Mapping[str, DataType] = _UNTYPED
) -> StructType:
    """The schema of ``load()`` without ``.schema(…)``; an `InvalidConfigError` names an unknown column.

    ``typed`` has the types of columns that are decoded, and of those that come with them (`typed_columns`).
    """
    there = _columns(typed)
    if columns is None:
        names = [name for name in COLUMNS.names if include_headers or name != "headers"]
        return StructType([there[name] for name in [*names, *(name for name in typed if name not in names)]])
    for name in columns:
        if name not in there:
            raise InvalidConfigError(f"option columns: {_no_column(name, there)}")
    if len(set(columns)) != len(columns):
        raise InvalidConfigError(f"option columns names a column twice: {', '.join(columns)}")
    return StructType([there[name] for name in columns])


def _no_column(name: str, there: Iterable[str]) -> str:
    return f"there is no column {name!r}; there are {', '.join(there)}{did_you_mean(name, there)}"


def _columns(typed: Mapping[str, DataType]) -> dict[str, StructField]:
    return _OURS | {name: StructField(name, type_) for name, type_ in typed.items()}


def check_schema(schema: StructType, typed: Mapping[str, DataType] = _UNTYPED) -> StructType:
    """A user's ``.schema(…)`` if all columns are ours; an `InvalidConfigError` names the first one that is not."""
    there = _columns(typed)
    for field in schema.fields:
        if field.name not in there:
            raise InvalidConfigError(f"schema: {_no_column(field.name, there)}")
        expected = there[field.name].dataType
        if field.dataType != expected:
            raise InvalidConfigError(
                f"schema: column {field.name} is {expected.simpleString()}, not {field.dataType.simpleString()}: "
                "read it with its own type and cast it"
            )
        if not field.nullable and (field.name in _NULLABLE or field.name in typed):
            raise InvalidConfigError(f"schema: column {field.name} must be nullable")
    if len(set(schema.fieldNames())) != len(schema.fields):
        raise InvalidConfigError(f"the schema names a column twice: {', '.join(schema.fieldNames())}")
    return schema


def remember(schema: StructType, options: Mapping[str, str]) -> StructType:
    """Store the options in the schema of a table that is being created; leave any other schema unchanged.

    Spark 4.3 keeps schema and options of ``CREATE TABLE … USING seglog OPTIONS (…)`` in its catalog, but creates
    readers and writers of the table without the options (``PythonDataSourceV2.getTable`` drops them). A reader gets the
    schema of the table, so it carries the options. A writer gets the schema of the query, which may be another table's.
    """
    if "provider" not in options or not schema.fields:
        return schema
    for name in SECRETS:
        if name in {key.lower() for key in options}:
            raise InvalidConfigError(f"option {name}: the catalog would store it with the table; set {name}.file")
    kept = {key: value for key, value in options.items() if not key.startswith("option.")}
    first = schema.fields[0]
    tagged = StructField(first.name, first.dataType, first.nullable, {**first.metadata, _OPTIONS: kept})
    return StructType([tagged, *schema.fields[1:]])


def recall(schema: StructType, options: Mapping[str, str]) -> Mapping[str, str]:
    """The options of a table that `remember` stored in the schema that a reader gets, and over them ``options``, which
    are those of the query: ``SELECT … FROM t WITH (…)``, or ``spark.read.option(…).table("t")``."""
    for field in schema.fields:
        kept = (field.metadata or {}).get(_OPTIONS)
        if isinstance(kept, dict):
            given = {key.lower() for key in options}
            return {str(key): str(value) for key, value in kept.items() if key.lower() not in given} | {**options}
    return options


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
