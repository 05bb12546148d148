"""Three nodes of ours and three of Kafka's side by side: what each side uses of the machine, and what its nodes do."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, Protocol

from bench.brokers import cpu_of, create_topic, resident
from bench.commands import begin, wait_for_end, wait_until_ready
from bench.kafka import BROKER, QUIET
from seglog.client.bootstrap import parse_bootstrap
from seglog.client.cluster import ClusterAdmin
from seglog.cluster.health import ClusterStatus
from seglog.core.errors import SeglogError
from tests.broker.clients import NewTopic
from tests.kafka.ensemble import KafkaEnsemble
from tests.kit.ports import free_port
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


class Cluster(Protocol):
    """Three nodes; a node is named by its index."""

    @property
    def bootstrap(self) -> str: ...
    @property
    def pids(self) -> list[int]:
        """Of the nodes that run."""

    def kill(self, node: int) -> None: ...
    def stop(self, node: int) -> None: ...
    def start(self, node: int) -> None:
        """Until it answers."""


class SeglogCluster:
    """Three ``seglog serve --cluster`` on one SQLite file, or on the store that is given."""

    def __init__(self, data_dir: Path, properties: Mapping[str, str] | None = None, store: str | None = None) -> None:
        data_dir.mkdir()
        self._dir = data_dir
        self._store = store or f"sqlite:{data_dir / 'metadata.sqlite'}"
        self._settings = {**REPLICATED, **(properties or {})}
        self._ports = [free_port() for _ in range(NODES)]
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self._ports)

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes.values()]

    def __enter__(self) -> SeglogCluster:
        try:
            for node in range(NODES):
                self._begin(node)
            for node in range(NODES):
                wait_until_ready(self._processes[node])
            wait(self, lambda seen: len(seen.brokers) == NODES, topics=[])
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for node in list(self._processes):
            self.kill(node)

    def start(self, node: int) -> None:
        self._begin(node)
        wait_until_ready(self._processes[node])

    def kill(self, node: int) -> None:
        process = self._processes.pop(node)
        process.kill()
        wait_for_end(process)

    def stop(self, node: int) -> None:
        process = self._processes.pop(node)
        process.terminate()
        wait_for_end(process)

    def _begin(self, node: int) -> None:
        who = ("--cluster", self._store, "--node-id", str(node + 1), "--log-level", "error")
        where = ("--data-dir", self._dir / str(node + 1), "--listen", f"127.0.0.1:{self._ports[node]}")
        self._processes[node] = begin("serve", *who, *where, settings=self._settings)


class KafkaCluster:
    """Three nodes of Kafka, each of them broker and controller, with the heap of its own scripts."""

    def __init__(self, data_dir: Path, properties: Mapping[str, str] | None = None) -> None:
        self._ensemble = KafkaEnsemble(data_dir, {**REPLICATED, **(properties or {})}, jvm=(*BROKER, QUIET))
        self._running: set[int] = set()

    @property
    def bootstrap(self) -> str:
        return self._ensemble.bootstrap

    @property
    def pids(self) -> list[int]:
        return [self._ensemble.nodes[node].pid for node in sorted(self._running)]

    def __enter__(self) -> KafkaCluster:
        self._ensemble.start()
        self._running = set(range(NODES))
        return self

    def __exit__(self, *_: object) -> None:
        self._ensemble.kill()

    def kill(self, node: int) -> None:
        self._running.remove(node)
        self._ensemble.nodes[node].kill()

    def stop(self, node: int) -> None:
        self._running.remove(node)
        self._ensemble.nodes[node].stop()

    def start(self, node: int) -> None:
        self._ensemble.nodes[node].start()
        self._running.add(node)


@contextmanager
def both(properties: Mapping[str, str] | None = None) -> Iterator[dict[str, Cluster]]:
    """Both clusters, running; their data are gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="seglog-bench-") as name, ExitStack() as stack:
        root = Path(name)
        yield {
            "seglog": stack.enter_context(SeglogCluster(root / "seglog", properties)),
            "Kafka": stack.enter_context(KafkaCluster(root / "kafka", properties)),
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
