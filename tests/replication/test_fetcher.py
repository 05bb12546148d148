"""A follower's fetcher and its leader, in brokers as they ship: the follower's log becomes the leader's."""

from __future__ import annotations

from dataclasses import replace

import pytest

from seglog.cluster.model import NO_LEADER
from seglog.net.peer_connection import PeerConnection
from seglog.protocol.framing import RequestHeader
from seglog.protocol.replica_fetch import FetchResponse
from seglog.replication.fetcher import Fetcher
from tests.replication.logs import batch, content
from tests.replication.pair import FOLLOWER, LEADER, Pair


def test_the_log_of_the_leader(pair: Pair) -> None:
    topic = pair.make("t", 3)
    with pair.unaware(FOLLOWER):
        leaders = pair.lead(topic)
        for _ in range(5):
            pair.append(leaders[0], needs_all=True)
        pair.append(leaders[1], batch(3 << 20))  # more than replica.fetch.max.bytes: comes whole
    pair.until_same()
    for number in range(50):
        pair.append(leaders[number % 3], batch(1_000))
        if number % 10 == 0:
            pair.until_same()
    pair.until_same()
    assert leaders[0].log.high_watermark == leaders[0].log.log_end_offset  # the leader knows
    assert pair.is_fetching


def test_only_what_has_changed_is_named(pair: Pair) -> None:
    leaders = pair.led("t", 20).leaders
    pair.until(lambda: len(pair.leader.requests) > 3)
    before = len(pair.leader.requests)
    pair.append(leaders[7])
    pair.until_same()
    named = [
        (partition.partition, partition.fetch_offset)
        for request in pair.leader.requests[before:]
        for topic in request.topics
        for partition in topic.partitions
    ]
    assert named == [(7, 1)]
    first, *others = pair.leader.requests
    assert sum(len(topic.partitions) for topic in first.topics) == 20
    assert (first.session_id, first.session_epoch) == (0, 0)
    assert [one.session_epoch for one in others] == list(range(1, len(others) + 1))
    state = others[-1].replica_state
    assert (state.replica_id, state.replica_epoch) == pair.follower.me


def test_a_session_that_is_forgotten_begins_anew(pair: Pair) -> None:
    (leader,) = pair.led("t").leaders
    for _ in range(3):
        pair.append(leader)
        pair.until_same()
        pair.forget_session()
    pair.until_asked()
    assert [one.session_epoch for one in pair.leader.requests].count(0) >= 3


def test_unfollowed_partition_is_dropped_from_the_fetch_session(pair: Pair) -> None:
    topic = pair.led("t", 2)
    leaders, followers = topic.leaders, topic.followers
    for one in leaders:
        pair.append(one)
    pair.until_same()
    with pair.unaware(LEADER):  # it leads on
        pair.elect(topic.topic_id, NO_LEADER, 1)
        pair.until(lambda: followers[1].leader == NO_LEADER)
        pair.append(leaders[1])
        pair.append(leaders[0])
        pair.until(lambda: followers[0].log.high_watermark == 2)
        assert followers[1].log.log_end_offset == 1
        forgotten = [one for request in pair.leader.requests for one in request.forgotten_topics_data]
        assert [(one.topic_id, list(one.partitions)) for one in forgotten] == [(topic.topic_id, [1])]
        pair.elect(topic.topic_id, NO_LEADER, 0)
        pair.until(lambda: not pair.is_fetching)
    pair.lead(topic)
    pair.until_same()


def test_it_cuts_what_the_leader_has_not(pair: Pair) -> None:
    topic = pair.make("t")
    (leader,), (follower,) = topic.leaders, topic.followers
    for one, epoch in ((leader, 1), (follower, 1), (follower, 2), (leader, 3)):
        for _ in range(3):
            one.log.append(batch(), leader_epoch=epoch)
    pair.lead(topic, epoch=4)
    pair.until_same()
    assert follower.log.epochs.latest == 3
    pair.append(leader)
    pair.until_same()
    assert follower.log.epochs.latest == 4


