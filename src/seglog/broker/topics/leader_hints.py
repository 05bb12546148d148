"""The leader that a client should have asked (KIP-951)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple
from uuid import UUID

from seglog.broker.identity import Identity
from seglog.broker.topics.topics import Topics
from seglog.core.error_codes import ErrorCode
from seglog.protocol.wire import NodeEndpoint

_TOLD: Final = frozenset({int(ErrorCode.NOT_LEADER_OR_FOLLOWER), int(ErrorCode.FENCED_LEADER_EPOCH)})


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
