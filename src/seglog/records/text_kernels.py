"""The text of batches and records as `seglog dump` prints it, written by compiled loops. Layout: `seglog.cli.dump_log`.

What a loop cannot do in the plain path's own words (damage, control records, formats 0 and 1) it leaves to that path:
it stops before the batch. Bytes are ``uint8`` arrays; nothing here raises, and the GIL is not held.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

import numpy as np

from seglog.records.machine import (
    I64,
    U8,
    as_int,
    byte_at,
    copy,
    crc32c,
    inlined,
    int8_at,
    int16_at,
    int32_at,
    int64_at,
    kernel,
    put8,
    uint32_at,
)


class Stop(IntEnum):
    """Why `render_batches` ended."""

    END = 0
    PLAIN = 1
    """The batch at the position returned is for the plain path."""
    COMPRESSED = 2
    """The line of the batch at the position returned is written; its records are to be decompressed."""
    FULL = 3
    """No room for the text, or the gaps, of the batch at the position returned."""


_END: Final = int(Stop.END)
_PLAIN: Final = int(Stop.PLAIN)
_COMPRESSED: Final = int(Stop.COMPRESSED)
_FULL: Final = int(Stop.FULL)

DEEP, CONTENTS, SKIP_METADATA = 1, 2, 4
"""Bits of ``flags``: a line a record; with key and value; without what stands before them."""

STATE_FIELDS: Final = ("length", "first", "last", "records", "gaps", "invalid", "batch")
"""Fields of the ``state`` array: characters written, first and last record's offset, records and gaps between their
offsets so far, batches with a wrong CRC; the last is where the text of a COMPRESSED batch begins."""
S_LENGTH, S_FIRST, S_LAST, S_RECORDS, S_GAPS, S_INVALID, S_BATCH = range(len(STATE_FIELDS))

_BATCH_ROOM: Final = 700
_RECORD_ROOM: Final = 200
"""More than the longest line of a batch, and of a record without its key, value and headers."""


def _text(text: str) -> U8:
    return np.frombuffer(text.encode(), np.uint8)


_BASE_OFFSET: Final = _text("baseOffset: ")
_LAST_OFFSET: Final = _text(" lastOffset: ")
_COUNT: Final = _text(" count: ")
_BASE_SEQUENCE: Final = _text(" baseSequence: ")
_LAST_SEQUENCE: Final = _text(" lastSequence: ")
_PRODUCER_ID: Final = _text(" producerId: ")
_PRODUCER_EPOCH: Final = _text(" producerEpoch: ")
_LEADER_EPOCH: Final = _text(" partitionLeaderEpoch: ")
_TRANSACTIONAL: Final = _text(" isTransactional: ")
_CONTROL: Final = _text(" isControl: ")
_HORIZON: Final = _text(" deleteHorizonMs: OptionalLong")
_EMPTY: Final = _text(".empty")
_POSITION: Final = _text(" position: ")
_CREATE_TIME: Final = _text(" CreateTime: ")
_APPEND_TIME: Final = _text(" LogAppendTime: ")
_SIZE: Final = _text(" size: ")
_MAGIC: Final = _text(" magic: 2 compresscodec: ")
_NONE: Final = _text("none")
_GZIP: Final = _text("gzip")
_SNAPPY: Final = _text("snappy")
_LZ4: Final = _text("lz4")
_ZSTD: Final = _text("zstd")
_CRC: Final = _text(" crc: ")
_IS_VALID: Final = _text(" isvalid: ")
_TRUE: Final = _text("true")
_FALSE: Final = _text("false")
_RECORD: Final = _text("| offset: ")
_KEY_SIZE: Final = _text(" keySize: ")
_VALUE_SIZE: Final = _text(" valueSize: ")
_SEQUENCE: Final = _text(" sequence: ")
_HEADER_KEYS: Final = _text(" headerKeys: [")
_KEY: Final = _text("key: ")
_PAYLOAD: Final = _text("payload: ")
_REPLACEMENT: Final = _text("\ufffd")

_BLANK, _NEWLINE, _BAR, _COMMA, _CLOSE, _OPEN, _MINUS, _ZERO = 32, 10, 124, 44, 93, 91, 45, 48
_MAX_INT32: Final = 0x7FFFFFFF


@inlined
def _put(out: U8, at: int, text: U8) -> int:
    length = int(text.shape[0])
    copy(out, at, text, 0, length)
    return at + length


@inlined
def _put_number(out: U8, at: int, value: int) -> int:
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
def _put_field(out: U8, at: int, name: U8, value: int) -> int:
    return _put_number(out, _put(out, at, name), value)


@inlined
def _put_boolean(out: U8, at: int, name: U8, value: int) -> int:
    at = _put(out, at, name)
    return _put(out, at, _TRUE) if value else _put(out, at, _FALSE)


@inlined
def _sequence_after(sequence: int, increment: int) -> int:
    """``DefaultRecordBatch.incrementSequence``, for increments that are not negative."""
    if sequence > _MAX_INT32 - increment:
        return increment - (_MAX_INT32 - sequence) - 1
    return sequence + increment


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
def _put_utf8(out: U8, at: int, data: U8, start: int, end: int) -> int:
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
                    at = _put(out, at + index - run, _REPLACEMENT)
                    index -= length
                    run = index
    copy(out, at, data, run, end - run)
    return at + end - run


@inlined
def _varint(data: U8, at: int, end: int, bits: int) -> tuple[int, int]:
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


@inlined
def _put_headers(out: U8, at: int, data: U8, position: int, end: int, count: int, show: bool) -> tuple[int, int]:
    """The headers' keys, separated by commas; where the text and the headers end, -1 as the latter if they are none."""
    for index in range(count):
        length, position = _varint(data, position, end, 32)
        if position < 0 or length < 0 or length > end - position:
            return at, -1
        if show:
            if index:
                put8(out, at, _COMMA)
                at += 1
            at = _put_utf8(out, at, data, position, position + length)
        length, position = _varint(data, position + length, end, 32)
        if position < 0 or length > end - position:
            return at, -1
        position += max(length, 0)
    return at, position


