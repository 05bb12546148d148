"""Kafka's default partitioner over columns, compiled by numba: `seglog.records.partitioner` for many rows at once.

Rows of several topics may be mixed. A partition of a topic is a slot: the topic's first slot plus the partition's
number, so that rows can be grouped by one number. Chance is an argument: a list of random numbers.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple

import numpy as np

from seglog.core.types import MAX_INT64
from seglog.records.intrinsics import I64, U8, as_int, byte_at, inlined, kernel

NO_PARTITION: Final = -MAX_INT64
"""Stands for a null in the column of given partitions: no partition has this number."""


class StickyColumn(IntEnum):
    """Columns of the state of a topic's sticky partition."""

    CURRENT = 0
    """The partition that rows without key go to; -1 before the first one."""
    WRITTEN = 1
    """Bytes that went to it."""


class SlotAssignment(NamedTuple):
    """How far `assign_slots` came: the first row whose given partition there is not (-1: none), and numbers used."""

    bad_row: int
    used: int


_SEED: Final = 0x9747B28C
_M: Final = 0x5BD1E995
_MASK: Final = 0xFFFFFFFF
_MAX_INT32: Final = 0x7FFFFFFF
_CURRENT: Final = int(StickyColumn.CURRENT)
_WRITTEN: Final = int(StickyColumn.WRITTEN)


@inlined
def _byte(data: U8, at: int) -> int:
    return as_int(byte_at(data, at))


@inlined
def murmur2(data: U8, at: int, length: int) -> int:
    """`seglog.records.partitioner.murmur2` of ``data[at:at + length]``."""
    state = (_SEED ^ length) & _MASK
    tail = at + (length & ~3)
    while at < tail:
        word = _byte(data, at) | _byte(data, at + 1) << 8 | _byte(data, at + 2) << 16 | _byte(data, at + 3) << 24
        word = (word * _M) & _MASK
        word = ((word ^ (word >> 24)) * _M) & _MASK
        state = ((state * _M) & _MASK) ^ word
        at += 4
    rest = length & 3
    if rest:
        word = _byte(data, at)
        if rest > 1:
            word |= _byte(data, at + 1) << 8
        if rest > 2:
            word |= _byte(data, at + 2) << 16
        state = ((state ^ word) * _M) & _MASK
    state = ((state ^ (state >> 13)) * _M) & _MASK
    return state ^ (state >> 15)


@kernel
def assign_slots(
    key_data: U8,
    keys: I64,
    sizes: I64,
    given: I64,
    topics: I64,
    first_slots: I64,
    batch_size: int,
    random: I64,
    sticky: I64,
    slots: I64,
) -> tuple[int, int]:
    """The slot of each row into ``slots``; gives the fields of `SlotAssignment`.

    ``keys`` is [2 (position, length or -1), rows]. ``given`` is a partition that goes before the key, or
    `NO_PARTITION`. ``topics`` numbers the rows' topics; ``first_slots`` is [topics + 1]: topic t has
    ``first_slots[t + 1] - first_slots[t]`` partitions. Rows without key and partition go to the topic's sticky
    partition, which changes once ``batch_size`` bytes (of ``sizes``) went to it; ``sticky`` is [topics, 2] and is kept
    between calls. ``random`` has a number from 0 on for each change: one for each ``batch_size`` bytes of ``sizes`` in
    all and two for each topic are enough.
    """
    used = 0
    for row in range(slots.shape[0]):
        topic = topics[row]
        first = first_slots[topic]
        partitions = first_slots[topic + 1] - first
        if given[row] != NO_PARTITION:
            if given[row] < 0 or given[row] >= partitions:
                return row, used
            slots[row] = first + given[row]
        elif keys[1, row] >= 0:
            slots[row] = first + (murmur2(key_data, keys[0, row], keys[1, row]) & _MAX_INT32) % partitions
        else:
            if sticky[topic, _CURRENT] < 0:
                sticky[topic, _CURRENT] = random[used] % partitions
                used += 1
            slots[row] = first + sticky[topic, _CURRENT]
            sticky[topic, _WRITTEN] += sizes[row]
            if sticky[topic, _WRITTEN] >= batch_size:
                sticky[topic, _WRITTEN] = 0
                sticky[topic, _CURRENT] = random[used] % partitions
                used += 1
    return -1, used


@kernel
def partitions_of(key_data: U8, keys: I64, partitions: int) -> I64:
    """The partition of each key, `NO_PARTITION` of a null one."""
    found = np.empty(keys.shape[1], np.int64)
    for row in range(found.shape[0]):
        found[row] = NO_PARTITION
        if keys[1, row] >= 0:
            found[row] = (murmur2(key_data, keys[0, row], keys[1, row]) & _MAX_INT32) % partitions
    return found


@kernel
def group_rows(slots: I64, starts: I64, order: I64) -> None:
    """The rows by slot, in their order within each, into ``order``; where each slot's begin there into ``starts``.

    ``starts`` is [slots + 1] of zeros.
    """
    for row in range(slots.shape[0]):
        starts[slots[row] + 1] += 1
    for slot in range(1, starts.shape[0]):
        starts[slot] += starts[slot - 1]
    for row in range(slots.shape[0]):
        slot = slots[row]
        order[starts[slot]] = row
        starts[slot] += 1
    for slot in range(starts.shape[0] - 1, 0, -1):
        starts[slot] = starts[slot - 1]
    starts[0] = 0


def new_sticky(topics: int) -> I64:
    """The state of `assign_slots` before the first row."""
    state: I64 = np.zeros((topics, len(StickyColumn)), np.int64)
    state[:, StickyColumn.CURRENT] = -1
    return state


def warm_partitioner() -> None:
    """Have these loops compiled."""
    key: U8 = np.frombuffer(b"key", np.uint8)
    keys: I64 = np.array([[0], [3]], np.int64)
    one: I64 = np.zeros(1, np.int64)
    first_slots: I64 = np.array([0, 1], np.int64)
    assign_slots(key, keys, one, one, one, first_slots, 1, first_slots, new_sticky(1), one)
    group_rows(one, np.zeros(2, np.int64), one.copy())
    partitions_of(key, keys, 1)
