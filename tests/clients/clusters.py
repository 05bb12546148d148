"""Three of our brokers and three of Kafka's, in one rack each, ended and started again in the same way."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self
from urllib.request import urlopen

from tests.broker.clients import AdminClient
from tests.clients.servers import Kind
from tests.cluster_run.brokers import SETTINGS, ClusterBroker, ThreeBrokers
from tests.kafka.ensemble import KafkaEnsemble
from tests.kafka.node import KafkaNode
from tests.kafka.process import free_port
from tests.kafka.waiting import wait_until

NODES: Final = (1, 2, 3)
RACK_AWARE: Final = "org.apache.kafka.common.replica.RackAwareReplicaSelector"


class Cluster:
    """``with Cluster("ours", path) as cluster``: node N is in rack ``rN``. Readers may read from their own rack."""

    def __init__(self, kind: Kind, path: Path, settings: Mapping[str, str] | None = None) -> None:
        self.kind = kind
        wanted = {**SETTINGS, "replica.selector.class": RACK_AWARE, **(settings or {})}
        own = {node: {"broker.rack": f"r{node}"} for node in NODES}
        self._metrics: dict[int, int] = {}
        if kind == "kafka":
            wanted["broker.heartbeat.interval.ms"] = "500"
            ensemble = KafkaEnsemble(path, wanted, own=own)
            self._all: KafkaEnsemble | ThreeBrokers = ensemble
            self._nodes: Mapping[int, KafkaNode | ClusterBroker] = dict(zip(NODES, ensemble.nodes, strict=True))
        else:
            for node in NODES:
                self._metrics[node] = free_port(frozenset(self._metrics.values()))
                own[node]["metrics.listener"] = f"127.0.0.1:{self._metrics[node]}"
            brokers = ThreeBrokers(path, settings=wanted, own=own)
            self._all = brokers
            self._nodes = brokers.brokers

    @property
    def bootstrap(self) -> str:
        return self._all.bootstrap

    def __enter__(self) -> Self:
        self._all.__enter__()
        self.admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        self.wait_healthy()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._all.__exit__(kind, error, trace)

    def kill(self, node: int) -> None:
        """SIGKILL; returns when the others have seen it."""
        self._nodes[node].kill()
        wait_until(lambda: node not in self.admin.list_topics(timeout=20).brokers, f"the others to miss {node}")

    def stop(self, node: int) -> None:
        """A controlled shutdown."""
        self._nodes[node].stop()

    def start(self, node: int) -> None:
        self._nodes[node].start()

    def replicas(self, topic: str) -> dict[int, list[int]]:
        found = self.admin.list_topics(topic, timeout=20).topics[topic].partitions
        return {number: list(one.replicas) for number, one in found.items()}

    def leader(self, topic: str, number: int) -> int:
        return int(self.admin.list_topics(topic, timeout=20).topics[topic].partitions[number].leader)

    def wait_healthy(self) -> None:
        """Until all are there, and every replica is in sync."""
        wait_until(self._is_healthy, "a healthy cluster")

    def _is_healthy(self) -> bool:
        told = self.admin.list_topics(timeout=20)
        partitions = [one for topic in told.topics.values() for one in topic.partitions.values()]
        return len(told.brokers) == len(NODES) and all(len(one.isrs) == len(one.replicas) for one in partitions)

    def bytes_out(self, node: int, topic: str) -> int:
        """Of records that one of our brokers has given to consumers."""
        with urlopen(f"http://127.0.0.1:{self._metrics[node]}/metrics", timeout=20) as answer:
            lines = answer.read().decode().splitlines()
        of = f'kafka_server_brokertopicmetrics_bytesout_total{{topic="{topic}"}} '
        return sum(int(float(line.removeprefix(of))) for line in lines if line.startswith(of))
