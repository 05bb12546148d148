"""The loops that write, compiled by numba: columns to batches of magic 2.

A column of bytes comes as its data and a table of [2, rows] of positions and lengths in it, length -1 for null.
"""

from __future__ import annotations

from typing import Final

from seglog.records.batch import (
    ATTRIBUTES_AT,
    BASE_SEQUENCE_AT,
    BASE_TIMESTAMP_AT,
    BATCH_OVERHEAD,
    CRC_AT,
    CRC_START,
    LAST_OFFSET_DELTA_AT,
    LEADER_EPOCH_AT,
    LENGTH_AT,
    LOG_OVERHEAD,
    MAGIC_POSITION,
    MAX_TIMESTAMP_AT,
    PRODUCER_EPOCH_AT,
    PRODUCER_ID_AT,
    RECORDS_COUNT_AT,
    TIMESTAMP_TYPE_BIT,
)
from seglog.records.intrinsics import I64, U8, copy, crc32c, inlined, kernel, put8, put16, put32, put64

CUT_FIELDS: Final = ("row", "count", "size", "base_timestamp", "max_timestamp", "position")
"""Columns of the table of batches: first row, rows, bytes of records, timestamps, and where the batch begins."""
_ROW, _COUNT, _SIZE, _BASE_TIMESTAMP, _MAX_TIMESTAMP, _POSITION = range(len(CUT_FIELDS))

HEADER_FIELDS: Final = (
    "base_offset",
    "leader_epoch",
    "attributes",
    "producer_id",
    "producer_epoch",
    "base_sequence",
    "append_time",
)
"""The fields that all batches share. ``append_time`` is used if the attributes have the bit of LogAppendTime."""
_BASE_OFFSET, _LEADER_EPOCH, _ATTRIBUTES, _PRODUCER_ID, _PRODUCER_EPOCH, _BASE_SEQUENCE, _APPEND_TIME = range(
    len(HEADER_FIELDS)
)


@inlined
def varint_size(value: int) -> int:
    """Bytes of the zig-zag varint of any 64-bit number."""
    raw = (value << 1) ^ (value >> 63)
    if 0 <= raw < 128:
        return 1
    size = 0
    while raw != 0:
        size += 1
        raw = (raw >> 7) & 0x01FFFFFFFFFFFFFF
    return size


@inlined
def put_varint(out: U8, at: int, value: int) -> int:
    """Write the zig-zag varint of any 64-bit number; returns the position after it."""
    raw = (value << 1) ^ (value >> 63)
    while raw < 0 or raw > 127:
        put8(out, at, (raw & 0x7F) | 0x80)
        at += 1
        raw = (raw >> 7) & 0x01FFFFFFFFFFFFFF
    put8(out, at, raw)
    return at + 1


@inlined
def _span_size(length: int) -> int:
    return 1 if length < 0 else varint_size(length) + length


@inlined
def _put_span(out: U8, at: int, data: U8, position: int, length: int) -> int:
    """Write a length and as many bytes. ``out`` must have 16 more bytes after them."""
    at = put_varint(out, at, length)
    if length <= 0:
        return at
    if length <= 16 and position + 16 <= data.shape[0]:
        copy(out, at, data, position, 16)  # two words cost less than a call of memcpy
    else:
        copy(out, at, data, position, length)
    return at + length


@inlined
def _headers_size(first: int, count: int, header_keys: I64, header_values: I64) -> int:
    size = varint_size(count)
    for header in range(first, first + count):
        size += _span_size(header_keys[1, header]) + _span_size(header_values[1, header])
    return size


@kernel
def cut_batches(
    timestamps: I64, keys: I64, values: I64, headers: I64, header_keys: I64, header_values: I64, limit: int, cuts: I64
) -> int:
    """Cut the rows into batches of at most ``limit`` bytes, or of one record. Returns the number of batches.

    ``headers`` is [2, rows]: first header, count. ``cuts`` is [at least rows, CUT_FIELDS], all but the position filled.
    """
    batch = -1
    count = 0
    size = 0
    for row in range(timestamps.shape[0]):
        fixed = 1 + _span_size(keys[1, row]) + _span_size(values[1, row])
        fixed += _headers_size(headers[0, row], headers[1, row], header_keys, header_values)
        if batch >= 0:
            body = fixed + varint_size(timestamps[row] - cuts[batch, _BASE_TIMESTAMP]) + varint_size(count)
            whole = varint_size(body) + body
        if batch < 0 or BATCH_OVERHEAD + size + whole > limit or count == 0x7FFFFFFF:
            body = fixed + 2
            whole = varint_size(body) + body
            batch += 1
            count = 0
            size = 0
            cuts[batch, _ROW] = row
            cuts[batch, _BASE_TIMESTAMP] = timestamps[row]
            cuts[batch, _MAX_TIMESTAMP] = -1
        count += 1
        size += whole
        cuts[batch, _COUNT] = count
        cuts[batch, _SIZE] = size
        cuts[batch, _MAX_TIMESTAMP] = max(cuts[batch, _MAX_TIMESTAMP], timestamps[row])
    return batch + 1