@pytest.mark.parametrize("where", ["before", "behind"])
def test_a_log_that_ends_where_the_leader_has_nothing(pair: Pair, where: str) -> None:
    topic = pair.make("t")
    (leader,), (follower,) = topic.leaders, topic.followers
    for _ in range(3):
        follower.log.append(batch(), leader_epoch=1)
        leader.log.append(batch(), leader_epoch=1)
    with pair.unaware(FOLLOWER):
        pair.lead(topic, epoch=1)
        pair.leaders_directory.truncate_fully_and_start_at("t", 0, 100 if where == "before" else 1)
        if where == "before":
            pair.append(leader)
    pair.until(lambda: follower.log.log_end_offset == leader.log.log_end_offset)
    pair.append(leader)
    pair.until(lambda: follower.log.log_end_offset == leader.log.log_end_offset)
    if where == "before":
        assert follower.log.log_start_offset == 100
        assert content(follower) == content(leader)


def test_a_log_that_begins_inside_of_a_batch(pair: Pair) -> None:
    """DeleteRecords may leave such a log: an empty follower starts with the whole batch."""
    topic = pair.make("t")
    (follower,) = topic.followers
    with pair.unaware(FOLLOWER):
        (leader,) = pair.lead(topic)
        for _ in range(2):
            pair.append(leader, batch(records=4))
        leader.log.update_high_watermark(8)
        pair.leaders_directory.delete_records("t", 0, 6)
    pair.until(lambda: (follower.log.log_start_offset, follower.log.high_watermark) == (6, 8))
    assert content(follower) == content(leader)[len(batch(records=4)) :]


def test_a_log_that_ends_inside_of_the_leaders_first_batch(pair: Pair) -> None:
    """The follower's log is below the leader's start, with a history whose epochs the leader no longer has."""
    topic = pair.make("t")
    (follower,) = topic.followers
    for _ in range(6):
        follower.log.append(batch(), leader_epoch=0)
    with pair.unaware(FOLLOWER):
        (leader,) = pair.lead(topic, epoch=0)
        for _ in range(2):
            pair.append(leader, batch(records=4))
        leader.log.update_high_watermark(8)
        pair.leaders_directory.delete_records("t", 0, 6)
    pair.until(lambda: follower.log.high_watermark == 8)
    assert content(follower) == content(leader)[len(batch(records=4)) :]


@pytest.mark.parametrize("pair", [{"replica.fetch.wait.max.ms": "200"}], indirect=True)
def test_no_news_is_news_for_a_new_question(pair: Pair) -> None:
    """The leader returned its high watermark with the point of divergence, and does not repeat it after the
    truncation."""
    topic = pair.make("t")
    (leader,), (follower,) = topic.leaders, topic.followers
    for one, times in ((leader, 3), (follower, 5)):
        for _ in range(times):
            one.log.append(batch(), leader_epoch=1)
    leader.log.update_high_watermark(3)
    pair.lead(topic, epoch=1)
    pair.until(lambda: follower.log.log_end_offset == 3)
    count = len(pair.leader.requests)
    pair.until(lambda: follower.log.high_watermark == 3)
    assert len(pair.leader.requests) <= count + 1


