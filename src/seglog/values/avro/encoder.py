"""Arrow columns as Avro: each part of a schema turns a column into the bytes of each row, and records join them."""

from __future__ import annotations

import struct
from typing import Any, Final
from uuid import UUID

import pyarrow as pa

from seglog.core.errors import InvalidRecordError
from seglog.values.avro.schema import Array, Enum, Fixed, Map, Primitive, Record, Schema, Union

Parts = list[bytes | None]
"""The bytes of each row; None where it is null."""
_FLOAT: Final = struct.Struct("<f").pack
_DOUBLE: Final = struct.Struct("<d").pack
_DURATION: Final = struct.Struct("<III").pack
_INT: Final = (-(2**31), 2**31 - 1)
_DIVISORS: Final = {
    "time-millis": 1_000_000,
    "time-micros": 1000,
    "timestamp-millis": 1000,
    "local-timestamp-millis": 1000,
}
"""How many of Arrow's units one of Avro's has."""


def encode_column(schema: Schema, column: pa.Array, where: str = "the value") -> Parts:
    """The rows of ``column``, which has the type of the schema's layout, as Avro.

    `InvalidRecordError` names the field whose null or value the schema does not allow.
    """
    if isinstance(schema, Union):
        return _union(schema, column, where)
    if isinstance(schema, Record):
        return _record(schema, column, where)
    if isinstance(schema, Array | Map):
        return _elements(schema, column, where)
    return _leaf(schema, column, where)


def long_bytes(number: int) -> bytes:
    """A zig-zag varint.

    >>> long_bytes(-1), long_bytes(64)
    (b'\\x01', b'\\x80\\x01')
    """
    raw = number << 1 if number >= 0 else (~number << 1) | 1
    if raw < 0x80:
        return _SMALL[raw]
    out = bytearray()
    while raw > 0x7F:
        out.append((raw & 0x7F) | 0x80)
        raw >>= 7
    out.append(raw)
    return bytes(out)


_SMALL: Final = [bytes([number]) for number in range(0x80)]


def _record(schema: Record, column: pa.Array, where: str) -> Parts:
    assert isinstance(column, pa.StructArray)
    children = column.flatten()
    names = [f"{where}.{one.name}" if where != "the value" else one.name for one in schema.fields]
    parts = [
        encode_column(one.schema, child, name) for one, child, name in zip(schema.fields, children, names, strict=True)
    ]
    valid = column.is_valid().to_pylist()
    out: Parts = []
    for row, (fields, is_valid) in enumerate(zip(zip(*parts, strict=True), valid, strict=True)):
        if not is_valid:
            out.append(None)
            continue
        if None in fields:
            raise InvalidRecordError(f"row {row}: {names[fields.index(None)]} is null, which its schema does not allow")
        out.append(b"".join(fields))
    return out


def _elements(schema: Array | Map, column: pa.Array, where: str) -> Parts:
    """Arrays and maps: one block of all elements, and the block without elements that ends them."""
    assert isinstance(column, pa.ListArray)
    if isinstance(schema, Map):
        assert isinstance(column, pa.MapArray)
        keys = _leaf(Primitive("string"), column.keys, where)
        values = encode_column(schema.values, column.items, f"{where}{{}}")
        items: Parts = [
            None if key is None or value is None else key + value for key, value in zip(keys, values, strict=True)
        ]
    else:
        items = encode_column(schema.items, column.values, f"{where}[]")
    offsets = column.offsets.to_pylist()
    out: Parts = []
    for row, is_valid in enumerate(column.is_valid().to_pylist()):
        if not is_valid:
            out.append(None)
            continue
        chosen = items[offsets[row] : offsets[row + 1]]
        whole = [one for one in chosen if one is not None]
        if len(whole) < len(chosen):
            raise InvalidRecordError(f"row {row}: {where} has a null element, which its schema does not allow")
        out.append(long_bytes(len(whole)) + b"".join(whole) + b"\0" if whole else b"\0")
    return out


