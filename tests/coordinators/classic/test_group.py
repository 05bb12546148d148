"""A classic group, one situation per test: joins, rebalances, assignments; their answers and records."""

from __future__ import annotations

import pytest

from seglog.coordinators.classic import membership
from seglog.coordinators.classic.group import ClassicGroup
from seglog.coordinators.classic.messages import Protocols
from seglog.coordinators.classic.state import NEXT, GroupLimits, GroupState
from seglog.coordinators.group_records import GroupMetadataKey, GroupMetadataValue
from seglog.core.error_codes import ErrorCode
from tests.coordinators.shard_driver import (
    BOTH,
    DELAY,
    GROUP,
    RANGE,
    REBALANCE,
    SESSION,
    WALL,
    ShardDriver,
    subscription,
)


def test_every_state_but_dead_may_die() -> None:
    assert all(GroupState.DEAD in following for state, following in NEXT.items() if state is not GroupState.DEAD)
    assert NEXT[GroupState.DEAD] == frozenset()


# Joining


def test_two_members_share(driver: ShardDriver) -> None:
    first, second = driver.join_twice(), driver.join_twice()
    driver.advance(DELAY)
    assert first not in driver.answers  # the second one came meanwhile: others may
    driver.advance(DELAY)
    leader, follower = driver.joined(first), driver.joined(second)
    assert (leader.generation, leader.protocol_type, leader.protocol) == (1, "consumer", "range")
    assert leader.leader == follower.leader == leader.member_id
    assert [member.member_id for member in leader.members] == [leader.member_id, follower.member_id]
    assert [member.metadata for member in leader.members] == [RANGE[0][1]] * 2
    assert follower.members == ()
    waiting = driver.start_sync(follower.member_id, 1)
    assert waiting not in driver.answers
    asked = driver.start_sync(leader.member_id, 1, {leader.member_id: b"L", follower.member_id: b"F"})
    assert (driver.synced(asked).assignment, driver.synced(waiting).assignment) == (b"L", b"F")
    assert driver.synced(waiting)[1:3] == ("consumer", "range")
    assert driver.heartbeat(follower.member_id, 1) is ErrorCode.NONE


def test_group_metadata_records_of_a_group_lifetime(driver: ShardDriver) -> None:
    (member,) = driver.stable()
    driver.leave(member)
    values = [value for key, value in driver.log if key == GroupMetadataKey(GROUP)]
    created, assigned, emptied = values
    assert created == GroupMetadataValue("", 0, None, None, WALL, ())
    assert isinstance(assigned, GroupMetadataValue)
    assert assigned[:5] == ("consumer", 1, "range", member, WALL + DELAY)
    assert assigned.members[0] == (member, None, "c", "/h", REBALANCE, SESSION, RANGE[0][1], member.encode())
    assert emptied == GroupMetadataValue("consumer", 2, None, None, driver.now.wall, ())


@pytest.mark.parametrize("version", range(10))
def test_a_new_member_gets_its_id_before_it_joins_from_version_4_on(driver: ShardDriver, version: int) -> None:
    ticket = driver.start_join(version=version)
    if version < 4:
        assert ticket not in driver.answers
        assert len(driver.group.members) == 1
        return
    answer = driver.joined(ticket)
    assert (answer.code, answer.member_id, answer.generation) == (ErrorCode.MEMBER_ID_REQUIRED, "c-1", -1)
    assert list(driver.group.members.pending) == ["c-1"]
    driver.advance(SESSION)
    assert not driver.group.members.pending
    assert driver.joined(driver.start_join("c-1", version=version)).code is ErrorCode.UNKNOWN_MEMBER_ID


def test_rebalance_waits_for_members_with_new_ids(driver: ShardDriver) -> None:
    (member,) = driver.stable()
    given = driver.joined(driver.start_join())
    driver.start_join(member)
    assert driver.group.state is GroupState.PREPARING
    last = driver.start_join(given.member_id)
    assert driver.joined(last).generation == 2


def test_pending_members_are_bounded(driver: ShardDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership, "MAX_PENDING", 3)
    ids = [driver.joined(driver.start_join()).member_id for _ in range(5)]
    assert list(driver.group.members.pending) == ids[2:]
    assert driver.joined(driver.start_join(ids[0])).code is ErrorCode.UNKNOWN_MEMBER_ID


