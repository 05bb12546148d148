"""Compaction's second loop, compiled by numba: copy the records of each batch that stay. See `map_kernels`."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from seglog.records.batch import (
    ATTRIBUTES_AT,
    BASE_TIMESTAMP_AT,
    BATCH_OVERHEAD,
    CODEC_MASK,
    CONTROL_BIT,
    CRC_AT,
    CRC_START,
    DELETE_HORIZON_BIT,
    LAST_OFFSET_DELTA_AT,
    LENGTH_AT,
    LOG_OVERHEAD,
    MAX_TIMESTAMP_AT,
    PRODUCER_ID_AT,
    RECORDS_COUNT_AT,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
)
from seglog.records.batch_kernels import overflows, read_record, read_varint, read_varlong
from seglog.records.encode_kernels import put_varint, varint_size
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
    kernel,
    put8,
    put16,
    put32,
    put64,
)
from seglog.records.map_kernels import BLOCK, is_aborted, look, note_producer
from seglog.records.offset_kernels import U64, ask_for, look_up
from seglog.records.survivor_kernels import is_marked


class Action(IntEnum):
    """The result for the last batch that was filtered."""

    DROPPED = 0
    VERBATIM = 1
    REWRITTEN = 2
    EMPTIED = 3


ROW_FIELDS: Final = ("start", "end", "timestamp", "offset_delta", "kind")
"""Columns of the table of a batch's records."""
INDEX_FIELDS: Final = ("last_offset", "position", "max_timestamp", "max_timestamp_offset")
"""Columns of the table of index entries."""
RESULT_FIELDS: Final = ("action", "start", "size", "position")
"""Columns of the same table with `Fact.SINGLE`: the result for a batch, and its positions in output and input."""

GROWTH_ROOM: Final = 14
"""Bytes by which a record can grow when its timestamp counts from elsewhere: its length by 4, its delta by 9."""
_LATEST = 0
_NOW, _RETENTION, _UPPER, _CHECK_CRC, _, _READ, _KEPT, _KEYLESS, _OUTPUT, _ACTION = range(8, 18)
_BASE, _INTERVAL, _SINCE, _FILE, _MAX_TS, _MAX_TS_OFFSET, _INDEX_ROWS, _SINGLE, _BY_OFFSET = range(18, 27)
_OUTPUT_FULL, _ROWS, _SEEN_FULL, _BAD_RECORD, _OVERFLOW = 6, 7, 8, 11, 12
_DROPPED, _VERBATIM, _REWRITTEN, _EMPTIED = range(4)
_NO_KEY, _NO_VALUE = 1, 2
_KEPT_BITS: Final = TIMESTAMP_TYPE_BIT | TRANSACTIONAL_BIT | CONTROL_BIT
"""Attributes that a rewritten batch keeps beside its codec."""
_MAX_DELTA: Final = 0x7FFFFFFF


