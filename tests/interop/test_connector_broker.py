"""Spark's own Kafka connector, unchanged, against our broker: it finds and does there what it does in Kafka."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Final

import pytest
from pyspark.errors import StreamingQueryException

from seglog.testing import Broker
from tests.golden.content import START_MS
from tests.interop.connector_world import NODE_PROPERTIES, OURS, OurNode, Read, Row, World, fill
from tests.interop.test_connector import REFUSED, SAME
from tests.interop.test_connector_sink import ROWS

pytestmark = pytest.mark.xdist_group("connector")

_numbers: Final = count()
_AROUND: Final = (
    "kafka", "directory", "brokers", "both", "kafka", "brokers", "kafka", "both", "directory", "both", "brokers",
    "directory", "kafka",
)  # fmt: skip
"""Each of the four sources follows each other one."""
_MULTI: Final = {"subscribe": "multi", "startingOffsets": "earliest"}


@pytest.fixture(scope="module")
def ours(world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """The same topics, but for those with transactions, in our broker, and the same session."""
    directory = str(tmp_path_factory.mktemp("ours"))
    # The records are years old: the second look for what may go, after five minutes, would find them.
    settings = {**NODE_PROPERTIES, "log.initial.task.delay.ms": "100", "log.retention.ms": "-1"}
    with Broker(settings=settings, process=True, data_dir=directory) as broker:
        made = World(OurNode(broker), world.spark, until="highWatermark")
        fill(made, transactions=False)
        yield made
        made.close()


@pytest.mark.parametrize("case", [case for case in SAME if "transactions" not in case])
def test_the_same_rows_by_the_same_tasks(world: World, ours: World, case: str) -> None:
    kafka, found = world.read_once("kafka", SAME[case]), ours.read("kafka", SAME[case])
    assert found.ranges == kafka.ranges
    if case == "time of the append":
        assert untimed(found) == untimed(kafka)
    else:
        assert found.rows == kafka.rows


def untimed(read: Read) -> list[Row]:
    """The rows without their last column, the time: of two brokers it is not the same."""
    return [row[:-1] for row in read.rows]


def test_our_source_beside_it(ours: World) -> None:
    """From the files, up to the high watermark that the broker publishes while it runs; and through the broker."""
    for chosen in ({"subscribePattern": "codec-.*", "includeHeaders": "true"}, {"subscribe": "multi,deleted"}):
        for source in OURS:
            assert ours.read(source, chosen) == ours.read("kafka", chosen)


_ERRORS: Final = ("no such topic", "a start above the end", "a start that is deleted", "no record that late")


@pytest.mark.parametrize("case", _ERRORS)
def test_errors_mean_the_same_against_our_broker(ours: World, case: str) -> None:
    chosen, kafka, seglog = REFUSED[case]
    for source, message in (("kafka", kafka), *((one, seglog) for one in OURS)):
        with pytest.raises(Exception, match=rf"(?s){message}"):
            ours.read(source, chosen)


@pytest.mark.parametrize(
    "chosen",
    [
        {**_MULTI, "maxOffsetsPerTrigger": "400", "minPartitions": "6"},
        {
            "subscribe": "multi",
            "startingTimestamp": str(START_MS + 40_000),
            "startingOffsetsByTimestampStrategy": "latest",
        },
    ],
    ids=["a limit", "a time"],
)
def test_the_same_micro_batches(world: World, ours: World, tmp_path: Path, chosen: dict[str, str]) -> None:
    found = ours.run("kafka", chosen, tmp_path / "ours")
    assert found == world.run("kafka", chosen, tmp_path / "kafka")
    assert found


@pytest.fixture
def topic(ours: World) -> str:
    """A topic of the test's own, with ten records in its one partition."""
    name = f"stream-{next(_numbers)}"
    ours.create(name)
    ours.produce(name, 10)
    return name


def test_stream_follows_growth_and_deletions_of_its_topic(ours: World, topic: str, tmp_path: Path) -> None:
    """A checkpoint of the connector's and one of ours, in turn: more records, more partitions, deleted records."""
    chosen = {"subscribePattern": f"{topic}.*", "startingOffsets": "earliest"}
    records = [row for batch in ours.run("kafka", chosen, tmp_path) for row in batch.records]
    assert records == [(topic, 0, at) for at in range(10)]
    ours.grow(topic, 2)
    ours.produce(topic, 5)
    ours.produce(topic, 4, partition=1)
    records = [row for batch in ours.run("brokers", chosen, tmp_path) for row in batch.records]
    assert records == [(topic, 0, at) for at in range(10, 15)] + [(topic, 1, at) for at in range(4)]
    ours.produce(topic, 6)
    ours.delete_records(topic, 18)
    with pytest.raises(StreamingQueryException, match="Some data may have been lost"):
        ours.run("kafka", chosen, tmp_path)
    records = [
        row for batch in ours.run("kafka", {**chosen, "failOnDataLoss": "false"}, tmp_path) for row in batch.records
    ]
    assert records == [(topic, 0, at) for at in range(18, 21)]


def test_a_checkpoint_goes_around(ours: World, topic: str, tmp_path: Path) -> None:
    """Each source continues after each other one. What it does not see in the files yet, the next one reads."""
    chosen = {"subscribe": topic, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "6"}
    found: list[Row] = []
    for source in (*_AROUND, "both"):
        found += [row for batch in ours.run(source, chosen, tmp_path) for row in batch.records]
        ours.produce(topic, 4)
    found += [row for batch in ours.run("brokers", chosen, tmp_path) for row in batch.records]
    assert found == [(topic, 0, at) for at in range(10 + 4 * (len(_AROUND) + 1))]


def test_the_sink(world: World, ours: World) -> None:
    """Keys, nulls, headers and partitions: the same records in the same places."""
    frame = world.spark.sql(ROWS.format(key="STRING", value="BINARY", tasks=1))
    found = []
    for one in (world, ours):
        one.create("sink-of-both", 3)
        one.wait_known("sink-of-both", 3)
        writer = frame.write.format("kafka").option("kafka.bootstrap.servers", one.node.bootstrap)
        writer.option("topic", "sink-of-both").mode("append").save()
        found.append(untimed(one.read("kafka", {"subscribe": "sink-of-both", "includeHeaders": "true"})))
    assert found[1] == found[0]
    assert len(found[0]) == 600
