"""The offset map of compaction, for compiled loops: a hash of each key and the offset of its last record.

An open-addressed table of 24 bytes a slot, as Kafka's ``SkimpyOffsetMap``: a 128-bit hash of the key and the offset.
The hash is SipHash-2-4-128 (Kafka: MD5). Each round draws a new hash key, so that a client cannot choose record keys
that collide.
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

from seglog.records.intrinsics import I64, U8, as_int, byte_at, inlined, int64_at, kernel

U64 = npt.NDArray[np.uint64]


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
    BY_OFFSET = 26
    """1: instead of the map there is a set of the offsets that stay (`seglog.records.survivor_kernels`)."""
    FIRST_BIT = 27
    """The offset that the set's first bit stands for."""


FACTS: Final = len(Fact)

_LATEST, _ENTRIES, _, _SLOTS, _, _KEY0, _KEY1 = range(7)
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
def siphash(data: U8, start: int, length: int, key0: int, key1: int) -> tuple[Any, Any]:
    """Both halves of a key's SipHash of 128 bits."""
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
    low, high = siphash(data, 0, data.shape[0], key0, key1)
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
    """The next slot to probe: some random ones first, because a full table has long runs, then one after the other."""
    if attempt == 0:
        return as_int(((low >> _U(32)) * _U(slots)) >> _U(32))
    if attempt < _RANDOM_PROBES:
        slot += 1 + as_int(((high >> _U(32)) * _U(slots)) >> _U(32))
        return slot if slot < slots else slot - slots if slot - slots < slots else 0
    return slot + 1 if slot + 1 < slots else 0


@inlined
def find_slot(table: U64, slots: int, low: Any, high: Any) -> tuple[int, bool]:
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
def put_hash(table: U64, facts: I64, low: Any, high: Any, offset: int) -> None:
    slot, found = find_slot(table, facts[_SLOTS], low, high)
    if slot >= 0:
        at = 3 * slot
        if not found:
            table[at] = low
            table[at + 1] = high
            facts[_ENTRIES] += 1
        table[at + 2] = _U(offset + 1)
    facts[_LATEST] = offset


@inlined
def hash_of(data: U8, key: int, length: int, facts: I64) -> tuple[Any, Any]:
    """Both halves of the hash of a key that begins at ``key``."""
    return siphash(data, key, length, facts[_KEY0], facts[_KEY1])


@inlined
def ask_for(table: U64, facts: I64, data: U8, key: int, length: int, scratch: U64, row: int) -> None:
    """Put a key's hash into ``scratch`` and prefetch the slot where its entry should be.

    The table is larger than the CPU's caches: with a prefetch for each key of a block, the misses overlap.
    """
    low, high = siphash(data, key, length, facts[_KEY0], facts[_KEY1])
    scratch[row, 0] = low
    scratch[row, 1] = high
    _prefetch(table, 3 * _slot_of(low, high, 0, facts[_SLOTS], 0))


@inlined
def look_up(table: U64, facts: I64, low: Any, high: Any) -> int:
    """The offset of the key with that hash, -1 if it is not in the map."""
    slot, found = find_slot(table, facts[_SLOTS], low, high)
    return as_int(table[3 * slot + 2]) - 1 if found else -1


@kernel
def put_key(table: U64, facts: I64, key: U8, offset: int) -> None:
    """Put one key into the map. The caller has checked that there is room."""
    low, high = siphash(key, 0, key.shape[0], facts[_KEY0], facts[_KEY1])
    put_hash(table, facts, low, high, offset)


@kernel
def get_key(table: U64, facts: I64, key: U8) -> int:
    """The offset of a key, -1 if it is not in the map."""
    low, high = siphash(key, 0, key.shape[0], facts[_KEY0], facts[_KEY1])
    return look_up(table, facts, low, high)


@kernel
def move_entries(old: U64, table: U64, slots: int) -> None:
    """Put the entries of one table into another, empty one of ``slots`` slots, more than there are entries."""
    for at in range(0, old.shape[0], 3):
        if old[at + 2] != _U(0):
            slot, _ = find_slot(table, slots, old[at], old[at + 1])
            if slot >= 0:
                table[3 * slot] = old[at]
                table[3 * slot + 1] = old[at + 1]
                table[3 * slot + 2] = old[at + 2]
