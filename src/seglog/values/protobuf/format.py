"""Protobuf as a format of values.

Unknown fields are ignored and missing ones have their default or are null, so that each version of a message reads the
others'. What the ids say is only used to see that a value is of the reader's message.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import chain
from operator import attrgetter
from typing import Any, Final

import numpy as np
import pyarrow as pa

from seglog.core.errors import InvalidRecordError
from seglog.core.extras import require
from seglog.core.types import MAX_INT64
from seglog.records import arrow_memory
from seglog.records.column_encoding import ByteColumn
from seglog.values.casting import cast_column
from seglog.values.protobuf.compiler import compile_schema
from seglog.values.protobuf.layout import (
    DURATION,
    ENUM,
    MESSAGE,
    SCALAR,
    TIMESTAMP,
    WRAPPER,
    Field,
    Message,
    Value,
    message_layout,
)
from seglog.values.python_values import python_values, refuse_far
from seglog.values.schemas import Decode, DecodedColumn, SchemaError, SchemaText

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICRO: Final = timedelta(microseconds=1)
_MIN_INT64: Final = -MAX_INT64 - 1
_ERRORS: Final = (ValueError, TypeError, OverflowError)
"""Raised by Arrow for a value that does not fit; its errors are of these classes."""


class ProtobufFormat:
    """Reads and writes values of one message."""

    def __init__(self, reader: SchemaText, record_name: str | None) -> None:
        """``record_name`` is the message's; None for the first of the schema."""
        factory: Any = require("google.protobuf.message_factory", "formats", purpose="reading Protobuf")
        self._decode_error = require("google.protobuf.message", "formats", purpose="reading Protobuf").DecodeError
        self._reader = reader
        self._compiled = compile_schema(reader)
        self._descriptor = self._compiled.named(record_name)
        self._layout = message_layout(self._descriptor)
        self._class: Any = factory.GetMessageClass(self._descriptor)

    @property
    def type(self) -> pa.DataType:
        return self._layout.type

    @property
    def message(self) -> tuple[int, ...] | None:
        return self._compiled.path_of(self._descriptor)

    def decoder(self, writer: SchemaText | None, message: tuple[int, ...]) -> Decode:
        if writer is None:
            return self._decode
        if writer.kind != "PROTOBUF":
            raise SchemaError(f"the value was written with a schema of type {writer.kind}")
        found = (self._compiled if writer == self._reader else compile_schema(writer)).at(message)
        if self._descriptor.full_name not in found:
            raise SchemaError(f"the value is a message {found[0]}, not {self._descriptor.full_name}")
        return self._decode

    def _decode(self, column: ByteColumn) -> DecodedColumn:
        messages: list[Any] = []
        reasons: dict[int, str] = {}
        parse, raw = self._class.FromString, column.data.data
        for row, (position, length) in enumerate(zip(*column.spans.tolist(), strict=True)):
            message = None
            if length >= 0:
                try:
                    message = parse(raw[position : position + length])
                    if not message.IsInitialized():
                        missing = ", ".join(message.FindInitializationErrors())
                        message, reasons[row] = None, f"required fields are missing: {missing}"
                except self._decode_error as error:
                    reasons[row] = f"the bytes are not a message {self._descriptor.full_name}: {error}"
            messages.append(message)
        try:
            return DecodedColumn(_structs(self._layout, messages), reasons)
        except _ERRORS:
            pass
        for row, message in enumerate(messages):
            try:
                _structs(self._layout, [message])
            except _ERRORS as error:
                messages[row], reasons[row] = None, str(error)
        return DecodedColumn(_structs(self._layout, messages), reasons)

    def encode(self, column: pa.Array) -> pa.Array:
        out: list[bytes | None] = []
        for row, value in enumerate(python_values(cast_column(column, self.type), refuse_far)):
            if value is None:
                out.append(None)
                continue
            message = self._class()
            try:
                _fill(message, self._layout, value)
                out.append(message.SerializeToString())
            except (*_ERRORS, KeyError) as error:
                raise InvalidRecordError(
                    f"row {row} does not fit the message {self._descriptor.full_name}: {error}"
                ) from error
        return pa.array(out, pa.binary())


# Reading


