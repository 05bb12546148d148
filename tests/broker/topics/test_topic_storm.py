"""Requests for a topic that is deleted and created again, many times: clients get only errors that they retry."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import pytest
from confluent_kafka import KafkaError, Producer

from seglog.core.error_codes import ErrorCode
from seglog.protocol.apis import ApiKey
from seglog.protocol.message_reader import Message
from tests.broker.broker_thread import RunningNode, Wire
from tests.broker.test_produce_fetch import batch
from tests.kit.cluster import SeglogCluster

TOPIC: Final = "storm"
ROUNDS: Final = 12
Ask = Callable[[Wire, UUID], Message]
_EXPECTED: Final = frozenset(
    {
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_OUT_OF_RANGE,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.OPERATION_NOT_ATTEMPTED,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.INVALID_PARTITIONS,
        ErrorCode.ELECTION_NOT_NEEDED,
        ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    }
)


def _produce(acks: int) -> Ask:
    data = [{"index": 0, "records": batch(b"v")}]

    def ask(wire: Wire, _: UUID) -> Message:
        topic_data = [{"name": TOPIC, "partition_data": data}]
        return wire.ask(ApiKey.PRODUCE, 9, transactional_id=None, acks=acks, timeout=500, topic_data=topic_data)

    return ask


def _fetch(max_wait: int) -> Ask:
    def ask(wire: Wire, topic_id: UUID) -> Message:
        partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
        unknown = dict.fromkeys(("current_leader_epoch", "last_fetched_epoch", "log_start_offset"), -1)
        topics = [{"topic_id": topic_id, "partitions": [partition | unknown]}]
        return wire.ask(ApiKey.FETCH, 13, max_wait=max_wait, min_bytes=1 << 20, max_bytes=1 << 20, topics=topics)

    return ask


def _of_topic(key: ApiKey, version: int | None = None, /, named: str = "name", **contents: Any) -> Ask:
    """A request for partition 0 of the topic; ``contents`` has the partition under "partition", and the rest of the
    request."""
    partitions, partition = contents.pop("partitions")

    def ask(wire: Wire, _: UUID) -> Message:
        return wire.ask(key, version, topics=[{named: TOPIC, partitions: [partition]}], **contents)

    return ask


def _list_offsets(timestamp: int) -> Ask:
    partition = {"partition_index": 0, "timestamp": timestamp, "current_leader_epoch": -1}
    return _of_topic(ApiKey.LIST_OFFSETS, 7, partitions=("partitions", partition), replica_id=-1, isolation_level=0)


def _transaction(wire: Wire, _: UUID) -> Message:
    """A transaction of the topic and of a group's offsets, aborted."""
    found = wire.ask(ApiKey.INIT_PRODUCER_ID, 4, transactional_id="t", transaction_timeout=60_000)
    if found.error_code:
        return found
    producer = {"producer_id": found.producer_id, "producer_epoch": found.producer_epoch}
    topics = [{"name": TOPIC, "partitions": [0]}]
    added = wire.ask(ApiKey.ADD_PARTITIONS_TO_TXN, 3, transactional_id="t", topics=topics, **producer)
    _check(ApiKey.ADD_PARTITIONS_TO_TXN, added)
    offset = {"partition_index": 0, "committed_offset": 1, "committed_leader_epoch": -1, "committed_metadata": ""}
    group = {"group_id": "storm", "generation_id": -1, "member_id": "", "group_instance_id": None}
    wire.ask(ApiKey.ADD_OFFSETS_TO_TXN, 3, transactional_id="t", group_id="storm", **producer)
    committed = wire.ask(
        ApiKey.TXN_OFFSET_COMMIT,
        3,
        transactional_id="t",
        topics=[{"name": TOPIC, "partitions": [offset]}],
        **producer,
        **group,
    )
    _check(ApiKey.TXN_OFFSET_COMMIT, committed)
    return wire.ask(ApiKey.END_TXN, 3, transactional_id="t", committed=False, **producer)


def _configs(key: ApiKey) -> Ask:
    def ask(wire: Wire, _: UUID) -> Message:
        config = {"name": "retention.ms", "config_operation": 0, "value": "600000"}
        resource = {"resource_type": 2, "resource_name": TOPIC}
        if key is ApiKey.DESCRIBE_CONFIGS:
            resources = [resource | {"configuration_keys": None}]
            return wire.ask(key, resources=resources, include_synonyms=False, include_documentation=False)
        return wire.ask(key, resources=[resource | {"configs": [config]}], validate_only=False)

    return ask


