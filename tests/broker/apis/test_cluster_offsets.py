"""Where in a partition of a cluster: of one that is led here, one that is followed, and one that is elsewhere."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from seglog.cluster.model import Member, PartitionState, VersionedState
from seglog.core.types import TopicPartition
from seglog.protocol.apis import ApiKey
from seglog.records.record import NewRecord, encode_batch
from seglog.replication.replica import Replica, ReplicaFetch
from seglog.replication.waiters import GrowthWaiter
from seglog.storage.directory.log_dir import LogDir
from tests.broker.cluster_desk import SOON, Desk, run
from tests.kit.log_changes import take_over

LATEST, EARLIEST = -1, -2
CONSUMER, DEBUGGING = -1, -2
ME, OTHER = Member(1, 11), Member(2, 12)


def host(desk: Desk, number: int = 0, *, leader: int = 1, records: int = 0, directory: int = 0) -> Replica:
    """A replica here of partition ``number`` of t, in epoch 4, with records of epoch 3; broker 2 has the other one."""
    topic = desk.topics.by_name["t"]
    log_dir = desk.directories[directory]
    log = log_dir.hold("t", topic.topic_id, number, {})
    replica = desk.replicas[topic.topic_id, number] = Replica(log_dir, TopicPartition("t", number), topic.topic_id, log)
    state = PartitionState(replicas=(1, 2), leader=1, leader_epoch=3, isr=(ME, OTHER))
    take_over(replica, VersionedState(state, 0), ME, desk.view.brokers, 0, lag_max_ms=10_000)
    for _ in range(records):
        replica.append(encode_batch([NewRecord(value=b"v", timestamp=1000)]))
    state = PartitionState(replicas=(1, 2), leader=leader, leader_epoch=4, isr=(ME, OTHER))
    take_over(replica, VersionedState(state, 1), ME, desk.view.brokers, 0, lag_max_ms=10_000)
    return replica


def fetched(desk: Desk, replica: Replica, offset: int, log_start: int = 0) -> None:
    """Broker 2 has everything below ``offset``."""
    last = replica.log.epochs.latest if offset else -1
    asked = ReplicaFetch(2, 12, replica.leader_epoch, offset, last, log_start, 1 << 20)
    replica.serve_replica(asked, desk.view.brokers, 1)


async def offset(
    desk: Desk, timestamp: int = LATEST, number: int = 0, *, replica: int = CONSUMER, epoch: int = -1, version: int = 11
) -> tuple[int, int]:
    """Code, and offset."""
    asked = {"partition_index": number, "timestamp": timestamp, "current_leader_epoch": epoch}
    fields: dict[str, Any] = {"timeout": 1000} if version >= 10 else {}
    answer = await desk.ask(
        ApiKey.LIST_OFFSETS,
        version,
        replica_id=replica,
        isolation_level=0,
        topics=[{"name": "t", "partitions": [asked]}],
        **fields,
    )
    (one,) = answer.topics[0].partitions
    return one.error_code, one.offset


def test_only_the_leader_answers(tmp_path: Path) -> None:
    async def work(desk: Desk) -> None:
        await desk.create("t", partitions=3, factor=2)
        host(desk, 0, leader=2, records=3)
        host(desk, 1, leader=1)
        assert await offset(desk, number=0) == (6, -1)
        assert await offset(desk, number=0, replica=DEBUGGING) == (0, 3)
        assert await offset(desk, number=1) == (0, 0)
        assert await offset(desk, number=2) == (6, -1)
        assert await offset(desk, number=3) == (3, -1)
        assert await offset(desk, number=0, epoch=3) == (74, -1)
        assert await offset(desk, number=0, epoch=5) == (75, -1)
        assert await offset(desk, number=1, epoch=3) == (74, -1)

    run(tmp_path, work)


def test_a_new_leader_does_not_say_what_is_committed_before_it_knows(tmp_path: Path) -> None:
    """KIP-207: its high watermark may be behind the one that the last leader returned."""

    async def work(desk: Desk) -> None:
        await desk.create("t", factor=2)
        replica = host(desk, records=3)
        assert await offset(desk) == (78, -1)
        assert await offset(desk, version=4) == (5, -1)
        assert await offset(desk, timestamp=1000) == (78, -1)
        assert await offset(desk, timestamp=5000) == (78, -1)
        assert await offset(desk, EARLIEST) == (0, 0)
        assert await offset(desk, replica=2) == (0, 3)  # a replica asks for the end of the log
        fetched(desk, replica, 3)
        assert await offset(desk) == (0, 3)
        replica.append(encode_batch([NewRecord(value=b"v", timestamp=5000)]))
        assert await offset(desk) == (0, 3)
        assert await offset(desk, timestamp=1000) == (0, 0)
        assert await offset(desk, timestamp=5000) == (0, -1)
        assert await offset(desk, timestamp=5000, replica=2) == (0, 3)

    run(tmp_path, work)


def test_epochs_are_asked_of_the_leader(tmp_path: Path) -> None:
    async def work(desk: Desk) -> None:
        await desk.create("t", partitions=3, factor=2)
        host(desk, 0, records=3)
        host(desk, 1, leader=2, records=3)

        async def end(number: int, leader_epoch: int, current: int = -1) -> tuple[int, int, int]:
            asked = {"partition": number, "current_leader_epoch": current, "leader_epoch": leader_epoch}
            topics = [{"topic": "t", "partitions": [asked]}]
            answer = await desk.ask(ApiKey.OFFSET_FOR_LEADER_EPOCH, replica_id=2, topics=topics)
            (one,) = answer.topics[0].partitions
            return one.error_code, one.leader_epoch, one.end_offset

        assert await end(0, 3) == (0, 3, 3)
        assert await end(0, 4, 4) == (0, 4, 3)
        assert await end(0, 4, 3) == (74, -1, -1)
        assert await end(1, 3) == (6, -1, -1)
        assert await end(2, 3) == (6, -1, -1)
        assert await end(9, 3) == (3, -1, -1)

    run(tmp_path, work)


def test_records_are_deleted_when_the_followers_have_forgotten_them(tmp_path: Path) -> None:
    async def work(desk: Desk) -> None:
        await desk.create("t", partitions=2, factor=2)
        replica = host(desk, records=3)
        fetched(desk, replica, 3)
        host(desk, 1, leader=2, records=3)

        async def delete(before: int, timeout: int, number: int = 0) -> tuple[int, int]:
            topics = [{"name": "t", "partitions": [{"partition_index": number, "offset": before}]}]
            answer = await desk.ask(ApiKey.DELETE_RECORDS, topics=topics, timeout=timeout)
            (one,) = answer.topics[0].partitions
            return one.error_code, one.low_watermark

        assert await delete(2, 0) == (7, 0)
        assert replica.log.log_start_offset == 2
        waiting = asyncio.ensure_future(delete(2, 60_000))
        await asyncio.sleep(0)
        fetched(desk, replica, 3, log_start=2)
        assert await waiting == (0, 2)
        assert await delete(2, 60_000, number=1) == (6, -1)
        waiting = asyncio.ensure_future(delete(3, 60_000))
        await desk.dies(2)  # who is gone is not waited for
        assert await waiting == (0, 3)

    run(tmp_path, work)


def test_directories_are_described_one_by_one(tmp_path: Path) -> None:
    async def work(desk: Desk) -> None:
        with LogDir.open(tmp_path / "more", hw_follows_end=False) as more:
            desk.directories.append(more)
            await desk.create("t", partitions=3, factor=2)
            host(desk, 0, records=3)
            host(desk, 1, directory=1)

            async def described(topics: Any = None) -> list[tuple[str, int, list[int]]]:
                answer = await desk.ask(ApiKey.DESCRIBE_LOG_DIRS, topics=topics)
                return [
                    (
                        os.path.basename(one.log_dir),
                        one.error_code,
                        [partition.partition_index for topic in one.topics for partition in topic.partitions],
                    )
                    for one in answer.results
                ]

            assert await described() == [("1", 0, [0]), ("more", 0, [1])]
            assert await described([{"topic": "t", "partitions": [1]}]) == [("1", 0, []), ("more", 0, [1])]
            more.health.failed(OSError("the disk is broken"))
            desk.lost += [more.path, "/never/opened"]
            assert await described() == [("1", 0, [0]), ("more", 56, []), ("opened", 56, [])]

    run(tmp_path, work)


def test_a_replica_stays_in_its_directory(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The codes are Kafka's (AlterReplicaLogDirs), except for 42: Kafka would move the replica."""

    async def work(desk: Desk) -> None:
        with LogDir.open(tmp_path / "more", hw_follows_end=False) as more:
            desk.directories.append(more)
            await desk.create("t", partitions=3, factor=2)
            host(desk, 0)
            first = desk.directories[0].path

            async def move(path: str, *numbers: int, topic: str = "t", version: int = 2) -> list[tuple[int, int]]:
                asked = [{"path": path, "topics": [{"name": topic, "partitions": list(numbers)}]}]
                answer = await desk.ask(ApiKey.ALTER_REPLICA_LOG_DIRS, version, dirs=asked)
                return [(one.partition_index, one.error_code) for topic in answer.results for one in topic.partitions]

            assert await move(first, 0) == await move(first, 0, version=1) == [(0, 0)]
            assert await move(first, 1, 9) == [(1, 9), (9, 3)]
            assert await move(first, 0, topic="u") == [(0, 3)]
            assert await move("/nowhere", 0, 9) == [(0, 57), (9, 57)]
            assert await move("relative", 0) == [(0, 57)]
            caplog.set_level("INFO")
            assert await move(more.path, 0) == [(0, 42)]
            assert "t-0 stays where it is" in caplog.text
            twice = [{"path": path, "topics": [{"name": "t", "partitions": [0]}]} for path in (more.path, first)]
            (topic,) = (await desk.ask(ApiKey.ALTER_REPLICA_LOG_DIRS, dirs=twice)).results
            assert [one.error_code for one in topic.partitions] == [0]
            more.health.failed(OSError("the disk is broken"))
            desk.lost.append("/lost")
            assert await move(more.path, 0) == await move("/lost", 0) == [(0, 56)]

    run(tmp_path, work)


def test_who_waits_for_a_deleted_topic_is_woken(tmp_path: Path) -> None:
    async def work(desk: Desk, other: Desk) -> None:
        await desk.create("t", factor=2)
        replica = host(desk)
        waiter = GrowthWaiter(1, SOON)
        replica.waiters[waiter] = None
        assert await other.view.until(lambda: "t" in other.topics.by_name, SOON)
        await other.changes.delete(other.topics.by_name["t"])
        assert await waiter.wait()

    run(tmp_path, work, desks=2)
