"""A follower's fetcher and a leader with real logs, over real sockets: the follower's log becomes the leader's."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from seglog.net.connection import Reply
from seglog.net.dial import Link
from seglog.protocol.apis import ApiKey
from seglog.protocol.fetch import FetchedPartition, FetchedTopic, write_fetch
from seglog.protocol.framing import RequestHeader
from seglog.protocol.messages import Message
from seglog.protocol.replica_fetch import FetchResponse
from seglog.replication.fetcher import FetcherConfig
from seglog.replication.replica import Replica
from tests.replication.leading import FOLLOWER, QUICK, Both, batch, content, replicating, reply, topic_id

LONG = FetcherConfig(replica_fetch_wait_max_ms=60_000, replica_fetch_backoff_ms=40)
"""Whoever waits for the end of a request waits for longer than the test."""


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., None]:
    def do(act: Callable[[Both], Awaitable[None]], config: FetcherConfig = QUICK) -> None:
        async def within() -> None:
            async with replicating(tmp_path, config) as both:
                await act(both)

        asyncio.run(within())

    return do


Run = Callable[..., None]


def test_the_log_of_the_leader(run: Run) -> None:
    async def act(both: Both) -> None:
        leaders = both.leader.lead("t", 3)
        for _ in range(5):
            leaders[0].append(batch(), needs_all=True)
        leaders[1].append(batch(3 << 20))  # more than replica.fetch.max.bytes: comes whole
        both.follow("t", 3)
        both.run()
        await both.until_same()
        for number in range(50):
            leaders[number % 3].append(batch(1_000))
            if number % 10 == 0:
                await both.until_same()
        await both.until_same()
        assert leaders[0].log.high_watermark == leaders[0].log.log_end_offset  # the leader knows
        assert both.fetcher.is_connected
        assert len(both.fetcher) == 3

    run(act)


def test_only_what_has_changed_is_named(run: Run) -> None:
    async def act(both: Both) -> None:
        leaders = both.leader.lead("t", 20)
        both.follow("t", 20)
        both.run()
        await both.until(lambda: len(both.leader.requests) > 3)
        before = len(both.leader.requests)
        leaders[7].append(batch())
        await both.until_same()
        named = [
            (partition.partition, partition.fetch_offset)
            for request in both.leader.requests[before:]
            for topic in request.topics
            for partition in topic.partitions
        ]
        assert named == [(7, 1)]
        first, *others = both.leader.requests
        assert sum(len(topic.partitions) for topic in first.topics) == 20
        assert (first.session_id, first.session_epoch) == (0, 0)
        assert [one.session_epoch for one in others] == list(range(1, len(others) + 1))
        state = others[-1].replica_state
        assert (state.replica_id, state.replica_epoch) == (FOLLOWER.node_id, FOLLOWER.epoch)

    run(act)


def test_a_session_that_is_forgotten_begins_anew(run: Run) -> None:
    async def act(both: Both) -> None:
        (leader,) = both.leader.lead("t")
        both.follow("t")
        both.run()
        for _ in range(3):
            leader.append(batch())
            await both.until_same()
            both.leader.forget()
        assert [one.session_epoch for one in both.leader.requests].count(0) >= 3

    run(act)


def test_what_is_unfollowed_is_forgotten(run: Run) -> None:
    async def act(both: Both) -> None:
        leaders = both.leader.lead("t", 2)
        followers = both.follow("t", 2)
        for one in leaders:
            one.append(batch())
        both.run()
        await both.until_same()
        both.fetcher.unfollow((topic_id("t"), 1))
        both.fetcher.unfollow((topic_id("other"), 1))
        leaders[1].append(batch())
        leaders[0].append(batch())
        await both.until(lambda: followers[0].log.high_watermark == 2)
        assert followers[1].log.log_end_offset == 1
        forgotten = [topic for one in both.leader.requests for topic in one.forgotten_topics_data]
        assert [(topic.topic_id, list(topic.partitions)) for topic in forgotten] == [(topic_id("t"), [1])]
        both.fetcher.unfollow((topic_id("t"), 0))
        await both.until(lambda: not both.fetcher.is_connected)
        both.fetcher.follow(followers[1])
        both.fetcher.follow(followers[0])
        await both.until_same()

    run(act)


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
    """Partition 1 has an error in whatever is asked about it."""
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


def test_it_cuts_what_the_leader_has_not(run: Run) -> None:
    async def act(both: Both) -> None:
        (follower,) = both.disk.have("t")
        (leader,) = both.leader.disk.have("t")
        for one, epoch in ((leader, 1), (follower, 1), (follower, 2), (leader, 3)):
            for _ in range(3):
                one.log.append(batch(), leader_epoch=epoch)
        both.leader.lead("t", epoch=4)
        both.follow("t", epoch=4)
        both.run()
        await both.until_same()
        assert follower.log.epochs.latest == 3
        leader.append(batch())
        await both.until_same()
        assert follower.log.epochs.latest == 4

    run(act)


@pytest.mark.parametrize("where", ["before", "behind"])
def test_a_log_that_ends_where_the_leader_has_nothing(run: Run, where: str) -> None:
    async def act(both: Both) -> None:
        (follower,) = both.disk.have("t")
        (leader,) = both.leader.disk.have("t")
        for _ in range(3):
            follower.log.append(batch(), leader_epoch=1)
            leader.log.append(batch(), leader_epoch=1)
        both.leader.lead("t", epoch=1)
        if where == "before":
            both.leader.disk.directory.truncate_fully_and_start_at("t", 0, 100)
            leader.append(batch())
        else:
            both.leader.disk.directory.truncate_fully_and_start_at("t", 0, 1)
        both.follow("t", epoch=1)
        both.run()
        await both.until(lambda: follower.log.log_end_offset == leader.log.log_end_offset)
        leader.append(batch())
        await both.until(lambda: follower.log.log_end_offset == leader.log.log_end_offset)
        if where == "before":
            assert follower.log.log_start_offset == 100
            assert content(follower) == content(leader)

    run(act)


def test_a_log_that_begins_inside_of_a_batch(run: Run) -> None:
    """As DeleteRecords may leave it: a follower with nothing begins with all of that batch."""

    async def act(both: Both) -> None:
        (leader,) = both.leader.lead("t")
        for _ in range(2):
            leader.append(batch(records=4))
        leader.log.update_high_watermark(8)
        both.leader.disk.directory.delete_records("t", 0, 6)
        (follower,) = both.follow("t")
        both.run()
        await both.until(lambda: follower.log.high_watermark == 8)
        assert follower.log.log_start_offset == 6
        assert content(follower) == content(leader)[len(batch(records=4)) :]

    run(act)


def test_a_log_that_ends_inside_of_the_leaders_first_batch(run: Run) -> None:
    """What it has is below the leader's start, and of a history of which the leader has no epochs any more."""

    async def act(both: Both) -> None:
        (follower,) = both.disk.have("t")
        for _ in range(6):
            follower.log.append(batch(), leader_epoch=0)
        (leader,) = both.leader.lead("t")
        for _ in range(2):
            leader.append(batch(records=4))
        leader.log.update_high_watermark(8)
        both.leader.disk.directory.delete_records("t", 0, 6)
        both.follow("t")
        both.run()
        await both.until(lambda: follower.log.high_watermark == 8)
        assert content(follower) == content(leader)[len(batch(records=4)) :]

    run(act)


