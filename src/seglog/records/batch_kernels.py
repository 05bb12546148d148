"""The loops that check, compiled by numba: walk a segment batch by batch and check every record.

Bytes are read-only ``uint8`` arrays, tables are ``int64`` arrays whose columns are named below. Nothing here raises or
allocates, and the GIL is not held. `seglog.records.batch_tables` and `column_decoding` call these loops.

Lengths and counts are compared with the bytes that are left before a byte is read, so hostile bytes end in a `Verdict`.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from seglog.records.batch import (
    ATTRIBUTES_AT,
    BASE_SEQUENCE_AT,
    BASE_TIMESTAMP_AT,
    BATCH_OVERHEAD,
    CODEC_MASK,
    CRC_AT,
    CRC_START,
    LAST_OFFSET_DELTA_AT,
    LEADER_EPOCH_AT,
    LENGTH_AT,
    LOG_OVERHEAD,
    MAGIC_POSITION,
    MAX_TIMESTAMP_AT,
    MIN_ENTRY,
    PRODUCER_EPOCH_AT,
    PRODUCER_ID_AT,
    RECORDS_COUNT_AT,
    TIMESTAMP_TYPE_BIT,
)
from seglog.records.intrinsics import (
    I64,
    U8,
    byte_at,
    crc32,
    crc32c,
    inlined,
    int8_at,
    int16_at,
    int32_at,
    int64_at,
    kernel,
    uint32_at,
)


class Verdict(IntEnum):
    """The first damage found in a batch."""

    OK = 0
    CRC = 1
    """The stored CRC is not that of the bytes."""
    HEADER = 2
    """A field of the header has a value that Kafka never writes."""
    COUNT = 3
    """The count of records is negative, or larger than the bytes can hold."""
    RECORD_SIZE = 4
    """A record reaches past the end of its batch, or its fields do not fill it exactly."""
    VARINT = 5
    """A varint of more than 5 bytes or 32 bits, a varlong of more than 10 or 64, or a truncated one."""
    KEY = 6
    VALUE = 7
    HEADERS = 8
    """An impossible count or length in a record's headers."""
    OFFSET = 9
    """An offset delta that does not rise, or is not in 0 to lastOffsetDelta."""
    TIMESTAMP = 10
    """A timestamp beyond 64 bits."""
    TRAILING = 11
    """Bytes are left after the last record."""
    COMPRESSION = 12
    """The records are not a stream of their codec, or larger than the limit when decompressed."""


class Stop(IntEnum):
    """Why a walk ended."""

    END = 0
    FULL = 1
    """The table is full: call again from the position returned."""
    TORN = 2
    """Fewer bytes are left than the next batch has, or than its first 17."""
    MAGIC = 3
    SIZE = 4


BATCH_FIELDS: Final = (
    "position",  # of the batch, counted from `base`
    "size",  # bytes of the whole batch
    "magic",
    "verdict",
    "base_offset",  # for magic 0 and 1 the offset of the message: the last one in it if it is compressed
    "leader_epoch",
    "crc",
    "computed_crc",  # -1 if it was not computed
    "attributes",
    "last_offset_delta",
    "base_timestamp",
    "max_timestamp",
    "producer_id",
    "producer_epoch",
    "base_sequence",
    "count",
    "bad_record",  # index of the record that the verdict is about, -1: none
    "bad_position",  # where that record begins, counted from `base`
    "last_delta",  # offset delta of the last record, -1: no record, or records not checked
    "largest_timestamp",  # of a record; -2^63 if there is none, undefined if records were not checked
)
"""Columns of the table that `walk` fills, all int64."""

AREA_FIELDS: Final = (
    "start",  # first byte of the (decompressed) records
    "end",
    "count",
    "base_offset",
    "last_offset_delta",
    "base_timestamp",
    "fixed_timestamp",  # the timestamp of every record, if `is_fixed` (LogAppendTime)
    "is_fixed",
    "rows",  # out: records within the offsets asked for
)
"""Columns of the table that says where records lie, all int64."""

MIN_RECORD: Final = 7
"""Bytes of the smallest record: length, attributes, two deltas, two lengths, header count."""

