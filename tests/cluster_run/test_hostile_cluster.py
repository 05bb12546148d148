"""What must not be done to a cluster, and is: two brokers of one number, a directory that is open already, a metadata
store whose disk is full, that is removed or locked, or away for longer than a session."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest

from tests.broker.clients import AdminClient, NewTopic
from tests.cluster_run.brokers import SECONDS, ClusterBroker, ThreeBrokers
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


def take_twice(cluster: ThreeBrokers, path: Path) -> None:
    """Another broker with a number that is taken, and one with a directory that is open."""
    before, first = epochs(cluster), cluster[1]
    twin = ClusterBroker(1, path / "twin", cluster.store, Loopback(), SETTINGS)
    twin.begin()
    with pytest.raises(RuntimeError, match=f"node id 1 is taken by the broker at {first.address}"):
        twin.ready()
    squatter = ClusterBroker(1, first.path, cluster.store, Loopback(), SETTINGS)
    squatter.begin()
    with pytest.raises(RuntimeError, match="another seglog or Kafka has this directory open"):
        squatter.ready()
    assert epochs(cluster) == before


def remove_store(cluster: ThreeBrokers, load: Workload, store: Path, away: Path) -> None:
    """Who runs goes on with the file that has no name any more; who starts does not begin a new one."""
    away.mkdir()
    for file in store.glob("metadata.sqlite*"):
        file.rename(away / file.name)
    load.wait_for_more()
    cluster[3].kill()
    load.wait_for_more()
    cluster[3].begin()
    with pytest.raises(RuntimeError, match=f"{store}/metadata.sqlite: there is no such metadata store"):
        cluster[3].ready()
    assert not [*store.glob("metadata.sqlite*")]
    sqlite3.connect(store / "metadata.sqlite").close()
    cluster[3].begin()
    with pytest.raises(RuntimeError, match=r"metadata.sqlite has no cluster, and \S+ belongs to cluster \S+"):
        cluster[3].ready()
    assert cluster.look().cluster_id == "", "nothing was begun in it"
    for file in away.iterdir():
        file.rename(store / file.name)
    cluster.heal()
    cluster.wait_healthy()


def leave_no_room(cluster: ThreeBrokers, load: Workload, disk: Disk) -> None:
    disk.fill()
    time.sleep(2 * SESSION_SECONDS)
    disk.free()
    load.wait_for_more()
    assert all(broker.is_running for broker in cluster.brokers.values())


def lock_store(load: Workload, path: Path) -> None:
    """As a process does that hangs in the middle of a commit."""
    with closing(sqlite3.connect(path, timeout=SECONDS, isolation_level=None)) as db:
        db.execute("BEGIN IMMEDIATE")
        time.sleep(2 * SESSION_SECONDS)
        db.execute("ROLLBACK")
    load.wait_for_more()


def test_what_is_done_to_a_cluster_and_its_metadata_file(memory: Path) -> None:
    with ExitStack() as stack:
        disk = stack.enter_context(Disk(memory / "disk", 4)) if Disk.can_be_made() else None
        store = memory if disk is None else disk.path
        cluster, load = stack.enter_context(at_work(memory / "cluster", f"sqlite:{store / 'metadata.sqlite'}"))
        take_twice(cluster, memory)
        remove_store(cluster, load, store, store / "away")
        lock_store(load, store / "metadata.sqlite")
        if disk is not None:  # without root there is none
            leave_no_room(cluster, load, disk)


@pytest.mark.interop
def test_a_zookeeper_that_was_away_for_longer_than_a_session(memory: Path) -> None:
    with (
        ZooKeeperNode(memory / "zookeeper") as server,
        at_work(memory / "cluster", f"zookeeper://{server.address}/hostile") as (cluster, load),
    ):
        server.kill()
        time.sleep(3 * SESSION_SECONDS)
        server.start()
        load.wait_for_more()
        wait_until(lambda: len(cluster.look().brokers) == len(cluster.brokers), "all brokers to come back")
