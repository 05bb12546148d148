"""JSON as a format of values.

A value has the type of its field, or is null or missing; other fields are ignored. Numbers are not taken from text, nor
text from numbers. The types that JSON lacks are texts: dates and timestamps in ISO 8601 (in UTC without an offset),
bytes in base64, and ``NaN``, ``Infinity`` and ``-Infinity``. A decimal is a number or a text. ``1.0`` and ``1e2`` are
integers, as JSON Schema says.
"""

from __future__ import annotations

import json
import math
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, date, datetime
from decimal import MAX_PREC, Context, Decimal, InvalidOperation
from typing import Any, Final

import pyarrow as pa

from seglog.core.errors import InvalidRecordError
from seglog.core.extras import require
from seglog.records.column_encoding import ByteColumn
from seglog.values.casting import cast_column
from seglog.values.json.ddl import parse_ddl
from seglog.values.json.json_schema import parse_json_schema
from seglog.values.json.shapes import AnyJson, Entries, Items, Object, Plain, Shape, Unscaled, arrow_type, shape_of
from seglog.values.python_values import python_values, refuse_far
from seglog.values.schemas import Decode, DecodedColumn, SchemaError, SchemaText

Convert = Callable[[Any], Any]
_NUMBERS: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_ERRORS: Final = (ValueError, TypeError, OverflowError, RecursionError, InvalidOperation)
"""Raised by parsers and Arrow for a value that does not fit; Arrow's errors are of these classes."""
_INTEGERS: Final = (pa.int8(), pa.int16(), pa.int32(), pa.int64())
_DATE_LENGTH: Final = 10
_EXACT_FLOATS: Final = 2**53
"""All integers below are exact as floats."""
_MOST_DIGITS: Final = 20
"""More than any integer column has."""


_DECIMALS: Final = Context(prec=MAX_PREC)
_MOST_BYTES: Final = 64
"""The time to make a decimal of bytes grows with the square of their number."""
"""Moves the point of a decimal without rounding it."""


class _InexactError(ValueError):
    """A number that a float does not hold exactly: the value is parsed again."""


class JsonFormat:
    """Reads and writes values of the type that a DDL or a JSON Schema describes."""

    message: tuple[int, ...] | None = None

    def __init__(self, reader: SchemaText) -> None:
        text = reader.text.strip()
        if text.startswith("{"):
            shape = parse_json_schema(text, dict(reader.references))
            self._type = arrow_type(shape)
        else:
            self._type = parse_ddl(text)
            shape = shape_of(self._type)
        self._shape = shape
        self._convert = _reading(shape)
        self._loads = _exact_loads if _has(self._type, pa.types.is_decimal) else _fast_loads()

    @property
    def type(self) -> pa.DataType:
        return self._type

    def decoder(self, writer: SchemaText | None, message: tuple[int, ...]) -> Decode:
        """JSON describes itself: the writer's schema is not needed, but it must be one for JSON."""
        del message
        if writer is not None and writer.kind != "JSON":
            raise SchemaError(f"the value was written with a schema of type {writer.kind}")
        return self._decode

    def _decode(self, column: ByteColumn) -> DecodedColumn:
        values: list[Any] = []
        reasons: dict[int, str] = {}
        raw = column.data.data
        for row, (position, length) in enumerate(zip(*column.spans.tolist(), strict=True)):
            value = None
            if length >= 0:
                try:
                    value = self._value(raw[position : position + length])
                except _ERRORS as error:
                    reasons[row] = str(error)
            values.append(value)
        try:
            return DecodedColumn(pa.array(values, self._type), reasons)
        except _ERRORS:
            pass
        for row, value in enumerate(values):
            try:
                pa.array([value], self._type)
            except _ERRORS as error:
                values[row], reasons[row] = None, str(error)
        return DecodedColumn(pa.array(values, self._type), reasons)

    def _value(self, raw: memoryview) -> Any:
        convert = self._convert
        value = self._loads(raw)
        if convert is None or value is None:
            return value
        try:
            return convert(value)
        except _InexactError:
            return convert(_exact_loads(raw))

    def encode(self, column: pa.Array) -> pa.Array:
        """`InvalidRecordError` for a row with a date or a timestamp that `decoder` could not read."""
        cast = cast_column(column, self._type)
        return _write(python_values(cast, refuse_far), _writing(self._type, self._shape))


