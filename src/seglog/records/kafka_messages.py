"""Kafka's generated messages without generated code: read and written by a schema.

A schema is a line of `seglog.records.kafka_schemas`. From it and a version a reader and a writer are made once: a list
of steps, of which each takes one field, or a run of numbers. Fields are named as in Kafka's schemas. Errors carry the
words that Java's classes use, since they end up in the output of DumpLogSegments.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import groupby
from operator import itemgetter
from typing import Any, Final, NamedTuple

from seglog.core.errors import InvalidRequestError
from seglog.core.types import Buffer
from seglog.core.utf8 import decode_utf8
from seglog.records.java_text import int32

Value = object
"""int, float, bool, str, bytes, None, a list of values, or a dict of field names to values."""

_FOREVER: Final = 1 << 15
_TOKEN: Final = re.compile(r"@\d+|=-?\w+|~\d+|[A-Za-z_]\w*(?:\[\])?|\d+\+?|[][{}:,?]")
_NUMBERS: Final[Mapping[str, str]] = {
    "int8": "b",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "int64": "q",
    "float64": "d",
    "bool": "?",
}
"""The `struct` codes of types with a fixed size."""
_INT8: Final = struct.Struct(">b")
_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_ZERO_UUID: Final = bytes(16)
_SHORT: Final = [bytes([length + 1]) for length in range(0x7F)]
"""The compact lengths of one byte."""
_UUID_SIZE: Final = 16
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


@dataclass(frozen=True, slots=True, eq=False)
class Message:
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

    def __init__(self, data: Buffer) -> None:
        self._data = bytes(data)
        self._at = 0

    @property
    def remaining(self) -> int:
        return len(self._data) - self._at

    def integer(self, type_: str) -> int:
        (value,), self._at = _unpack(struct.Struct(">" + _NUMBERS[type_]), self._data, self._at)
        return int(value)

    def unsigned_varint(self) -> int:
        value, self._at = _varint(self._data, self._at)
        return value

    def message(self, message: Message, version: int) -> dict[str, Value]:
        """As `read_message`, from here on."""
        values, self._at = message_reader(message, version)(self._data, self._at)
        return values


def read_message(message: Message, data: Buffer, version: int, at: int = 0) -> dict[str, Any]:
    """All fields of a message that begins at ``at``, those that ``version`` does not have with their defaults. Bytes
    after the last field are ignored, and so are unknown tagged fields, as Kafka does. Raises `MessageError`."""
    return message_reader(message, version)(bytes(data), at)[0]


def write_message(message: Message, values: Mapping[str, Any], version: int) -> bytes:
    """Fields that ``version`` does not have are left out, and tagged ones that have their default or are missing.

    Raises `InvalidRequestError` for a string that is too long for Kafka's format.
    """
    out = bytearray()
    message_writer(message, version)(out, values)
    return bytes(out)


# Reading. A step takes the bytes and a position, and returns a value and the position after it.

_Read = Callable[[bytes, int], tuple[Any, int]]
_Step = Callable[[bytes, int, dict[str, Any]], int]
"""Puts the values of one field, or of a run of numbers, into the dictionary; returns the position after them."""


@lru_cache(maxsize=1024)  # versions come from the data
def message_reader(message: Message, version: int) -> Callable[[bytes, int], tuple[dict[str, Any], int]]:
    """As `read_message`, for many messages of one version; also returns the position after the message."""
    is_flexible = version >= message.flexible
    defaults = {field.name: field.default for field in message.fields}
    there = [field for field in message.fields if field.tag is None and field.is_in(version)]
    steps = list(_read_steps(there, version, is_flexible=is_flexible))
    tagged = {
        field.tag: (field.name, _read_field(field, version, is_flexible=True) if field.is_in(version) else None)
        for field in message.fields
        if field.tag is not None
    }

    def read(data: bytes, at: int) -> tuple[dict[str, Any], int]:
        values = defaults.copy()
        for step in steps:
            at = step(data, at, values)
        if is_flexible:
            if at < len(data) and not data[at]:  # nearly always: no tagged fields
                return values, at + 1
            at = _read_tags(tagged, version, data, at, values)
        return values, at

    return read


def _read_steps(fields: Sequence[Field], version: int, *, is_flexible: bool) -> Iterator[_Step]:
    """Runs of numbers are read at once, other fields one by one."""
    for are_numbers, run in groupby(fields, _is_number):
        some = list(run)
        if are_numbers:
            yield _read_numbers([field.name for field in some], _form(some))
        else:
            for field in some:
                yield _put(field.name, _read_field(field, version, is_flexible=is_flexible))


def _read_numbers(names: Sequence[str], form: struct.Struct) -> _Step:
    unpack, size = form.unpack_from, form.size

    def read(data: bytes, at: int, values: dict[str, Any]) -> int:
        try:
            values.update(zip(names, unpack(data, at)))  # noqa: B905  # strict costs as much as the rest
        except struct.error:
            raise MessageError("null") from None
        return at + size

    def read_one(data: bytes, at: int, values: dict[str, Any]) -> int:
        try:
            (values[only],) = unpack(data, at)
        except struct.error:
            raise MessageError("null") from None
        return at + size

    only = names[0]
    return read_one if len(names) == 1 else read


def _put(name: str, read: _Read) -> _Step:
    def put(data: bytes, at: int, values: dict[str, Any]) -> int:
        values[name], at = read(data, at)
        return at

    return put


def _is_number(field: Field) -> bool:
    return not field.array and field.type in _NUMBERS


def _form(fields: Sequence[Field]) -> struct.Struct:
    return struct.Struct(">" + "".join(_NUMBERS[str(field.type)] for field in fields))


def _read_tags(
    tagged: Mapping[int, tuple[str, _Read | None]], version: int, data: bytes, at: int, values: dict[str, Any]
) -> int:
    count, at = _tag_count(data, at)
    for _ in range(count):
        tag, at = _varint(data, at)
        size, at = _varint(data, at)
        if tag not in tagged:
            at = _end(size, data, at)
            continue
        name, read = tagged[tag]
        if read is None:
            raise MessageError(f"Tag {tag} is not valid for version {version}")
        values[name], at = read(data, at)
    return at


def _tag_count(data: bytes, at: int) -> tuple[int, int]:
    count, at = _varint(data, at)
    if count < 0:
        raise MessageError(f"Invalid negative number of tagged fields {count}")
    if count > len(data) - at:
        raise MessageError(f"Tried to read {count} tagged fields, but there are only {len(data) - at} bytes remaining.")
    if count > _MAX_TAGS:
        raise MessageError(
            f"Tried to read {count} tagged fields, which exceeds the maximum allowed count of {_MAX_TAGS}."
        )
    return count, at


def _read_field(field: Field, version: int, *, is_flexible: bool) -> _Read:
    one = _read_one(field, version, is_flexible=is_flexible)
    if field.array:
        return _read_array(field, one, is_flexible=is_flexible)
    if not (isinstance(field.type, Message) and field.nullable):
        return one

    def read_struct(data: bytes, at: int) -> tuple[Any, int]:
        if field.tag is None:
            (mark,), at = _unpack(_INT8, data, at)
        else:
            mark, at = _varint(data, at)
            mark -= 1
        return (None, at) if mark < 0 else one(data, at)

    return read_struct


def _read_array(field: Field, one: _Read, *, is_flexible: bool) -> _Read:
    code = None if isinstance(field.type, Message) else _NUMBERS.get(field.type)

    def read_array(data: bytes, at: int) -> tuple[list[Any] | None, int]:
        count, at = _length(data, at, is_flexible=is_flexible)
        if count < 0:
            _check_nullable(field)
            return None, at
        if count > len(data) - at:
            raise MessageError(
                f"Tried to allocate a collection of size {count}, but there are only {len(data) - at} bytes remaining."
            )
        if count > _MAX_ELEMENTS:
            raise MessageError(
                f"Tried to read a collection of size {count}, "
                f"which exceeds the maximum allowed size of {_MAX_ELEMENTS}."
            )
        if code is not None:
            found, at = _unpack(struct.Struct(f">{count}{code}"), data, at)
            return list(found), at
        values = []
        for _ in range(count):
            value, at = one(data, at)
            values.append(value)
        return values, at

    return read_array


def _read_one(field: Field, version: int, *, is_flexible: bool) -> _Read:
    type_ = field.type
    if isinstance(type_, Message):
        if version > type_.highest:
            return _unreadable(f"Can't read version {version} of {type_.name}")
        return message_reader(type_, version)
    if type_ in _NUMBERS:
        form = struct.Struct(">" + _NUMBERS[type_])

        def read_number(data: bytes, at: int) -> tuple[Any, int]:
            (value,), at = _unpack(form, data, at)
            return value, at

        return read_number
    if type_ == "uuid":
        return _read_uuid
    if type_ == "string":
        return _read_compact_string(field) if is_flexible else _read_string(field)

    def read_bytes(data: bytes, at: int) -> tuple[bytes | None, int]:
        size, at = _length(data, at, is_flexible=is_flexible)
        if size < 0:
            _check_nullable(field)
            return None, at
        end = _end(size, data, at)
        return data[at:end], end

    return read_bytes


def _read_string(field: Field) -> _Read:
    unpack = _INT16.unpack_from

    def read(data: bytes, at: int) -> tuple[str | None, int]:
        try:
            (size,) = unpack(data, at)
        except struct.error:
            raise MessageError("null") from None
        at += 2
        if size < 0:
            _check_nullable(field)
            return None, at
        end = at + size
        if end > len(data):
            _end(size, data, at)
        return decode_utf8(data[at:end]), end

    return read


def _read_compact_string(field: Field) -> _Read:
    def read(data: bytes, at: int) -> tuple[str | None, int]:
        size, at = _length(data, at, is_flexible=True)
        if size < 0:
            _check_nullable(field)
            return None, at
        if size > _MAX_STRING:
            raise MessageError(f"string field {field.name} had invalid length {size}")
        end = at + size
        if end > len(data):
            _end(size, data, at)
        return decode_utf8(data[at:end]), end

    return read


def _unreadable(reason: str) -> _Read:
    def read(_data: bytes, _at: int) -> tuple[Any, int]:
        raise MessageError(reason)

    return read


def _read_uuid(data: bytes, at: int) -> tuple[bytes, int]:
    end = at + _UUID_SIZE
    if end > len(data):
        raise MessageError("null")
    return data[at:end], end


def _unpack(form: struct.Struct, data: bytes, at: int) -> tuple[tuple[Any, ...], int]:
    try:
        return form.unpack_from(data, at), at + form.size
    except struct.error:
        raise MessageError("null") from None  # Java's BufferUnderflowException has no message


def _length(data: bytes, at: int, *, is_flexible: bool) -> tuple[int, int]:
    """The length of bytes, an array or a compact string, negative for null."""
    if not is_flexible:
        (length,), at = _unpack(_INT32, data, at)
        return length, at
    if at < len(data) and data[at] < 0x80:  # nearly all
        return data[at] - 1, at + 1
    length, at = _varint(data, at)
    return length - 1, at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    if at < len(data) and data[at] < 0x80:  # nearly all
        return data[at], at + 1
    value = 0
    for shift in range(0, 35, 7):
        if at >= len(data):
            raise MessageError("null")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return int32(value), at
    raise MessageError(
        f"Varint is too long, the most significant bit in the 5th byte is set, converted value: {value & 0xFFFFFFFF:x}"
    )


def _end(size: int, data: bytes, at: int) -> int:
    """Where ``size`` bytes end."""
    if size < 0:
        raise MessageError(str(size))  # Java's NegativeArraySizeException says no more
    if size > len(data) - at:
        raise MessageError(f"Error reading byte array of {size} byte(s): only {len(data) - at} byte(s) available")
    return at + size


def _check_nullable(field: Field) -> None:
    if not field.nullable:
        raise MessageError(f"non-nullable field {field.name} was serialized as null")


# Writing. A step puts a value at the end.

_Write = Callable[[bytearray, Any], None]


@lru_cache(maxsize=1024)
def message_writer(message: Message, version: int) -> _Write:
    """As `write_message`, for many messages of one version, at the end of a bytearray."""
    write: _Write = _writer_code(message, version, by_name=True).function("out, values", "out += %s")
    return write


def record_writer(message: Message, version: int, head: bytes, *, by_name: bool) -> Callable[[Any], bytes]:
    """Writes messages of one version after ``head``. Without ``by_name`` a message is a sequence of its fields, none of
    which may be tagged."""
    code = _writer_code(message, version, by_name=by_name, head=head)
    write: Callable[[Any], bytes] = code.function("values", "return %s")
    return write


def _writer_code(message: Message, version: int, *, by_name: bool, head: bytes = b"") -> _WriterCode:
    """Python compiles the function from the schema, as it does for named tuples: a call for each field would cost more
    than the work in it."""
    is_flexible = version >= message.flexible
    code = _WriterCode(head, is_flexible=is_flexible)
    tagged = []
    for number, field in enumerate(message.fields):
        if not field.is_in(version):
            continue
        if field.tag is not None:
            tagged.append((field.tag, field.name, field.default, _write_field(field, version, is_flexible=True)))
            continue
        value = f"values[{field.name if by_name else number!r}]"
        if _is_number(field):
            code.number(_NUMBERS[str(field.type)], value)
        elif field.type == "string" and not field.array and not field.nullable:
            code.text(field.name, value)
        else:
            code.other(_write_field(field, version, is_flexible=is_flexible), value)
    code.end(sorted(tagged, key=itemgetter(0)))
    return code


class _WriterCode:
    """The statements of a writer, and the parts that it joins. Numbers that follow each other are packed at once, with
    the length of a string."""

    def __init__(self, head: bytes, *, is_flexible: bool) -> None:
        self._is_flexible = is_flexible
        self._lines: list[str] = []
        self._parts = [repr(head)] if head else []
        self._names: dict[str, Any] = {"refuse": _refuse, "length_of": _compact_length, "write_tags": _write_tags}
        self._codes = ""
        self._numbers: list[str] = []

    def number(self, code: str, value: str) -> None:
        self._codes += code
        self._numbers.append(value)

    def text(self, name: str, value: str) -> None:
        text = f"text{len(self._lines)}"
        self._lines.append(f"{text} = {value}.encode('utf-8', 'replace')")
        self._lines.append(f"if len({text}) > {_MAX_STRING}: refuse({name!r}, {text})")
        if self._is_flexible:
            self._pack()
            self._parts.append(f"length_of(len({text}))")
        else:
            self.number("h", f"len({text})")
            self._pack()
        self._parts.append(text)

    def other(self, write: _Write, value: str) -> None:
        self._pack()
        self._call(f"{self._name(write)}(%s, {value})")

    def end(self, tagged: Sequence[tuple[int, str, Value, _Write]]) -> None:
        self._pack()
        if tagged:
            defaults = [(name, self._name(default)) for _, name, default, _ in tagged]
            there = [f"values.get({name!r}, {default}) != {default}" for name, default in defaults]
            self._call(f"write_tags({self._name(tagged)}, %s, values)", f"if {' or '.join(there)}: ", "b'\\0'")
        elif self._is_flexible:
            self._parts.append("b'\\0'")

    def function(self, parameters: str, last: str) -> Any:
        """``last`` has ``%s`` for all the bytes."""
        parts = "".join(f"{part}, " for part in self._parts)
        source = "\n    ".join([f"def write({parameters}):", *self._lines, last % f"b''.join(({parts}))"])
        exec(source, self._names)  # noqa: S102  # all of it is of schemas
        return self._names["write"]

    def _call(self, call: str, condition: str = "", otherwise: str = "b''") -> None:
        """A part that a function appends to a bytearray."""
        part = f"part{len(self._lines)}"
        self._lines += [f"{part} = {otherwise}", f"{condition}{part} = bytearray(); {call % part}"]
        self._parts.append(part)

    def _pack(self) -> None:
        if self._numbers:
            pack = self._name(struct.Struct(f">{self._codes}").pack)
            self._parts.append(f"{pack}({', '.join(self._numbers)})")
            self._codes, self._numbers = "", []

    def _name(self, value: object) -> str:
        name = f"a{len(self._names)}"
        self._names[name] = value
        return name


def _compact_length(length: int) -> bytes:
    if length < len(_SHORT):
        return _SHORT[length]
    out = bytearray()
    _put_varint(out, length + 1)
    return bytes(out)


def _refuse(name: str, data: bytes) -> None:
    raise InvalidRequestError(
        f"{name} has {len(data)} bytes, which is too long for a record: the limit is {_MAX_STRING}"
    )


def _write_tags(tagged: Sequence[tuple[int, str, Value, _Write]], out: bytearray, values: Mapping[str, Any]) -> None:
    found = []
    for tag, name, default, write in tagged:
        value = values.get(name, default)
        if value != default:
            data = bytearray()
            write(data, value)
            found.append((tag, data))
    _put_varint(out, len(found))
    for tag, data in found:
        _put_varint(out, tag)
        _put_varint(out, len(data))
        out += data


def _write_field(field: Field, version: int, *, is_flexible: bool) -> _Write:
    one = _write_one(field, version, is_flexible=is_flexible)
    if field.array:
        return _write_array(field, one, is_flexible=is_flexible)
    if not (isinstance(field.type, Message) and field.nullable):
        return one
    null, there = (b"\xff", b"\x01") if field.tag is None else (b"\x00", b"\x01")

    def write_struct(out: bytearray, value: Any) -> None:
        if value is None:
            out += null
        else:
            out += there
            one(out, value)

    return write_struct


def _write_array(field: Field, one: _Write, *, is_flexible: bool) -> _Write:
    code = None if isinstance(field.type, Message) else _NUMBERS.get(field.type)

    def write_array(out: bytearray, values: Sequence[Any] | None) -> None:
        _put_length(out, _INT32, -1 if values is None else len(values), is_flexible=is_flexible)
        if not values:
            return
        if code is not None:
            out += struct.pack(f">{len(values)}{code}", *values)
        else:
            for value in values:
                one(out, value)

    return write_array


def _write_one(field: Field, version: int, *, is_flexible: bool) -> _Write:
    type_ = field.type
    if isinstance(type_, Message):
        return message_writer(type_, version)
    if type_ in _NUMBERS:
        form = struct.Struct(">" + _NUMBERS[type_])

        def write_number(out: bytearray, value: Any) -> None:
            out += form.pack(value)

        return write_number
    if type_ == "uuid":
        return _write_uuid

    def write_bytes(out: bytearray, value: bytes | None) -> None:
        _put_length(out, _INT32, -1 if value is None else len(value), is_flexible=is_flexible)
        out += value or b""

    def write_string(out: bytearray, value: str | None) -> None:
        if value is None:
            _put_length(out, _INT16, -1, is_flexible=is_flexible)
            return
        data = value.encode("utf-8", "replace")
        if len(data) > _MAX_STRING:
            _refuse(field.name, data)
        _put_length(out, _INT16, len(data), is_flexible=is_flexible)
        out += data

    return write_string if type_ == "string" else write_bytes


def _write_uuid(out: bytearray, value: bytes) -> None:
    out += value


def _put_length(out: bytearray, form: struct.Struct, length: int, *, is_flexible: bool) -> None:
    if not is_flexible:
        out += form.pack(length)
    elif length < 0x7F:
        out.append(length + 1)
    else:
        _put_varint(out, length + 1)


def _put_varint(out: bytearray, value: int) -> None:
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