@inlined
def _put_record(
    data: U8, start: int, end: int, offset: int, time: int, is_fixed: bool, sequence: int, flags: int, out: U8, at: int
) -> tuple[int, int, int]:
    """The line of a record: its offset delta, where it ends (-1: it is none, or one for the plain path), and its text.

    ``offset``, ``time`` and ``sequence`` are the batch's base ones; the time is added to if not ``is_fixed``.
    """
    size, position = _varint(data, start, end, 32)
    if position < 0 or size < 1 or size > end - position:
        return 0, -1, at
    end = position + size
    since, position = _varint(data, position + 1, end, 64)
    if position < 0:
        return 0, -1, at
    delta, position = _varint(data, position, end, 32)
    if position < 0 or delta < 0:
        return 0, -1, at
    key_length, key = _varint(data, position, end, 32)
    if key < 0 or key_length > end - key:
        return 0, -1, at
    value_length, value = _varint(data, key + max(key_length, 0), end, 32)
    if value < 0 or value_length > end - value:
        return 0, -1, at
    count, position = _varint(data, value + max(value_length, 0), end, 32)
    if position < 0 or count < 0 or count > end - position:
        return 0, -1, at
    show = flags & SKIP_METADATA == 0
    if show:
        at = _put_field(out, at, _RECORD, offset + delta)
        at = _put(out, at, _APPEND_TIME if is_fixed else _CREATE_TIME)
        at = _put_number(out, at, time if is_fixed else time + since)
        at = _put_field(out, at, _KEY_SIZE, max(key_length, -1))
        at = _put_field(out, at, _VALUE_SIZE, max(value_length, -1))
        at = _put_field(out, at, _SEQUENCE, -1 if sequence < 0 else _sequence_after(sequence, delta))
        at = _put(out, at, _HEADER_KEYS)
    at, position = _put_headers(out, at, data, position, end, count, show)
    if position != end:
        return 0, -1, at
    if show:
        put8(out, at, _CLOSE)
        at += 1
    if flags & CONTENTS:
        at = _put_contents(data, key, key_length, value, value_length, show, out, at)
    put8(out, at, _NEWLINE)
    return delta, end, at + 1