ASKS: Final[Mapping[str, Ask]] = {
    "Produce, acks=1": _produce(1),
    "Produce, acks=all": _produce(-1),
    "Fetch": _fetch(0),
    "Fetch that waits": _fetch(50),
    "ListOffsets, latest": _list_offsets(-1),
    "ListOffsets, earliest": _list_offsets(-2),
    "ListOffsets, by time": _list_offsets(5),
    "OffsetForLeaderEpoch": _of_topic(
        ApiKey.OFFSET_FOR_LEADER_EPOCH,
        4,
        named="topic",
        partitions=("partitions", {"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}),
        replica_id=-1,
    ),
    "DeleteRecords": _of_topic(
        ApiKey.DELETE_RECORDS, partitions=("partitions", {"partition_index": 0, "offset": -1}), timeout=500
    ),
    "DescribeProducers": _of_topic(ApiKey.DESCRIBE_PRODUCERS, partitions=("partition_indexes", 0)),
    "OffsetCommit": _of_topic(
        ApiKey.OFFSET_COMMIT,
        8,
        partitions=(
            "partitions",
            {"partition_index": 0, "committed_offset": 1, "committed_leader_epoch": -1, "committed_metadata": ""},
        ),
        group_id="plain",
        generation_id_or_member_epoch=-1,
        member_id="",
        group_instance_id=None,
    ),
    "a transaction": _transaction,
    "DescribeConfigs": _configs(ApiKey.DESCRIBE_CONFIGS),
    "IncrementalAlterConfigs": _configs(ApiKey.INCREMENTAL_ALTER_CONFIGS),
    "CreatePartitions": lambda wire, _: wire.ask(
        ApiKey.CREATE_PARTITIONS,
        topics=[{"name": TOPIC, "count": 2, "assignments": None}],
        timeout=500,
        validate_only=False,
    ),
    "DescribeLogDirs": lambda wire, _: wire.ask(ApiKey.DESCRIBE_LOG_DIRS, topics=[{"topic": TOPIC, "partitions": [0]}]),
    "Metadata": lambda wire, _: wire.ask(
        ApiKey.METADATA, topics=[{"topic_id": None, "name": TOPIC}], allow_auto_topic_creation=False
    ),
    "ElectLeaders": lambda wire, _: wire.ask(
        ApiKey.ELECT_LEADERS,
        election_type=0,
        topic_partitions=[{"topic": TOPIC, "partitions": [0]}],
        timeout=500,
    ),
}


def _codes(answer: object) -> Iterator[int]:
    if isinstance(answer, tuple | list):
        for one in answer:
            yield from _codes(one)
    elif hasattr(answer, "__slots__") or hasattr(answer, "__dict__"):
        names = [name for name in dir(answer) if not name.startswith("_")]
        for name in names:
            value = getattr(answer, name)
            if name.endswith("error_code"):
                yield int(value)
            elif isinstance(value, tuple | list):
                yield from _codes(value)


def _check(name: object, answer: Message) -> None:
    unexpected = set(_codes(answer)) - _EXPECTED
    assert not unexpected, f"{name}: {sorted(map(ErrorCode, unexpected))}"


class _Storm:
    """Deletes the topic and creates it again, `ROUNDS` times, beside requests."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._over = threading.Event()
        self._problems: list[str] = []
        self.topic_id = UUID(int=0)

    def run(self) -> list[str]:
        with Wire(self._bootstrap) as wire:
            self._create(wire)
            threads = [threading.Thread(target=self._ask, args=one) for one in ASKS.items()]
            threads.append(threading.Thread(target=self._write))
            for thread in threads:
                thread.start()
            try:
                for _ in range(ROUNDS):
                    wire.ask(ApiKey.DELETE_TOPICS, topics=[{"name": TOPIC, "topic_id": None}], timeout=30_000)
                    self._create(wire)
            finally:
                self._over.set()
                for thread in threads:
                    thread.join()
        return self._problems

    def _create(self, wire: Wire) -> None:
        wanted = {"name": TOPIC, "num_partitions": 1, "replication_factor": -1, "configs": []}
        while True:
            (topic,) = wire.ask(ApiKey.CREATE_TOPICS, topics=[wanted], timeout=30_000).topics
            assert topic.error_code in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS), topic
            if topic.error_code == ErrorCode.NONE:
                self.topic_id = topic.topic_id
                return

    def _ask(self, name: str, ask: Ask) -> None:
        try:
            with Wire(self._bootstrap) as wire:
                while not self._over.is_set():
                    _check(name, ask(wire, self.topic_id))
        except (AssertionError, OSError) as error:
            self._problems.append(f"{name}: {error}")

    def _write(self) -> None:
        """Write with librdkafka, as an application does."""
        failures: Counter[str] = Counter()

        def delivered(error: KafkaError | None, _: object) -> None:
            # librdkafka gives up when metadata says that there is no such topic.
            if error is not None and error.code() not in (
                KafkaError._UNKNOWN_TOPIC,
                KafkaError._UNKNOWN_PARTITION,
                KafkaError.UNKNOWN_TOPIC_OR_PART,
            ):
                failures[error.name()] += 1

        producer = Producer({"bootstrap.servers": self._bootstrap, "linger.ms": 0})
        while not self._over.is_set():
            producer.produce(TOPIC, b"v", partition=0, on_delivery=delivered)
            producer.poll(0.001)
        left = producer.flush(60)
        if failures or left:
            self._problems.append(f"librdkafka: {dict(failures)}, {left} not delivered")


@contextmanager
def _lone(path: Path) -> Iterator[str]:
    with RunningNode(path, {"auto.create.topics.enable": "false"}) as running:
        yield running.bootstrap


@contextmanager
def _cluster(path: Path) -> Iterator[str]:
    with SeglogCluster(path) as cluster:
        yield cluster[1].bootstrap


@pytest.mark.parametrize("kind", [_lone, _cluster])
def test_no_request_fails_for_good_while_its_topic_is_deleted_and_created(
    kind: Callable[[Path], Any], tmp_path: Path
) -> None:
    with kind(tmp_path) as bootstrap:
        assert _Storm(bootstrap).run() == []
