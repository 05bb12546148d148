"""The sink through a real Kafka: 4.4, and 2.8, which neither lists nor verifies transactions."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pyarrow as pa
import pytest

from seglog.client.cluster_connections import ClusterConnections
from seglog.client.produce.batch_producer import BatchProducer
from seglog.client.produce.transaction import idempotent_producer
from seglog.core.errors import InvalidConfigError, InvalidRecordError, RecordTooLargeError
from seglog.core.types import TopicPartition
from seglog.records.columns import HEADERS
from seglog.records.partitioner import partition_for_key
from seglog.spark.write.brokers.task import write_idempotently
from seglog.spark.write.write_options import parse_write_options
from tests.broker.python_clients import NewTopic
from tests.client.produce.written import batches, config, numbers
from tests.kafka import KafkaNode, ZkKafkaNode
from tests.kafka.tools import consume
from tests.kit.topics import create_topics
from tests.spark.write.brokers.sink_runs import (
    NEXT,
    TASKS,
    SinkRun,
    check_deaths,
    check_returns,
    check_twins,
    check_versions,
    left_open,
    threads_as_processes,
    written,
)

_numbers = itertools.count()


class Topics:
    """Makes new ones of a broker."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap

    def __call__(self, config: dict[str, str] | None = None) -> str:
        name = f"sink-{next(_numbers)}"
        create_topics(self.bootstrap, NewTopic(name, 2, 1, config=config or {}))
        return name


@pytest.fixture(params=["kafka", "old_kafka"])
def topics(request: pytest.FixtureRequest) -> Iterator[Topics]:
    node: KafkaNode | ZkKafkaNode = request.getfixturevalue(request.param)
    with threads_as_processes():
        yield Topics(node.bootstrap)


@pytest.fixture
def query() -> str:
    return f"q{next(_numbers)}"


def test_a_bulk_of_idempotent_batches(topics: Topics) -> None:
    topic = topics()
    with ClusterConnections(config(topics.bootstrap)) as cluster:
        producer = BatchProducer(cluster, idempotent_producer(cluster))
        for number in range(2):
            for data in batches(producer.identity, 200):
                producer.add(TopicPartition(topic, number), data)
        assert sum(producer.flush().values()) == 1600
        producer.close()
    for number in range(2):
        assert numbers(topics.bootstrap, TopicPartition(topic, number)) == list(range(800))


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_column_as_a_stock_consumer_reads_it(topics: Topics, codec: str) -> None:
    topic = topics()
    columns = {
        "topic": pa.array([topic] * 3, pa.string()),
        "key": pa.array([b"k", b"k", None], pa.binary()),
        "value": pa.array([b"v", None, b"w"], pa.binary()),
        "headers": pa.array([[{"key": "h", "value": b"x"}], [{"key": "", "value": None}], None], HEADERS),
        "partition": pa.array([None, None, 1], pa.int32()),
        "timestamp": pa.array([1_357, 1_358, 1_359], pa.timestamp("ms", "UTC")),
    }
    rows = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
    options = parse_write_options(
        {"kafka.bootstrap.servers": topics.bootstrap, "delivery": "at-least-once", "kafka.compression.type": codec}
    )
    assert write_idempotently(options, [rows]).records == 3
    by_key = partition_for_key(b"k", 2)
    found = consume(topics.bootstrap, [f"{topic}-0", f"{topic}-1"])
    assert sorted(((one.timestamp, one.partition, one.key, one.value, one.headers) for one in found), key=str) == [
        (1_357, by_key, b"k", b"v", (("h", b"x"),)),
        (1_358, by_key, b"k", None, (("", None),)),
        (1_359, 1, None, b"w", ()),
    ]


