"""The newest row of each key in columns, compiled by numba. Keys are equal if their bytes are.

The hash is keyed, so that nobody can write keys that all fall into one place.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from seglog.records.intrinsics import I64, U8, as_int, byte_at, inlined, kernel
from seglog.records.offset_kernels import siphash

_EMPTY: Final = -1


@inlined
def _same(data: U8, left: int, right: int, length: int) -> bool:
    at = 0
    while at < length and byte_at(data, left + at) == byte_at(data, right + at):
        at += 1
    return at == length


@kernel
def keep_newest(data: U8, spans: I64, key0: int, key1: int, slots: I64, kept: U8) -> None:
    """Mark with 1 in ``kept`` the last row of each key, and all others with 0.

    ``spans`` is [2 (position, length), rows]; no key is null. ``slots`` are a power of two, at least twice as many as
    rows, and all -1.
    """
    mask = slots.shape[0] - 1
    for row in range(kept.shape[0]):
        low, _ = siphash(data, spans[0, row], spans[1, row], key0, key1)
        slot = as_int(low) & mask
        kept[row] = 1
        while slots[slot] != _EMPTY:
            other = slots[slot]
            length = spans[1, row]
            if spans[1, other] == length and _same(data, spans[0, other], spans[0, row], length):
                kept[other] = 0
                break
            slot = (slot + 1) & mask
        slots[slot] = row


@kernel
def assign_buckets(data: U8, spans: I64, key0: int, key1: int, shift: int, buckets: I64) -> None:
    """Put into ``buckets`` the 64-bit half of each key's hash that `keep_newest` does not use, shifted right and cut
    to the `BUCKET_BITS` lowest bits."""
    for row in range(buckets.shape[0]):
        _, high = siphash(data, spans[0, row], spans[1, row], key0, key1)
        buckets[row] = as_int(high >> np.uint64(shift)) & (BUCKETS - 1)


BUCKET_BITS: Final = 6
BUCKETS: Final = 1 << BUCKET_BITS


def warm_newest() -> None:
    """Have these loops compiled."""
    key: U8 = np.frombuffer(b"key", np.uint8)
    spans: I64 = np.array([[0], [3]], np.int64)
    keep_newest(key, spans, 1, 2, np.full(2, _EMPTY, np.int64), np.zeros(1, np.uint8))
    assign_buckets(key, spans, 1, 2, 0, np.zeros(1, np.int64))
