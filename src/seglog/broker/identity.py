"""Who this broker is: what it tells clients of itself and its cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from seglog.core.addresses import Address

TOPIC_OPERATIONS = sum(1 << operation for operation in (3, 4, 5, 6, 7, 8, 10, 11))
"""Read, write, create, delete, alter, describe, describe and alter configs: without ACLs everyone may do everything."""
CLUSTER_OPERATIONS = sum(1 << operation for operation in (5, 7, 8, 9, 10, 11, 12))
NOT_ASKED = -(2**31)


class Identity:
    """Of a node that is alone. ``advertised`` has the address that a client is told, by the name of the listener that
    it came in by."""

    def __init__(self, *, node_id: int, cluster_id: str, rack: str | None) -> None:
        self.node_id = node_id
        self.cluster_id = cluster_id
        self.rack = rack
        self.advertised: dict[str, Address] = {}

    def brokers(self, listener: str) -> list[dict[str, Any]]:
        """The brokers of the cluster that a client of this listener can reach."""
        return [described(self.node_id, self.advertised[listener], self.rack)]

    @property
    def controller_id(self) -> int:
        """The broker that clients send changes of the cluster to."""
        return self.node_id

    def racks(self) -> Mapping[int, str | None]:
        """The brokers that can have replicas, by id, with their racks."""
        return {self.node_id: self.rack}

    def address(self, node_id: int, listener: str) -> Address | None:
        """Where a client of this listener reaches a broker; None: there is none, or it has no such listener."""
        return self.advertised.get(listener) if node_id == self.node_id else None


def described(node_id: int, address: Address, rack: str | None) -> dict[str, Any]:
    """A broker as Metadata and DescribeCluster name it."""
    return {"node_id": node_id, "broker_id": node_id, "host": address.host, "port": address.port, "rack": rack}