def test_discarded_records_are_fetched_again(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """The partition was unfollowed while its records were in flight, and is followed again before the next request."""
    topic, other = pair.make("t"), pair.make("other")
    (follower,) = topic.followers
    (leader,) = pair.lead(topic)
    pair.lead(other)
    pair.until(lambda: len(pair.leader.requests) >= 2)
    take_all = Fetcher._take_all
    responses: list[int] = []

    async def unfollowed(fetcher: Fetcher, link: PeerConnection, response: FetchResponse) -> None:
        fetcher.unfollow((topic.topic_id, 0))
        await take_all(fetcher, link, response)
        fetcher.follow(follower)
        responses.append(sum(len(one.records) for one in response.partitions))

    monkeypatch.setattr(Fetcher, "_take_all", unfollowed)
    pair.append(leader)
    pair.until(lambda: any(responses))
    assert follower.log.log_end_offset == 0
    monkeypatch.undo()
    pair.until_same()


def test_records_that_are_deleted_go_here_too(pair: Pair) -> None:
    topic = pair.led("t")
    (leader,), (follower,) = topic.leaders, topic.followers
    for _ in range(4):
        pair.append(leader)
    pair.until_same()
    pair.leaders_directory.delete_records("t", 0, 3)
    pair.until(lambda: follower.log.log_start_offset == 3)


@pytest.mark.parametrize("pair", [{"replica.fetch.wait.max.ms": "400"}], indirect=True)
@pytest.mark.parametrize("others", [2, 30])
def test_newly_followed_partition_does_not_wait_for_the_long_poll(pair: Pair, others: int) -> None:
    """The leader ends the wait, so the follower names the new partition and no other."""
    new = pair.make("u")
    topic = pair.led("t", others)
    pair.until(lambda: any(one.max_wait > 50 for one in pair.leader.requests))
    count = len(pair.leader.requests)
    (leader,) = pair.lead(new)
    pair.append(leader)
    begun = pair.now_ms
    pair.until_same()
    assert pair.now_ms - begun < 200
    assert {one.topic_id for asked in pair.leader.requests[count:] for one in asked.topics} == {new.topic_id}
    pair.put(topic.topic_id, lambda state: replace(state, left=()), 0, 1)  # nothing is new: nothing is interrupted
    count = len(pair.leader.requests)
    pair.until(lambda: len(pair.leader.requests) > count and pair.leader.requests[-1].max_wait > 50)
    assert len(_new_sessions(pair)) == 1


@pytest.mark.parametrize("pair", [{"replica.fetch.wait.max.ms": "400"}], indirect=True)
@pytest.mark.parametrize(("others", "sessions"), [(2, 2), (30, 1)])
def test_new_session_is_begun_for_a_new_partition_if_it_names_few_others(
    pair: Pair, others: int, sessions: int
) -> None:
    """The leader has led the partition for so long that it does not expect the follower any more."""
    new = pair.make("u")
    pair.led("t", others)
    pair.leader.running.replicas.changed.clear()
    pair.until(lambda: any(one.max_wait > 50 for one in pair.leader.requests))
    (leader,) = pair.lead(new)
    pair.append(leader)
    pair.until_same()
    assert len(_new_sessions(pair)) == sessions


def test_follower_of_many_partitions(pair: Pair) -> None:
    """Its first request is longer than those of most clients, and so is that after a lost connection."""
    topic = pair.make("t", 150)
    pair.lead(topic)
    pair.append(topic.leaders[0])
    pair.until_same()
    pair.forget_session()
    pair.append(topic.leaders[149])
    pair.until_same()
    assert max(sum(len(one.partitions) for one in asked.topics) for asked in pair.leader.requests) == 150


def _new_sessions(pair: Pair) -> list[object]:
    return [one for one in pair.leader.requests if one.session_epoch == 0]


@pytest.mark.parametrize("pair", [{"replica.fetch.wait.max.ms": "10000"}], indirect=True)
def test_while_more_may_follow_requests_wait_less(pair: Pair) -> None:
    topic = pair.make("t", 6)
    for number in range(6):
        pair.lead(topic, number)
        pair.until_asked()
    assert {one.max_wait for one in pair.leader.requests} == {50}
    assert [one.session_epoch for one in pair.leader.requests].count(0) == 1


def test_broker_without_a_registration_fetches_nothing(pair: Pair) -> None:
    topic = pair.led("t")
    pair.until_same()
    (session,) = (one for one in pair.server.sessions if one.host == pair.follower.host)
    pair.slow[pair.follower.host] = 5.0
    pair.server.end(session)
    pair.until(lambda: pair.follower.me is None)
    pair.run(1.0)
    asked = len(pair.leader.requests)
    pair.append(topic.leaders[0])
    pair.run(3.0)
    assert (pair.follower.me, len(pair.leader.requests)) == (None, asked)
    pair.until(lambda: pair.follower.me is not None)
    pair.put(topic.topic_id, lambda state: replace(state, isr=pair.members))
    pair.until_same()


def test_follower_flushes_before_it_fetches_from_its_new_end(pair: Pair) -> None:
    """With ``flush.messages=1`` a fetch offset promises that everything before it survives a power cut."""
    topic = pair.led("t", config={"flush.messages": "1"})
    (leader,), (follower,) = topic.leaders, topic.followers
    asked: list[tuple[int, int]] = []

    def look(_: RequestHeader) -> None:
        for topic in pair.leader.requests[-1].topics:
            asked.extend((one.fetch_offset, follower.log.recovery_point) for one in topic.partitions)

    with pair.instead(look):
        for _ in range(20):
            pair.append(leader)
            pair.until_asked()
        pair.until_same()
    assert max(offset for offset, _ in asked) == 20
    assert [offset for offset, flushed in asked if flushed < offset] == []
