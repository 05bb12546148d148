"""The high watermark and the ISR, one case per rule."""

from __future__ import annotations

from dataclasses import replace

from seglog.cluster.model import BrokerRegistration, Member, PartitionState, VersionedState
from seglog.replication.progress import Follower, Progress

BROKERS = {node: BrokerRegistration(node_id=node, epoch=node, kept_since=0) for node in (1, 2, 3)}
M1, M2, M3 = (Member(node, node) for node in (1, 2, 3))
STATE = PartitionState(replicas=(1, 2, 3), leader=1, leader_epoch=4, isr=(M1, M2, M3), min_insync=2)
LAG = 1_000
PARTITION = "t/0"


def leading(state: PartitionState = STATE, epoch_start: int = 100) -> Progress:
    return Progress(1, PARTITION, VersionedState(state, 7), epoch_start, 0, lag_max_ms=LAG)


def fetched(progress: Progress, node: int, offset: int, end: int, now_ms: int, epoch: int | None = None) -> None:
    progress.followers[node].fetched(offset, 0, node if epoch is None else epoch, end, now_ms, None)


def mark(progress: Progress, end: int, now_ms: int, current: int = 90) -> int:
    return progress.high_watermark(current, end, BROKERS, now_ms)


def test_it_is_the_smallest_end_of_who_has_asked_in_this_epoch() -> None:
    progress = leading()
    assert mark(progress, 120, 0) == 90  # nobody has asked
    fetched(progress, 2, 120, 120, 1)
    assert mark(progress, 120, 1) == 90
    fetched(progress, 3, 110, 120, 2)
    assert mark(progress, 120, 2) == 110
    assert mark(progress, 120, 2, current=115) == 115  # it does not go back
    fetched(progress, 3, 120, 120, 3, epoch=9)  # another life than that which is in sync
    assert mark(progress, 120, 3) == 90


def test_it_stands_while_too_few_are_in_sync() -> None:
    progress = leading(replace(STATE, isr=(M1,), elr=(M2,)))
    assert not progress.has_enough
    assert mark(progress, 120, 0) == 90
    assert leading(replace(STATE, isr=(M1,), min_insync=1)).has_enough
    alone = leading(PartitionState(replicas=(1,), leader=1, leader_epoch=0, isr=(M1,), min_insync=2))
    assert alone.has_enough  # no more can be asked for than there are
    assert mark(alone, 120, 0) == 120


def test_it_waits_for_who_keeps_up_and_is_about_to_join() -> None:
    progress = leading(replace(STATE, isr=(M1, M2), min_insync=1))
    fetched(progress, 2, 120, 120, 10)
    fetched(progress, 3, 99, 120, 10)
    assert mark(progress, 120, 10) == 120  # it has not even the start of the epoch
    fetched(progress, 3, 105, 120, 10)
    assert mark(progress, 120, 10) == 105
    assert mark(progress, 120, 11 + LAG) == 120  # it does not keep up
    assert progress.high_watermark(90, 120, {1: BROKERS[1], 2: BROKERS[2]}, 10) == 120  # it has gone
    stopping = {**BROKERS, 3: replace(BROKERS[3], is_stopping=True)}
    assert progress.high_watermark(90, 120, stopping, 10) == 120


def test_replica_on_a_failed_disk_does_not_join_the_isr() -> None:
    progress = leading(replace(STATE, isr=(M1, M2), min_insync=1))
    fetched(progress, 2, 120, 120, 10)
    fetched(progress, 3, 105, 120, 10)
    failed = BROKERS | {3: replace(BROKERS[3], offline=("u/0", PARTITION))}
    assert progress.high_watermark(90, 120, failed, 10) == 120
    assert progress.propose(100, 120, failed, 10) is None
    proposed = progress.propose(100, 120, BROKERS | {3: replace(BROKERS[3], offline=("u/0",))}, 10)
    assert proposed is not None
    assert proposed.isr == (M1, M2, M3)


