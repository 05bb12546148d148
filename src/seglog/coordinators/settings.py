"""Kafka's settings for groups."""

from __future__ import annotations

from typing import NamedTuple

from seglog.coordinators.classic.state import GroupLimits
from seglog.coordinators.consumer.settings import ASSIGNORS, ConsumerRules, MigrationPolicy
from seglog.records.compression import Codec


class GroupSettings(NamedTuple):
    """Kafka's keys (with underscores) and defaults; times are milliseconds unless the name says otherwise."""

    group_min_session_timeout_ms: int = 6_000
    group_max_session_timeout_ms: int = 1_800_000
    group_initial_rebalance_delay_ms: int = 3_000
    group_max_size: int = 2**31 - 1
    offset_metadata_max_bytes: int = 4_096
    offsets_retention_minutes: int = 7 * 24 * 60
    offsets_retention_check_interval_ms: int = 600_000
    offsets_topic_num_partitions: int = 50
    offsets_topic_replication_factor: int = 1
    offsets_topic_segment_bytes: int = 100 << 20
    offsets_topic_compression_codec: int = Codec.NONE
    offsets_commit_timeout_ms: int = 5_000
    group_consumer_session_timeout_ms: int = 45_000
    group_consumer_heartbeat_interval_ms: int = 5_000
    group_consumer_max_size: int = 2**31 - 1
    group_consumer_assignors: tuple[str, ...] = ASSIGNORS
    group_consumer_migration_policy: str = MigrationPolicy.BIDIRECTIONAL.value
    group_consumer_assignment_interval_ms: int = 1_000
    group_consumer_regex_refresh_interval_ms: int = 600_000
    seglog_max_groups: int = 100_000

    def topic_config(self) -> dict[str, str]:
        """The configuration of a new ``__consumer_offsets`` (``GroupCoordinatorService.groupMetadataTopicConfigs``)."""
        return {
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": str(self.offsets_topic_segment_bytes),
        }

    def consumer_rules(self, classic: GroupLimits) -> ConsumerRules:
        """The settings of consumer groups that have no configuration of their own."""
        return ConsumerRules(
            session_timeout=self.group_consumer_session_timeout_ms,
            heartbeat_interval=self.group_consumer_heartbeat_interval_ms,
            max_size=self.group_consumer_max_size,
            classic=classic,
            assignors=self.group_consumer_assignors,
            migration=MigrationPolicy(self.group_consumer_migration_policy),
            assignment_interval=self.group_consumer_assignment_interval_ms,
            regex_refresh_interval=self.group_consumer_regex_refresh_interval_ms,
        )


def java_hash(text: str) -> int:
    """Return the absolute value of ``String.hashCode``, as Kafka does: the smallest int has no absolute value and gives
    0.

    >>> java_hash("hello"), java_hash("polygenelubricants")
    (99162322, 0)
    """
    value = 0
    data = text.encode("utf-16-be", "surrogatepass")
    for position in range(0, len(data), 2):
        value = (31 * value + (data[position] << 8 | data[position + 1])) & 0xFFFFFFFF
    value = value - (1 << 32) if value >> 31 else value
    return 0 if value == -(1 << 31) else abs(value)
