"""Throttles of replication (KIP-73): some replicas of a topic share a rate of bytes on each broker, as leaders and as
followers. Replicas in sync are never held, so no ISR shrinks; their traffic counts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from seglog.cluster.model import TopicState
from seglog.core.rates import SimpleRate, Window
from seglog.core.types import TopicPartition

LEADER_REPLICAS: Final = "leader.replication.throttled.replicas"
FOLLOWER_REPLICAS: Final = "follower.replication.throttled.replicas"
LEADER_RATE: Final = "leader.replication.throttled.rate"
FOLLOWER_RATE: Final = "follower.replication.throttled.rate"
_ALL: Final = "*"
_LONGEST_MS: Final = 1_000
"""A hold is reviewed so often: others may leave more of the rate."""


class ReplicationThrottle:
    """Of this broker as leader, or as follower (``ReplicationQuotaManager``). ``now`` is in seconds."""

    def __init__(self, window: Window, now: Callable[[], float]) -> None:
        self._window = window
        self._now = now
        self._bound: int | None = None
        self._rate = SimpleRate()
        self._replicas: dict[str, frozenset[int] | None] = {}
        """The numbers of throttled partitions by topic; None: all."""

    def limit(self, bytes_per_second: int | None) -> None:
        self._bound = bytes_per_second

    def throttle(self, topic: str, replicas: frozenset[int] | None) -> None:
        """Throttle these partitions of a topic, and no others; None: all."""
        if replicas is None or replicas:
            self._replicas[topic] = replicas
        else:
            self._replicas.pop(topic, None)

    def has(self, partition: TopicPartition) -> bool:
        if not self._replicas or partition.topic not in self._replicas:
            return False
        numbers = self._replicas[partition.topic]
        return numbers is None or partition.partition in numbers

    def record(self, partition: TopicPartition, size: int) -> None:
        """Count bytes of a partition, if it is throttled."""
        if size and self.has(partition):
            self._rate.record(self._window, size, self._now_ms())

    def hold_ms(self) -> int:
        """For how long throttled partitions that are not in sync must wait; 0 if they may go on."""
        if self._bound is None or not self._replicas:
            return 0
        if not self._bound:
            return _LONGEST_MS
        return min(self._rate.throttle_ms(self._window, self._bound, self._now_ms()), _LONGEST_MS)

    def _now_ms(self) -> int:
        return int(self._now() * 1000)


class ReplicationThrottles(NamedTuple):
    """Those of the broker ``node_id``."""

    node_id: int
    leader: ReplicationThrottle
    follower: ReplicationThrottle

    def limit(self, value: Callable[[str], str | None]) -> None:
        """Take over the rates, which ``value`` returns by key."""
        for throttle, key in ((self.leader, LEADER_RATE), (self.follower, FOLLOWER_RATE)):
            text = value(key)
            throttle.limit(None if text is None else int(text))

    def topics_changed(self, names: Iterable[str], topics: Mapping[str, TopicState]) -> None:
        """Take over what these topics say."""
        for name in names:
            config: Mapping[str, str] = topics[name].config if name in topics else {}
            for throttle, key in ((self.leader, LEADER_REPLICAS), (self.follower, FOLLOWER_REPLICAS)):
                throttle.throttle(name, throttled_partitions(config.get(key, ""), self.node_id))


def throttled_partitions(text: str, node_id: int) -> frozenset[int] | None:
    """The partitions of which a list names the replica on a broker; None: all.

    >>> throttled_partitions("0:1,1:2,2:1", 1) == {0, 2}, throttled_partitions("*", 1)
    (True, None)
    """
    if text.strip() == _ALL:
        return None
    pairs = [pair.strip().split(":") for pair in text.split(",") if ":" in pair]
    return frozenset(int(number) for number, node in pairs if int(node) == node_id)
