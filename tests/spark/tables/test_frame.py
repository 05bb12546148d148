"""A table with its log's tail has the rows of the log: each committed record once, through Spark's own reader."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from seglog.client.kept_connections import close_all
from seglog.core.errors import DataLossError, InvalidConfigError, UnknownTableError
from seglog.records.columns import SCHEMA
from seglog.spark import table
from seglog.storage.directory.log_dir import LogDir
from seglog.table.building import update_table
from seglog.table.iceberg.log_table import LogTable
from seglog.testing import Broker
from tests.broker.python_clients import NewTopic
from tests.kit.topics import create_topics, write
from tests.table.tables import append, flights, scanned

pytestmark = pytest.mark.xdist_group("spark")


@contextmanager
def closing_connections() -> Iterator[None]:
    """Close those that the driver keeps, before their broker is gone."""
    yield
    close_all()


def _rows(frame: DataFrame) -> pa.Table:
    found = frame.toArrow().select(list(SCHEMA.names))
    return found.cast(SCHEMA).sort_by([("partition", "ascending"), ("offset", "ascending")])


def test_has_the_rows_of_the_log_with_its_tail(spark: SparkSession, tmp_path: Path) -> None:
    log, path = tmp_path / "log", tmp_path / "warehouse" / "flights"
    append(log, flights(0, 100))
    append(log, flights(0, 50), partition=1)
    with LogTable.open_or_create(path):
        assert _rows(table(spark, path, tail=log)).equals(scanned(log))  # all of it is tail
    update_table(log, path, topic="flights")
    sealed = scanned(log)
    assert _rows(table(spark, path, tail=log)).equals(sealed)
    append(log, flights(100, 30), partition=1)
    with LogDir.open(log) as directory:
        directory.add_partitions("flights", 3)
    append(log, flights(0, 5), partition=2)
    both = table(spark, path, tail=log)
    append(log, flights(130, 10))
    assert _rows(both).num_rows == 185
    assert _rows(table(spark, path)).equals(sealed)
    assert _rows(table(spark, path, tail=log)).equals(scanned(log))


def test_builds_and_follows_through_brokers(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "warehouse" / "flights"
    with Broker() as broker, closing_connections():
        create_topics(broker.bootstrap, NewTopic("flights", 2, 1))
        assert write(broker.bootstrap, "flights", "a") is None
        assert update_table(broker.bootstrap, path, topic="flights").records == 1
        assert write(broker.bootstrap, "flights", "b") is None
        assert sorted(bytes(row.value) for row in table(spark, path, tail=broker.bootstrap).collect()) == [b"a", b"b"]
        assert update_table(broker.bootstrap, path, topic="flights").added_records == 1
        assert table(spark, path, tail=broker.bootstrap).count() == 2


def test_pins_a_snapshot(spark: SparkSession, tmp_path: Path) -> None:
    log, path = tmp_path / "log", tmp_path / "warehouse" / "flights"
    append(log, flights(0, 10))
    first = update_table(log, path, topic="flights")
    frame = table(spark, path)
    append(log, flights(10, 10))
    update_table(log, path, topic="flights")
    assert (frame.count(), table(spark, path).count()) == (10, 20)
    assert table(spark, path, snapshot=first.snapshot).count() == 10
    assert table(spark, path, snapshot=first.snapshot, tail=log).count() == 20
    with pytest.raises(UnknownTableError, match="has no snapshot 5"):
        table(spark, path, snapshot=5)


def test_a_file_that_vanished_is_an_error(spark: SparkSession, tmp_path: Path) -> None:
    log, path = tmp_path / "log", tmp_path / "warehouse" / "flights"
    append(log, flights(0, 10))
    update_table(log, path, topic="flights")
    frame = table(spark, path)
    next((path / "data").glob("*.parquet")).unlink()
    with pytest.raises(Exception, match=r"does not exist|FAILED_READ_FILE"):
        frame.collect()


def test_retention_that_passed_the_tails_beginning_is_an_error(spark: SparkSession, tmp_path: Path) -> None:
    log, path = tmp_path / "log", tmp_path / "warehouse" / "flights"
    append(log, flights(0, 10))
    update_table(log, path, topic="flights")
    append(log, flights(10, 10))
    with LogDir.open(log) as directory:
        directory.log("flights", 0).delete_records(15)
    with pytest.raises(DataLossError, match="up to offset 10, and the log begins at 15"):
        table(spark, path, tail=log)
    with LogDir.open(log) as directory:
        directory.delete_topic("flights")
    append(log, flights(0, 20))
    with pytest.raises(InvalidConfigError, match="was created again"):
        table(spark, path, tail=log)


def test_no_table_is_named(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(UnknownTableError, match="is not a warehouse"):
        table(spark, tmp_path / "none" / "flights")
    with LogTable.open_or_create(tmp_path / "warehouse" / "flights"), pytest.raises(UnknownTableError, match="'other'"):
        table(spark, tmp_path / "warehouse" / "other")
