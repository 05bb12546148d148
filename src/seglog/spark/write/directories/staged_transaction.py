"""The staged segments of a job as batches of one transaction.

The leader takes over a large segment from where it lies. All others are sent to the leaders: small ones, so that many
small jobs leave few files, and those whose leader has not the file in its directory. The segments of a partition
arrive in the order of the tasks, with consecutive sequences.

A segment that was taken over is committed when its last batch is: that batch is sent again. The leader recognises it,
and answers when it is committed. If another broker leads meanwhile and lacks the segment, it refuses the batch, as its
sequence does not follow: with transaction version 2 a producer's first batch in a partition has sequence 0. So with an
older version nothing is taken over.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Final

from seglog.client.client_config import ClientConfig
from seglog.client.cluster_connections import ClusterMetadata
from seglog.client.kept_connections import connections
from seglog.client.produce.batch_producer import BatchProducer
from seglog.client.produce.transaction import Transaction
from seglog.core.errors import AdoptError, NotLeaderError
from seglog.core.fs import File, OsFs
from seglog.core.types import TopicPartition
from seglog.spark.write.brokers.task import PRODUCE
from seglog.spark.write.directories.directory_owner import DirectoryOwner, OwnerGoneError
from seglog.storage.adopt import StagedPart, StagedSegment
from seglog.storage.adopt.job_adoption import SMALL_FILE
from seglog.storage.adopt.segment_request import SegmentRequest
from seglog.storage.formats.batch_walk import windows
from seglog.storage.log.finished_segment import read_finished, stamp

_FIRST: Final = 0
"""A transaction of its own epoch begins with this sequence in each partition."""


def write_staged(
    transaction: Transaction,
    config: ClientConfig,
    owners: Sequence[DirectoryOwner],
    metadata: ClusterMetadata,
    parts: Sequence[StagedPart],
    segment_bytes: Mapping[str, int],
) -> None:
    """Write all parts and return when they are committed in every partition; the transaction stays open.

    ``segment_bytes`` by topic. Raises `RequestFailedError`, `ProducerFencedError`, `AdoptError`, `CorruptBatchError`.
    """
    partitions = {part.topic_partition for part in parts}
    transaction.join(partitions)
    # Followers may take long to copy a segment, and until then its last batch is not acknowledged.
    patient = replace(config, delivery_timeout=config.transaction_timeout)
    producer = BatchProducer(connections(patient, PRODUCE), transaction.identity, join=transaction.join)
    writing = _Writing(transaction, config, producer)
    try:
        sequences = dict.fromkeys(partitions, _FIRST)
        for part in parts:
            partition = part.topic_partition
            owner, leader = _owner_of(part, owners), metadata.leader(partition)
            is_led = leader is not None and leader.leader == owner.node_id and transaction.handle.implicit
            for segment in part.segments:
                is_large = segment.size * SMALL_FILE >= segment_bytes[part.topic]
                sequences[partition] = writing.write(
                    owner, part, segment, sequences[partition], takes_over=is_led and is_large
                )
        writing.finish()
    finally:
        producer.close()


def _owner_of(part: StagedPart, owners: Sequence[DirectoryOwner]) -> DirectoryOwner:
    """The one in whose directory a task has staged the part."""
    for owner in owners:
        if OsFs().exists(os.path.join(owner.directory, part.directory)):
            return owner
    raise AdoptError(
        f"{part.directory} is in none of {', '.join(owner.directory for owner in owners)}: was the topic deleted since "
        "the job began, or has the broker of its directory ended?"
    )


class _Writing:
    def __init__(self, transaction: Transaction, config: ClientConfig, producer: BatchProducer) -> None:
        self._handle = transaction.handle
        self._config = config
        self._producer = producer
        self._fs = OsFs()
        self._taken_over: dict[TopicPartition, bytes] = {}
        """The last batch of each partition, if it was taken over."""

    def write(
        self, owner: DirectoryOwner, part: StagedPart, segment: StagedSegment, sequence: int, *, takes_over: bool
    ) -> int:
        """Write a segment; the next sequence."""
        partition = part.topic_partition
        path = os.path.join(owner.directory, part.directory, segment.name)
        following = stamp(self._fs, path, self._handle.producer, sequence)
        if not takes_over or not self._take_over(owner, part, segment, following - 1):
            with closing(self._fs.open(path, write=False)) as file:
                self._send(partition, file)
            self._taken_over.pop(partition, None)
        return following

    def finish(self) -> None:
        """Return when all is committed."""
        for partition, batch in self._taken_over.items():
            self._producer.add(partition, batch)
        self._producer.flush()

    def _take_over(self, owner: DirectoryOwner, part: StagedPart, segment: StagedSegment, last_sequence: int) -> bool:
        """Whether the leader has taken over the segment; if not, it is still there."""
        self._producer.flush()  # the segment continues what was sent before
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
        path = os.path.join(owner.directory, request.file)
        last = self._last_batch(path)
        try:
            owner.adopt(request, self._config)
        except NotLeaderError:
            return False
        except OwnerGoneError:
            if not self._fs.exists(path):
                raise
            return False
        self._taken_over[part.topic_partition] = last
        return True

    def _last_batch(self, path: str) -> bytes:
        found = read_finished(self._fs, path)
        position = found.batches[-1][0]
        with closing(self._fs.open(path, write=False)) as file:
            return file.pread(found.size - position, position)

    def _send(self, partition: TopicPartition, file: File) -> None:
        for entries, _, data in windows(file):
            end = entries[-1].position + entries[-1].size
            self._producer.add(partition, data[:end])
