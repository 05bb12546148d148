"""The identity of this broker, and of its cluster, as clients see it."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from typing import Any

from seglog.cluster.cluster_view import ClusterView
from seglog.cluster.model import BrokerRegistration
from seglog.core.addresses import WILDCARDS, Address, parse_host_port

TOPIC_OPERATIONS = sum(1 << operation for operation in (3, 4, 5, 6, 7, 8, 10, 11))
"""Read, write, create, delete, alter, describe, describe configs, alter configs: without ACLs, everyone may do
everything."""
CLUSTER_OPERATIONS = sum(1 << operation for operation in (5, 7, 8, 9, 10, 11, 12))
NOT_ASKED = -(2**31)


class Identity:
    """``advertised`` has this broker's address for the clients of each listener."""

    def __init__(self, view: ClusterView, *, node_id: int, cluster_id: str, rack: str | None) -> None:
        self.node_id = node_id
        self.cluster_id = cluster_id
        self.rack = rack
        self.advertised: dict[str, Address] = {}
        self._view = view
        self._addresses: dict[int, tuple[BrokerRegistration, dict[str, Address]]] = {}
        """The addresses of each broker, with the registration that they come from."""

    def advertise(self, listener: str, address: Address, port: int) -> None:
        """Clients of ``listener`` connect to ``address``: this host in place of a wildcard, ``port`` in place of 0."""
        host = os.uname().nodename if address.host in WILDCARDS else address.host
        self.advertised[listener] = Address(address.name, host, address.port or port)

    def brokers(self, listener: str) -> list[dict[str, Any]]:
        """The brokers that a client of this listener can reach."""
        found = []
        for node, broker in sorted(self._view.brokers.items()):
            address = self.address(node, listener)
            if address is not None:
                found.append(described(node, address, broker.rack))
        return found

    @property
    def controller_id(self) -> int:
        """This broker's own id while the cluster has no controller."""
        controller = self._view.controller
        is_there = controller is not None and controller.node_id in self._view.brokers
        return controller.node_id if controller is not None and is_there else self.node_id

    @property
    def is_controller(self) -> bool:
        controller = self._view.controller
        return controller is not None and controller.node_id == self.node_id

    def registered(self) -> Collection[int]:
        """The ids of all registered brokers."""
        return self._view.brokers.keys()

    def racks(self) -> Mapping[int, str | None]:
        """The brokers that can take new replicas, by id, with their racks: all that are not stopping
        (``BrokerHeartbeatManager.UsableBrokerIterator``)."""
        return {node: broker.rack for node, broker in self._view.brokers.items() if not broker.is_stopping}

    def address(self, node_id: int, listener: str) -> Address | None:
        """A broker's address for clients of this listener; None if the broker is unknown or lacks the listener."""
        if node_id == self.node_id and listener in self.advertised:
            return self.advertised[listener]
        broker = self._view.brokers.get(node_id)
        if broker is None:
            return None
        known = self._addresses.get(node_id)
        if known is None or known[0] is not broker:
            parsed = {name: parse_host_port(text) for name, text in broker.listeners.items()}
            known = self._addresses[node_id] = broker, parsed
        return known[1].get(listener)


def described(node_id: int, address: Address, rack: str | None) -> dict[str, Any]:
    """A broker in a Metadata or DescribeCluster response."""
    return {"node_id": node_id, "broker_id": node_id, "host": address.host, "port": address.port, "rack": rack}
