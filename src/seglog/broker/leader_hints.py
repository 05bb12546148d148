"""What a client is told that asked the wrong broker: who leads the partition, and where that is (KIP-951)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple
from uuid import UUID

from seglog.broker.identity import Identity
from seglog.broker.topics import Topics
from seglog.core.error_codes import ErrorCode
from seglog.protocol.endpoints import NodeEndpoint

NOT_LEADER_OR_FOLLOWER: Final = int(ErrorCode.NOT_LEADER_OR_FOLLOWER)
FENCED_LEADER_EPOCH: Final = 74
_TOLD: Final = frozenset({NOT_LEADER_OR_FOLLOWER, FENCED_LEADER_EPOCH})


class LeaderHints(NamedTuple):
    """Of a cluster, as this broker sees it."""

    topics: Topics
    identity: Identity

    def leader(self, topic: str | UUID, number: int, error: int) -> tuple[int, int] | None:
        """The leader's id (-1: there is none) and its epoch, if the error says that it is another one."""
        if error not in _TOLD:
            return None
        found = self.topics.find(topic)
        if found is None or not 0 <= number < len(found.partitions):
            return None
        standing = self.topics.standing(found, number)
        return standing.leader, standing.leader_epoch

    def endpoints(self, leaders: Iterable[tuple[int, int] | None], listener: str) -> list[NodeEndpoint]:
        """Where those are, for a client of a listener."""
        racks = self.identity.racks()
        found = []
        for node in sorted({leader[0] for leader in leaders if leader is not None}):
            address = self.identity.address(node, listener)
            if address is not None:
                found.append(NodeEndpoint(node, address.host, address.port, racks.get(node)))
        return found