@inlined
def _put_header(out: U8, at: int, cuts: I64, batch: int, common: I64) -> None:
    append = common[_ATTRIBUTES] & TIMESTAMP_TYPE_BIT != 0
    row = cuts[batch, _ROW]
    put64(out, at, common[_BASE_OFFSET] + row)
    put32(out, at + LENGTH_AT, cuts[batch, _SIZE] + BATCH_OVERHEAD - LOG_OVERHEAD)
    put32(out, at + LEADER_EPOCH_AT, common[_LEADER_EPOCH])
    put8(out, at + MAGIC_POSITION, 2)
    put16(out, at + ATTRIBUTES_AT, common[_ATTRIBUTES])
    put32(out, at + LAST_OFFSET_DELTA_AT, cuts[batch, _COUNT] - 1)
    put64(out, at + BASE_TIMESTAMP_AT, cuts[batch, _BASE_TIMESTAMP])
    put64(out, at + MAX_TIMESTAMP_AT, common[_APPEND_TIME] if append else cuts[batch, _MAX_TIMESTAMP])
    put64(out, at + PRODUCER_ID_AT, common[_PRODUCER_ID])
    put16(out, at + PRODUCER_EPOCH_AT, common[_PRODUCER_EPOCH])
    sequence = common[_BASE_SEQUENCE]
    put32(out, at + BASE_SEQUENCE_AT, sequence if sequence < 0 else (sequence + row) & 0x7FFFFFFF)
    put32(out, at + RECORDS_COUNT_AT, cuts[batch, _COUNT])


@inlined
def _put_headers(
    out: U8,
    at: int,
    first: int,
    count: int,
    key_data: U8,
    header_keys: I64,
    value_data: U8,
    header_values: I64,
) -> int:
    at = put_varint(out, at, count)
    for header in range(first, first + count):
        at = _put_span(out, at, key_data, header_keys[0, header], header_keys[1, header])
        at = _put_span(out, at, value_data, header_values[0, header], header_values[1, header])
    return at


@kernel
def write_batches(
    timestamps: I64,
    key_data: U8,
    keys: I64,
    value_data: U8,
    values: I64,
    headers: I64,
    header_key_data: U8,
    header_keys: I64,
    header_value_data: U8,
    header_values: I64,
    cuts: I64,
    common: I64,
    out: U8,
) -> None:
    """Write the batches that `cut_batches` made, each at its position in ``out``, uncompressed, with its CRC.

    ``out`` is 16 bytes longer than they are. ``common`` has the `HEADER_FIELDS`.
    """
    for batch in range(cuts.shape[0]):
        start = cuts[batch, _POSITION]
        at = start + BATCH_OVERHEAD
        _put_header(out, start, cuts, batch, common)
        first = cuts[batch, _ROW]
        for delta in range(cuts[batch, _COUNT]):
            row = first + delta
            timestamp = timestamps[row] - cuts[batch, _BASE_TIMESTAMP]
            body = (
                1 + varint_size(timestamp) + varint_size(delta) + _span_size(keys[1, row]) + _span_size(values[1, row])
            )
            body += _headers_size(headers[0, row], headers[1, row], header_keys, header_values)
            at = put_varint(out, at, body)
            put8(out, at, 0)
            at = put_varint(out, at + 1, timestamp)
            at = put_varint(out, at, delta)
            at = _put_span(out, at, key_data, keys[0, row], keys[1, row])
            at = _put_span(out, at, value_data, values[0, row], values[1, row])
            at = _put_headers(
                out,
                at,
                headers[0, row],
                headers[1, row],
                header_key_data,
                header_keys,
                header_value_data,
                header_values,
            )
        put32(out, start + CRC_AT, crc32c(out, start + CRC_START, at))
