"""Parts of text in compiled loops: constants, decimal numbers, and UTF-8 with what is malformed replaced as Java does.

``at`` is always where in ``out`` to write, and each part returns where it ends. There must be room.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from seglog.records.machine import U8, as_int, byte_at, copy, inlined, int64_at, put8


def text(characters: str) -> U8:
    """A constant for `put`."""
    return np.frombuffer(characters.encode(), np.uint8)


_TRUE: Final = text("true")
_FALSE: Final = text("false")
_REPLACEMENT: Final = text("\ufffd")
_MINUS, _ZERO = 45, 48


@inlined
def put(out: U8, at: int, constant: U8) -> int:
    length = int(constant.shape[0])
    copy(out, at, constant, 0, length)
    return at + length


@inlined
def put_number(out: U8, at: int, value: int) -> int:
    """Decimal digits of a signed 64-bit number."""
    rest = np.uint64(value)
    if value < 0:
        put8(out, at, _MINUS)
        at += 1
        rest = np.uint64(0) - rest
    digits = 1
    bound = np.uint64(10)
    while rest >= bound and digits < 19:
        digits += 1
        bound *= np.uint64(10)
    end = at + digits
    index = end - 1
    while index >= at:
        quotient = rest // np.uint64(10)
        put8(out, index, _ZERO + as_int(rest - quotient * np.uint64(10)))
        rest = quotient
        index -= 1
    return end


@inlined
def put_field(out: U8, at: int, name: U8, value: int) -> int:
    return put_number(out, put(out, at, name), value)


@inlined
def put_boolean(out: U8, at: int, name: U8, value: int) -> int:
    at = put(out, at, name)
    return put(out, at, _TRUE) if value else put(out, at, _FALSE)


@inlined
def _byte(data: U8, at: int) -> int:
    return as_int(byte_at(data, at))


@inlined
def _continues(byte: int) -> bool:
    return byte & 0xC0 == 0x80


@inlined
def _sequence_length(data: U8, at: int, end: int) -> int:
    """Bytes of the UTF-8 character that begins at ``at`` with a byte from 0x80; minus those that Java replaces.

    Java's rules, as in `seglog.core.utf8.malformed_length`.
    """
    lead = _byte(data, at)
    left = end - at
    second = _byte(data, at + 1) if left > 1 else -1
    if 0xC2 <= lead <= 0xDF:
        return 2 if left > 1 and _continues(second) else -1
    if lead >> 4 == 14:
        bad_second = not _continues(second) or (lead == 0xE0 and second < 0xA0)
        if left < 3:
            return -1 if left > 1 and bad_second else -left
        if bad_second:
            return -1
        if not _continues(_byte(data, at + 2)):
            return -2
        return -3 if lead == 0xED and second >= 0xA0 else 3
    if lead >> 3 == 30:
        bad_second = (
            lead > 0xF4
            or not _continues(second)
            or (lead == 0xF0 and second < 0x90)
            or (lead == 0xF4 and second > 0x8F)
        )
        if left < 4:
            if lead > 0xF4 or (left > 1 and bad_second):
                return -1
            if left < 3 or _continues(_byte(data, at + 2)):
                return -left
            return -2
        if bad_second:
            return -1
        if not _continues(_byte(data, at + 2)):
            return -2
        return 4 if _continues(_byte(data, at + 3)) else -3
    return -1


@inlined
def put_utf8(out: U8, at: int, data: U8, start: int, end: int) -> int:
    """The bytes as they are, each malformed sequence among them as U+FFFD: at most three times as many bytes."""
    run = start
    index = start
    while index < end:
        while index + 8 <= end and int64_at(data, index) & -0x7F7F7F7F7F7F7F80 == 0:
            index += 8
        if index < end:
            if _byte(data, index) < 0x80:
                index += 1
            else:
                length = _sequence_length(data, index, end)
                if length > 0:
                    index += length
                else:
                    copy(out, at, data, run, index - run)
                    at = put(out, at + index - run, _REPLACEMENT)
                    index -= length
                    run = index
    copy(out, at, data, run, end - run)
    return at + end - run


@inlined
def read_varint(data: U8, at: int, end: int, bits: int) -> tuple[int, int]:
    """A zig-zag number of up to ``bits`` bits and the position after it, -1 if it does not end in time."""
    value = np.uint64(0)
    shift = 0
    while at < end and shift < bits:
        byte = np.uint64(byte_at(data, at))
        at += 1
        value |= (byte & np.uint64(0x7F)) << np.uint64(shift)
        if byte < 0x80:
            if bits == 32:
                value &= np.uint64(0xFFFFFFFF)
            return as_int(value >> np.uint64(1)) ^ -as_int(value & np.uint64(1)), at
        shift += 7
    return 0, -1
