"""`seglog.testing.Cluster`: brokers that share a cluster, killed, restarted, paused, and their leaders moved."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from seglog.testing import BrokerError, Cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster({"t": 2}) as running:
        yield running


@pytest.fixture(autouse=True)
def healthy(cluster: Cluster) -> None:
    cluster.heal()


def produce(cluster: Cluster, value: bytes, partition: int = 0) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    producer.produce("t", value, partition=partition)
    assert producer.flush(60) == 0


def last(cluster: Cluster, partition: int = 0) -> bytes | None:
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "-", "log_level": 0})
    end = consumer.get_watermark_offsets(TopicPartition("t", partition), 60)
    assert end is not None
    consumer.assign([TopicPartition("t", partition, end[1] - 1)])
    (message,) = consumer.consume(1, 60)
    consumer.close()
    return message.value()


def test_a_leader_is_killed_and_comes_back(cluster: Cluster) -> None:
    produce(cluster, b"1")
    leader = cluster.leader("t")
    assert leader is not None
    cluster[leader].kill()
    assert cluster.wait_leader("t", other_than=leader) != leader
    produce(cluster, b"2")
    assert last(cluster) == b"2"
    cluster[leader].start()
    cluster.wait_in_sync("t")
    assert cluster.in_sync("t") == {1, 2, 3}


def test_a_leader_moves(cluster: Cluster) -> None:
    for node in (1, 2, 3):
        cluster.move_leader("t", 1, node)
        assert cluster.leader("t", 1) == node
        produce(cluster, b"%d" % node, partition=1)
    assert last(cluster, 1) == b"3"
    with pytest.raises(BrokerError, match="broker 4 has no replica"):
        cluster.move_leader("t", 1, 4)
    with pytest.raises(BrokerError, match="no t-7"):
        cluster.leader("t", 7)


def test_a_broker_of_a_cluster_takes_faults_and_keeps_its_clock(cluster: Cluster) -> None:
    leader = cluster.leader("t")
    assert leader is not None
    fault = cluster[leader].fail("Produce", error="NOT_LEADER_OR_FOLLOWER")
    produce(cluster, b"1")
    fault.assert_fired(1)
    with pytest.raises(BrokerError, match="does not move"):
        cluster[leader].clock.advance(1)


def test_a_paused_leader_is_replaced(cluster: Cluster) -> None:
    leader = cluster.leader("t")
    assert leader is not None
    cluster[leader].pause()
    cluster.wait_leader("t", other_than=leader)
    produce(cluster, b"1")
    cluster[leader].resume()


def test_brokers_may_be_threads() -> None:
    with Cluster(["u"], brokers=2, process=False) as threads:
        assert threads.in_sync("u") == {1, 2}
        paths = [Path(broker.data_dir) for broker in threads]
        threads[1].restart()
        threads.wait_in_sync("u")
    assert not any(path.exists() for path in paths)
    with pytest.raises(BrokerError, match="a cluster of 0"):
        Cluster(brokers=0)


@pytest.mark.parametrize("process", [True, False], ids=["processes", "threads"])
def test_an_orderly_close_warns_of_nothing(
    process: bool, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Not even while a client, a group and an open transaction are still there."""
    settings = {"broker.session.timeout.ms": 60_000}  # a slow disk is no part of this
    with Cluster({"t": 3}, settings=settings, process=process) as cluster:
        config = {"bootstrap.servers": cluster.bootstrap, "log_level": 0}
        producer = Producer(config | {"transactional.id": "left-open"})
        producer.init_transactions(60)
        producer.begin_transaction()
        for partition in range(3):
            producer.produce("t", b"tea", partition=partition)
        assert producer.flush(60) == 0
        consumer = Consumer(config | {"group.id": "left-there", "auto.offset.reset": "earliest"})
        consumer.subscribe(["t"])
        while not consumer.assignment():
            consumer.poll(0.1)
        capfd.readouterr()
        caplog.clear()
    assert capfd.readouterr().err == ""
    assert [record.getMessage() for record in caplog.records if record.levelname != "INFO"] == []
