"""The primitive types of Kafka's protocol. Every length is checked against the bytes left in the buffer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from struct import Struct, error
from typing import Any, Final, NamedTuple
from uuid import UUID

from seglog.core.errors import InvalidRequestError

NUMBERS: Final[Mapping[str, str]] = {
    "int8": "b",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "int64": "q",
    "float64": "d",
    "error_code": "h",
    "timedelta_i32": "i",
    "timedelta_i64": "q",
    "datetime_i64": "q",
}
"""The `struct` codes of types with a fixed size."""
_FORMS: Final = {kind: Struct(">" + code) for kind, code in NUMBERS.items()}
_LONGEST_VARINT: Final = 5
MAX_TAGS: Final = 10_000
"""The most tagged fields in one place; Kafka has ten at most."""


class WireReader:
    """Decodes a message's bytes from a position on. `InvalidRequestError` for missing or impossible bytes."""

    __slots__ = ("data", "position")

    def __init__(self, data: bytes | bytearray | memoryview, position: int = 0) -> None:
        self.data = data
        self.position = position

    @property
    def left(self) -> int:
        return len(self.data) - self.position

    def numbers(self, form: Struct) -> tuple[Any, ...]:
        """The next numbers, in this form."""
        try:
            values = form.unpack_from(self.data, self.position)
        except error as reason:
            raise InvalidRequestError(f"the message ends within {form.size} bytes of numbers") from reason
        self.position += form.size
        return values

    def integer(self, kind: str) -> int:
        return int(self.numbers(_FORMS[kind])[0])

    def uvarint(self) -> int:
        if self.left > 0 and (byte := self.data[self.position]) < 0x80:  # nearly all
            self.position += 1
            return byte
        value = shift = 0
        for _ in range(_LONGEST_VARINT):
            if self.left < 1:
                raise InvalidRequestError("the message ends within a varint")
            byte = self.data[self.position]
            self.position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
        raise InvalidRequestError(f"a varint of more than {_LONGEST_VARINT} bytes")

    def take(self, length: int) -> bytes:
        if not 0 <= length <= self.left:
            raise InvalidRequestError(f"a field of {length} bytes where {self.left} are left")
        start = self.position
        self.position += length
        return bytes(self.data[start : self.position])

    def text(self, *, flexible: bool = True) -> str | None:
        length = self.uvarint() - 1 if flexible else self.integer("int16")
        if length == -1:
            return None
        try:
            return self.take(length).decode()
        except UnicodeDecodeError as reason:
            raise InvalidRequestError("a text is not UTF-8") from reason

    def uuid(self) -> UUID | None:
        """None for the id of zeros."""
        raw = self.take(16)
        return UUID(bytes=raw) if any(raw) else None

    def tags(self) -> int:
        """The number of tagged fields. Limited: millions of them may take only a byte or two each (CVE-2026-111115)."""
        count = self.uvarint()
        if count > MAX_TAGS:
            raise InvalidRequestError(f"{count} tagged fields in one place")
        return count

    def skip_tags(self) -> None:
        """Skip tagged fields (KIP-482)."""
        for _ in range(self.tags()):
            self.uvarint()
            self.take(self.uvarint())


def uvarint(value: int) -> bytes:
    """
    >>> uvarint(300).hex()
    'ac02'
    """
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


_INT16: Final = Struct(">h")
_INT32: Final = Struct(">i")
_LEADER: Final = Struct(">ii")


class NodeEndpoint(NamedTuple):
    """A broker's address on the client's listener."""

    node_id: int
    host: str
    port: int
    rack: str | None


def put_leader(out: bytearray, leader: tuple[int, int]) -> None:
    """The struct ``current_leader``: its size, the leader's id and epoch, and no tags."""
    out.append(_LEADER.size + 1)
    out += _LEADER.pack(*leader)
    out.append(0)


def put_endpoints(out: bytearray, endpoints: Sequence[NodeEndpoint]) -> None:
    """The tags of a response: none, or ``node_endpoints`` (0), where the leaders listen (KIP-951)."""
    if not endpoints:
        out.append(0)
        return
    body = bytearray(uvarint(len(endpoints) + 1))
    for node_id, host, port, rack in endpoints:
        body += _INT32.pack(node_id)
        put_text(body, host)
        body += _INT32.pack(port)
        put_text(body, rack)
        body.append(0)
    out += b"\x01\x00" + uvarint(len(body)) + body


def put_count(out: bytearray, count: int, *, flexible: bool) -> None:
    """An array's length; -1 for null."""
    if not flexible:
        out += _INT32.pack(count)
    elif count < 0x7F:
        out.append(count + 1)
    else:
        out += uvarint(count + 1)


def put_text(out: bytearray, text: str | None, *, flexible: bool = True) -> None:
    raw = b"" if text is None else text.encode()
    size = -1 if text is None else len(raw)
    out += (uvarint(size + 1) if flexible else _INT16.pack(size)) + raw