@inlined
def _put_contents(
    data: U8, key: int, key_length: int, value: int, value_length: int, show: bool, out: U8, at: int
) -> int:
    """Key and value, each only if it is not null; a bar before the first if no other fields stand there."""
    if not show and (key_length >= 0 or value_length >= 0):
        put8(out, at, _BAR)
        at += 1
    if key_length >= 0:
        put8(out, at, _BLANK)
        at = _put_utf8(out, _put(out, at + 1, _KEY), data, key, key + key_length)
    if value_length >= 0:
        put8(out, at, _BLANK)
        at = _put_utf8(out, _put(out, at + 1, _PAYLOAD), data, value, value + value_length)
    return at


@inlined
def _put_records(
    head: U8, at_head: int, data: U8, position: int, end: int, flags: int, out: U8, state: I64, gaps: I64
) -> bool:
    """The lines of a batch's records, which fill ``data[position:end]``; False if they are for the plain path."""
    offset = int64_at(head, at_head)
    is_fixed = int16_at(head, at_head + 21) & 8 != 0
    time = int64_at(head, at_head + 35) if is_fixed else int64_at(head, at_head + 27)
    sequence = int32_at(head, at_head + 53)
    count = int32_at(head, at_head + 57)
    at = state[S_LENGTH]
    for _ in range(count):
        delta, position, at = _put_record(data, position, end, offset, time, is_fixed, sequence, flags, out, at)
        if position < 0:
            return False
        found = offset + delta
        if state[S_RECORDS] == 0:
            state[S_FIRST] = found
        elif found != state[S_LAST] + 1:
            gaps[state[S_GAPS], 0] = state[S_LAST]
            gaps[state[S_GAPS], 1] = found
            state[S_GAPS] += 1
        state[S_LAST] = found
        state[S_RECORDS] += 1
    state[S_LENGTH] = at
    return count == 0 or position == end


@inlined
def _put_batch_line(data: U8, position: int, size: int, base: int, out: U8, at: int, is_valid: bool) -> int:
    """The line of the batch at ``position`` of data, which is at ``base + position`` in its file."""
    attributes = int16_at(data, position + 21)
    delta = int32_at(data, position + 23)
    sequence = int32_at(data, position + 53)
    at = _put_field(out, at, _BASE_OFFSET, int64_at(data, position))
    at = _put_field(out, at, _LAST_OFFSET, int64_at(data, position) + delta)
    at = _put_field(out, at, _COUNT, int32_at(data, position + 57))
    at = _put_field(out, at, _BASE_SEQUENCE, sequence)
    at = _put_field(out, at, _LAST_SEQUENCE, -1 if sequence < 0 else _sequence_after(sequence, delta))
    at = _put_field(out, at, _PRODUCER_ID, int64_at(data, position + 43))
    at = _put_field(out, at, _PRODUCER_EPOCH, int16_at(data, position + 51))
    at = _put_field(out, at, _LEADER_EPOCH, int32_at(data, position + 12))
    at = _put_boolean(out, at, _TRANSACTIONAL, attributes & 16)
    at = _put_boolean(out, at, _CONTROL, attributes & 32)
    at = _put(out, at, _HORIZON)
    if attributes & 64:
        put8(out, at, _OPEN)
        at = _put_number(out, at + 1, int64_at(data, position + 27))
        put8(out, at, _CLOSE)
        at += 1
    else:
        at = _put(out, at, _EMPTY)
    at = _put_field(out, at, _POSITION, base + position)
    at = _put(out, at, _APPEND_TIME) if attributes & 8 else _put(out, at, _CREATE_TIME)
    at = _put_number(out, at, int64_at(data, position + 35))
    at = _put_field(out, at, _SIZE, size)
    at = _put(out, at, _MAGIC)
    codec = attributes & 7
    if codec == 0:
        at = _put(out, at, _NONE)
    elif codec == 1:
        at = _put(out, at, _GZIP)
    elif codec == 2:
        at = _put(out, at, _SNAPPY)
    elif codec == 3:
        at = _put(out, at, _LZ4)
    else:
        at = _put(out, at, _ZSTD)
    at = _put_field(out, at, _CRC, uint32_at(data, position + 17))
    at = _put_boolean(out, at, _IS_VALID, 1 if is_valid else 0)
    put8(out, at, _NEWLINE)
    return at + 1


