"""What a Fetch needs of the other brokers of a cluster: followers that read from here, and replicas that are nearer to
a consumer (KIP-392)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final, NamedTuple

from seglog.broker.follower_fetch import FollowerFetch
from seglog.broker.leader_hints import LeaderHints
from seglog.cluster.model import BrokerRegistration
from seglog.protocol import replica_fetch
from seglog.protocol.fetch import FetchAnswer
from seglog.replication.replica import Replica

NO_REPLICA: Final = -1
"""The value of ``replica.selector.class`` with which consumers are sent to a replica in their own rack."""


class Neighbours(NamedTuple):
    """``fetch`` answers followers; ``brokers`` are those that are there; ``listener`` is the one by which brokers
    come, and no others may say that they are brokers (CVE-2018-1288)."""

    fetch: FollowerFetch
    hints: LeaderHints
    brokers: Callable[[], Mapping[int, BrokerRegistration]]
    listener: str
    rack_aware: bool

    def follower(self, frame: memoryview, body: int, listener: str) -> FetchAnswer | Awaitable[FetchAnswer] | None:
        """The answer to a Fetch of version 17, if it is a broker that asks, by the brokers' listener."""
        asked = replica_fetch.read_request(frame, body)
        return None if asked is None or listener != self.listener else self.fetch(asked)

    def preferred(self, partition: Replica, rack: str, offset: int) -> int:
        """The replica in the consumer's rack that has most of what is behind ``offset``; `NO_REPLICA`: stay here
        (``RackAwareReplicaSelector``)."""
        progress, brokers = partition.progress, self.brokers()
        if not self.rack_aware or not rack or progress is None:
            return NO_REPLICA
        here = brokers.get(progress.node_id)
        if here is None or here.rack == rack:
            return NO_REPLICA
        near = [
            (follower.end_offset, -node)
            for node, follower in progress.followers.items()
            if node in progress.state.isr_nodes
            and node in brokers
            and brokers[node].rack == rack
            and follower.log_start_offset <= offset <= follower.end_offset
        ]
        return -max(near)[1] if near else NO_REPLICA
