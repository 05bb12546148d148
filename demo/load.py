"""Flights into a log directory through seglog's public API, batched and partitioned as Kafka's Java producer would."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Final

import seglog
from seglog.records.decoding import Header
from seglog.records.partitioner import DEFAULT_BATCH_SIZE, StickyPartitioner, partition_for_key

TOPIC: Final = "flights"
PARTITIONS: Final = 4
CONFIG: Final = {
    "retention.ms": "-1",  # else 2013 would be deleted at once: Kafka keeps a week
    "segment.bytes": str(1 << 20),  # small ones, so that rolling shows
    "segment.ms": str(366 * 24 * 3600 * 1000),  # else each week of the year would start another one
}
_OVERHEAD: Final = 12
"""What a record takes beside its key, value and headers' bytes, at most about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What lies there now. Sizes in bytes."""

    records: int
    batches: int
    segments: int
    size: int


def load(path: str, records: Sequence[seglog.NewRecord], advance: Callable[[int], None]) -> Written:
    """Create the topic in the log directory at ``path`` and append ``records``; ``advance`` hears batches' counts."""
    # Without a key Java's producer stays with one partition until a batch is full; which one is chance, here seeded.
    sticky = StickyPartitioner(PARTITIONS, Random(2013).randrange)
    by_key = cache(partition_for_key)
    with seglog.open(path) as log_dir:
        log_dir.create_topic(TOPIC, partitions=PARTITIONS, config=CONFIG)
        logs = [log_dir.log(TOPIC, partition) for partition in range(PARTITIONS)]
        pending: list[list[seglog.NewRecord]] = [[] for _ in logs]
        sizes = [0] * PARTITIONS
        batches = 0

        def send(partition: int) -> None:
            logs[partition].append_records(pending[partition], codec=seglog.Codec.ZSTD)
            advance(len(pending[partition]))
            pending[partition].clear()
            sizes[partition] = 0

        for record in records:
            size = _size(record)
            partition = (
                by_key(bytes(record.key), PARTITIONS) if record.key is not None else sticky.partition(None, size)
            )
            if sizes[partition] + size > DEFAULT_BATCH_SIZE and pending[partition]:
                send(partition)
                batches += 1
            pending[partition].append(record)
            sizes[partition] += size
        for partition, left in enumerate(pending):
            if left:
                send(partition)
                batches += 1
        return Written(
            records=sum(log.log_end_offset for log in logs),
            batches=batches,
            segments=sum(len(log.segments) for log in logs),
            size=sum(log.size for log in logs),
        )


def _size(record: seglog.NewRecord) -> int:
    return len(record.key or b"") + len(record.value or b"") + _headers_size(record.headers) + _OVERHEAD


@cache
def _headers_size(headers: Sequence[Header]) -> int:
    return sum(len(name) + len(value or b"") + 2 for name, value in headers)
