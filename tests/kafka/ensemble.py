"""Three nodes of Kafka 4.4.0 in one cluster (KRaft, each of them broker and controller), on loopback."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from tests.kafka.node import JVM_OPTIONS, KafkaNode, new_id
from tests.kit.ports import free_port
from tests.kit.service import Services

__all__ = ["KafkaEnsemble"]

_REPLICATED: Final = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "share.coordinator.state.topic.replication.factor": "3",
    "share.coordinator.state.topic.min.isr": "2",
}


class KafkaEnsemble(Services[KafkaNode]):
    """``with`` starts and ends them. ``properties`` are added to each node's and win, and over these those that are one
    node's ``own``; more than three with ``count``: those beyond the third are brokers only."""

    def __init__(
        self,
        data_dir: Path,
        properties: Mapping[str, str] | None = None,
        *,
        count: int = 3,
        own: Mapping[int, Mapping[str, str]] | None = None,
        jvm: Sequence[str] = JVM_OPTIONS,
    ) -> None:
        ports = [free_port() for _ in range(2 * count)]
        voters = {number: ports[2 * number - 1] for number in range(1, min(count, 3) + 1)}
        quorum = new_id(), ",".join(f"{number}@127.0.0.1:{port}:{new_id()}" for number, port in voters.items())
        self.nodes = []
        for number in range(1, count + 1):
            settings = {
                "node.id": str(number),
                "controller.quorum.bootstrap.servers": ",".join(f"127.0.0.1:{port}" for port in voters.values()),
                **_REPLICATED,
                **(_broker_only(ports[2 * number - 2]) if number not in voters else {}),
                **(properties or {}),
                **(own or {}).get(number, {}),
            }
            node_ports = ports[2 * number - 2], ports[2 * number - 1]
            self.nodes.append(KafkaNode(data_dir / str(number), settings, jvm=jvm, ports=node_ports, quorum=quorum))

    @property
    def bootstrap(self) -> str:
        return ",".join(node.bootstrap for node in self.nodes)


def _broker_only(port: int) -> dict[str, str]:
    return {
        "process.roles": "broker",
        "listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
    }
