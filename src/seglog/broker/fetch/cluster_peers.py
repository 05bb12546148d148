"""Served by a broker of a cluster beside its own clients: followers, consumers that a nearer replica can serve
(KIP-392), and clients that must ask another leader (KIP-951)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from hmac import compare_digest
from typing import Final, NamedTuple
from uuid import UUID

from seglog.broker.fetch.follower_fetch import FollowerFetch
from seglog.broker.identity import Identity
from seglog.broker.requests import RequestContext
from seglog.broker.topics.topics import Topics
from seglog.cluster.model import BrokerRegistration
from seglog.core.error_codes import ErrorCode
from seglog.protocol import replica_fetch
from seglog.protocol.fetch import FetchAnswer
from seglog.protocol.wire import NodeEndpoint
from seglog.replication.replica import Replica

NO_REPLICA: Final = -1
"""The preferred read replica of a consumer that should stay here."""


class ClusterPeers(NamedTuple):
    """``fetch`` answers followers. ``brokers`` are the registered ones. Requests that only brokers may send must come
    by their own ``listener``, with the proof of a registered one (CVE-2018-1288)."""

    fetch: FollowerFetch
    hints: LeaderHints
    brokers: Callable[[], Mapping[int, BrokerRegistration]]
    listener: str
    rack_aware: bool

    def follower(
        self, frame: memoryview, body: int, context: RequestContext
    ) -> FetchAnswer | Awaitable[FetchAnswer] | None:
        """The answer to a Fetch of version 17 that comes from a broker; else None."""
        asked = replica_fetch.read_request(frame, body)
        return None if asked is None or not self.is_broker(context, asked.head.replica_id) else self.fetch(asked)

    def is_broker(self, context: RequestContext, node_id: int | None = None) -> bool:
        """Whether a registered broker, the one of ``node_id`` if given, sent the request.

        While a broker of an older seglog is registered, which has no proof, the listener alone decides.
        """
        if context.listener != self.listener:
            return False
        brokers = self.brokers()
        if context.proof:
            asked = brokers.values() if node_id is None else [brokers[node_id]] if node_id in brokers else ()
            if any(compare_digest(one.proof, context.proof) for one in asked if one.proof):
                return True
        return not all(one.proof for one in brokers.values())

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


NOT_LEADER_OR_FOLLOWER: Final = int(ErrorCode.NOT_LEADER_OR_FOLLOWER)
FENCED_LEADER_EPOCH: Final = 74
_TOLD: Final = frozenset({NOT_LEADER_OR_FOLLOWER, FENCED_LEADER_EPOCH})


class LeaderHints(NamedTuple):
    """Names the leader, and its address, to a client that asked the wrong broker (KIP-951)."""

    topics: Topics
    identity: Identity

    def leader(self, topic: str | UUID, number: int, error: int) -> tuple[int, int] | None:
        """The leader's id (-1 without a leader) and epoch, if ``error`` means that another broker leads."""
        if error not in _TOLD:
            return None
        found = self.topics.find(topic)
        if found is None or not 0 <= number < len(found.partitions):
            return None
        standing = self.topics.metadata(found, number)
        return standing.leader, standing.leader_epoch

    def endpoints(self, leaders: Iterable[tuple[int, int] | None], listener: str) -> list[NodeEndpoint]:
        """The leaders' addresses on a client's ``listener``."""
        racks = self.identity.racks()
        found = []
        for node in sorted({leader[0] for leader in leaders if leader is not None}):
            address = self.identity.address(node, listener)
            if address is not None:
                found.append(NodeEndpoint(node, address.host, address.port, racks.get(node)))
        return found
