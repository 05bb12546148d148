"""Mistreated clusters: two brokers with one number, a directory that is open already, and a metadata store whose disk
is full, that is removed or locked, or that is away for longer than a session."""

from __future__ import annotations

import http.client
import json
import re
import sqlite3
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition

from seglog.cluster.store import StoreError
from tests.broker.python_clients import NewTopic
from tests.cluster_run.checks import check
from tests.cluster_run.clients import Workload
from tests.cluster_run.replicas import differences
from tests.kafka.zookeeper import ZooKeeperNode
from tests.kit.broker_process import SECONDS
from tests.kit.cluster import ClusterBroker, SeglogCluster
from tests.kit.disk import Disk
from tests.kit.network import Loopback
from tests.kit.ports import free_port
from tests.kit.topics import consumer, create_topics
from tests.kit.waiting import wait_until

SESSION_SECONDS = 1.5
SETTINGS = {"broker.session.timeout.ms": str(int(SESSION_SECONDS * 1000))}


@contextmanager
def at_work(path: Path, store: str | None = None) -> Iterator[tuple[SeglogCluster, Workload]]:
    """Three brokers and their clients; in the end nothing is lost, all replicas are there and the same."""
    own = {3: {"metrics.listener": f"127.0.0.1:{free_port()}"}}
    with SeglogCluster(path, store, settings=SETTINGS, own=own) as cluster:
        create_topics(cluster.bootstrap, NewTopic("t", 2, 3))
        with Workload(cluster.bootstrap, "t", 2, pace=0.06) as load:
            load.wait_for_more()
            with consumer(cluster.bootstrap, "stores") as member:  # the topic of offsets is there from here on
                member.committed([TopicPartition("t", 0)], timeout=SECONDS)
            yield cluster, load
            load.wait_for_more()
            history = load.finish()
        assert load.wrong == []
        assert check(history).anomalies == []
        cluster.wait_healthy()
        assert differences(cluster) == []


def metrics_port(cluster: SeglogCluster) -> int:
    return int(cluster.own[3]["metrics.listener"].rpartition(":")[2])


def epochs(cluster: SeglogCluster) -> dict[int, int | None]:
    return {node: broker.epoch for node, broker in cluster.look().brokers.items()}


def take_twice(cluster: SeglogCluster, path: Path) -> None:
    """Another broker with a number that is taken, and one with a directory that is open."""
    before, first = epochs(cluster), cluster[1]
    twin = ClusterBroker(1, path / "twin", cluster.store, Loopback(), SETTINGS)
    twin.launch()
    with pytest.raises(RuntimeError, match=f"node id 1 is taken by the broker at {first.address}"):
        twin.ready()
    squatter = ClusterBroker(1, first.path, cluster.store, Loopback(), SETTINGS)
    squatter.launch()
    with pytest.raises(RuntimeError, match="another seglog or Kafka has this directory open"):
        squatter.ready()
    assert epochs(cluster) == before


def remove_store(cluster: SeglogCluster, load: Workload, store: Path, away: Path) -> None:
    """Running brokers continue with the unlinked file; a starting broker does not create a new one."""
    away.mkdir()
    for file in store.glob("metadata.sqlite*"):
        file.rename(away / file.name)
    load.wait_for_more()
    cluster[3].kill()
    load.wait_for_more()
    cluster[3].launch()
    with pytest.raises(RuntimeError, match=f"{store}/metadata.sqlite: this metadata store does not exist"):
        cluster[3].ready()
    assert not [*store.glob("metadata.sqlite*")]
    sqlite3.connect(store / "metadata.sqlite").close()
    cluster[3].launch()
    with pytest.raises(RuntimeError, match=r"metadata.sqlite has no cluster. \S+ belongs to cluster \S+"):
        cluster[3].ready()
    with pytest.raises(StoreError, match="there is no cluster at"):  # nothing was begun in it
        cluster.look()
    for file in away.iterdir():
        file.rename(store / file.name)
    cluster.heal()
    cluster.wait_healthy()


def leave_no_room(cluster: SeglogCluster, load: Workload, disk: Disk) -> None:
    disk.fill()
    time.sleep(2 * SESSION_SECONDS)  # how long the disk is full: sessions must outlive it
    disk.free()
    load.wait_for_more()
    assert all(broker.is_running for broker in cluster.brokers.values())