def test_no_news_is_news_for_a_new_question(run: Run) -> None:
    """The high watermark was told with where the logs go apart, and is not told again when we have cut ours."""

    async def act(both: Both) -> None:
        (follower,) = both.disk.have("t")
        (leader,) = both.leader.disk.have("t")
        for one, times in ((leader, 3), (follower, 5)):
            for _ in range(times):
                one.log.append(batch(), leader_epoch=1)
        leader.log.update_high_watermark(3)
        both.leader.lead("t", epoch=1)
        both.follow("t", epoch=1)
        both.run()
        await both.until_asked()
        await both.until(lambda: follower.log.log_end_offset == 3)
        count = len(both.leader.requests)
        await both.until(lambda: follower.log.high_watermark == 3)
        assert len(both.leader.requests) <= count + 1

    run(act, FetcherConfig(replica_fetch_wait_max_ms=200))


def test_what_was_not_taken_is_asked_for_again(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was unfollowed while its records were on their way, and is followed again before the next request."""

    async def act(both: Both) -> None:
        (leader,) = both.leader.lead("t")
        (follower,) = both.follow("t")
        both.leader.lead("other")
        both.follow("other")
        both.run()
        await both.until(lambda: len(both.leader.requests) == 2)
        take_all = both.fetcher._take_all

        async def unfollowed(link: Link, response: FetchResponse) -> None:
            both.fetcher.unfollow((topic_id("t"), 0))
            await take_all(link, response)
            both.fetcher.follow(follower)

        monkeypatch.setattr(both.fetcher, "_take_all", unfollowed)
        leader.append(batch())
        await both.until(lambda: len(both.leader.requests) == 3)
        assert follower.log.log_end_offset == 0
        monkeypatch.undo()
        await both.until_same()

    run(act)


def test_records_that_are_deleted_go_here_too(run: Run) -> None:
    async def act(both: Both) -> None:
        (leader,) = both.leader.lead("t")
        (follower,) = both.follow("t")
        both.run()
        for _ in range(4):
            leader.append(batch())
        await both.until_same()
        both.leader.disk.directory.delete_records("t", 0, 3)
        await both.until(lambda: follower.log.log_start_offset == 3)

    run(act)


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


def test_who_is_followed_anew_does_not_wait_for_the_long_poll(run: Run) -> None:
    async def act(both: Both) -> None:
        both.leader.lead("t", 2)
        both.follow("t", 2)
        both.run()
        await both.until(lambda: any(one.max_wait > 50 for one in both.leader.requests))
        sessions = len(both.leader.sessions)
        (new,) = both.leader.lead("u")
        new.append(batch())
        both.follow("u")
        await both.until_same()
        assert len(both.leader.sessions) == sessions  # the former one is not left behind
        full = [one for one in both.leader.requests if one.session_epoch == 0]
        assert len(full) == 2
        for replica in both.disk.replicas.values():  # nothing is new: nothing is interrupted
            both.fetcher.follow(replica)
        await both.until(lambda: both.leader.requests[-1].max_wait > 50)
        assert len([one for one in both.leader.requests if one.session_epoch == 0]) == 2

    run(act, FetcherConfig(replica_fetch_wait_max_ms=400, replica_fetch_backoff_ms=40))


def test_while_more_may_follow_requests_wait_less(run: Run) -> None:
    async def act(both: Both) -> None:
        both.leader.lead("t", 6)
        followers = both.disk.have("t", 6)
        both.run()
        for replica in followers:
            both.disk.apply(replica, both.leader.disk.me, 0)
            both.fetcher.follow(replica)
            await both.until_asked()
        assert {one.max_wait for one in both.leader.requests} == {50}
        assert [one.session_epoch for one in both.leader.requests].count(0) == 1

    run(act, LONG)


def test_nobody_asks_before_he_is_somebody(run: Run) -> None:
    async def act(both: Both) -> None:
        (leader,) = both.leader.lead("t")
        leader.append(batch())
        both.me = None
        both.follow("t")
        both.run()
        for _ in range(50):
            await asyncio.sleep(0)
        assert not both.leader.requests
        both.me = FOLLOWER
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
    """One clear line, the connection is closed, and all is well with the next one."""

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
    """Damage on the way: the batch is not taken, and asked for again."""

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
