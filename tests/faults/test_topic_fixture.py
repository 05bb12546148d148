"""Topics that are there from the start, with their records."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import Consumer, Message, TopicPartition

from seglog.faults.fault import FaultError
from seglog.faults.topic_fixture import fixture_from_json
from seglog.records.partitioner import partition_for_key
from seglog.testing import Broker, TopicFixture, TopicRecord

_RECORDS: list[TopicRecord | bytes | str] = [
    TopicRecord(b"1", key="k", headers=[("h", b"x"), ("none", None)], timestamp=1_700_000_000_000, partition=1),
    TopicRecord(None, key=b"gone"),
    "text",
    b"bytes",
]


def stored(broker: Broker, topic: str, partition: int) -> list[Message]:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "-", "enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, partition, 0)])
    found: list[Message] = []
    while (message := consumer.consume(1, 30)[0]).error() is None:
        found.append(message)
    consumer.close()
    return found


@pytest.mark.parametrize("process", [False, True], ids=["thread", "process"])
def test_records_are_there_after_the_start_and_after_a_reset(*, process: bool) -> None:
    topics = {
        "plain": 2,
        "few": ["a", "b"],
        "full": TopicFixture(partitions=3, records=_RECORDS, config={"retention.ms": -1}),
    }
    with Broker(topics, process=process) as broker:
        for _ in range(2):
            assert [one.value() for one in stored(broker, "few", 0)] == [b"a", b"b"]
            assert stored(broker, "plain", 1) == []
            found = {number: stored(broker, "full", number) for number in range(3)}
            (first, *_) = found[1]
            assert (first.key(), first.value(), first.timestamp()[1]) == (b"k", b"1", 1_700_000_000_000)
            assert first.headers() == [("h", b"x"), ("none", None)]
            values = sorted(bytes(value) for all_ in found.values() for one in all_ if (value := one.value()))
            assert values == [b"1", b"bytes", b"text"]
            assert b"gone" in [one.key() for one in found[partition_for_key(b"gone", 3)]]
            broker.reset()
        broker.create_topic("late", records=["x"])
        assert [one.value() for one in stored(broker, "late", 0)] == [b"x"]
        with pytest.raises(FaultError, match="partition 7; the topic has 1"):
            broker.create_topic("wrong", records=[TopicRecord("x", partition=7)])


def test_large_fixtures_come_in_batches_that_the_broker_takes() -> None:
    with Broker({"t": TopicFixture(records=["x" * 100] * 1200 + [b"y" * 300_000] * 4)}) as broker:
        assert len(stored(broker, "t", 0)) == 1204


def test_comes_back_from_json() -> None:
    fixture = TopicFixture(partitions=2, records=_RECORDS, config={"retention.ms": 5, "preallocate": True})
    back = fixture_from_json(fixture.to_json())
    assert back.partitions == 2
    assert list(back.batches()) == list(fixture.batches())
    assert back.config == {"retention.ms": "5", "preallocate": "true"}


@pytest.mark.parametrize(
    "document",
    [
        5,
        {"partitions": "2"},
        {"partitions": True},
        {"records": 5},
        {"records": [{"value": 5}]},
        {"records": [{"value": {"base64": "!"}}]},
        {"records": [{"headers": [["a"]]}]},
        {"config": 1},
    ],
)
def test_says_that_a_document_is_no_topic(document: Any) -> None:
    with pytest.raises(FaultError, match="this is not a topic"):
        fixture_from_json(document)
