"""Elections: one case per rule, and random histories that keep the promises."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog.cluster.election import cancel_reassignment, first_state, prefer, reassign, settle, with_isr
from seglog.cluster.model import NO_LEADER, BrokerRegistration, Member, PartitionState
from tests.cases import case


def broker(
    node: int, epoch: int | None = None, kept_since: int = 0, *, is_stopping: bool = False
) -> BrokerRegistration:
    return BrokerRegistration(
        node_id=node, epoch=node if epoch is None else epoch, kept_since=kept_since, is_stopping=is_stopping
    )


def there(*brokers: BrokerRegistration) -> dict[int, BrokerRegistration]:
    return {one.node_id: one for one in brokers}


ALL = there(broker(1), broker(2), broker(3))
M1, M2, M3 = Member(1, 1), Member(2, 2), Member(3, 3)
WHOLE = PartitionState(replicas=(1, 2, 3), leader=1, leader_epoch=5, isr=(M1, M2, M3), min_insync=2)


def settled(
    state: PartitionState, brokers: dict[int, BrokerRegistration], *, min_insync: int = 2, unclean: bool = False
) -> PartitionState:
    found = settle(state, brokers, min_insync=min_insync, unclean=unclean)
    found.check()
    assert settle(found, brokers, min_insync=min_insync, unclean=unclean) == found
    return found


def test_a_new_partition() -> None:
    assert first_state((3, 1), {}, 1) is None
    state = first_state((3, 1, 2), there(broker(1), broker(2), broker(3, is_stopping=True)), 2)
    assert state == PartitionState(
        replicas=(3, 1, 2), leader=1, leader_epoch=0, isr=(M1, M2), min_insync=2, is_new=True
    )


def test_nothing_to_do() -> None:
    assert settle(WHOLE, ALL, min_insync=2, unclean=False) == WHOLE


def test_a_follower_goes_and_the_leader_stays() -> None:
    assert settled(WHOLE, there(broker(1), broker(3))) == replace(WHOLE, isr=(M1, M3), left=(M2,))


def test_the_leader_goes() -> None:
    assert settled(WHOLE, there(broker(2), broker(3))) == replace(
        WHOLE, leader=2, leader_epoch=6, isr=(M2, M3), left=(M1,)
    )


def test_a_leader_that_comes_back_at_once_is_another_one() -> None:
    brokers = ALL | there(broker(1, epoch=9))
    assert settled(WHOLE, brokers) == replace(WHOLE, leader=2, leader_epoch=6, isr=(M2, M3), left=(M1,))


def test_replica_that_leaves_a_too_small_isr_stays_eligible() -> None:
    alone = settled(replace(WHOLE, isr=(M1, M2)), there(broker(1), broker(3)))
    assert alone == replace(WHOLE, isr=(M1,), elr=(M2,))
    nobody = settled(alone, there(broker(3)))
    assert nobody == replace(WHOLE, leader=NO_LEADER, leader_epoch=6, isr=(), elr=(M2, M1))
    assert settled(nobody, there(broker(2, epoch=8), broker(3))) == replace(
        WHOLE, leader=2, leader_epoch=7, isr=(Member(2, 8),), elr=(M1,)
    )


def test_replica_that_lost_data_is_not_eligible() -> None:
    nobody = replace(WHOLE, leader=NO_LEADER, isr=(), elr=(M1, M2))
    lost = broker(1, epoch=9, kept_since=9)
    waiting = settled(nobody, there(lost, broker(3)))
    assert waiting == replace(nobody, elr=(M2,), last_known=(M1,))  # 2 has everything
    assert settled(waiting, there(lost, broker(2, epoch=10, kept_since=0))).leader == 2
    alone = settled(replace(nobody, elr=(M1,)), there(lost))
    assert alone == replace(nobody, elr=(), last_known=(M1,)), "it has not said what it has"
    both = replace(nobody, elr=(), last_known=(M1, M2))
    assert settled(both, there(lost, broker(3))) == both
    assert settled(both, there(lost, broker(3)), unclean=True).leader == 1


def test_losses_are_not_forgotten_by_a_clean_restart() -> None:
    """The ABA problem: what was lost in epoch 8 is still lost in epoch 9, which began with a clean start."""
    nobody = replace(WHOLE, leader=NO_LEADER, isr=(), elr=(M2, M1))
    assert settled(nobody, there(broker(2, epoch=9, kept_since=8))).leader == NO_LEADER
    assert settled(nobody, there(broker(2, epoch=9, kept_since=2))).leader == 2


def test_unclean_election_only_if_it_is_allowed() -> None:
    gone = settled(WHOLE, {})
    assert gone == replace(WHOLE, leader=NO_LEADER, leader_epoch=6, isr=(), elr=(M1, M2, M3))
    outsider = replace(gone, replicas=(1, 2, 3, 4))
    assert settled(outsider, there(broker(4))).leader == NO_LEADER
    elected = settled(outsider, there(broker(4)), unclean=True)
    assert (elected.leader, elected.isr, elected.leader_epoch) == (4, (Member(4, 4),), 7)
    assert (elected.elr, elected.last_known) == ((), ()), "the others have another history"


def test_a_broker_that_stops_leads_no_more_unless_it_is_alone() -> None:
    stopping = broker(1, is_stopping=True)
    assert settled(WHOLE, ALL | there(stopping)) == replace(WHOLE, leader=2, leader_epoch=6, isr=(M2, M3), left=(M1,))
    alone = replace(WHOLE, isr=(M1,), elr=())
    assert settled(alone, there(stopping, broker(2))) == alone


def test_reaching_min_insync_clears_eligible_replicas() -> None:
    alone = replace(WHOLE, isr=(M1,), elr=(M2,))
    assert settled(alone, ALL, min_insync=1) == replace(WHOLE, isr=(M1,), min_insync=1)
    assert settled(alone, ALL, min_insync=3) == replace(alone, min_insync=3)
    of_three = replace(WHOLE, min_insync=3, isr=(M1,), elr=(M2, M3))
    assert settled(of_three, ALL, min_insync=2) == replace(of_three, min_insync=2), "nothing can be committed yet"
    # The one in sync has lost what it had, at the same time: who is eligible has it
    back = settled(alone, there(broker(2), broker(1, 9, kept_since=9)), min_insync=1)
    assert (back.leader, back.isr) == (2, (M2,))


def test_reassignment() -> None:
    brokers = ALL | there(broker(4))
    moving = reassign(WHOLE, (4, 2))
    assert moving == replace(WHOLE, replicas=(4, 2, 1, 3), adding=(4,), removing=(1, 3))
    assert settled(moving, brokers) == moving
    arrived = with_isr(moving, (*WHOLE.isr, Member(4, 4)), brokers)
    done = settled(arrived, brokers)
    assert (done.replicas, done.isr, done.leader, done.leader_epoch) == ((4, 2), (M2, Member(4, 4)), 4, 6)
    assert (done.adding, done.removing) == ((), ())
    alone = with_isr(arrived, (M1, M3, Member(4, 4)), brokers)
    assert settled(alone, brokers) == alone, "2 is away, and 4 alone would have what is committed"
    left = replace(alone, isr=(Member(4, 4),), elr=(M1,), leader=4, min_insync=2)
    assert settled(left, brokers) == left, "1 has left the ISR, and may still be the only one that has all"
    assert cancel_reassignment(moving) == replace(WHOLE, replicas=(2, 1, 3), leader_epoch=6)  # 4 goes
    with pytest.raises(ValueError, match="none of the replicas from before"):
        cancel_reassignment(replace(moving, isr=(Member(4, 4),), leader=4))
    assert reassign(moving, (1, 3)).replicas == (1, 3, 2)
    assert reassign(moving, (1, 3)).leader_epoch == 6, "who was dropped may not know it yet, and delete its log later"


def test_second_move_keeps_replicas_that_may_have_the_only_copy() -> None:
    """The first move has reached its new replica, and all former replicas are gone."""
    moving = reassign(PartitionState(replicas=(1,), leader=1, leader_epoch=0, isr=(M1,)), (2,))
    for only in (
        replace(moving, leader=2, isr=(M2,)),
        replace(moving, leader=NO_LEADER, isr=(), elr=(M2,)),
        replace(moving, leader=NO_LEADER, isr=(), last_known=(M2,)),
    ):
        again = reassign(only, (3,))
        again.check()
        assert again == replace(only, replicas=(3, 2, 1), adding=(3,), removing=(2, 1))
        assert again.leader_epoch == only.leader_epoch
    assert reassign(moving, (3,)).replicas == (3, 1)  # it has nothing yet
    assert reassign(replace(moving, leader=2, isr=(M2,)), (3, 2)).adding == (3, 2)


def test_cancelled_move_keeps_replicas_that_may_have_the_only_copy() -> None:
    """No replica is in sync, and only one that is being added has everything. Without it, another one that has lost
    something would be the only last-known replica."""
    moving = replace(reassign(WHOLE, (4, 1, 2)), leader=NO_LEADER, isr=())
    m4 = Member(4, 4)
    for needed in (
        replace(moving, elr=(m4,), last_known=(M1,)),
        replace(moving, elr=(m4,)),
        replace(moving, last_known=(m4, M1)),
        replace(moving, last_known=(m4,)),
    ):
        needed.check()
        with pytest.raises(ValueError, match="none of the replicas from before"):
            cancel_reassignment(needed)
        back = cancel_reassignment(needed, unclean=True)
        back.check()
        assert (back.replicas, back.elr) == ((1, 2, 3), ())
    back = cancel_reassignment(replace(moving, elr=(m4, M1)))
    assert (back.replicas, back.elr) == ((1, 2, 3), (M1,))
    assert cancel_reassignment(replace(moving, last_known=(M1,))).last_known == (M1,)


def test_back_to_the_preferred_leader() -> None:
    elsewhere = replace(WHOLE, leader=2, leader_epoch=6)
    assert prefer(elsewhere, ALL) == replace(WHOLE, leader_epoch=7)
    assert prefer(WHOLE, ALL) is WHOLE
    behind = replace(elsewhere, isr=(M2, M3))
    assert prefer(behind, ALL) is behind


@given(st.integers(0, 2**32))
def test_any_history(seed: int) -> None:
    """In any history states are consistent, epochs grow with leaders, and only a replica that kept everything is
    elected."""
    case()
    rng = Random(seed)
    epochs = 0
    brokers: dict[int, BrokerRegistration] = {}
    complete: dict[int, bool] = {}
    state: PartitionState | None = None
    for _ in range(40):
        node = rng.randrange(1, 5)
        if node in brokers and rng.random() < 0.6:
            brokers.pop(node)
        else:
            epochs += 1
            lost = rng.random() < 0.3
            kept = epochs if lost or node not in complete else brokers[node].kept_since if node in brokers else 0
            complete[node] = True
            brokers[node] = broker(node, epochs, kept, is_stopping=rng.random() < 0.1)
        if state is None:
            state = first_state((1, 2, 3, 4), brokers, 2)
            continue
        found = settled(state, brokers)
        changed = found.leader != state.leader
        assert found.leader_epoch == state.leader_epoch + (changed or (found.leader_epoch > state.leader_epoch))
        if changed and found.leader != NO_LEADER and not {found.leader} & set(state.isr_nodes):
            before = {member.node_id: member for member in (*state.elr, *state.isr)}
            one = brokers[found.leader]
            assert found.leader in before, "without evidence only who is eligible"
            if found.leader in before and not one.has_kept(before[found.leader]):
                assert not found.elr  # the last one that knew
        state = found
