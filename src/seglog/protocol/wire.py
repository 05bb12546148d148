"""The primitive types of Kafka's protocol, read with every length held against what is left of the buffer."""

from __future__ import annotations

from struct import Struct, error
from typing import Final
from uuid import UUID

from seglog.core.errors import InvalidRequestError

_INT8: Final = Struct(">b")
_INT16: Final = Struct(">h")
_UINT16: Final = Struct(">H")
_INT32: Final = Struct(">i")
_INT64: Final = Struct(">q")
_FLOAT64: Final = Struct(">d")
_NUMBERS: Final = {
    "int8": _INT8,
    "int16": _INT16,
    "uint16": _UINT16,
    "int32": _INT32,
    "int64": _INT64,
    "float64": _FLOAT64,
    "error_code": _INT16,
    "timedelta_i32": _INT32,
    "timedelta_i64": _INT64,
    "datetime_i64": _INT64,
}
_LONGEST_VARINT: Final = 5
MAX_TAGS: Final = 64
"""Tagged fields in one place; Kafka has no more than ten anywhere."""


class Reader:
    """Reads at a position of a request's bytes; `InvalidRequestError` where there are too few or they cannot be."""

    __slots__ = ("data", "position")

    def __init__(self, data: bytes | bytearray | memoryview, position: int = 0) -> None:
        self.data = data
        self.position = position

    @property
    def left(self) -> int:
        return len(self.data) - self.position

    def number(self, kind: str) -> int | float:
        form = _NUMBERS[kind]
        try:
            (value,) = form.unpack_from(self.data, self.position)
        except error as reason:
            raise InvalidRequestError(f"the request ends within a field of type {kind}") from reason
        self.position += form.size
        assert isinstance(value, int | float)
        return value

    def integer(self, kind: str) -> int:
        return int(self.number(kind))

    def uvarint(self) -> int:
        value = shift = 0
        for _ in range(_LONGEST_VARINT):
            if self.left < 1:
                raise InvalidRequestError("the request ends within a varint")
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

    def uuid(self) -> UUID | None:
        """None for the id of zeros, which stands for none."""
        raw = self.take(16)
        return UUID(bytes=raw) if any(raw) else None

    def tags(self) -> int:
        """How many tagged fields follow: not millions of a byte or two each (CVE-2026-111115)."""
        count = self.uvarint()
        if count > MAX_TAGS:
            raise InvalidRequestError(f"{count} tagged fields in one place")
        return count

    def skip_tags(self) -> None:
        """Pass over tagged fields whatever they are (KIP-482)."""
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
