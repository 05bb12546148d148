"""`seglog.scan` of a real Kafka: the rows and the errors of Spark's connector, for every case of the contract."""

from __future__ import annotations

from itertools import count
from typing import Final

import pytest
from confluent_kafka import Consumer, TopicPartition

import seglog
from seglog.core.errors import DataLossError, SeglogError, UnknownTopicError
from tests.interop.connector_world import OURS, World
from tests.interop.test_connector import REFUSED, SAME
from tests.kit.waiting import SECONDS

pytestmark = pytest.mark.xdist_group("connector")

_OF_SPARK: Final = ("minPartitions", "maxRecordsPerPartition", "maxOffsetsPerTrigger", "minOffsetsPerTrigger")
"""Options about tasks and streams: a scan refuses them."""
_numbers: Final = count()


def _without_tasks(options: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in options.items() if name not in _OF_SPARK}


@pytest.mark.filterwarnings("ignore:seglog.*the topic is compacted")  # it is read through the broker
@pytest.mark.filterwarnings("ignore:seglog. data was lost")
@pytest.mark.parametrize("source", OURS)
@pytest.mark.parametrize("case", SAME)
def test_the_rows_of_the_connector(world: World, case: str, source: str) -> None:
    found = world.scan(source, _without_tasks(dict(SAME[case])))
    assert found == world.read_once("kafka", SAME[case]).rows


@pytest.mark.parametrize("source", OURS)
def test_committed_records_are_those_of_a_consumer(world: World, source: str) -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": world.node.bootstrap,
            "group.id": "scan",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition("txn", 0, 0)])
    consumed = []
    while (message := consumer.poll(SECONDS)) is not None and message.error() is None:
        consumed.append((message.offset(), message.value()))
    consumer.close()
    found = world.scan(source, {"subscribe": "txn"}, isolation_level="read_committed")
    assert [(row[4], row[1]) for row in found] == consumed
    assert len(found) < len(world.scan(source, {"subscribe": "txn"}))


@pytest.mark.parametrize("source", OURS)
@pytest.mark.parametrize("case", [case for case in REFUSED if not set(REFUSED[case][0]) & set(_OF_SPARK)])
def test_the_errors_of_the_source(world: World, case: str, source: str) -> None:
    options, _, message = REFUSED[case]
    with pytest.raises(SeglogError, match=rf"(?s){message}"):
        world.scan(source, dict(options))


@pytest.fixture
def topic(world: World) -> str:
    """Of 20 records, which the test changes."""
    name = f"scanned-{next(_numbers)}"
    world.create(name)
    world.produce(name, 20)
    return name


def test_records_that_kafka_deletes_before_they_are_read(world: World, topic: str) -> None:
    strict = seglog.scan(world.node.bootstrap, topics=topic)
    lax = seglog.scan(world.node.bootstrap, topics=topic, options={"failOnDataLoss": False})
    world.delete_records(topic, 7)
    with pytest.raises(DataLossError, match="offsets 0 to 6 were deleted before they were read"):
        strict.read_all()
    assert lax.read_all().column("offset").to_pylist() == list(range(7, 20))


def test_a_topic_of_kafka_that_is_deleted_and_created_again(world: World, topic: str) -> None:
    scan = seglog.scan(world.node.bootstrap, topics=topic)
    world.delete(topic)
    world.wait_gone(topic)
    with pytest.raises(DataLossError, match=f"{topic}-0 was deleted"):
        scan.read_all()
    with pytest.raises(UnknownTopicError, match=f"there is no topic '{topic}'"):
        seglog.scan(world.node.bootstrap, topics=topic)
    world.create(topic)
    world.produce(topic, 20)
    with pytest.raises(DataLossError, match=f"topic {topic} was deleted and created again"):
        scan.read_all()
    assert seglog.scan(world.node.bootstrap, topics=topic).read_all().num_rows == 20
