"""The sink in a real session: the engine reads its rows again, and each job is adopted once through any failure."""

from __future__ import annotations

import os
import signal
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession, functions
from pyspark.sql.streaming.query import StreamingQuery

import seglog
from seglog.core.errors import InvalidConfigError
from seglog.core.fs import OsFs
from seglog.core.types import Buffer
from seglog.records.partitioner import partition_for_key
from seglog.spark import batch_writer, by_partition, log_columns, to_log
from seglog.spark.write.directories.commit_client import CommitClient
from seglog.storage.directory.owner_socket import socket_path
from seglog.storage.offline.verify import verify
from tests.kit.waiting import wait_until
from tests.spark.write.directories.test_commit_coordinator import all_records, end

pytestmark = pytest.mark.xdist_group("spark")

ROWS = "arrow.maxRecordsPerBatch"


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    """Where a log directory will be; its coordinator is ended with the test."""
    yield tmp_path / "log"
    end(tmp_path / "log", signal.SIGTERM)


def numbers(spark: SparkSession, count: int, tasks: int = 2) -> DataFrame:
    return spark.range(0, count, 1, tasks).selectExpr("CAST(id % 7 AS STRING) AS key", "CAST(id AS STRING) AS value")


def save(frame: DataFrame, path: Path, **options: str) -> None:
    named = {name.replace("__", "."): text for name, text in options.items()}
    frame.write.format("seglog").mode("append").options(**named).save(str(path))


def rows(path: Path, topic: str = "t") -> dict[int, list[tuple[bytes | None, bytes | None]]]:
    """Keys and values of each partition, read by the engine; the coordinator is ended, and the directory verified."""
    end(path, signal.SIGTERM)
    with seglog.open(path, create=False) as directory:
        found = {
            partition: [
                (plain(record.key), plain(record.value)) for record in all_records(directory.log(topic, partition))
            ]
            for partition in range(directory.topics()[topic].partitions)
        }
    assert list(verify([str(path)], strict=True).findings) == []
    assert list(path.glob("*/.seglog/staging/*/*")) == []
    return found


def plain(data: Buffer | None) -> bytes | None:
    return None if data is None else bytes(data)


def values(path: Path, topic: str = "t") -> list[int]:
    return sorted(int(value or b"-1") for found in rows(path, topic).values() for _, value in found)


def test_a_frame_is_in_the_log_by_kafkas_partitioner_and_in_order(spark: SparkSession, path: Path) -> None:
    save(numbers(spark, 1000), path, topic="t", numPartitions="3")
    found = rows(path)
    assert sorted(int(value or b"") for some in found.values() for _, value in some) == list(range(1000))
    for partition, some in found.items():
        assert {partition_for_key(key or b"", 3) for key, _ in some} <= {partition}
        assert [value for _, value in some] == sorted((value for _, value in some), key=lambda value: int(value or b""))


def test_every_column_and_a_topic_for_each_row(spark: SparkSession, path: Path) -> None:
    frame = spark.sql(
        """SELECT * FROM VALUES
        (CAST('k' AS BINARY), 'v', 'a', 1, timestamp_millis(1357034400123),
         array(named_struct('key', 'h', 'value', CAST('x' AS BINARY)))),
        (NULL, NULL, 'b', NULL, timestamp_millis(1), array())
        AS (key, value, topic, partition, timestamp, headers)"""
    ).withColumn("other", functions.lit(1))
    save(frame, path, createTopics='{"a": 2, "b": 1}', topic__cleanup__policy="delete", compression__type="zstd")
    end(path, signal.SIGTERM)
    with seglog.open(path) as directory:
        assert {name: info.partitions for name, info in directory.topics().items()} == {"a": 2, "b": 1}
        (first,) = all_records(directory.log("a", 1))
        (second,) = all_records(directory.log("b", 0))
    assert (first.key, first.value, first.timestamp, first.headers) == (b"k", b"v", 1357034400123, (("h", b"x"),))
    assert (second.key, second.value, second.timestamp, second.headers) == (None, None, 1, ())


