"""Streams compared with Spark's own Kafka connector: the same batches, and each continues from the other's
checkpoint."""

from __future__ import annotations

import json
from itertools import count, permutations
from pathlib import Path
from typing import Final

import pytest
from pyspark.errors import StreamingQueryException

from seglog.spark.read.lag_listener import source_lags
from tests.golden.content import START_MS
from tests.interop.connector_world import OURS, World, checkpointed
from tests.spark.read.test_lag_listener import Progress

pytestmark = pytest.mark.xdist_group("connector")

_numbers: Final = count()
_MULTI: Final = {"subscribe": "multi", "startingOffsets": "earliest"}


@pytest.fixture
def topic(world: World) -> str:
    """A topic of the test's own, with ten records in its one partition."""
    name = f"stream-{next(_numbers)}"
    world.create(name)
    world.wait_known(name, 1)
    world.produce(name, 10)
    return name


@pytest.mark.parametrize("source", OURS)
@pytest.mark.parametrize(
    "chosen",
    [
        {**_MULTI, "maxOffsetsPerTrigger": "250"},
        {**_MULTI, "startingOffsets": '{"multi": {"0": 10, "1": 3, "2": -1}}', "maxOffsetsPerTrigger": "400"},
        {
            "subscribe": "multi",
            "startingTimestamp": str(START_MS + 40_000),
            "startingOffsetsByTimestampStrategy": "latest",
        },
        {"subscribe": "multi"},
    ],
    ids=["a limit", "offsets", "a time", "latest"],
)
def test_the_same_batches(world: World, tmp_path: Path, chosen: dict[str, str], source: str) -> None:
    kafka = world.run("kafka", chosen, tmp_path / "kafka")
    theirs = world.progress
    ours = world.run(source, chosen, tmp_path / source)
    assert ours == kafka
    assert bool(kafka) == ("startingOffsets" in chosen or "startingTimestamp" in chosen)
    assert [json.loads(each["latestOffset"]) for each in world.progress] == [
        json.loads(each["latestOffset"]) for each in theirs
    ]


@pytest.mark.parametrize("source", OURS)
def test_committed_records_only(world: World, tmp_path: Path, source: str) -> None:
    chosen = {"subscribe": "txn", "startingOffsets": "earliest", "maxOffsetsPerTrigger": "20"}
    kafka = world.run("kafka", {**chosen, "kafka.isolation.level": "read_committed"}, tmp_path / "kafka")
    ours = world.run(source, {**chosen, "kafka.isolation.level": "read_committed"}, tmp_path / source)
    assert ours == kafka
    assert len(kafka) > 1


def test_the_lag_is_the_connectors_metric(world: World, tmp_path: Path) -> None:
    world.run("kafka", {**_MULTI, "maxOffsetsPerTrigger": "250"}, tmp_path / "kafka")
    for progress in world.progress:
        (lag,) = source_lags("", "", 0, [Progress(progress["endOffset"], progress["latestOffset"])])
        assert lag.metrics == progress["metrics"]
    assert len(world.progress) == 4


@pytest.mark.parametrize("source", OURS)
def test_new_partitions_and_new_topics(world: World, topic: str, tmp_path: Path, source: str) -> None:
    chosen = {"subscribePattern": f"{topic}.*", "startingOffsets": "latest", "maxOffsetsPerTrigger": "7"}
    assert world.run("kafka", chosen, tmp_path / "kafka") == []
    assert world.run(source, chosen, tmp_path / source) == []
    world.grow(topic, 2)
    world.create(f"{topic}-more")
    world.wait_known(topic, 2)
    world.wait_known(f"{topic}-more", 1)
    world.produce(topic, 5)
    world.produce(topic, 4, partition=1)
    world.produce(f"{topic}-more", 6)
    kafka, ours = (world.run(one, chosen, tmp_path / one) for one in ("kafka", source))
    assert ours == kafka
    assert sorted(row for batch in ours for row in batch.records) == sorted(
        [(topic, 0, offset) for offset in range(10, 15)]
        + [(topic, 1, offset) for offset in range(4)]
        + [(f"{topic}-more", 0, offset) for offset in range(6)]
    )


def test_a_checkpoint_of_the_connector_goes_on_with_ours_and_back(world: World, topic: str, tmp_path: Path) -> None:
    chosen = {"subscribe": topic, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "6"}
    found = [batch.records for batch in world.run("kafka", chosen, tmp_path)]
    assert [len(records) for records in found] == [6, 4]
    read = 10
    for source in ("directory", "brokers", "kafka", "brokers", "directory", "kafka", "directory"):
        world.produce(topic, 8)
        batches = world.run(source, chosen, tmp_path)
        assert [row for batch in batches for row in batch.records] == [(topic, 0, at) for at in range(read, read + 8)]
        assert [len(batch.records) for batch in batches] == [6, 2]
        read += 8