(
    _POSITION,
    _SIZE,
    _MAGIC,
    _VERDICT,
    _BASE_OFFSET,
    _LEADER_EPOCH,
    _STORED_CRC,
    _COMPUTED_CRC,
    _ATTRIBUTES,
    _LAST_OFFSET_DELTA,
    _BASE_TIMESTAMP,
    _MAX_TIMESTAMP,
    _PRODUCER_ID,
    _PRODUCER_EPOCH,
    _BASE_SEQUENCE,
    _COUNT,
    _BAD_RECORD,
    _BAD_POSITION,
    _LAST_DELTA,
    _LARGEST_TIMESTAMP,
) = range(len(BATCH_FIELDS))
A_START, A_END, A_COUNT, A_OFFSET, A_LAST_DELTA, A_TIMESTAMP, A_FIXED, A_IS_FIXED, A_ROWS = range(len(AREA_FIELDS))
(
    _OK,
    _BAD_CRC,
    _BAD_HEADER,
    _BAD_COUNT,
    _BAD_SIZE,
    _BAD_VARINT,
    _BAD_KEY,
    _BAD_VALUE,
    _BAD_HEADERS,
    _BAD_OFFSET,
    _BAD_TIMESTAMP,
    _TRAILING,
) = range(12)
_STOP_END, _STOP_FULL, _STOP_TORN, _STOP_MAGIC, _STOP_SIZE = range(5)


@inlined
def read_varint(data: U8, position: int, end: int) -> tuple[int, int]:
    """(value, next position) of a zig-zag varint of at most 5 bytes; next position -1 if malformed (``ByteUtils``)."""
    if position >= end:
        return 0, -1
    byte = byte_at(data, position)
    position += 1
    value = byte & 0x7F
    shift = 7
    while byte >= 0x80:
        if position >= end or shift > 28:
            return 0, -1
        byte = byte_at(data, position)
        position += 1
        value |= (byte & 0x7F) << shift
        shift += 7
    if value > 0xFFFFFFFF:
        return 0, -1
    return (value >> 1) ^ -(value & 1), position


@inlined
def read_varlong(data: U8, position: int, end: int) -> tuple[int, int]:
    """The same for at most 10 bytes and 64 bits."""
    if position >= end:
        return 0, -1
    byte = byte_at(data, position)
    position += 1
    value = byte & 0x7F
    shift = 7
    while byte >= 0x80:
        if position >= end or shift > 63:
            return 0, -1
        byte = byte_at(data, position)
        if shift == 63 and byte > 1:
            return 0, -1
        position += 1
        value |= (byte & 0x7F) << shift
        shift += 7
    return ((value >> 1) & 0x7FFFFFFFFFFFFFFF) ^ -(value & 1), position


@inlined
def read_span(data: U8, position: int, end: int) -> tuple[int, int, int]:
    """(first byte, length or -1, next position) of bytes after their length; next position -1 if they do not fit."""
    length, position = read_varint(data, position, end)
    if position < 0 or length < -1 or length > end - position:
        return 0, 0, -1
    if length < 0:
        return position, -1, position
    return position, length, position + length


@inlined
def _pass_headers(data: U8, position: int, end: int, count: int) -> int:
    """The position after ``count`` headers, -1 if they are not well-formed."""
    for _ in range(count):
        _, length, position = read_span(data, position, end)
        if position < 0 or length < 0:
            return -1
        _, length, position = read_span(data, position, end)
        if position < 0:
            return -1
    return position