def write_json(column: pa.Array) -> pa.Array:
    """A column of any type as texts. Fields that are null are left out, and years beyond 9999 have a sign, as Spark's
    ``to_json`` does."""
    return _write(python_values(column, str), _writing(column.type, None))


def _write(values: Sequence[Any], convert: Convert | None) -> pa.Array:
    orjson = require("orjson", "formats", purpose="writing JSON")
    option = orjson.OPT_UTC_Z | orjson.OPT_NON_STR_KEYS
    out: list[bytes | None] = []
    for row, value in enumerate(values):
        try:
            done = convert(value) if convert is not None and value is not None else value
            out.append(None if value is None else orjson.dumps(done, option=option))
        except (TypeError, ValueError) as error:
            raise InvalidRecordError(f"row {row} cannot be written as JSON: {error}") from error
    return pa.array(out, pa.binary())


def _fast_loads() -> Callable[[memoryview], Any]:
    found: Callable[[memoryview], Any] = require("orjson", "formats", purpose="reading JSON").loads
    return found


def _exact_loads(raw: memoryview) -> Any:
    """Numbers with a point or an exponent are decimals."""
    return _EXACT.decode(str(raw, "utf-8"))


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is not JSON")


_EXACT: Final = json.JSONDecoder(parse_float=Decimal, parse_constant=_no_constant)


def _has(type_: pa.DataType, wanted: Callable[[pa.DataType], bool]) -> bool:
    if isinstance(type_, pa.StructType):
        return any(_has(one.type, wanted) for one in type_)
    if isinstance(type_, pa.MapType):
        return _has(type_.item_field.type, wanted)
    return _has(type_.value_type, wanted) if isinstance(type_, pa.ListType) else wanted(type_)


# Reading: what Arrow does not do by itself, or does for values that are not of the type


def _reading(shape: Shape) -> Convert | None:
    if isinstance(shape, Object):
        return _of_struct([(name, _reading(one)) for name, one in shape.fields.items()], keep_null=True)
    if isinstance(shape, Entries):
        return _pairs(_reading(shape.value))
    if isinstance(shape, Items):
        return _of_list(_reading(shape.element))
    if isinstance(shape, AnyJson):
        return _any_text
    if isinstance(shape, Unscaled):
        return lambda value: _unscaled(value, shape.scale)
    type_ = shape.type if isinstance(shape, Plain) else pa.string()
    if type_ in _INTEGERS:
        return _integer
    if pa.types.is_floating(type_):
        return _float
    if pa.types.is_decimal(type_):
        return _decimal
    if pa.types.is_date32(type_):
        return _date
    if pa.types.is_timestamp(type_):
        return _timestamp if type_ != pa.timestamp("us") else _local_timestamp
    return _binary if type_ == pa.binary() else None


def _of_struct(fields: list[tuple[str, Convert | None]], *, keep_null: bool) -> Convert:
    converted = [(name, convert) for name, convert in fields if convert is not None]

    def convert(value: Any) -> Any:
        if not isinstance(value, dict):
            raise TypeError(f"{_short(value)} is not an object")
        for name, inner in converted:
            one = value.get(name)
            if one is not None:
                value[name] = inner(one)
        return value if keep_null else {name: one for name, one in value.items() if one is not None}

    return convert


def _of_list(inner: Convert | None) -> Convert:
    def convert(value: Any) -> Any:
        if not isinstance(value, list):
            raise TypeError(f"{_short(value)} is not an array")
        return value if inner is None else [None if one is None else inner(one) for one in value]

    return convert


def _pairs(inner: Convert | None) -> Convert:
    def convert(value: Any) -> Any:
        if not isinstance(value, dict):
            raise TypeError(f"{_short(value)} is not an object")
        return [(key, one if one is None or inner is None else inner(one)) for key, one in value.items()]

    return convert


def _integer(value: Any) -> Any:
    if value.__class__ is int:
        return value
    if isinstance(value, float) and value.is_integer():
        if abs(value) >= _EXACT_FLOATS:
            raise _InexactError(f"{value} is not exact")
        return int(value)
    if isinstance(value, Decimal):
        if value.adjusted() >= _MOST_DIGITS:
            raise OverflowError(f"{_short(value)} is too large for an integer")
        if value % 1 == 0:
            return int(value)
    raise TypeError(f"{_short(value)} is not an integer")


