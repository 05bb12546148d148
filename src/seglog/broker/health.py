"""Whether clients should use this broker, and if not, why."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from seglog.broker.topics.topics import PartitionMetadata, Topics


class StoreStatus(NamedTuple):
    """A broker's standing with the metadata store of its cluster.

    ``uncertain_seconds`` have passed since the store last confirmed the broker's session, 0 while it does. The total
    counts all such times since the start.
    """

    is_registered: bool
    has_controller: bool
    uncertain_seconds: float
    uncertain_seconds_total: float


def obstacles(standing: StoreStatus | None, counts: PartitionCounts, failure: str | None) -> Sequence[str]:
    """The reasons why a broker is not ready. ``standing`` is None without a cluster; ``failure``: it must be
    restarted."""
    found = []
    if failure is not None:
        found.append(failure)
    if standing is not None:
        if not standing.is_registered:
            found.append("this broker is not registered in the metadata store")
        elif standing.uncertain_seconds:
            found.append(f"the metadata store has not confirmed it for {standing.uncertain_seconds:.0f} s")
        if not standing.has_controller:
            found.append("the cluster has no controller")
    if counts.leaderless_here:
        found.append(f"{counts.leaderless_here} of its partitions have no leader that accepts writes")
    return found


class PartitionCounts(NamedTuple):
    """``here`` to ``leaderless_here`` count this broker's partitions, the last two the cluster's. A partition that this
    broker should lead but does not, while the metadata store is away, counts as leaderless."""

    here: int
    led: int
    under_replicated: int
    under_min_isr: int
    offline: int
    leaderless_here: int
    everywhere: int
    leaderless: int


def count_partitions(topics: Topics, node_id: int) -> PartitionCounts:
    found: list[PartitionMetadata] = []
    leaderless: list[PartitionMetadata] = []
    for topic in topics:
        for number, partition in enumerate(topic.partitions):
            one = topics.metadata(topic, number)
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
