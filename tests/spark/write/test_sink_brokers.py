"""The sink through brokers in a real session: columns, refusals, retried tasks, streams and their replays."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession, functions

from seglog.client.cluster_connections import ClusterConnections
from seglog.client.kept_connections import close_all
from seglog.client.produce.transaction import open_transactions
from seglog.core.types import TopicPartition
from seglog.records.partitioner import partition_for_key
from seglog.testing import Broker
from tests.client.produce.written import config, numbers

pytestmark = pytest.mark.xdist_group("spark")


@pytest.fixture(scope="module")
def shared() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker
    close_all()


@pytest.fixture
def broker(shared: Broker) -> Iterator[Broker]:
    shared.reset()
    shared.create_topic("t", 2)
    yield shared
    shared.faults.clear()


def frame(spark: SparkSession, count: int, tasks: int = 2) -> DataFrame:
    return spark.range(0, count, 1, tasks).selectExpr("CAST(id AS STRING) AS key", "CAST(id AS STRING) AS value")


def save(frame: DataFrame, broker: Broker, **options: str) -> None:
    named = {name.replace("__", "."): text for name, text in options.items()}
    writer = frame.write.format("seglog").mode("append").option("kafka.bootstrap.servers", broker.bootstrap)
    writer.options(**{"topic": "t", **named}).save()


def values(broker: Broker, topic: str = "t") -> list[int]:
    """As a read_committed reader sees them."""
    return sorted(value for number in range(2) for value in numbers(broker.bootstrap, TopicPartition(topic, number)))


def left_open(broker: Broker) -> list[str]:
    with ClusterConnections(config(broker.bootstrap)) as cluster:
        return [one.transactional_id for one in open_transactions(cluster, "")]


def records(spark: SparkSession, broker: Broker, *topics: str) -> list[tuple[Any, ...]]:
    spark.catalog.clearCache()
    reader = spark.read.format("seglog").option("kafka.bootstrap.servers", broker.bootstrap)
    found = reader.options(subscribe=",".join(topics), includeHeaders="true", isolationLevel="read_committed").load()
    columns = [found[name] for name in ("topic", "partition", "key", "value", "headers")]
    rows = found.orderBy("topic", "partition", "offset").select(*columns).collect()
    return [(*row[:4], row[4] and [tuple(one) for one in row[4]]) for row in rows]


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
def test_a_frame_is_in_the_topic_by_kafkas_partitioner(spark: SparkSession, broker: Broker, delivery: str) -> None:
    save(frame(spark, 500), broker, delivery=delivery, compression__type="zstd")
    for number in range(2):
        found = numbers(broker.bootstrap, TopicPartition("t", number))
        assert {partition_for_key(b"%d" % value, 2) for value in found} == {number}
    assert values(broker) == list(range(500))
    assert left_open(broker) == []


def test_every_column_and_a_topic_for_each_row(spark: SparkSession, broker: Broker) -> None:
    broker.create_topic("u", 2)
    rows = spark.sql(
        """SELECT * FROM VALUES
        (CAST('k' AS BINARY), 'v', 't', 1, array(named_struct('key', 'h', 'value', CAST('x' AS BINARY)))),
        (NULL, NULL, 'u', 0, array())
        AS (key, value, topic, partition, headers)"""
    ).withColumn("other", functions.lit(1))
    writer = rows.write.format("seglog").mode("append").option("kafka.bootstrap.servers", broker.bootstrap)
    writer.option("markTopic", "t").save()
    assert records(spark, broker, "t", "u") == [
        ("t", 1, b"k", b"v", [("h", b"x")]),
        ("u", 0, None, None, None),
    ]


def test_a_transaction_of_an_application_is_there_once(spark: SparkSession, broker: Broker) -> None:
    for version in ("1", "1", "2", "1"):
        save(frame(spark, 10), broker, txnAppId="app", txnVersion=version)
    assert values(broker) == sorted(list(range(10)) * 2)


def test_a_version_is_remembered_after_brokers_have_deleted_its_mark(spark: SparkSession, broker: Broker) -> None:
    save(frame(spark, 10), broker, txnAppId="app", txnVersion="1")
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for deleted in admin.delete_consumer_groups(["seglog-txn-app"]).values():  # as after offsets.retention.minutes
        deleted.result(30)
    save(frame(spark, 10), broker, txnAppId="app", txnVersion="1")
    assert values(broker) == list(range(10))
    save(frame(spark, 10), broker, txnAppId="app", txnVersion="2")
    assert values(broker) == sorted(list(range(10)) * 2)
    assert left_open(broker) == []


def test_a_job_that_fails_leaves_nothing(spark: SparkSession, broker: Broker) -> None:
    bad = frame(spark, 100).selectExpr("key", "if(key = '77', raise_error('bad row'), value) AS value")
    with pytest.raises(PySparkException, match="bad row"):
        save(bad, broker)
    assert values(broker) == []
    assert left_open(broker) == []


@pytest.mark.parametrize(
    ("query", "options", "message"),
    [
        ("SELECT 'v' AS value, 'none' AS topic", {"markTopic": "t"}, "there is no topic 'none': create it first"),
        ("SELECT 'v' AS value, 9 AS partition", {"topic": "t"}, "there is no partition 9 of topic t, which has 2"),
        ("SELECT repeat('v', 2000000) AS value", {"topic": "t"}, "is above max.request.size=1048576"),
        ("SELECT 1 AS value", {"topic": "t"}, "column value is int"),
    ],
)
def test_refusals_reach_the_user(
    spark: SparkSession, broker: Broker, query: str, options: dict[str, str], message: str
) -> None:
    """Of columns, a row and a task. `test_write_options` and `test_task_writer` have all of them."""
    writer = spark.sql(query).write.format("seglog").mode("append").options(**options)
    with pytest.raises(PySparkException) as refused:
        writer.option("kafka.bootstrap.servers", broker.bootstrap).save()
    assert message in str(refused.value)
    assert left_open(broker) == []


def stream(spark: SparkSession, broker: Broker, checkpoint: Path, **options: str) -> None:
    """From ``in`` to ``t``, fifty records a batch, until all is read."""
    reader = spark.readStream.format("seglog").option("kafka.bootstrap.servers", broker.bootstrap)
    found = reader.options(subscribe="in", startingOffsets="earliest", maxOffsetsPerTrigger="50").load()
    writer = found.select("key", "value").writeStream.format("seglog").trigger(availableNow=True)
    writer = writer.option("kafka.bootstrap.servers", broker.bootstrap).option("topic", "t").options(**options)
    writer.option("checkpointLocation", str(checkpoint)).start().awaitTermination(120)


def forget_commits(checkpoint: Path, *batches: int) -> None:
    """As if the driver had died before it wrote that these are done."""
    for batch in batches:
        (checkpoint / "commits" / str(batch)).unlink()
        (checkpoint / "commits" / f".{batch}.crc").unlink(missing_ok=True)


def put(broker: Broker, first: int, last: int) -> None:
    """These numbers, as keys and values, into the only partition of ``in``."""
    producer = Producer({"bootstrap.servers": broker.bootstrap, "acks": "all", "log_level": 0})
    for number in range(first, last):
        producer.produce("in", f"{number}".encode(), f"{number}".encode())
    assert producer.flush(60) == 0


def test_a_stream_its_repeated_batch_and_a_mark_that_is_gone(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    """The last batch is repeated, and the next one follows it. A batch without a mark comes before the last ones."""
    broker.create_topic("in", 1)
    put(broker, 0, 60)
    stream(spark, broker, tmp_path)
    assert values(broker) == list(range(60))
    forget_commits(tmp_path, max(int(name.name) for name in (tmp_path / "commits").glob("[0-9]*")))
    put(broker, 60, 70)
    stream(spark, broker, tmp_path)
    assert values(broker) == list(range(70))
    put(broker, 70, 80)
    stream(spark, broker, tmp_path, delivery="at-least-once")
    put(broker, 80, 90)
    with pytest.raises(PySparkException, match=r"the mark must be of batch .*failOnDataLoss=false"):
        stream(spark, broker, tmp_path)
    stream(spark, broker, tmp_path, failOnDataLoss="false")
    assert values(broker) == list(range(90))


def test_a_batch_whose_task_and_then_whose_commit_fails_is_completed_by_the_next_run(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    """The task's first attempt fails behind its last row. (A local session repeats nothing: this is another run.)"""
    broker.create_topic("in", 1)
    put(broker, 0, 30)
    broker.fail("Produce", error="UNKNOWN_PRODUCER_ID", topic="t", nth=2)
    with pytest.raises(PySparkException, match="UNKNOWN_PRODUCER_ID"):
        stream(spark, broker, tmp_path)
    assert left_open(broker) == []
    broker.faults.clear()
    broker.fail("EndTxn", error="UNKNOWN_SERVER_ERROR", nth=2)
    with pytest.raises(PySparkException, match="UNKNOWN_SERVER_ERROR"):
        stream(spark, broker, tmp_path)
    stream(spark, broker, tmp_path)
    assert values(broker) == list(range(30))
    assert left_open(broker) == []