def _structs(layout: Message, messages: Sequence[Any]) -> pa.Array:
    """Messages as structs; None is null."""
    there = [one for one in messages if one is not None]
    arrays = [_column(field, there) for field in layout.fields]
    found = pa.Array.from_buffers(layout.type, len(there), [None], 0, children=arrays)
    if len(there) == len(messages):
        return found
    present = np.fromiter((one is not None for one in messages), np.bool_, len(messages))
    rows = np.cumsum(present) - 1
    return found.take(pa.array(rows, mask=~present))


def _column(field: Field, messages: Sequence[Any]) -> pa.Array:
    get = attrgetter(field.name)
    if not field.repeated:
        if not field.presence:
            return _values(field.value, list(map(get, messages)))
        name = field.name
        return _values(field.value, [get(one) if one.HasField(name) else None for one in messages])
    held = list(map(get, messages))
    offsets, ends = arrow_memory.allocate(len(held) + 1, np.int32)
    offsets[0] = 0
    np.cumsum([len(one) for one in held], out=offsets[1:])
    if field.key is None:
        child = _values(field.value, list(chain.from_iterable(held)))
    else:
        keys = _values(field.key, list(chain.from_iterable(held)))
        values = _values(field.value, [one[key] for one in held for key in one])
        assert isinstance(field.type, pa.MapType)
        entry = pa.struct([field.type.key_field, field.type.item_field])
        child = pa.Array.from_buffers(entry, len(keys), [None], 0, children=[keys, values])
    return pa.Array.from_buffers(field.type, len(held), [None, ends], 0, children=[child])


def _values(value: Value, items: list[Any]) -> pa.Array:
    if value.kind == MESSAGE:
        assert value.message is not None
        return _structs(value.message, items)
    if value.kind == ENUM:
        assert value.symbols is not None
        symbols = value.symbols
        items = [None if one is None else symbols.get(one) or str(one) for one in items]
    elif value.kind == WRAPPER:
        items = [None if one is None else one.value for one in items]
    elif value.kind in (TIMESTAMP, DURATION):
        items = [None if one is None else _micros(value.kind, one) for one in items]
    return pa.array(items, value.type)


def _micros(kind: str, message: Any) -> int:
    """A timestamp or a duration in the 64 bits of Arrow's."""
    found: int = message.seconds * 1_000_000 + message.nanos // 1000
    if not _MIN_INT64 <= found <= MAX_INT64:
        raise ValueError(f"the {kind} of {message.seconds} seconds is out of range: not seconds?")
    return found


# Writing


def _fill(message: Any, layout: Message, values: Mapping[str, Any]) -> None:
    for field in layout.fields:
        given = values[field.name]
        if given is None:
            continue
        value = field.value
        if field.key is not None:
            _fill_map(getattr(message, field.name), value, given)
        elif field.repeated:
            held = getattr(message, field.name)
            for one in given:
                if one is None:
                    raise ValueError(f"an element of {field.name} is null")
                if value.kind in (SCALAR, ENUM):
                    held.append(_scalar(value, one))
                else:
                    _fill_message(held.add(), value, one)
        elif value.kind in (SCALAR, ENUM):
            setattr(message, field.name, _scalar(value, given))
        else:
            inner = getattr(message, field.name)
            inner.SetInParent()
            _fill_message(inner, value, given)


def _fill_map(held: Any, value: Value, pairs: Sequence[tuple[Any, Any]]) -> None:
    for key, one in pairs:
        if one is None:
            raise ValueError(f"the value of {key!r} in a map is null")
        if value.kind in (SCALAR, ENUM):
            held[key] = _scalar(value, one)
        else:
            _fill_message(held[key], value, one)


def _fill_message(message: Any, value: Value, given: Any) -> None:
    if value.kind == WRAPPER:
        message.value = given
    elif value.kind == MESSAGE:
        assert value.message is not None
        _fill(message, value.message, given)
    else:
        micros = (given - _EPOCH if value.kind == TIMESTAMP else given) // _MICRO
        # Seconds and nanos of a duration have one sign.
        seconds = micros // 1_000_000 if micros >= 0 or value.kind == TIMESTAMP else -(-micros // 1_000_000)
        message.seconds, message.nanos = seconds, (micros - seconds * 1_000_000) * 1000


def _scalar(value: Value, given: Any) -> Any:
    if value.kind == ENUM:
        assert value.symbols is not None
        for number, name in value.symbols.items():
            if name == given:
                return number
        return int(given)
    return int(given) if value.type == pa.decimal128(20, 0) else given