def test_both_forms_of_the_isr_count_while_a_change_is_on_its_way() -> None:
    progress = leading(replace(STATE, isr=(M1, M2), min_insync=1))
    fetched(progress, 2, 120, 120, 10)
    fetched(progress, 3, 120, 120, 10)
    joined = progress.propose(110, 120, BROKERS, 10)
    assert joined is not None
    assert joined.isr == (M1, M2, M3)
    assert progress.propose(110, 120, BROKERS, 10) is None  # one at a time
    fetched(progress, 2, 130, 130, 20)
    assert mark(progress, 130, 20) == 120  # 3 counts already
    progress.refused()
    silent = progress.followers[3] = Follower(-LAG)
    silent.end_offset, silent.broker_epoch = 120, 3
    silent.heard.note(10)
    assert mark(progress, 130, 20) == 130
    proposed = progress.propose(110, 130, BROKERS, 20)
    assert proposed is not None
    progress.changed(VersionedState(proposed, 8), 20)
    assert (progress.version, progress.proposed, progress.state) == (8, None, proposed)
    progress.changed(VersionedState(STATE, 7), 21)  # older news
    assert progress.version == 8


def test_lagging_follower_leaves_the_isr() -> None:
    progress = leading()
    fetched(progress, 2, 120, 120, 900)
    fetched(progress, 3, 110, 120, 900)
    assert progress.propose(110, 120, BROKERS, LAG) is None
    assert progress.propose(110, 120, BROKERS, LAG + 1, shrinks=False) is None
    shrunk = progress.propose(110, 120, BROKERS, LAG + 1)
    assert shrunk == replace(STATE, isr=(M1, M2))


def test_follower_that_reaches_the_end_of_its_last_fetch_is_caught_up() -> None:
    """It never reaches the end of a growing log, but always where that was at its last fetch."""
    progress = leading()
    for step in range(5):
        fetched(progress, 2, 100 + 10 * step, 110 + 10 * step, 400 * step)
        fetched(progress, 3, 100 + 10 * step, 110 + 10 * step, 400 * step)
    assert progress.followers[2].caught_up_ms == 1_200
    assert progress.propose(100, 160, BROKERS, 2_200) is None
    assert progress.propose(100, 160, BROKERS, 2_201) is not None


def test_conditions_for_joining_the_isr() -> None:
    progress = leading(replace(STATE, isr=(M1,), elr=(M2,)))
    fetched(progress, 2, 99, 120, 10)
    assert progress.propose(90, 120, BROKERS, 10) is None  # not yet at the start of the epoch
    fetched(progress, 2, 104, 120, 10)
    assert progress.propose(105, 120, BROKERS, 10) is None  # not all that is committed
    fetched(progress, 3, 120, 120, 10, epoch=2)
    assert progress.propose(105, 120, BROKERS, 10) is None  # an earlier life
    fetched(progress, 2, 105, 120, 10)
    assert progress.propose(105, 120, BROKERS, 11 + LAG) is None  # it was there long ago
    assert progress.propose(105, 120, BROKERS, 10) == replace(STATE, isr=(M1, M2), elr=())


def test_replicas_that_come_and_go() -> None:
    progress = leading()
    moving = replace(STATE, replicas=(4, 1, 2), adding=(4,), isr=(M1, M2))
    progress.changed(VersionedState(moving, 8), 500)
    assert sorted(progress.followers) == [2, 4]
    assert progress.followers[4].caught_up_ms == 500


# While the metadata store is away


def may_commit(progress: Progress, now_ms: int = 10) -> bool:
    return progress.may_commit_unconfirmed(now_ms, LAG)


def test_in_doubt_another_member_has_to_fetch_in_this_epoch() -> None:
    progress = leading()
    assert not may_commit(progress)  # nobody has fetched yet
    fetched(progress, 2, 110, 120, 10, epoch=9)
    assert not may_commit(progress)  # in another life than that which is in sync
    fetched(progress, 2, 110, 120, 10)
    assert may_commit(progress)
    assert may_commit(progress, 10 + LAG)
    assert not may_commit(progress, 11 + LAG)  # all may follow another leader


def test_in_doubt_an_isr_of_one_fences_nobody_unless_it_is_the_only_replica() -> None:
    progress = leading(replace(STATE, isr=(M1,), min_insync=1))
    fetched(progress, 2, 120, 120, 10)
    assert not may_commit(progress)
    alone = PartitionState(replicas=(1,), leader=1, leader_epoch=0, isr=(M1,), min_insync=2)
    assert may_commit(leading(alone))


def test_in_doubt_the_isr_has_to_be_large_enough_as_written_and_as_proposed() -> None:
    progress = leading(replace(STATE, isr=(M1, M2)))
    assert progress.propose(90, 120, BROKERS, 2 * LAG) is not None  # without the other one
    fetched(progress, 2, 120, 120, 2 * LAG)
    assert progress.has_enough
    assert not may_commit(progress, 2 * LAG)
    progress.refused()
    assert may_commit(progress, 2 * LAG)
