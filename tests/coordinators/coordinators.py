"""Three brokers, as they ship, that can coordinate groups: all have a replica of the only partition of
``__consumer_offsets``, and the test elects its leader."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, Self
from uuid import UUID

from seglog.coordinators.group_coordinator import GroupCoordinator
from seglog.coordinators.settings import GroupSettings
from seglog.core.topic_names import OFFSETS_TOPIC
from seglog.replication.replica import Replica
from tests.kit.virtual_cluster import VirtualBroker, VirtualCluster

TOPIC: Final = UUID(int=5)
NODES: Final = (1, 2, 3)
_SETTINGS: Final = {
    "broker.session.timeout.ms": "3000",
    "group.initial.rebalance.delay.ms": "100",
    "group.min.session.timeout.ms": "1000",
    "offsets.commit.timeout.ms": "2000",
    "offsets.topic.num.partitions": "1",
    "replica.fetch.wait.max.ms": "500",
    "replica.lag.time.max.ms": "2000",
}
DOUBT_SECONDS: Final = 2.5
"""After so long without the store a broker is in doubt of its session, and has it yet."""


class Coordinators(VirtualCluster):
    """``with Coordinators() as cluster``: no broker coordinates before `lead`."""

    def __init__(self, *, seed: int = 1, min_insync: int = 1) -> None:
        super().__init__(3, _SETTINGS, seed=seed)
        self._min_insync = min_insync

    def __enter__(self) -> Self:
        super().__enter__()
        config = {
            **GroupSettings().topic_config(),
            "flush.messages": "1",
            "min.insync.replicas": str(self._min_insync),
        }
        self.create(OFFSETS_TOPIC, config=config, min_insync=self._min_insync, topic_id=TOPIC)
        return self

    def lead(self, node_id: int, *, latest: float = 0.001) -> None:
        """Elect a leader in a new epoch. It may lead already."""
        self.elect(TOPIC, node_id, latest=latest)

    @property
    def isr(self) -> tuple[int, ...]:
        return self.state(TOPIC).isr_nodes

    @property
    def coordinator(self) -> VirtualBroker:
        """The broker that leads, as the store has it."""
        return self[self.state(TOPIC).leader]

    def cut(self, *node_ids: int) -> None:
        self.isolate(node_ids)

    def ends_at(self, brokers: Collection[VirtualBroker]) -> set[int]:
        return {offsets_of(broker).log.log_end_offset for broker in brokers}


def groups(broker: VirtualBroker) -> GroupCoordinator:
    return broker.running.groups


def offsets_of(broker: VirtualBroker) -> Replica:
    """Its replica of ``__consumer_offsets``."""
    return broker.replica(TOPIC)
