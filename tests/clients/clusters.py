"""Three of our brokers and three of Kafka's, in one rack each, ended and started again in the same way."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final
from urllib.request import urlopen

from seglog.client.bootstrap import parse_bootstrap
from seglog.client.cluster import ClusterAdmin
from seglog.cluster.health import ClusterStatus
from seglog.core.errors import RequestFailedError
from tests.broker.python_clients import AdminClient, NewTopic
from tests.clients.servers import Kind
from tests.kafka.ensemble import KafkaEnsemble
from tests.kafka.node import KafkaNode
from tests.kit.cluster import SETTINGS, ClusterBroker, SeglogCluster
from tests.kit.ports import free_port
from tests.kit.service import Service
from tests.kit.waiting import wait_until

NODES: Final = (1, 2, 3)
_PATIENCE: Final = 60
RACK_AWARE: Final = "org.apache.kafka.common.replica.RackAwareReplicaSelector"


class Cluster(Service):
    """``with Cluster("ours", path) as cluster``: node N is in rack ``rN``. Readers may read from their own rack."""

    def __init__(self, kind: Kind, path: Path, settings: Mapping[str, str] | None = None) -> None:
        self.kind = kind
        wanted = {**SETTINGS, "replica.selector.class": RACK_AWARE, **(settings or {})}
        own = {node: {"broker.rack": f"r{node}"} for node in NODES}
        self._metrics: dict[int, int] = {}
        if kind == "kafka":
            wanted["broker.heartbeat.interval.ms"] = "500"
            ensemble = KafkaEnsemble(path, wanted, own=own)
            self._all: KafkaEnsemble | SeglogCluster = ensemble
            self._nodes: Mapping[int, KafkaNode | ClusterBroker] = dict(zip(NODES, ensemble.nodes, strict=True))
        else:
            for node in NODES:
                self._metrics[node] = free_port()
                own[node]["metrics.listener"] = f"127.0.0.1:{self._metrics[node]}"
            cluster = SeglogCluster(path, settings=wanted, own=own)
            self._all, self._nodes = cluster, cluster.brokers

    @property
    def bootstrap(self) -> str:
        return self._all.bootstrap

    def start(self) -> None:
        self._all.start()
        self.admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        self.wait_healthy()

    def leave(self) -> None:
        self._all.leave()

    def create(self, topic: str, assignment: Sequence[Sequence[int]]) -> None:
        """A topic that every broker knows: who has not heard of it yet may be the one that is asked next."""
        for made in self.admin.create_topics(
            [NewTopic(topic, len(assignment), replica_assignment=assignment)]
        ).values():
            made.result(60)
        self.wait_for_all(
            lambda seen: (
                sum(one.topic == topic and one.leader is not None for one in seen.partitions) == len(assignment)
            ),
            f"all brokers to know {topic}",
        )

    def kill(self, node: int) -> None:
        """SIGKILL; returns when the others have seen it, and lead what it led."""
        self._nodes[node].kill()
        self.wait_for_all(
            lambda seen: (
                node not in seen.brokers
                and all(one.leader not in (None, node) and node not in one.isr for one in seen.partitions)
            ),
            f"the others to miss {node}",
            [other for other in NODES if other != node],
        )

    def stop(self, node: int) -> None:
        """A controlled shutdown."""
        self._nodes[node].stop()

    def restart(self, node: int) -> None:
        """Start one that was stopped or killed."""
        self._nodes[node].start()

    def replicas(self, topic: str) -> dict[int, list[int]]:
        found = self.admin.list_topics(topic, timeout=60).topics[topic].partitions
        return {number: list(one.replicas) for number, one in found.items()}

    def leader(self, topic: str, number: int) -> int:
        return int(self.admin.list_topics(topic, timeout=60).topics[topic].partitions[number].leader)

    def wait_healthy(self) -> None:
        """Until all are there, every replica is in sync, and none is moving: each broker says so."""
        self.wait_for_all(_is_healthy, "a healthy cluster")

    def wait_for_all(self, is_so: Callable[[ClusterStatus], bool], what: str, nodes: Sequence[int] = NODES) -> None:
        """Wait until each broker sees this, because any of them may answer a client."""
        wait_for_all([self._address(node) for node in nodes], is_so, what)

    def asking(self, node: int) -> ClusterAdmin:
        """That broker, and no other one first."""
        return ClusterAdmin(parse_bootstrap(self._address(node)), _PATIENCE)

    def _address(self, node: int) -> str:
        return self._nodes[node].bootstrap

    def bytes_out(self, node: int, topic: str) -> int:
        """Of records that one of our brokers has given to consumers."""
        with urlopen(f"http://127.0.0.1:{self._metrics[node]}/metrics", timeout=60) as answer:
            lines = answer.read().decode().splitlines()
        of = f'kafka_server_brokertopicmetrics_bytesout_total{{topic="{topic}"}} '
        return sum(int(float(line.removeprefix(of))) for line in lines if line.startswith(of))


def wait_for_all(addresses: Sequence[str], is_so: Callable[[ClusterStatus], bool], what: str) -> None:
    """Until each of these brokers says so: what a controller has done they hear of later, each at another time."""
    wait_until(lambda: all(_sees(address, is_so) for address in addresses), what)


def _sees(address: str, is_so: Callable[[ClusterStatus], bool]) -> bool:
    try:
        with ClusterAdmin(parse_bootstrap(address), _PATIENCE) as admin:
            return is_so(admin.look(closely=False))
    except RequestFailedError:
        return False


def _is_healthy(seen: ClusterStatus) -> bool:
    return len(seen.brokers) == len(NODES) and all(
        set(one.isr) == set(one.replicas) and one.leader is not None and not one.adding and not one.removing
        for one in seen.partitions
    )
