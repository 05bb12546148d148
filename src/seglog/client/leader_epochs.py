"""Ends of leader epochs from the leaders of partitions (OffsetForLeaderEpoch, KIP-101, KIP-320)."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from seglog.client.bootstrap import HostPort
from seglog.client.cluster_connections import ClusterConnections
from seglog.core.errors import RequestFailedError
from seglog.core.types import TopicPartition
from seglog.protocol.apis import ApiKey
from seglog.storage.log.epochs import EpochEnd


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
