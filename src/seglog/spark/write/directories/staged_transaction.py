"""The staged segments of a job as batches of one transaction.

The leader takes over a large segment from where it lies. All others are sent to the leaders: small ones, so that many
small jobs leave few files, and those whose leader has not the file in its directory. The segments of a partition
arrive in the order of the tasks, with consecutive sequences.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Final

from seglog.client.client_config import ClientConfig
from seglog.client.cluster_connections import ClusterMetadata
from seglog.client.produce.batch_producer import BatchProducer
from seglog.client.produce.transaction import Transaction
from seglog.core.errors import NotLeaderError
from seglog.core.fs import OsFs
from seglog.core.types import TopicPartition
from seglog.spark.runtime.broker_connections import connections
from seglog.spark.write.brokers.task import PRODUCE
from seglog.spark.write.directories.directory_owner import DirectoryOwner
from seglog.storage.adopt import StagedPart, StagedSegment
from seglog.storage.adopt.job_adoption import SMALL_FILE
from seglog.storage.adopt.segment_request import SegmentPlace, SegmentRequest
from seglog.storage.formats.batch_walk import windows
from seglog.storage.log.finished_segment import stamp

_FIRST: Final = 0
"""A transaction of its own epoch begins with this sequence in each partition."""


def write_staged(
    transaction: Transaction,
    config: ClientConfig,
    owner: DirectoryOwner,
    metadata: ClusterMetadata,
    parts: Sequence[StagedPart],
    segment_bytes: Mapping[str, int],
) -> None:
    """Write all parts and return when they are committed in every partition; the transaction stays open.

    ``segment_bytes`` by topic. Raises `RequestFailedError`, `ProducerFencedError`, `AdoptError`, `CorruptBatchError`.
    """
    partitions = {part.topic_partition for part in parts}
    transaction.join(partitions)
    producer = BatchProducer(connections(config, PRODUCE), transaction.identity, join=transaction.join)
    writing = _Writing(transaction, config, owner, producer)
    try:
        sequences = dict.fromkeys(partitions, _FIRST)
        for part in parts:
            partition = part.topic_partition
            leader = metadata.leader(partition)
            is_led = leader is not None and leader.leader == owner.node_id
            for segment in part.segments:
                is_large = segment.size * SMALL_FILE >= segment_bytes[part.topic]
                sequences[partition] = writing.write(
                    part, segment, sequences[partition], takes_over=is_led and is_large
                )
        writing.finish()
    finally:
        producer.close()


class _Writing:
    def __init__(
        self, transaction: Transaction, config: ClientConfig, owner: DirectoryOwner, producer: BatchProducer
    ) -> None:
        self._handle = transaction.handle
        self._config = config
        self._owner = owner
        self._producer = producer
        self._fs = OsFs()
        self._places: dict[TopicPartition, SegmentPlace] = {}
        """Where the last segment of each partition is that was taken over."""

    def write(self, part: StagedPart, segment: StagedSegment, sequence: int, *, takes_over: bool) -> int:
        """Write a segment; the next sequence."""
        path = os.path.join(self._owner.directory, part.directory, segment.name)
        following = stamp(self._fs, path, self._handle.producer, sequence)
        if takes_over:
            self._producer.flush()  # the segment continues what was sent before
            try:
                self._take_over(part, segment, following - 1)
            except NotLeaderError:
                self._send(part.topic_partition, path)
        else:
            self._send(part.topic_partition, path)
        return following

    def finish(self) -> None:
        self._producer.flush()
        for partition, place in self._places.items():
            self._owner.wait(partition, place, self._config)

    def _take_over(self, part: StagedPart, segment: StagedSegment, last_sequence: int) -> None:
        producer_id, epoch = self._handle.producer
        request = SegmentRequest(
            topic=part.topic,
            partition=part.partition,
            file=os.path.join(part.directory, segment.name),
            records=segment.records,
            keyed=part.keyed,
            transactional_id=self._handle.transactional_id,
            producer_id=producer_id,
            producer_epoch=epoch,
            last_sequence=last_sequence,
            implicit=self._handle.implicit,
        )
        self._places[part.topic_partition] = self._owner.adopt(request, self._config)

    def _send(self, partition: TopicPartition, path: str) -> None:
        with closing(self._fs.open(path, write=False)) as file:
            for entries, _, data in windows(file):
                end = entries[-1].position + entries[-1].size
                self._producer.add(partition, data[:end])
