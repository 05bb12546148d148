"""Elections when no replica is known to have everything: evidence decides among those that had it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog.cluster.election import choose, missing_candidates, settle, with_evidence
from seglog.cluster.model import (
    ANY_EPOCH,
    NO_LEADER,
    BrokerRegistration,
    ElectionKind,
    Evidence,
    Member,
    PartitionState,
    Recovery,
)
from tests.cases import case

M1, M2, M3 = Member(1, 1), Member(2, 2), Member(3, 3)
POWER = (10, 11, 12)
"""Broker epochs of 1, 2 and 3 after a power cut of all machines."""


def broker(node: int, epoch: int, *, kept_since: int | None = None) -> BrokerRegistration:
    kept = epoch if kept_since is None else kept_since
    return BrokerRegistration(node_id=node, epoch=epoch, kept_since=kept, reports=True)


def after_power_cut(*nodes: int) -> dict[int, BrokerRegistration]:
    return {node: broker(node, POWER[node - 1]) for node in nodes}


def evidence(node: int, epoch: int, last_epoch: int, end: int, **more: int) -> Evidence:
    said = {"start": 0, "flushed": end, "high_watermark": 0, "made": node, "kept_since": epoch, **more}
    return Evidence(node, epoch, f"disk-{node}", last_epoch, end=end, **said)


def leaderless(last_known: Sequence[Member] = (M1, M2, M3), **changes: Any) -> PartitionState:
    state = PartitionState(
        replicas=(1, 2, 3), leader=NO_LEADER, leader_epoch=6, isr=(), min_insync=2, last_known=tuple(last_known)
    )
    return replace(state, **changes)


def reported(state: PartitionState, *reports: Evidence) -> PartitionState:
    for one in reports:
        state = with_evidence(state, one)
    return state


def settled(state: PartitionState, brokers: dict[int, BrokerRegistration], *, unclean: bool = False) -> PartitionState:
    found = settle(state, brokers, min_insync=state.min_insync, unclean=unclean)
    found.check()
    assert settle(found, brokers, min_insync=state.min_insync, unclean=unclean) == found
    return found


def test_longest_log_leads_once_all_candidates_have_reported() -> None:
    brokers = after_power_cut(1, 2, 3)
    two = reported(leaderless(), evidence(1, 10, 5, 100), evidence(3, 12, 4, 130))
    assert settled(two, brokers) == two, "broker 2 may have more"
    assert missing_candidates(two, brokers) == (2,)
    three = settled(reported(two, evidence(2, 11, 5, 120)), brokers)
    assert (three.leader, three.leader_epoch, three.isr) == (2, 7, (Member(2, 11),))
    assert (three.elr, three.last_known, three.evidence) == ((), (), ())
    assert three.recovery == Recovery(7, 2, ElectionKind.LONGEST, 120, 130)
    assert three.unclean_epoch == -1, "no follower may cut what it knows to be committed"


def test_longest_log_waits_for_its_broker_if_that_is_stopping() -> None:
    brokers = after_power_cut(1, 2, 3)
    brokers[2] = replace(brokers[2], is_stopping=True)
    all_three = reported(leaderless(), evidence(1, 10, 5, 100), evidence(2, 11, 5, 120), evidence(3, 12, 5, 90))
    assert settled(all_three, brokers) == all_three


def test_replica_that_provably_lost_nothing_leads_at_once() -> None:
    flushed = reported(leaderless(), evidence(3, 12, 5, 100, kept_since=3))
    found = settled(flushed, after_power_cut(1, 3))
    assert (found.leader, found.recovery) == (3, Recovery(7, 3, ElectionKind.PROVEN, 100, -1))
    assert found.last_known == (M1, M2), "what they had is part of what it has"


def test_emptied_candidate_is_missing_however_alone_it_is() -> None:
    """RF 3, min.insync.replicas=1: 2 and 3 stopped, 1 was killed and comes back with an empty directory."""
    state = leaderless((M1,), min_insync=1)
    emptied = evidence(1, 10, -1, 0, made=10)
    brokers = {1: broker(1, 10), 2: broker(2, 11, kept_since=2), 3: broker(3, 12, kept_since=3)}
    others = (evidence(2, 11, 5, 1000, kept_since=2), evidence(3, 12, 5, 1000, kept_since=3))
    state = reported(state, emptied, *others)
    assert settled(state, brokers) == state
    assert missing_candidates(state, brokers) == (1,)
    again = {**brokers, 1: broker(1, 14, kept_since=14)}
    still = reported(settled(state, again), evidence(1, 14, -1, 0, made=10))
    assert settled(still, again) == still, "a clean restart makes no log of an empty one"
    chosen = choose(still, 2, again)
    chosen.check()
    assert (chosen.leader, chosen.leader_epoch, chosen.unclean_epoch) == (2, 7, 7)
    assert chosen.recovery == Recovery(7, 2, ElectionKind.CHOSEN, 1000, 1000)


def test_partition_that_was_never_written_to_begins_again_on_any_disk() -> None:
    """Broker 1 was in sync when the partition was created, and comes back with an empty directory; 3 is away."""
    state = leaderless((M1,), is_new=True, left=(M3,))
    brokers = {1: broker(1, 10), 2: broker(2, 11)}
    one = reported(state, evidence(1, 10, -1, 0, made=10))
    assert settled(one, brokers) == one, "broker 2 is about to say what it has"
    found = settled(reported(one, evidence(2, 11, -1, 0)), brokers)
    assert (found.leader, found.leader_epoch, found.isr) == (1, 7, (Member(1, 10), Member(2, 11)))
    assert (found.elr, found.last_known, found.left, found.evidence, found.recovery) == ((), (), (), (), None)
    assert found.is_new, "until its leader has said that it is written"


def test_partition_that_is_new_does_not_begin_again_where_a_replica_has_records() -> None:
    """A broker of the first release writes without clearing ``is_new``, and does not report."""
    state = leaderless((M1,), is_new=True)
    both = reported(state, evidence(1, 10, -1, 0, made=10), evidence(2, 11, 0, 5))
    assert settled(both, after_power_cut(1, 2)) == both
    alone = reported(state, evidence(1, 10, -1, 0, made=10))
    first = {1: broker(1, 10), 2: replace(broker(2, 11), reports=False)}
    assert settled(alone, first) == alone


def test_restored_backup_is_not_the_log_that_a_candidate_had() -> None:
    """Broker 1 was a candidate in epoch 8; its directory is an older copy, restored in epoch 10."""
    state = leaderless((Member(1, 8),), min_insync=1)
    old = reported(state, evidence(1, 11, 4, 50, made=10, kept_since=10))
    brokers = {1: broker(1, 11, kept_since=10)}
    assert settled(old, brokers) == old
    assert missing_candidates(old, brokers) == (1,)
    assert settled(reported(state, evidence(1, 11, 4, 50, made=3, kept_since=10)), brokers).leader == 1


def test_longest_log_leads_after_the_store_was_restored() -> None:
    """The store was restored from a backup, or rebuilt from the directories: all replicas are asked."""
    state = leaderless([Member(node, ANY_EPOCH) for node in (1, 2, 3)])
    two = reported(state, evidence(1, 10, 5, 100, kept_since=1), evidence(2, 11, -1, 0, made=11))
    brokers = after_power_cut(1, 2, 3)
    assert settled(two, brokers) == two
    found = settled(reported(two, evidence(3, 12, 6, 90)), brokers)
    assert (found.leader, found.recovery) == (3, Recovery(7, 3, ElectionKind.LONGEST, 90, 100))


def test_evidence_of_an_earlier_life_is_void() -> None:
    brokers = after_power_cut(1, 2, 3)
    reports = evidence(1, 10, 5, 100), evidence(2, 11, 5, 120), evidence(3, 12, 5, 90)
    again = {**brokers, 2: broker(2, 15)}
    found = settled(reported(leaderless(), *reports), again)
    assert (found.leader, found.evidence) == (NO_LEADER, (reports[0], reports[2]))
    assert settled(reported(found, evidence(2, 15, 5, 80)), again).leader == 1


def test_part_that_lost_power_waits_for_the_one_that_did_not() -> None:
    state = leaderless((M1, M3), elr=(M2,))
    both = reported(state, evidence(1, 10, 5, 100), evidence(3, 12, 5, 120))
    brokers = after_power_cut(1, 3)
    assert settled(both, brokers) == both, "broker 2 lost nothing, and is away"
    found = settled(both, {**brokers, 2: broker(2, 13, kept_since=1)})
    assert (found.leader, found.recovery) == (2, None)


def test_restart_before_the_other_sessions_are_over_loses_no_record() -> None:
    """All machines lose power at once. Broker 2 registers again while the sessions of 1 and 3 still last. The ISR seems
    to continue without it, but no broker is running that could commit anything."""
    whole = PartitionState(replicas=(1, 2, 3), leader=1, leader_epoch=5, isr=(M1, M2, M3), min_insync=2)
    sleeping = {
        1: BrokerRegistration(node_id=1, epoch=1, kept_since=0),
        3: BrokerRegistration(node_id=3, epoch=3, kept_since=0),
    }
    state = settled(whole, {**sleeping, 2: broker(2, 11)})
    assert (state.isr, state.left) == ((M1, M3), (M2,))
    brokers = after_power_cut(1, 2, 3)
    state = settled(state, brokers)
    assert (state.leader, state.last_known, state.left) == (NO_LEADER, (M1, M3), (M2,))
    both = reported(state, evidence(1, 10, 5, 70), evidence(3, 12, 5, 80))
    assert settled(both, brokers) == both, "broker 2 is about to say what it has"
    assert settled(both, after_power_cut(1, 3)).leader == 3, "it is not waited for while it is away"
    found = settled(reported(both, evidence(2, 11, 5, 90)), brokers)
    assert (found.leader, found.left, found.recovery) == (2, (), Recovery(7, 2, ElectionKind.LONGEST, 90, 80))
    assert settled(reported(both, evidence(2, 11, -1, 0, made=11)), brokers).leader == 3, "its disk was emptied"


def test_evidence_never_makes_a_candidate() -> None:
    state = leaderless((M1,))
    outsider = reported(state, evidence(3, 12, 5, 900, kept_since=1))
    assert settled(outsider, after_power_cut(3)) == outsider
    assert settled(reported(outsider, evidence(1, 10, 4, 10)), after_power_cut(1, 3)).leader == 1


def test_unclean_election_takes_the_longest_log_that_is_there() -> None:
    """The emptied candidate does not lead: it would empty all the others."""
    state = reported(leaderless((M1,)), evidence(1, 10, -1, 0, made=10))
    brokers = after_power_cut(1, 2)
    assert settled(state, brokers, unclean=True) == state, "broker 2 is about to say what it has"
    found = settled(reported(state, evidence(2, 11, 5, 1000)), brokers, unclean=True)
    assert (found.leader, found.unclean_epoch, found.recovery) == (2, 7, Recovery(7, 2, ElectionKind.UNCLEAN, 1000, 0))


def test_only_refusals_are_kept_while_a_replica_leads() -> None:
    brokers = after_power_cut(1, 2, 3)
    led = leaderless((), leader=1, isr=(Member(1, 10),), min_insync=1)
    refusal = evidence(2, 11, 4, 80, refused_cut=50)
    found = settled(reported(led, refusal, evidence(3, 12, 4, 40)), brokers)
    assert found.evidence == (refusal,)
    joined = replace(found, isr=(*found.isr, Member(2, 11)))
    assert settled(joined, brokers).evidence == ()
    accepted = choose(found, 1, brokers)
    accepted.check()
    assert (accepted.leader, accepted.leader_epoch, accepted.unclean_epoch, accepted.evidence) == (1, 7, 7, ())


def test_choice_of_a_replica_that_cannot_lead() -> None:
    with pytest.raises(ValueError, match="broker 4 is not one of the replicas 1, 2, 3"):
        choose(leaderless(), 4, after_power_cut(1))
    with pytest.raises(ValueError, match="broker 2 is not registered"):
        choose(leaderless(), 2, after_power_cut(1))


@given(st.integers(0, 2**32))
def test_leader_has_every_record_that_any_candidate_still_had(seed: int) -> None:
    """Candidates had one history; each lost a part of its end, or all of its log. Reports come in any order, and
    brokers restart in between."""
    case()
    rng = Random(seed)
    history = sorted(rng.choices(range(8), k=rng.randrange(1, 30)))  # the epoch of each record
    nodes = rng.sample(range(1, 6), rng.randrange(1, 5))
    members = [Member(node, node) for node in nodes]
    state = replace(leaderless(members), replicas=tuple(range(1, 6)), min_insync=rng.randrange(1, 4))
    kept = {node: rng.choice((len(history), rng.randrange(len(history) + 1))) for node in range(1, 6)}
    emptied = {node for node in nodes if rng.random() < 0.2}
    brokers: dict[int, BrokerRegistration] = {}
    epoch = 10
    for _ in range(30):
        node = rng.randrange(1, 6)
        epoch += 1
        if node not in brokers or rng.random() < 0.2:
            brokers[node] = broker(node, epoch)
        else:
            end = 0 if node in emptied else kept[node]
            since = node if end == len(history) and node not in emptied and rng.random() < 0.3 else brokers[node].epoch
            made = brokers[node].epoch if node in emptied else 1
            last = history[end - 1] if end else -1
            report = evidence(node, brokers[node].epoch, last, end, made=made, kept_since=max(since, made))
            state = with_evidence(state, report)
        before, state = state, settled(state, brokers)
        if state.leader != NO_LEADER:
            assert state.leader in nodes
            assert state.leader not in emptied
            assert state.recovery is not None
            if state.recovery.kind is ElectionKind.LONGEST:
                assert not emptied
                assert kept[state.leader] == max(kept[node] for node in nodes)
            else:
                assert kept[state.leader] == len(history)
            assert before.leader == NO_LEADER
            return
    if emptied:
        assert state.leader == NO_LEADER