@inlined
def _must_stay(data: U8, position: int, last: int, producers: I64, facts: I64) -> bool:
    """Whether a batch stays even if it is empty: it has its producer's last sequence, or the round's last offset.

    ``producers`` is [n, 3]: id, last offset of its last data batch or -1, epoch; sorted by id.
    """
    if last + 1 == facts[_UPPER]:
        return True
    producer = int64_at(data, position + PRODUCER_ID_AT)
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
    place: int,
) -> tuple[int, int]:
    """Read ``count`` records into ``rows`` from ``row`` on, ask for their keys: (position after or -1, last delta).

    Keys are looked up, from ``place`` of ``scratch`` on, up to offset delta ``judged``: later records stay anyway.
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
        if key_length >= 0 and delta <= judged and facts[_BY_OFFSET] == 0:
            ask_for(table, facts, data, key, key_length, scratch, place + number)
        at = after
    return at, previous


@inlined
def _judge(
    data: U8,
    position: int,
    count: int,
    facts: I64,
    table: U64,
    rows: I64,
    row: int,
    target: int,
    scratch: U64,
    place: int,
) -> tuple[int, bool]:
    """Move those of ``count`` records from ``row`` on that stay to ``target`` on: (next target, a tombstone stays).

    ``Cleaner.shouldRetainRecord``.
    """
    base = int64_at(data, position)
    judged = facts[_LATEST] - base
    has_horizon = int16_at(data, position + ATTRIBUTES_AT) & DELETE_HORIZON_BIT != 0
    tombstones_stay = not has_horizon or facts[_NOW] < int64_at(data, position + BASE_TIMESTAMP_AT)
    tombstone = False
    for number in range(count):
        delta = rows[row + number, 3]
        kind = rows[row + number, 4]
        stays = True
        if delta <= judged:
            if kind & _NO_KEY != 0:
                facts[_KEYLESS] += 1
                stays = False
            elif kind & _NO_VALUE != 0 and not tombstones_stay:
                stays = False
            elif facts[_BY_OFFSET] != 0:
                stays = is_marked(table, facts, base + delta)
            else:
                offset = look_up(table, facts, scratch[place + number, 0], scratch[place + number, 1])
                stays = base + delta >= offset
        if stays:
            rows[target, 0] = rows[row + number, 0]
            rows[target, 1] = rows[row + number, 1]
            rows[target, 2] = rows[row + number, 2]
            target += 1
            tombstone = tombstone or kind & _NO_VALUE != 0
    return target, tombstone


@inlined
def _select(data: U8, position: int, size: int, facts: I64, table: U64, rows: I64, scratch: U64) -> tuple[int, bool]:
    """Which records of a large batch stay, as the first ``rows``: (how many, or -1 if some are bad; a tombstone)."""
    judged = facts[_LATEST] - int64_at(data, position)
    left = as_int(int32_at(data, position + RECORDS_COUNT_AT))
    at = position + BATCH_OVERHEAD
    previous = -1
    kept = 0
    tombstones = False
    while left > 0:
        read = min(left, BLOCK)
        at, previous = _read_rows(
            data, at, position + size, read, previous, judged, facts, table, rows, kept, scratch, 0
        )
        if at < 0:
            return -1, False
        kept, tombstone = _judge(data, position, read, facts, table, rows, kept, kept, scratch, 0)
        tombstones = tombstones or tombstone
        left -= read
    if at != position + size or previous > int32_at(data, position + LAST_OFFSET_DELTA_AT):
        return -1, False
    return kept, tombstones


@inlined
def _collect(
    data: U8, position: int, end: int, facts: I64, table: U64, rows: I64, scratch: U64, group: I64
) -> tuple[int, int, int, int]:
    """Read the records of batches that are BLOCK together, or find one large one: (how many, position, halt, size).

    ``group`` gets position, size, first row (-1: large, not read) and whether all records are good.
    """
    batches = 0
    used = 0
    while batches < group.shape[0]:
        halt, size = look(data, position, end, facts[_CHECK_CRC])
        if halt >= 0:
            return batches, position, halt, size
        count = as_int(int32_at(data, position + RECORDS_COUNT_AT))
        if count > BLOCK - used and batches > 0:
            break
        group[batches, 0] = position
        group[batches, 1] = size
        group[batches, 2] = -1
        if count <= BLOCK:
            judged = facts[_LATEST] - int64_at(data, position)
            stop = position + size
            at, last = _read_rows(
                data, position + BATCH_OVERHEAD, stop, count, -1, judged, facts, table, rows, used, scratch, used
            )
            group[batches, 2] = used
            group[batches, 3] = 1 if at == stop and last <= int32_at(data, position + LAST_OFFSET_DELTA_AT) else 0
        batches += 1
        used += count
        position += size
        if count > BLOCK:
            break
    return batches, position, -1, 0


@inlined
def _to_timestamps(data: U8, position: int, rows: I64, first: int, kept: int) -> tuple[int, bool]:
    """Make timestamps of the kept records' deltas: (the largest of the batch, all are of 64 bits)."""
    base = int64_at(data, position + BASE_TIMESTAMP_AT)
    if int16_at(data, position + ATTRIBUTES_AT) & TIMESTAMP_TYPE_BIT != 0:
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
    """Write the header of the batch of ``size`` bytes at ``at``: that of the old batch, with these fields."""
    copy(out, at, data, position, BATCH_OVERHEAD)
    put32(out, at + LENGTH_AT, size - LOG_OVERHEAD)
    put16(out, at + ATTRIBUTES_AT, attributes)
    put64(out, at + BASE_TIMESTAMP_AT, base_ts)
    put64(out, at + MAX_TIMESTAMP_AT, max_ts)
    put32(out, at + RECORDS_COUNT_AT, count)
    put32(out, at + CRC_AT, crc32c(out, at + CRC_START, at + size))


@inlined
def _rewrite(
    data: U8, position: int, out: U8, at: int, rows: I64, first: int, kept: int, horizon: int, largest: int
) -> int:
    """Write the kept records as a batch at ``at``; returns its size. ``horizon``: the base of timestamps, or -1.

    ``MemoryRecords.buildRetainedRecordsInto``: offsets, producer and sequence stay those of the old batch.
    """
    base_ts = horizon if horizon >= 0 else rows[first, 2]
    to = at + BATCH_OVERHEAD
    for row in range(first, first + kept):
        stop = rows[row, 1]
        _, start = read_varint(data, rows[row, 0], stop)
        _, rest = read_varlong(data, start + 1, stop)
        delta = rows[row, 2] - base_ts
        to = put_varint(out, to, 1 + varint_size(delta) + stop - rest)
        put8(out, to, 0)
        to = put_varint(out, to + 1, delta)
        copy(out, to, data, rest, stop - rest)
        to += stop - rest
    attributes = int16_at(data, position + ATTRIBUTES_AT) & (_KEPT_BITS | CODEC_MASK)
    if horizon >= 0:
        attributes |= DELETE_HORIZON_BIT
    _finish_batch(data, position, out, at, to - at, attributes, base_ts, largest, kept)
    return to - at


