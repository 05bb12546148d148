"""Which partition a record goes to, as Kafka's clients choose it. Chance is an argument.

Java's default (``BuiltInPartitioner.java``): a key's murmur2; without a key, one partition at random until a batch
is full, then another (KIP-794, without the part that weighs partitions by the load of their brokers).
"""

from __future__ import annotations

from collections.abc import Callable
from struct import iter_unpack
from typing import Final, Protocol

from seglog.core.types import MAX_INT32, Buffer

_SEED: Final = 0x9747B28C
_M: Final = 0x5BD1E995
_MASK: Final = 0xFFFFFFFF
DEFAULT_BATCH_SIZE: Final = 16384
"""``batch.size`` of Java's producer, in bytes."""


def murmur2(data: Buffer) -> int:
    """MurmurHash2 of 32 bits as ``Utils.murmur2`` of Kafka's Java client, as an unsigned number (Java's is signed).

    >>> murmur2(b"foobar") == -790332482 & 0xFFFFFFFF
    True
    """
    view = memoryview(data)
    size = len(view)
    tail = size & ~3
    state = _SEED ^ size
    for (word,) in iter_unpack("<I", view[:tail]):
        word = word * _M & _MASK
        state = (state * _M & _MASK) ^ (word ^ word >> 24) * _M & _MASK
    if tail != size:
        state = (state ^ int.from_bytes(view[tail:], "little")) * _M & _MASK
    state = (state ^ state >> 13) * _M & _MASK
    return state ^ state >> 15


def partition_for_key(key: Buffer, partitions: int) -> int:
    """The partition of ``key`` among ``partitions`` with the default of Java's client and of most others.

    >>> partition_for_key(b"N14228", 4)
    0
    """
    return (murmur2(key) & MAX_INT32) % partitions


class Partitioner(Protocol):
    """Chooses a partition for each record; one object for one topic and one writer."""

    def partition(self, key: Buffer | None, size: int, /) -> int:
        """The partition of a record with this key, None for none, that takes ``size`` bytes."""
        ...


class StickyPartitioner:
    """Java's default. ``choose(n)`` gives a number from 0 to n-1 at random (`random.randrange`)."""

    __slots__ = ("_batch_size", "_choose", "_current", "_partitions", "_written")

    def __init__(self, partitions: int, choose: Callable[[int], int], *, batch_size: int = DEFAULT_BATCH_SIZE) -> None:
        self._partitions = partitions
        self._choose = choose
        self._batch_size = batch_size
        self._current = choose(partitions)
        self._written = 0

    def partition(self, key: Buffer | None, size: int, /) -> int:
        """The key's partition; without a key the current one, which changes once ``batch_size`` bytes went to it."""
        if key is not None:
            return partition_for_key(key, self._partitions)
        chosen = self._current
        self._written += size
        if self._written >= self._batch_size:
            self._written = 0
            self._current = self._choose(self._partitions)
        return chosen


class RoundRobinPartitioner:
    """Each record to the next partition, whatever its key (``RoundRobinPartitioner.java``)."""

    __slots__ = ("_next", "_partitions")

    def __init__(self, partitions: int) -> None:
        self._partitions = partitions
        self._next = 0

    def partition(self, _key: Buffer | None, _size: int, /) -> int:
        chosen = self._next
        self._next = (chosen + 1) % self._partitions
        return chosen
