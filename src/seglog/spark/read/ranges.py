"""Partitions and ranges of their offsets as plain values, and how Spark's Kafka connector divides ranges. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor
from typing import NamedTuple

from seglog.core.types import TopicPartition
from seglog.spark.runtime.log_dir_mount import LogDirMount
from seglog.storage.log.transaction_index import AbortedTxn

LOG_END = "log end offset"
"""What ``until`` is when nothing lowers it."""


class SegmentExtent(NamedTuple):
    """A segment: its first offset, its file, and the bytes of whole batches in it."""

    base_offset: int
    log: str
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionExtent:
    """A partition as it lay on the disk when it was looked at, in ``directory``.

    Readable are the offsets from ``log_start`` to before ``until``, which is what ``bound`` names: the log end offset,
    a high watermark, or the last stable offset. ``aborted`` are transactions that are not read, none if all is.
    ``others`` are directories of replicas that have the same up to ``until``; ``mounts`` are the log directories of all
    of these.
    Invariant: log_start <= until <= log_end; segments rise.
    """

    topic_partition: TopicPartition
    directory: str
    log_start: int
    log_end: int
    until: int
    segments: tuple[SegmentExtent, ...]
    bound: str = LOG_END
    aborted: tuple[AbortedTxn, ...] = ()
    others: tuple[str, ...] = ()
    mounts: tuple[LogDirMount, ...] = ()

    def nearest(self, offset: int) -> int:
        """The offset itself, or the one next to it that may be read from or to."""
        return min(max(offset, self.log_start), self.until)


class OffsetRange(NamedTuple):
    """Offsets ``start`` to before ``end``."""

    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start


class Share(NamedTuple):
    """A range of a partition's offsets."""

    topic_partition: TopicPartition
    offsets: OffsetRange


def divide(
    shares: Sequence[Share], *, min_partitions: int | None = None, max_records: int | None = None
) -> list[Share]:
    """As the connector's ``KafkaOffsetRangeCalculator`` (4.0 on) divides ranges among tasks; empty ones are left out.

    First by ``max_records``; where there are fewer than ``min_partitions`` then, each is divided in proportion to its
    offsets. Those that get one task are taken out of the proportion. The number of tasks is about ``min_partitions``:
    every range is rounded by itself.
    """
    found = [share for share in shares if share.offsets.size > 0]
    if max_records is not None:
        found = [part for share in found for part in _cut(share, ceil(share.offsets.size / max_records))]
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
        for part in _cut(share, 1 if share.topic_partition in partitions else _parts(share.offsets.size, rest, wanted))
    ]


def _parts(size: int, total: int, wanted: int) -> int:
    # Java's Math.round: halves go up
    return max(floor(size / total * wanted + 0.5), 1)


def _cut(share: Share, parts: int) -> list[Share]:
    """``parts`` ranges as equal as whole numbers allow, the larger ones last; none is empty."""
    found, start, left = [], share.offsets.start, share.offsets.size
    for part in range(parts):
        size = left // (parts - part)
        left -= size
        if size:
            found.append(Share(share.topic_partition, OffsetRange(start, start + size)))
        start += size
    return found
