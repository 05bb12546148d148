"""What a JSON value looks like, and the Arrow type that holds it.

A `Shape` says more than an Arrow type: a column of strings holds the text of strings alone (`Plain`), or of any JSON
(`AnyJson`). Two shapes combine in two ways: a value of `either`, or a value that is `both`.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Plain:
    """A value without parts."""

    type: pa.DataType


@dataclass(frozen=True, slots=True)
class Unscaled:
    """A decimal of Kafka Connect: a number, or the base64 of its unscaled bytes."""

    precision: int
    scale: int


@dataclass(frozen=True, slots=True)
class AnyJson:
    """Any value: a string as it is, and the JSON text of everything else."""


@dataclass(frozen=True, slots=True)
class Nothing:
    """Always null."""


@dataclass(frozen=True, slots=True)
class Object:
    """An object with known fields, at least one."""

    fields: dict[str, Shape]


@dataclass(frozen=True, slots=True)
class Items:
    """An array."""

    element: Shape


@dataclass(frozen=True, slots=True)
class Entries:
    """An object with any keys."""

    value: Shape


Shape = Plain | Unscaled | AnyJson | Nothing | Object | Items | Entries

ANY: AnyJson = AnyJson()
NOTHING: Nothing = Nothing()
_INTEGERS = (pa.int8(), pa.int16(), pa.int32(), pa.int64())
_FLOATS = (pa.float32(), pa.float64())


def arrow_type(shape: Shape) -> pa.DataType:
    """The type of a column of such values.

    >>> str(arrow_type(Object({"a": Items(ANY), "b": Entries(Plain(pa.int32()))})))
    'struct<a: list<element: string>, b: map<string, int32>>'
    """
    if isinstance(shape, Plain):
        return shape.type
    if isinstance(shape, Unscaled):
        return pa.decimal128(shape.precision, shape.scale)
    if isinstance(shape, Object):
        return pa.struct([pa.field(name, arrow_type(one)) for name, one in shape.fields.items()])
    if isinstance(shape, Items):
        return pa.list_(pa.field("element", arrow_type(shape.element)))
    return pa.map_(pa.string(), arrow_type(shape.value)) if isinstance(shape, Entries) else pa.string()


def shape_of(type_: pa.DataType) -> Shape:
    """The shape of a column's type: strings hold strings alone."""
    if isinstance(type_, pa.StructType):
        return Object({one.name: shape_of(one.type) for one in type_})
    if isinstance(type_, pa.MapType):
        return Entries(shape_of(type_.item_field.type))
    return Items(shape_of(type_.value_type)) if isinstance(type_, pa.ListType) else Plain(type_)


def either(left: Shape, right: Shape) -> Shape:
    """The narrowest shape that holds the values of both.

    Numbers widen, objects have the fields of both, and all else that differs is `AnyJson`.

    >>> either(Plain(pa.int64()), Plain(pa.float32()))
    Plain(type=DataType(double))
    >>> either(Plain(pa.int64()), Plain(pa.string()))
    AnyJson()
    """
    if left == right or isinstance(right, Nothing):
        return left
    if isinstance(left, Nothing):
        return right
    if isinstance(left, Plain) and isinstance(right, Plain):
        return _wider(left, right)
    if isinstance(left, Object) and isinstance(right, Object):
        names = [*left.fields, *(name for name in right.fields if name not in left.fields)]
        return Object({name: either(left.fields.get(name, NOTHING), right.fields.get(name, NOTHING)) for name in names})
    if isinstance(left, Items) and isinstance(right, Items):
        return Items(either(left.element, right.element))
    if isinstance(left, Entries) and isinstance(right, Entries):
        return Entries(either(left.value, right.value))
    return ANY


def _wider(left: Plain, right: Plain) -> Shape:
    types = (left.type, right.type)
    if all(one in _INTEGERS for one in types):
        return Plain(max(types, key=_INTEGERS.index))
    return Plain(pa.float64()) if all(one in _INTEGERS or one in _FLOATS for one in types) else ANY


def both(left: Shape, right: Shape) -> Shape:
    """The shape of values that satisfy two schemas: the narrower one, or an object with the fields of both.

    >>> both(Plain(pa.float64()), Plain(pa.int64()))
    Plain(type=DataType(int64))
    """
    if left == right or isinstance(right, AnyJson | Nothing):
        return left
    if isinstance(left, AnyJson | Nothing):
        return right
    if isinstance(left, Object) and isinstance(right, Object):
        fields = dict(left.fields)
        for name, shape in right.fields.items():
            fields[name] = both(fields[name], shape) if name in fields else shape
        return Object(fields)
    if isinstance(left, Items) and isinstance(right, Items):
        return Items(both(left.element, right.element))
    if isinstance(left, Entries) and isinstance(right, Entries):
        return Entries(both(left.value, right.value))
    if isinstance(left, Object | Entries) and isinstance(right, Object | Entries):
        return left if isinstance(left, Object) else right
    if isinstance(left, Plain) and isinstance(right, Plain):
        return min(left, right, key=_rank)
    return ANY


def _rank(shape: Plain) -> tuple[int, int]:
    """Narrower types first: a format says more than ``string``, and ``integer`` more than ``number``."""
    order = (*_INTEGERS, *_FLOATS)
    if shape.type in order:
        return 0, order.index(shape.type)
    return (2, 0) if shape.type == pa.string() else (1, 0)
