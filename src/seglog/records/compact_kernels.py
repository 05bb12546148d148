"""Compaction's second loop, compiled by numba: copy what is to stay of each batch. See `seglog.records.map_kernels`."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Final

import numpy as np

from seglog.records.kernels import overflows, read_record, read_varint, read_varlong
from seglog.records.machine import (
    I64,
    U8,
    as_int,
    copy,
    crc32c,
    inlined,
    int16_at,
    int32_at,
    int64_at,
    kernel,
    put8,
    put16,
    put32,
    put64,
)
from seglog.records.map_kernels import BLOCK, U64, ask_for, is_aborted, look, look_up, note_producer

__all__ = ["GROWTH_ROOM", "INDEX_FIELDS", "RESULT_FIELDS", "ROW_FIELDS", "Action", "filter_batches"]


class Action(IntEnum):
    """What became of the last batch that was filtered."""

    DROPPED = 0
    VERBATIM = 1
    REWRITTEN = 2
    EMPTIED = 3


GROWTH_ROOM: Final = 14
"""Bytes by which a record can grow when its timestamp counts from elsewhere: its length by 4, its delta by 9."""
ROW_FIELDS: Final = ("start", "end", "timestamp", "offset_delta", "kind")
"""Columns of the table of a batch's records."""
INDEX_FIELDS: Final = ("last_offset", "position", "max_timestamp", "max_timestamp_offset")
"""Columns of the table of index entries."""
RESULT_FIELDS: Final = ("action", "start", "size", "position")
"""Columns of the same table with `Fact.SINGLE`: what became of a batch, where it is in the output, and was before."""

_LATEST = 0
_NOW, _RETENTION, _UPPER, _CHECK_CRC, _, _READ, _KEPT, _KEYLESS, _OUTPUT, _ACTION = range(8, 18)
_BASE, _INTERVAL, _SINCE, _FILE, _MAX_TS, _MAX_TS_OFFSET, _INDEX_ROWS, _SINGLE = range(18, 26)
_OUTPUT_FULL, _ROWS, _SEEN_FULL, _BAD_RECORD, _OVERFLOW = 6, 7, 8, 11, 12
_DROPPED, _VERBATIM, _REWRITTEN, _EMPTIED = range(4)
_NO_KEY, _NO_VALUE = 1, 2
_MAX_DELTA: Final = 0x7FFFFFFF
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
def _must_stay(data: U8, position: int, last: int, producers: I64, facts: I64) -> bool:
    """Whether a batch stays even if it is empty: it has its producer's last sequence, or the round's last offset.

    ``producers`` is [n, 3]: id, last offset of its last data batch or -1, epoch; sorted by id.
    """
    if last + 1 == facts[_UPPER]:
        return True
    producer = int64_at(data, position + 43)
    if producer < 0:
        return False
    low = 0
    high = producers.shape[0]
    while low < high:
        middle = (low + high) >> 1
        if producers[middle, 0] < producer:
            low = middle + 1
        else:
            high = middle
    return bool(low < producers.shape[0] and producers[low, 0] == producer and producers[low, 1] == last)


@inlined
def _read_rows(
    data: U8,
    at: int,
    stop: int,
    count: int,
    previous: int,
    judged: int,
    facts: I64,
    table: U64,
    rows: I64,
    row: int,
    scratch: U64,
) -> tuple[int, int]:
    """Read ``count`` records into ``rows`` from ``row`` on, ask for their keys: (position behind or -1, last delta).

    Keys are asked for up to offset delta ``judged``: what is behind the map's end stays anyway.
    """
    for number in range(count):
        verdict, after, ts, delta, key, key_length, _v, value_length, _h, _hc = read_record(data, at, stop)
        if verdict != 0 or delta <= previous:
            return -1, 0
        previous = delta
        rows[row + number, 0] = at
        rows[row + number, 1] = after
        rows[row + number, 2] = ts
        rows[row + number, 3] = delta
        rows[row + number, 4] = (_NO_KEY if key_length < 0 else 0) | (_NO_VALUE if value_length < 0 else 0)
        if key_length >= 0 and delta <= judged:
            ask_for(table, facts, data, key, key_length, scratch, number)
        at = after
    return at, previous