def _union(schema: Union, column: pa.Array, where: str) -> Parts:
    branches = schema.branches
    there = [number for number, branch in enumerate(branches) if branch.kind != "null"]
    null = next((long_bytes(number) for number, branch in enumerate(branches) if branch.kind == "null"), None)
    if len(there) == 1:
        (number,) = there
        prefix = long_bytes(number)
        return [null if part is None else prefix + part for part in encode_column(branches[number], column, where)]
    if not pa.types.is_struct(column.type):  # numbers of two widths are one column of the wider
        number = max(there, key=lambda one: branches[one].kind in ("long", "double"))
        prefix = long_bytes(number)
        return [null if part is None else prefix + part for part in encode_column(branches[number], column, where)]
    assert isinstance(column, pa.StructArray)
    children = zip(there, column.flatten(), strict=True)
    members = [encode_column(branches[number], child, where) for number, child in children]
    prefixes = [long_bytes(number) for number in there]
    out: Parts = []
    for row, parts in enumerate(zip(*members, strict=True)):
        filled = [prefix + part for prefix, part in zip(prefixes, parts, strict=True) if part is not None]
        if len(filled) > 1:
            raise InvalidRecordError(f"row {row}: {where} has {len(filled)} members of its union: one may be set")
        out.append(filled[0] if filled else null)
    return out


def _leaf(schema: Schema, column: pa.Array, where: str) -> Parts:
    if isinstance(schema, Enum):
        symbols = {symbol: long_bytes(number) for number, symbol in enumerate(schema.symbols)}
        return [None if one is None else _symbol(symbols, one, schema, where) for one in column.to_pylist()]
    assert isinstance(schema, Primitive | Fixed)
    name = schema.logical.name if schema.logical is not None else ""
    if name == "decimal":
        return _decimals(schema, column)
    if name == "duration":
        return [None if one is None else _duration(one, where) for one in column.to_pylist()]
    if name == "uuid" and schema.kind == "fixed":
        return [None if one is None else _uuid(one, where) for one in column.to_pylist()]
    if isinstance(schema, Fixed):
        return [None if one is None else _sized(one, schema, where) for one in column.to_pylist()]
    if schema.kind == "string":
        return [None if one is None else long_bytes(len(raw := one.encode())) + raw for one in column.to_pylist()]
    if schema.kind == "bytes":
        return [None if one is None else long_bytes(len(one)) + one for one in column.to_pylist()]
    if schema.kind == "boolean":
        return [None if one is None else b"\1" if one else b"\0" for one in column.to_pylist()]
    if schema.kind == "float":
        return [None if one is None else _FLOAT(one) for one in column.to_pylist()]
    if schema.kind == "double":
        return [None if one is None else _DOUBLE(one) for one in column.to_pylist()]
    return _integers(column, _DIVISORS.get(name, 1), is_int=schema.kind == "int", where=where)


def _integers(column: pa.Array, divisor: int, *, is_int: bool, where: str) -> Parts:
    numbers = (
        column
        if pa.types.is_integer(column.type)
        else column.view(pa.int32() if column.type.bit_width == 32 else pa.int64())
    )
    found = numbers.to_pylist()
    if divisor > 1:
        found = [None if one is None else one // divisor for one in found]
    if is_int:
        bad = next((one for one in found if one is not None and not _INT[0] <= one <= _INT[1]), None)
        if bad is not None:
            raise InvalidRecordError(f"{where}: {bad} does not fit an int")
    return [None if one is None else long_bytes(one) for one in found]


def _decimals(schema: Primitive | Fixed, column: pa.Array) -> Parts:
    assert schema.logical is not None
    scale = schema.logical.scale
    out: Parts = []
    for one in column.to_pylist():
        if one is None:
            out.append(None)
            continue
        number = int(one.scaleb(scale))
        if isinstance(schema, Fixed):
            out.append(number.to_bytes(schema.size, "big", signed=True))
        else:
            raw = number.to_bytes((number + (number < 0)).bit_length() // 8 + 1, "big", signed=True)
            out.append(long_bytes(len(raw)) + raw)
    return out


def _symbol(symbols: dict[str, bytes], text: str, schema: Enum, where: str) -> bytes:
    if text not in symbols:
        raise InvalidRecordError(f"{where}: {text!r} is not a symbol of enum {schema.name}")
    return symbols[text]


def _sized(raw: bytes, schema: Fixed, where: str) -> bytes:
    if len(raw) != schema.size:
        raise InvalidRecordError(f"{where}: {len(raw)} bytes, not the {schema.size} of fixed {schema.name}")
    return raw


def _uuid(text: str, where: str) -> bytes:
    try:
        return UUID(text).bytes
    except ValueError:
        raise InvalidRecordError(f"{where}: {text!r} is not a UUID") from None


def _duration(parts: dict[str, Any], where: str) -> bytes:
    try:
        return _DURATION(parts["months"], parts["days"], parts["milliseconds"])
    except (struct.error, TypeError):
        raise InvalidRecordError(f"{where}: months, days and milliseconds are 0 to 4294967295 each") from None