@inlined
def read_record(data: U8, position: int, limit: int) -> tuple[int, int, int, int, int, int, int, int, int, int]:
    """One record, every length checked, by the rules of `seglog.records.record`.

    (verdict, end, timestamp delta, offset delta, key, key length, value, value length, headers, header count)
    """
    size, position = read_varint(data, position, limit)
    if position < 0:
        return _BAD_VARINT, 0, 0, 0, 0, 0, 0, 0, 0, 0
    if size < MIN_RECORD - 1 or size > limit - position:
        return _BAD_SIZE, 0, 0, 0, 0, 0, 0, 0, 0, 0
    end = position + size
    timestamp, position = read_varlong(data, position + 1, end)
    if position < 0:
        return _BAD_VARINT, 0, 0, 0, 0, 0, 0, 0, 0, 0
    offset, position = read_varint(data, position, end)
    if position < 0:
        return _BAD_VARINT, 0, 0, 0, 0, 0, 0, 0, 0, 0
    key, key_length, position = read_span(data, position, end)
    if position < 0:
        return _BAD_KEY, 0, 0, 0, 0, 0, 0, 0, 0, 0
    value, value_length, position = read_span(data, position, end)
    if position < 0:
        return _BAD_VALUE, 0, 0, 0, 0, 0, 0, 0, 0, 0
    headers, position = read_varint(data, position, end)
    if position < 0 or headers < 0 or 2 * headers > end - position:
        return _BAD_HEADERS, 0, 0, 0, 0, 0, 0, 0, 0, 0
    first = position
    if headers > 0:
        position = _pass_headers(data, position, end, headers)
        if position < 0:
            return _BAD_HEADERS, 0, 0, 0, 0, 0, 0, 0, 0, 0
    if position != end:
        return _BAD_SIZE, 0, 0, 0, 0, 0, 0, 0, 0, 0
    return _OK, end, timestamp, offset, key, key_length, value, value_length, first, headers


@inlined
def overflows(base: int, delta: int) -> bool:
    """Whether the sum of two 64-bit numbers overflows 64 bits."""
    total = base + delta
    return ((base ^ total) & (delta ^ total)) < 0


@inlined
def _check_records(data: U8, start: int, end: int, base: int, table: I64, row: int) -> int:
    """Check every record of one batch; fills the last four columns and returns the verdict."""
    count = table[row, _COUNT]
    if count < 0 or count * MIN_RECORD > end - start:
        return _BAD_COUNT
    position = start
    base_timestamp = table[row, _BASE_TIMESTAMP]
    last_delta = table[row, _LAST_OFFSET_DELTA]
    is_fixed = table[row, _ATTRIBUTES] & TIMESTAMP_TYPE_BIT != 0
    largest = table[row, _MAX_TIMESTAMP] if is_fixed and count > 0 else -0x8000000000000000
    previous = -1
    for index in range(count):
        verdict, after, timestamp, delta, _, _, _, _, _, _ = read_record(data, position, end)
        if verdict == _OK:
            if delta <= previous or delta > last_delta:
                verdict = _BAD_OFFSET
            elif not is_fixed:
                if overflows(base_timestamp, timestamp):
                    verdict = _BAD_TIMESTAMP
                largest = max(largest, base_timestamp + timestamp)
        if verdict != _OK:
            table[row, _BAD_RECORD] = index
            table[row, _BAD_POSITION] = base + position
            return verdict
        previous = delta
        position = after
    table[row, _LAST_DELTA] = previous
    table[row, _LARGEST_TIMESTAMP] = largest
    return _OK if position == end else _TRAILING


@inlined
def _read_header(data: U8, position: int, table: I64, row: int) -> None:
    table[row, _LEADER_EPOCH] = int32_at(data, position + LEADER_EPOCH_AT)
    table[row, _STORED_CRC] = uint32_at(data, position + CRC_AT)
    table[row, _ATTRIBUTES] = int16_at(data, position + ATTRIBUTES_AT)
    table[row, _LAST_OFFSET_DELTA] = int32_at(data, position + LAST_OFFSET_DELTA_AT)
    table[row, _BASE_TIMESTAMP] = int64_at(data, position + BASE_TIMESTAMP_AT)
    table[row, _MAX_TIMESTAMP] = int64_at(data, position + MAX_TIMESTAMP_AT)
    table[row, _PRODUCER_ID] = int64_at(data, position + PRODUCER_ID_AT)
    table[row, _PRODUCER_EPOCH] = int16_at(data, position + PRODUCER_EPOCH_AT)
    table[row, _BASE_SEQUENCE] = int32_at(data, position + BASE_SEQUENCE_AT)
    table[row, _COUNT] = int32_at(data, position + RECORDS_COUNT_AT)


