"""The coordinator's log messages: joins, rebalances, fenced members, expired sessions, as Kafka's."""

from __future__ import annotations

import logging

import pytest

from seglog.coordinators.classic.state import GroupLimits
from seglog.coordinators.group_coordinator import GroupCoordinator
from seglog.core.error_codes import ErrorCode
from tests.coordinators.running_coordinator import RunningCoordinator, join, stable
from tests.coordinators.shard_driver import DELAY, REBALANCE, SESSION, ShardDriver


@pytest.fixture
def driver() -> ShardDriver:
    return ShardDriver(GroupLimits(DELAY))


def test_join_and_rebalance_are_logged(driver: ShardDriver) -> None:
    (member,) = driver.stable(1)
    assert driver.events == [
        f"A member without an id joins group g in state Empty (client id c, /h). It is to join again as {member}.",
        f"Member {member} joins group g in state Empty (client id c, /h, group.instance.id None).",
        (
            "Preparing to rebalance group g in state Empty with old generation 0 (reason: adding new member "
            f"{member} with group.instance.id None)."
        ),
        "Stabilized group g generation 1 with 1 members.",
        (
            f"Assignment received from leader {member} for group g for generation 1. The group has 1 members, 0 of "
            "which are static."
        ),
    ]


def test_a_member_whose_session_expires_is_named(driver: ShardDriver) -> None:
    (member,) = driver.stable(1)
    driver.events.clear()
    driver.advance(SESSION + REBALANCE)
    assert driver.events == [
        f"Member {member} of group g has failed: its session has expired.",
        (
            "Preparing to rebalance group g in state Stable with old generation 1 (reason: the session of member "
            f"{member} has expired)."
        ),
        "Group g with generation 2 is now empty.",
    ]


def test_a_member_that_leaves_is_named(driver: ShardDriver) -> None:
    (member,) = driver.stable(1)
    driver.events.clear()
    driver.leave(member)
    assert driver.events[0] == f"Member {member} has left group g by a LeaveGroup request."
    assert driver.events[-1] == "Group g with generation 2 is now empty."


def test_a_static_member_that_is_replaced_and_then_fenced_is_named(driver: ShardDriver) -> None:
    _, old = driver.stable(1, instances=["i"])
    driver.events.clear()
    new = driver.joined(driver.start_join(instance="i")).member_id
    assert driver.joined(driver.start_join(old, instance="i")).code is ErrorCode.FENCED_INSTANCE_ID
    assert driver.events == [
        f"Static member with group.instance.id i joins group g in state Stable: {new} replaces {old}, which is fenced.",
        f"Member {old} of group g is fenced: another member has its group.instance.id i.",
    ]


def test_the_coordinator_logs_them_at_info(caplog: pytest.LogCaptureFixture) -> None:
    async def act(coordinator: GroupCoordinator) -> None:
        await coordinator.locate("g")
        old = await stable(coordinator)
        await coordinator.join(join())
        assert await coordinator.heartbeat("g", old, "i", 1) is ErrorCode.FENCED_INSTANCE_ID

    with caplog.at_level(logging.INFO, "seglog.coordinators"):
        RunningCoordinator().run(act)
    assert "Stabilized group g generation 1 with 1 members." in caplog.text
    assert "of group g is fenced: another member has its group.instance.id i." in caplog.text
