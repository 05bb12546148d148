"""Served by a broker of a cluster beside its own clients: followers, consumers that a nearer replica can serve
(KIP-392)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from hmac import compare_digest
from typing import Final, NamedTuple

from seglog.broker.fetch.follower_fetch import FollowerFetch
from seglog.broker.requests import RequestContext
from seglog.broker.topics.leader_hints import LeaderHints
from seglog.cluster.model import BrokerRegistration
from seglog.protocol import replica_fetch
from seglog.protocol.fetch import FetchAnswer
from seglog.protocol.replica_fetch import FollowerRequest
from seglog.replication.replica import Replica

NO_REPLICA: Final = -1
"""The preferred read replica of a consumer that should stay here."""


class ClusterPeers(NamedTuple):
    """``fetch`` answers followers. ``brokers`` are the registered ones. Requests that only brokers may send must come
    by their own ``listener``, with the proof of a registered one (CVE-2018-1288). ``needs_proof``: there is an
    authorizer."""

    fetch: FollowerFetch
    hints: LeaderHints
    brokers: Callable[[], Mapping[int, BrokerRegistration]]
    listener: str
    rack_aware: bool
    needs_proof: bool = False

    @staticmethod
    def read_request(frame: memoryview, body: int) -> FollowerRequest | None:
        """Decode a Fetch of version 17 that a broker may have sent; in any thread. None: it is another client's."""
        return replica_fetch.read_request(frame, body)

    def follower(
        self, asked: FollowerRequest | None, context: RequestContext
    ) -> FetchAnswer | Awaitable[FetchAnswer] | None:
        """The answer to a Fetch that comes from a broker; else None."""
        return None if asked is None or not self.is_broker(context, asked.head.replica_id) else self.fetch(asked)

    def is_broker(self, context: RequestContext, node_id: int | None = None) -> bool:
        """Whether a registered broker, the one of ``node_id`` if given, sent the request.

        While a broker of an older seglog is registered, which has no proof, the listener alone decides, unless there is
        an authorizer.
        """
        if context.listener != self.listener:
            return False
        brokers = self.brokers()
        if context.proof:
            asked = brokers.values() if node_id is None else [brokers[node_id]] if node_id in brokers else ()
            if any(compare_digest(one.proof, context.proof) for one in asked if one.proof):
                return True
        return not self.needs_proof and not all(one.proof for one in brokers.values())

    def preferred(self, partition: Replica, rack: str, offset: int) -> int:
        """The replica in the consumer's rack that has ``offset`` and the highest end; `NO_REPLICA` if the consumer
        should stay here (``RackAwareReplicaSelector``)."""
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