@inlined
def _write_batch(
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
    """Append the rest of the batch to the output; returns its size, -1 if the batch is bad."""
    at = facts[_OUTPUT]
    attributes = int16_at(data, position + ATTRIBUTES_AT)
    has_horizon = attributes & DELETE_HORIZON_BIT != 0
    if kept == 0:
        facts[_ACTION] = _EMPTIED if stays else _DROPPED
        if stays:
            _finish_batch(
                data,
                position,
                out,
                at,
                BATCH_OVERHEAD,
                attributes & _KEPT_BITS,
                -1,
                int64_at(data, position + MAX_TIMESTAMP_AT),
                0,
            )
        return BATCH_OVERHEAD if stays else 0
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


@inlined
def _note_batch(out: U8, at: int, size: int, facts: I64, index_rows: I64) -> None:
    """As `Segment.note_batch`, with index entries as rows. ``at`` is a position in the output buffer."""
    last = int64_at(out, at) + int32_at(out, at + LAST_OFFSET_DELTA_AT)
    max_ts = int64_at(out, at + MAX_TIMESTAMP_AT)
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
def _note_result(position: int, written: int, facts: I64, index_rows: I64) -> None:
    row = facts[_INDEX_ROWS]
    index_rows[row, 0] = facts[_ACTION]
    index_rows[row, 1] = facts[_OUTPUT]
    index_rows[row, 2] = written
    index_rows[row, 3] = position
    facts[_INDEX_ROWS] += 1


@inlined
def _filter_batch(
    data: U8,
    out: U8,
    facts: I64,
    table: U64,
    aborted: I64,
    seen: I64,
    producers: I64,
    rows: I64,
    index_rows: I64,
    scratch: U64,
    group: I64,
    number: int,
) -> tuple[int, int]:
    """Write the records of one batch of the group that stay: (-1 or `Halt`, size as of `filter_batches`)."""
    position = group[number, 0]
    size = group[number, 1]
    first = max(group[number, 2], 0)
    count = as_int(int32_at(data, position + RECORDS_COUNT_AT))
    if count > rows.shape[0]:
        return _ROWS, count
    room = size + GROWTH_ROOM * count
    if out.shape[0] - facts[_OUTPUT] < room or facts[_INDEX_ROWS] >= index_rows.shape[0]:
        return _OUTPUT_FULL, room
    last = int64_at(data, position) + int32_at(data, position + LAST_OFFSET_DELTA_AT)
    transactional = int16_at(data, position + ATTRIBUTES_AT) & TRANSACTIONAL_BIT != 0
    aborts = transactional and is_aborted(data, position, last, aborted)
    if transactional and not aborts and not note_producer(int64_at(data, position + PRODUCER_ID_AT), seen, facts):
        return _SEEN_FULL, size
    stays = _must_stay(data, position, last, producers, facts)
    kept = 0
    tombstone = False
    if not aborts:
        if group[number, 2] < 0:
            kept, tombstone = _select(data, position, size, facts, table, rows, scratch)
        elif group[number, 3] == 0:
            kept = -1
        else:
            target, tombstone = _judge(data, position, count, facts, table, rows, first, first, scratch, first)
            kept = target - first
        if kept < 0:
            return _BAD_RECORD, size
    if stays or not aborts:
        facts[_READ] += count
    facts[_KEPT] += kept
    written = _write_batch(data, position, size, first, kept, tombstone, stays, out, facts, rows)
    if written < 0:
        return _BAD_RECORD, size
    if facts[_SINGLE] != 0:
        _note_result(position, written, facts, index_rows)
    elif written > 0:
        if last - facts[_BASE] > _MAX_DELTA:
            return _OVERFLOW, size
        _note_batch(out, facts[_OUTPUT], written, facts, index_rows)
    facts[_OUTPUT] += written
    return -1, 0


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
    group: I64,
) -> tuple[int, int, int]:
    """Copy the records in ``data[position:end]`` that stay to ``out``: (position, `Halt`, size of the batch there).

    As Kafka's ``Cleaner.cleanInto`` and ``MemoryRecords.filterTo``. With ROWS the size is the number of rows it takes,
    with OUTPUT the bytes that it can come to. ``rows`` is [BLOCK or more, 5], ``scratch`` [BLOCK, 4], ``group`` [n, 4].
    """
    while True:
        batches, following, halt, size = _collect(data, position, end, facts, table, rows, scratch, group)
        for number in range(batches):
            stop, wanted = _filter_batch(
                data, out, facts, table, aborted, seen, producers, rows, index_rows, scratch, group, number
            )
            if stop >= 0:
                return group[number, 0], stop, wanted
        if halt >= 0:
            return following, halt, size
        position = following
