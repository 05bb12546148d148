"""Estimates the bytes of a record of each partition from the first batches of the ranges to read.

A broker tells no sizes to a client that may only read. One request to each leader is enough for a plan.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Final
from uuid import UUID

from seglog.client.bootstrap import HostPort
from seglog.client.cluster_connections import ClusterConnections
from seglog.core.errors import BrokerUnavailableError, RequestFailedError
from seglog.core.types import TopicPartition
from seglog.protocol.apis import ApiKey
from seglog.records.batch import BATCH_OVERHEAD, entries, last_offset_of, read_header
from seglog.sources.brokers.planning import USUAL_BYTES, BrokerExtent
from seglog.sources.ranges import OffsetRange

_SMALL: Final = 10_000
"""A query of fewer offsets has one task for each partition, whatever the size of its records."""
_PARTITIONS: Final = 50
"""The partitions with the largest ranges are sampled; the others count as the median of these."""
_SAMPLE_BYTES: Final = 64 << 10
_LARGE_PARTITIONS: Final = 8
_LARGE_BYTES: Final = 1 << 20
"""A broker may leave out a batch that is larger than the sample: some of those partitions are asked again, for more."""


def bytes_per_offset(
    cluster: ClusterConnections, extents: Sequence[BrokerExtent], ranges: Mapping[TopicPartition, OffsetRange]
) -> dict[TopicPartition, float]:
    """An estimate for each partition. It decides the plan only, so an unreachable broker is not an error."""
    if sum(offsets.size for offsets in ranges.values()) < _SMALL:
        return {}
    by_size = sorted(extents, key=lambda extent: -ranges[extent.topic_partition].size)[:_PARTITIONS]
    sampled = [extent for extent in by_size if ranges[extent.topic_partition].size]
    try:
        found = _sample(cluster, sampled, ranges, _SAMPLE_BYTES)
        large = [extent for extent in sampled if extent.topic_partition not in found][:_LARGE_PARTITIONS]
        if large:
            found |= _sample(cluster, large, ranges, _LARGE_BYTES)
    except RequestFailedError:
        return {}
    usual = statistics.median(found.values()) if found else USUAL_BYTES
    return {extent.topic_partition: found.get(extent.topic_partition, usual) for extent in extents}


def _sample(
    cluster: ClusterConnections,
    extents: Sequence[BrokerExtent],
    ranges: Mapping[TopicPartition, OffsetRange],
    size: int,
) -> dict[TopicPartition, float]:
    by_leader: dict[HostPort, dict[tuple[str, UUID | None], list[dict[str, int]]]] = {}
    for extent in extents:
        if extent.leader is None:
            continue
        wanted = {
            "partition": extent.topic_partition.partition,
            "current_leader_epoch": -1,
            "fetch_offset": ranges[extent.topic_partition].start,
            "partition_max_bytes": size,
        }
        topic = extent.topic_partition.topic, extent.topic_id
        by_leader.setdefault(extent.leader.address, {}).setdefault(topic, []).append(wanted)
    requests = {
        address: {
            "replica_id": -1,
            "max_wait": 0,
            "min_bytes": 0,
            "max_bytes": size * sum(map(len, topics.values())),
            "topics": [
                {"topic": name, "topic_id": topic_id, "partitions": partitions}
                for (name, topic_id), partitions in topics.items()
            ],
        }
        for address, topics in by_leader.items()
    }
    names = {extent.topic_id: extent.topic_partition.topic for extent in extents}
    found = {}
    for answer in cluster.ask_all(ApiKey.FETCH, requests).values():
        for topic in () if isinstance(answer, BrokerUnavailableError) else answer.responses:
            name = getattr(topic, "topic", None) or names.get(topic.topic_id, "")
            for one in topic.partitions:
                if (mean := _mean_size(one.records or b"")) is not None:
                    found[TopicPartition(name, one.partition_index)] = mean
    return found


def _mean_size(records: bytes) -> float | None:
    """Bytes for each offset of whole batches, or of the first one as its header tells."""
    whole = list(entries(records))
    if whole:
        last = whole[-1]
        return (last.position + last.size) / max(last_offset_of(records, last) + 1 - whole[0].offset, 1)
    if len(records) < BATCH_OVERHEAD:
        return None
    header = read_header(records)
    return header.size / (header.last_offset_delta + 1)
