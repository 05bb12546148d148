"""Streams in a real session; `test_stream_reader.py`, `test_stream_changes.py` and `test_stream_steps.py` need none."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import seglog
from tests.spark.stream_driver import SMALL, append

pytestmark = pytest.mark.xdist_group("spark")

_SECONDS = 300


class Query:
    """A query into a list, which can be run again from its checkpoint."""

    def __init__(self, spark: SparkSession, checkpoint: Path) -> None:
        self._spark = spark
        self._checkpoint = checkpoint
        self.batches: dict[int, list[tuple[int, int]]] = {}
        self.fail_at: int | None = None
        self.progress: list[dict[str, object]] = []

    def run(self, path: Path | str, **options: str) -> None:
        """With ``AvailableNow``, to its end. What the sink has of a batch that is run again is replaced."""
        query = (
            self.stream(path, **options)
            .writeStream.foreachBatch(self._take)
            .option("checkpointLocation", str(self._checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(_SECONDS)
        self.progress = [dict(progress["sources"][0]) for progress in query.recentProgress]

    def stream(self, path: Path | str, **options: str) -> DataFrame:
        chosen = {"path": str(path), "until": "logEnd", "startingOffsets": "earliest", **options}
        return self._spark.readStream.format("seglog").options(**chosen).load()

    def records(self, partition: int = 0) -> list[int]:
        """The offsets of a partition in the order of batches."""
        found = [sorted(rows) for _, rows in sorted(self.batches.items())]
        return [offset for rows in found for number, offset in rows if number == partition]

    def last_offsets(self) -> str:
        """The line of the newest file of the checkpoint's offsets."""
        files = [path for path in (self._checkpoint / "offsets").iterdir() if path.name.isdigit()]
        return max(files, key=lambda path: int(path.name)).read_text().splitlines()[2]

    def _take(self, frame: DataFrame, batch_id: int) -> None:
        self.batches[batch_id] = [(row[0], row[1]) for row in frame.select("partition", "offset").collect()]
        if batch_id == self.fail_at:
            raise RuntimeError("the sink fails after it has written")


@pytest.fixture
def logs(tmp_path: Path) -> seglog.LogDir:
    directory = seglog.open(tmp_path / "log")
    directory.create_topic("t", config=SMALL)
    append(directory.log("t"), 100)
    return directory


def test_available_now_continues_from_its_checkpoint(spark: SparkSession, logs: seglog.LogDir, tmp_path: Path) -> None:
    query = Query(spark, tmp_path / "checkpoint")
    query.run(logs.path, maxOffsetsPerTrigger="40")
    assert [len(rows) for _, rows in sorted(query.batches.items())] == [0, 40, 40, 20]
    assert query.last_offsets() == '{"t": {"0": 100}}'
    assert {progress["latestOffset"] for progress in query.progress} == {'{"t": {"0": 100}}'}
    # Stopped after the sink had the last batch and before Spark knew; meanwhile there is more, and a new topic.
    (tmp_path / "checkpoint" / "commits" / "3").unlink()
    (tmp_path / "checkpoint" / "commits" / ".3.crc").unlink()
    append(logs.log("t"), 50)
    logs.create_topic("u", config=SMALL)
    append(logs.log("u"), 7)
    query.run(logs.path)
    assert len(query.batches[3]) == 20
    assert sorted(query.batches[4])[:2] == [(0, 0), (0, 1)]
    assert len(query.batches[4]) == 57
    query.run(logs.path)
    assert list(query.batches) == [0, 1, 2, 3, 4]


def test_a_sink_that_fails_is_given_the_same_batch_again(
    spark: SparkSession, logs: seglog.LogDir, tmp_path: Path
) -> None:
    query = Query(spark, tmp_path / "checkpoint")
    for failing in (0, 1):
        query.fail_at = failing
        with pytest.raises(StreamingQueryException, match="the sink fails after it has written"):
            query.run(logs.path, startingOffsets="latest")
        append(logs.log("t"), 10)
    query.fail_at = None
    query.run(logs.path, startingOffsets="latest")
    assert query.batches[0] == []
    assert query.records() == list(range(100, 120))


def test_reads_a_log_that_is_appended_to_and_rolled_meanwhile(
    spark: SparkSession, logs: seglog.LogDir, tmp_path: Path
) -> None:
    query = (
        Query(spark, tmp_path)
        .stream(logs.path)
        .select("offset", "value")
        .writeStream.format("memory")
        .queryName("meanwhile")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    try:
        for _ in range(60):
            append(logs.log("t"), 20)
            query.processAllAvailable() if logs.log("t").log_end_offset % 400 == 0 else None
        query.processAllAvailable()
    finally:
        query.stop()
    found = sorted(tuple(row) for row in spark.table("meanwhile").collect())
    assert found == [(offset, b"%d" % offset) for offset in range(1300)]


def test_lost_records_fail_the_query_with_advice(spark: SparkSession, logs: seglog.LogDir, tmp_path: Path) -> None:
    query = Query(spark, tmp_path / "checkpoint")
    query.run(logs.path)
    append(logs.log("t"), 100)
    logs.log("t").delete_records(150)
    logs.checkpoint()
    with pytest.raises(StreamingQueryException) as failed:
        query.run(logs.path)
    assert "partition t-0 starts at offset 150, but was read only to 100" in str(failed.value)
    query.run(logs.path, failOnDataLoss="false")
    assert query.records() == [*range(100), *range(150, 200)]
