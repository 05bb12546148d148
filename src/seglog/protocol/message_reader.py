"""Decodes requests of any version into one shape, by kio's schemas but without kio's reader.

kio's reader trusts an array's length before it checks the rest of the buffer: five bytes make it allocate 32 GB, and
the process ends (kio 0.6.5). Here every length and count is checked against the bytes left, and one request may have
`MAX_ELEMENTS` array elements in all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from itertools import groupby
from struct import Struct
from types import SimpleNamespace
from typing import Any, Final

from seglog.core.errors import InvalidRequestError
from seglog.protocol.schema import MISSING, FieldSpec, fields_of
from seglog.protocol.wire import NUMBERS, WireReader

Message = SimpleNamespace
"""A decoded message with the newest version's field names. Times are milliseconds, codes ints, ids UUIDs or None."""

MAX_ELEMENTS: Final = 1_000_000
"""An element takes some 300 bytes of memory, and may take only two bytes of the request."""

_FIXED: Final[Mapping[str, int]] = {
    "bool": 1,
    "int8": 1,
    "int16": 2,
    "uint16": 2,
    "error_code": 2,
    "int32": 4,
    "timedelta_i32": 4,
    "int64": 8,
    "float64": 8,
    "timedelta_i64": 8,
    "datetime_i64": 8,
    "uuid": 16,
}
_NEUTRAL: Final[Mapping[str, Any]] = {"string": "", "bytes": b"", "records": b"", "bool": False, "uuid": None}
_Read = Callable[["_RequestReader"], Any]


class _RequestReader(WireReader):
    """The bytes of a request, and the array elements that it may still have."""

    __slots__ = ("elements",)

    def __init__(self, data: bytes | bytearray | memoryview, position: int, elements: int) -> None:
        super().__init__(data, position)
        self.elements = elements

    def tags(self) -> int:
        count = super().tags()
        if count:
            self._spend(count)
        return count

    def count(self, length: int, smallest: int) -> int:
        """An array's ``length``, if the rest of the buffer can hold that many elements."""
        if length * smallest > self.left:
            raise InvalidRequestError(f"an array of {length} elements where {self.left} bytes are left")
        self._spend(length)
        return length

    def _spend(self, number: int) -> None:
        self.elements -= number
        if self.elements < 0:
            raise InvalidRequestError("too many elements in one message")


def read_message(
    message: Any,
    newest: Any,
    data: bytes | bytearray | memoryview,
    position: int,
    *,
    max_elements: int = MAX_ELEMENTS,
) -> Message:
    """A message of kio's class ``message``, with the fields of ``newest`` as well.

    ``max_elements`` limits the array elements and tagged fields of the whole message. Bytes after its end are ignored,
    as in Kafka: librdkafka 2.16 sends three bytes too many when it asks for all topics. Raises `InvalidRequestError`,
    whatever the bytes are, and nothing else.
    """
    request = _RequestReader(data, position, max_elements)
    found: Message = _reader(message, newest)(request)
    return found


@cache
def _reader(message: Any, newest: Any) -> _Read:
    newer = {spec.name: spec for spec in fields_of(newest)}
    specs = fields_of(message)
    flexible = bool(message.__flexible__)
    steps = list(_steps([spec for spec in specs if spec.tag is None], newer, flexible=flexible))
    tagged = {
        spec.tag: (spec.name, _value(spec, newer.get(spec.name), flexible=True))
        for spec in specs
        if spec.tag is not None
    }
    given = {spec.name for spec in specs if spec.tag is None}
    defaults = {name: default_of(spec) for name, spec in newer.items() if name not in given}
    defaults |= {spec.name: default_of(spec) for spec in specs if spec.tag is not None}

    def read(request: _RequestReader) -> Message:
        values = dict(defaults)
        for names, numbers, value in steps:
            if numbers is None:
                values[names[0]] = value(request)
            else:
                values.update(zip(names, request.numbers(numbers), strict=True))
        if flexible:
            _read_tags(request, tagged, values)
        return Message(**values)

    return read


def _steps(
    specs: Sequence[FieldSpec], newer: Mapping[str, FieldSpec], *, flexible: bool
) -> Iterator[tuple[tuple[str, ...], Struct | None, _Read]]:
    """The steps of decoding: a run of fixed-size numbers, or one other field. Each has the fields' names, the numbers'
    form or None, and the reader of the first field."""
    for are_numbers, run in groupby(specs, lambda spec: spec.kind in NUMBERS and not spec.is_array):
        fields = list(run)
        readers = [_value(spec, newer.get(spec.name), flexible=flexible) for spec in fields]
        if are_numbers:
            form = Struct(">" + "".join(NUMBERS[spec.kind] for spec in fields))
            yield tuple(spec.name for spec in fields), form, readers[0]
        else:
            for spec, reader in zip(fields, readers, strict=True):
                yield (spec.name,), None, reader


