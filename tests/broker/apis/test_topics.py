"""Topics come, grow and go: CreateTopics, CreatePartitions, DeleteTopics, Metadata, DescribeTopicPartitions."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer

from seglog.protocol.apis import ApiKey
from seglog.protocol.message_reader import Message
from seglog.records.record import NewRecord, encode_batch
from tests.broker.broker_thread import RunningNode, Wire
from tests.broker.python_clients import AdminClient, NewPartitions, NewTopic


def wanted(name: str, partitions: int = 1, factor: int = 1, **more: object) -> dict[str, object]:
    return {"name": name, "num_partitions": partitions, "replication_factor": factor, **more}


def create(wire: Wire, *topics: dict[str, object], validate_only: bool = False) -> list[tuple[int, str | None]]:
    answer = wire.ask(ApiKey.CREATE_TOPICS, topics=topics, timeout=30_000, validate_only=validate_only)
    return [(topic.error_code, topic.error_message) for topic in answer.topics]


def metadata(wire: Wire, *names: str, version: int = 13, auto: bool = False) -> list[Message]:
    asked = [{"name": name} for name in names]
    answer = wire.ask(ApiKey.METADATA, version, topics=asked, allow_auto_topic_creation=auto)
    return list(answer.topics)


def test_a_topic_is_created_grown_and_deleted_by_librdkafka(broker: RunningNode, topic_name: str) -> None:
    admin = AdminClient({"log_level": 0, "bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(topic_name, 2, 1, config={"retention.ms": "5000"})])[topic_name].result()
    assert sorted(admin.list_topics().topics[topic_name].partitions) == [0, 1]
    assert broker.node.directories.dirs[0].log(topic_name, 1).config.retention_ms == 5000
    with pytest.raises(KafkaException) as error:
        admin.create_topics([NewTopic(topic_name, 2, 1)])[topic_name].result()
    assert error.value.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS
    admin.create_partitions([NewPartitions(topic_name, 5)])[topic_name].result()
    assert sorted(admin.list_topics(topic_name).topics[topic_name].partitions) == [0, 1, 2, 3, 4]
    admin.delete_topics([topic_name])[topic_name].result()
    assert topic_name not in admin.list_topics().topics
    assert topic_name not in broker.node.directories.dirs[0].topics()


def test_what_was_created_is_told(wire: Wire, topic_name: str) -> None:
    configs = [{"name": "retention.ms", "value": "5"}]
    answer = wire.ask(ApiKey.CREATE_TOPICS, topics=[wanted(topic_name, 3, -1, configs=configs)], timeout=30_000)
    (topic,) = answer.topics
    assert (topic.num_partitions, topic.replication_factor, topic.error_code) == (3, 1, 0)
    found = {config.name: (config.value, config.config_source) for config in topic.configs}
    assert found["retention.ms"] == ("5", 1)
    assert found["segment.bytes"] == ("1073741824", 5)
    (described,) = metadata(wire, topic_name)
    assert described.topic_id == topic.topic_id != uuid.UUID(int=0)


def test_only_validating_changes_nothing(wire: Wire, topic_name: str) -> None:
    assert create(wire, wanted(topic_name), validate_only=True) == [(0, None)]
    assert [topic.error_code for topic in metadata(wire, topic_name)] == [3]


def test_a_deleted_topic_wakes_who_waits_for_it(broker: RunningNode, topic_name: str) -> None:
    with Wire(broker.bootstrap) as waiting, Wire(broker.bootstrap) as other:
        create(other, wanted(topic_name))
        (topic,) = metadata(other, topic_name)
        partitions = [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1000, "current_leader_epoch": -1}]
        waiting.send(
            ApiKey.FETCH,
            max_wait=60_000,
            min_bytes=1,
            max_bytes=1000,
            session_epoch=-1,
            topics=[{"topic_id": topic.topic_id, "partitions": partitions}],
        )
        other.ask(ApiKey.DELETE_TOPICS, topics=[{"topic_id": topic.topic_id, "name": None}], timeout=30_000)
        (response,) = waiting.answer(ApiKey.FETCH).responses
        assert [partition.error_code for partition in response.partitions] == [100]


def test_a_topic_made_anew_is_another_one(broker: RunningNode, topic_name: str) -> None:
    """Neither offsets, nor sessions by id, nor producers of the old one are met."""
    producer = Producer({"log_level": 0, "bootstrap.servers": broker.bootstrap, "enable.idempotence": True})
    with Wire(broker.bootstrap) as wire:
        create(wire, wanted(topic_name))
        for _ in range(3):
            producer.produce(topic_name, b"old")
        assert producer.flush(60) == 0
        (old,) = metadata(wire, topic_name)
        wire.ask(ApiKey.DELETE_TOPICS, topics=[{"name": topic_name}], timeout=30_000)
        create(wire, wanted(topic_name))
        (new,) = metadata(wire, topic_name)
        assert old.topic_id != new.topic_id
        log = broker.node.directories.dirs[0].log(topic_name)
        assert (log.log_end_offset, log.producers.entries) == (0, {})
        (by_old_id,) = wire.ask(ApiKey.METADATA, topics=[{"topic_id": old.topic_id, "name": None}]).topics
        assert by_old_id.error_code == 100


def test_asking_creates_where_both_sides_allow_it(
    broker: RunningNode, wire: Wire, topic_name: str, start: Callable[..., RunningNode]
) -> None:
    assert [topic.error_code for topic in metadata(wire, topic_name)] == [3]
    (made,) = metadata(wire, topic_name, auto=True)
    assert (made.error_code, len(made.partitions)) == (0, 1)
    assert [topic.error_code for topic in metadata(wire, "not legal", auto=True)] == [17]
    assert topic_name in broker.node.topics.by_name
    strict = start({"auto.create.topics.enable": "false"}, name="strict")
    with Wire(strict.bootstrap) as other:
        assert [topic.error_code for topic in metadata(other, topic_name, auto=True)] == [3]
        assert [topic.error_code for topic in metadata(other, topic_name, version=0)] == [3]


def test_two_who_ask_at_once_get_one_topic(broker: RunningNode, topic_name: str) -> None:
    found = []

    def ask() -> None:
        with Wire(broker.bootstrap) as wire:
            found.extend(metadata(wire, topic_name, auto=True))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [topic.error_code for topic in found] == [0] * 8
    assert len({topic.topic_id for topic in found}) == 1


def test_partitions_are_described_a_page_at_a_time(wire: Wire) -> None:
    for name, partitions in (("page-a", 2), ("page-b", 3)):
        create(wire, wanted(name, partitions))
    asked = [{"name": name} for name in ("page-b", "page-none", "page-a")]
    seen = []
    cursor = None
    while True:
        answer = wire.ask(ApiKey.DESCRIBE_TOPIC_PARTITIONS, topics=asked, response_partition_limit=2, cursor=cursor)
        seen += [
            (topic.name, topic.error_code, [p.partition_index for p in topic.partitions]) for topic in answer.topics
        ]
        if answer.next_cursor is None:
            break
        cursor = {"topic_name": answer.next_cursor.topic_name, "partition_index": answer.next_cursor.partition_index}
    assert seen == [("page-a", 0, [0, 1]), ("page-b", 0, [0, 1]), ("page-b", 0, [2]), ("page-none", 3, [])]


def test_a_broker_that_was_stopped_has_its_topics_again(start: Callable[..., RunningNode], topic_name: str) -> None:
    running = start()
    with Wire(running.bootstrap) as wire:
        create(wire, wanted(topic_name, 2, configs=[{"name": "cleanup.policy", "value": "compact"}]))
        grown = {"name": topic_name, "count": 4, "assignments": None}
        assert wire.ask(ApiKey.CREATE_PARTITIONS, topics=[grown], timeout=30_000).results[0].error_code == 0
        before = metadata(wire, topic_name)[0].topic_id
    running.node.directories.dirs[0].log(topic_name, 3).append(encode_batch([NewRecord(b"v", key=b"k")]))
    running.stop()
    running.start()
    with Wire(running.bootstrap) as wire:
        (topic,) = metadata(wire, topic_name)
        assert topic.topic_id == before
        assert len(topic.partitions) == 4
        assert [partition.leader_epoch for partition in topic.partitions] == [0, 0, 0, 1]
        assert running.node.directories.dirs[0].log(topic_name, 3).log_end_offset == 1