def test_an_initial_rebalance_waits_for_others_but_not_for_ever() -> None:
    driver = ShardDriver()
    first = driver.start_join(version=3, rebalance=4 * DELAY)
    for _ in range(4):
        driver.advance(DELAY - 1)
        driver.start_join(version=3, rebalance=4 * DELAY)
    driver.advance(3)
    assert first not in driver.answers
    driver.advance(1)
    assert len(driver.joined(first).members) == 5


def test_no_delay_at_all() -> None:
    driver = ShardDriver(GroupLimits(0))
    ticket = driver.join_twice()
    driver.advance(0)
    assert driver.joined(ticket).generation == 1


@pytest.mark.parametrize(
    ("protocol_type", "protocols"), [("", RANGE), ("consumer", ()), ("connect", RANGE), ("consumer", (("other", b""),))]
)
def test_a_member_that_speaks_otherwise(driver: ShardDriver, protocol_type: str, protocols: Protocols) -> None:
    if protocol_type and protocols:
        driver.stable()
    answer = driver.joined(driver.start_join(protocol_type=protocol_type, protocols=protocols))
    assert (answer.code, answer.member_id) == (ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "")


def test_most_votes_win() -> None:
    driver = ShardDriver(GroupLimits(0))
    likes_a, likes_b = (("a", b""), ("b", b"")), (("b", b""), ("a", b""))
    tickets = [driver.start_join(version=3, protocols=likes) for likes in (likes_a, likes_b, likes_b)]
    assert driver.start_join(version=3, protocols=(("c", b""),)) in driver.answers
    driver.advance(0)
    assert {driver.joined(ticket).protocol for ticket in tickets} == {"b"}


def test_only_protocols_of_all_members_are_chosen() -> None:
    driver = ShardDriver(GroupLimits(0))
    tickets = [driver.start_join(version=3, protocols=BOTH), driver.start_join(version=3, protocols=BOTH[1:])]
    driver.advance(0)
    assert {driver.joined(ticket).protocol for ticket in tickets} == {"roundrobin"}


def test_an_unknown_member_or_group(driver: ShardDriver) -> None:
    answer = driver.joined(driver.start_join("nobody"))
    assert (answer.code, answer.member_id) == (ErrorCode.UNKNOWN_MEMBER_ID, "nobody")
    assert driver.shard.groups == {}
    assert driver.log == []
    driver.stable()
    assert driver.joined(driver.start_join("nobody")).code is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_group_that_could_not_be_written_is_not_there(driver: ShardDriver) -> None:
    driver.fails = ErrorCode.NOT_COORDINATOR
    assert driver.joined(driver.start_join(version=3)).code is ErrorCode.NOT_COORDINATOR
    assert driver.shard.groups == {}
    assert driver.joined(driver.start_join(version=4)).code is ErrorCode.MEMBER_ID_REQUIRED
    assert driver.shard.groups == {}


# The size of a group


def test_full_group_refuses_new_members() -> None:
    driver = ShardDriver(GroupLimits(DELAY, max_size=2))
    members = driver.stable(2)
    answer = driver.joined(driver.start_join(version=3))
    assert (answer.code, answer.member_id) == (ErrorCode.GROUP_MAX_SIZE_REACHED, "")
    assert driver.heartbeat(members[0], 1) is ErrorCode.NONE
    driver.start_join(members[0])
    assert driver.heartbeat(members[1], 1) is ErrorCode.REBALANCE_IN_PROGRESS
    driver.start_join(version=3)
    assert driver.joined(driver.start_join(members[1])).code is ErrorCode.GROUP_MAX_SIZE_REACHED


def test_a_group_over_its_size_rebalances_when_it_is_loaded(driver: ShardDriver) -> None:
    driver.stable(3)
    shard = driver.replayed()
    shard.limits = GroupLimits(DELAY, max_size=2)
    group = ClassicGroup.restored(GROUP, driver.group.value(), shard.limits)
    group.loaded(driver.now)
    assert group.state is GroupState.PREPARING


# Rebalancing