def lock_store(cluster: SeglogCluster, load: Workload, path: Path, port: int) -> None:
    """As a process does that hangs in the middle of a commit. Broker 3, which tells of itself at ``port``, is killed
    and started meanwhile."""
    before = epochs(cluster)
    with closing(sqlite3.connect(path, timeout=SECONDS, isolation_level=None)) as db:
        db.execute("BEGIN IMMEDIATE")
        write_without_store(cluster, load, port)
        assert ask(port, "/metrics")[1].count("\nkafka_controller_kafkacontroller_offlinepartitionscount 0\n") == 1
        cluster[3].kill()
        cluster[3].launch()
        wait_until(lambda: "is not registered" in ask(port, "/ready")[1], "a broker that waits for an epoch of its own")
        db.execute("ROLLBACK")
    cluster[3].ready()
    load.wait_for_more()
    wait_until(lambda: ask(port, "/ready")[0] == 200, "a broker that is ready")
    after = epochs(cluster)
    assert (after[1], after[2]) == (before[1], before[2]), "a store that is back expires nobody"


def wait_in_vain(broker: ClusterBroker) -> None:
    """Killed and started, it waits for the store until it is asked to end."""
    broker.kill()
    broker.launch()
    wait_until(lambda: "this broker waits for it" in broker.log.read_text(), "a broker that waits")
    broker.stop()


def write_without_store(cluster: SeglogCluster, load: Workload, port: int) -> None:
    """Writes and groups continue for several session times; the broker's metrics at ``port`` show how long."""
    wait_until(lambda: ask(port, "/ready")[0] == 503, "a broker in doubt")
    load.wait_for_more(100)
    wait_until(lambda: unconfirmed_seconds(port) > 3 * SESSION_SECONDS, "three sessions' time")
    load.wait_for_more(100)
    with consumer(cluster.bootstrap, "stores") as member:
        for offset in (7, 8):
            member.commit(offsets=[TopicPartition("t", 0, offset)], asynchronous=False)
            assert [one.offset for one in member.committed([TopicPartition("t", 0)], timeout=SECONDS)] == [offset]
    status, text = ask(port, "/health")
    assert (status, json.loads(text)["status"]) == (200, "limited")
    assert "has not confirmed it for" in ask(port, "/ready")[1]


def unconfirmed_seconds(port: int) -> float:
    (line,) = re.findall(r"^seglog_store_unconfirmed_seconds ([0-9.e+-]+)$", ask(port, "/metrics")[1], re.MULTILINE)
    return float(line)


def ask(port: int, path: str) -> tuple[int, str]:
    """A page of a broker; status 0 while it does not listen."""
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        except OSError:
            return 0, ""


def test_cluster_survives_mistreatment_of_its_metadata_file(memory: Path) -> None:
    with ExitStack() as stack:
        disk = stack.enter_context(Disk(memory / "disk", 4)) if Disk.can_be_made() else None
        store = memory if disk is None else disk.path
        cluster, load = stack.enter_context(at_work(memory / "cluster", f"sqlite:{store / 'metadata.sqlite'}"))
        take_twice(cluster, memory)
        remove_store(cluster, load, store, store / "away")
        lock_store(cluster, load, store / "metadata.sqlite", metrics_port(cluster))
        if disk is not None:  # without root there is none
            leave_no_room(cluster, load, disk)


@pytest.mark.interop
def test_a_zookeeper_that_was_away_for_longer_than_a_session(memory: Path) -> None:
    with (
        ZooKeeperNode(memory / "zookeeper") as server,
        at_work(memory / "cluster", f"zookeeper://{server.address}/hostile") as (cluster, load),
    ):
        before = epochs(cluster)
        server.kill()
        write_without_store(cluster, load, metrics_port(cluster))
        wait_in_vain(cluster[1])
        cluster[1].launch()
        server.start()
        cluster[1].ready()
        load.wait_for_more()
        wait_until(lambda: ask(metrics_port(cluster), "/ready")[0] == 200, "a broker that is ready")
        after = epochs(cluster)
        assert (after[2], after[3]) == (before[2], before[3]), "a store that is back expires nobody"
