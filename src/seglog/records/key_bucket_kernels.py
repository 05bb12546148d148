"""Which bucket of a keyed table a key belongs to: Iceberg's ``bucket[n]`` of bytes, compiled by numba.

Iceberg hashes bytes by Murmur3 (x86, 32 bits, seed 0), so other engines find a key's bucket, too.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from seglog.records.intrinsics import I64, U8, as_int, byte_at, inlined, kernel
from seglog.records.offset_kernels import siphash

_MASK: Final = 0xFFFFFFFF
_MAX_INT32: Final = 0x7FFFFFFF
_C1: Final = 0xCC9E2D51
_C2: Final = 0x1B873593


@inlined
def _byte(data: U8, at: int) -> int:
    return as_int(byte_at(data, at))


@inlined
def _rotate(word: int, bits: int) -> int:
    return ((word << bits) | (word >> (32 - bits))) & _MASK


@inlined
def _mixed(word: int) -> int:
    return (_rotate((word * _C1) & _MASK, 15) * _C2) & _MASK


@inlined
def murmur3(data: U8, at: int, length: int) -> int:
    """Murmur3 of ``data[at:at + length]`` as an unsigned number."""
    state = 0
    tail = at + (length & ~3)
    while at < tail:
        word = _byte(data, at) | _byte(data, at + 1) << 8 | _byte(data, at + 2) << 16 | _byte(data, at + 3) << 24
        state = (_rotate(state ^ _mixed(word), 13) * 5 + 0xE6546B64) & _MASK
        at += 4
    rest = length & 3
    if rest:
        word = _byte(data, at)
        if rest > 1:
            word |= _byte(data, at + 1) << 8
        if rest > 2:
            word |= _byte(data, at + 2) << 16
        state ^= _mixed(word)
    state ^= length
    state = ((state ^ (state >> 16)) * 0x85EBCA6B) & _MASK
    state = ((state ^ (state >> 13)) * 0xC2B2AE35) & _MASK
    return state ^ (state >> 16)


@kernel
def assign_key_buckets(data: U8, spans: I64, count: int, buckets: I64) -> None:
    """Put into ``buckets`` the bucket of each key, from 0 to ``count`` - 1. ``spans`` is [2 (position, length), rows];
    no key is null."""
    for row in range(buckets.shape[0]):
        buckets[row] = (murmur3(data, spans[0, row], spans[1, row]) & _MAX_INT32) % count


@kernel
def hash_keys(data: U8, spans: I64, key0: int, key1: int, hashes: I64) -> None:
    """Put into ``hashes`` 64 bits of each key's SipHash. The key of the hash is random, so equal hashes of different
    keys are chance."""
    for row in range(hashes.shape[0]):
        low, _ = siphash(data, spans[0, row], spans[1, row], key0, key1)
        hashes[row] = as_int(low)


def warm_key_buckets() -> None:
    """Have these loops compiled."""
    key: U8 = np.frombuffer(b"key", np.uint8)
    spans: I64 = np.array([[0], [3]], np.int64)
    assign_key_buckets(key, spans, 16, np.zeros(1, np.int64))
    hash_keys(key, spans, 1, 2, np.zeros(1, np.int64))
