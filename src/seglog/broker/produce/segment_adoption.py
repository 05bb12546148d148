"""Staged segments become part of logs that this broker leads: bulk writes that do not pass through a connection.

A segment is part of a transaction, as batches in Produce are, and is checked like them: its producer's epoch and
sequence, and whether the coordinator has the partition in the transaction. Its headers are read in a thread; then it
is appended in one step, between two others of the same partition.
"""

from __future__ import annotations

import os.path
from collections.abc import Mapping
from typing import Any

from seglog.broker.produce.transaction_verification import TransactionVerifier
from seglog.broker.requests import ApiError
from seglog.broker.topics.topics import Topics
from seglog.core.error_codes import ErrorCode
from seglog.core.errors import AdoptError, InvalidRecordError, NotLeaderError
from seglog.core.ground import Workers
from seglog.core.topic_names import INTERNAL_TOPICS
from seglog.core.types import TopicPartition
from seglog.replication.replica import Replica
from seglog.storage.adopt.segment_request import SegmentRequest
from seglog.storage.directory.adoption import STAGING
from seglog.storage.directory.log_dir import LogDir
from seglog.storage.formats.paths import LOG, OWN_DIRECTORY
from seglog.storage.log.finished_segment import FinishedSegment, read_finished


class SegmentAdoption:
    """Takes over segments that are staged in a directory of this broker."""

    def __init__(self, topics: Topics, verifier: TransactionVerifier, workers: Workers) -> None:
        self._topics = topics
        self._verifier = verifier
        self._workers = workers

    async def adopt(self, directory: LogDir, fields: Mapping[str, Any]) -> None:
        """Append a segment, unless its batches are here already. It may not be committed yet.

        Raises what `Replica.append_segment` raises, and `AdoptError` if there is no such file.
        """
        request = SegmentRequest.from_json(fields)
        path = _path_of(directory, request)
        replica = self._replica(directory, request.topic_partition)
        replica.check_leads()
        if not replica.log.producers.has_sequence(request.producer, request.last_sequence):
            segment = await self._workers.run(lambda: read_finished(directory.fs, path))
            _check(request, segment, replica)
            await self._verify(request, segment, replica)
            replica.append_segment(segment)

    def _replica(self, directory: LogDir, partition: TopicPartition) -> Replica:
        if partition.topic in INTERNAL_TOPICS:
            raise AdoptError(f"{partition.topic} is written by brokers only")
        replica = self._topics.partition(*partition)
        if replica is None or replica.directory is not directory:
            directory.health.check()
            raise NotLeaderError(f"{directory.path} has no replica of {partition}")
        return replica

    async def _verify(self, request: SegmentRequest, segment: FinishedSegment, replica: Replica) -> None:
        """As a transactional batch in Produce: `seglog.broker.produce.produce.Produce`."""
        if not request.implicit and not self._verifier.is_enabled():
            return
        log, producer = replica.log, request.producer
        guard = log.verify(producer, segment.first.base_sequence, bumps_epoch=request.implicit)
        if guard is None:
            return
        partition = request.topic_partition
        codes = await self._verifier.check_produce(
            request.transactional_id, producer, [partition], adds=request.implicit, knows_abortable=True
        )
        if codes[partition] is not ErrorCode.NONE:
            raise ApiError(codes[partition], f"{partition} is not in the transaction of {request.transactional_id}")
        log.producers.check_verified(producer, guard)


def _path_of(directory: LogDir, request: SegmentRequest) -> str:
    """`AdoptError` unless the file is where tasks stage the partition's segments."""
    home = os.path.join(str(request.topic_partition), OWN_DIRECTORY, STAGING)
    names = request.file.removeprefix(f"{home}/").split("/")
    if len(names) != 3 or {"", ".", ".."} & set(names) or not names[-1].endswith(LOG):
        raise AdoptError(f"a segment for {request.topic_partition} is not in {home}/<job>/<task>: {request.file!r}")
    return os.path.join(directory.path, request.file)


def _check(request: SegmentRequest, segment: FinishedSegment, replica: Replica) -> None:
    found = (segment.producer, segment.last_sequence, segment.records)
    if found != (request.producer, request.last_sequence, request.records):
        raise AdoptError(f"{segment.path} has producer, last sequence and records {found}, unlike {request}")
    if replica.log.config.compact and not request.keyed:
        raise InvalidRecordError(
            f"{segment.path}: {request.topic!r} is compacted, and it is not known whether all of these records have "
            "keys: the topic was not compacted when they were staged. Write them again"
        )
