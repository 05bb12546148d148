"""Our follower and a real Kafka: what it answers is read as it is, and its log becomes ours.

To Kafka we are a consumer, since it has no other broker in its cluster.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple
from uuid import UUID

import pytest
from confluent_kafka import Producer
from kio.serial import entity_reader

from seglog.cluster.model import BrokerRegistration, Member, PartitionState, VersionedState
from seglog.core.ground import THREADS, Ground
from seglog.core.types import TopicPartition
from seglog.net.peer_connection import PeerConnection
from seglog.protocol.apis import ApiKey
from seglog.protocol.replica_fetch import (
    VERSION,
    AnsweredPartition,
    FetchResponse,
    RequestHead,
    WantedPartition,
    read_response,
    write_request,
)
from seglog.protocol.schema import response_class
from seglog.records.record import NewRecord, encode_batch
from seglog.replication.fetcher import Fetcher, FetcherConfig
from seglog.replication.log_changes import LogChanges
from seglog.replication.replica import Replica
from seglog.storage.directory.log_dir import LogDir
from tests.broker.broker_thread import Wire
from tests.kafka import KafkaNode
from tests.kit.log_changes import take_over
from tests.kit.waiting import wait_until

HERE: Final = Member(2, 1)
HEAD: Final = RequestHead(0, 1, 10 << 20, 0, -1, -1, -1)
WANTED: Final = WantedPartition(0, -1, 0, -1, 0, 1 << 20)
_numbers = itertools.count()


class Topic(NamedTuple):
    name: str
    topic_id: UUID


@pytest.fixture
def wire(kafka: KafkaNode) -> Iterator[Wire]:
    with Wire(kafka.bootstrap) as wire:
        yield wire


@pytest.fixture
def topic(wire: Wire) -> Topic:
    """With three batches of two records."""
    name = f"followed-{next(_numbers)}"
    wanted = [{"name": name, "num_partitions": 1, "replication_factor": 1}]
    (found,) = wire.ask(ApiKey.CREATE_TOPICS, topics=wanted, timeout=30_000, validate_only=False).topics
    made = Topic(name, found.topic_id)
    wait_until(lambda: not produce(wire, made), f"{name}: Kafka's controller knows it before its broker does")
    for _ in range(2):
        assert not produce(wire, made)
    return made


def produce(wire: Wire, topic: Topic) -> int:
    """Two records; the error."""
    records = encode_batch([NewRecord(value=b"v" * 300, timestamp=1_700_000_000_000)] * 2)
    partitions = [{"index": 0, "records": bytes(records)}]
    data = [{"name": topic.name, "topic_id": topic.topic_id, "partition_data": partitions}]
    answer = wire.ask(ApiKey.PRODUCE, transactional_id=None, acks=-1, timeout=10_000, topic_data=data)
    return int(answer.responses[0].partition_responses[0].error_code)


def asking(kafka: KafkaNode, act: Callable[[Callable[..., Awaitable[FetchResponse]]], Awaitable[None]]) -> None:
    """Give ``act`` what asks Kafka, and has both readers read its answer."""

    async def run() -> None:
        link = await PeerConnection.open("127.0.0.1", kafka.port, client_id="follower", timeout=30, largest=100 << 20)

        async def ask(
            topic: Topic, wanted: WantedPartition | None = WANTED, forgotten: bool = False, **head: int
        ) -> FetchResponse:
            named = {} if wanted is None else {topic.topic_id.bytes: [wanted]}
            gone = {topic.topic_id.bytes: [0]} if forgotten else {}
            body = write_request(HEAD._replace(**head), named, gone)
            answer = await link.ask(ApiKey.FETCH, VERSION, body, timeout=30)
            read = read_response(answer)
            assert read == as_kio_reads(bytes(answer))
            return read

        try:
            await act(ask)
        finally:
            link.close()

    asyncio.run(run())


def as_kio_reads(answer: bytes) -> FetchResponse:
    read, size = entity_reader(response_class(ApiKey.FETCH, VERSION))(answer, 0)
    assert size == len(answer)
    found = [
        AnsweredPartition(
            topic.topic_id.bytes,
            one.partition_index,
            int(one.error_code),
            one.high_watermark,
            one.log_start_offset,
            None if one.diverging_epoch.epoch < 0 else (one.diverging_epoch.epoch, one.diverging_epoch.end_offset),
            memoryview(one.records or b""),
        )
        for topic in read.responses
        for one in topic.partitions
    ]
    return FetchResponse(int(read.error_code), read.session_id, found)


def test_answers_and_errors(kafka: KafkaNode, topic: Topic) -> None:
    async def act(ask: Callable[..., Awaitable[FetchResponse]]) -> None:
        async def one(wanted: WantedPartition, of: Topic = topic, **head: int) -> AnsweredPartition:
            (partition,) = (await ask(of, wanted, **head)).partitions
            return partition

        found = await one(WANTED)
        assert (found.error, found.high_watermark, found.log_start_offset, found.diverging) == (0, 6, 0, None)
        assert len(found.records) > 3 * 600
        assert not (await one(WANTED._replace(offset=6))).records
        assert (await one(WANTED, Topic("none", UUID(int=77)))).error == 100
        assert (await one(WANTED._replace(leader_epoch=5))).error == 75
        assert (await one(WANTED._replace(partition=9))).error in (3, 6)
        for offset in (7, -5):
            assert (await one(WANTED._replace(offset=offset))).error == 1
        assert (await one(WANTED._replace(offset=9, last_epoch=0, leader_epoch=0))).diverging == (0, 6)
        assert (await one(WANTED._replace(leader_epoch=0), replica_id=2, replica_epoch=1)).error in (6, 75)

    asking(kafka, act)


def test_sessions(kafka: KafkaNode, wire: Wire, topic: Topic) -> None:
    async def act(ask: Callable[..., Awaitable[FetchResponse]]) -> None:
        first = await ask(topic, session_epoch=0)
        assert first.session_id
        assert len(first.partitions) == 1
        session = {"session_id": first.session_id}
        at_end = WANTED._replace(offset=6)
        assert not (await ask(topic, at_end, session_epoch=1, **session)).partitions
        assert not (await ask(topic, None, session_epoch=2, **session)).partitions
        assert not produce(wire, topic)
        assert len((await ask(topic, None, session_epoch=3, **session)).partitions) == 1
        assert (await ask(topic, None, session_epoch=3, **session)).error == 71
        assert (await ask(topic, None, session_epoch=1, session_id=first.session_id ^ 1)).error == 70
        assert not (await ask(topic, None, forgotten=True, session_epoch=4, **session)).partitions
        assert (await ask(topic, None, session_epoch=5, **session)).error == 70  # nothing was left of it

    asking(kafka, act)


def test_aborted_transactions(kafka: KafkaNode, topic: Topic) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": topic.name})
    producer.init_transactions(60)
    for _ in range(3):
        producer.begin_transaction()
        producer.produce(topic.name, b"never was")
        producer.flush(60)
        producer.abort_transaction(60)

    async def act(ask: Callable[..., Awaitable[FetchResponse]]) -> None:
        async with asyncio.timeout(60):
            while True:  # an abort is acknowledged before its marker is in the log
                (found,) = (await ask(topic, isolation_level=1)).partitions
                assert found.error == 0
                if found.high_watermark == 12:
                    return

    asking(kafka, act)


class _Me(NamedTuple):
    me: Member | None
    proof: str = ""


def test_follower_copies_kafkas_log_over_a_diverged_or_trimmed_one(
    kafka: KafkaNode, wire: Wire, topic: Topic, tmp_path: Path
) -> None:
    """From a start with another history; and when Kafka has deleted what we were about to ask for."""
    key = TopicPartition(topic.name, 0)
    leader = BrokerRegistration(node_id=1, epoch=0, kept_since=0, listeners={"BROKERS": kafka.bootstrap})

    async def run(directory: LogDir) -> None:
        replica = Replica(directory, key, topic.topic_id, directory.log(*key))
        for _ in range(9):
            replica.log.append(encode_batch([NewRecord(value=b"ours")]), leader_epoch=0)
        state = PartitionState(replicas=(1, 2), leader=1, leader_epoch=0, isr=(Member(1, 0),))
        take_over(replica, VersionedState(state, 0), HERE, {1: leader}, 0, lag_max_ms=10_000)
        config = FetcherConfig(replica_fetch_wait_max_ms=50, replica_fetch_backoff_ms=50)
        fetcher = Fetcher(leader, "BROKERS", _Me(Member(-1, -1)), config, changes=LogChanges(THREADS), ground=Ground())
        fetcher.follow(replica)
        task = asyncio.create_task(fetcher.run())

        async def until(is_so: Callable[[], bool]) -> None:
            async with asyncio.timeout(60):
                while not is_so():
                    await asyncio.sleep(0)
                    assert not task.done()

        await until(lambda: replica.log.high_watermark == 6)
        assert replica.log.log_end_offset == 6
        assert not produce(wire, topic)
        await until(lambda: replica.log.high_watermark == 8)
        fetcher.unfollow((topic.topic_id, 0))
        await until(lambda: not fetcher.is_connected)
        assert not produce(wire, topic)
        before = [{"name": topic.name, "partitions": [{"partition_index": 0, "offset": 9}]}]
        wire.ask(ApiKey.DELETE_RECORDS, topics=before, timeout=30_000)
        fetcher.follow(replica)
        await until(lambda: (replica.log.log_start_offset, replica.log.high_watermark) == (9, 10))  # inside of a batch
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    with LogDir.open(
        str(tmp_path / "log"), create=True, hw_follows_end=False, config={"log.retention.ms": "-1"}
    ) as ours:
        ours.create_topic(topic.name)
        asyncio.run(run(ours))
        here = ours.log(*key).read(9).read()
    theirs = (kafka.log_dir / str(key) / f"{0:020}.log").read_bytes()
    assert here
    assert theirs.endswith(here)
