"""What must not be done to a cluster, and is: two brokers of one number, a directory that is open already, a metadata
store whose disk is full, that is removed, or that is away for longer than a session."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.broker.clients import AdminClient, NewTopic
from tests.cluster_run.brokers import ClusterBroker, ThreeBrokers
from tests.cluster_run.checks import check
from tests.cluster_run.clients import Workload
from tests.cluster_run.disks import Disk
from tests.cluster_run.network import Loopback
from tests.cluster_run.replicas import differences
from tests.kafka.waiting import wait_until
from tests.kafka.zookeeper import ZooKeeperNode

SESSION_SECONDS = 1.5
SETTINGS = {"broker.session.timeout.ms": str(int(SESSION_SECONDS * 1000))}


@contextmanager
def at_work(path: Path, store: str | None = None) -> Iterator[tuple[ThreeBrokers, Workload]]:
    """Three brokers and their clients; in the end nothing is lost, all replicas are there and the same."""
    with ThreeBrokers(path, store, settings=SETTINGS) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
        for made in admin.create_topics([NewTopic("t", 2, 3)]).values():
            made.result(30)
        with Workload(cluster.bootstrap, "t", 2, pace=0.02) as load:
            load.wait_for_more()
            yield cluster, load
            load.wait_for_more()
            history = load.finish()
        assert load.wrong == []
        assert check(history).anomalies == []
        cluster.wait_healthy()
        assert differences(cluster) == []


def epochs(cluster: ThreeBrokers) -> dict[int, int | None]:
    return {node: broker.epoch for node, broker in cluster.look().brokers.items()}


def test_a_number_or_a_directory_is_not_taken_twice(tmp_path: Path) -> None:
    with at_work(tmp_path / "cluster") as (cluster, _):
        before = epochs(cluster)
        network = Loopback()
        first = cluster[1]
        twin = ClusterBroker(1, tmp_path / "twin", cluster.store, network, SETTINGS)
        twin.begin()
        with pytest.raises(RuntimeError, match=f"node id 1 is taken by the broker at {first.address}"):
            twin.ready()
        squatter = ClusterBroker(1, first.path, cluster.store, Loopback(), SETTINGS)
        squatter.begin()
        with pytest.raises(RuntimeError, match="another seglog or Kafka has this directory open"):
            squatter.ready()
        assert epochs(cluster) == before


def test_a_store_without_room_stops_a_cluster_for_as_long_as_that(tmp_path: Path) -> None:
    if not Disk.can_be_made():
        return  # without root there is no small disk
    with ExitStack() as stack:
        disk = stack.enter_context(Disk(tmp_path / "disk", 4))
        cluster, load = stack.enter_context(at_work(tmp_path / "cluster", f"sqlite:{disk.path / 'metadata.sqlite'}"))
        before = epochs(cluster)
        disk.fill()
        time.sleep(2 * SESSION_SECONDS)
        assert all(broker.is_running for broker in cluster.brokers.values())
        disk.free()
        load.wait_for_more()
        assert all(broker.is_running for broker in cluster.brokers.values())
        assert min(epoch or 0 for epoch in epochs(cluster).values()) >= min(epoch or 0 for epoch in before.values())


def test_a_store_that_was_removed_stops_nobody_and_nobody_joins_another(tmp_path: Path) -> None:
    with at_work(tmp_path / "cluster") as (cluster, load):
        away = tmp_path / "away"
        away.mkdir()
        store = tmp_path / "cluster"
        for file in store.glob("metadata.sqlite*"):
            file.rename(away / file.name)
        load.wait_for_more()
        cluster[3].kill()
        load.wait_for_more()
        cluster[3].begin()
        with pytest.raises(RuntimeError, match=r"belongs to cluster\.id \S+, not "):
            cluster[3].ready()
        assert cluster.look().brokers == {}, "the store that it has made instead"
        for file in away.iterdir():
            file.rename(store / file.name)
        cluster.heal()
        cluster.wait_healthy()


@pytest.mark.interop
def test_a_zookeeper_that_was_away_for_longer_than_a_session(tmp_path: Path) -> None:
    with (
        ZooKeeperNode(tmp_path / "zookeeper") as server,
        at_work(tmp_path / "cluster", f"zookeeper://{server.address}/hostile") as (cluster, load),
    ):
        server.kill()
        time.sleep(3 * SESSION_SECONDS)
        server.start()
        load.wait_for_more()
        wait_until(lambda: len(cluster.look().brokers) == len(cluster.brokers), "all brokers to come back")
