"""Turns a writer's schema and a reader's into a program for the loops (Avro 1.11, "Schema Resolution").

Where the two cannot fit, `SchemaError` names the place. A branch of a writer's union that does not fit is an error only
of the values that have it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from seglog.records.intrinsics import I64
from seglog.values.avro.kernels import Op
from seglog.values.avro.layout import Layout, Leaf, Listing, Node, Struct
from seglog.values.avro.schema import (
    NO_DEFAULT,
    Array,
    Enum,
    Fixed,
    Map,
    Primitive,
    Record,
    Schema,
    Union,
    default_branch,
    describe,
    misfit_of_default,
    simple_name,
)
from seglog.values.schemas import SchemaError

_INT: Final = (-(2**31), 2**31 - 1)
_LONG: Final = (-(2**63), 2**63 - 1)
_DAY_MS: Final = 86_400_000
_MOST_MS: Final = (2**63 - 1) // 1000
_RANGES: Final = {
    "time-millis": (1_000_000, 0, _DAY_MS - 1),
    "time-micros": (1000, 0, _DAY_MS * 1000 - 1),
    "timestamp-millis": (1000, -_MOST_MS, _MOST_MS),
    "local-timestamp-millis": (1000, -_MOST_MS, _MOST_MS),
}
"""Factor, lowest and highest number: what the cell has is the number times the factor."""
_PROMOTIONS: Final = {
    ("int", "long"), ("int", "float"), ("int", "double"), ("long", "float"), ("long", "double"), ("float", "double"),
    ("string", "bytes"), ("bytes", "string"),
}  # fmt: skip
_FLOAT: Final = pa.float32()
_DOUBLE: Final = pa.float64()
_TEXTS: Final = frozenset({"bytes", "string"})
_LEAST_BYTES: Final = {"null": 0, "float": 4, "double": 8}


class Program(NamedTuple):
    """``code`` is [instructions, 4]; ``constants`` are bytes to append to the data, at the position that
    ``text_constants`` (rows of ``code`` whose number is relative to it) need."""

    code: I64
    table: I64
    null_code: int
    depth: int
    reasons: list[str]
    constants: bytes
    text_constants: list[int]


def compile_program(writer: Schema, reader: Schema, layout: Layout) -> Program:
    """The program that reads values of ``writer`` into the ``layout`` of ``reader``."""
    compiler = _Compiler()
    compiler.resolve(writer, reader, layout.root, "")
    compiler.emit(Op.DONE)
    null_code = len(compiler.code)
    compiler.null(layout.root)
    compiler.emit(Op.DONE)
    return Program(
        np.array(compiler.code, np.int64),
        np.array([*compiler.table, 0], np.uint64).view(np.int64),
        null_code,
        compiler.depth,
        compiler.reasons,
        bytes(compiler.constants),
        compiler.text_constants,
    )


class _Compiler:
    def __init__(self) -> None:
        self.code: list[list[int]] = []
        self.table: list[int] = []
        self.reasons: list[str] = []
        self.constants = bytearray()
        self.text_constants: list[int] = []
        self.depth = 0
        self._open = 0
        self._records: list[Record] = []

    def emit(self, op: Op, a: int = 0, b: int = 0, c: int = 0) -> int:
        """Append an instruction; returns its index."""
        self.code.append([int(op), a, b, c])
        return len(self.code) - 1

    def _entry(self, *numbers: int) -> int:
        self.table += [number & (2**64 - 1) for number in numbers]
        return len(self.table) - len(numbers)

    def _fail(self, reason: str) -> None:
        self.reasons.append(reason)
        self.emit(Op.FAIL, len(self.reasons) - 1)

    # Null, constants

    def null(self, node: Node) -> None:
        """Append a null to the node."""
        if isinstance(node, Leaf):
            if node.valid is not None:
                self.emit(Op.CONSTANT, node.valid, 0)
            for part in range(node.width):
                self.emit(Op.CONSTANT, node.column + part, -1 if node.has_length and part == 1 else 0)
            return
        if node.valid is not None:
            self.emit(Op.CONSTANT, node.valid, 0)
        if isinstance(node, Struct):
            for child in node.children:
                self.null(child)
        else:
            self.emit(Op.END, node.ends, node.space)

    def _present(self, node: Node) -> None:
        if node.valid is not None:
            self.emit(Op.CONSTANT, node.valid, 1)

    def _default(self, schema: Schema, node: Node, default: Any, where: str) -> None:
        """Append a default, given as JSON, to the node. As in Avro for Java, one of an array, map or record that is of
        another type has no parts."""
        if isinstance(schema, Array | Map | Record) and not isinstance(
            default, list if schema.kind == "array" else dict
        ):
            default = [] if schema.kind == "array" else {}
        branch = default_branch(schema, default)
        if branch is None:
            raise SchemaError(
                f"{where}: the writer's record has no such field, and {misfit_of_default(schema, default)}"
            )
        if branch.kind == "null":
            self.null(node)
            return
        if isinstance(schema, Union):
            node = self._member(schema, branch, node)
        self._present(node)
        if isinstance(branch, Record):
            assert isinstance(node, Struct)
            for one, child in zip(branch.fields, node.children, strict=True):
                value = default.get(one.name, one.default)
                if value is NO_DEFAULT:
                    raise SchemaError(f"the default of {where} has no field {one.name}")
                self._default(one.schema, child, value, f"{where}.{one.name}")
        elif isinstance(branch, Array | Map):
            assert isinstance(node, Listing)
            for item in default:
                if isinstance(branch, Map):
                    assert node.key is not None
                    self._text(node.key, item.encode())
                    self._default(branch.values, node.child, default[item], where)
                else:
                    self._default(branch.items, node.child, item, where)
                self.emit(Op.ELEMENT, node.space)
            self.emit(Op.END, node.ends, node.space)
        else:
            assert isinstance(node, Leaf)
            self._leaf_default(branch, node, default, where)

    def _leaf_default(self, schema: Schema, node: Leaf, default: Any, where: str) -> None:
        if isinstance(schema, Enum):
            self.emit(Op.CONSTANT, node.column, schema.symbols.index(default))
            return
        assert isinstance(schema, Primitive | Fixed)
        logical = schema.logical.name if schema.logical else ""
        if schema.kind == "string":
            self._text(node, default.encode())
        elif schema.kind in ("bytes", "fixed"):
            try:
                raw = default.encode("latin-1")
            except UnicodeEncodeError:
                raise SchemaError(
                    f"the default of {where} has a character beyond U+00FF, which is not a byte"
                ) from None
            if isinstance(schema, Fixed):  # as Avro for Java does
                raw = raw[: schema.size].ljust(schema.size, b"\0")
            if logical == "decimal":
                number = int.from_bytes(raw, "big", signed=True)
                self.emit(Op.CONSTANT, node.column, _signed(number))
                self.emit(Op.CONSTANT, node.column + 1, _signed(number >> 64))
            elif logical == "duration":
                for part in range(3):
                    number = int.from_bytes(raw[4 * part : 4 * part + 4], "little")
                    self.emit(Op.CONSTANT, node.column + part, number)
            else:
                self._text(node, raw)
        elif schema.kind == "float":
            self.emit(Op.CONSTANT, node.column, *struct.unpack("<i", struct.pack("<f", default)))
        elif schema.kind == "double" or node.type == _DOUBLE:
            self.emit(Op.CONSTANT, node.column, *struct.unpack("<q", struct.pack("<d", default)))
        else:
            factor, low, high = _RANGES.get(logical, (1, *(_INT if schema.kind == "int" else _LONG)))
            if not low <= default <= high:
                raise SchemaError(f"the default {default} of {where} is out of the range of its type")
            self.emit(Op.CONSTANT, node.column, int(default) * factor)

    def _text(self, node: Leaf, raw: bytes) -> None:
        self.text_constants.append(self.emit(Op.CONSTANT, node.column, len(self.constants)))
        self.emit(Op.CONSTANT, node.column + 1, len(raw))
        self.constants += raw

    # Resolution

    def resolve(self, writer: Schema, reader: Schema, node: Node, where: str) -> None:
        """Append a value of ``writer`` to ``node``, whose schema is ``reader``."""
        if isinstance(writer, Union):
            reasons = [self._misfit(branch, reader) for branch in writer.branches]
            if all(reasons):
                raise SchemaError(f"{_place(where)}: {reasons[0]}")
            self._switch(writer.branches, lambda branch: self._branch(branch, reader, node, where))
        else:
            reason = self._misfit(writer, reader)
            if reason:
                raise SchemaError(f"{_place(where)}: {reason}")
            self._branch(writer, reader, node, where)

    def _switch(self, branches: Sequence[Schema], write: Any) -> None:
        entry = self._entry(*([0] * len(branches)))
        self.emit(Op.BRANCH, len(branches), entry)
        jumps = []
        for number, branch in enumerate(branches):
            self.table[entry + number] = len(self.code)
            write(branch)
            jumps.append(self.emit(Op.JUMP))
        for jump in jumps:
            self.code[jump][1] = len(self.code)

    def _misfit(self, writer: Schema, reader: Schema) -> str:
        """Why no value of ``writer``, which is not a union, can be one of ``reader``; empty if it may."""
        if not isinstance(reader, Union):
            return misfit(writer, reader)
        if best_branch(writer, reader) is None:
            return f"{describe(writer)} is not a branch of the reader's union {describe(reader)}"
        return ""

    def _branch(self, writer: Schema, reader: Schema, node: Node, where: str) -> None:
        reason = self._misfit(writer, reader)
        if reason:
            self._fail(f"{_place(where)}: {reason}")
            return
        if isinstance(reader, Union):
            branch = best_branch(writer, reader)
            assert branch is not None
            if branch.kind == "null":
                self.null(node)
                return
            node, reader = self._member(reader, branch, node), branch
        self._present(node)
        self._value(writer, reader, node, where)

    def _member(self, union: Union, branch: Schema, node: Node) -> Node:
        """The node of a branch. If a union is a struct, this appends to the struct and to its other members."""
        if not isinstance(node, Struct) or not node.is_union:
            return node
        self._present(node)
        there = [one for one in union.branches if one.kind != "null"]
        for other, member in zip(there, node.children, strict=True):
            if other is not branch:
                self.null(member)
        return node.children[there.index(branch)]

    def _value(self, writer: Schema, reader: Schema, node: Node, where: str) -> None:
        if isinstance(reader, Record):
            assert isinstance(writer, Record)
            assert isinstance(node, Struct)
            self._record(writer, reader, node, where)
        elif isinstance(reader, Array):
            assert isinstance(writer, Array)
            assert isinstance(node, Listing)
            self._block(node, writer.items, lambda: self.resolve(writer.items, reader.items, node.child, f"{where}[]"))
        elif isinstance(reader, Map):
            assert isinstance(writer, Map)
            assert isinstance(node, Listing)
            assert node.key is not None
            key = node.key

            def entry() -> None:
                self.emit(Op.TEXT, key.column)
                self.resolve(writer.values, reader.values, node.child, f"{where}{{}}")

            self._block(node, writer.values, entry, least=1)
        else:
            assert isinstance(node, Leaf)
            self._leaf(writer, reader, node)

    def _record(self, writer: Record, reader: Record, node: Struct, where: str) -> None:
        if writer in self._records:
            raise SchemaError(f"record {writer.name} contains itself: recursive types are not supported")
        self._records.append(writer)
        there: set[str] = set()
        targets = _targets([one.name for one in writer.fields], reader)
        for one in writer.fields:
            target = targets.get(one.name)
            if target is None:
                self._skip(one.schema)
                continue
            wanted = reader.fields[target]
            there.add(wanted.name)
            self.resolve(one.schema, wanted.schema, node.children[target], _inner(where, wanted.name))
        self._records.pop()
        for wanted, child in zip(reader.fields, node.children, strict=True):
            if wanted.name in there:
                continue
            if wanted.default is NO_DEFAULT:
                raise SchemaError(
                    f"{_place(where)}: the writer's record {writer.name} has no field {wanted.name}, which has no "
                    "default in the reader's"
                )
            self._default(wanted.schema, child, wanted.default, _inner(where, wanted.name))

    def _block(self, node: Listing | None, items: Schema, write: Any, least: int = 0) -> None:
        """A loop over blocks of elements; without a node they are skipped."""
        least += self._least_bytes(items)
        if least == 0:
            raise SchemaError(f"an array of {describe(items)}, whose elements have no bytes, is not supported")
        self._open += 1
        self.depth = max(self.depth, self._open)
        block = self.emit(Op.BLOCK, 0, least)
        element = len(self.code)
        write()
        self.emit(Op.NEXT, element, block, -1 if node is None else node.space)
        self.code[block][1] = len(self.code)
        self._open -= 1
        if node is not None:
            self.emit(Op.END, node.ends, node.space)

    def _least_bytes(self, schema: Schema) -> int:
        """The fewest bytes that a value has."""
        if isinstance(schema, Fixed):
            return schema.size
        if isinstance(schema, Record):
            if schema in self._records:
                return 1  # it is refused when it is compiled
            self._records.append(schema)
            least = sum(self._least_bytes(one.schema) for one in schema.fields)
            self._records.pop()
            return least
        return _LEAST_BYTES.get(schema.kind, 1)

    def _leaf(self, writer: Schema, reader: Schema, node: Leaf) -> None:
        column, kind = node.column, writer.kind
        if isinstance(reader, Enum):
            assert isinstance(writer, Enum)
            default = -1 if reader.default is None else reader.symbols.index(reader.default)
            known = {symbol: number for number, symbol in enumerate(reader.symbols)}
            entry = self._entry(*(known.get(symbol, default) for symbol in writer.symbols))
            self.emit(Op.ENUM, column, len(writer.symbols), entry)
            return
        assert isinstance(reader, Primitive | Fixed)
        logical = reader.logical
        name = logical.name if logical is not None else ""
        if name == "decimal":
            assert logical is not None
            limit = 10**logical.precision
            size = writer.size if isinstance(writer, Fixed) else -1
            self.emit(Op.DECIMAL, column, size, self._entry(limit >> 64, limit & (2**64 - 1)))
        elif name == "duration":
            self.emit(Op.DURATION, column)
        elif isinstance(writer, Fixed):
            self.emit(Op.FIXED, column, writer.size)
        elif kind in _TEXTS:
            self.emit(Op.TEXT if reader.kind == "string" else Op.BYTES, column)
        elif kind == "boolean":
            self.emit(Op.BOOLEAN, column)
        elif kind == "float":
            self.emit(Op.FLOAT_AS_DOUBLE if node.type == _DOUBLE else Op.FLOAT, column)
        elif kind == "double":
            self.emit(Op.DOUBLE, column)
        elif node.type == _DOUBLE:
            self.emit(Op.INTEGER_AS_DOUBLE, column)
        elif node.type == _FLOAT:
            self.emit(Op.INTEGER_AS_FLOAT, column)
        else:
            bounds = _INT if kind == "int" else _LONG
            self.emit(Op.INTEGER, column, self._entry(*_RANGES.get(name, (1, *bounds))))

    # Fields that the reader does not have

    def _skip(self, schema: Schema) -> None:
        if isinstance(schema, Union):
            self._switch(schema.branches, self._skip)
        elif isinstance(schema, Record):
            if schema in self._records:
                raise SchemaError(f"record {schema.name} contains itself: recursive types are not supported")
            self._records.append(schema)
            for one in schema.fields:
                self._skip(one.schema)
            self._records.pop()
        elif isinstance(schema, Array):
            self._block(None, schema.items, lambda: self._skip(schema.items))
        elif isinstance(schema, Map):

            def entry() -> None:
                self.emit(Op.SKIP_BYTES)
                self._skip(schema.values)

            self._block(None, schema.values, entry, least=1)
        elif isinstance(schema, Fixed):
            self.emit(Op.SKIP, schema.size)
        elif schema.kind in _TEXTS:
            self.emit(Op.SKIP_BYTES)
        elif schema.kind in ("int", "long", "enum"):
            self.emit(Op.SKIP_INTEGER)
        elif schema.kind != "null":
            self.emit(Op.SKIP, {"boolean": 1, "float": 4, "double": 8}[schema.kind])


def misfit(writer: Schema, reader: Schema) -> str:
    """Why a value of ``writer`` is none of ``reader``, looked at from outside: neither is a union. Empty if it is one.

    The parts of records, arrays and maps are not compared.
    """
    plain = f"{describe(writer)} cannot be read as {describe(reader)}"
    if isinstance(reader, Record | Enum | Fixed):
        if writer.kind != reader.kind:
            return plain
        assert isinstance(writer, Record | Enum | Fixed)
        if simple_name(writer.name) not in {simple_name(reader.name), *map(simple_name, reader.aliases)}:
            return plain
        if isinstance(writer, Fixed) and isinstance(reader, Fixed) and writer.size != reader.size:
            return f"{plain}: it has {writer.size} bytes, not {reader.size}"
    elif writer.kind != reader.kind and (writer.kind, reader.kind) not in _PROMOTIONS:
        return plain
    ours = reader.logical if isinstance(reader, Primitive | Fixed) else None
    theirs = writer.logical if isinstance(writer, Primitive | Fixed) else None
    if ours is not None and theirs is not None and ours != theirs:
        return f"{plain}: its logical type is {_logical_text(theirs)}, not {_logical_text(ours)}"
    return ""


def best_branch(writer: Schema, reader: Union) -> Schema | None:
    """The branch of a reader's union for a writer's schema: one of its type, or else the first that it promotes to.

    Of several types with the writer's simple name it is the one with its namespace.
    """
    fitting = [branch for branch in reader.branches if not misfit(writer, branch)]
    if isinstance(writer, Record | Enum | Fixed):
        fitting.sort(key=lambda branch: getattr(branch, "name", "") != writer.name)
    for branch in fitting:
        if branch.kind == writer.kind:
            return branch
    return fitting[0] if fitting else None


def _targets(names: Sequence[str], reader: Record) -> dict[str, int]:
    """The reader's field for each of the writer's, at most one for each.

    Aliases go first, as in Avro for Java (``Schema.applyAliases``). Where two fields would then have one name, which
    Java refuses, the field that has the name itself is read, or else the first with an alias.
    """
    own = {one.name: number for number, one in enumerate(reader.fields)}
    renamed: dict[str, int] = {}
    for number, one in enumerate(reader.fields):
        for alias in one.aliases:
            renamed.setdefault(alias, number)
    kept = {name for name in names if name in own and name not in renamed}
    found: dict[str, int] = {}
    taken: set[int] = set()
    for name in names:
        target = renamed.get(name)
        if target is None or reader.fields[target].name in kept or target in taken:
            target = own.get(name)
        if target is not None and target not in taken:
            found[name] = target
            taken.add(target)
    return found


def _logical_text(logical: Any) -> str:
    return f"decimal({logical.precision},{logical.scale})" if logical.name == "decimal" else logical.name


def _place(where: str) -> str:
    return where or "the value"


def _inner(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def _signed(number: int) -> int:
    """The low 64 bits as a signed number."""
    low = number & (2**64 - 1)
    return low - 2**64 if low >= 2**63 else low
