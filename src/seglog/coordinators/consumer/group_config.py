"""The configuration of one consumer group (KIP-848, KIP-1263; Kafka's ``GroupConfig``). Pure.

A group's own values override the broker's ``group.consumer.*``. They are checked against the broker's bounds when they
are set. The bounds may change afterwards, and those of brokers may differ: `group_config` then takes the nearest value
that is allowed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from seglog.core.errors import InvalidConfigError
from seglog.core.settings import Setting, int32

SESSION_TIMEOUT: Final = "consumer.session.timeout.ms"
HEARTBEAT_INTERVAL: Final = "consumer.heartbeat.interval.ms"
ASSIGNMENT_INTERVAL: Final = "consumer.assignment.interval.ms"


class GroupConfigBounds(NamedTuple):
    """A broker's keys (with underscores) and Kafka's defaults: what a group without a configuration has, and the bounds
    of the others."""

    group_consumer_session_timeout_ms: int = 45_000
    group_consumer_min_session_timeout_ms: int = 45_000
    group_consumer_max_session_timeout_ms: int = 60_000
    group_consumer_heartbeat_interval_ms: int = 5_000
    group_consumer_min_heartbeat_interval_ms: int = 5_000
    group_consumer_max_heartbeat_interval_ms: int = 15_000
    group_consumer_assignment_interval_ms: int = 1_000
    group_consumer_min_assignment_interval_ms: int = 0
    group_consumer_max_assignment_interval_ms: int = 15_000

    def of(self, key: str) -> tuple[int, int, int]:
        """The default of a group's key, the lowest and the highest value."""
        name = key.removeprefix("consumer.").replace(".", "_")
        default, low, high = (getattr(self, f"group_consumer_{kind}{name}") for kind in ("", "min_", "max_"))
        return default, low, high


GROUP_KEYS: Final[Mapping[str, Setting]] = {
    name: Setting(name, int32(low), default, doc, name.removeprefix("consumer.").replace(".", "_"))
    for name, low, default, doc in (
        (ASSIGNMENT_INTERVAL, 0, 1_000, "ms between two target assignments of the group"),
        (HEARTBEAT_INTERVAL, 1, 5_000, "ms between two heartbeats of a member"),
        (SESSION_TIMEOUT, 1, 45_000, "ms of silence after which a member is removed"),
    )
}


def check_group_config(given: Mapping[str, str], bounds: GroupConfigBounds) -> None:
    """Raise `InvalidConfigError`, in Kafka's words, if values of a group conflict with the bounds or with each other.
    Each value is of its key's type."""
    values = {name: int(given[name]) if name in given else bounds.of(name)[0] for name in GROUP_KEYS}
    for name in (HEARTBEAT_INTERVAL, SESSION_TIMEOUT, ASSIGNMENT_INTERVAL):
        _, low, high = bounds.of(name)
        if name in given and not low <= values[name] <= high:
            raise InvalidConfigError(f"{name} must be in the range {low} to {high} inclusive.")
    checked = given.keys() & {SESSION_TIMEOUT, HEARTBEAT_INTERVAL}
    if checked and values[SESSION_TIMEOUT] <= values[HEARTBEAT_INTERVAL]:
        raise InvalidConfigError(f"{SESSION_TIMEOUT} must be greater than {HEARTBEAT_INTERVAL}")


def group_config(given: Mapping[str, str], bounds: GroupConfigBounds) -> dict[str, str]:
    """The values in force, by key, of a group with these values of its own.

    >>> group_config({"consumer.session.timeout.ms": "90000"}, GroupConfigBounds())["consumer.session.timeout.ms"]
    '60000'
    """

    def value(name: str) -> int:
        default, low, high = bounds.of(name)
        return min(max(int(given[name]), low), high) if name in given else default

    return {name: str(value(name)) for name in GROUP_KEYS}
