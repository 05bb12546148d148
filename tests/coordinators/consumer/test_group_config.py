"""The configuration of one consumer group; tests/interop/test_group_configs.py compares it with Kafka's."""

from __future__ import annotations

import pytest

from seglog.coordinators.consumer.group_config import (
    ASSIGNMENT_INTERVAL,
    GROUP_KEYS,
    HEARTBEAT_INTERVAL,
    SESSION_TIMEOUT,
    GroupConfigBounds,
    check_group_config,
    group_config,
)
from seglog.core.errors import InvalidConfigError

BOUNDS = GroupConfigBounds()


def values(session: int, heartbeat: int, assignment: int) -> dict[str, str]:
    return {SESSION_TIMEOUT: str(session), HEARTBEAT_INTERVAL: str(heartbeat), ASSIGNMENT_INTERVAL: str(assignment)}


def test_a_group_without_values_has_the_brokers() -> None:
    assert group_config({}, BOUNDS) == values(45_000, 5_000, 1_000)
    longer = BOUNDS._replace(group_consumer_session_timeout_ms=50_000)
    assert group_config({}, longer) == values(50_000, 5_000, 1_000)
    assert {name: BOUNDS.of(name)[0] for name in GROUP_KEYS} == {name: row.default for name, row in GROUP_KEYS.items()}


def test_own_values_count_and_are_brought_into_the_bounds() -> None:
    given = {SESSION_TIMEOUT: "55000", HEARTBEAT_INTERVAL: "6000", ASSIGNMENT_INTERVAL: "0"}
    check_group_config(given, BOUNDS)
    assert group_config(given, BOUNDS) == values(55_000, 6_000, 0)
    narrower = BOUNDS._replace(
        group_consumer_max_session_timeout_ms=50_000,
        group_consumer_min_heartbeat_interval_ms=7_000,
        group_consumer_min_assignment_interval_ms=10,
    )
    assert group_config(given, narrower) == values(50_000, 7_000, 10)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({SESSION_TIMEOUT: "44999"}, "session.timeout.ms must be in the range 45000 to 60000 inclusive."),
        ({SESSION_TIMEOUT: "60001"}, "session.timeout.ms must be in the range 45000 to 60000 inclusive."),
        ({HEARTBEAT_INTERVAL: "4999"}, "heartbeat.interval.ms must be in the range 5000 to 15000 inclusive."),
        ({HEARTBEAT_INTERVAL: "15001"}, "heartbeat.interval.ms must be in the range 5000 to 15000 inclusive."),
        ({ASSIGNMENT_INTERVAL: "15001"}, "assignment.interval.ms must be in the range 0 to 15000 inclusive."),
    ],
)
def test_a_value_outside_of_the_bounds_is_refused(given: dict[str, str], why: str) -> None:
    with pytest.raises(InvalidConfigError, match=why):
        check_group_config(given, BOUNDS)


def test_a_session_is_longer_than_the_time_between_heartbeats() -> None:
    wide = BOUNDS._replace(group_consumer_max_heartbeat_interval_ms=100_000)
    with pytest.raises(InvalidConfigError, match=r"session\.timeout\.ms must be greater than consumer\.heartbeat"):
        check_group_config({HEARTBEAT_INTERVAL: "45000"}, wide)


def test_only_given_values_are_checked() -> None:
    """The broker's own values may be outside of its bounds, and conflict (Kafka 4.4)."""
    odd = BOUNDS._replace(group_consumer_session_timeout_ms=1, group_consumer_heartbeat_interval_ms=2)
    check_group_config({ASSIGNMENT_INTERVAL: "5"}, odd)
    check_group_config({}, odd)
    with pytest.raises(InvalidConfigError, match=r"session\.timeout\.ms must be greater than consumer\.heartbeat"):
        check_group_config({HEARTBEAT_INTERVAL: "5000"}, odd)
