"""Records by their keys, compiled by numba: of those that were indexed, the ones with a key of a given set are kept.

Runs between finding the parts of records and copying them out, so that nothing of the others is copied.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np

from seglog.records.batch_kernels import A_ROWS
from seglog.records.column_kernels import R_KEY, R_KEY_LENGTH, ROW_FIELDS
from seglog.records.intrinsics import I64, U8, as_int, byte_at, inlined, kernel

_FIELDS: Final = len(ROW_FIELDS)
_FNV_START: Final = 0x811C9DC5
_FNV_PRIME: Final = 0x01000193
_MASK: Final = 0xFFFFFFFF


class KeySet(NamedTuple):
    """Keys as a hash table for the loop: key i is ``data[starts[i]:starts[i + 1]]``; ``slots`` has i or -1."""

    data: U8
    starts: I64
    slots: I64
    with_null: bool


@lru_cache(8)
def key_set(keys: tuple[bytes | None, ...]) -> KeySet:
    """The table of these keys; None stands for records without a key."""
    wanted = set(keys)
    found = sorted(key for key in wanted if key is not None)
    starts: I64 = np.zeros(len(found) + 1, np.int64)
    np.cumsum([len(key) for key in found], out=starts[1:])
    data = np.frombuffer(b"".join(found), np.uint8)
    slots: I64 = np.full(1 << (2 * len(found)).bit_length(), -1, np.int64)
    enter(data, starts, slots)
    return KeySet(data, starts, slots, None in wanted)


@inlined
def hash_of(data: U8, start: int, length: int) -> int:
    """FNV-1a of 32 bits."""
    value = _FNV_START
    for at in range(start, start + length):
        value = ((value ^ as_int(byte_at(data, at))) * _FNV_PRIME) & _MASK
    return value


@inlined
def same(left: U8, at: int, right: U8, start: int, length: int) -> bool:
    offset = 0
    while offset < length and byte_at(left, at + offset) == byte_at(right, start + offset):
        offset += 1
    return offset == length


@kernel
def enter(data: U8, starts: I64, slots: I64) -> None:
    """Put each key into its place; there are at least twice as many slots, a power of two."""
    for number in range(starts.shape[0] - 1):
        slot = hash_of(data, starts[number], starts[number + 1] - starts[number]) & (slots.shape[0] - 1)
        while slots[slot] >= 0:
            slot = (slot + 1) & (slots.shape[0] - 1)
        slots[slot] = number


@kernel
def keep_keys(data: U8, areas: I64, rows: I64, key_data: U8, starts: I64, slots: I64, with_null: bool) -> int:
    """Move the rows whose key is in the table to the front, in their order; how many they are.

    ``areas`` and ``rows`` are those of `index_records`; the rows that each area has are counted again.
    """
    kept = 0
    row = 0
    for area in range(areas.shape[0]):
        before = kept
        for _ in range(areas[area, A_ROWS]):
            length = rows[R_KEY_LENGTH, row]
            found = with_null and length < 0
            if length >= 0:
                position = rows[R_KEY, row]
                slot = hash_of(data, position, length) & (slots.shape[0] - 1)
                while slots[slot] >= 0 and not found:
                    start = starts[slots[slot]]
                    if starts[slots[slot] + 1] - start == length:
                        found = same(data, position, key_data, start, length)
                    slot = (slot + 1) & (slots.shape[0] - 1)
            if found:
                for field in range(_FIELDS):
                    rows[field, kept] = rows[field, row]
                kept += 1
            row += 1
        areas[area, A_ROWS] = kept - before
    return kept
