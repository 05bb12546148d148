"""The Arrow type of an Avro schema, and where the loops put its parts.

The loops append to columns of 64-bit cells. A column belongs to a space: space 0 has a cell for each value, and every
array or map has a space of its own with a cell for each element. Each append to a node appends one cell to every column
below it in the same space, so the columns of a space have the same length.

===============  =====================================================================================
node             cells
===============  =====================================================================================
`Leaf`           the number; text and bytes: position and length; a decimal: low and high 64 bits
`Struct`         none of its own
`Listing`        the number of elements so far: the end of this one's
any, nullable    1 or 0 in the column ``valid``, except for text and bytes, whose length -1 is null
===============  =====================================================================================
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final
from uuid import UUID

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from seglog.records import arrow_memory
from seglog.records.columns import gather_bytes
from seglog.records.intrinsics import I64, U8
from seglog.values.avro.schema import Array, Enum, Fixed, Map, Primitive, Record, Schema, Union, describe
from seglog.values.schemas import SchemaError

MAX_PRECISION: Final = 38
DURATION: Final = pa.struct([("months", pa.int64()), ("days", pa.int64()), ("milliseconds", pa.int64())])
UTC_MICROS: Final = pa.timestamp("us", tz="UTC")
_INTEGERS: Final = frozenset({"int", "long"})
_FLOATS: Final = frozenset({"float", "double"})


@dataclass(frozen=True, slots=True)
class Leaf:
    """A value without parts. ``schema`` is the reader's: a union of int and long, or of float and double, is one."""

    type: pa.DataType
    schema: Schema
    column: int
    width: int
    valid: int | None
    build: Callable[[Cells, Leaf, int], pa.Array]

    @property
    def has_length(self) -> bool:
        """Whether it is text or bytes, as position and length."""
        return self.build is _bytes


@dataclass(frozen=True, slots=True)
class Struct:
    """A record; or a union of several types, as a struct with a field ``member<n>`` for each."""

    type: pa.DataType
    children: tuple[Node, ...]
    valid: int | None
    is_union: bool = False


@dataclass(frozen=True, slots=True)
class Listing:
    """An array; or a map, whose ``key`` is its text."""

    type: pa.DataType
    child: Node
    space: int
    ends: int
    valid: int | None
    key: Leaf | None = None


Node = Leaf | Struct | Listing


class Layout:
    """The columns for a reader's schema. ``spaces`` has the space of each column."""

    def __init__(self, schema: Schema) -> None:
        """Raises `SchemaError` for a type that is not supported, by its name."""
        self.spaces: list[int] = []
        self.space_count = 1
        self._open: list[Record] = []
        self.root = self._node(schema, 0, nullable=True, where="")

    @property
    def type(self) -> pa.DataType:
        return self.root.type

    def _columns(self, count: int, space: int) -> int:
        self.spaces += [space] * count
        return len(self.spaces) - count

    def _new_space(self) -> int:
        self.space_count += 1
        return self.space_count - 1

    def _node(self, schema: Schema, space: int, *, nullable: bool, where: str) -> Node:
        if isinstance(schema, Union):
            return self._union(schema, space, nullable=nullable, where=where)
        if isinstance(schema, Record):
            return self._record(schema, space, nullable=nullable, where=where)
        if isinstance(schema, Array):
            inner = self._new_space()
            valid = self._columns(1, space) if nullable else None
            ends = self._columns(1, space)
            child = self._node(schema.items, inner, nullable=False, where=f"{where}[]")
            return Listing(pa.list_(pa.field("element", child.type)), child, inner, ends, valid)
        if isinstance(schema, Map):
            inner = self._new_space()
            valid = self._columns(1, space) if nullable else None
            ends = self._columns(1, space)
            key = Leaf(pa.string(), Primitive("string"), self._columns(2, inner), 2, None, _bytes)
            child = self._node(schema.values, inner, nullable=False, where=f"{where}{{}}")
            return Listing(pa.map_(pa.string(), child.type), child, inner, ends, valid, key)
        return self._leaf(schema, space, nullable=nullable, where=where)

    def _record(self, schema: Record, space: int, *, nullable: bool, where: str) -> Struct:
        if schema in self._open:
            raise SchemaError(f"record {schema.name} contains itself{_at(where)}: recursive types are not supported")
        if not schema.fields:
            raise SchemaError(f"record {schema.name} has no field{_at(where)}, which Spark's structs must have")
        valid = self._columns(1, space) if nullable else None
        self._open.append(schema)
        children = tuple(
            self._node(one.schema, space, nullable=False, where=f"{where}.{one.name}" if where else one.name)
            for one in schema.fields
        )
        self._open.pop()
        fields = [pa.field(one.name, child.type) for one, child in zip(schema.fields, children, strict=True)]
        return Struct(pa.struct(fields), children, valid)

    def _union(self, schema: Union, space: int, *, nullable: bool, where: str) -> Node:
        branches = [branch for branch in schema.branches if branch.kind != "null"]
        nullable = nullable or len(branches) < len(schema.branches)
        if not branches:
            raise SchemaError(f"the type null alone is not supported{_at(where)}")
        if len(branches) == 1:
            return self._node(branches[0], space, nullable=nullable, where=where)
        kinds = {branch.kind for branch in branches}
        is_plain = all(isinstance(branch, Primitive) and branch.logical is None for branch in branches)
        for numbers, wide in ((_INTEGERS, "long"), (_FLOATS, "double")):
            if kinds == numbers and is_plain:
                return self._leaf(Primitive(wide), space, nullable=nullable, where=where)
        valid = self._columns(1, space) if nullable else None
        members = tuple(self._node(branch, space, nullable=True, where=where) for branch in branches)
        fields = [pa.field(f"member{number}", member.type) for number, member in enumerate(members)]
        return Struct(pa.struct(fields), members, valid, is_union=True)

    def _leaf(self, schema: Schema, space: int, *, nullable: bool, where: str) -> Leaf:
        type_, columns, build = _leaf_type(schema, where)
        # The length of a text or bytes is -1 where it is null.
        valid = self._columns(1, space) if nullable and build is not _bytes else None
        return Leaf(type_, schema, self._columns(columns, space), columns, valid, build)


