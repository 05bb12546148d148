"""Offsets of many partitions from their leaders (ListOffsets, KIP-79), and the ends of leader epochs
(OffsetForLeaderEpoch, KIP-101, KIP-320)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple

from seglog.client.bootstrap import HostPort
from seglog.client.cluster_connections import ClusterConnections, ClusterMetadata
from seglog.client.connection import describe_code
from seglog.core.error_codes import ErrorCode
from seglog.core.errors import BrokerUnavailableError, RequestFailedError, UnknownPartitionError
from seglog.core.types import TopicPartition
from seglog.protocol.apis import ApiKey
from seglog.storage.log.epochs import EpochEnd

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


class OffsetQuestion(NamedTuple):
    """For each partition a timestamp in ms, `EARLIEST` or `LATEST`. With ``read_committed`` the latest offset is the
    last stable one, else the high watermark."""

    wanted: Mapping[TopicPartition, int]
    read_committed: bool = False


def list_offsets(
    cluster: ClusterConnections,
    wanted: Mapping[TopicPartition, int],
    *,
    read_committed: bool = False,
    retries: int = 3,
    retry_wait: float = 1.0,
) -> dict[TopicPartition, int]:
    """The offset of each partition, as `answer_offsets` finds it for one question."""
    (found,) = answer_offsets(cluster, [OffsetQuestion(wanted, read_committed)], retries=retries, retry_wait=retry_wait)
    return found


def answer_offsets(
    cluster: ClusterConnections,
    questions: Sequence[OffsetQuestion],
    metadata: ClusterMetadata | None = None,
    *,
    retries: int = 3,
    retry_wait: float = 1.0,
) -> list[dict[TopicPartition, int]]:
    """The offset of each partition of each question; -1 if no record is that late.

    ``metadata`` has the leaders, if the caller knows them. While a leader is missing or moves, the request is repeated
    up to ``retries`` times, then `BrokerUnavailableError` is raised. A partition that does not exist any more raises
    `UnknownPartitionError`. An error names partition and broker.
    """
    found: list[dict[TopicPartition, int]] = [{} for _ in questions]
    for attempt in range(retries + 1):
        if attempt:
            cluster.clock.sleep(retry_wait)
        problems: dict[TopicPartition, str] = {}
        for question, known in zip(questions, found, strict=True):
            missing = {one: timestamp for one, timestamp in question.wanted.items() if one not in known}
            if metadata is None and missing:
                metadata = cluster.metadata({partition.topic for partition in missing})
            if metadata is not None:
                problems |= _ask_leaders(cluster, metadata, question._replace(wanted=missing), known)
        if not problems:
            return found
        metadata = None
    partition = min(problems)
    raise BrokerUnavailableError(f"offsets of {partition}: {problems[partition]}")


def _ask_leaders(
    cluster: ClusterConnections,
    metadata: ClusterMetadata,
    question: OffsetQuestion,
    found: dict[TopicPartition, int],
) -> dict[TopicPartition, str]:
    """Ask each leader once. Adds to ``found`` and returns the reasons for the other partitions."""
    problems: dict[TopicPartition, str] = {}
    by_leader: dict[HostPort, dict[str, list[Mapping[str, Any]]]] = {}
    for partition, timestamp in question.wanted.items():
        if metadata.lacks(partition):
            raise UnknownPartitionError(f"offsets of {partition}: the partition does not exist")
        address = metadata.address(partition)
        if address is None:
            problems[partition] = "the partition has no leader"
            continue
        one = {"partition_index": partition.partition, "timestamp": timestamp, "current_leader_epoch": -1}
        by_leader.setdefault(address, {}).setdefault(partition.topic, []).append(one)
    requests = {
        address: {
            "replica_id": -1,
            "isolation_level": int(question.read_committed),
            "topics": [{"name": name, "partitions": partitions} for name, partitions in topics.items()],
            "timeout": int(cluster.config.timeout * 1000),
        }
        for address, topics in by_leader.items()
    }
    for address, answer in cluster.ask_all(ApiKey.LIST_OFFSETS, requests).items():
        if isinstance(answer, BrokerUnavailableError):
            for name, partitions in by_leader[address].items():
                problems |= {TopicPartition(name, one["partition_index"]): str(answer) for one in partitions}
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


def epoch_ends(
    cluster: ClusterConnections, wanted: Mapping[TopicPartition, Collection[int]]
) -> dict[TopicPartition, dict[int, EpochEnd]]:
    """The leader's answer for each epoch of each partition, asked for once. A partition whose leader is missing, moves
    or refuses is left out.

    A request names a partition once, so there are as many requests to a leader as one of its partitions has epochs.
    """
    metadata = cluster.metadata({partition.topic for partition in wanted})
    by_leader: dict[HostPort, list[TopicPartition]] = {}
    for partition, epochs in wanted.items():
        leader = metadata.leader(partition)
        address = None if leader is None else metadata.brokers.get(leader.leader)
        if address is not None and epochs:
            by_leader.setdefault(address, []).append(partition)
    found: dict[TopicPartition, dict[int, EpochEnd]] = {}
    for address, partitions in by_leader.items():
        queues = {partition: sorted(set(wanted[partition])) for partition in partitions}
        try:
            while queues:
                asked = {partition: epochs.pop() for partition, epochs in queues.items()}
                for partition, end in _ask(cluster, address, asked).items():
                    found.setdefault(partition, {})[asked[partition]] = end
                queues = {partition: epochs for partition, epochs in queues.items() if epochs}
        except RequestFailedError:
            continue
    return {partition: ends for partition, ends in found.items() if len(ends) == len(set(wanted[partition]))}


def _ask(
    cluster: ClusterConnections, address: HostPort, asked: Mapping[TopicPartition, int]
) -> dict[TopicPartition, EpochEnd]:
    topics: dict[str, list[dict[str, int]]] = {}
    for (topic, number), epoch in asked.items():
        one = {"partition": number, "current_leader_epoch": -1, "leader_epoch": epoch}
        topics.setdefault(topic, []).append(one)
    contents = {
        "replica_id": -1,
        "topics": [{"topic": name, "partitions": partitions} for name, partitions in topics.items()],
    }
    answer = cluster.ask_at(address, ApiKey.OFFSET_FOR_LEADER_EPOCH, contents)
    return {
        TopicPartition(topic.topic, one.partition): EpochEnd(one.leader_epoch, one.end_offset)
        for topic in answer.topics
        for one in topic.partitions
        if not one.error_code
    }
