"""Several brokers of one cluster as processes, and what may happen to them: kill -9, SIGSTOP, an end, a cut network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from seglog.cli.cluster import store_view as cluster_store
from seglog.client.bootstrap import parse_bootstrap
from seglog.client.cluster import ClusterAdmin
from seglog.cluster.health import ClusterStatus, HealthFinding, judge
from tests.kit.broker_process import SECONDS, BrokerProcess
from tests.kit.network import Loopback
from tests.kit.service import Services
from tests.kit.waiting import wait_until

SETTINGS: Final[Mapping[str, str]] = {
    "auto.create.topics.enable": "false",
    "broker.session.timeout.ms": "3000",
    "default.replication.factor": "3",
    "group.initial.rebalance.delay.ms": "0",
    "log.retention.ms": "-1",
    "min.insync.replicas": "2",
    "offsets.topic.num.partitions": "3",
    "offsets.topic.replication.factor": "3",
    "replica.lag.time.max.ms": "2000",
    "seglog.insecure.listeners": "true",  # in network namespaces, brokers are machines to each other
}
"""Default settings of test clusters: intervals are short, so that each passes many times in a run."""


class ClusterBroker(BrokerProcess):
    """One `seglog serve --cluster`: started again and again with the same directory, number and address."""

    def __init__(
        self,
        node_id: int,
        path: Path,
        store: str,
        network: Loopback,
        settings: Mapping[str, str],
        more: Sequence[Path] = (),
        log_level: str = "info",
    ) -> None:
        self.node_id = node_id
        super().__init__(
            path,
            settings,
            address=network.address(node_id),
            options=("--cluster", store, "--node-id", str(node_id)),
            prefix=network.prefix(node_id),
            more=more,
            log_level=log_level,
        )


class SeglogCluster(Services[ClusterBroker]):
    """``with SeglogCluster(path) as cluster``: brokers of one cluster, all running at the start, killed at the end.

    ``store`` is an address; None: a SQLite file. ``own`` are settings and ``more`` further log directories by the
    brokers' numbers; ``settings`` go over ``defaults``.
    """

    def __init__(
        self,
        path: Path,
        store: str | None = None,
        *,
        count: int = 3,
        settings: Mapping[str, str] | None = None,
        own: Mapping[int, Mapping[str, str]] | None = None,
        more: Mapping[int, Sequence[Path]] | None = None,
        network: Loopback | None = None,
        defaults: Mapping[str, str] = SETTINGS,
        log_level: str = "info",
    ) -> None:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.store = store or f"sqlite:{path / 'metadata.sqlite'}"
        self.network = network or Loopback()
        self._path = path
        self._settings = {**defaults, **(settings or {})}
        self._log_level = log_level
        self.own = own or {}
        self._more = more or {}
        self.brokers: dict[int, ClusterBroker] = {}
        self.nodes: list[ClusterBroker] = []
        for node_id in range(1, count + 1):
            self.add(node_id)

    def add(self, node_id: int) -> ClusterBroker:
        """One more, which does not run yet."""
        settings = {**self._settings, **self.own.get(node_id, {})}
        path, more = self._path / f"broker-{node_id}", self._more.get(node_id, ())
        broker = ClusterBroker(node_id, path, self.store, self.network, settings, more, self._log_level)
        self.brokers[node_id] = broker
        self.nodes.append(broker)
        return broker

    def __getitem__(self, node_id: int) -> ClusterBroker:
        return self.brokers[node_id]

    @property
    def bootstrap(self) -> str:
        return ",".join(self.addresses)

    @property
    def addresses(self) -> list[str]:
        return [broker.address for broker in self.nodes]

    @property
    def running(self) -> list[int]:
        return [node_id for node_id, broker in self.brokers.items() if broker.is_running and not broker.is_paused]

    def start(self) -> None:
        """Return when each broker knows all of them: one is ready before the others have heard of it."""
        self.network.start()
        try:
            super().start()
            wait_until(self._see_each_other, "all brokers to see each other")
        except BaseException:
            self.leave()
            raise

    def _see_each_other(self) -> bool:
        for address in self.addresses:
            with ClusterAdmin(parse_bootstrap(address), SECONDS) as admin:
                if len(admin.racks()) < len(self.brokers):
                    return False
        return True

    def leave(self) -> None:
        self.kill()
        self.network.leave()

    def start_all(self, nodes: Sequence[int]) -> None:
        """Start those of them that do not run, all at once."""
        launched = [self.brokers[node] for node in nodes if not self.brokers[node].is_running]
        for broker in launched:
            broker.launch()
        for broker in launched:
            broker.ready()

    def stop(self) -> None:
        """A clean end of all that run."""
        for broker in self.nodes:
            if broker.is_running:
                broker.stop()

    def heal(self) -> None:
        """Undo whatever was done to them: all run, and reach each other."""
        self.network.heal()
        for broker in self.nodes:
            broker.resume()
        self.start_all(list(self.brokers))

    # What the cluster reports

    def look(self) -> ClusterStatus:
        """The status of the cluster as the store has it; no broker has to run."""
        return cluster_store.look(self.store)

    def findings(self) -> list[HealthFinding]:
        """The problems that `seglog cluster status` reports."""
        return judge(self.look())

    def wait_healthy(self) -> None:
        """Until all are there, and every replica is in sync."""
        wait_until(
            lambda: len(self.look().brokers) == len(self.brokers) and not self.findings(),
            f"a healthy cluster in {self._path}",
        )

    def leader(self, topic: str, number: int) -> int | None:
        return next((one.leader for one in self.look().partitions if one.place == (topic, number)), None)