def _at(where: str) -> str:
    return f" (at {where})" if where else ""


def _leaf_type(schema: Schema, where: str) -> tuple[pa.DataType, int, Callable[[Cells, Leaf, int], pa.Array]]:
    """Arrow type, number of columns, and how cells become an array."""
    if isinstance(schema, Enum):
        return pa.string(), 1, _symbols
    assert isinstance(schema, Primitive | Fixed)
    logical = schema.logical
    if logical is not None:
        if logical.name == "decimal":
            if logical.precision > MAX_PRECISION:
                raise SchemaError(
                    f"a decimal of precision {logical.precision}{_at(where)}: at most {MAX_PRECISION} are supported"
                )
            return pa.decimal128(logical.precision, logical.scale), 2, _decimals
        if logical.name == "uuid":
            return (pa.string(), 2, _bytes) if schema.kind == "string" else (pa.string(), 2, _uuids)
        if logical.name == "duration":
            return DURATION, 3, _durations
        if logical.name in _LOGICAL:
            return _LOGICAL[logical.name], 1, _numbers
        raise SchemaError(f"the logical type {logical.name} is not supported{_at(where)}")
    if schema.kind in _PRIMITIVES:
        type_, build = _PRIMITIVES[schema.kind]
        return type_, 2 if build is _bytes else 1, build
    if schema.kind == "fixed":
        return pa.binary(), 2, _bytes
    raise SchemaError(f"the type {describe(schema)} is not supported{_at(where)}")


# Cells as arrays


class Cells:
    """The filled cells of all columns: column c has ``counts[spaces[c]]`` of them from ``starts[c]`` on."""

    def __init__(self, data: U8, cells: I64, starts: I64, spaces: list[int], counts: I64) -> None:
        self.data = data
        self._cells = cells
        self._starts = starts.tolist()
        self._spaces = spaces
        self._counts = counts.tolist()

    def of(self, column: int) -> I64:
        start = self._starts[column]
        found: I64 = self._cells[start : start + self._counts[self._spaces[column]]]
        return found

    def validity(self, node: Node) -> tuple[pa.Buffer | None, int]:
        """Arrow's bits and the number of nulls."""
        if node.valid is None:
            return None, 0
        valid = self.of(node.valid)
        nulls = len(valid) - int(np.count_nonzero(valid))
        return (_bits(valid), nulls) if nulls else (None, 0)

    def array(self, node: Node, size: int) -> pa.Array:
        """The array of a node, with ``size`` elements."""
        if isinstance(node, Leaf):
            return node.build(self, node, size)
        bits, nulls = self.validity(node)
        if isinstance(node, Struct):
            children = [self.array(child, size) for child in node.children]
            return pa.Array.from_buffers(node.type, size, [bits], nulls, children=children)
        offsets, ends = arrow_memory.allocate(size + 1, np.int32)
        offsets[0] = 0
        offsets[1:] = self.of(node.ends)
        child = self.array(node.child, self._counts[node.space])
        if node.key is not None:
            assert isinstance(node.type, pa.MapType)
            entries = [self.array(node.key, self._counts[node.space]), child]
            entry_type = pa.struct([node.type.key_field, node.type.item_field])
            child = pa.Array.from_buffers(entry_type, len(child), [None], 0, children=entries)
        return pa.Array.from_buffers(node.type, size, [bits, ends], nulls, children=[child])


