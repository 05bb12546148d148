"""Kafka's settings for consumer groups (``group.consumer.*``)."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final, NamedTuple

from seglog.coordinators.classic.state import GroupLimits


class MigrationPolicy(Enum):
    """``group.consumer.migration.policy`` (``ConsumerGroupMigrationPolicy``)."""

    BIDIRECTIONAL = "bidirectional"
    UPGRADE = "upgrade"
    DOWNGRADE = "downgrade"
    DISABLED = "disabled"

    @property
    def upgrades(self) -> bool:
        return self in (MigrationPolicy.BIDIRECTIONAL, MigrationPolicy.UPGRADE)

    @property
    def downgrades(self) -> bool:
        return self in (MigrationPolicy.BIDIRECTIONAL, MigrationPolicy.DOWNGRADE)


ASSIGNORS: Final = ("uniform", "range")
"""The default one is first."""


class ConsumerRules(NamedTuple):
    """The settings that a decision about one group needs; times are milliseconds. ``classic`` are those of the classic
    group that it may become."""

    session_timeout: int = 45_000
    heartbeat_interval: int = 5_000
    max_size: int = 2**31 - 1
    classic: GroupLimits = GroupLimits()
    assignors: tuple[str, ...] = ASSIGNORS
    migration: MigrationPolicy = MigrationPolicy.BIDIRECTIONAL
    assignment_interval: int = 1_000
    regex_refresh_interval: int = 600_000

    def of_group(self, configs: Mapping[str, str]) -> ConsumerRules:
        """With the configuration of one group (``GroupConfig``)."""
        return self._replace(
            session_timeout=int(configs.get("consumer.session.timeout.ms", self.session_timeout)),
            heartbeat_interval=int(configs.get("consumer.heartbeat.interval.ms", self.heartbeat_interval)),
            assignment_interval=int(configs.get("consumer.assignment.interval.ms", self.assignment_interval)),
        )
