"""How many partitions a broker has, leads and misses, for metrics (names of ``ReplicaManager`` and the controller)."""

from __future__ import annotations

from typing import NamedTuple

from seglog.broker.topics import Standing, Topics


class PartitionCounts(NamedTuple):
    """``here`` to ``leaderless_here`` are about this broker, the last two about the cluster. What this broker should
    lead, and does not while the metadata store is away, counts as without a leader."""

    here: int
    led: int
    under_replicated: int
    under_min_isr: int
    offline: int
    leaderless_here: int
    everywhere: int
    leaderless: int


def count_partitions(topics: Topics, node_id: int) -> PartitionCounts:
    """Of all topics, as they are now."""
    found: list[Standing] = []
    leaderless: list[Standing] = []
    for topic in topics:
        for number, partition in enumerate(topic.partitions):
            one = topics.standing(topic, number)
            found.append(one)
            is_stopped = one.leader == node_id and partition is not None and not partition.leads
            if one.leader < 0 or is_stopped:
                leaderless.append(one)
    led = [one for one in found if one.leader == node_id]
    return PartitionCounts(
        here=sum(node_id in one.replicas for one in found),
        led=len(led),
        under_replicated=sum(len(one.isr) < len(one.replicas) for one in led),
        under_min_isr=sum(len(one.isr) < one.needed for one in led),
        offline=sum(node_id in one.offline for one in found),
        leaderless_here=sum(node_id in one.replicas for one in leaderless),
        everywhere=len(found),
        leaderless=len(leaderless),
    )
