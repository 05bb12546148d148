"""Batch queries beside Spark's own Kafka connector: the same topic through the broker, and from its log directory."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

import pytest
from pyspark.errors import PySparkException

from tests.golden.content import START_MS
from tests.interop.connector_world import OURS, World

pytestmark = pytest.mark.xdist_group("connector")

Options = Mapping[str, str]
_HEADERS: Final = {"includeHeaders": "true"}
_MULTI: Final = {"subscribe": "multi"}


def offsets(*numbers: int, topic: str = "multi") -> str:
    return json.dumps({topic: {str(partition): number for partition, number in enumerate(numbers)}})


def at(seconds: float) -> int:
    return START_MS + int(seconds * 1000)


SAME: Final[Mapping[str, Options]] = {
    "all codecs, by pattern": {"subscribePattern": "codec-(none|gzip|.*4|snap+y|zstd)", **_HEADERS},
    "without headers": {"subscribePattern": "codec-z.*"},
    "a pattern that nothing matches": {"subscribePattern": "multi-.*"},
    "several topics": {"subscribe": "multi, empty ,deleted"},
    "no partition": {"assign": "{}"},
    "a topic without partitions": {"assign": '{"multi": []}', "startingOffsets": "{}"},
    "some partitions": {"assign": '{"multi": [2, 0], "empty": [1]}'},
    "time of the append": {"subscribe": "append-time", **_HEADERS},
    "an empty topic": {"subscribe": "empty"},
    "words": {**_MULTI, "startingOffsets": "Earliest", "endingOffsets": "LATEST"},
    "start offsets": {**_MULTI, "startingOffsets": offsets(333, -2, 3)},
    "end offsets": {**_MULTI, "endingOffsets": offsets(333, -1, 0)},
    "both": {**_MULTI, "startingOffsets": offsets(7, 50, 1), "endingOffsets": offsets(8, -1, 2)},
    "a start in time": {"assign": '{"multi": [0, 1]}', "startingTimestamp": str(at(20.5))},
    "behind the last record in time": {
        **_MULTI,
        "startingTimestamp": str(at(60)),
        "startingOffsetsByTimestampStrategy": "latest",
    },
    "an end in time": {**_MULTI, "endingTimestamp": str(at(60))},
    "times of partitions": {
        **_MULTI,
        "startingOffsetsByTimestamp": offsets(at(0.5), at(40), at(0)),
        "endingOffsetsByTimestamp": offsets(at(50), at(50), at(1)),
    },
    "one time goes before times, and these before offsets": {
        "assign": '{"multi": [0]}',
        "startingTimestamp": str(at(100)),
        "startingOffsetsByTimestamp": offsets(at(200)),
        "startingOffsets": offsets(300),
        "endingOffsetsByTimestamp": offsets(at(400)),
        "endingOffsets": offsets(500),
    },
    "aborted transactions too": {"subscribe": "txn", **_HEADERS},
    "a compacted topic": {"subscribe": "compacted"},
    "offsets that compaction left out": {
        "subscribe": "compacted",
        "startingOffsets": offsets(120, topic="compacted"),
        "endingOffsets": offsets(160, topic="compacted"),
    },
    "a log that starts behind 0": {"subscribe": "deleted"},
    "a start that is deleted": {
        "subscribe": "deleted",
        "startingOffsets": offsets(5, topic="deleted"),
        "failOnDataLoss": "false",
    },
    "more tasks": {**_MULTI, "minPartitions": "5"},
    "fewer tasks than partitions": {**_MULTI, "minPartitions": "2"},
    "many tasks over some offsets": {**_MULTI, "minPartitions": "20", "startingOffsets": offsets(5, 3, -2)},
    "tasks over a compacted topic": {"subscribe": "compacted", "minPartitions": "4"},
    "small tasks": {
        **_MULTI,
        "maxRecordsPerPartition": "100",
        "startingOffsets": offsets(5, 3, 0),
        "endingOffsets": offsets(605, 33, 3),
    },
    "many small tasks": {
        **_MULTI,
        "maxRecordsPerPartition": "100",
        "minPartitions": "20",
        "startingOffsets": offsets(0, 0, 0),
        "endingOffsets": offsets(700, 50, 3),
    },
    "options of streams": {**_MULTI, "maxOffsetsPerTrigger": "10", "minOffsetsPerTrigger": "5"},
}


_WITHOUT_ROWS: Final = (
    "an empty topic",
    "a pattern that nothing matches",
    "no partition",
    "a topic without partitions",
)


@pytest.mark.parametrize("source", OURS)
@pytest.mark.parametrize("case", SAME)
def test_the_same_rows_by_the_same_tasks(world: World, case: str, source: str) -> None:
    kafka, ours = world.read_once("kafka", SAME[case]), world.read(source, SAME[case])
    assert ours.rows == kafka.rows
    assert ours.ranges == kafka.ranges
    assert bool(kafka.rows) == (case not in _WITHOUT_ROWS)


@pytest.mark.parametrize("source", OURS)
def test_committed_records_only(world: World, source: str) -> None:
    chosen = {"subscribe": "txn", **_HEADERS}
    kafka = world.read("kafka", {**chosen, "kafka.isolation.level": "read_committed"})
    ours = world.read(source, {**chosen, "kafka.isolation.level": "read_committed"})
    assert ours == kafka
    assert ours == world.read(source, {**chosen, "isolationLevel": "read_committed"})
    assert len(ours.rows) < len(world.read(source, chosen).rows)


def test_up_to_the_high_watermark_of_a_running_broker(world: World) -> None:
    """By default, a read ends at the high watermark, which the broker checkpoints shortly after an append."""
    world.wait_high_watermarks("multi", {0: 700, 1: 50, 2: 3})
    path = {"path": str(world.node.log_dir)}
    frame = world.spark.read.format("seglog").options(**path, **_MULTI).load()
    assert frame.count() == len(world.read("kafka", _MULTI).rows)


_NO_TOPIC: Final = r"UnknownTopicOrPartitionException"
REFUSED: Final[Mapping[str, tuple[Options, str, str]]] = {
    "no such topic": ({"subscribe": "no-such"}, _NO_TOPIC, r"there is no topic 'no-such'"),
    "two ways to choose": (
        {"subscribe": "multi", "subscribePattern": "m.*"},
        r"Only one of the following options can be specified",
        r"options subscribe and subscribePattern exclude each other",
    ),
    "no topic": ({"subscribe": " , "}, r"No topics to subscribe to", r"option subscribe is .* names no topic"),
    "a start at latest": (
        {**_MULTI, "startingOffsets": "latest"},
        r"starting offset can't be latest for batch queries",
        r"startingOffsets: latest \(-1\) would leave nothing to read in a batch",
    ),
    "a partition's start at latest": (
        {**_MULTI, "startingOffsets": offsets(-1, 3, -2)},
        r"startingOffsets for multi-0 can't be latest for batch",
        r"startingOffsets, topic 'multi': latest \(-1\) would leave nothing to read in a batch",
    ),
    "an end at earliest": (
        {**_MULTI, "endingOffsets": "earliest"},
        r"ending offset can't be earliest for batch queries",
        r"endingOffsets: earliest \(-2\) would leave nothing to read in a batch",
    ),
    "a partition's end at earliest": (
        {**_MULTI, "endingOffsets": offsets(-2, 3, 3)},
        r"ending offset for multi-0 can't be earliest",
        r"endingOffsets, topic 'multi': earliest \(-2\) would leave nothing to read in a batch",
    ),
    "a partition left out": (
        {**_MULTI, "startingOffsets": offsets(5)},
        r"start offsets don't match what are assigned",
        r"option startingOffsets leaves out multi-1",
    ),
    "a partition too many": (
        {**_MULTI, "startingOffsets": offsets(5, 3, 0, 1)},
        r"start offsets don't match what are assigned",
        r"option startingOffsets names multi-3, which is not read",
    ),
    "a time left out": (
        {**_MULTI, "startingOffsetsByTimestamp": offsets(at(0))},
        r"timestamp based start offsets don't match what are assigned",
        r"option startingOffsetsByTimestamp leaves out multi-1",
    ),
    "starts and ends of other partitions": (
        {**_MULTI, "startingOffsets": offsets(5, 3, 0), "endingOffsets": offsets(5, 3)},
        r"should have the same topic-partitions",
        r"must name the same partitions; only one has multi-2",
    ),
    "a start above the end": (
        {**_MULTI, "startingOffsets": offsets(50, 3, 0), "endingOffsets": offsets(5, 3, 0)},
        r"start offset 50 is greater than the end offset 5 for topic multi partition 0",
        r"multi-0: startingOffsets 50 is above endingOffsets 5",
    ),
    "a start above the log": (
        {**_MULTI, "startingOffsets": offsets(5000, 3, 0)},
        r"resolved start offset 5000 is greater than the resolved end offset 700",
        r"multi-0 has log start offset 0 and (log end offset|high watermark) 700; 5000 is outside",
    ),
    "an end above the log": (
        {
            **_MULTI,
            "startingOffsets": offsets(700, 3, 0),  # so that nothing that is there can be late
            "endingOffsets": offsets(5000, 3, 0),
            "kafkaConsumer.pollTimeoutMs": "2000",
        },
        r"Could not read records in offset \[700, 5000\)",
        r"multi-0 has log start offset 0 and (log end offset|high watermark) 700; 5000 is outside",
    ),
    "a start that is deleted": (
        {"subscribe": "deleted", "startingOffsets": offsets(5, topic="deleted")},
        r"Some data may have been lost.*failOnDataLoss to false",
        r"deleted-0 has log start offset 61 .* 5 is outside; set option failOnDataLoss to false",
    ),
    "no record that late": (
        {**_MULTI, "startingTimestamp": str(at(40))},
        r"No offset matched from request of topic-partition multi-2 and timestamp",
        r"multi-2 has no record with timestamp",
    ),
    "a strategy that is none": (
        {**_MULTI, "startingTimestamp": "1", "startingOffsetsByTimestampStrategy": "nonsense"},
        r"No value found for 'NONSENSE'",
        r"option startingOffsetsByTimestampStrategy is 'nonsense': error or latest",
    ),
    "no offsets": ({**_MULTI, "startingOffsets": "nonsense"}, r"Expected e\.g\. .*got nonsense", r"is 'nonsense'"),
    "no number": ({**_MULTI, "minPartitions": "x"}, r'For input string: "x"', r"option minPartitions is 'x'"),
    "no tasks": ({**_MULTI, "minPartitions": "0"}, r"minPartitions must be positive", r"option minPartitions is '0'"),
    "no records": (
        {**_MULTI, "maxRecordsPerPartition": "0"},
        r"maxrecordsperpartition must be positive",
        r"option maxRecordsPerPartition is '0'",
    ),
    "neither true nor false": (
        {**_MULTI, "failOnDataLoss": "x"},
        r'For input string: "x"',
        r"option failOnDataLoss is 'x': it must be true or false",
    ),
    "limits the wrong way round": (
        {**_MULTI, "minOffsetsPerTrigger": "10", "maxOffsetsPerTrigger": "5"},
        r"minOffsetPerTrigger\(10\) is higher than the maxOffsetsPerTrigger\(5\)",
        r"minOffsetsPerTrigger 10 is above maxOffsetsPerTrigger 5",
    ),
    **{
        f"kafka.{name}": (
            {**_MULTI, f"kafka.{name}": "latest"},
            rf"'{name}' is not supported",
            rf"option kafka\.{name} is not supported",
        )
        for name in ("auto.offset.reset", "key.deserializer", "value.deserializer", "enable.auto.commit")
    },
}


@pytest.mark.parametrize("case", REFUSED)
def test_errors_mean_the_same(world: World, case: str) -> None:
    chosen, kafka, ours = REFUSED[case]
    for source, message in (("kafka", kafka), *((source, ours) for source in OURS)):
        with pytest.raises(Exception, match=rf"(?s){message}") as refused:
            world.read(source, chosen)
        assert type(refused.value).__name__ == "Py4JJavaError" or isinstance(refused.value, PySparkException)


# Where we are otherwise: docs/differences.md


@pytest.mark.parametrize("source", OURS)
def test_a_maximum_of_records_holds_without_offsets_too(world: World, source: str) -> None:
    """The connector checks it before it has looked up the topic's beginning and end."""
    chosen = {**_MULTI, "maxRecordsPerPartition": "100"}
    kafka, ours = world.read("kafka", chosen), world.read(source, chosen)
    assert ours.rows == kafka.rows
    assert [found.records for found in kafka.ranges] == [700, 50, 3]
    assert [found.records for found in ours.ranges] == [100] * 7 + [50, 3]


@pytest.mark.parametrize("source", OURS)
def test_a_partition_that_is_not_there_is_refused(world: World, source: str) -> None:
    """The connector reads the others."""
    chosen = {"assign": '{"multi": [0, 9]}'}
    assert len(world.read("kafka", chosen).rows) == 700
    with pytest.raises(PySparkException, match="there is no partition multi-9"):
        world.read(source, chosen)


@pytest.mark.parametrize("source", OURS)
def test_no_choice_is_every_topic(world: World, source: str) -> None:
    with pytest.raises(PySparkException, match="One of the following options must be specified"):
        world.read("kafka", {})
    topics = {row[2] for row in world.read(source, {}).rows}
    assert topics >= {"multi", "codec-zstd", "txn"}
    assert not any(topic.startswith("__") for topic in topics)
