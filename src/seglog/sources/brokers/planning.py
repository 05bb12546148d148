"""Divides ranges of offsets that tasks fetch from brokers. Pure.

A broker does not tell where batches begin, so a partition is divided evenly by offsets. A task skips the records before
its range in its first batch, and the rest of its last one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from seglog.client.cluster_connections import BrokerAddress
from seglog.core.types import TopicPartition
from seglog.sources.planning import spread
from seglog.sources.ranges import OffsetRange, PartitionExtent, PartitionRange, cut_evenly, divide

USUAL_BYTES: Final = 256.0
"""Bytes of a record if nothing is known about it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerExtent(PartitionExtent):
    """A partition as its leader described it. ``log_end`` is the high watermark: nothing above it can be fetched.

    ``leader`` is the broker that was asked.
    """

    leader: BrokerAddress | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchRange:
    """Offsets that a task fetches, and the estimated ``size`` of their batches in bytes. ``leader`` is the one of the
    plan, which a task asks first; None: it looks the leader up."""

    topic_partition: TopicPartition
    topic_id: UUID | None
    offsets: OffsetRange
    size: int
    leader: BrokerAddress | None = None


def plan(
    extents: Sequence[BrokerExtent],
    ranges: Mapping[TopicPartition, OffsetRange],
    bytes_per_offset: Mapping[TopicPartition, float],
    *,
    max_bytes: int,
    min_partitions: int | None = None,
    max_records: int | None = None,
    cores: int | None = 1,
) -> list[FetchRange]:
    """Divide the ranges among tasks, in the order of partitions and offsets. Empty ranges are left out.

    The number of tasks follows the rules for directories, with estimated sizes.
    """
    shares = [PartitionRange(extent.topic_partition, ranges[extent.topic_partition]) for extent in extents]
    shares = divide(shares, min_partitions=min_partitions, max_records=max_records)
    is_divided = min_partitions is not None or max_records is not None
    return plan_shares(extents, shares, bytes_per_offset, max_bytes=max_bytes, cores=cores, is_divided=is_divided)


def plan_shares(
    extents: Sequence[BrokerExtent],
    shares: Sequence[PartitionRange],
    bytes_per_offset: Mapping[TopicPartition, float],
    *,
    max_bytes: int,
    cores: int | None,
    is_divided: bool,
) -> list[FetchRange]:
    """Divide ``shares`` of partitions among tasks by estimated sizes alone, in their order."""
    by_partition = {extent.topic_partition: extent for extent in extents}

    def size_of(share: PartitionRange) -> int:
        return int(share.offsets.size * bytes_per_offset.get(share.topic_partition, USUAL_BYTES)) + 1

    total = sum(map(size_of, shares))
    return [
        FetchRange(
            topic_partition=part.topic_partition,
            topic_id=by_partition[part.topic_partition].topic_id,
            offsets=part.offsets,
            size=size_of(part),
            leader=by_partition[part.topic_partition].leader,
        )
        for share in shares
        for part in cut_evenly(
            share, spread(size_of(share), total, max_bytes=max_bytes, cores=cores, is_divided=is_divided)
        )
    ]
