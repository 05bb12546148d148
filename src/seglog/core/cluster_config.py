"""Kafka's keys of a broker in a cluster: their names, defaults and ranges. See `seglog.core.broker_config`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from seglog.core.errors import InvalidConfigError
from seglog.core.settings import Boolean, Text, int32, int64, setting

LEADER_SELECTOR: Final = "org.apache.kafka.common.replica.LeaderSelector"
RACK_AWARE_SELECTOR: Final = "org.apache.kafka.common.replica.RackAwareReplicaSelector"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterConfig:
    """Of a node that is alone none of these has an effect."""

    auto_leader_rebalance_enable: bool = setting(
        "auto.leader.rebalance.enable", Boolean(), "whether preferred leaders get their partitions back", default=True
    )
    cluster_store: str = setting(
        "cluster.store",
        Text(),
        "the metadata store that brokers share, zookeeper://… or sqlite:…; empty: alone; not a key of Kafka's",
        default="",
    )
    controlled_shutdown_enable: bool = setting(
        "controlled.shutdown.enable",
        Boolean(),
        "whether a broker that stops gives up its leaders first",
        default=True,
    )
    inter_broker_listener_name: str = setting(
        "inter.broker.listener.name",
        Text(),
        "the listener at which other brokers reach this one; the first, if none is given",
        default="",
    )
    leader_imbalance_check_interval_seconds: int = setting(
        "leader.imbalance.check.interval.seconds",
        int64(1),
        "seconds between two looks whether leaders are where they are preferred",
        default=300,
    )
    leader_imbalance_per_broker_percentage: int = setting(
        "leader.imbalance.per.broker.percentage",
        int32(0, 100),
        "percent of its preferred partitions that a broker may lack before they are moved; Kafka 4 has no such limit",
        default=10,
    )
    replica_fetch_backoff_ms: int = setting(
        "replica.fetch.backoff.ms", int32(0), "ms before a follower asks again after an error", default=1000
    )
    replica_fetch_max_bytes: int = setting(
        "replica.fetch.max.bytes", int32(0), "bytes that a follower asks for of a partition", default=1024**2
    )
    replica_fetch_min_bytes: int = setting(
        "replica.fetch.min.bytes", int32(0), "bytes that a follower waits for", default=1
    )
    replica_fetch_response_max_bytes: int = setting(
        "replica.fetch.response.max.bytes", int32(0), "bytes that a follower asks for at a time", default=10 * 1024**2
    )
    replica_fetch_wait_max_ms: int = setting(
        "replica.fetch.wait.max.ms", int32(0), "ms that a follower waits for replica.fetch.min.bytes", default=500
    )
    replica_lag_time_max_ms: int = setting(
        "replica.lag.time.max.ms",
        int64(1),
        "ms after which a follower that has not caught up is no longer in sync",
        default=30_000,
    )
    replica_socket_timeout_ms: int = setting(
        "replica.socket.timeout.ms",
        int32(1),
        "ms that a follower waits for an answer beyond the time it may take",
        default=30_000,
    )
    replica_selector_class: str = setting(
        "replica.selector.class",
        Text(),
        "which replica a consumer is to read: the leader, or with RackAwareReplicaSelector one in its rack",
        default="",
    )

    def check_cluster(self) -> None:
        """What does not go together (``KafkaConfig.validateValues``)."""
        if self.replica_fetch_wait_max_ms > self.replica_lag_time_max_ms:
            raise InvalidConfigError(
                "replica.fetch.wait.max.ms should always be less than or equal to replica.lag.time.max.ms to prevent "
                "frequent changes in ISR"
            )
        if self.replica_selector_class not in ("", LEADER_SELECTOR, RACK_AWARE_SELECTOR):
            raise InvalidConfigError(
                f"replica.selector.class={self.replica_selector_class!r} is not allowed: {LEADER_SELECTOR}, "
                f"{RACK_AWARE_SELECTOR}"
            )

    @property
    def reads_by_rack(self) -> bool:
        """Whether consumers are sent to a replica in their own rack (KIP-392)."""
        return self.replica_selector_class == RACK_AWARE_SELECTOR
