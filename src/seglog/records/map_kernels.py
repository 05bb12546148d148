"""Compaction's first loop, compiled by numba: put the keys of batches into an offset map.

Plain facts in, plain facts out, as in `seglog.records.kernels`: bytes are ``uint8`` arrays, counters and settings live
in one ``int64`` array (`Fact`). Nothing here raises or allocates; what a kernel cannot do itself (control batches,
compressed and old formats, a full buffer) ends it with a `Halt` that says so, and it can be called again from there.

The offset map is an open-addressed table of 24 bytes a slot, as Kafka's ``SkimpyOffsetMap``: a 128-bit hash of the key
and the offset. The hash is SipHash-2-4-128 under a key that is drawn anew for each round, so that nobody can choose
record keys that take each other's place (Kafka: MD5).
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from seglog.records.kernels import MIN_RECORD, overflows, read_record
from seglog.records.machine import (
    I64,
    U8,
    as_int,
    byte_at,
    crc32c,
    inlined,
    int8_at,
    int16_at,
    int32_at,
    int64_at,
    kernel,
    uint32_at,
)

U64 = npt.NDArray[np.uint64]


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


class Fact(IntEnum):
    """Places in the array of settings, state and counters."""

    LATEST = 0
    """The last offset that the map knows of, -1: none."""
    ENTRIES = 1
    MAX_ENTRIES = 2
    SLOTS = 3
    MAX_SLOTS = 4
    HASH_KEY_0 = 5
    HASH_KEY_1 = 6
    START = 7
    """First dirty offset: records before it do not go into the map."""
    NOW = 8
    DELETE_RETENTION = 9
    UPPER_BOUND = 10
    CHECK_CRC = 11
    SEEN = 12
    """Producers in the list of those that wrote decided (not aborted) transactional batches."""
    MESSAGES_READ = 13
    MESSAGES_KEPT = 14
    KEYLESS = 15
    OUTPUT = 16
    """Bytes in the output buffer."""
    ACTION = 17
    BASE_OFFSET = 18
    """Of the cleaned segment."""
    INTERVAL = 19
    """index.interval.bytes."""
    SINCE_ENTRY = 20
    FILE_POSITION = 21
    """Where in the cleaned segment's file the output buffer begins."""
    MAX_TIMESTAMP = 22
    MAX_TIMESTAMP_OFFSET = 23
    INDEX_ROWS = 24
    """Rows in the table of index entries: last offset, position, largest timestamp so far and its offset."""
    SINGLE = 25
    """1: batches are for Python to compress: no index entries, but a row of results for each (`RESULT_FIELDS`)."""


FACTS: Final = len(Fact)
BLOCK: Final = 256
"""Records whose keys are asked for together."""
SLOT_BYTES: Final = 24

_LATEST, _ENTRIES, _MAX_ENTRIES, _SLOTS, _MAX_SLOTS, _KEY0, _KEY1, _START = range(8)
_CHECK_CRC, _SEEN, _READ = 11, 12, 13
_END, _CONTROL, _COMPRESSED, _LEGACY, _MAP_FULL, _GROW = range(6)
_SEEN_FULL, _BAD_HEADER, _BAD_CRC, _BAD_RECORD = range(8, 12)

_U = np.uint64
_RANDOM_PROBES: Final = 12


# The hash: SipHash-2-4 with 128 bits of output (Aumasson, Bernstein), but that whole words are read big-endian


@inlined
def _rotate(value: Any, bits: int) -> Any:
    return (value << _U(bits)) | (value >> _U(64 - bits))


@inlined
def _sip_round(v0: Any, v1: Any, v2: Any, v3: Any) -> tuple[Any, Any, Any, Any]:
    v0 = v0 + v1
    v2 = v2 + v3
    v1 = _rotate(v1, 13) ^ v0
    v3 = _rotate(v3, 16) ^ v2
    v0 = _rotate(v0, 32)
    v2 = v2 + v1
    v0 = v0 + v3
    v1 = _rotate(v1, 17) ^ v2
    v3 = _rotate(v3, 21) ^ v0
    v2 = _rotate(v2, 32)
    return v0, v1, v2, v3


@inlined
def _hash(data: U8, start: int, length: int, key0: int, key1: int) -> tuple[Any, Any]:
    k0 = _U(key0)
    k1 = _U(key1)
    v0 = k0 ^ _U(0x736F6D6570736575)
    v1 = k1 ^ _U(0x646F72616E646F6D) ^ _U(0xEE)
    v2 = k0 ^ _U(0x6C7967656E657261)
    v3 = k1 ^ _U(0x7465646279746573)
    position = start
    whole = start + (length & ~7)
    while position < whole:
        word = _U(int64_at(data, position))
        v3 ^= word
        v0, v1, v2, v3 = _sip_round(v0, v1, v2, v3)
        v0, v1, v2, v3 = _sip_round(v0, v1, v2, v3)
        v0 ^= word
        position += 8
    word = _U(length & 0xFF) << _U(56)
    for index in range(length & 7):
        word |= _U(byte_at(data, position + index)) << _U(8 * index)
    v3 ^= word
    v0, v1, v2, v3 = _sip_round(v0, v1, v2, v3)
    v0, v1, v2, v3 = _sip_round(v0, v1, v2, v3)
    v0 ^= word
    v2 ^= _U(0xEE)
    for _ in range(4):
        v0, v1, v2, v3 = _sip_round(v0, v1, v2, v3)
    low = v0 ^ v1 ^ v2 ^ v3
    v1 ^= _U(0xDD)
    for _ in range(4):
        v0, v1, v2, v3 = _sip_round(v0, v1, v2, v3)
    return low, v0 ^ v1 ^ v2 ^ v3


