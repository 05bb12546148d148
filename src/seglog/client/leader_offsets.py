"""Offsets of many partitions from their leaders (ListOffsets, KIP-79)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from seglog.client.bootstrap import HostPort
from seglog.client.cluster_connections import ClusterConnections
from seglog.client.connection import describe_code
from seglog.core.clock import SystemClock
from seglog.core.error_codes import ErrorCode
from seglog.core.errors import BrokerUnavailableError, RequestFailedError
from seglog.core.types import TopicPartition
from seglog.protocol.apis import ApiKey

LATEST: Final = -1
EARLIEST: Final = -2
"""Timestamps that stand for the ends of a log."""
MOVED: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
    }
)
"""Errors of a partition after which a client looks up its leader again. A topic that is being created has them too."""


def list_offsets(
    cluster: ClusterConnections,
    wanted: Mapping[TopicPartition, int],
    *,
    read_committed: bool = False,
    retries: int = 3,
    retry_wait: float = 1.0,
) -> dict[TopicPartition, int]:
    """The offset of each partition for a timestamp in ms, `EARLIEST` or `LATEST`; -1 if no record is that late.

    With ``read_committed`` the latest offset is the last stable one, else the high watermark. While a leader is missing
    or moves, the request is repeated up to ``retries`` times. `RequestFailedError` names partition and broker.
    """
    found: dict[TopicPartition, int] = {}
    missing = dict(wanted)
    for attempt in range(retries + 1):
        if attempt:
            SystemClock().sleep(retry_wait)
        problems = _ask_leaders(cluster, missing, found, read_committed=read_committed)
        missing = {partition: wanted[partition] for partition in problems}
        if not missing:
            return found
    partition = min(problems)
    raise RequestFailedError(f"offsets of {partition}: {problems[partition]}")


def _ask_leaders(
    cluster: ClusterConnections,
    wanted: Mapping[TopicPartition, int],
    found: dict[TopicPartition, int],
    *,
    read_committed: bool,
) -> dict[TopicPartition, str]:
    """Ask each leader once. Adds to ``found`` and returns the reasons for the other partitions."""
    problems: dict[TopicPartition, str] = {}
    metadata = cluster.metadata({partition.topic for partition in wanted})
    by_leader: dict[HostPort, dict[str, list[Mapping[str, Any]]]] = {}
    for partition, timestamp in wanted.items():
        leader = metadata.leader(partition)
        address = None if leader is None else metadata.brokers.get(leader.leader)
        if address is None:
            problems[partition] = "the partition does not exist" if leader is None else "the partition has no leader"
            continue
        one = {"partition_index": partition.partition, "timestamp": timestamp, "current_leader_epoch": -1}
        by_leader.setdefault(address, {}).setdefault(partition.topic, []).append(one)
    for address, topics in by_leader.items():
        contents = {
            "replica_id": -1,
            "isolation_level": int(read_committed),
            "topics": [{"name": name, "partitions": partitions} for name, partitions in topics.items()],
            "timeout": int(cluster.config.timeout * 1000),
        }
        try:
            answer = cluster.ask_at(address, ApiKey.LIST_OFFSETS, contents)
        except BrokerUnavailableError as error:
            for name, partitions in topics.items():
                problems |= {TopicPartition(name, one["partition_index"]): str(error) for one in partitions}
            continue
        for topic in answer.topics:
            for one in topic.partitions:
                partition = TopicPartition(topic.name, one.partition_index)
                if one.error_code in MOVED:
                    problems[partition] = f"broker {address}: {describe_code(one.error_code)}"
                elif one.error_code:
                    raise RequestFailedError(f"offsets of {partition}: {address}: {describe_code(one.error_code)}")
                else:
                    found[partition] = one.offset
    return problems
