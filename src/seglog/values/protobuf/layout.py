"""The Arrow type of a Protobuf message.

===============================  ===============================================================
Protobuf                         Arrow
===============================  ===============================================================
double, float, bool, string      the same; bytes: binary
int32, sint32, sfixed32          int32; uint32, fixed32: int64
int64, sint64, sfixed64          int64; uint64, fixed64: decimal(20, 0)
enum                             string: the name of the number, or the number if it has none
message                          struct
repeated, map                    list, map
google.protobuf.Timestamp        timestamp, Duration: duration
google.protobuf.…Value           the type that is wrapped
===============================  ===============================================================

A field with presence (optional, oneof, message, wrapper) is null if it is not set; one without has its default.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from seglog.values.schemas import SchemaError

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, FieldDescriptor

SCALAR, ENUM, MESSAGE, TIMESTAMP, DURATION, WRAPPER = "scalar", "enum", "message", "timestamp", "duration", "wrapper"
_UNSIGNED_64: Final = pa.decimal128(20, 0)
_WELL_KNOWN: Final = {"google.protobuf.Timestamp": TIMESTAMP, "google.protobuf.Duration": DURATION}
_WRAPPERS: Final = frozenset(
    f"google.protobuf.{kind}Value"
    for kind in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)
_TYPES: Final = {
    "double": pa.float64(), "float": pa.float32(), "bool": pa.bool_(), "string": pa.string(), "bytes": pa.binary(),
    "int32": pa.int32(), "sint32": pa.int32(), "sfixed32": pa.int32(), "uint32": pa.int64(), "fixed32": pa.int64(),
    "int64": pa.int64(), "sint64": pa.int64(), "sfixed64": pa.int64(), "uint64": _UNSIGNED_64, "fixed64": _UNSIGNED_64,
}  # fmt: skip
_NAMES: Final = (
    "", "double", "float", "int64", "uint64", "int32", "fixed64", "fixed32", "bool", "string", "group", "message",
    "bytes", "uint32", "enum", "sfixed32", "sfixed64", "sint32", "sint64",
)  # fmt: skip
"""By number (``FieldDescriptorProto.Type``)."""


@dataclass(frozen=True, slots=True)
class Value:
    """One value: of a field, an element or a map's entry. ``symbols`` are an enum's names by number."""

    kind: str
    type: pa.DataType
    symbols: dict[int, str] | None = None
    message: Message | None = None


@dataclass(frozen=True, slots=True)
class Field:
    """``key`` is that of a map; ``value`` is what an element or entry has if the field is ``repeated``."""

    name: str
    type: pa.DataType
    value: Value
    repeated: bool
    presence: bool
    key: Value | None = None


@dataclass(frozen=True, slots=True)
class Message:
    fields: tuple[Field, ...]

    @property
    def type(self) -> pa.DataType:
        return pa.struct([pa.field(one.name, one.type) for one in self.fields])


def message_layout(message: Descriptor, open_: tuple[str, ...] = (), where: str = "") -> Message:
    """The layout of a message. `SchemaError` names what is not supported, and where."""
    if message.full_name in open_:
        raise SchemaError(
            f"message {message.full_name} contains itself (at {where}): recursive types are not supported"
        )
    if not message.fields:
        place = f" (at {where})" if where else ""
        raise SchemaError(f"message {message.full_name} has no field{place}, which Spark's structs must have")
    inner = (*open_, message.full_name)
    return Message(tuple(_field(one, inner, f"{where}.{one.name}" if where else one.name) for one in message.fields))


def _field(field: FieldDescriptor, open_: tuple[str, ...], where: str) -> Field:
    nested: Any = field.message_type
    if nested is not None and nested.GetOptions().map_entry:
        key = _value(nested.fields_by_name["key"], open_, where)
        value = _value(nested.fields_by_name["value"], open_, where)
        return Field(field.name, pa.map_(key.type, value.type), value, repeated=True, presence=False, key=key)
    value = _value(field, open_, where)
    if field.is_repeated:
        return Field(field.name, pa.list_(pa.field("element", value.type)), value, repeated=True, presence=False)
    return Field(field.name, value.type, value, repeated=False, presence=field.has_presence)


def _value(field: FieldDescriptor, open_: tuple[str, ...], where: str) -> Value:
    name = _NAMES[field.type]
    if name == "enum":
        return Value(ENUM, pa.string(), {one.number: one.name for one in reversed(field.enum_type.values)})
    if name == "message":
        full = field.message_type.full_name
        if full in _WRAPPERS:
            return Value(WRAPPER, _TYPES[_NAMES[field.message_type.fields_by_name["value"].type]])
        kind = _WELL_KNOWN.get(full)
        if kind is not None:
            return Value(kind, pa.timestamp("us", tz="UTC") if kind == TIMESTAMP else pa.duration("us"))
        layout = message_layout(field.message_type, open_, where)
        return Value(MESSAGE, layout.type, message=layout)
    if name not in _TYPES:
        raise SchemaError(f"a {name} is not supported (at {where})")
    return Value(SCALAR, _TYPES[name])
