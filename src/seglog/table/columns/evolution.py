"""How a table's columns become those of a newer schema. Pure.

Spark reads files by the names of fields, and Iceberg by their ids. Both give the same rows only if a name stands for
the same field in all files. So fields are added and widened, never renamed or removed: a field that a newer schema does
not have stays, and is null in new files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.types import (
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
    StructType,
)

from seglog.core.errors import InvalidConfigError
from seglog.table.columns.column_types import iceberg_schema

_WIDER: Final = ((IntegerType(), LongType()), (FloatType(), DoubleType()))


class Addition(NamedTuple):
    """A column or field that the table does not have. ``path``: its name and those of the fields around it."""

    path: tuple[str, ...]
    type: IcebergType


class Widening(NamedTuple):
    """A field whose type becomes a wider one."""

    path: tuple[str, ...]
    type: PrimitiveType


Change = Addition | Widening


def changes(table: Schema, columns: pa.Schema) -> Sequence[Change]:
    """The changes after which the table can have records with ``columns``, an outer field before its inner ones.

    Raises `InvalidConfigError` for a field that Iceberg cannot change so, by its name.
    """
    return list(_of_fields((), table.fields, iceberg_schema(columns).fields))


def _of_fields(path: tuple[str, ...], known: Sequence[NestedField], wanted: Sequence[NestedField]) -> Iterator[Change]:
    there = {one.name: one for one in known}
    folded = {one.name.lower(): one.name for one in known}
    for field in wanted:
        at, name = (*path, field.name), field.name.lower()
        if field.name in there:
            yield from _of_types(at, there[field.name].field_type, field.field_type)
        elif name in folded:
            raise InvalidConfigError(
                f"the schema has the field {'.'.join(at)}, and the table has {folded[name]!r} there: Spark does not "
                "tell them apart. Build another table"
            )
        else:
            folded[name] = field.name
            yield Addition(at, field.field_type)


def _of_types(path: tuple[str, ...], known: IcebergType, wanted: IcebergType) -> Iterator[Change]:
    if isinstance(known, StructType) and isinstance(wanted, StructType):
        yield from _of_fields(path, known.fields, wanted.fields)
    elif isinstance(known, ListType) and isinstance(wanted, ListType):
        yield from _of_types((*path, "element"), known.element_type, wanted.element_type)
    elif isinstance(known, MapType) and isinstance(wanted, MapType) and _is_same(known.key_type, wanted.key_type):
        yield from _of_types((*path, "value"), known.value_type, wanted.value_type)
    elif isinstance(wanted, PrimitiveType) and _is_wider(known, wanted):
        yield Widening(path, wanted)
    elif known != wanted:
        raise InvalidConfigError(
            f"the field {'.'.join(path)} is {_name(known)} in the table and {_name(wanted)} in the schema, and Iceberg "
            "cannot change it so. Build another table, or give the field another name"
        )


def _is_same(known: IcebergType, wanted: IcebergType) -> bool:
    """Whether the types are the same but for the numbers of fields."""
    try:
        return not list(_of_types((), known, wanted))
    except InvalidConfigError:
        return False


def _is_wider(known: IcebergType, wanted: IcebergType) -> bool:
    if isinstance(known, DecimalType) and isinstance(wanted, DecimalType):
        return known.scale == wanted.scale and known.precision < wanted.precision
    return (known, wanted) in _WIDER


def _name(kind: IcebergType) -> str:
    """A type without the numbers of its fields."""
    for outer, name in ((StructType, "struct"), (ListType, "list"), (MapType, "map")):
        if isinstance(kind, outer):
            return name
    return str(kind)