@inlined
def _select(
    data: U8, position: int, size: int, facts: I64, table: U64, rows: I64, scratch: U64
) -> tuple[int, int, bool]:
    """Which records of a batch stay: (how many, or -1 if some are bad; keyless ones dropped; a tombstone stays).

    ``rows`` gets start, end and timestamp delta of each. ``Cleaner.shouldRetainRecord``.
    """
    base = int64_at(data, position)
    tombstones_stay = int16_at(data, position + 21) & 0x40 == 0 or facts[_NOW] < int64_at(data, position + 27)
    judged = facts[_LATEST] - base
    left = as_int(int32_at(data, position + 57))
    stop = position + size
    at = position + 61
    previous = -1
    kept = 0
    keyless = 0
    tombstone = False
    while left > 0:
        read = min(left, BLOCK)
        first = kept
        at, previous = _read_rows(data, at, stop, read, previous, judged, facts, table, rows, first, scratch)
        if at < 0:
            return -1, 0, False
        for number in range(read):
            delta = rows[first + number, 3]
            kind = rows[first + number, 4]
            stays = True
            if delta <= judged:
                if kind & _NO_KEY != 0:
                    keyless += 1
                    stays = False
                elif kind & _NO_VALUE != 0 and not tombstones_stay:
                    stays = False
                else:
                    stays = base + delta >= look_up(table, facts, scratch[number, 0], scratch[number, 1])
            if stays:
                rows[kept, 0] = rows[first + number, 0]
                rows[kept, 1] = rows[first + number, 1]
                rows[kept, 2] = rows[first + number, 2]
                kept += 1
                tombstone = tombstone or kind & _NO_VALUE != 0
        left -= read
    if at != stop or previous > int32_at(data, position + 23):
        return -1, 0, False
    return kept, keyless, tombstone


@inlined
def _to_timestamps(data: U8, position: int, rows: I64, kept: int) -> tuple[int, bool]:
    """Make timestamps of the kept records' deltas: (the largest of the batch, all are of 64 bits)."""
    base = int64_at(data, position + 27)
    if int16_at(data, position + 21) & 8 != 0:
        append_time = int64_at(data, position + 35)
        for row in range(kept):
            rows[row, 2] = append_time
        return append_time, True
    largest = -1
    for row in range(kept):
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
    put32(out, at + 8, size - 12)
    put16(out, at + 21, attributes)
    put64(out, at + 27, base_ts)
    put64(out, at + 35, max_ts)
    put32(out, at + 57, count)
    put32(out, at + 17, crc32c(out, at + 21, at + size))


@inlined
def _rewrite(data: U8, position: int, out: U8, at: int, rows: I64, kept: int, horizon: int, largest: int) -> int:
    """Write the kept records as a batch at ``at``; its size. ``horizon`` is -1 or what timestamps count from.

    ``MemoryRecords.buildRetainedRecordsInto``: offsets, producer and sequence stay those of the old batch.
    """
    base_ts = horizon if horizon >= 0 else rows[0, 2]
    to = at + 61
    for row in range(kept):
        stop = rows[row, 1]
        _, start = read_varint(data, rows[row, 0], stop)
        _, rest = read_varlong(data, start + 1, stop)
        delta = rows[row, 2] - base_ts
        to = _put_varlong(out, to, 1 + _varlong_size(delta) + stop - rest)
        put8(out, to, 0)
        to = _put_varlong(out, to + 1, delta)
        copy(out, to, data, rest, stop - rest)
        to += stop - rest
    attributes = (int16_at(data, position + 21) & 0x3F) | (0x40 if horizon >= 0 else 0)
    _finish_batch(data, position, out, at, to - at, attributes, base_ts, largest, kept)
    return to - at


@inlined
def _note_batch(out: U8, at: int, size: int, facts: I64, index_rows: I64) -> None:
    """What `Segment.note_batch` does, with the index entries as rows; ``at`` counts from the output buffer's start."""
    last = int64_at(out, at) + int32_at(out, at + 23)
    max_ts = int64_at(out, at + 35)
    if max_ts > facts[_MAX_TS]:
        facts[_MAX_TS] = max_ts
        facts[_MAX_TS_OFFSET] = last
    if facts[_SINCE] > facts[_INTERVAL]:
        row = facts[_INDEX_ROWS]
        index_rows[row, 0] = last
        index_rows[row, 1] = facts[_FILE] + at
        index_rows[row, 2] = facts[_MAX_TS]
        index_rows[row, 3] = facts[_MAX_TS_OFFSET]
        facts[_INDEX_ROWS] = row + 1
        facts[_SINCE] = 0
    facts[_SINCE] += size