def test_a_leader_that_joins_again_makes_all_join(driver: ShardDriver) -> None:
    leader, follower = driver.stable(2)
    again = driver.start_join(leader)
    assert driver.heartbeat(follower, 1) is ErrorCode.REBALANCE_IN_PROGRESS
    assert driver.commit(follower, 1) is ErrorCode.NONE
    last = driver.start_join(follower)
    assert driver.joined(again).generation == driver.joined(last).generation == 2


def test_rejoining_follower_without_changes_does_not_rebalance(driver: ShardDriver) -> None:
    leader, follower = driver.stable(2)
    answer = driver.joined(driver.start_join(follower))
    assert (answer.code, answer.generation, answer.leader, answer.members) == (ErrorCode.NONE, 1, leader, ())
    assert driver.heartbeat(leader, 1) is ErrorCode.NONE
    other = (("range", subscription("t", "u")),)
    driver.start_join(follower, protocols=other)
    assert driver.heartbeat(leader, 1) is ErrorCode.REBALANCE_IN_PROGRESS


def test_joining_again_while_assignments_are_made(driver: ShardDriver) -> None:
    first, second = driver.join_twice(), driver.join_twice()
    driver.advance(2 * DELAY)
    leader, follower = driver.joined(first), driver.joined(second)
    assert driver.joined(driver.start_join(leader.member_id)) == leader
    assert driver.joined(driver.start_join(follower.member_id)) == follower
    waiting = driver.start_sync(follower.member_id, 1)
    driver.start_join(leader.member_id, protocols=BOTH)
    assert driver.synced(waiting).code is ErrorCode.REBALANCE_IN_PROGRESS
    assert driver.group.state is GroupState.PREPARING