def _bits(valid: I64) -> pa.Buffer:
    return arrow_memory.copy(np.packbits(valid != 0, bitorder="little"))


def _numbers(cells: Cells, leaf: Leaf, size: int) -> pa.Array:
    bits, nulls = cells.validity(leaf)
    raw = cells.of(leaf.column)
    values: npt.NDArray[np.generic] = raw if leaf.type.bit_width == 64 else raw.astype(np.int32)
    return pa.Array.from_buffers(leaf.type, size, [bits, arrow_memory.copy(values)], nulls)


def _booleans(cells: Cells, leaf: Leaf, size: int) -> pa.Array:
    bits, nulls = cells.validity(leaf)
    return pa.Array.from_buffers(leaf.type, size, [bits, _bits(cells.of(leaf.column))], nulls)


def _bytes(cells: Cells, leaf: Leaf, _size: int) -> pa.Array:
    return gather_bytes(leaf.type, cells.data, cells.of(leaf.column), cells.of(leaf.column + 1))


def _symbols(cells: Cells, leaf: Leaf, size: int) -> pa.Array:
    assert isinstance(leaf.schema, Enum)
    bits, nulls = cells.validity(leaf)
    indexes = arrow_memory.copy(cells.of(leaf.column).astype(np.int32))
    return pa.array(leaf.schema.symbols, pa.string()).take(
        pa.Array.from_buffers(pa.int32(), size, [bits, indexes], nulls)
    )


def _decimals(cells: Cells, leaf: Leaf, size: int) -> pa.Array:
    bits, nulls = cells.validity(leaf)
    both = np.column_stack([cells.of(leaf.column), cells.of(leaf.column + 1)])
    return pa.Array.from_buffers(leaf.type, size, [bits, arrow_memory.copy(both)], nulls)


def _uuids(cells: Cells, leaf: Leaf, size: int) -> pa.Array:
    bits, _ = cells.validity(leaf)
    valid = None if bits is None else cells.of(leaf.valid or 0)
    positions = cells.of(leaf.column)
    texts = [
        None
        if valid is not None and not valid[row]
        else str(UUID(bytes=cells.data[positions[row] : positions[row] + 16].tobytes()))
        for row in range(size)
    ]
    return pa.array(texts, pa.string())


def _durations(cells: Cells, leaf: Leaf, size: int) -> pa.Array:
    bits, nulls = cells.validity(leaf)
    parts = [
        pa.Array.from_buffers(pa.int64(), size, [None, arrow_memory.copy(cells.of(leaf.column + part))], 0)
        for part in range(3)
    ]
    return pa.Array.from_buffers(leaf.type, size, [bits], nulls, children=parts)


_LOGICAL: Final = {
    "date": pa.date32(),
    "time-millis": pa.time64("ns"),
    "time-micros": pa.time64("ns"),
    "timestamp-millis": UTC_MICROS,
    "timestamp-micros": UTC_MICROS,
    "local-timestamp-millis": pa.timestamp("us"),
    "local-timestamp-micros": pa.timestamp("us"),
}
_PRIMITIVES: Final = {
    "boolean": (pa.bool_(), _booleans),
    "int": (pa.int32(), _numbers),
    "long": (pa.int64(), _numbers),
    "float": (pa.float32(), _numbers),
    "double": (pa.float64(), _numbers),
    "bytes": (pa.binary(), _bytes),
    "string": (pa.string(), _bytes),
}
