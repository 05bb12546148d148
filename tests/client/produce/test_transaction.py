"""Transactions that one process begins and another ends, in both protocols, with a stock client as the reader."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from seglog.client.cluster_connections import TRANSACTION, ClusterConnections
from seglog.client.produce.batch_producer import BatchProducer
from seglog.client.produce.transaction import (
    Transaction,
    TransactionHandle,
    end_transactions,
    endangered_transactions,
    open_transactions,
)
from seglog.core.clock import SystemClock
from seglog.core.errors import InvalidConfigError, ProducerFencedError
from seglog.core.types import TopicPartition
from seglog.testing import Broker
from tests.client.produce.written import batches, config, numbers

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.fixture
def cluster(broker: Broker) -> Iterator[ClusterConnections]:
    with ClusterConnections(config(broker.bootstrap, delivery_timeout_ms="30000")) as opened:
        yield opened


def write(cluster: ClusterConnections, name: str, *partitions: TopicPartition) -> TransactionHandle:
    """A transaction with ten batches in each partition, not ended."""
    transaction = Transaction(cluster, name)
    transaction.begin()
    with ClusterConnections(cluster.config) as data:
        producer = BatchProducer(data, transaction.identity, join=transaction.join)
        for partition in partitions:
            for batch in batches(transaction.identity, 10):
                producer.add(partition, batch)
        producer.flush()
        producer.close()
    return transaction.handle


def write_and_wait(producer: BatchProducer, batch: bytes) -> None:
    producer.add(T0, batch)
    producer.flush()


def test_all_of_a_transaction_is_seen_when_it_is_committed(broker: Broker, cluster: ClusterConnections) -> None:
    handle = write(cluster, "one", T0, T1)
    assert numbers(broker.bootstrap, T0) == []
    with ClusterConnections(cluster.config) as other:
        end_transactions(other, [handle], commit=True)
    assert numbers(broker.bootstrap, T0) == numbers(broker.bootstrap, T1) == list(range(40))


def test_batches_are_sent_in_the_protocol_of_the_transaction(broker: Broker, cluster: ClusterConnections) -> None:
    """From version 12 of Produce on leaders add partitions by themselves."""
    transaction = Transaction(cluster, "one")
    transaction.begin()
    broker.throttle("Produce", seconds=0, version=13 if transaction.handle.implicit else 11)
    end_transactions(cluster, [write(cluster, "one", T0)], commit=True)


def test_nothing_of_an_aborted_one_is_seen(broker: Broker, cluster: ClusterConnections) -> None:
    end_transactions(cluster, [write(cluster, "one", T0)], commit=False)
    assert numbers(broker.bootstrap, T0) == []
    assert len(numbers(broker.bootstrap, T0, isolation="read_uncommitted")) == 40


@pytest.mark.parametrize("effect", ["lose", "coordinator"])
def test_ending_transactions_twice_is_idempotent(broker: Broker, cluster: ClusterConnections, effect: str) -> None:
    handles = [write(cluster, name, T0) for name in ("one", "two", "three")]
    if effect == "lose":
        broker.lose("EndTxn", nth=2)
    else:
        broker.fail("EndTxn", error="NOT_COORDINATOR", nth=2)
    assert end_transactions(cluster, handles, commit=True) == {}
    assert end_transactions(cluster, handles, commit=True) == {}
    assert sorted(numbers(broker.bootstrap, T0)) == sorted(list(range(40)) * 3)


def test_a_transaction_that_ended_otherwise_is_named_after_the_others_were_ended(
    broker: Broker, cluster: ClusterConnections
) -> None:
    lost, kept = write(cluster, "lost", T0), write(cluster, "kept", T1)
    end_transactions(cluster, [lost], commit=False)
    refused = end_transactions(cluster, [lost, kept], commit=True)
    assert list(refused) == [lost]
    assert "transactional id lost: EndTxn: " in refused[lost]
    assert numbers(broker.bootstrap, T0) == []
    assert numbers(broker.bootstrap, T1) == list(range(40))


def test_beginning_again_aborts_and_fences_the_open_transaction(broker: Broker, cluster: ClusterConnections) -> None:
    old = Transaction(cluster, "one")
    old.begin()
    with ClusterConnections(cluster.config) as data:
        producer = BatchProducer(data, old.identity, join=old.join)
        producer.add(T0, next(batches(old.identity, 1)))
        producer.flush()
        Transaction(cluster, "one").begin()
        with pytest.raises(ProducerFencedError):
            write_and_wait(producer, list(batches(old.identity, 2))[1])
        producer.close()
    assert list(end_transactions(cluster, [old.handle], commit=True)) == [old.handle]
    assert numbers(broker.bootstrap, T0) == []


def test_open_transactions_are_found_by_their_prefix(cluster: ClusterConnections) -> None:
    handle = write(cluster, "mine-1", T0)
    write(cluster, "theirs-1", T0)
    end_transactions(cluster, [write(cluster, "mine-2", T0)], commit=True)
    assert open_transactions(cluster, "mine-") == [handle]
    end_transactions(cluster, open_transactions(cluster, ""), commit=False)
    assert open_transactions(cluster, "") == []


def test_those_that_will_not_live_long_enough_are_named(cluster: ClusterConnections) -> None:
    open_one, ended = write(cluster, "open", T0), write(cluster, "ended", T0)
    end_transactions(cluster, [ended], commit=False)
    coordinators = {name: cluster.coordinator(TRANSACTION, name).address for name in ("open", "ended")}
    now = SystemClock().now_ms()
    found = endangered_transactions(cluster, [open_one, ended], coordinators, now_ms=now, margin_ms=1000)
    assert list(found) == [ended]
    assert "Abort" in found[ended]
    late = endangered_transactions(cluster, [open_one], coordinators, now_ms=now + 59_500, margin_ms=1000)
    assert "it times out in" in late[open_one]


@pytest.mark.parametrize("effect", ["lose", "fail"])
def test_a_coordinator_that_dies_or_moves_is_asked_again(
    broker: Broker, cluster: ClusterConnections, effect: str
) -> None:
    open_one, ended = write(cluster, "open", T0), write(cluster, "ended", T0)
    end_transactions(cluster, [ended], commit=False)
    coordinators = {name: cluster.coordinator(TRANSACTION, name).address for name in ("open", "ended")}
    if effect == "lose":
        broker.lose("DescribeTransactions")
    else:
        broker.fail("DescribeTransactions", error="NOT_COORDINATOR")
    now = SystemClock().now_ms()
    found = endangered_transactions(cluster, [open_one, ended], coordinators, now_ms=now, margin_ms=1000)
    assert list(found) == [ended]


def test_a_timeout_above_the_brokers_limit_names_both_settings(broker: Broker) -> None:
    with ClusterConnections(config(broker.bootstrap, transaction_timeout_ms="900001")) as cluster:
        message = r"transaction\.timeout\.ms=900001 is above transaction\.max\.timeout\.ms"
        with pytest.raises(InvalidConfigError, match=message):
            Transaction(cluster, "one").begin()
