"""Compaction's first loop, compiled by numba: put the keys of batches into an offset map.

As in `seglog.records.batch_kernels`, bytes are ``uint8`` arrays; counters and settings are in one ``int64`` array
(`seglog.records.offset_kernels.Fact`). Nothing here raises or allocates. A kernel stops with a `Halt` at a batch that
it cannot process (control batches, compressed and old formats, a full buffer), and can be called again from there.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Final

import numpy as np

from seglog.records.batch import (
    ATTRIBUTES_AT,
    BATCH_OVERHEAD,
    CODEC_MASK,
    CONTROL_BIT,
    CRC_AT,
    CRC_START,
    LAST_OFFSET_DELTA_AT,
    LENGTH_AT,
    LOG_OVERHEAD,
    MAGIC_POSITION,
    MIN_ENTRY,
    PRODUCER_ID_AT,
    RECORDS_COUNT_AT,
    TRANSACTIONAL_BIT,
)
from seglog.records.batch_kernels import MIN_RECORD, overflows, read_record
from seglog.records.intrinsics import (
    I64,
    U8,
    as_int,
    crc32c,
    inlined,
    int8_at,
    int16_at,
    int32_at,
    int64_at,
    kernel,
    uint32_at,
)
from seglog.records.offset_kernels import U64, ask_for, put_hash


class Halt(IntEnum):
    """Why a kernel returned; but for END, the batch at the position returned is still to be done."""

    END = 0
    """Fewer bytes are left than the next batch has, or none."""
    CONTROL = 1
    COMPRESSED = 2
    LEGACY = 3
    """A message of format 0 or 1."""
    MAP_FULL = 4
    """The map holds as many keys as it may; `Fact.LATEST` is the last offset that is in it."""
    GROW = 5
    """The table may grow and has no room for the keys of this batch."""
    OUTPUT = 6
    """The output buffer, or the table of index entries, has no room for this batch."""
    ROWS = 7
    """The scratch table has fewer rows than this batch has records."""
    SEEN = 8
    """The list of producers seen is full."""
    BAD_HEADER = 9
    BAD_CRC = 10
    BAD_RECORD = 11
    OVERFLOW = 12
    """An offset that is 2^31 or more above the base offset of the cleaned segment."""


BLOCK: Final = 256
"""Records whose keys are asked for together."""

_LATEST, _ENTRIES, _MAX_ENTRIES, _SLOTS, _MAX_SLOTS, _, _, _START = range(8)
_CHECK_CRC, _SEEN, _READ = 11, 12, 13
_END, _CONTROL, _COMPRESSED, _LEGACY, _MAP_FULL, _GROW = range(6)
_SEEN_FULL, _BAD_HEADER, _BAD_CRC, _BAD_RECORD = range(8, 12)
_U: Any = np.uint64


@inlined
def look(data: U8, position: int, end: int, check_crc: int) -> tuple[int, int]:
    """(why the batch at ``position`` is not for a kernel, or -1; its size). END: fewer bytes are left than it has."""
    if end - position <= MAGIC_POSITION:
        return _END, 0
    size = int32_at(data, position + LENGTH_AT) + LOG_OVERHEAD
    magic = int8_at(data, position + MAGIC_POSITION)
    if magic < 0 or magic > 2 or size < (BATCH_OVERHEAD if magic == 2 else MIN_ENTRY):
        return _BAD_HEADER, 0
    if size > end - position:
        return _END, size
    if magic < 2:
        return _LEGACY, size
    if check_crc != 0 and crc32c(data, position + CRC_START, position + size) != uint32_at(data, position + CRC_AT):
        return _BAD_CRC, size
    offset = int64_at(data, position)
    delta = int32_at(data, position + LAST_OFFSET_DELTA_AT)
    count = int32_at(data, position + RECORDS_COUNT_AT)
    if offset < 0 or delta < 0 or count < 0 or overflows(offset, delta):
        return _BAD_HEADER, size
    if count * MIN_RECORD > size - BATCH_OVERHEAD and int16_at(data, position + ATTRIBUTES_AT) & CODEC_MASK == 0:
        return _BAD_HEADER, size
    attributes = int16_at(data, position + ATTRIBUTES_AT)
    if attributes & CONTROL_BIT != 0:
        return _CONTROL, size
    if attributes & CODEC_MASK != 0 and count > 0:
        return _COMPRESSED, size
    return -1, size


@inlined
def is_aborted(data: U8, position: int, last_offset: int, aborted: I64) -> bool:
    """Whether a transactional batch is of an aborted transaction, which is then marked as seen.

    ``aborted`` is [n, 4]: producer, first offset, offset of the marker, seen; sorted by the first two.
    """
    producer = int64_at(data, position + PRODUCER_ID_AT)
    low = 0
    high = aborted.shape[0]
    while low < high:
        middle = (low + high) >> 1
        if aborted[middle, 0] < producer or (aborted[middle, 0] == producer and aborted[middle, 1] <= last_offset):
            low = middle + 1
        else:
            high = middle
    row = low - 1
    if row >= 0 and aborted[row, 0] == producer and last_offset < aborted[row, 2]:
        aborted[row, 3] = 1
        return True
    return False


@inlined
def note_producer(producer: int, seen: I64, facts: I64) -> bool:
    """Remember that a producer wrote a batch of a transaction that is not aborted; False: the list is full."""
    count = facts[_SEEN]
    if count > 0 and seen[count - 1] == producer:
        return True
    if count >= seen.shape[0]:
        return False
    seen[count] = producer
    facts[_SEEN] = count + 1
    return True


@inlined
def _read_block(
    data: U8, at: int, stop: int, count: int, base: int, previous: int, facts: I64, table: U64, scratch: U64, row: int
) -> tuple[int, int, int]:
    """Ask for the keys of ``count`` records from ``at`` on: (position after them or -1, last offset delta, next row).

    ``scratch`` gets hash, offset and number of the record, from ``row`` on, for each that goes into the map.
    """
    for number in range(count):
        verdict, after, _ts, delta, key, key_length, _v, _vl, _h, _hc = read_record(data, at, stop)
        if verdict != 0 or delta <= previous:
            return -1, 0, row
        previous = delta
        if key_length >= 0 and base + delta >= facts[_START]:
            ask_for(table, facts, data, key, key_length, scratch, row)
            scratch[row, 2] = _U(base + delta)
            scratch[row, 3] = _U(number)
            row += 1
        at = after
    return at, previous, row


@inlined
def _put_rows(facts: I64, table: U64, scratch: U64, rows: int, latest: int) -> None:
    """Put the keys that were asked for into the map, which has room, and say that it knows of all up to ``latest``."""
    for row in range(rows):
        put_hash(table, facts, scratch[row, 0], scratch[row, 1], as_int(scratch[row, 2]))
    facts[_LATEST] = latest


@inlined
def _map_batch(data: U8, position: int, size: int, facts: I64, table: U64, scratch: U64) -> int:
    """Put the keys of one large batch, or one that may not fit, into the map: -1, or `Halt`."""
    base = int64_at(data, position)
    count = as_int(int32_at(data, position + RECORDS_COUNT_AT))
    stop = position + size
    at = position + BATCH_OVERHEAD
    previous = -1
    while count > 0:
        read = min(count, BLOCK)
        at, previous, rows = _read_block(data, at, stop, read, base, previous, facts, table, scratch, 0)
        if at < 0:
            return _BAD_RECORD
        for row in range(rows):
            if facts[_ENTRIES] >= facts[_MAX_ENTRIES]:
                facts[_READ] += as_int(scratch[row, 3])
                return _MAP_FULL
            put_hash(table, facts, scratch[row, 0], scratch[row, 1], as_int(scratch[row, 2]))
        facts[_READ] += read
        count -= read
    return -1 if at == stop and previous <= int32_at(data, position + LAST_OFFSET_DELTA_AT) else _BAD_RECORD


@inlined
def _ask_for_batch(
    data: U8, position: int, size: int, facts: I64, table: U64, scratch: U64, row: int
) -> tuple[int, int]:
    """Ask for all keys of a small batch, from ``row`` of ``scratch`` on: (-1 or `Halt`, next row)."""
    count = as_int(int32_at(data, position + RECORDS_COUNT_AT))
    stop = position + size
    base = int64_at(data, position)
    at, previous, row = _read_block(data, position + BATCH_OVERHEAD, stop, count, base, -1, facts, table, scratch, row)
    if at != stop or previous > int32_at(data, position + LAST_OFFSET_DELTA_AT):
        return _BAD_RECORD, row
    facts[_READ] += count
    return -1, row


@inlined
def _must_grow(facts: I64, count: int) -> bool:
    return bool(facts[_SLOTS] < facts[_MAX_SLOTS] and 10 * (facts[_ENTRIES] + count) > 7 * facts[_SLOTS])


@kernel
def map_batches(
    data: U8, position: int, end: int, facts: I64, table: U64, aborted: I64, seen: I64, scratch: U64
) -> tuple[int, int, int]:
    """Put the keys of the batches in ``data[position:end]`` into the map: (position, `Halt`, size of the batch there).

    As Kafka's ``buildOffsetMapForSegment``: records of aborted transactions, without a key, or before the first dirty
    offset are left out; the map is full in the middle of a batch, if need be. ``scratch`` is [BLOCK, 4].
    """
    rows = 0
    latest = facts[_LATEST]
    while True:
        halt, size = look(data, position, end, facts[_CHECK_CRC])
        if halt >= 0:
            break
        last = int64_at(data, position) + int32_at(data, position + LAST_OFFSET_DELTA_AT)
        count = as_int(int32_at(data, position + RECORDS_COUNT_AT))
        if rows > 0 and (rows + count > BLOCK or facts[_ENTRIES] + rows + count > facts[_MAX_ENTRIES]):
            _put_rows(facts, table, scratch, rows, latest)
            rows = 0
        if _must_grow(facts, rows + count):
            halt = _GROW
            break
        transactional = int16_at(data, position + ATTRIBUTES_AT) & TRANSACTIONAL_BIT != 0
        if transactional and is_aborted(data, position, last, aborted):
            facts[_READ] += count
        elif transactional and not note_producer(int64_at(data, position + PRODUCER_ID_AT), seen, facts):
            halt = _SEEN_FULL
            break
        elif rows + count > BLOCK or facts[_ENTRIES] + rows + count > facts[_MAX_ENTRIES]:
            facts[_LATEST] = latest
            halt = _map_batch(data, position, size, facts, table, scratch)
            if halt >= 0:
                return position, halt, size
        else:
            halt, rows = _ask_for_batch(data, position, size, facts, table, scratch, rows)
            if halt >= 0:
                break
        if last >= facts[_START]:
            latest = last
        position += size
    _put_rows(facts, table, scratch, rows, latest)
    return position, halt, size
