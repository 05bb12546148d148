"""The types of a table's columns, in Arrow and in Iceberg. Pure.

Iceberg has fewer types than Arrow: integers of 8 and 16 bits become 32, and a type that it lacks is refused by its
name. Every field is optional, as in the source.

========================  ==========================
Arrow                     Iceberg
========================  ==========================
bool, string, binary      boolean, string, binary
int8, int16, int32        int
int64                     long
float, double             the same
decimal128                decimal
date32, time64            date, time, in µs
timestamp[us], UTC        timestamptz
timestamp[us]             timestamp
struct, list, map         the same
========================  ==========================
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Final

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    PrimitiveType,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
)

from seglog.core.errors import InvalidConfigError

_ICEBERG: Final[dict[pa.DataType, PrimitiveType]] = {
    pa.bool_(): BooleanType(),
    pa.int8(): IntegerType(),
    pa.int16(): IntegerType(),
    pa.int32(): IntegerType(),
    pa.int64(): LongType(),
    pa.float32(): FloatType(),
    pa.float64(): DoubleType(),
    pa.string(): StringType(),
    pa.binary(): BinaryType(),
    pa.date32(): DateType(),
    pa.time64("ns"): TimeType(),
    pa.time64("us"): TimeType(),
    pa.timestamp("us", tz="UTC"): TimestamptzType(),
    pa.timestamp("us"): TimestampType(),
}
_ARROW: Final[dict[IcebergType, pa.DataType]] = {iceberg: arrow for arrow, iceberg in _ICEBERG.items()}
"""The last of several Arrow types counts: int is int32."""
FIELD_ID: Final = "PARQUET:field_id"
"""The key of a field's metadata by which a Parquet file has Iceberg's number of the field."""


def iceberg_schema(columns: pa.Schema) -> Schema:
    """Columns as a new table has them. Raises `InvalidConfigError` for a type that Iceberg does not have.

    >>> print(iceberg_schema(pa.schema([("value", pa.struct([("delay", pa.int16())]))])))
    table {
      1: value: optional struct<2: delay: optional int>
    }
    """
    ids = count(1)
    numbers = [next(ids) for _ in columns]  # of the columns first, as Iceberg numbers them
    return Schema(
        *(
            NestedField(number, field.name, iceberg_type(field.type, ids, field.name))
            for number, field in zip(numbers, columns, strict=True)
        )
    )


def iceberg_type(kind: pa.DataType, ids: Iterator[int], where: str) -> IcebergType:
    """The type of the column or field ``where``; ``ids`` are for its own fields."""
    if isinstance(kind, pa.StructType):
        numbers = [next(ids) for _ in kind]
        return StructType(
            *(
                NestedField(number, one.name, iceberg_type(one.type, ids, f"{where}.{one.name}"))
                for number, one in zip(numbers, kind, strict=True)
            )
        )
    if isinstance(kind, pa.ListType):
        return ListType(next(ids), iceberg_type(kind.value_type, ids, f"{where}.element"), element_required=False)
    if isinstance(kind, pa.MapType):
        return MapType(
            next(ids),
            iceberg_type(kind.key_field.type, ids, f"{where}.key"),
            next(ids),
            iceberg_type(kind.item_field.type, ids, f"{where}.value"),
            value_required=False,
        )
    if isinstance(kind, pa.Decimal128Type):
        return DecimalType(kind.precision, kind.scale)
    if kind not in _ICEBERG:
        raise InvalidConfigError(f"{where} is of type {kind}, which Iceberg does not have")
    return _ICEBERG[kind]


def arrow_schema(schema: Schema) -> pa.Schema:
    """A table's columns as its files have them, with field ids."""
    return pa.schema([_arrow_field(field) for field in schema.fields])


def _arrow_field(field: NestedField, *, nullable: bool = True) -> pa.Field:
    number = {FIELD_ID: str(field.field_id)}
    return pa.field(field.name, _arrow_type(field.field_type), nullable=nullable, metadata=number)


def _arrow_type(kind: IcebergType) -> pa.DataType:
    if isinstance(kind, StructType):
        return pa.struct([_arrow_field(one) for one in kind.fields])
    if isinstance(kind, ListType):
        return pa.list_(_arrow_field(kind.element_field))
    if isinstance(kind, MapType):
        return pa.map_(_arrow_field(kind.key_field, nullable=False), _arrow_field(kind.value_field))
    if isinstance(kind, DecimalType):
        return pa.decimal128(kind.precision, kind.scale)
    return _ARROW[kind]


def conform(rows: pa.Table, columns: pa.Schema) -> pa.Table:
    """The rows with exactly these columns, by name, at any depth: null where they have none.

    The types that they have can be widened to those of ``columns``.
    """
    if rows.schema.equals(columns):
        return rows
    there = set(rows.schema.names)
    return pa.Table.from_arrays(
        [
            rows.column(field.name).cast(field.type) if field.name in there else pa.nulls(rows.num_rows, field.type)
            for field in columns
        ],
        schema=columns,
    )


def leaves(kind: pa.DataType, where: str) -> list[str]:
    """The paths of the values without parts in a column, but not those in lists and maps.

    >>> leaves(pa.struct([("a", pa.int32()), ("b", pa.list_(pa.int32()))]), "value")
    ['value.a']
    """
    if isinstance(kind, pa.StructType):
        return [path for one in kind for path in leaves(one.type, f"{where}.{one.name}")]
    return [] if isinstance(kind, pa.ListType | pa.MapType) else [where]