@inlined
def _has_room(count: int, size: int, flags: int, out: U8, state: I64, gaps: I64) -> bool:
    """Whether a batch of so many records in so many bytes fits into the rest of ``out`` and ``gaps``, at worst."""
    room = int(out.shape[0]) - int(state[S_LENGTH]) - _BATCH_ROOM
    if flags & DEEP:
        return count * _RECORD_ROOM <= room - 3 * size and count <= int(gaps.shape[0]) - int(state[S_GAPS])
    return room >= 0


@kernel
def render_batches(
    data: U8, start: int, end: int, base: int, flags: int, out: U8, state: I64, gaps: I64
) -> tuple[int, int]:
    """Write the lines of the whole batches in ``data[start:end]``: (position, `Stop`).

    ``data[0]`` lies at ``base`` in its file. ``state`` is [STATE_FIELDS] and carried on by the next call; ``gaps`` is
    [n, 2], the offsets on both sides of each. Bytes behind ``state[S_LENGTH]`` in ``out`` are garbage.
    """
    position = start
    while position < end:
        size = int32_at(data, position + 8) + 12
        attributes = int16_at(data, position + 21) if size >= 61 else 7
        count = int32_at(data, position + 57) if size >= 61 else -1
        deep = flags & DEEP
        if size < 61 or int8_at(data, position + 16) != 2 or attributes & 7 > 4:
            return position, _PLAIN
        sequence = int32_at(data, position + 53)
        if sequence < -1 or int32_at(data, position + 23) < 0:
            return position, _PLAIN
        compressed = attributes & 7 != 0
        if deep and (count < 0 or attributes & 32 or (not compressed and count * 7 > size - 61)):
            return position, _PLAIN
        if not _has_room(0 if compressed else count, size, flags, out, state, gaps):
            return position, _FULL
        is_valid = crc32c(data, position + 21, position + size) == uint32_at(data, position + 17)
        length = state[S_LENGTH]
        state[S_BATCH] = length
        state[S_LENGTH] = _put_batch_line(data, position, size, base, out, length, is_valid)
        if deep and count > 0:
            if compressed:
                if not is_valid:
                    state[S_INVALID] += 1
                return position, _COMPRESSED
            first, last, records, found = state[S_FIRST], state[S_LAST], state[S_RECORDS], state[S_GAPS]
            if not _put_records(data, position, data, position + 61, position + size, flags, out, state, gaps):
                state[S_LENGTH], state[S_FIRST], state[S_LAST] = length, first, last
                state[S_RECORDS], state[S_GAPS] = records, found
                return position, _PLAIN
        if not is_valid:
            state[S_INVALID] += 1
        position += size
    return position, _END


@kernel
def render_records(data: U8, position: int, area: U8, flags: int, out: U8, state: I64, gaps: I64) -> int:
    """Write the lines of the records of the batch at ``position`` of data, decompressed in ``area``: a `Stop`.

    END; FULL if there is no room; PLAIN if the records are for the plain path, with text and state as before.
    """
    count = int32_at(data, position + 57)
    if count * 7 > area.shape[0]:
        return _PLAIN
    if not _has_room(count, area.shape[0], flags, out, state, gaps):
        return _FULL
    length, first, last, records, found = (
        state[S_LENGTH],
        state[S_FIRST],
        state[S_LAST],
        state[S_RECORDS],
        state[S_GAPS],
    )
    if _put_records(data, position, area, 0, area.shape[0], flags, out, state, gaps):
        return _END
    state[S_LENGTH], state[S_FIRST], state[S_LAST] = length, first, last
    state[S_RECORDS], state[S_GAPS] = records, found
    return _PLAIN
