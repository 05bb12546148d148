"""The value of a mark, as `GroupMark` and `MarkTopic` store it."""

from __future__ import annotations

from typing import NamedTuple, Self

from seglog.core.errors import RequestFailedError


class MarkValue(NamedTuple):
    number: int
    text: str

    def to_bytes(self) -> bytes:
        """As the value of a record."""
        return f"{self.number} {self.text}".encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """`RequestFailedError` if it is not the value of a mark.

        >>> MarkValue.from_bytes(MarkValue(3, "a b").to_bytes())
        MarkValue(number=3, text='a b')
        """
        number, _, text = data.decode(errors="replace").partition(" ")
        if not number.isdecimal():
            raise RequestFailedError(f"{data[:200]!r} is not a mark")
        return cls(int(number), text)
