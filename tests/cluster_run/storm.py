"""A cluster of real processes through a storm: clients at work, a nemesis, and then what is wrong, if anything is."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

from tests.broker.python_clients import NewTopic
from tests.cluster_run.checks import Promises, Report, check, longest_pauses
from tests.cluster_run.clients import Workload
from tests.cluster_run.nemesis import Nemesis
from tests.cluster_run.replicas import differences
from tests.kafka.zookeeper import ZooKeeperEnsemble, ZooKeeperNode
from tests.kit.cluster import SeglogCluster
from tests.kit.disk import Disk
from tests.kit.memory import directory_in_memory
from tests.kit.network import Loopback, Namespaces
from tests.kit.topics import create_topics

SESSION_SECONDS: Final = 1.5
STORM_SETTINGS: Final = {
    "broker.session.timeout.ms": str(int(SESSION_SECONDS * 1000)),
    "replica.lag.time.max.ms": "700",
    "replica.fetch.wait.max.ms": "300",
    "replica.socket.timeout.ms": "1000",
    "replica.fetch.backoff.ms": "100",
    "leader.imbalance.check.interval.seconds": "5",
    "log.segment.delete.delay.ms": "1000",
}
LEAST_FAULTS: Final = 3
"""Also where a broker takes long to start."""
TOPICS: Final = {"t": 4, "plain": 2}
"""Partitions by topic. ``plain`` is written without idempotence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Storm:
    """``servers``: of ZooKeeper; 0: SQLite. ``pace``: seconds between two rounds of a producer, one record for each
    partition."""

    seed: int
    seconds: float
    brokers: int = 3
    servers: int = 0
    pace: float = 0.02


@dataclass(slots=True)
class Outcome:
    """The result of a storm. ``told`` is the nemesis's log."""

    faults: int = 0
    told: list[str] = field(default_factory=list)
    reports: dict[str, Report] = field(default_factory=dict)
    pauses: dict[str, float] = field(default_factory=dict)
    commits: int = 0
    wrong: list[str] = field(default_factory=list)

    def describe(self) -> str:
        lines = [f"{self.faults} faults, {self.commits} commits of the group", *self.told]
        lines += [f"{topic}: {report.describe()}" for topic, report in self.reports.items()]
        lines.append("longest pauses: " + ", ".join(f"{key} {one:.1f} s" for key, one in sorted(self.pauses.items())))
        return "\n".join([*lines, *self.wrong])


def run(storm: Storm, keep: Path) -> Outcome:
    """``keep`` gets the histories, and the brokers' logs, if anything is wrong."""
    outcome = Outcome()
    with directory_in_memory() as path, ExitStack() as stack:
        cluster, nemesis = _prepared(storm, path, stack)
        stack.callback(_keep_logs, cluster, keep, outcome)
        try:
            _weather(storm, cluster, nemesis, outcome, keep)
            cluster.wait_healthy()
            outcome.wrong += differences(cluster)
        except BaseException as error:
            outcome.wrong.append(f"{type(error).__name__}: {error}")
            outcome.told = nemesis.told
            raise
    return outcome


def _prepared(storm: Storm, path: Path, stack: ExitStack) -> tuple[SeglogCluster, Nemesis]:
    nodes = range(1, storm.brokers + 1)
    links = Namespaces(storm.brokers) if Namespaces.can_be_made() else None
    disks: dict[int, Disk] = {}
    if Disk.can_be_made():
        disks = {node: stack.enter_context(Disk(path / f"disk-{node}", _megabytes(storm))) for node in nodes}
    servers = _servers(storm, path, stack)
    host = "127.0.0.1" if links is None else links.host(0)
    addresses = ",".join(f"{host}:{server.port}" for server in servers)
    more = {node: [disks[node].path / "logs" if disks else path / f"more-{node}"] for node in nodes}
    store = f"zookeeper://{addresses}/storm" if servers else None
    cluster = SeglogCluster(
        path, store, count=storm.brokers, settings=STORM_SETTINGS, more=more, network=links or Loopback()
    )
    stack.enter_context(cluster)
    create_topics(cluster.bootstrap, *(NewTopic(name, count, 3) for name, count in TOPICS.items()))
    rng = Random(storm.seed)
    return cluster, Nemesis(cluster, rng, SESSION_SECONDS, links=links, disks=disks, servers=servers)


def _megabytes(storm: Storm) -> int:
    return 64 + int(storm.seconds / 10)


def _servers(storm: Storm, path: Path, stack: ExitStack) -> list[ZooKeeperNode]:
    everywhere = {"clientPortAddress": "0.0.0.0"}
    if storm.servers == 0:
        return []
    if storm.servers == 1:
        return [stack.enter_context(ZooKeeperNode(path / "zookeeper", everywhere))]
    return stack.enter_context(ZooKeeperEnsemble(path / "zookeeper", everywhere)).nodes


def _weather(storm: Storm, cluster: SeglogCluster, nemesis: Nemesis, outcome: Outcome, keep: Path) -> None:
    with ExitStack() as stack:
        loads = {
            topic: stack.enter_context(
                Workload(
                    cluster.bootstrap,
                    topic,
                    count,
                    members=2 if topic == "t" else 0,
                    pace=storm.pace,
                    is_idempotent=topic != "plain",
                )
            )
            for topic, count in TOPICS.items()
        }
        for load in loads.values():
            load.wait_for_more()
        outcome.faults = nemesis.run(storm.seconds, LEAST_FAULTS)
        outcome.told = nemesis.told
        for topic, load in loads.items():
            history = load.finish()
            report = check(history, Promises(is_idempotent=topic != "plain"))
            outcome.reports[topic] = report
            outcome.pauses |= longest_pauses(history)
            outcome.commits += load.group.commits
            outcome.wrong += [*load.wrong, *map(str, report.anomalies)]
            if report.anomalies or load.wrong:
                history.write(keep / f"history-{topic}")


def _keep_logs(cluster: SeglogCluster, keep: Path, outcome: Outcome) -> None:
    if outcome.wrong:
        for broker in cluster.brokers.values():
            (keep / broker.log.name).write_bytes(broker.log.read_bytes())