@inlined
def _read_message(data: U8, position: int, size: int, table: I64, row: int) -> None:
    """A message of format 0 or 1, in the columns of a batch of one record without a producer."""
    magic = table[row, _MAGIC]
    timestamp = int64_at(data, position + 18) if magic == 1 and size >= 34 else -1
    table[row, _LEADER_EPOCH] = -1
    table[row, _STORED_CRC] = uint32_at(data, position + LOG_OVERHEAD)
    table[row, _ATTRIBUTES] = int8_at(data, position + 17)
    table[row, _LAST_OFFSET_DELTA] = 0
    table[row, _BASE_TIMESTAMP] = timestamp
    table[row, _MAX_TIMESTAMP] = timestamp
    table[row, _PRODUCER_ID] = -1
    table[row, _PRODUCER_EPOCH] = -1
    table[row, _BASE_SEQUENCE] = -1
    table[row, _COUNT] = 1


@inlined
def _check_header(table: I64, row: int) -> int:
    """The rules of `seglog.records.batch.check_header`; a message of format 1 must have room for its own header."""
    if table[row, _MAGIC] < 2:
        return _OK if table[row, _MAGIC] == 0 or table[row, _SIZE] >= 34 else _BAD_HEADER
    offset = table[row, _BASE_OFFSET]
    delta = table[row, _LAST_OFFSET_DELTA]
    if offset < 0 or delta < 0 or table[row, _COUNT] < 0 or overflows(offset, delta):
        return _BAD_HEADER
    return _OK


@kernel
def walk(
    data: U8, start: int, end: int, base: int, table: I64, check_crc: bool, check_records: bool
) -> tuple[int, int, int]:
    """Walk the batches and messages in ``data[start:end]``; (rows filled, position after the last, `Stop`).

    ``table`` is [rows, BATCH_FIELDS]; positions in it count from ``base`` (where ``data[0]`` lies in its file), the one
    returned does not. ``check_records`` checks uncompressed batches of magic 2 only, after the CRC and the header.
    """
    position = start
    for row in range(table.shape[0]):
        if end - position <= MAGIC_POSITION:
            return row, position, _STOP_END if position == end else _STOP_TORN
        magic = int8_at(data, position + MAGIC_POSITION)
        size = int32_at(data, position + LENGTH_AT) + LOG_OVERHEAD
        if magic < 0 or magic > 2:
            return row, position, _STOP_MAGIC
        if size < (BATCH_OVERHEAD if magic == 2 else MIN_ENTRY):
            return row, position, _STOP_SIZE
        if size > end - position:
            return row, position, _STOP_TORN
        table[row, _POSITION] = base + position
        table[row, _SIZE] = size
        table[row, _MAGIC] = magic
        table[row, _BASE_OFFSET] = int64_at(data, position)
        table[row, _BAD_RECORD] = -1
        table[row, _BAD_POSITION] = -1
        table[row, _LAST_DELTA] = -1
        table[row, _COMPUTED_CRC] = -1
        if magic == 2:
            _read_header(data, position, table, row)
        else:
            _read_message(data, position, size, table, row)
        verdict = _OK
        if check_crc:
            computed = (
                crc32c(data, position + CRC_START, position + size)
                if magic == 2
                else crc32(data, position + MAGIC_POSITION, position + size)
            )
            table[row, _COMPUTED_CRC] = computed
            if computed != table[row, _STORED_CRC]:
                verdict = _BAD_CRC
        if verdict == _OK:
            verdict = _check_header(table, row)
        if verdict == _OK and check_records and magic == 2 and table[row, _ATTRIBUTES] & CODEC_MASK == 0:
            verdict = _check_records(data, position + BATCH_OVERHEAD, position + size, base, table, row)
        table[row, _VERDICT] = verdict
        position += size
    return table.shape[0], position, _STOP_FULL


@kernel
def check_areas(data: U8, areas: I64, base: int, table: I64) -> int:
    """Check every record of (decompressed) areas; area i is of row i of a `walk` table. Returns the number of bad ones.

    Bad positions count from ``base``, which stands for ``data[0]``.
    """
    bad = 0
    for row in range(areas.shape[0]):
        verdict = _check_records(data, areas[row, A_START], areas[row, A_END], base, table, row)
        table[row, _VERDICT] = verdict
        if verdict != _OK:
            bad += 1
    return bad
