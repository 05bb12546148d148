"""Decodes UTF-8 as Java does: Kafka's tools and clients show malformed bytes in Java's way."""

from __future__ import annotations

import codecs
from typing import Final

from seglog.core.types import Buffer

_REPLACEMENT: Final = "\ufffd"
_HANDLER: Final = "seglog.java"


def decode_utf8(data: Buffer) -> str:
    """``new String(data, UTF_8)``: as Python's "replace", but with other limits of a malformed sequence.

    To Java, an encoded surrogate is one sequence of three bytes, and so is a sequence that the end cuts short. Python
    replaces the bytes of a surrogate one by one.

    >>> decode_utf8(b"a\\xed\\xa0\\x80b\\xe2\\x82")
    'a\ufffdb\ufffd'
    """
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError:
        return str(data, "utf-8", _HANDLER)


def malformed_length(data: bytes, start: int) -> int:
    """How many bytes of a malformed sequence Java replaces by one U+FFFD."""
    lead, left = data[start], len(data) - start
    second = data[start + 1] if left > 1 else -1
    if lead >> 4 == 0b1110:
        bad_second = not _continues(second) or (lead == 0xE0 and second < 0xA0)
        if left < 3:
            return 1 if second >= 0 and bad_second else left
        if bad_second:
            return 1
        return 3 if _continues(data[start + 2]) else 2
    if lead >> 3 == 0b11110:
        bad_second = (
            lead > 0xF4
            or not _continues(second)
            or (lead == 0xF0 and second < 0x90)
            or (lead == 0xF4 and second > 0x8F)
        )
        if left < 4:
            return (
                1
                if lead > 0xF4 or (second >= 0 and bad_second)
                else (left if left < 3 or _continues(data[start + 2]) else 2)
            )
        if bad_second:
            return 1
        return 3 if _continues(data[start + 2]) else 2
    return 1


def _continues(byte: int) -> bool:
    return byte & 0xC0 == 0x80


def _replace(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    return _REPLACEMENT, error.start + malformed_length(error.object, error.start)


codecs.register_error(_HANDLER, _replace)
