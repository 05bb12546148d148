"""Compaction in parts, compiled by numba: keys of a part as rows, the last offset of each, and the offsets that stay.

A row is three 64-bit words: the two halves of the key's hash (`seglog.records.offset_kernels`) and the record's offset.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from seglog.records.batch import (
    ATTRIBUTES_AT,
    BATCH_OVERHEAD,
    LAST_OFFSET_DELTA_AT,
    PRODUCER_ID_AT,
    RECORDS_COUNT_AT,
    TRANSACTIONAL_BIT,
)
from seglog.records.batch_kernels import read_record
from seglog.records.intrinsics import I64, U8, as_int, inlined, int16_at, int32_at, int64_at, kernel
from seglog.records.map_kernels import is_aborted, look, note_producer
from seglog.records.offset_kernels import U64, find_slot, hash_of, look_up

ROW_WORDS: Final = 3
_ENTRIES, _SLOTS, _START = 1, 3, 7
_CHECK_CRC, _READ = 11, 13
_FIRST_BIT: Final = 27
_GROW, _SEEN_FULL, _BAD_RECORD = 5, 8, 11
_U: Any = np.uint64


@inlined
def is_marked(words: U64, facts: I64, offset: int) -> bool:
    """Whether an offset is in the set. True outside the range of the set: that record was not judged, so it stays."""
    bit = offset - facts[_FIRST_BIT]
    if bit < 0 or bit >= 64 * words.shape[0]:
        return True
    return bool((words[bit >> 6] >> _U(bit & 63)) & _U(1) != _U(0))


@kernel
def mark(words: U64, offsets: Any) -> None:
    """Add offsets, relative to the first of the set, to the set. All are below 64 times its words."""
    for at in range(offsets.shape[0]):
        bit = as_int(offsets[at])
        words[bit >> 6] |= _U(1) << _U(bit & 63)


@kernel
def list_keys(
    data: U8, position: int, end: int, facts: I64, rows: U64, aborted: I64, seen: I64
) -> tuple[int, int, int]:
    """A row for each record with a key before `Fact.START`: (position, `Halt`, size of the batch there).

    As `seglog.records.map_kernels.map_batches`, but that a key has as many rows as it has records. ``rows`` is [n, 3],
    of which `Fact.ENTRIES` are taken; GROW: it has no room for this batch.
    """
    while True:
        halt, size = look(data, position, end, facts[_CHECK_CRC])
        if halt >= 0:
            return position, halt, size
        base = int64_at(data, position)
        limit = as_int(int32_at(data, position + LAST_OFFSET_DELTA_AT))
        count = as_int(int32_at(data, position + RECORDS_COUNT_AT))
        row = facts[_ENTRIES]
        if row + count > rows.shape[0]:
            return position, _GROW, size
        transactional = int16_at(data, position + ATTRIBUTES_AT) & TRANSACTIONAL_BIT != 0
        aborts = transactional and is_aborted(data, position, base + limit, aborted)
        if transactional and not aborts and not note_producer(int64_at(data, position + PRODUCER_ID_AT), seen, facts):
            return position, _SEEN_FULL, size
        if not aborts:
            at = position + BATCH_OVERHEAD
            stop = position + size
            previous = -1
            for _ in range(count):
                verdict, after, _ts, delta, key, key_length, _v, _vl, _h, _hc = read_record(data, at, stop)
                if verdict != 0 or delta <= previous:
                    return position, _BAD_RECORD, size
                previous = delta
                if key_length >= 0 and base + delta < facts[_START]:
                    low, high = hash_of(data, key, key_length, facts)
                    rows[row, 0] = low
                    rows[row, 1] = high
                    rows[row, 2] = _U(base + delta)
                    row += 1
                at = after
            if at != stop or previous > limit:
                return position, _BAD_RECORD, size
        facts[_ENTRIES] = row
        facts[_READ] += count
        position += size


@kernel
def put_last(rows: U64, table: U64, facts: I64) -> None:
    """Put rows into a map that has room for them, in whatever order they come: the largest offset of a key stays."""
    for row in range(rows.shape[0]):
        slot, found = find_slot(table, facts[_SLOTS], rows[row, 0], rows[row, 1])
        if slot >= 0:
            at = 3 * slot
            if not found:
                table[at] = rows[row, 0]
                table[at + 1] = rows[row, 1]
                facts[_ENTRIES] += 1
            if not found or table[at + 2] < rows[row, 2] + _U(1):
                table[at + 2] = rows[row, 2] + _U(1)


@kernel
def select_last(rows: U64, table: U64, facts: I64, stays: U8) -> None:
    """Which rows have no later record of their key in the map: 1 in ``stays``, else 0."""
    for row in range(rows.shape[0]):
        last = look_up(table, facts, rows[row, 0], rows[row, 1])
        stays[row] = 1 if as_int(rows[row, 2]) >= last else 0
