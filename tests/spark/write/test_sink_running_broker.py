"""The sink to a directory that a broker has open, in a real session: a frame, a stream, and its replay."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from seglog.client.kept_connections import close_all
from seglog.core.types import TopicPartition
from tests.broker.broker_thread import RunningNode
from tests.client.produce.written import numbers

pytestmark = pytest.mark.xdist_group("spark")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    with RunningNode(tmp_path_factory.mktemp("running") / "log") as running:
        yield running
    close_all()


def frame(spark: SparkSession, count: int) -> DataFrame:
    """Two tasks; the rows of each partition are 90 bytes."""
    values = spark.range(0, count, 1, 2).selectExpr("lpad(CAST(id AS STRING), 90, '0') AS value", "CAST(id % 2 AS INT)")
    return values.toDF("value", "partition")


def values(node: RunningNode, topic: str) -> list[list[int]]:
    return [numbers(node.bootstrap, TopicPartition(topic, number)) for number in range(2)]


def segments(node: RunningNode, topic: str) -> int:
    return len(list(node.path.glob(f"{topic}-*/*.log")))


def test_a_frame_is_taken_over_in_the_order_of_its_rows(spark: SparkSession, node: RunningNode) -> None:
    writer = frame(spark, 6000).write.format("seglog").mode("append").option("numPartitions", 2)
    writer.options(topic="t").option("topic.segment.bytes", 1 << 20).save(str(node.path))
    assert values(node, "t") == [[*range(0, 6000, 2)], [*range(1, 6000, 2)]]
    assert segments(node, "t") > 2


def test_a_job_that_fails_leaves_nothing(spark: SparkSession, node: RunningNode) -> None:
    # One task: Spark aborts a job while other tasks still write, and what those leave goes with the next job's start.
    bad = (
        frame(spark, 100)
        .coalesce(1)
        .selectExpr("if(value LIKE '%77', raise_error('bad row'), value) AS value", "partition")
    )
    writer = bad.write.format("seglog").mode("append").options(topic="bad", numPartitions=2)
    with pytest.raises(PySparkException, match="bad row"):
        writer.save(str(node.path))
    assert values(node, "bad") == [[], []]
    assert list(node.path.glob("bad-*/.seglog/staging/*")) == []


def test_a_micro_batch_is_there_once_however_often_it_is_run(
    spark: SparkSession, node: RunningNode, tmp_path: Path
) -> None:
    source, checkpoint = tmp_path / "in", tmp_path / "checkpoint"
    source.mkdir()

    def run(number: int) -> None:
        (source / f"{number}.txt").write_text(f"{number}\n")
        stream = spark.readStream.schema("value string").text(str(source)).selectExpr("value", "0 AS partition")
        sink = stream.writeStream.format("seglog").option("checkpointLocation", str(checkpoint))
        sink = sink.options(topic="s", numPartitions=2).trigger(availableNow=True)
        assert sink.start(str(node.path)).awaitTermination(120)

    run(0)
    for name in ("0", ".0.crc"):  # as if the driver had died right after the sink's commit
        (checkpoint / "commits" / name).unlink()
    run(1)
    assert values(node, "s") == [[0, 1], []]