def test_batches_that_are_too_large_are_split_and_records_refused(topics: Topics) -> None:
    topic = topics({"max.message.bytes": "1000"})
    with ClusterConnections(config(topics.bootstrap)) as cluster:
        producer = BatchProducer(cluster, idempotent_producer(cluster))
        partition = TopicPartition(topic, 0)
        for data in batches(producer.identity, 20, records=32, size=100):
            producer.add(partition, data)
        assert producer.flush() == {partition: 640}
        assert numbers(topics.bootstrap, partition) == list(range(640))
        producer.close()
        large = BatchProducer(cluster, idempotent_producer(cluster))
        large.add(partition, next(batches(large.identity, 1, size=2000)))
        with pytest.raises(RecordTooLargeError, match=rf"{topic}-0: .*max\.message\.bytes"):
            large.flush()
        large.close()


def test_a_record_without_key_for_a_compacted_topic(topics: Topics) -> None:
    topic = topics({"cleanup.policy": "compact"})
    with ClusterConnections(config(topics.bootstrap)) as cluster:
        producer = BatchProducer(cluster, idempotent_producer(cluster))
        producer.add(TopicPartition(topic, 0), next(batches(producer.identity, 1)))
        with pytest.raises(InvalidRecordError, match=f"{topic}-0: broker .*INVALID_RECORD"):
            producer.flush()
        producer.close()


def test_micro_batches_and_a_replay(topics: Topics, query: str) -> None:
    topic = topics()
    run = SinkRun(topics.bootstrap, query, topic=topic)
    run.batch(0, TASKS)
    run.batch(1, NEXT)
    SinkRun(topics.bootstrap, query, topic=topic).batch(1, ([6, 7, 8, 9],))
    SinkRun(topics.bootstrap, query, topic=topic).batch(2, ([10] * 3, []))
    assert written(topics.bootstrap, topic) == [*range(1, 10), 10, 10, 10]
    assert left_open(topics.bootstrap, query) == []


def test_a_decision_of_many_tasks(topics: Topics, query: str) -> None:
    topic = topics()
    tasks = [[number] for number in range(150)]
    for _ in range(2):
        SinkRun(topics.bootstrap, query, topic=topic).batch(0, tasks)
    assert written(topics.bootstrap, topic) == list(range(150))


def test_a_timeout_above_the_brokers_limit(topics: Topics, query: str) -> None:
    run = SinkRun(topics.bootstrap, query, topic=topics(), kafka__transaction__timeout__ms="900001")
    with pytest.raises(InvalidConfigError, match=r"transaction\.timeout\.ms=900001 is above transaction\.max\.timeout"):
        run.batch(0, ([1],))


@pytest.mark.parametrize("sent", [False, True], ids=["request", "answer"])
def test_a_driver_that_dies(topics: Topics, kafka: KafkaNode, query: str, sent: bool) -> None:
    """Kafka 2.8 ends what is left open after the timeout; that takes ten seconds, so it is tried at one request. At
    all requests: `tests/spark/write/brokers/test_exactly_once.py` in `make test-long`, with seglog."""
    is_new = topics.bootstrap == kafka.bootstrap
    chosen = slice(2 * sent, None, 5) if is_new else slice(10 + sent, 11 + sent)
    check_deaths(topics.bootstrap, topics, query, sent=sent, chosen=chosen, timeout_ms=None if is_new else 5_000)


def test_a_job_with_a_version_is_remembered_without_its_offset(topics: Topics, kafka: KafkaNode, query: str) -> None:
    """Kafka 2.8 does not list what a death leaves open; it ends by itself."""
    is_new = topics.bootstrap == kafka.bootstrap
    chosen, timeout_ms = (slice(7, None, 12), None) if is_new else (slice(19, None, 24), 5_000)
    check_versions(topics.bootstrap, topics, query, chosen=chosen, timeout_ms=timeout_ms)


def test_a_driver_and_twins_that_come_back(kafka: KafkaNode, query: str) -> None:
    with threads_as_processes():
        topics = Topics(kafka.bootstrap)
        check_returns(kafka.bootstrap, topics, query, chosen=slice(0, None, 4))
        check_twins(kafka.bootstrap, topics, f"{query}-twins")
