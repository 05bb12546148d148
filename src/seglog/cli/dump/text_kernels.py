"""The text of batches and records as `seglog dump` prints it, written by compiled loops.

The layout is that of `seglog.cli.dump.log_text`. A loop stops before a batch that it does not render (damage, control
records, formats 0 and 1), and the plain path renders it. Bytes are ``uint8`` arrays; nothing here raises, and the loops
release the GIL.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from seglog.cli.dump.string_kernels import put, put_boolean, put_field, put_number, put_utf8, read_varint, text
from seglog.records.machine import (
    I64,
    U8,
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
    """The plain path must render the batch at the position returned."""
    COMPRESSED = 2
    """The line of the batch at the position returned is written; the caller must decompress its records."""
    FULL = 3
    """The text or the gaps of the batch at the position returned do not fit."""


_END: Final = int(Stop.END)
_PLAIN: Final = int(Stop.PLAIN)
_COMPRESSED: Final = int(Stop.COMPRESSED)
_FULL: Final = int(Stop.FULL)

DEEP, CONTENTS, SKIP_METADATA = 1, 2, 4
"""Bits of ``flags``: a line for each record; with key and value; with nothing before them."""

STATE_FIELDS: Final = ("length", "first", "last", "records", "gaps", "invalid", "batch")
"""Fields of the ``state`` array: characters written, first and last record's offset, records and gaps between their
offsets so far, batches with a wrong CRC; the last is where the text of a COMPRESSED batch begins."""
S_LENGTH, S_FIRST, S_LAST, S_RECORDS, S_GAPS, S_INVALID, S_BATCH = range(len(STATE_FIELDS))

_BATCH_ROOM: Final = 700
_RECORD_ROOM: Final = 200
"""Upper bounds for the line of a batch, and for that of a record without its key, value and headers."""


_BASE_OFFSET: Final = text("baseOffset: ")
_LAST_OFFSET: Final = text(" lastOffset: ")
_COUNT: Final = text(" count: ")
_BASE_SEQUENCE: Final = text(" baseSequence: ")
_LAST_SEQUENCE: Final = text(" lastSequence: ")
_PRODUCER_ID: Final = text(" producerId: ")
_PRODUCER_EPOCH: Final = text(" producerEpoch: ")
_LEADER_EPOCH: Final = text(" partitionLeaderEpoch: ")
_TRANSACTIONAL: Final = text(" isTransactional: ")
_CONTROL: Final = text(" isControl: ")
_HORIZON: Final = text(" deleteHorizonMs: OptionalLong")
_EMPTY: Final = text(".empty")
_POSITION: Final = text(" position: ")
_CREATE_TIME: Final = text(" CreateTime: ")
_APPEND_TIME: Final = text(" LogAppendTime: ")
_SIZE: Final = text(" size: ")
_MAGIC: Final = text(" magic: 2 compresscodec: ")
_NONE: Final = text("none")
_GZIP: Final = text("gzip")
_SNAPPY: Final = text("snappy")
_LZ4: Final = text("lz4")
_ZSTD: Final = text("zstd")
_CRC: Final = text(" crc: ")
_IS_VALID: Final = text(" isvalid: ")
_RECORD: Final = text("| offset: ")
_KEY_SIZE: Final = text(" keySize: ")
_VALUE_SIZE: Final = text(" valueSize: ")
_SEQUENCE: Final = text(" sequence: ")
_HEADER_KEYS: Final = text(" headerKeys: [")
_KEY: Final = text("key: ")
_PAYLOAD: Final = text("payload: ")

_BLANK, _NEWLINE, _BAR, _COMMA, _CLOSE, _OPEN = 32, 10, 124, 44, 93, 91
_MAX_INT32: Final = 0x7FFFFFFF


@inlined
def _sequence_after(sequence: int, increment: int) -> int:
    """``DefaultRecordBatch.incrementSequence``, for increments that are not negative."""
    if sequence > _MAX_INT32 - increment:
        return increment - (_MAX_INT32 - sequence) - 1
    return sequence + increment


@inlined
def _put_headers(out: U8, at: int, data: U8, position: int, end: int, count: int, show: bool) -> tuple[int, int]:
    """Write the keys of the headers, separated by commas. Returns the ends of text and headers (-1: malformed)."""
    for index in range(count):
        length, position = read_varint(data, position, end, 32)
        if position < 0 or length < 0 or length > end - position:
            return at, -1
        if show:
            if index:
                put8(out, at, _COMMA)
                at += 1
            at = put_utf8(out, at, data, position, position + length)
        length, position = read_varint(data, position + length, end, 32)
        if position < 0 or length > end - position:
            return at, -1
        position += max(length, 0)
    return at, position


@inlined
def _put_record(
    data: U8, start: int, end: int, offset: int, time: int, is_fixed: bool, sequence: int, flags: int, out: U8, at: int
) -> tuple[int, int, int]:
    """Write the line of a record. Returns its offset delta, its end (-1: for the plain path) and the end of the text.

    ``offset``, ``time`` and ``sequence`` are the base values of the batch; the time is final if ``is_fixed``.
    """
    size, position = read_varint(data, start, end, 32)
    if position < 0 or size < 1 or size > end - position:
        return 0, -1, at
    end = position + size
    since, position = read_varint(data, position + 1, end, 64)
    if position < 0:
        return 0, -1, at
    delta, position = read_varint(data, position, end, 32)
    if position < 0 or delta < 0:
        return 0, -1, at
    key_length, key = read_varint(data, position, end, 32)
    if key < 0 or key_length > end - key:
        return 0, -1, at
    value_length, value = read_varint(data, key + max(key_length, 0), end, 32)
    if value < 0 or value_length > end - value:
        return 0, -1, at
    count, position = read_varint(data, value + max(value_length, 0), end, 32)
    if position < 0 or count < 0 or count > end - position:
        return 0, -1, at
    show = flags & SKIP_METADATA == 0
    if show:
        at = put_field(out, at, _RECORD, offset + delta)
        at = put(out, at, _APPEND_TIME if is_fixed else _CREATE_TIME)
        at = put_number(out, at, time if is_fixed else time + since)
        at = put_field(out, at, _KEY_SIZE, max(key_length, -1))
        at = put_field(out, at, _VALUE_SIZE, max(value_length, -1))
        at = put_field(out, at, _SEQUENCE, -1 if sequence < 0 else _sequence_after(sequence, delta))
        at = put(out, at, _HEADER_KEYS)
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
    """Write key and value unless they are null; a bar precedes the first if it begins the line."""
    if not show and (key_length >= 0 or value_length >= 0):
        put8(out, at, _BAR)
        at += 1
    if key_length >= 0:
        put8(out, at, _BLANK)
        at = put_utf8(out, put(out, at + 1, _KEY), data, key, key + key_length)
    if value_length >= 0:
        put8(out, at, _BLANK)
        at = put_utf8(out, put(out, at + 1, _PAYLOAD), data, value, value + value_length)
    return at


@inlined
def _put_records(
    head: U8, at_head: int, data: U8, position: int, end: int, flags: int, out: U8, state: I64, gaps: I64
) -> bool:
    """Write the lines of a batch's records, which fill ``data[position:end]``. False: the plain path must render them;
    ``state`` is as before."""
    before = state[S_FIRST], state[S_LAST], state[S_RECORDS], state[S_GAPS]
    offset = int64_at(head, at_head)
    is_fixed = int16_at(head, at_head + 21) & 8 != 0
    time = int64_at(head, at_head + 35) if is_fixed else int64_at(head, at_head + 27)
    sequence = int32_at(head, at_head + 53)
    count = int32_at(head, at_head + 57)
    at = state[S_LENGTH]
    for _ in range(count):
        delta, position, at = _put_record(data, position, end, offset, time, is_fixed, sequence, flags, out, at)
        if position < 0:
            break
        found = offset + delta
        if state[S_RECORDS] == 0:
            state[S_FIRST] = found
        elif found != state[S_LAST] + 1:
            gaps[state[S_GAPS], 0] = state[S_LAST]
            gaps[state[S_GAPS], 1] = found
            state[S_GAPS] += 1
        state[S_LAST] = found
        state[S_RECORDS] += 1
    if count and position != end:
        state[S_FIRST], state[S_LAST], state[S_RECORDS], state[S_GAPS] = before
        return False
    state[S_LENGTH] = at
    return True


@inlined
def _put_batch_line(data: U8, position: int, size: int, base: int, out: U8, at: int, is_valid: bool) -> int:
    """Write the line of the batch at ``position`` of data, which is at ``base + position`` in its file."""
    attributes = int16_at(data, position + 21)
    delta = int32_at(data, position + 23)
    sequence = int32_at(data, position + 53)
    at = put_field(out, at, _BASE_OFFSET, int64_at(data, position))
    at = put_field(out, at, _LAST_OFFSET, int64_at(data, position) + delta)
    at = put_field(out, at, _COUNT, int32_at(data, position + 57))
    at = put_field(out, at, _BASE_SEQUENCE, sequence)
    at = put_field(out, at, _LAST_SEQUENCE, -1 if sequence < 0 else _sequence_after(sequence, delta))
    at = put_field(out, at, _PRODUCER_ID, int64_at(data, position + 43))
    at = put_field(out, at, _PRODUCER_EPOCH, int16_at(data, position + 51))
    at = put_field(out, at, _LEADER_EPOCH, int32_at(data, position + 12))
    at = put_boolean(out, at, _TRANSACTIONAL, attributes & 16)
    at = put_boolean(out, at, _CONTROL, attributes & 32)
    at = put(out, at, _HORIZON)
    if attributes & 64:
        put8(out, at, _OPEN)
        at = put_number(out, at + 1, int64_at(data, position + 27))
        put8(out, at, _CLOSE)
        at += 1
    else:
        at = put(out, at, _EMPTY)
    at = put_field(out, at, _POSITION, base + position)
    at = put(out, at, _APPEND_TIME) if attributes & 8 else put(out, at, _CREATE_TIME)
    at = put_number(out, at, int64_at(data, position + 35))
    at = put_field(out, at, _SIZE, size)
    at = put(out, at, _MAGIC)
    codec = attributes & 7
    if codec == 0:
        at = put(out, at, _NONE)
    elif codec == 1:
        at = put(out, at, _GZIP)
    elif codec == 2:
        at = put(out, at, _SNAPPY)
    elif codec == 3:
        at = put(out, at, _LZ4)
    else:
        at = put(out, at, _ZSTD)
    at = put_field(out, at, _CRC, uint32_at(data, position + 17))
    at = put_boolean(out, at, _IS_VALID, 1 if is_valid else 0)
    put8(out, at, _NEWLINE)
    return at + 1


@inlined
def _has_room(count: int, size: int, flags: int, out: U8, state: I64, gaps: I64) -> bool:
    """Whether ``out`` and ``gaps`` have room for a batch of ``count`` records in ``size`` bytes, in the worst case."""
    room = int(out.shape[0]) - int(state[S_LENGTH]) - _BATCH_ROOM
    if flags & DEEP:
        return count * _RECORD_ROOM <= room - 3 * size and count <= int(gaps.shape[0]) - int(state[S_GAPS])
    return room >= 0


@kernel
def render_batches(
    data: U8, start: int, end: int, base: int, flags: int, out: U8, state: I64, gaps: I64
) -> tuple[int, int]:
    """Write the lines of the whole batches in ``data[start:end]``: (position, `Stop`).

    ``data[0]`` lies at ``base`` in its file. ``state`` is [STATE_FIELDS], continued by the next call; ``gaps`` is
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
            if not _put_records(data, position, data, position + 61, position + size, flags, out, state, gaps):
                state[S_LENGTH] = length
                return position, _PLAIN
        if not is_valid:
            state[S_INVALID] += 1
        position += size
    return position, _END


@kernel
def render_records(data: U8, position: int, area: U8, flags: int, out: U8, state: I64, gaps: I64) -> int:
    """Write the lines of the records of the batch at ``position`` of data, decompressed in ``area``: a `Stop`.

    END; FULL: no room; PLAIN: the plain path must render the records; text and state are as before.
    """
    count = int32_at(data, position + 57)
    if count * 7 > area.shape[0]:
        return _PLAIN
    if not _has_room(count, area.shape[0], flags, out, state, gaps):
        return _FULL
    fits = _put_records(data, position, area, 0, area.shape[0], flags, out, state, gaps)
    return _END if fits else _PLAIN
