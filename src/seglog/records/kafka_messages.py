"""Kafka's generated messages without generated code: read by a schema, and shown as Kafka's ``JsonConverter`` does.

A schema is a line of `seglog.records.kafka_schemas`. Errors carry the words that Java's classes use, since they end up
in the output of DumpLogSegments.
"""

from __future__ import annotations

import re
import struct
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Mapping
from decimal import Decimal
from functools import cache
from typing import Final, NamedTuple

from seglog.core.utf8 import decode_utf8
from seglog.records.java_text import int32

Value = object
"""int, float, bool, str, bytes, None, a list of values, or a dict of field names to values."""

_FOREVER: Final = 1 << 15
_TOKEN: Final = re.compile(r"@\d+|=-?\w+|~\d+|[A-Za-z_]\w*(?:\[\])?|\d+\+?|[][{}:,?]")
_NUMBERS: Final[Mapping[str, struct.Struct]] = {
    "int8": struct.Struct(">b"),
    "int16": struct.Struct(">h"),
    "uint16": struct.Struct(">H"),
    "int32": struct.Struct(">i"),
    "int64": struct.Struct(">q"),
    "float64": struct.Struct(">d"),
    "bool": struct.Struct(">?"),
}
_ZERO_UUID: Final = bytes(16)
_MAX_STRING: Final = 0x7FFF
_MAX_TAGS: Final = 10_000
_MAX_ELEMENTS: Final = 1_000_000


class MessageError(Exception):
    """The bytes are not such a message; the text is Java's."""


class Field(NamedTuple):
    """A field: its type's name or struct, whether it is an array of those, and in which versions it is there."""

    name: str
    type: str | Message
    array: bool
    nullable: bool
    since: int
    until: int
    tag: int | None
    default: Value

    def is_in(self, version: int) -> bool:
        """Generated code asks nothing of a version where a field is there from 0 on; so do we, if it is negative."""
        return (self.since <= version or self.since == 0) and version <= self.until


class Message(NamedTuple):
    """A message or a struct in one. ``flexible``: from which version on it has compact lengths and tagged fields."""

    name: str
    id: int
    highest: int
    flexible: int
    fields: tuple[Field, ...]


@cache
def parse_schemas(text: str) -> dict[int, Message]:
    """The messages of one table of `seglog.records.kafka_schemas`, by id."""
    lines = re.sub(r"\n +", " ", text).splitlines()
    messages = (_Parser(line).message() for line in lines)
    return {message.id: message for message in messages}


