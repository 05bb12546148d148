"""A fetcher and errors of a partition, its leader, an answer or its own disk."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from seglog.net.connection import Reply
from seglog.protocol.apis import ApiKey
from seglog.protocol.fetch import FetchedPartition, FetchedTopic, write_fetch
from seglog.protocol.framing import RequestHeader
from seglog.protocol.messages import Message
from seglog.replication.fetcher import FetcherConfig
from seglog.replication.replica import Replica
from tests.replication.leading import FOLLOWER, Both, batch, reply, topic_id

Run = Callable[..., None]


@pytest.mark.parametrize("error", [74, 75, 6, 56, 100, 3, 9, -1])
def test_a_partition_with_an_error_waits_alone(run: Run, error: int) -> None:
    async def act(both: Both) -> None:
        leaders = both.leader.lead("t", 2)
        followers = both.follow("t", 2)
        if error == 74:
            both.leader.disk.apply(leaders[1], FOLLOWER, 3)  # it follows itself, and in another epoch
        elif error == 75:
            both.disk.apply(followers[1], both.leader.disk.me, 5)
            both.fetcher.follow(followers[1])
        else:
            both.leader.instead = lambda header: refuse(both, header, error)
        leaders[0].append(batch())
        both.run()
        await both.until(lambda: followers[0].log.high_watermark == 1)
        leaders[0].append(batch())
        await both.until(lambda: followers[0].log.high_watermark == 2)
        assert followers[1].log.log_end_offset == 0
        both.leader.instead = lambda _: None
        both.leader.disk.apply(leaders[1], both.leader.disk.me, 6)
        leaders[1].append(batch())
        both.disk.apply(followers[1], both.leader.disk.me, 6)
        both.fetcher.follow(followers[1])
        await both.until_same()

    run(act)


def test_a_partition_with_an_error_is_left_out_while_it_waits(run: Run) -> None:
    async def act(both: Both) -> None:
        leaders = both.leader.lead("t", 2)
        both.follow("t", 2)
        both.leader.disk.apply(leaders[1], FOLLOWER, 3)  # our epoch is over there
        both.run()
        await both.until(lambda: len(both.leader.requests) == 12)
        forgotten = [1 for one in both.leader.requests if one.forgotten_topics_data]
        named = [1 for one in both.leader.requests if _names(one, 1)]
        assert len(named) - 1 <= len(forgotten) <= len(named)
        assert len(named) <= 7

    run(act)


def _names(request: Message, number: int) -> bool:
    return any(partition.partition == number for topic in request.topics for partition in topic.partitions)


def refuse(both: Both, header: RequestHeader, error: int) -> Reply:
    """Every request about partition 1 returns an error."""
    request = both.leader.requests[-1]
    named = [partition.partition for topic in request.topics for partition in topic.partitions]
    if 1 not in named:
        return None
    answered = [FetchedPartition(number, error if number else 0, 0, 0, 0) for number in named]
    session = both.leader.sessions.open(has_ids=True) if request.session_epoch == 0 else None
    if session is not None:
        session.partitions.clear()
    session_id = request.session_id if session is None else session.session_id
    return reply(header, write_fetch_bytes([FetchedTopic(topic_id("t"), answered)], session_id))


def write_fetch_bytes(topics: list[FetchedTopic], session_id: int = 0, error: int = 0) -> bytes:
    parts = write_fetch(17, topics, session_id=session_id, error=error).parts
    return b"".join(part for part in parts if isinstance(part, bytes))


def test_a_leader_that_comes_and_goes(run: Run) -> None:
    async def act(both: Both) -> None:
        (leader,) = both.leader.lead("t")
        both.follow("t")
        both.run()
        for _ in range(3):
            leader.append(batch(5_000))
            await both.until_same()
            both.leader.cut()
            leader.append(batch())
            await both.until_same()
            await both.leader.stop()
            await both.until(lambda: not both.fetcher.is_connected)
            leader.append(batch())
            await both.leader.start()
            await both.until_same()

    run(act)


@pytest.mark.parametrize("what", ["serve_replica", "take"])
def test_what_nobody_has_foreseen_of_one_partition_is_that_partitions_alone(
    run: Run, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    async def act(both: Both) -> None:
        leaders, followers = both.leader.lead("t", 3), both.follow("t", 3)
        real = getattr(Replica, what)

        def fails(replica: Replica, *arguments: object) -> object:
            if replica.topic_partition.partition == 0:
                raise ValueError("what nobody has foreseen")
            return real(replica, *arguments)

        for one in leaders:
            one.append(batch())
        with monkeypatch.context() as patch:
            patch.setattr(Replica, what, fails)
            both.run()
            await both.until(lambda: [one.log.log_end_offset for one in followers] == [0, 1, 1])
            assert both.task is not None
            assert not both.task.done()
            assert both.fetcher.is_connected
        await both.until_same()

    run(act)


def test_a_disk_that_fails_ends_following(run: Run) -> None:
    async def act(both: Both) -> None:
        leaders = both.leader.lead("t", 2)
        followers = both.follow("t", 2)
        followers[1].log.close()
        both.run()
        for one in leaders:
            one.append(batch())
        await both.until(lambda: len(both.fetcher) == 1 and followers[0].log.log_end_offset == 1)
        leaders[0].append(batch())
        await both.until(lambda: followers[0].log.log_end_offset == 2)

    run(act)


def _body(partitions: list[FetchedPartition], name: str = "t", session_id: int = 7, error: int = 0) -> bytes:
    return write_fetch_bytes([FetchedTopic(topic_id(name), partitions)], session_id, error)


HOSTILE = {
    "nothing": b"",
    "cut": _body([FetchedPartition(0)])[:-3],
    "behind": _body([FetchedPartition(0)]) + b"\0",
    "other partition": _body([FetchedPartition(0), FetchedPartition(9)]),
    "other topic": _body([FetchedPartition(0)], name="u"),
    "none of what was asked": write_fetch_bytes([], 7),
    "an error": write_fetch_bytes([], 0, error=77),
    "a session that never was": write_fetch_bytes([], 0, error=70),
    "millions": bytes(10) + b"\xff\xff\xff\xff\x0f",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_an_answer_that_is_none(run: Run, name: str, caplog: pytest.LogCaptureFixture) -> None:
    """One clear log line, the connection is closed, and the next one works."""

    async def act(both: Both) -> None:
        (leader,) = both.leader.lead("t")
        leader.append(batch())
        answered: list[int] = []

        def instead(header: RequestHeader) -> Reply:
            if len(answered) == 3:
                return None
            answered.append(header.key)
            return reply(header, HOSTILE[name])

        both.leader.instead = instead
        both.follow("t")
        both.run()
        await both.until_same()
        assert answered == [ApiKey.FETCH] * 3
        assert len([record for record in caplog.records if record.name == "seglog.replication"]) == 1

    run(act)


def test_records_that_are_none(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    """The batch is damaged on the way: it is not appended, and is fetched again."""

    async def act(both: Both) -> None:
        (leader,) = both.leader.lead("t")
        leader.append(batch())
        (follower,) = both.follow("t")
        file = leader.log.active.log
        good = file.pread(1, 70)
        file.pwrite(bytes([good[0] ^ 1]), 70)
        both.run()
        await both.until(lambda: any("t-0" in record.getMessage() for record in caplog.records))
        assert follower.log.log_end_offset == 0
        file.pwrite(good, 70)
        await both.until_same()

    run(act)


def test_slow_answers_and_a_leader_that_says_nothing(run: Run) -> None:
    async def act(both: Both) -> None:
        leaders = both.leader.lead("t", 2)
        silent = asyncio.Event()
        asked: list[int] = []

        async def nothing() -> Reply:
            await silent.wait()
            return None

        def instead(header: RequestHeader) -> Reply | Awaitable[Reply]:
            asked.append(header.key)
            return nothing() if len(asked) == 2 else None

        both.leader.instead = instead
        both.follow("t", 2)
        both.run()
        leaders[0].append(batch())
        await both.until_same()
        assert len(asked) > 2

    run(act, FetcherConfig(replica_fetch_wait_max_ms=30, replica_socket_timeout_ms=50))
