"""Partitioners of a producer: those of librdkafka where it has them, else ours."""

from __future__ import annotations

from random import randrange
from typing import Final, NamedTuple

from seglog.core.types import Buffer
from seglog.records.partitioner import Partitioner, RoundRobinPartitioner, StickyPartitioner

PARTITIONERS: Final = ("murmur2", "crc32", "fnv1a", "sticky", "round-robin", "random")
_KEY_HASHES: Final = {"murmur2": "murmur2_random", "crc32": "consistent_random", "fnv1a": "fnv1a_random"}


class PartitionChoice(NamedTuple):
    """``setting`` is librdkafka's; ``chooser`` returns the partition of each record, unless librdkafka does."""

    setting: str
    chooser: Partitioner | None


class _KeylessPartitioner:
    """Sticky for all records: `StickyPartitioner` without keys."""

    def __init__(self, partitions: int, batch_size: int) -> None:
        self._sticky = StickyPartitioner(partitions, randrange, batch_size=batch_size)

    def partition(self, _key: Buffer | None, size: int, /) -> int:
        return self._sticky.partition(None, size)


class _RandomPartitioner:
    """Sends each record to a random partition."""

    def __init__(self, partitions: int) -> None:
        self._partitions = partitions

    def partition(self, _key: Buffer | None, _size: int, /) -> int:
        return randrange(self._partitions)


def choice(name: str, partitions: int, batch_size: int) -> PartitionChoice:
    """The partitioner of that name. ``murmur2`` is Java's: the hash of a key, and sticky without one."""
    if name in _KEY_HASHES:
        return PartitionChoice(_KEY_HASHES[name], None)
    if name == "round-robin":
        return PartitionChoice("random", RoundRobinPartitioner(partitions))
    if name == "random":
        return PartitionChoice("random", _RandomPartitioner(partitions))
    return PartitionChoice("random", _KeylessPartitioner(partitions, batch_size))
