"""A fetcher and errors of a partition, its leader, an answer or its own disk."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from uuid import UUID

import pytest

from seglog.net.connection import Reply
from seglog.protocol.apis import ApiKey
from seglog.protocol.fetch import FetchedPartition, FetchedTopic, write_fetch
from seglog.protocol.framing import RequestHeader
from seglog.protocol.messages import Message
from seglog.replication.replica import Replica
from tests.replication.logs import batch
from tests.replication.pair import FOLLOWER, LEADER, Pair, Topic, reply

FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH = 74, 75


@contextmanager
def refused(pair: Pair, topic: Topic, error: int) -> Iterator[None]:
    """Requests for partition 1 return an error meanwhile: epochs by what the brokers know, others by the test."""
    if error in (FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH):
        knows = pair.leader if error == FENCED_LEADER_EPOCH else pair.follower
        with pair.unaware(FOLLOWER if error == FENCED_LEADER_EPOCH else LEADER):
            pair.elect(topic.topic_id, LEADER, 1, epoch=5)
            pair.until(lambda: knows.replica(topic.topic_id, 1).leader_epoch == 5)
            yield
    else:
        with pair.instead(lambda header: refuse(pair, topic, header, error)):
            yield


def refuse(pair: Pair, topic: Topic, header: RequestHeader, error: int) -> bytes | None:
    request = pair.leader.requests[-1]
    named = [partition.partition for one in request.topics for partition in one.partitions]
    if 1 not in named:
        return None
    answered = [FetchedPartition(number, error if number else 0, 0, 0, 0) for number in named]
    session_id = request.session_id or 7
    return reply(header, fetch_body([FetchedTopic(topic.topic_id, answered)], session_id))


def fetch_body(topics: list[FetchedTopic], session_id: int = 0, error: int = 0) -> bytes:
    parts = write_fetch(17, topics, session_id=session_id, error=error).parts
    return b"".join(part for part in parts if isinstance(part, bytes))


@pytest.mark.parametrize("error", [FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH, 6, 56, 100, 3, 9, -1])
def test_a_partition_with_an_error_waits_alone(pair: Pair, error: int) -> None:
    topic = pair.led("t", 2)
    leaders, followers = topic.leaders, topic.followers
    pair.until_same()
    with refused(pair, topic, error):
        pair.until(lambda: leaders[1].leads)
        pair.append(leaders[1])
        for _ in range(2):
            pair.append(leaders[0])
            pair.until(lambda: followers[0].log.high_watermark == leaders[0].log.log_end_offset)
        assert followers[1].log.log_end_offset == 0
    pair.lead(topic, 1, epoch=6)
    pair.append(leaders[1])
    pair.until_same()


def test_a_partition_with_an_error_is_left_out_while_it_waits(pair: Pair) -> None:
    topic = pair.make("t", 2)
    with pair.unaware(FOLLOWER):
        pair.lead(topic)
    pair.until_asked()
    with refused(pair, topic, FENCED_LEADER_EPOCH):
        before = len(pair.leader.requests)
        pair.until(lambda: len(pair.leader.requests) == before + 12)
        requests = pair.leader.requests[before:]
        forgotten = [1 for one in requests if one.forgotten_topics_data]
        named = [1 for one in requests if _names(one, 1)]
        assert len(named) - 1 <= len(forgotten) <= len(named) + 1
        assert 1 < len(named) <= 7


def _names(request: Message, number: int) -> bool:
    return any(partition.partition == number for topic in request.topics for partition in topic.partitions)


def test_a_leader_that_comes_and_goes(pair: Pair) -> None:
    topic = pair.led("t")
    (leader,) = topic.leaders
    for _ in range(3):
        pair.append(leader, batch(5_000))
        pair.until_same()
        for end in pair.ends(FOLLOWER, LEADER):
            pair.network.cut(end)
        pair.append(leader)
        pair.until_same()
        pair.append(leader)
        pair.leader.kill()
        pair.until(lambda: not pair.is_fetching)
        pair.run(1.0)
        pair.leader.start()
        pair.until(lambda: pair.leader.is_up)
        pair.put(topic.topic_id, lambda state: replace(state, isr=pair.members, leader_epoch=state.leader_epoch + 1))
        topic.leaders[0] = leader = pair.leader.replica(topic.topic_id)
        pair.until_same()


@pytest.mark.parametrize("what", ["serve_replica", "take"])
def test_unforeseen_error_affects_only_its_partition(pair: Pair, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    topic = pair.make("t", 3)
    real = getattr(Replica, what)

    def fails(replica: Replica, *arguments: object) -> object:
        if replica.topic_partition.partition == 0:
            raise ValueError("what nobody has foreseen")
        return real(replica, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Replica, what, fails)
        for one in pair.lead(topic):
            pair.append(one)
        pair.until(lambda: [one.log.log_end_offset for one in topic.followers] == [0, 1, 1])
        assert pair.is_fetching
    pair.until_same()


def test_a_disk_that_fails_ends_following(pair: Pair) -> None:
    topic = pair.led("t", 2)
    leaders, followers = topic.leaders, topic.followers
    pair.until_same()
    followers[1].log.close()
    for one in leaders:
        pair.append(one)
    pair.until(lambda: followers[0].log.log_end_offset == 1)
    pair.append(leaders[0])
    pair.until(lambda: followers[0].log.log_end_offset == 2)
    (forgotten,) = (one for request in pair.leader.requests for one in request.forgotten_topics_data)
    assert list(forgotten.partitions) == [1]


def _body(partitions: list[FetchedPartition], name: str = "t", session_id: int = 7, error: int = 0) -> bytes:
    topic_id = UUID(int=int.from_bytes(name.encode(), "big"))
    return fetch_body([FetchedTopic(topic_id, partitions)], session_id, error)


HOSTILE = {
    "nothing": b"",
    "cut": _body([FetchedPartition(0)])[:-3],
    "behind": _body([FetchedPartition(0)]) + b"\0",
    "other partition": _body([FetchedPartition(0), FetchedPartition(9)]),
    "other topic": _body([FetchedPartition(0)], name="u"),
    "none of what was asked": fetch_body([], 7),
    "an error": fetch_body([], 0, error=77),
    "a session that never was": fetch_body([], 0, error=70),
    "millions": bytes(10) + b"\xff\xff\xff\xff\x0f",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_an_answer_that_is_none(pair: Pair, name: str, caplog: pytest.LogCaptureFixture) -> None:
    """One clear log line, the connection is closed, and the next one works."""
    topic = pair.make("t")
    answered: list[int] = []

    def instead(header: RequestHeader) -> bytes | None:
        if len(answered) == 3:
            return None
        answered.append(header.key)
        return reply(header, HOSTILE[name])

    with pair.instead(instead):
        (leader,) = pair.lead(topic)
        pair.append(leader)
        pair.until_same()
    assert answered == [ApiKey.FETCH] * 3
    assert len([record for record in caplog.records if record.name == "seglog.replication"]) == 1


def test_records_that_are_none(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    """The batch is damaged on the way: it is not appended, and is fetched again."""
    topic = pair.make("t")
    (follower,) = topic.followers
    with pair.unaware(FOLLOWER):
        (leader,) = pair.lead(topic)
        pair.append(leader)
        file = leader.log.active.log
        good = file.pread(1, 70)
        file.pwrite(bytes([good[0] ^ 1]), 70)
    pair.until(lambda: any("t-0" in record.getMessage() for record in caplog.records))
    assert follower.log.log_end_offset == 0
    file.pwrite(good, 70)
    pair.until_same()


@pytest.mark.parametrize("pair", [{"replica.socket.timeout.ms": "50"}], indirect=True)
def test_slow_answers_and_a_leader_that_says_nothing(pair: Pair) -> None:
    topic = pair.led("t", 2)
    asked: list[int] = []

    async def nothing() -> Reply:
        await asyncio.Event().wait()
        return None

    def instead(header: RequestHeader) -> Reply | Awaitable[Reply]:
        asked.append(header.key)
        return nothing() if len(asked) == 2 else None

    pair.leader.instead = instead
    pair.append(topic.leaders[0])
    pair.until(lambda: len(asked) > 2)
    pair.until_same()