def _any_text(value: Any) -> str:
    """A string as it is, other JSON as compact text with its numbers as they were written."""
    if isinstance(value, str):
        return value
    if _has_float(value):
        raise _InexactError(f"{_short(value)} has numbers that may not be exact")
    orjson = require("orjson", "formats", purpose="reading JSON")
    text: bytes = orjson.dumps(value, default=lambda number: orjson.Fragment(str(number)))
    return text.decode()


def _has_float(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_has_float, value.values()))
    return any(map(_has_float, value)) if isinstance(value, list) else isinstance(value, float)


def _float(value: Any) -> float:
    if isinstance(value, float):
        return value
    if isinstance(value, str) and value in _NUMBERS:
        return _NUMBERS[value]
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        raise TypeError(f"{_short(value)} is not a number")
    return float(value)


def _decimal(value: Any) -> Decimal:
    if isinstance(value, bool) or not isinstance(value, int | str | Decimal):
        raise TypeError(f"{_short(value)} is not a number")
    found = Decimal(value)
    if not found.is_finite():
        raise ValueError(f"{_short(value)} is not a number")
    return found


def _unscaled(value: Any, scale: int) -> Decimal:
    """A decimal of Connect (``Decimal.toLogical``)."""
    if not isinstance(value, str):
        return _decimal(value)
    data = _binary(value)
    if len(data) > _MOST_BYTES:
        raise ValueError(f"{_short(value)} has {len(data)} bytes: a decimal has {_MOST_BYTES} at the most")
    return Decimal(int.from_bytes(data, "big", signed=True)).scaleb(-scale, _DECIMALS)


def _date(value: Any) -> date:
    if not isinstance(value, str) or len(value) != _DATE_LENGTH:
        raise TypeError(f"{_short(value)} is not a date as 2013-01-31")
    return date.fromisoformat(value)


def _timestamp(value: Any) -> datetime:
    if not isinstance(value, str):
        raise TypeError(f"{_short(value)} is not a timestamp as 2013-01-31T12:00:00Z")
    found = _parsed(value)
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found


def _parsed(text: str) -> datetime:
    """RFC 3339 also allows a small ``t`` and ``z``."""
    return datetime.fromisoformat(text.upper() if text[-1:] == "z" or text[10:11] == "t" else text)


def _local_timestamp(value: Any) -> datetime:
    if not isinstance(value, str):
        raise TypeError(f"{_short(value)} is not a timestamp as 2013-01-31T12:00:00")
    found = _parsed(value)
    if found.tzinfo is not None:
        raise ValueError(f"{_short(value)} has an offset: a timestamp_ntz has none")
    return found


def _binary(value: Any) -> bytes:
    if not isinstance(value, str):
        raise TypeError(f"{_short(value)} is not base64")
    return b64decode(value, validate=True)


def _short(value: Any) -> str:
    text = str(value) if isinstance(value, Decimal) else repr(value)
    return f"{text[:60]}…" if len(text) > 60 else text


# Writing


def _writing(type_: pa.DataType, shape: Shape | None) -> Convert | None:
    """``shape`` is None for a column that no JSON Schema describes."""
    if isinstance(type_, pa.StructType):
        inner = shape.fields if isinstance(shape, Object) else {}
        return _of_struct([(one.name, _writing(one.type, inner.get(one.name))) for one in type_], keep_null=False)
    if isinstance(type_, pa.MapType):
        return _object(_writing(type_.item_field.type, shape.value if isinstance(shape, Entries) else None))
    if isinstance(type_, pa.ListType):
        return _of_list(_writing(type_.value_type, shape.element if isinstance(shape, Items) else None))
    if isinstance(shape, AnyJson):
        return _any_json
    if pa.types.is_floating(type_):
        return lambda value: value if math.isfinite(value) else _float_text(value)
    if type_ == pa.duration("us"):
        return str
    if pa.types.is_decimal(type_):
        fragment = require("orjson", "formats", purpose="writing JSON").Fragment
        return lambda value: fragment(f"{value:f}")
    return (lambda value: b64encode(value).decode()) if type_ == pa.binary() else None


def _any_json(text: str) -> Any:
    """The value that `_any_text` gives as ``text``: JSON if it is, or else a string."""
    orjson = require("orjson", "formats", purpose="writing JSON")
    try:
        is_string = isinstance(orjson.loads(text), str)
    except ValueError:
        is_string = True
    return text if is_string else orjson.Fragment(text)


def _float_text(value: float) -> str:
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _object(inner: Convert | None) -> Convert:
    def convert(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
        return {key: one if one is None or inner is None else inner(one) for key, one in pairs}

    return convert