def _read_tags(request: _RequestReader, tagged: Mapping[int, tuple[str, _Read]], values: dict[str, Any]) -> None:
    """Decode tagged fields; unknown ones are skipped (KIP-482)."""
    for _ in range(request.tags()):
        tag, size = request.uvarint(), request.uvarint()
        if size > request.left:
            raise InvalidRequestError(f"tagged field {tag} of {size} bytes where {request.left} are left")
        end = request.position + size
        if tag in tagged:
            name, value = tagged[tag]
            values[name] = value(request)
            if request.position != end:
                raise InvalidRequestError(f"tagged field {tag} claims {size} bytes, but has a different size")
        request.position = end


def default_of(spec: FieldSpec) -> Any:
    """A field's value in a `Message` whose version lacks it."""
    if spec.is_array:
        return None if spec.is_nullable else ()
    if spec.nested is not None:
        if spec.is_nullable:
            return None
        return Message(**{inner.name: default_of(inner) for inner in fields_of(spec.nested)})
    if spec.default is MISSING:
        return None if spec.is_nullable else _NEUTRAL.get(spec.kind, 0)
    if spec.default is None or spec.kind in ("string", "bytes", "records", "bool", "uuid"):
        return spec.default
    if spec.kind.startswith("timedelta"):
        return round(spec.default.total_seconds() * 1000)
    return int(spec.default)


def _value(spec: FieldSpec, newer: FieldSpec | None, *, flexible: bool) -> _Read:
    one = _one(spec, newer, flexible=flexible)
    if not spec.is_array:
        return one
    smallest = _smallest(spec, flexible=flexible)

    def read(request: _RequestReader) -> tuple[Any, ...] | None:
        length = request.uvarint() - 1 if flexible else request.integer("int32")
        if length < 0:
            if length < -1 or not spec.is_nullable:
                raise InvalidRequestError(f"{spec.name} is an array of {length} elements")
            return None
        return tuple([one(request) for _ in range(request.count(length, smallest))])

    return read


def _one(spec: FieldSpec, newer: FieldSpec | None, *, flexible: bool) -> _Read:
    kind = spec.kind
    if spec.nested is not None:
        nested = _reader(spec.nested, (newer and newer.nested) or spec.nested)
        if _may_be_null(spec):
            return lambda request: nested(request) if request.integer("int8") >= 0 else None
        return nested
    if kind == "bool":
        return lambda request: request.integer("int8") != 0
    if kind == "uuid":
        return lambda request: request.uuid()
    if kind in ("string", "bytes", "records"):
        return _text(spec, flexible=flexible) if kind == "string" else _bytes(spec, flexible=flexible)
    form = Struct(">" + NUMBERS[kind])
    return lambda request: request.numbers(form)[0]


def _bytes(spec: FieldSpec, *, flexible: bool) -> _Read:
    may_be_null = spec.is_nullable and not spec.is_array
    short = "int16" if spec.kind == "string" else "int32"

    def read(request: _RequestReader) -> bytes | None:
        length = request.uvarint() - 1 if flexible else request.integer(short)
        if length == -1 and may_be_null:
            return None
        return request.take(length)

    return read


def _text(spec: FieldSpec, *, flexible: bool) -> _Read:
    raw = _bytes(spec, flexible=flexible)

    def read(request: _RequestReader) -> str | None:
        data = raw(request)
        try:
            return None if data is None else data.decode()
        except UnicodeDecodeError as error:
            raise InvalidRequestError(f"{spec.name} is not UTF-8") from error

    return read


def _may_be_null(spec: FieldSpec) -> bool:
    """Whether the field is a struct of which one byte may say that it is null."""
    return spec.nested is not None and spec.is_nullable and not spec.is_array


def _smallest(spec: FieldSpec, *, flexible: bool) -> int:
    """The fewest bytes of one array element."""
    if spec.nested is not None:
        fields = [inner for inner in fields_of(spec.nested) if inner.tag is None]
        return sum(_smallest_field(inner, flexible=flexible) for inner in fields) + (1 if flexible else 0)
    if spec.kind in ("string", "bytes", "records"):
        return 1 if flexible else 2 if spec.kind == "string" else 4
    return _FIXED[spec.kind]


def _smallest_field(spec: FieldSpec, *, flexible: bool) -> int:
    if spec.is_array:
        return 1 if flexible else 4
    return 1 if _may_be_null(spec) else _smallest(spec, flexible=flexible)
