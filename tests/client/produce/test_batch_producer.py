"""Each record is in its partition once and in order, whatever becomes of requests, answers, leaders and brokers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from seglog.client.cluster_connections import ClusterConnections
from seglog.client.produce.batch_producer import BatchProducer, ProducerIdentity
from seglog.client.produce.transaction import idempotent_producer
from seglog.core.errors import InvalidRecordError, ProducerFencedError, RecordTooLargeError, RequestFailedError
from seglog.core.types import NO_PRODUCER_ID, ProducerIdAndEpoch, TopicPartition
from seglog.testing import Broker, Cluster
from tests.client.produce.written import batches, config, numbers

T0 = TopicPartition("t", 0)
NOT_IDEMPOTENT = ProducerIdentity(ProducerIdAndEpoch(NO_PRODUCER_ID, -1))


@pytest.fixture
def broker(shared: Broker) -> Iterator[Broker]:
    """With a new topic ``t`` of three partitions, and a compacted one."""
    shared.reset()
    shared.create_topic("t", 3)
    shared.create_topic("compacted", 1, {"cleanup.policy": "compact"})
    yield shared
    shared.faults.assert_all_fired()
    shared.faults.clear()


@contextmanager
def producing(bootstrap: str, identity: ProducerIdentity | None = None, **properties: str) -> Iterator[BatchProducer]:
    with ClusterConnections(config(bootstrap, **properties)) as cluster:
        producer = BatchProducer(cluster, idempotent_producer(cluster) if identity is None else identity)
        try:
            yield producer
        finally:
            producer.close()


def write(producer: BatchProducer, partition: TopicPartition, *data: bytes) -> None:
    """One after the other, each acknowledged."""
    for one in data:
        producer.add(partition, one)
        producer.flush()


def produce(bootstrap: str, count: int = 60, partition: TopicPartition = T0, **properties: str) -> None:
    with producing(bootstrap, None, **properties) as producer:
        for data in batches(producer.identity, count):
            producer.add(partition, data)
        assert producer.flush() == {partition: count * 4}


def test_several_batches_at_a_time_to_several_partitions(broker: Broker) -> None:
    with producing(broker.bootstrap) as producer:
        for number in range(3):
            producer.add(TopicPartition("t", number), b"".join(batches(producer.identity, 50)))
        assert sum(producer.flush().values()) == 600
    for number in range(3):
        assert numbers(broker.bootstrap, TopicPartition("t", number)) == list(range(200))


@pytest.mark.parametrize("code", ["NOT_LEADER_OR_FOLLOWER", "NOT_ENOUGH_REPLICAS", "KAFKA_STORAGE_ERROR"])
def test_refused_batch_is_resent_with_those_after_it(broker: Broker, code: str) -> None:
    broker.fail("Produce", error=code, nth=3, times=2)
    produce(broker.bootstrap)
    assert numbers(broker.bootstrap, T0) == list(range(240))


def test_a_broker_that_has_no_producer_ids_yet_is_asked_again(broker: Broker) -> None:
    """As Kafka in the first moments after its start."""
    broker.fail("InitProducerId", error="COORDINATOR_LOAD_IN_PROGRESS", times=2)
    produce(broker.bootstrap, count=3)
    assert numbers(broker.bootstrap, T0) == list(range(12))


@pytest.mark.parametrize("applied", [True, False])
def test_a_connection_that_is_lost_with_requests_under_way(broker: Broker, applied: bool) -> None:
    """With ``applied`` the broker has the batches already: it says DUPLICATE_SEQUENCE, or answers as before."""
    broker.lose("Produce", nth=2, times=3, applied=applied)
    produce(broker.bootstrap)
    assert numbers(broker.bootstrap, T0) == list(range(240))


def test_throttling_is_obeyed(broker: Broker) -> None:
    broker.throttle("Produce", seconds=0.05, nth=2, times=3)
    produce(broker.bootstrap)
    assert numbers(broker.bootstrap, T0) == list(range(240))


def test_a_batch_that_is_too_large_is_split(broker: Broker) -> None:
    broker.create_topic("small", 1, {"max.message.bytes": 300})
    small = TopicPartition("small", 0)
    with producing(broker.bootstrap) as producer:
        for data in batches(producer.identity, 5, records=16, size=40):
            producer.add(small, data)
        assert producer.flush() == {small: 80}
    assert numbers(broker.bootstrap, small) == list(range(80))


def test_a_record_that_is_too_large_is_refused_with_the_topics_limit(broker: Broker) -> None:
    broker.create_topic("smaller", 1, {"max.message.bytes": 300})
    with (
        producing(broker.bootstrap) as producer,
        pytest.raises(RecordTooLargeError, match=r"smaller-0: .*max\.message"),
    ):
        write(producer, TopicPartition("smaller", 0), *batches(producer.identity, 1, records=3, size=400))


def test_a_record_above_the_size_of_requests_is_refused_before_it_is_sent(broker: Broker) -> None:
    with (
        producing(broker.bootstrap, max_request_size="1000") as producer,
        pytest.raises(RecordTooLargeError, match=r"t-0: a record of .* bytes is above max\.request\.size=1000"),
    ):
        producer.add(T0, next(batches(producer.identity, 1, records=1, size=2000)))


def test_brokers_message_about_a_record_is_in_the_error(broker: Broker) -> None:
    with producing(broker.bootstrap) as producer, pytest.raises(InvalidRecordError, match=r"compacted-0: broker .*key"):
        write(producer, TopicPartition("compacted", 0), *batches(producer.identity, 1))


def test_an_error_that_stays_names_partition_broker_and_reason(broker: Broker) -> None:
    broker.fail("Produce", error="NOT_ENOUGH_REPLICAS", times=None)
    message = rf"t-0: not written within delivery\.timeout\.ms=400: broker {broker.bootstrap}: NOT_ENOUGH_REPLICAS"
    with pytest.raises(RequestFailedError, match=message):
        produce(broker.bootstrap, delivery_timeout_ms="400", request_timeout_ms="300")


def test_a_hole_in_the_sequence_is_no_matter_of_retries(broker: Broker) -> None:
    with producing(broker.bootstrap) as producer:
        first, _, third = batches(producer.identity, 3)
        with pytest.raises(RequestFailedError, match="OUT_OF_ORDER_SEQUENCE"):
            write(producer, T0, first, third)


def test_fenced_producer_fails_at_once(broker: Broker) -> None:
    broker.fail("Produce", error="INVALID_PRODUCER_EPOCH")
    with pytest.raises(ProducerFencedError, match=r"t-0: broker .*INVALID_PRODUCER_EPOCH"):
        produce(broker.bootstrap)


def test_a_topic_that_does_not_exist(broker: Broker) -> None:
    with pytest.raises(RequestFailedError, match=r"none-0: .*UNKNOWN_TOPIC_OR_PARTITION"):
        produce(
            broker.bootstrap,
            partition=TopicPartition("none", 0),
            delivery_timeout_ms="300",
            request_timeout_ms="300",
        )


def test_without_idempotence_retries_may_write_twice_but_lose_nothing(broker: Broker) -> None:
    broker.lose("Produce", nth=2, times=1)
    with producing(broker.bootstrap, NOT_IDEMPOTENT) as producer:
        for data in batches(NOT_IDEMPOTENT, 20):
            producer.add(T0, data)
        producer.flush()
    assert set(numbers(broker.bootstrap, T0)) == set(range(80))


def test_a_producer_that_is_closed_early_leaves_the_connection_usable(broker: Broker) -> None:
    with ClusterConnections(config(broker.bootstrap)) as cluster:
        early = BatchProducer(cluster, idempotent_producer(cluster))
        for data in batches(early.identity, 5):
            early.add(T0, data)
        early.close()
        later = BatchProducer(cluster, idempotent_producer(cluster))
        for data in batches(later.identity, 5):
            later.add(TopicPartition("t", 1), data)
        assert later.flush() == {TopicPartition("t", 1): 20}


@pytest.mark.parametrize("version", [3, 5, 7, 8, 9, 11, 12, 13])
def test_every_version_of_the_request(broker: Broker, version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BatchProducer, "_newest_version", lambda _: version)
    produce(broker.bootstrap, count=3)
    assert numbers(broker.bootstrap, T0) == list(range(12))


def test_leaders_move_and_die_while_batches_arrive() -> None:
    with Cluster({"t": 1}) as cluster, producing(cluster.bootstrap) as producer:
        for number, data in enumerate(batches(producer.identity, 300)):
            producer.add(T0, data)
            if number == 100:
                leader = cluster.leader("t")
                cluster.move_leader("t", 0, to=next(one for one in (1, 2, 3) if one != leader))
            if number == 200:
                leader = cluster.leader("t")
                assert leader is not None
                cluster[leader].kill()
        assert producer.flush() == {T0: 1200}
        survivors = ",".join(broker.bootstrap for broker in cluster if broker.is_running)
        assert numbers(survivors, T0) == list(range(1200))
