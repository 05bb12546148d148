"""Kafka's settings for transactions."""

from __future__ import annotations

from typing import NamedTuple


class TransactionSettings(NamedTuple):
    """Kafka's keys (with underscores) and defaults; times in milliseconds."""

    transaction_state_log_num_partitions: int = 50
    transaction_state_log_replication_factor: int = 1
    transaction_state_log_min_isr: int = 1
    transaction_state_log_segment_bytes: int = 100 << 20
    transaction_max_timeout_ms: int = 900_000
    transactional_id_expiration_ms: int = 604_800_000
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = 10_000
    transaction_remove_expired_transaction_cleanup_interval_ms: int = 3_600_000
    seglog_max_transactional_ids: int = 100_000

    def topic_config(self) -> dict[str, str]:
        """The configuration that ``__transaction_state`` is made with
        (``TransactionStateManager.transactionStateTopicConfigs``)."""
        return {
            "unclean.leader.election.enable": "false",
            "compression.type": "uncompressed",
            "cleanup.policy": "compact",
            "min.insync.replicas": str(self.transaction_state_log_min_isr),
            "segment.bytes": str(self.transaction_state_log_segment_bytes),
        }
