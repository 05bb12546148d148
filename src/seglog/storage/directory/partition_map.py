"""Values by partition, which also know the partitions of each topic: a change of one topic reads no other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from seglog.core.types import TopicPartition

V = TypeVar("V")


class PartitionMap(dict[TopicPartition, V]):
    """A dictionary. Partitions enter by assignment or `put_all`, and leave by `take` or ``del``; any thread may read.

    >>> found = PartitionMap()
    >>> found[TopicPartition("web", 1)] = "log"
    >>> found.of("web"), found.has("web"), found.of("mail")
    ((TopicPartition(topic='web', partition=1),), True, ())
    """

    def __init__(self) -> None:
        super().__init__()
        self._of: dict[str, dict[TopicPartition, None]] = {}

    def of(self, topic: str) -> tuple[TopicPartition, ...]:
        """The topic's partitions here, in no order."""
        return tuple(self._of.get(topic, ()))

    def has(self, topic: str) -> bool:
        return topic in self._of

    def topics(self) -> set[str]:
        return set(self._of)

    def __setitem__(self, partition: TopicPartition, value: V) -> None:
        super().__setitem__(partition, value)
        self._of.setdefault(partition.topic, {})[partition] = None

    def __delitem__(self, partition: TopicPartition) -> None:
        super().__delitem__(partition)
        there = self._of[partition.topic]
        del there[partition]
        if not there:
            del self._of[partition.topic]

    def put_all(self, found: Mapping[TopicPartition, V]) -> None:
        for partition, value in found.items():
            self[partition] = value

    def take(self, partition: TopicPartition) -> V | None:
        """Remove a partition; return its value, None if it is not here."""
        value = self.get(partition)
        if value is not None:
            del self[partition]
        return value
