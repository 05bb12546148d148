"""A stream publishes how far it is to a consumer group, never ahead of what Spark has committed."""

from __future__ import annotations

import json

import pytest
from confluent_kafka import Consumer, TopicPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from pyspark_seglog import DefaultSource
from seglog.spark.read.stream_reader import SeglogStreamReader
from seglog.testing import Broker
from tests.kit.waiting import SECONDS

GROUP = "shown-to-lag-tools"


def stream(broker: Broker, **options: str) -> SeglogStreamReader:
    chosen = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": "t", "startingOffsets": "earliest"}
    source = DefaultSource({**chosen, "commitToGroup": GROUP, **options})
    reader = source.streamReader(source.schema())
    assert isinstance(reader, SeglogStreamReader)
    return reader


def committed(broker: Broker) -> int:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": GROUP})
    try:
        (found,) = consumer.committed([TopicPartition("t", 0)], SECONDS)
        return int(found.offset)
    finally:
        consumer.close()


def test_offsets_of_finished_batches_are_published() -> None:
    with Broker({"t": [b"v"] * 10}) as broker:
        reader = stream(broker)
        reader.prepareForTriggerAvailableNow()
        start = reader.initialOffset()
        pinned = reader.latestOffset(start, ReadMaxRows(7))
        assert json.loads(json.dumps(pinned)) == {"t": {"0": 0}}
        first = reader.latestOffset(pinned, ReadMaxRows(7))
        assert first == {"t": {"0": 7}}
        assert committed(broker) == 0  # the batch up to 7 is only planned
        second = reader.latestOffset(first, ReadMaxRows(7))  # Spark has committed the first one
        assert committed(broker) == 7
        reader.commit(first)
        assert reader.latestOffset(second, ReadAllAvailable()) == second == {"t": {"0": 10}}
        assert committed(broker) == 10


def test_a_group_with_members_is_left_alone() -> None:
    with Broker({"t": [b"v"] * 10}) as broker:
        member = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": GROUP, "auto.offset.reset": "earliest"})
        try:
            member.subscribe(["t"])
            assert member.poll(SECONDS) is not None
            reader = stream(broker)
            start = reader.initialOffset()
            with pytest.warns(UserWarning, match=f"commitToGroup: offsets of group {GROUP}: .*UNKNOWN_MEMBER_ID"):
                reader.latestOffset(start, ReadMaxRows(7))
        finally:
            member.close()
