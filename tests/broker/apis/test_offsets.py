"""ListOffsets, OffsetForLeaderEpoch, DeleteRecords, against a log whose content is known."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import TopicPartition

from seglog.protocol.apis import ApiKey
from seglog.records.record import NewRecord
from tests.broker.broker_thread import RunningNode, Wire
from tests.broker.python_clients import AdminClient, OffsetSpec

TIMES = (1000, 3000, 2000)


@pytest.fixture
def topic(broker: RunningNode, wire: Wire, topic_name: str) -> str:
    """Three batches of one record, at `TIMES`."""
    wire.create_topic(topic_name, config={"message.timestamp.type": "CreateTime"})
    for timestamp in TIMES:
        broker.node.directories.dirs[0].log(topic_name).append_records([NewRecord(b"v", timestamp=timestamp)])
    return topic_name


def ask(wire: Wire, topic: str, timestamp: int, version: int = 11, partition: int = 0) -> tuple[int, int, int]:
    wanted = {"partition_index": partition, "timestamp": timestamp}
    answer = wire.ask(ApiKey.LIST_OFFSETS, version, replica_id=-1, topics=[{"name": topic, "partitions": [wanted]}])
    (found,) = answer.topics[0].partitions
    return found.error_code, found.offset, found.timestamp


@pytest.mark.parametrize(
    ("timestamp", "expected"),
    [
        (-1, (0, 3, -1)),
        (-2, (0, 0, -1)),
        (-3, (0, 1, 3000)),
        (-4, (0, 0, -1)),
        (-5, (0, -1, -1)),
        (-6, (0, -1, -1)),
        (-7, (35, -1, -1)),
        (0, (0, 0, 1000)),
        (1001, (0, 1, 3000)),
        (3001, (0, -1, -1)),
    ],
)
def test_every_time_has_its_offset(wire: Wire, topic: str, timestamp: int, expected: tuple[int, int, int]) -> None:
    assert ask(wire, topic, timestamp) == expected


@pytest.mark.parametrize(("timestamp", "since"), [(-3, 7), (-4, 8), (-5, 9), (-6, 11)])
def test_a_time_is_unknown_before_its_version(wire: Wire, topic: str, timestamp: int, since: int) -> None:
    assert ask(wire, topic, timestamp, since)[0] == 0
    assert ask(wire, topic, timestamp, since - 1)[0] == 35


def test_unknown_topic_and_partition_get_error_3(wire: Wire, topic: str) -> None:
    assert ask(wire, topic, -1, partition=7) == (3, -1, -1)
    assert ask(wire, "no-such-topic", -1) == (3, -1, -1)


def test_librdkafka_lists_and_deletes(broker: RunningNode, topic: str) -> None:
    admin = AdminClient({"log_level": 0, "bootstrap.servers": broker.bootstrap})
    place = TopicPartition(topic, 0)
    assert admin.list_offsets({place: OffsetSpec.latest()})[place].result().offset == 3
    assert admin.list_offsets({place: OffsetSpec.max_timestamp()})[place].result().offset == 1
    before = TopicPartition(topic, 0, 2)
    assert admin.delete_records([before])[before].result().low_watermark == 2
    assert admin.list_offsets({place: OffsetSpec.earliest()})[place].result().offset == 2
    assert broker.node.directories.dirs[0].log(topic).log_start_offset == 2


def test_only_what_is_there_can_be_deleted(wire: Wire, topic: str) -> None:
    def delete(offset: int, name: str = topic) -> tuple[int, int]:
        partitions = [{"partition_index": 0, "offset": offset}]
        answer = wire.ask(ApiKey.DELETE_RECORDS, topics=[{"name": name, "partitions": partitions}], timeout=30_000)
        (found,) = answer.topics[0].partitions
        return found.error_code, found.low_watermark

    assert delete(4) == (1, -1)
    assert delete(-2) == (1, -1)
    assert delete(1) == (0, 1)
    assert delete(0) == (0, 1)
    assert delete(-1) == (0, 3)
    assert delete(0, "no-such-topic") == (3, -1)


def test_an_epoch_ends_where_the_next_begins(broker: RunningNode, wire: Wire, topic: str) -> None:
    def end_of(epoch: int, current: int = -1) -> tuple[int, int, int]:
        partitions = [{"partition": 0, "leader_epoch": epoch, "current_leader_epoch": current}]
        topics: list[dict[str, Any]] = [{"topic": topic, "partitions": partitions}]
        (found,) = wire.ask(ApiKey.OFFSET_FOR_LEADER_EPOCH, topics=topics).topics[0].partitions
        return found.error_code, found.leader_epoch, found.end_offset

    partition = broker.node.topics.partition(topic, 0)
    assert partition is not None
    assert end_of(0) == (0, 0, 3)
    assert end_of(5) == (0, -1, -1)
    assert end_of(0, current=5) == (75, -1, -1)
    partition.leader_epoch = 2
    partition.log.append_records([NewRecord(b"v")], leader_epoch=2)
    assert end_of(0) == (0, 0, 3)
    assert end_of(1) == (0, 0, 3)
    assert end_of(2) == (0, 2, 4)
    assert end_of(0, current=1) == (74, -1, -1)
