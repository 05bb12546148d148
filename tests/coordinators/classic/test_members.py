"""Members of a classic group: leaving, static members, heartbeats, and the end of the group."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from seglog.coordinators.classic.messages import LeavingMember
from seglog.coordinators.classic.state import GroupState, Now
from seglog.core.error_codes import ErrorCode
from tests.coordinators.shard_driver import BOTH, DELAY, GROUP, REBALANCE, SESSION, ShardDriver

# Leaving


def test_members_leave_together(driver: ShardDriver) -> None:
    leader, follower, last = driver.stable(3)
    given = driver.joined(driver.start_join()).member_id
    codes = driver.leave(follower, "nobody", given, LeavingMember("", "no-instance"), LeavingMember(""))
    assert codes == [
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.UNKNOWN_MEMBER_ID,
    ]
    assert driver.heartbeat(leader, 1) is ErrorCode.REBALANCE_IN_PROGRESS
    assert driver.leave(leader, last) == [ErrorCode.NONE, ErrorCode.NONE]
    assert driver.group.state is GroupState.EMPTY
    assert driver.leave(leader) == [ErrorCode.UNKNOWN_MEMBER_ID]


def test_leaving_an_unknown_group_gets_unknown_member_id(driver: ShardDriver) -> None:
    assert driver.leave("a", "b") == [ErrorCode.UNKNOWN_MEMBER_ID] * 2


def test_a_pending_member_leaves_an_empty_group(driver: ShardDriver) -> None:
    given = driver.joined(driver.start_join()).member_id
    assert driver.leave(given) == [ErrorCode.NONE]
    assert driver.group.state is GroupState.EMPTY


def test_removed_member_that_waits_gets_unknown_member_id(driver: ShardDriver) -> None:
    leader, _ = driver.stable(2)
    again = driver.start_join(leader)
    driver.leave(leader)
    assert driver.joined(again).code is ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.joined(again).member_id == ""
    first = driver.join_twice()
    driver.advance(REBALANCE)
    waiting = driver.start_join(version=3)
    driver.advance(REBALANCE)
    assert first in driver.answers
    assert waiting in driver.answers


# Static members


def test_a_static_member_comes_back_unnoticed(driver: ShardDriver) -> None:
    leader, static = driver.stable(1, instances=["i"])
    before = len(driver.log)
    answer = driver.joined(driver.start_join(instance="i"))
    assert answer.code is ErrorCode.NONE
    assert answer.generation == 1
    assert answer.member_id not in (leader, static)
    assert driver.group.state is GroupState.STABLE
    assert driver.synced(driver.start_sync(answer.member_id, 1, instance="i")).assignment == static.encode()
    assert driver.heartbeat(leader, 1) is ErrorCode.NONE
    assert driver.heartbeat(static, 1, "i") is ErrorCode.FENCED_INSTANCE_ID
    assert driver.heartbeat(static, 1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.commit(static, 1, instance="i") is ErrorCode.FENCED_INSTANCE_ID
    assert driver.joined(driver.start_join(static, instance="i")).code is ErrorCode.FENCED_INSTANCE_ID
    assert driver.synced(driver.start_sync(static, 1, instance="i")).code is ErrorCode.FENCED_INSTANCE_ID
    assert driver.leave(LeavingMember(static, "i")) == [ErrorCode.FENCED_INSTANCE_ID]
    assert len(driver.log) == before + 1
    replayed = driver.replayed().classic(GROUP)
    assert replayed is not None
    assert replayed.value() == driver.group.value()


@pytest.mark.parametrize(("version", "skips"), [(8, False), (9, True)])
def test_a_static_leader_comes_back(driver: ShardDriver, version: int, skips: bool) -> None:
    (static,) = driver.stable(0, instances=["i"])
    answer = driver.joined(driver.start_join(instance="i", version=version))
    assert answer.skip_assignment == skips
    assert answer.leader == (answer.member_id if skips else static)
    assert bool(answer.members) == skips


def test_a_static_member_that_comes_back_with_other_protocols(driver: ShardDriver) -> None:
    leader, _ = driver.stable(1, instances=["i"], protocols=BOTH)
    driver.start_join(instance="i", protocols=BOTH[1:])
    assert driver.heartbeat(leader, 1) is ErrorCode.REBALANCE_IN_PROGRESS


def test_a_static_member_comes_back_while_assignments_are_made(driver: ShardDriver) -> None:
    tickets = [driver.join_twice(), driver.start_join(instance="i")]
    driver.advance(2 * DELAY)
    leader, static = (driver.joined(ticket).member_id for ticket in tickets)
    waiting = driver.start_sync(static, 1, instance="i")
    back = driver.start_join(instance="i")
    assert driver.synced(waiting).code is ErrorCode.FENCED_INSTANCE_ID
    assert back not in driver.answers
    last = driver.start_join(leader)
    assert driver.joined(back).generation == driver.joined(last).generation == 2


def test_a_static_member_that_waits_is_fenced_by_its_successor(driver: ShardDriver) -> None:
    before = driver.start_join(instance="i")
    after = driver.start_join(instance="i")
    assert driver.joined(before).code is ErrorCode.FENCED_INSTANCE_ID
    driver.advance(2 * DELAY)
    assert [member.instance_id for member in driver.joined(after).members] == ["i"]


def test_a_static_member_that_cannot_be_written_stays_as_it_was(driver: ShardDriver) -> None:
    leader, static = driver.stable(1, instances=["i"])
    before = driver.group.value()
    driver.fails = ErrorCode.NOT_COORDINATOR
    assert driver.joined(driver.start_join(instance="i", session=7000)).code is ErrorCode.NOT_COORDINATOR
    assert driver.group.value() == before
    assert driver.heartbeat(static, 1, "i") is ErrorCode.NONE
    assert driver.heartbeat(leader, 1) is ErrorCode.NONE


def test_a_static_member_keeps_its_place_until_its_session_ends(driver: ShardDriver) -> None:
    leader, static = driver.stable(1, instances=["i"])
    again = driver.start_join(leader)
    assert static in driver.group.members
    driver.advance(SESSION)
    assert driver.joined(again).generation == 2
    assert static not in driver.group.members


def test_administrators_remove_static_members_by_their_instance(driver: ShardDriver) -> None:
    _, static = driver.stable(1, instances=["i"])
    assert driver.leave(LeavingMember("", "i")) == [ErrorCode.NONE]
    assert static not in driver.group.members
    assert driver.joined(driver.start_join(static, instance="i")).code is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_rebalance_of_static_members_that_are_all_away_goes_on_until_their_sessions_end() -> None:
    driver = ShardDriver()
    tickets = [driver.start_join(instance=instance, session=10 * REBALANCE) for instance in ("i", "j")]
    driver.advance(3 * DELAY)
    first, second = (driver.joined(ticket).member_id for ticket in tickets)
    driver.start_sync(first, 1, {}, instance="i")
    driver.start_sync(second, 1, {}, instance="j")
    driver.leave(LeavingMember("", "i"))
    driver.advance(3 * REBALANCE)
    assert driver.group.state is GroupState.PREPARING
    back = driver.start_join(instance="j")
    assert driver.joined(back).generation == 2


# Heartbeats


def test_heartbeats(driver: ShardDriver) -> None:
    assert driver.heartbeat("nobody", 0) is ErrorCode.UNKNOWN_MEMBER_ID
    ticket = driver.join_twice()
    member = next(iter(driver.group.members)).member_id
    assert driver.heartbeat(member, 0) is ErrorCode.REBALANCE_IN_PROGRESS
    driver.advance(DELAY)
    assert driver.joined(ticket).generation == 1
    assert driver.heartbeat(member, 1) is ErrorCode.NONE
    assert driver.heartbeat(member, 0) is ErrorCode.ILLEGAL_GENERATION
    assert driver.heartbeat("nobody", 1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.heartbeat(member, 1, "no-instance") is ErrorCode.UNKNOWN_MEMBER_ID


# The end


def test_dead_group_answers_all_waiting_members(driver: ShardDriver) -> None:
    first, second = driver.join_twice(), driver.join_twice()
    driver.advance(2 * DELAY)
    waiting = driver.start_sync(driver.joined(second).member_id, 1)
    group = driver.group
    result = group.die(ErrorCode.NOT_COORDINATOR, driver.now)
    assert [(ticket, answer.code) for ticket, answer in result.replies] == [(waiting, ErrorCode.NOT_COORDINATOR)]
    group.check()
    member = driver.joined(first).member_id
    calls: list[Callable[[], ErrorCode]] = [
        lambda: driver.joined(driver.start_join(member)).code,
        lambda: driver.joined(driver.start_join(version=3)).code,
        lambda: driver.synced(driver.start_sync(member, 1)).code,
        lambda: driver.heartbeat(member, 1),
        lambda: driver.commit(member, 1),
    ]
    assert {call() for call in calls} == {ErrorCode.COORDINATOR_NOT_AVAILABLE}
    assert group.fire(Now(1 << 40, 0)) is None
