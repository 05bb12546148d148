"""How many partitions a broker has, leads and misses, for metrics (names of ``ReplicaManager`` and the controller)."""

from __future__ import annotations

from typing import NamedTuple

from seglog.broker.topics import Topics


class PartitionCounts(NamedTuple):
    """``here`` to ``offline`` are about this broker, the last two about the cluster."""

    here: int
    led: int
    under_replicated: int
    under_min_isr: int
    offline: int
    everywhere: int
    leaderless: int


def count_partitions(topics: Topics, node_id: int) -> PartitionCounts:
    """Of all topics, as they are now."""
    found = [topics.standing(topic, number) for topic in topics for number in range(len(topic.partitions))]
    led = [one for one in found if one.leader == node_id]
    return PartitionCounts(
        here=sum(node_id in one.replicas for one in found),
        led=len(led),
        under_replicated=sum(len(one.isr) < len(one.replicas) for one in led),
        under_min_isr=sum(len(one.isr) < one.needed for one in led),
        offline=sum(node_id in one.offline for one in found),
        everywhere=len(found),
        leaderless=sum(one.leader < 0 for one in found),
    )
