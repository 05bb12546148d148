"""Who this broker is: what it tells clients of itself and its cluster."""

from __future__ import annotations

from typing import Any

from seglog.core.addresses import Address

TOPIC_OPERATIONS = sum(1 << operation for operation in (3, 4, 5, 6, 7, 8, 10, 11))
"""Read, write, create, delete, alter, describe, describe and alter configs: without ACLs everyone may do everything."""
CLUSTER_OPERATIONS = sum(1 << operation for operation in (5, 7, 8, 9, 10, 11, 12))
NOT_ASKED = -(2**31)


class Identity:
    """``advertised`` has the address that a client is told, by the name of the listener that it came in by."""

    def __init__(self, *, node_id: int, cluster_id: str, rack: str | None) -> None:
        self.node_id = node_id
        self.cluster_id = cluster_id
        self.rack = rack
        self.advertised: dict[str, Address] = {}

    def brokers(self, listener: str) -> list[dict[str, Any]]:
        """The brokers of the cluster that a client of this listener can reach."""
        address = self.advertised[listener]
        return [
            {
                "node_id": self.node_id,
                "broker_id": self.node_id,
                "host": address.host,
                "port": address.port,
                "rack": self.rack,
            }
        ]