@kernel
def hash_key(data: U8, key0: int, key1: int) -> tuple[int, int]:
    """The 128-bit hash of a whole array, as two 64-bit halves."""
    low, high = _hash(data, 0, data.shape[0], key0, key1)
    return low, high


# The offset map: a table of (low hash, high hash, offset + 1), zeros where it is empty


def _prefetch_word(_typing: Any, table: Any, _index: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        byte = ir.IntType(8).as_pointer()
        address = builder.bitcast(builder.gep(data, [args[1]]), byte)
        number = ir.IntType(32)
        function_type = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
        function = cgutils.get_or_insert_function(builder.module, function_type, "llvm.prefetch.p0i8")
        read, keep, of_data = (number(value) for value in (0, 3, 1))
        builder.call(function, [address, read, keep, of_data])
        return context.get_dummy_value()

    return types.void(table, types.int64), generate


_prefetch: Callable[[U64, int], None] = intrinsic(_prefetch_word)


@inlined
def _slot_of(low: Any, high: Any, attempt: int, slots: int, slot: int) -> int:
    """Where to look next: some random places first, since runs of a full table are long, then one after the other."""
    if attempt == 0:
        return as_int(((low >> _U(32)) * _U(slots)) >> _U(32))
    if attempt < _RANDOM_PROBES:
        slot += 1 + as_int(((high >> _U(32)) * _U(slots)) >> _U(32))
        return slot if slot < slots else slot - slots if slot - slots < slots else 0
    return slot + 1 if slot + 1 < slots else 0


@inlined
def _find(table: U64, slots: int, low: Any, high: Any) -> tuple[int, bool]:
    """(slot, whether the key is in it); with False the slot is an empty one, -1 if there is none."""
    slot = 0
    for attempt in range(slots + _RANDOM_PROBES):
        slot = _slot_of(low, high, attempt, slots, slot)
        at = 3 * slot
        if table[at + 2] == _U(0):
            return slot, False
        if table[at] == low and table[at + 1] == high:
            return slot, True
    return -1, False


@inlined
def _put(table: U64, facts: I64, low: Any, high: Any, offset: int) -> None:
    slot, found = _find(table, facts[_SLOTS], low, high)
    if slot >= 0:
        at = 3 * slot
        if not found:
            table[at] = low
            table[at + 1] = high
            facts[_ENTRIES] += 1
        table[at + 2] = _U(offset + 1)
    facts[_LATEST] = offset


@inlined
def ask_for(table: U64, facts: I64, data: U8, key: int, length: int, scratch: U64, row: int) -> None:
    """Put a key's hash into ``scratch`` and ask the CPU for where its entry should be.

    The table is larger than the caches: asked for a block of keys at once, the entries come together, not one by one.
    """
    low, high = _hash(data, key, length, facts[_KEY0], facts[_KEY1])
    scratch[row, 0] = low
    scratch[row, 1] = high
    _prefetch(table, 3 * _slot_of(low, high, 0, facts[_SLOTS], 0))


@inlined
def look_up(table: U64, facts: I64, low: Any, high: Any) -> int:
    """The offset of the key with that hash, -1 if it is not in the map."""
    slot, found = _find(table, facts[_SLOTS], low, high)
    return as_int(table[3 * slot + 2]) - 1 if found else -1


@kernel
def put_key(table: U64, facts: I64, key: U8, offset: int) -> None:
    """Put one key into the map; the caller has looked that there is room."""
    low, high = _hash(key, 0, key.shape[0], facts[_KEY0], facts[_KEY1])
    _put(table, facts, low, high, offset)


@kernel
def get_key(table: U64, facts: I64, key: U8) -> int:
    """The offset of a key, -1 if it is not in the map."""
    low, high = _hash(key, 0, key.shape[0], facts[_KEY0], facts[_KEY1])
    return look_up(table, facts, low, high)


@kernel
def move_entries(old: U64, table: U64, slots: int) -> None:
    """Put the entries of one table into another, empty one of ``slots`` slots, more than there are entries."""
    for at in range(0, old.shape[0], 3):
        if old[at + 2] != _U(0):
            slot, _ = _find(table, slots, old[at], old[at + 1])
            if slot >= 0:
                table[3 * slot] = old[at]
                table[3 * slot + 1] = old[at + 1]
                table[3 * slot + 2] = old[at + 2]


# Batches


@inlined
def look(data: U8, position: int, end: int, check_crc: int) -> tuple[int, int]:
    """(why the batch at ``position`` is not for a kernel, or -1; its size). END: fewer bytes are left than it has."""
    if end - position < 17:
        return _END, 0
    length = int32_at(data, position + 8)
    magic = int8_at(data, position + 16)
    if magic < 0 or magic > 2 or length < (49 if magic == 2 else 14):
        return _BAD_HEADER, 0
    size = length + 12
    if size > end - position:
        return _END, size
    if magic < 2:
        return _LEGACY, size
    if check_crc != 0 and crc32c(data, position + 21, position + size) != uint32_at(data, position + 17):
        return _BAD_CRC, size
    offset = int64_at(data, position)
    delta = int32_at(data, position + 23)
    count = int32_at(data, position + 57)
    if offset < 0 or delta < 0 or count < 0 or overflows(offset, delta):
        return _BAD_HEADER, size
    if count * MIN_RECORD > size - 61 and int16_at(data, position + 21) & 7 == 0:
        return _BAD_HEADER, size
    attributes = int16_at(data, position + 21)
    if attributes & 0x20 != 0:
        return _CONTROL, size
    if attributes & 7 != 0 and count > 0:
        return _COMPRESSED, size
    return -1, size


@inlined
def is_aborted(data: U8, position: int, last_offset: int, aborted: I64) -> bool:
    """Whether a transactional batch is of an aborted transaction, which is then marked as seen.

    ``aborted`` is [n, 4]: producer, first offset, offset of the marker, seen; sorted by the first two.
    """
    producer = int64_at(data, position + 43)
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
    data: U8, at: int, stop: int, count: int, base: int, previous: int, facts: I64, table: U64, scratch: U64
) -> tuple[int, int, int]:
    """Ask for the keys of up to BLOCK records from ``at`` on: (position behind them or -1, last offset delta, keys).

    ``scratch`` gets hash, offset delta and number of the record for each that goes into the map.
    """
    keys = 0
    for number in range(min(count, BLOCK)):
        verdict, after, _ts, delta, key, key_length, _v, _vl, _h, _hc = read_record(data, at, stop)
        if verdict != 0 or delta <= previous:
            return -1, 0, 0
        previous = delta
        if key_length >= 0 and base + delta >= facts[_START]:
            ask_for(table, facts, data, key, key_length, scratch, keys)
            scratch[keys, 2] = _U(delta)
            scratch[keys, 3] = _U(number)
            keys += 1
        at = after
    return at, previous, keys


