"""The lag of streams."""

from __future__ import annotations

from pathlib import Path
from queue import Queue
from typing import NamedTuple

import pytest
from pyspark.sql import SparkSession

import seglog
import seglog.spark
from seglog.spark import LagListener
from seglog.spark.read.lag_listener import SourceLag, source_lags
from tests.spark.stream_driver import append

_SECONDS = 300


class Progress(NamedTuple):
    endOffset: str
    latestOffset: str


def test_the_lag_of_each_source_that_has_offsets() -> None:
    found = source_lags(
        "id",
        None,
        7,
        [
            Progress("3", "5"),
            Progress('{"t":{"0":5,"1":2}}', '{"t":{"0":5,"1":9}}'),
            Progress('{"t":{"0":5}}', "null"),
            Progress('{"t":{"0":5}}', "{}"),
        ],
    )
    assert found == [SourceLag("id", None, 7, 1, 0, 7, 3.5)]
    assert found[0].metrics == {
        "minOffsetsBehindLatest": "0",
        "maxOffsetsBehindLatest": "7",
        "avgOffsetsBehindLatest": "3.5",
    }
    assert str(found[0]) == "query id, batch 7, source 1: behind by 0 to 7 offsets a partition, 3.5 on average"


def test_exported_by_the_package() -> None:
    assert "LagListener" in seglog.spark.__all__
    assert LagListener().of("nothing") == ()


@pytest.mark.xdist_group("spark")
def test_a_query_that_keeps_to_a_limit_is_behind(spark: SparkSession, tmp_path: Path) -> None:
    with seglog.open(tmp_path / "log") as directory:
        directory.create_topic("t", partitions=2)
        append(directory.log("t", 0), 90)
        append(directory.log("t", 1), 10)
    said: Queue[str] = Queue()
    listener = LagListener(log=said.put)
    spark.streams.addListener(listener)
    try:
        query = (
            spark.readStream.format("seglog")
            .options(path=str(tmp_path / "log"), startingOffsets="earliest", maxOffsetsPerTrigger="50")
            .load()
            .writeStream.format("noop")
            .queryName("behind")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(_SECONDS)
        lines: list[str] = []
        while len(lines) < 3:  # what a query of an earlier test still has to say comes to every listener
            line = said.get(timeout=_SECONDS)
            lines += [line] if line.startswith("query behind, ") else []
    finally:
        spark.streams.removeListener(listener)
    assert [line.split("behind by ")[1] for line in lines] == [
        "10 to 90 offsets a partition, 50.0 on average",
        "5 to 45 offsets a partition, 25.0 on average",
        "0 to 0 offsets a partition, 0.0 on average",
    ]
    assert lines[0].startswith("query behind, batch 0, source 0: ")
    assert [(lag.batch_id, lag.max) for lag in listener.of(query.id)] == [(2, 0)]
    listener.forget(query.id)
    assert listener.of(query.id) == ()
