"""The requests of consumer groups' members and their answers, independent of the request's version. Pure."""

from __future__ import annotations

from typing import NamedTuple

from seglog.coordinators.consumer_records import PartitionEpochs, Partitions


class ConsumerHeartbeat(NamedTuple):
    """A ConsumerGroupHeartbeat. None, and -1 for ``rebalance_timeout`` (milliseconds), mean: as before.

    ``epoch`` is 0 for a member that joins, -1 for one that leaves, -2 for a static member that leaves and will be back.
    """

    group_id: str
    member_id: str
    epoch: int
    instance_id: str | None
    rack: str | None
    rebalance_timeout: int
    topics: frozenset[str] | None
    expression: str | None
    assignor: str | None
    owned: Partitions | None
    client_id: str
    client_host: str

    @property
    def is_full(self) -> bool:
        """Whether it has everything that a member's first heartbeat has."""
        subscribes = self.topics is not None or self.expression is not None
        return self.rebalance_timeout != -1 and subscribes and self.owned is not None


class ConsumerHeartbeatAnswer(NamedTuple):
    """``assigned`` is None if the member knows its assignment already; ``interval`` is in milliseconds."""

    member_id: str
    epoch: int
    interval: int = 0
    assigned: PartitionEpochs | None = None