@inlined
def _map_batch(data: U8, position: int, size: int, facts: I64, table: U64, scratch: U64) -> int:
    """Put the keys of one batch into the map: -1, or `Halt`."""
    base = int64_at(data, position)
    count = as_int(int32_at(data, position + 57))
    stop = position + size
    at = position + 61
    previous = -1
    while count > 0:
        at, previous, keys = _read_block(data, at, stop, count, base, previous, facts, table, scratch)
        if at < 0:
            return _BAD_RECORD
        for row in range(keys):
            if facts[_ENTRIES] >= facts[_MAX_ENTRIES]:
                facts[_READ] += as_int(scratch[row, 3])
                return _MAP_FULL
            _put(table, facts, scratch[row, 0], scratch[row, 1], base + as_int(scratch[row, 2]))
        facts[_READ] += min(count, BLOCK)
        count -= BLOCK
    return -1 if at == stop and previous <= int32_at(data, position + 23) else _BAD_RECORD


@kernel
def map_batches(
    data: U8, position: int, end: int, facts: I64, table: U64, aborted: I64, seen: I64, scratch: U64
) -> tuple[int, int, int]:
    """Put the keys of the batches in ``data[position:end]`` into the map: (position, `Halt`, size of the batch there).

    As Kafka's ``buildOffsetMapForSegment``: records of aborted transactions, without a key, or before the first dirty
    offset are left out; the map is full in the middle of a batch, if need be. ``scratch`` is [BLOCK, 4].
    """
    while True:
        halt, size = look(data, position, end, facts[_CHECK_CRC])
        if halt >= 0:
            return position, halt, size
        last = int64_at(data, position) + int32_at(data, position + 23)
        count = as_int(int32_at(data, position + 57))
        if facts[_SLOTS] < facts[_MAX_SLOTS] and 10 * (facts[_ENTRIES] + count) > 7 * facts[_SLOTS]:
            return position, _GROW, size
        transactional = int16_at(data, position + 21) & 0x10 != 0
        if transactional and is_aborted(data, position, last, aborted):
            facts[_READ] += count
        else:
            if transactional and not note_producer(int64_at(data, position + 43), seen, facts):
                return position, _SEEN_FULL, size
            halt = _map_batch(data, position, size, facts, table, scratch)
            if halt >= 0:
                return position, halt, size
        if last >= facts[_START]:
            facts[_LATEST] = last
        position += size
