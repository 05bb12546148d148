"""Whether clients should be sent to this broker, and why not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from seglog.broker.partition_counts import PartitionCounts


class StoreStanding(NamedTuple):
    """How a broker of a cluster stands with the metadata store.

    ``uncertain_seconds``: for how long the store has not confirmed its standing, 0 while it does; the total is that
    of all such times since the start.
    """

    is_registered: bool
    has_controller: bool
    uncertain_seconds: float
    uncertain_seconds_total: float


def obstacles(standing: StoreStanding | None, counts: PartitionCounts, failure: str | None) -> Sequence[str]:
    """What keeps a broker from being ready: nothing if it is. ``standing`` is None for one that is alone;
    ``failure`` is why its last log directory cannot be used."""
    found = []
    if failure is not None:
        found.append(f"no log directory can be used: {failure}")
    if standing is not None:
        if not standing.is_registered:
            found.append("this broker is not registered in the metadata store")
        elif standing.uncertain_seconds:
            found.append(f"the metadata store has not confirmed it for {standing.uncertain_seconds:.0f} s")
        if not standing.has_controller:
            found.append("the cluster has no controller")
    if counts.leaderless_here:
        found.append(f"{counts.leaderless_here} of its partitions have no leader that takes writes")
    return found
