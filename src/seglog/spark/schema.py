"""The columns of a record as Spark sees them: those of its Kafka connector, in its order and types, all nullable."""

from __future__ import annotations

from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from seglog.core.errors import InvalidConfigError

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
_NULLABLE: Final = frozenset({"key", "value", "headers", "timestamp"})


def record_schema(*, include_headers: bool) -> StructType:
    """What ``load()`` gives without ``.schema(…)``."""
    return COLUMNS if include_headers else StructType(COLUMNS.fields[:-1])


def check_schema(schema: StructType) -> StructType:
    """A user's ``.schema(…)`` if it is some of our columns; `InvalidConfigError` names the first one that is not."""
    ours = {field.name: field for field in COLUMNS.fields}
    for field in schema.fields:
        if field.name not in ours:
            raise InvalidConfigError(f"schema: there is no column {field.name!r}; there are {', '.join(ours)}")
        expected = ours[field.name].dataType
        if field.dataType != expected:
            raise InvalidConfigError(
                f"schema: column {field.name} is {expected.simpleString()}, not {field.dataType.simpleString()}: "
                "select it as it is and cast"
            )
        if not field.nullable and field.name in _NULLABLE:
            raise InvalidConfigError(f"schema: column {field.name} may be null")
    if len(set(schema.fieldNames())) != len(schema.fields):
        raise InvalidConfigError(f"schema: a column is named twice in {', '.join(schema.fieldNames())}")
    return schema