def test_jobs_append_and_a_transaction_is_adopted_once(spark: SparkSession, path: Path) -> None:
    for version in ("2", "2", "3"):
        save(numbers(spark, 10), path, topic="t", txnAppId="app", txnVersion=version)
    save(numbers(spark, 10), path, topic="t", txnAppId="app", txnVersion="1")
    assert values(path) == sorted(list(range(10)) * 2)


def test_an_empty_frame_makes_its_topic_and_nothing_else(spark: SparkSession, path: Path) -> None:
    save(numbers(spark, 0), path, topic="t", numPartitions="2")
    assert rows(path) == {0: [], 1: []}


def test_the_sink_copies_a_topic_that_the_source_reads(spark: SparkSession, path: Path) -> None:
    """From one topic to another of the same directory, while the coordinator holds its lock."""
    save(numbers(spark, 100), path, topic="t", numPartitions="2", lingerSeconds="30")
    copied = spark.read.format("seglog").option("includeHeaders", "true").option("subscribe", "t").load(str(path))
    to_log(copied.drop("topic"), str(path), topic="u", partitions=2)
    assert rows(path, "u") == rows(path, "t")


@pytest.mark.parametrize(
    ("frame", "options", "message"),
    [
        ("SELECT 'v' AS value", {"topik": "t"}, "unknown option 'topik'; did you mean topic?"),
        ("SELECT 1 AS value", {"topic": "t"}, "column value is int: it must be string or binary"),
        ("SELECT 'v' AS value, 'none' AS topic", {}, "there is no topic 'none'"),
    ],
)
def test_refusals_of_options_of_columns_and_of_a_row_reach_the_user(
    spark: SparkSession, path: Path, frame: str, options: dict[str, str], message: str
) -> None:
    """`test_write_options` and `test_task_writer` have all of them."""
    with pytest.raises(PySparkException) as refused:
        spark.sql(frame).write.format("seglog").mode("append").options(**options).save(str(path))
    assert message in str(refused.value)


def test_save_modes(spark: SparkSession, path: Path) -> None:
    with pytest.raises(PySparkException, match="UNSUPPORTED_DATA_SOURCE_SAVE_MODE"):
        numbers(spark, 1).write.format("seglog").option("topic", "t").save(str(path))
    with pytest.raises(PySparkException, match=r"mode overwrite is not supported.* \.mode\('append'\)"):
        numbers(spark, 1).write.format("seglog").mode("overwrite").option("topic", "t").save(str(path))
    assert not path.exists()


def test_a_directory_in_use_is_refused_by_name_before_a_row_is_read(spark: SparkSession, path: Path) -> None:
    with seglog.open(path), pytest.raises(PySparkException) as refused:
        save(numbers(spark, 10), path, topic="t")
    assert f"{path}/.lock is locked" in str(refused.value)


# Tasks that fail