def test_member_that_does_not_rejoin_is_removed(driver: ShardDriver) -> None:
    leader, follower = driver.stable(2)
    again = driver.start_join(leader)
    for _ in range(REBALANCE // 5000):
        driver.heartbeat(follower, 1)
        driver.advance(5000)
    assert driver.joined(again).generation == 2
    assert [member.member_id for member in driver.joined(again).members] == [leader]
    assert driver.heartbeat(follower, 1) is ErrorCode.UNKNOWN_MEMBER_ID


def test_another_leads_when_the_leader_does_not_join_again(driver: ShardDriver) -> None:
    leader, follower = driver.stable(2)
    driver.start_join(follower, protocols=BOTH)
    again = driver.start_join(follower, protocols=BOTH)
    driver.advance(REBALANCE)
    assert leader not in driver.group.members
    assert driver.joined(again).leader == follower


def test_a_client_that_asks_again_gets_one_answer(driver: ShardDriver) -> None:
    leader, _ = driver.stable(2)
    before, after = driver.start_join(leader), driver.start_join(leader)
    assert driver.joined(before).code is ErrorCode.REBALANCE_IN_PROGRESS
    assert after not in driver.answers


def test_a_session_that_ends(driver: ShardDriver) -> None:
    leader, follower = driver.stable(2)
    driver.advance(SESSION - 1)
    assert driver.heartbeat(leader, 1) is ErrorCode.NONE
    driver.advance(1)
    assert driver.heartbeat(leader, 1) is ErrorCode.REBALANCE_IN_PROGRESS
    assert follower not in driver.group.members
    driver.advance(SESSION)
    assert driver.group.state is GroupState.EMPTY
    assert driver.group.generation == 2
    assert driver.heartbeat(leader, 1) is ErrorCode.UNKNOWN_MEMBER_ID


def test_member_waiting_in_join_group_is_not_removed(driver: ShardDriver) -> None:
    leader, follower = driver.stable(2)
    again = driver.start_join(leader)
    for _ in range(REBALANCE // 5000 - 1):
        driver.advance(5000)
        driver.heartbeat(follower, 1)
    assert leader in driver.group.members
    assert again not in driver.answers


def test_a_new_member_that_never_learns_its_id_is_out_after_five_minutes(driver: ShardDriver) -> None:
    (member,) = driver.stable()
    ticket = driver.start_join(version=3, rebalance=2_000_000)
    for _ in range(70):
        driver.heartbeat(member, 1)
        driver.advance(5000)
        if ticket in driver.answers:
            break
    assert driver.now.monotonic >= 300_000
    assert driver.joined(ticket).code is ErrorCode.UNKNOWN_MEMBER_ID


def test_member_that_does_not_sync_is_removed(driver: ShardDriver) -> None:
    first, second = driver.join_twice(), driver.join_twice()
    driver.advance(2 * DELAY)
    leader, follower = driver.joined(first).member_id, driver.joined(second).member_id
    driver.start_sync(leader, 1, {leader: b"x"})
    assert driver.group.state is GroupState.STABLE
    for _ in range(REBALANCE // 5000):
        assert driver.heartbeat(leader, 1) is ErrorCode.NONE
        driver.heartbeat(follower, 1)
        driver.advance(5000)
    assert driver.heartbeat(leader, 1) is ErrorCode.REBALANCE_IN_PROGRESS
    assert follower not in driver.group.members


def test_group_becomes_empty_if_no_member_syncs(driver: ShardDriver) -> None:
    ticket = driver.join_twice()
    driver.advance(DELAY)
    member = driver.joined(ticket).member_id
    for _ in range(REBALANCE // 5000):
        driver.heartbeat(member, 1)
        driver.advance(5000)
    assert driver.group.state is GroupState.EMPTY
    assert driver.group.generation == 2


# Assignments


def test_a_sync_that_cannot_be(driver: ShardDriver) -> None:
    assert driver.synced(driver.start_sync("nobody", 1)).code is ErrorCode.UNKNOWN_MEMBER_ID
    (member,) = driver.stable()
    cases = {
        driver.start_sync("nobody", 1): ErrorCode.UNKNOWN_MEMBER_ID,
        driver.start_sync(member, 2): ErrorCode.ILLEGAL_GENERATION,
        driver.start_sync(member, 1, protocol_type="connect"): ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
        driver.start_sync(member, 1, protocol="sticky"): ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
        driver.start_sync(member, 1, protocol_type="consumer", protocol="range"): ErrorCode.NONE,
    }
    assert {ticket: driver.synced(ticket).code for ticket in cases} == cases
    driver.start_join(version=3)
    assert driver.synced(driver.start_sync(member, 1)).code is ErrorCode.REBALANCE_IN_PROGRESS


def test_a_stable_group_gives_the_assignment_again(driver: ShardDriver) -> None:
    _, follower = driver.stable(2)
    assert driver.synced(driver.start_sync(follower, 1)).assignment == follower.encode()


def test_a_member_without_an_assignment_gets_an_empty_one(driver: ShardDriver) -> None:
    first, second = driver.join_twice(), driver.join_twice()
    driver.advance(2 * DELAY)
    waiting = driver.start_sync(driver.joined(second).member_id, 1)
    driver.start_sync(driver.joined(first).member_id, 1)
    assert driver.synced(waiting) == (ErrorCode.NONE, "consumer", "range", b"")


def test_an_assignment_that_cannot_be_written(driver: ShardDriver) -> None:
    ticket = driver.join_twice()
    driver.advance(DELAY)
    member = driver.joined(ticket).member_id
    driver.fails = ErrorCode.UNKNOWN_SERVER_ERROR
    assert driver.synced(driver.start_sync(member, 1, {member: b"x"})).code is ErrorCode.UNKNOWN_SERVER_ERROR
    assert driver.group.state is GroupState.PREPARING
    driver.fails = ErrorCode.NONE
    assert driver.joined(driver.start_join(member)).generation == 2


def test_an_assignment_of_an_old_generation_comes_too_late(driver: ShardDriver) -> None:
    first, second = driver.join_twice(), driver.join_twice()
    driver.advance(2 * DELAY)
    leader, follower = driver.joined(first).member_id, driver.joined(second).member_id
    driver.holds = True
    asked = driver.start_sync(leader, 1, {leader: b"old"})
    assert asked not in driver.answers
    driver.leave(follower)
    assert driver.synced(asked).code is ErrorCode.REBALANCE_IN_PROGRESS
    again = driver.start_join(leader)
    assert driver.joined(again).generation == 2
    driver.commit_all()
    assert driver.group.state is GroupState.COMPLETING
    assert driver.group.members[leader].assignment == b""
