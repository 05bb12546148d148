"""The second half of compaction's second loop, compiled by numba: a batch of some of the records of another.

See `seglog.records.compact_kernels`.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Final

import numpy as np

from seglog.records.batch import (
    ATTRIBUTES_AT,
    BASE_TIMESTAMP_AT,
    CRC_AT,
    CRC_START,
    LENGTH_AT,
    MAX_TIMESTAMP_AT,
    RECORDS_COUNT_AT,
)
from seglog.records.batch_kernels import overflows, read_varint, read_varlong
from seglog.records.intrinsics import (
    I64,
    U8,
    as_int,
    copy,
    crc32c,
    inlined,
    int16_at,
    int32_at,
    int64_at,
    put8,
    put16,
    put32,
    put64,
)


class Action(IntEnum):
    """What became of the last batch that was filtered."""

    DROPPED = 0
    VERBATIM = 1
    REWRITTEN = 2
    EMPTIED = 3


GROWTH_ROOM: Final = 14
"""Bytes by which a record can grow when its timestamp counts from elsewhere: its length by 4, its delta by 9."""
_NOW, _RETENTION = 8, 9
_OUTPUT, _ACTION = 16, 17
_DROPPED, _VERBATIM, _REWRITTEN, _EMPTIED = range(4)
_U: Any = np.uint64


@inlined
def _put_varlong(out: U8, at: int, value: int) -> int:
    """Write a zig-zag varlong; the position behind it."""
    raw = _U((value << 1) ^ (value >> 63))
    while raw >= _U(0x80):
        put8(out, at, as_int((raw & _U(0x7F)) | _U(0x80)))
        raw >>= _U(7)
        at += 1
    put8(out, at, as_int(raw))
    return at + 1


@inlined
def _varlong_size(value: int) -> int:
    raw = _U((value << 1) ^ (value >> 63))
    size = 1
    while raw >= _U(0x80):
        raw >>= _U(7)
        size += 1
    return size


@inlined
def _to_timestamps(data: U8, position: int, rows: I64, first: int, kept: int) -> tuple[int, bool]:
    """Make timestamps of the kept records' deltas: (the largest of the batch, all are of 64 bits)."""
    base = int64_at(data, position + BASE_TIMESTAMP_AT)
    if int16_at(data, position + ATTRIBUTES_AT) & 8 != 0:
        append_time = int64_at(data, position + MAX_TIMESTAMP_AT)
        for row in range(first, first + kept):
            rows[row, 2] = append_time
        return append_time, True
    largest = -1
    for row in range(first, first + kept):
        if overflows(base, rows[row, 2]):
            return 0, False
        rows[row, 2] += base
        largest = max(largest, rows[row, 2])
    return largest, True


@inlined
def _finish_batch(
    data: U8, position: int, out: U8, at: int, size: int, attributes: int, base_ts: int, max_ts: int, count: int
) -> None:
    """The header of the batch of ``size`` bytes at ``at``: that of the old one, but for what is given."""
    copy(out, at, data, position, 61)
    put32(out, at + LENGTH_AT, size - 12)
    put16(out, at + ATTRIBUTES_AT, attributes)
    put64(out, at + BASE_TIMESTAMP_AT, base_ts)
    put64(out, at + MAX_TIMESTAMP_AT, max_ts)
    put32(out, at + RECORDS_COUNT_AT, count)
    put32(out, at + CRC_AT, crc32c(out, at + CRC_START, at + size))


@inlined
def _rewrite(
    data: U8, position: int, out: U8, at: int, rows: I64, first: int, kept: int, horizon: int, largest: int
) -> int:
    """Write the kept records as a batch at ``at``; its size. ``horizon`` is -1 or what timestamps count from.

    ``MemoryRecords.buildRetainedRecordsInto``: offsets, producer and sequence stay those of the old batch.
    """
    base_ts = horizon if horizon >= 0 else rows[first, 2]
    to = at + 61
    for row in range(first, first + kept):
        stop = rows[row, 1]
        _, start = read_varint(data, rows[row, 0], stop)
        _, rest = read_varlong(data, start + 1, stop)
        delta = rows[row, 2] - base_ts
        to = _put_varlong(out, to, 1 + _varlong_size(delta) + stop - rest)
        put8(out, to, 0)
        to = _put_varlong(out, to + 1, delta)
        copy(out, to, data, rest, stop - rest)
        to += stop - rest
    attributes = (int16_at(data, position + ATTRIBUTES_AT) & 0x3F) | (0x40 if horizon >= 0 else 0)
    _finish_batch(data, position, out, at, to - at, attributes, base_ts, largest, kept)
    return to - at


@inlined
def write_batch(
    data: U8,
    position: int,
    size: int,
    first: int,
    kept: int,
    tombstone: bool,
    stays: bool,
    out: U8,
    facts: I64,
    rows: I64,
) -> int:
    """What is left of the batch goes to the output's end, if anything is: how many bytes, -1 if the batch is bad."""
    at = facts[_OUTPUT]
    attributes = int16_at(data, position + ATTRIBUTES_AT)
    has_horizon = attributes & 0x40 != 0
    if kept == 0:
        facts[_ACTION] = _EMPTIED if stays else _DROPPED
        if stays:
            _finish_batch(
                data, position, out, at, 61, attributes & 0x38, -1, int64_at(data, position + MAX_TIMESTAMP_AT), 0
            )
        return 61 if stays else 0
    if kept == int32_at(data, position + RECORDS_COUNT_AT) and (has_horizon or not tombstone):
        facts[_ACTION] = _VERBATIM
        copy(out, at, data, position, size)
        return size
    largest, good = _to_timestamps(data, position, rows, first, kept)
    if not good:
        return -1
    horizon = -1
    if has_horizon:
        horizon = int64_at(data, position + BASE_TIMESTAMP_AT)
    elif tombstone:
        horizon = facts[_NOW] + facts[_RETENTION]
    facts[_ACTION] = _REWRITTEN
    return _rewrite(data, position, out, at, rows, first, kept, horizon, largest)