class _Parser:
    """Reads one line of the notation."""

    def __init__(self, line: str) -> None:
        self._tokens = _TOKEN.findall(line)
        self._at = 0
        self._structs: dict[str, Message] = {}
        self._highest = 0
        self._flexible = _FOREVER

    def message(self) -> Message:
        id_, name = int(self._next()), self._next()
        self._highest = int(self._next())
        if self._peek().startswith("~"):
            self._flexible = int(self._next()[1:])
        self._expect(":")
        return Message(name, id_, self._highest, self._flexible, self._fields(""))

    def _fields(self, end: str) -> tuple[Field, ...]:
        fields: list[Field] = []
        while self._peek() != end:
            if fields:
                self._expect(",")
            fields.append(self._field())
        return tuple(fields)

    def _field(self) -> Field:
        name, word = self._next(), self._next()
        type_: str | Message = word.removesuffix("[]")
        array = word.endswith("[]") or word == "["
        if word in ("[", "{"):
            type_ = self._struct("]" if array else "}")
        nullable = self._take("?")
        since, until, tag, default = 0, _FOREVER, None, _default(type_, array=array)
        if self._peek()[:1].isdigit():
            word = self._next()
            since = int(word.removesuffix("+"))
            until = _FOREVER if word.endswith("+") else since
        if self._peek().startswith("@"):
            tag = int(self._next()[1:])
        if self._peek().startswith("="):
            word = self._next()[1:]
            default = None if word == "null" else int(word)
        return Field(name, type_, array, nullable, since, until, tag, default)

    def _struct(self, end: str) -> Message:
        name = self._next()
        if self._take(":"):
            self._structs[name] = Message(name, -1, self._highest, self._flexible, self._fields(end))
        self._expect(end)
        return self._structs[name]

    def _peek(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _next(self) -> str:
        token = self._peek()
        self._at += 1
        return token

    def _take(self, token: str) -> bool:
        found = self._peek() == token
        self._at += found
        return found

    def _expect(self, token: str) -> None:
        if not self._take(token):
            raise ValueError(f"schema: {token!r} expected before {self._tokens[self._at :][:5]}")


def _default(type_: str | Message, *, array: bool) -> Value:
    if array:
        return []
    if isinstance(type_, Message):
        return {field.name: field.default for field in type_.fields}
    return {"string": "", "uuid": _ZERO_UUID, "bytes": b"", "bool": False}.get(type_, 0)


class MessageReader:
    """Takes values off the front of some bytes."""

    __slots__ = ("_at", "_data")

    def __init__(self, data: bytes | memoryview) -> None:
        self._data = bytes(data)
        self._at = 0

    @property
    def remaining(self) -> int:
        return len(self._data) - self._at

    def number(self, type_: str) -> int | float | bool:
        packing = _NUMBERS[type_]
        try:
            (value,) = packing.unpack_from(self._data, self._at)
        except struct.error:
            raise MessageError("null") from None  # Java's BufferUnderflowException has no message
        self._at += packing.size
        number: int | float | bool = value
        return number

    def integer(self, type_: str) -> int:
        return int(self.number(type_))

    def unsigned_varint(self) -> int:
        value = 0
        for shift in range(0, 35, 7):
            byte = self.integer("int8") & 0xFF
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return int32(value)
        raise MessageError(
            "Varint is too long, the most significant bit in the 5th byte is set, "
            f"converted value: {value & 0xFFFFFFFF:x}"
        )

    def array(self, size: int) -> bytes:
        if size < 0:
            raise MessageError(str(size))  # Java's NegativeArraySizeException says no more
        if size > self.remaining:
            raise MessageError(f"Error reading byte array of {size} byte(s): only {self.remaining} byte(s) available")
        self._at += size
        return self._data[self._at - size : self._at]


def read_message(message: Message, reader: MessageReader, version: int) -> dict[str, Value]:
    """All fields of a message, those that ``version`` does not have with their defaults."""
    is_flexible = version >= message.flexible
    values: dict[str, Value] = {}
    for field in message.fields:
        if field.tag is None and field.is_in(version):
            values[field.name] = _read_field(field, reader, version, is_flexible=is_flexible)
        else:
            values[field.name] = field.default
    if is_flexible:
        tagged = {field.tag: field for field in message.fields if field.tag is not None}
        for _ in range(_tag_count(reader)):
            tag, size = reader.unsigned_varint(), reader.unsigned_varint()
            known = tagged.get(tag)
            if known is None:
                reader.array(size)
            elif not known.is_in(version):
                raise MessageError(f"Tag {tag} is not valid for version {version}")
            else:
                values[known.name] = _read_field(known, reader, version, is_flexible=True)
    return values


def _tag_count(reader: MessageReader) -> int:
    count = reader.unsigned_varint()
    if count < 0:
        raise MessageError(f"Invalid negative number of tagged fields {count}")
    if count > reader.remaining:
        raise MessageError(
            f"Tried to read {count} tagged fields, but there are only {reader.remaining} bytes remaining."
        )
    if count > _MAX_TAGS:
        raise MessageError(
            f"Tried to read {count} tagged fields, which exceeds the maximum allowed count of {_MAX_TAGS}."
        )
    return count


def _read_field(field: Field, reader: MessageReader, version: int, *, is_flexible: bool) -> Value:
    if field.array:
        count = reader.unsigned_varint() - 1 if is_flexible else reader.integer("int32")
        if _is_null(field, count):
            return None
        if count > reader.remaining:
            raise MessageError(
                f"Tried to allocate a collection of size {count}, "
                f"but there are only {reader.remaining} bytes remaining."
            )
        if count > _MAX_ELEMENTS:
            raise MessageError(
                f"Tried to read a collection of size {count}, "
                f"which exceeds the maximum allowed size of {_MAX_ELEMENTS}."
            )
        return [_read_one(field, reader, version, is_flexible=is_flexible) for _ in range(count)]
    if isinstance(field.type, Message) and field.nullable:
        mark = reader.integer("int8") if field.tag is None else reader.unsigned_varint() - 1
        if mark < 0:
            return None
    return _read_one(field, reader, version, is_flexible=is_flexible)


def _read_one(field: Field, reader: MessageReader, version: int, *, is_flexible: bool) -> Value:
    type_ = field.type
    if isinstance(type_, Message):
        if version > type_.highest:
            raise MessageError(f"Can't read version {version} of {type_.name}")
        return read_message(type_, reader, version)
    if type_ in _NUMBERS:
        return reader.number(type_)
    if type_ == "uuid":
        if reader.remaining < len(_ZERO_UUID):
            raise MessageError("null")
        return reader.array(len(_ZERO_UUID))
    size = reader.unsigned_varint() - 1 if is_flexible else reader.integer("int16" if type_ == "string" else "int32")
    if _is_null(field, size):
        return None
    if type_ == "bytes":
        return reader.array(size)
    if size > _MAX_STRING:
        raise MessageError(f"string field {field.name} had invalid length {size}")
    return decode_utf8(reader.array(size))


def _is_null(field: Field, length: int) -> bool:
    if length >= 0:
        return False
    if not field.nullable:
        raise MessageError(f"non-nullable field {field.name} was serialized as null")
    return True


def to_json(message: Message, values: Mapping[str, Value], version: int) -> dict[str, Value]:
    """The value for `json_text`: the fields of ``version``; tagged ones only if they differ from the default."""
    shown: dict[str, Value] = {}
    for field in message.fields:
        value = values[field.name]
        if field.is_in(version) and (field.tag is None or value != field.default):
            shown[field.name] = _field_to_json(field, value, version)
    return shown


def _field_to_json(field: Field, value: Value, version: int) -> Value:
    if isinstance(value, list):
        return [_field_to_json(field, one, version) for one in value]
    if isinstance(value, dict) and isinstance(field.type, Message):
        return to_json(field.type, value, version)
    if isinstance(value, bytes):
        return urlsafe_b64encode(value).rstrip(b"=").decode() if field.type == "uuid" else b64encode(value).decode()
    return value


def json_text(value: Value) -> str:
    """JSON as Jackson writes a tree: no blanks, control characters as upper-case escapes, Java's floats."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{_quoted(name)}:{json_text(one)}" for name, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(json_text, value)) + "]"
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return java_double(value)
    return "null" if value is None else str(value)


_ESCAPED: Final = re.compile(r'["\\\x00-\x1f]')
_SHORT_ESCAPES: Final[Mapping[str, str]] = {
    '"': '\\"', "\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t",
}  # fmt: skip


def _quoted(text: str) -> str:
    return f'"{_ESCAPED.sub(_escape, text)}"'


def _escape(match: re.Match[str]) -> str:
    return _SHORT_ESCAPES.get(match[0], f"\\u{ord(match[0]):04X}")


def java_double(value: float) -> str:
    """``Double.toString``.

    >>> [java_double(x) for x in (1024.0, 1e7, 1.5e-5, float("inf"), float("nan"))]
    ['1024.0', '1.0E7', '1.5E-5', 'Infinity', 'NaN']
    """
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "Infinity" if value > 0 else "-Infinity"
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return repr(value)
    number = Decimal(repr(value))
    digits = "".join(map(str, number.as_tuple().digits)).rstrip("0")
    return f"{'-' if value < 0 else ''}{digits[0]}.{digits[1:] or '0'}E{number.adjusted()}"