def failing(frame: DataFrame, marks: Path, *, times: int, behind: Callable[[], bool] = lambda: True) -> DataFrame:
    """``frame`` with a task that fails after its last row, ``times`` times, each once ``behind`` is true.

    Each attempt leaves a file in ``marks``.
    """

    def pass_on(batches: Iterator[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        yield from batches
        context = TaskContext.get()
        assert context is not None
        if context.partitionId() == 1:
            wait_until(behind, "what the last task is to fail behind")
            mark = marks / f"{context.attemptNumber()}"
            mark.write_bytes(b"")
            if len(list(marks.iterdir())) <= times:
                raise OSError("fails behind its last row")

    return map_in_arrow(frame, pass_on)


def map_in_arrow(frame: DataFrame, function: Callable[[Iterator[Any]], Iterator[Any]]) -> DataFrame:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="PySpark does not yet fully support pandas", category=FutureWarning)
        return frame.mapInArrow(function, frame.schema)


def test_a_task_that_fails_for_good_leaves_nothing(spark: SparkSession, path: Path, tmp_path: Path) -> None:
    """The finished files of the other task go too. A task that Spark stops half way may leave orphans."""

    def other_is_done() -> bool:
        files = list(path.glob("t-0/.seglog/staging/*/0-*/*.timeindex"))
        return bool(files) and all(file.stat().st_size < 4096 for file in files)  # as large as an active one no more

    (tmp_path / "marks").mkdir()
    frame = failing(numbers(spark, 1000), tmp_path / "marks", times=9, behind=other_is_done)
    with pytest.raises(PySparkException, match="fails behind its last row"):
        save(frame, path, topic="t")
    assert CommitClient(str(path), linger=5).status()["jobs"] == []
    assert values(path) == []


def test_by_partition_keeps_the_order_of_the_frame(spark: SparkSession, path: Path) -> None:
    frame = numbers(spark, 2000, tasks=4).withColumn("key", functions.expr("IF(value % 10 = 0, NULL, key)"))
    ordered = by_partition(frame, 3)
    assert ordered.columns == ["key", "value", "partition"]
    assert ordered.rdd.getNumPartitions() == 3
    save(ordered, path, topic="t", numPartitions="3")
    found = rows(path)
    assert sum(len(some) for some in found.values()) == 2000
    for partition, some in found.items():
        assert {partition_for_key(key, 3) for key, _ in some if key is not None} == {partition}
        assert [int(value or b"") for _, value in some] == sorted(int(value or b"") for _, value in some)
        assert 0 < sum(key is None for key, _ in some) < 200


def test_by_partition_takes_the_order_of_columns_and_partitions_that_are_given(spark: SparkSession, path: Path) -> None:
    frame = numbers(spark, 100, tasks=3).withColumn("partition", functions.expr("IF(value < 50, 1, NULL)"))
    to_log(frame, str(path), topic="t", partitions=2, order=[functions.desc(functions.col("value").cast("int"))])
    found = rows(path)
    in_partition = {partition: [int(value or b"") for _, value in some] for partition, some in found.items()}
    assert set(range(50)) <= set(in_partition[1])
    assert all(some == sorted(some, reverse=True) for some in in_partition.values())
    to_log(frame, str(path), topic="t", ordered=True)  # the number of partitions is the topic's


def test_null_headers_are_passed_over_by_to_log_and_warned_of_else(spark: SparkSession, path: Path) -> None:
    from seglog.spark.write.sink import SeglogWriter

    empty = "CAST(NULL AS array<struct<key:string,value:binary>>) AS headers"
    frame = spark.range(100).selectExpr("CAST(id AS STRING) AS value", empty)
    assert [field.nullable for field in log_columns(frame).schema if field.name == "headers"] == [False]
    before = spark.conf.get(f"spark.sql.execution.{ROWS}")
    to_log(frame, str(path), topic="t")
    assert spark.conf.get(f"spark.sql.execution.{ROWS}") == before
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        SeglogWriter(frame.schema, {"path": str(path), "topic": "t", "kafka.acks": "1"}, overwrite=False)
        SeglogWriter(log_columns(frame).schema, {"path": str(path), "topic": "t"}, overwrite=False)
    texts = [str(warning.message) for warning in caught if warning.category is UserWarning]
    assert len(texts) == 2
    assert "it ignores kafka.acks" in texts[0]
    assert "coalesce(headers, array())" in texts[1]
    assert values(path) == list(range(100))


# Streams


def start(path: Path, tmp_path: Path, frame: DataFrame) -> StreamingQuery:
    writer = frame.writeStream.format("seglog").option("topic", "t").option("checkpointLocation", str(tmp_path / "c"))
    return writer.trigger(availableNow=True).start(str(path))


def lines(spark: SparkSession, tmp_path: Path) -> DataFrame:
    reader = spark.readStream.format("text").option("maxFilesPerTrigger", 1)
    return reader.load(str(tmp_path / "in"))


def put(tmp_path: Path, *numbers_: int) -> None:
    (tmp_path / "in").mkdir(exist_ok=True)
    for number in numbers_:
        (tmp_path / "in" / f"{number}.txt").write_text(f"{number}\n")
        os.utime(tmp_path / "in" / f"{number}.txt", (number, number))


def forget(tmp_path: Path, batch: int) -> None:
    """Remove a batch's commit from the checkpoint, as if the driver had died right after the sink's commit."""
    for name in (f"{batch}", f".{batch}.crc"):
        (tmp_path / "c" / "commits" / name).unlink()


def test_a_micro_batch_is_adopted_once_however_often_it_is_run(spark: SparkSession, path: Path, tmp_path: Path) -> None:
    put(tmp_path, 1, 2, 3)
    start(path, tmp_path, lines(spark, tmp_path)).awaitTermination()
    forget(tmp_path, 2)
    put(tmp_path, 4)
    start(path, tmp_path, lines(spark, tmp_path)).awaitTermination()
    assert [value for _, value in rows(path)[0]] == [b"1", b"2", b"3", b"4"]


def test_a_batch_that_fails_leaves_nothing_and_the_next_start_writes_it(
    spark: SparkSession, path: Path, tmp_path: Path
) -> None:
    put(tmp_path, 1, 2)
    broken = tmp_path / "broken"
    broken.write_bytes(b"")

    def fail(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            if broken.exists() and b"2" in [value.as_py().encode() for value in batch.column(0)]:
                raise OSError("the second file fails")
            yield batch

    frame = lines(spark, tmp_path)
    query = start(path, tmp_path, map_in_arrow(frame, fail))
    with pytest.raises(StreamingQueryException, match="the second file fails"):
        query.awaitTermination()
    assert CommitClient(str(path), linger=5).status()["jobs"] == []
    broken.unlink()
    start(path, tmp_path, map_in_arrow(frame, fail)).awaitTermination()
    assert values(path) == [1, 2]


def test_updates_of_a_stream_are_appended_once_by_the_batch_writer(
    spark: SparkSession, path: Path, tmp_path: Path
) -> None:
    """In update mode a batch contains the rows that it changed. A repeated batch adds none."""
    source = tmp_path / "source"
    with seglog.open(source) as directory:
        directory.create_topic("in", 1)

    def counted() -> StreamingQuery:
        stream = spark.readStream.format("seglog").option("startingOffsets", "earliest").load(str(source))
        counts = stream.groupBy("key").count().selectExpr("key", "CAST(count AS STRING) AS value")
        writing = counts.writeStream.outputMode("update").foreachBatch(batch_writer(path, topic="counts"))
        return writing.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()

    for keys in ([b"a", b"a", b"b"], [b"b", b"c", b"a"]):
        with seglog.open(source) as directory:
            directory.log("in").append_records([seglog.NewRecord(b"", key) for key in keys])
        assert counted().awaitTermination(300)
        newest = max(int(one.name) for one in (tmp_path / "checkpoint" / "commits").glob("[0-9]*"))
        for file in (f"{newest}", f".{newest}.crc"):
            (tmp_path / "checkpoint" / "commits" / file).unlink()
    assert counted().awaitTermination(300)
    found = rows(path, "counts")[0]
    assert sorted(found) == [(b"a", b"2"), (b"a", b"3"), (b"b", b"1"), (b"b", b"2"), (b"c", b"1")]
    with pytest.raises(InvalidConfigError, match="for foreachBatch of a streaming query"):
        batch_writer(path, topic="counts")(numbers(spark, 1), 0)
    with pytest.raises(InvalidConfigError, match="batch_writer sets them"):
        batch_writer(path, options={"txnAppId": "x"})


def test_a_stream_has_no_transaction_of_the_user(spark: SparkSession, path: Path, tmp_path: Path) -> None:
    put(tmp_path, 1)
    writer = lines(spark, tmp_path).writeStream.format("seglog").option("checkpointLocation", str(tmp_path / "c"))
    query = writer.option("topic", "t").option("txnAppId", "a").option("txnVersion", 1).start(str(path))
    with pytest.raises(StreamingQueryException, match="the sink of a stream sets them"):
        query.awaitTermination(60)


def test_the_coordinator_is_gone_a_while_after_the_last_job(spark: SparkSession, path: Path) -> None:
    save(numbers(spark, 10), path, topic="t", lingerSeconds="0")
    wait_until(lambda: not OsFs().exists(socket_path(str(path))), "the end of the coordinator")
    with seglog.open(path) as directory:
        assert directory.log("t").log_end_offset == 10
