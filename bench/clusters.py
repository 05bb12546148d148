"""Three nodes of ours and three of Kafka's side by side: what each side uses of the machine, and what its nodes do."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from bench.brokers import cpu_of, create_topic, resident
from bench.kafka import BROKER, QUIET
from seglog.client.bootstrap import parse_bootstrap
from seglog.client.cluster import ClusterAdmin
from seglog.cluster.health import ClusterStatus
from seglog.core.errors import SeglogError
from tests.broker.python_clients import NewTopic
from tests.kafka.ensemble import KafkaEnsemble
from tests.kafka.node import KafkaNode
from tests.kit.broker_process import BrokerProcess
from tests.kit.cluster import SeglogCluster
from tests.kit.waiting import wait_until

NODES: Final = 3
_PATIENCE: Final = 120.0
_LOOK: Final = 0.02
REPLICATED: Final = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "broker.session.timeout.ms": "9000",
}


class Cluster:
    """Three nodes of one side, running; a node is named by its index."""

    def __init__(self, servers: SeglogCluster | KafkaEnsemble) -> None:
        self.bootstrap = servers.bootstrap
        self._nodes: Sequence[BrokerProcess | KafkaNode] = servers.nodes

    @property
    def pids(self) -> list[int]:
        """Of the nodes that run."""
        return [node.pid for node in self._nodes if node.is_running]

    def kill(self, node: int) -> None:
        self._nodes[node].kill()

    def stop(self, node: int) -> None:
        self._nodes[node].stop()

    def start(self, node: int) -> None:
        """Until it answers."""
        self._nodes[node].start()


@contextmanager
def seglog_cluster(data_dir: Path) -> Iterator[Cluster]:
    with SeglogCluster(data_dir, settings=REPLICATED, defaults={}, log_level="error") as brokers:
        yield Cluster(brokers)


@contextmanager
def kafka_cluster(data_dir: Path) -> Iterator[Cluster]:
    """Each node is broker and controller, with the heap of Kafka's own scripts."""
    with KafkaEnsemble(data_dir, REPLICATED, jvm=(*BROKER, QUIET)) as nodes:
        yield Cluster(nodes)


@contextmanager
def both() -> Iterator[dict[str, Cluster]]:
    """Both clusters, running; their data are gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="seglog-bench-") as name, ExitStack() as stack:
        root = Path(name)
        yield {
            "seglog": stack.enter_context(seglog_cluster(root / "seglog")),
            "Kafka": stack.enter_context(kafka_cluster(root / "kafka")),
        }


def cpu(cluster: Cluster) -> float:
    """Seconds of CPU of all its nodes."""
    return sum(map(cpu_of, cluster.pids))


def memory(cluster: Cluster) -> int:
    """Resident bytes of all its nodes."""
    return sum(map(resident, cluster.pids))


def new_topic(cluster: Cluster, name: str, partitions: int, config: Mapping[str, str] | None = None) -> str:
    """With three replicas of each partition; all of them lead, and are in sync, when this returns."""
    create_topic(cluster.bootstrap, NewTopic(name, partitions, NODES, config=dict(config or {})))
    wait(
        cluster,
        lambda seen: (
            len(seen.partitions) == partitions
            and all(one.leader is not None and len(one.isr) == NODES for one in seen.partitions)
        ),
        topics=[name],
    )
    return name


def look(cluster: Cluster, topics: Sequence[str]) -> ClusterStatus:
    with ClusterAdmin(parse_bootstrap(cluster.bootstrap), _PATIENCE) as admin:
        return admin.look(topics, closely=False)


def wait(cluster: Cluster, condition: Callable[[ClusterStatus], bool], *, topics: Sequence[str]) -> None:
    """Look again and again until it holds."""

    def holds() -> bool:
        try:
            return condition(look(cluster, topics))
        except (SeglogError, OSError):
            return False  # the node that was asked first has just gone

    wait_until(holds, f"a state of {topics} at {cluster.bootstrap}", _PATIENCE, every=_LOOK)
