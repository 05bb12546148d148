"""A keyed table with its log's tail has what a dictionary has at the end of the log, through Spark's own reader."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession

from seglog.core.errors import DataLossError
from seglog.records.columns import SCHEMA
from seglog.spark import table
from seglog.table.iceberg.log_table import LogTable
from seglog.table.keyed.building import update_keyed_table
from seglog.testing import Broker
from tests.broker.python_clients import NewTopic
from tests.kit.topics import create_topics
from tests.spark.tables.test_frame import closing_connections
from tests.table.keyed.keyed_log import KeyedLog, Newest, newest_in

pytestmark = pytest.mark.xdist_group("spark")


def _rows(frame: DataFrame) -> Newest:
    found = frame.toArrow()
    assert found.schema.names == list(SCHEMA.names)
    for row in found.to_pylist():
        assert [bytes(one["value"]) for one in row["headers"]] == [b"%d" % row["offset"]]
    return newest_in(found)


def test_merges_the_tail(spark: SparkSession, tmp_path: Path) -> None:
    log = KeyedLog(tmp_path)
    log.write([(b"key %d" % number, b"old") for number in range(20)])
    log.write([(b"key 1", b"other partition")], partition=1)
    with LogTable.open_or_create(log.table, key_buckets=4):
        assert _rows(table(spark, log.table, tail=log.path)) == log.newest  # all of it is tail
    log.update()
    sealed = dict(log.newest)
    assert _rows(table(spark, log.table, tail=log.path)) == sealed
    log.write([(b"key 1", None), (b"key 2", b"new"), (b"key 3", None), (b"key 3", b"again"), (b"key 4", b"1")])
    log.write([(b"key 4", None), (b"not in the table", None), (b"only in the tail", b"1")])
    pinned, expected = table(spark, log.table, tail=log.path), dict(log.newest)
    log.write([(b"key 5", None), (b"key 6", b"behind the frame")])
    assert _rows(pinned) == expected
    assert _rows(table(spark, log.table)) == sealed
    some = table(spark, log.table, tail=log.path, columns=["value", "offset"]).collect()
    assert sorted((row.offset, bytes(row.value)) for row in some) == sorted(log.newest.values())


def test_a_tail_whose_tombstones_may_be_gone_is_an_error(spark: SparkSession, tmp_path: Path) -> None:
    log = KeyedLog(tmp_path, partitions=1, delete_retention_ms=1000)
    log.write([(b"a", b"1")])
    log.update()
    log.write([(b"a", None), (b"b", b"1")])
    log.compact()
    with pytest.raises(DataLossError, match=r"delete\.retention\.ms is 1000, so tombstones may be gone"):
        table(spark, log.table, tail=log.path)
    assert table(spark, log.table).count() == 1


def test_builds_and_merges_through_brokers(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "warehouse" / "t"

    def write(bootstrap: str, records: list[tuple[str, bytes | None]]) -> None:
        producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0, "acks": "all"})
        for key, value in records:
            producer.produce("t", key=key, value=value, partition=0)
        assert producer.flush(60) == 0

    with Broker() as broker, closing_connections():
        create_topics(broker.bootstrap, NewTopic("t", 1, 1, config={"cleanup.policy": "compact"}))
        write(broker.bootstrap, [("a", b"1"), ("b", b"1"), ("c", b"1"), ("a", b"2")])
        assert update_keyed_table(broker.bootstrap, path, topic="t").records == 3
        write(broker.bootstrap, [("a", None), ("b", b"2"), ("d", b"1")])
        merged = table(spark, path, tail=broker.bootstrap)
        expected = {b"b": b"2", b"c": b"1", b"d": b"1"}
        assert {bytes(row.key): bytes(row.value) for row in merged.collect()} == expected
        done = update_keyed_table(broker.bootstrap, path, topic="t")
        assert (done.changed_keys, done.records, done.behind) == (3, 3, 0)
        assert {bytes(row.key): bytes(row.value) for row in table(spark, path).collect()} == expected