@pytest.mark.parametrize(("first", "second"), list(permutations(("kafka", *OURS), 2)))
def test_a_batch_that_one_did_not_finish_is_done_by_the_other(
    world: World, topic: str, tmp_path: Path, first: str, second: str
) -> None:
    chosen = {"subscribe": topic, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "6"}
    unfinished = 1 if first == "kafka" else 2  # ours has an empty batch 0
    with pytest.raises(StreamingQueryException, match="the sink fails"):
        world.run(first, chosen, tmp_path, fail_at=unfinished)
    assert checkpointed(tmp_path, unfinished) == {topic: {"0": 10}}
    world.produce(topic, 3)
    batches = world.run(second, chosen, tmp_path)
    assert [batch.records for batch in batches] == [
        tuple((topic, 0, at) for at in range(6, 10)),
        tuple((topic, 0, at) for at in range(10, 13)),
    ]


@pytest.mark.parametrize("source", OURS)
def test_the_connectors_first_batch_is_done_by_ours(world: World, topic: str, tmp_path: Path, source: str) -> None:
    chosen = {"subscribe": topic, "startingOffsets": "earliest"}
    with pytest.raises(StreamingQueryException, match="the sink fails"):
        world.run("kafka", chosen, tmp_path, fail_at=0)
    batches = world.run(source, chosen, tmp_path)
    assert [batch.records for batch in batches] == [tuple((topic, 0, at) for at in range(10))]


def test_records_that_were_deleted_before_they_were_read(world: World, topic: str, tmp_path: Path) -> None:
    chosen = {"subscribe": topic, "startingOffsets": "earliest"}
    for source in ("kafka", *OURS):
        world.run(source, chosen, tmp_path / source)
    world.produce(topic, 20)
    world.delete_records(topic, 17)
    world.wait_log_start(topic, 17)
    for source, message in (
        ("kafka", r"Some data may have been lost"),
        *((one, rf"{topic}-0 starts at offset 17, but was read only to 10") for one in OURS),
    ):
        with pytest.raises(StreamingQueryException, match=message):
            world.run(source, chosen, tmp_path / source)
        batches = world.run(source, {**chosen, "failOnDataLoss": "false"}, tmp_path / source)
        assert [row[2] for batch in batches for row in batch.records] == list(range(17, 30))


def test_a_topic_that_was_deleted(world: World, topic: str, tmp_path: Path) -> None:
    world.create(f"{topic}-b")
    world.wait_known(f"{topic}-b", 1)
    chosen = {"subscribePattern": f"{topic}.*", "startingOffsets": "earliest"}
    for source in ("kafka", *OURS):
        assert len(world.run(source, chosen, tmp_path / source)) == 1
    world.delete(topic)
    world.wait_gone(topic)
    world.produce(f"{topic}-b", 3)
    deleted = rf"{topic}-0 was deleted"
    for source, message in (("kafka", rf"{topic}-0.* have been deleted"), *((one, deleted) for one in OURS)):
        with pytest.raises(StreamingQueryException, match=message):
            world.run(source, chosen, tmp_path / source)
        (batch,) = world.run(source, {**chosen, "failOnDataLoss": "false"}, tmp_path / source)
        assert batch.records == tuple((f"{topic}-b", 0, at) for at in range(3))


@pytest.mark.parametrize(
    ("chosen", "kafka", "ours"),
    [
        (
            {**_MULTI, "endingOffsets": "latest"},
            "ending offset not valid in streaming",
            "option endingOffsets: a stream",
        ),
        ({"subscribe": "no-such"}, "UnknownTopicOrPartitionException", "there is no topic 'no-such'"),
        (
            {**_MULTI, "startingOffsets": '{"multi": {"0": 5000, "1": 3, "2": 0}}'},
            "multi-0 offset was changed from 5000 to 700",
            "startingOffsets 5000 of multi-0 is outside of the log",
        ),
        (
            {"subscribe": "deleted", "startingOffsets": '{"deleted": {"0": 5}}'},
            "Some data may have been lost",
            "startingOffsets 5 of deleted-0 is outside of the log",
        ),
        (
            {"subscribe": "multi", "startingTimestamp": str(START_MS + 60_000)},
            "No offset matched from request of topic-partition multi-[12]",
            "multi-[12] has no record with timestamp",
        ),
        (
            {**_MULTI, "minOffsetsPerTrigger": "20", "maxTriggerDelay": "1x"},
            "Invalid suffix",
            "option maxTriggerDelay is '1x'",
        ),
    ],
    ids=["an end", "no topic", "above the log", "below the log", "behind the last record", "no time"],
)
def test_errors_mean_the_same(world: World, tmp_path: Path, chosen: dict[str, str], kafka: str, ours: str) -> None:
    for source, message in (("kafka", kafka), *((one, ours) for one in OURS)):
        with pytest.raises(Exception, match=rf"(?s){message}"):
            world.run(source, chosen, tmp_path / source)


# Where we are otherwise: docs/differences.md


@pytest.mark.parametrize("source", OURS)
def test_a_minimum_leaves_nothing_behind_when_all_that_is_there_is_read(
    world: World, tmp_path: Path, source: str
) -> None:
    """The connector ends the query as soon as a batch would be too small."""
    chosen = {**_MULTI, "minOffsetsPerTrigger": "200", "maxOffsetsPerTrigger": "250"}
    kafka, ours = (world.run(one, chosen, tmp_path / one) for one in ("kafka", source))
    assert ours[:3] == kafka
    assert sum(len(batch.records) for batch in kafka) == 747
    assert sum(len(batch.records) for batch in ours) == 753
