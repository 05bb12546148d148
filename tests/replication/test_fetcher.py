"""A follower's fetcher and a leader with real logs, over real sockets: the follower's log becomes the leader's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from seglog.net.peer_connection import PeerConnection
from seglog.protocol.framing import RequestHeader
from seglog.protocol.replica_fetch import FetchResponse
from seglog.replication.fetcher import FetcherConfig
from tests.replication.leading import FOLLOWER, Both, batch, content, topic_id

LONG = FetcherConfig(replica_fetch_wait_max_ms=60_000, replica_fetch_backoff_ms=40)
"""Whoever waits for the end of a request waits for longer than the test."""

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
    """DeleteRecords may leave such a log: an empty follower starts with the whole batch."""

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
    """The follower's log is below the leader's start, with a history whose epochs the leader no longer has."""

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
    """The leader returned its high watermark with the point of divergence, and does not repeat it after the
    truncation."""

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
    """The partition was unfollowed while its records were in flight, and is followed again before the next request."""

    async def act(both: Both) -> None:
        (leader,) = both.leader.lead("t")
        (follower,) = both.follow("t")
        both.leader.lead("other")
        both.follow("other")
        both.run()
        await both.until(lambda: len(both.leader.requests) == 2)
        take_all = both.fetcher._take_all

        async def unfollowed(link: PeerConnection, response: FetchResponse) -> None:
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


def test_who_is_followed_anew_does_not_wait_for_the_long_poll(run: Run) -> None:
    async def act(both: Both) -> None:
        both.leader.lead("t", 2)
        both.follow("t", 2)
        for disk in (both.leader.disk, both.disk):
            disk.have("u")  # to make it takes longer than is left of the request, on a slow disk
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


def test_follower_flushes_before_it_fetches_from_its_new_end(run: Run) -> None:
    """With ``flush.messages=1`` a fetch offset promises that everything before it survives a power cut."""

    async def act(both: Both) -> None:
        config = {"flush.messages": "1"}
        (leader,) = both.leader.lead("t", config=config)
        (follower,) = both.follow("t", config=config)
        asked: list[tuple[int, int]] = []

        def look(_: RequestHeader) -> None:
            for topic in both.leader.requests[-1].topics:
                asked.extend((one.fetch_offset, follower.log.recovery_point) for one in topic.partitions)

        both.leader.instead = look
        both.run()
        for _ in range(20):
            leader.append(batch())
            await both.until_asked()
        await both.until_same()
        assert max(offset for offset, _ in asked) == 20
        assert [offset for offset, flushed in asked if flushed < offset] == []

    run(act)
