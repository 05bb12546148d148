"""Partitions and ranges of their offsets as plain values, divided as by Spark's Kafka connector. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor
from typing import NamedTuple
from uuid import UUID

from seglog.core.types import TopicPartition

LOG_END = "log end offset"
"""The name of ``until`` if nothing lowers it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionExtent:
    """A partition as it was at the time of the survey.

    The offsets from ``log_start`` to before ``until`` are readable. ``bound`` names ``until``: the log end offset, a
    high watermark, or the last stable offset. ``topic_id`` is None if the topic has none, as before Kafka 2.8.
    Invariant: log_start <= until <= log_end.
    """

    topic_partition: TopicPartition
    log_start: int
    log_end: int
    until: int
    bound: str = LOG_END
    topic_id: UUID | None = None

    def nearest(self, offset: int) -> int:
        """The offset itself, or the nearest readable one."""
        return min(max(offset, self.log_start), self.until)


class OffsetRange(NamedTuple):
    """Offsets ``start`` to before ``end``."""

    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start


class PartitionRange(NamedTuple):
    """A range of a partition's offsets."""

    topic_partition: TopicPartition
    offsets: OffsetRange


def divide(
    shares: Sequence[PartitionRange], *, min_partitions: int | None = None, max_records: int | None = None
) -> list[PartitionRange]:
    """Divide ranges among tasks like the connector's ``KafkaOffsetRangeCalculator`` (from 4.0); drop empty ones.

    First by ``max_records``. If there are then fewer than ``min_partitions``, each range is divided in proportion to
    its offsets; ranges that get one task do not count in the proportion. Every range is rounded by itself, so there are
    about ``min_partitions`` tasks.
    """
    found = [share for share in shares if share.offsets.size > 0]
    if max_records is not None:
        found = [part for share in found for part in cut_evenly(share, ceil(share.offsets.size / max_records))]
    if min_partitions is None or len(found) >= min_partitions:
        return found
    total = sum(share.offsets.size for share in found)
    alone = [share for share in found if _parts(share.offsets.size, total, min_partitions) == 1]
    partitions = {share.topic_partition for share in alone}
    rest = total - sum(share.offsets.size for share in alone)
    wanted = max(min_partitions - len(alone), 1)
    return [
        part
        for share in found
        for part in cut_evenly(
            share, 1 if share.topic_partition in partitions else _parts(share.offsets.size, rest, wanted)
        )
    ]


def _parts(size: int, total: int, wanted: int) -> int:
    # Java's Math.round: halves go up
    return max(floor(size / total * wanted + 0.5), 1)


def cut_evenly(share: PartitionRange, parts: int) -> list[PartitionRange]:
    """At most ``parts`` ranges as equal as whole numbers allow, the larger ones last; none is empty."""
    found, start, left = [], share.offsets.start, share.offsets.size
    for part in range(parts):
        size = left // (parts - part)
        left -= size
        if size:
            found.append(PartitionRange(share.topic_partition, OffsetRange(start, start + size)))
        start += size
    return found
