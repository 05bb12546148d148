"""The loops from batches to columns, compiled by numba: find the parts of every record and copy them.

Bytes are read-only ``uint8`` arrays, tables ``int64``, as in `seglog.records.batch_kernels`, which parses records.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from seglog.records.batch_kernels import (
    A_COUNT,
    A_END,
    A_FIXED,
    A_IS_FIXED,
    A_LAST_DELTA,
    A_OFFSET,
    A_ROWS,
    A_START,
    A_TIMESTAMP,
    MIN_RECORD,
    Verdict,
    overflows,
    read_record,
    read_span,
)
from seglog.records.intrinsics import I32, I64, U8, as_int, copy, kernel

ROW_FIELDS: Final = ("offset", "timestamp", "key", "key_length", "value", "value_length", "headers", "header_count")
"""Rows of the table that `index_records` fills: positions and lengths in bytes, length -1 for null."""
R_OFFSET, R_TIMESTAMP, R_KEY, R_KEY_LENGTH, R_VALUE, R_VALUE_LENGTH, R_HEADERS, R_HEADER_COUNT = range(len(ROW_FIELDS))

_OK: Final = int(Verdict.OK)
_COUNT: Final = int(Verdict.COUNT)
_OFFSET: Final = int(Verdict.OFFSET)
_TIMESTAMP: Final = int(Verdict.TIMESTAMP)
_TRAILING: Final = int(Verdict.TRAILING)


@kernel
def index_records(data: U8, areas: I64, low: int, high: int, rows: I64) -> tuple[int, int, int, int]:
    """Find the parts of each record with ``low <= offset < high``: (rows filled, verdict, bad area, bad record).

    ``areas`` is [batches, AREA_FIELDS], ``rows`` [ROW_FIELDS, at least the sum of all counts]. Every record is checked,
    also outside the offsets; the loop ends at the first bad one.
    """
    filled = 0
    for area in range(areas.shape[0]):
        position = areas[area, A_START]
        end = areas[area, A_END]
        count = areas[area, A_COUNT]
        before = filled
        if count < 0 or count * MIN_RECORD > end - position:
            return filled, _COUNT, area, -1
        previous = -1
        for index in range(count):
            verdict, after, timestamp, delta, key, key_length, value, value_length, headers, header_count = read_record(
                data, position, end
            )
            if verdict != _OK:
                return filled, verdict, area, index
            if delta <= previous or delta > areas[area, A_LAST_DELTA]:
                return filled, _OFFSET, area, index
            if areas[area, A_IS_FIXED] == 0 and overflows(areas[area, A_TIMESTAMP], timestamp):
                return filled, _TIMESTAMP, area, index
            position = after
            previous = delta
            offset = areas[area, A_OFFSET] + delta
            if low <= offset < high:
                timestamp += areas[area, A_TIMESTAMP]
                rows[R_OFFSET, filled] = offset
                rows[R_TIMESTAMP, filled] = areas[area, A_FIXED] if areas[area, A_IS_FIXED] != 0 else timestamp
                rows[R_KEY, filled] = key
                rows[R_KEY_LENGTH, filled] = key_length
                rows[R_VALUE, filled] = value
                rows[R_VALUE_LENGTH, filled] = value_length
                rows[R_HEADERS, filled] = headers
                rows[R_HEADER_COUNT, filled] = header_count
                filled += 1
        if position != end:
            return filled, _TRAILING, area, -1
        areas[area, A_ROWS] = filled - before
    return filled, _OK, -1, -1


@kernel
def index_headers(data: U8, positions: I64, counts: I64, spans: I64) -> None:
    """The positions of the headers of indexed records.

    ``spans`` is [4 (key, key length, value, value length), sum of counts]; the records were checked before.
    """
    at = 0
    for row in range(positions.shape[0]):
        position = positions[row]
        for _ in range(counts[row]):
            spans[0, at], spans[1, at], position = read_span(data, position, data.shape[0])
            spans[2, at], spans[3, at], position = read_span(data, position, data.shape[0])
            at += 1


@kernel
def lay_out(lengths: I64, offsets: I32, validity: U8) -> tuple[int, int]:
    """Arrow's offsets (one more than lengths) and validity bits from lengths with -1 for null; (bytes, nulls).

    ``validity`` holds zeros before, ``(n + 7) // 8`` of them.
    """
    total = 0
    nulls = 0
    offsets[0] = 0
    for row in range(lengths.shape[0]):
        length = lengths[row]
        if length < 0:
            nulls += 1
        else:
            total += length
            validity[row >> 3] |= np.uint8(1 << (row & 7))
        offsets[row + 1] = total
    return total, nulls


@kernel
def gather(data: U8, positions: I64, offsets: I32, out: U8) -> None:
    """Copy each row's bytes to its place in ``out``; ``offsets`` as `lay_out` made them."""
    for row in range(positions.shape[0]):
        at = as_int(offsets[row])
        length = as_int(offsets[row + 1]) - at
        position = positions[row]
        if length <= 16 and at + 16 <= out.shape[0] and position + 16 <= data.shape[0]:
            # two words cost less than a call of memcpy; the next row overwrites the excess
            copy(out, at, data, position, 16)
        else:
            copy(out, at, data, position, length)