@inlined
def _write(
    data: U8, position: int, size: int, kept: int, tombstone: bool, stays: bool, out: U8, facts: I64, rows: I64
) -> int:
    """What is left of the batch goes to the output's end, if anything is: how many bytes, -1 if the batch is bad."""
    at = facts[_OUTPUT]
    attributes = int16_at(data, position + 21)
    has_horizon = attributes & 0x40 != 0
    if kept == 0:
        facts[_ACTION] = _EMPTIED if stays else _DROPPED
        if stays:
            _finish_batch(data, position, out, at, 61, attributes & 0x38, -1, int64_at(data, position + 35), 0)
        return 61 if stays else 0
    if kept == int32_at(data, position + 57) and (has_horizon or not tombstone):
        facts[_ACTION] = _VERBATIM
        copy(out, at, data, position, size)
        return size
    largest, good = _to_timestamps(data, position, rows, kept)
    if not good:
        return -1
    horizon = -1
    if has_horizon:
        horizon = int64_at(data, position + 27)
    elif tombstone:
        horizon = facts[_NOW] + facts[_RETENTION]
    facts[_ACTION] = _REWRITTEN
    return _rewrite(data, position, out, at, rows, kept, horizon, largest)


@kernel
def filter_batches(
    data: U8,
    position: int,
    end: int,
    out: U8,
    facts: I64,
    table: U64,
    aborted: I64,
    seen: I64,
    producers: I64,
    rows: I64,
    index_rows: I64,
    scratch: U64,
) -> tuple[int, int, int]:
    """Copy what stays of the batches in ``data[position:end]`` to ``out``: (position, `Halt`, size of the batch there).

    As Kafka's ``Cleaner.cleanInto`` and ``MemoryRecords.filterTo``. With ROWS the size is the number of rows it takes,
    with OUTPUT the bytes that it can come to. ``rows`` is [n, 5], ``scratch`` [BLOCK, 4].
    """
    while True:
        halt, size = look(data, position, end, facts[_CHECK_CRC])
        if halt >= 0:
            return position, halt, size
        count = as_int(int32_at(data, position + 57))
        if count > rows.shape[0]:
            return position, _ROWS, count
        room = size + GROWTH_ROOM * count
        if out.shape[0] - facts[_OUTPUT] < room or facts[_INDEX_ROWS] >= index_rows.shape[0]:
            return position, _OUTPUT_FULL, room
        last = int64_at(data, position) + int32_at(data, position + 23)
        transactional = int16_at(data, position + 21) & 0x10 != 0
        aborts = transactional and is_aborted(data, position, last, aborted)
        if transactional and not aborts and not note_producer(int64_at(data, position + 43), seen, facts):
            return position, _SEEN_FULL, size
        stays = _must_stay(data, position, last, producers, facts)
        kept = 0
        tombstone = False
        if not aborts:
            kept, keyless, tombstone = _select(data, position, size, facts, table, rows, scratch)
            if kept < 0:
                return position, _BAD_RECORD, size
            facts[_KEYLESS] += keyless
        if stays or not aborts:
            facts[_READ] += count
        facts[_KEPT] += kept
        written = _write(data, position, size, kept, tombstone, stays, out, facts, rows)
        if written < 0:
            return position, _BAD_RECORD, size
        if facts[_SINGLE] != 0:
            row = facts[_INDEX_ROWS]
            index_rows[row, 0] = facts[_ACTION]
            index_rows[row, 1] = facts[_OUTPUT]
            index_rows[row, 2] = written
            index_rows[row, 3] = position
            facts[_INDEX_ROWS] += 1
        elif written > 0:
            if last - facts[_BASE] > _MAX_DELTA:
                return position, _OVERFLOW, size
            _note_batch(out, facts[_OUTPUT], written, facts, index_rows)
        facts[_OUTPUT] += written
        position += size
