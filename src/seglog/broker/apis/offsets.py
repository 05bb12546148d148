"""Offsets of partitions: ListOffsets, OffsetForLeaderEpoch, DeleteRecords."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Mapping
from functools import partial
from typing import Any, Final

from seglog.broker.offload import SLICE, Offload, in_turns, slices
from seglog.broker.requests import FAILURES, Answer, ApiError, ApiHandler, RequestContext, code_of
from seglog.broker.topics.topic_changes import TopicChanges
from seglog.broker.topics.topics import Topics
from seglog.core.error_codes import ErrorCode
from seglog.core.errors import OffsetOutOfRangeError, SeglogError
from seglog.core.topic_names import INTERNAL_TOPICS
from seglog.core.types import NO_EPOCH, NO_OFFSET, NO_TIMESTAMP
from seglog.protocol.apis import ApiKey
from seglog.protocol.messages import Message
from seglog.replication.replica import Replica
from seglog.storage.directory.log_dir import LogDir
from seglog.storage.log.log import Log
from seglog.storage.log.reads import EARLIEST, LATEST, MAX_TIMESTAMP, FoundOffset

EARLIEST_LOCAL: Final = -4
LATEST_TIERED: Final = -5
EARLIEST_PENDING_UPLOAD: Final = -6
_SINCE: Final = {
    LATEST: 0,
    EARLIEST: 0,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}
"""Special timestamps, and the version of ListOffsets that introduced each."""
_Failure = SeglogError | OSError
_Found = FoundOffset | _Failure | None
_NONE: Final = FoundOffset(NO_TIMESTAMP, NO_OFFSET, NO_EPOCH)
_READ_COMMITTED: Final = 1
_CONSUMER: Final = -1
_DEBUGGING: Final = -2
"""Replica ids of requests that do not come from a replica."""
_NOT_AVAILABLE_SINCE: Final = 5
"""The first version of ListOffsets whose clients know OFFSET_NOT_AVAILABLE."""
_LOOK_AGAIN_SECONDS: Final = 0.02


class OffsetApis:
    """Answers queries for offsets, and moves the log start offset."""

    def __init__(self, topics: Topics, changes: TopicChanges, offload: Offload) -> None:
        self._topics = topics
        self._changes = changes
        self._offload = offload

    def handlers(self) -> Mapping[int, ApiHandler]:
        return {
            ApiKey.LIST_OFFSETS: self.list_offsets,
            ApiKey.OFFSET_FOR_LEADER_EPOCH: self.offset_for_leader_epoch,
            ApiKey.DELETE_RECORDS: self.delete_records,
        }

    def _partition(self, topic: str, number: int) -> Replica:
        partition = self._topics.partition(topic, number)
        if partition is None:
            raise ApiError(self._topics.why_not(topic, number))
        return partition

    def _leader(self, topic: str, number: int, current_epoch: int) -> Replica:
        """A partition that this broker leads in the client's epoch. `ApiError`, `FencedLeaderEpochError`,
        `UnknownLeaderEpochError`, `NotLeaderError`."""
        partition = self._partition(topic, number)
        partition.check_epoch(current_epoch)
        partition.check_leads()
        return partition

    # ListOffsets

    def list_offsets(self, request: Message, context: RequestContext) -> Answer | Awaitable[Answer]:
        count = sum([len(topic.partitions) for topic in request.topics])
        if count > SLICE or any(_is_time(wanted.timestamp) for topic in request.topics for wanted in topic.partitions):
            return self._list_aside(request, context)
        topics = []
        for topic in request.topics:
            numbers = _numbers(topic)
            partitions = {
                one.partition_index: self._one(request, context, topic.name, one, numbers, {})
                for one in topic.partitions
            }
            topics.append({"name": topic.name, "partitions": list(partitions.values())})
        return {"topics": topics}

    async def _list_aside(self, request: Message, context: RequestContext) -> Answer:
        """Search timestamps in the offload thread: that decompresses batches."""
        topics = []
        for topic in request.topics:
            numbers = _numbers(topic)
            answers: dict[int, dict[str, Any]] = {}
            async for some in slices(topic.partitions):
                found: dict[tuple[int, int], _Found] = {}
                for wanted in some:
                    number, at = wanted.partition_index, wanted.timestamp
                    partition = self._topics.partition(topic.name, number)
                    if partition is not None and _is_time(at) and numbers[number] == 1:
                        found[number, at] = await self._offload.run(partial(_look_up, partition.log, at))
                for wanted in some:
                    answers[wanted.partition_index] = self._one(request, context, topic.name, wanted, numbers, found)
            topics.append({"name": topic.name, "partitions": list(answers.values())})
        return {"topics": topics}

    def _one(
        self,
        request: Message,
        context: RequestContext,
        topic: str,
        wanted: Message,
        numbers: Mapping[int, int],
        found: Mapping[tuple[int, int], _Found],
    ) -> dict[str, Any]:
        """The answer for one partition. ``numbers`` counts how often the request names each; ``found`` has the results
        of timestamp searches."""
        number = wanted.partition_index
        try:
            if numbers[number] > 1:
                raise ApiError(ErrorCode.INVALID_REQUEST)
            if wanted.timestamp < 0 and context.version < _SINCE.get(wanted.timestamp, 1 << 15):
                raise ApiError(ErrorCode.UNSUPPORTED_VERSION)
            if request.replica_id == _DEBUGGING:  # asks followers too
                partition = self._partition(topic, number)
                partition.check_epoch(wanted.current_leader_epoch)
            else:
                partition = self._leader(topic, number, wanted.current_leader_epoch)
            isolation_level = request.isolation_level if request.replica_id == _CONSUMER else None
            at, offset, epoch = _find(
                partition, wanted.timestamp, isolation_level, found.get((number, wanted.timestamp))
            )
        except FAILURES as error:
            code = int(code_of(error))
            if code == ErrorCode.OFFSET_NOT_AVAILABLE and context.version < _NOT_AVAILABLE_SINCE:
                code = ErrorCode.LEADER_NOT_AVAILABLE
            return {"partition_index": number, "error_code": code}
        return {"partition_index": number, "timestamp": at, "offset": offset, "leader_epoch": epoch}

    # OffsetForLeaderEpoch

    def offset_for_leader_epoch(self, request: Message, _: RequestContext) -> Answer:
        return {
            "topics": [
                {"topic": topic.topic, "partitions": [self._end_of(topic.topic, wanted) for wanted in topic.partitions]}
                for topic in request.topics
            ]
        }

    def _end_of(self, topic: str, wanted: Message) -> dict[str, Any]:
        try:
            partition = self._leader(topic, wanted.partition, wanted.current_leader_epoch)
            end = partition.end_offset_for(wanted.leader_epoch)
        except FAILURES as error:
            return {"partition": wanted.partition, "error_code": int(code_of(error))}
        return {"partition": wanted.partition, "leader_epoch": end.epoch, "end_offset": end.end_offset}

    # DeleteRecords

    async def delete_records(self, request: Message, _: RequestContext) -> Answer:
        """Waits up to the request's timeout until the followers have deleted the records too."""
        deadline = asyncio.get_running_loop().time() + max(request.timeout, 0) / 1000
        # First all are deleted, so that the followers do it side by side.
        begun = [
            (
                topic.name,
                [
                    (one.partition_index, await self._delete_before(topic.name, one))
                    async for one in in_turns(topic.partitions)
                ],
            )
            async for topic in in_turns(request.topics)
        ]
        return {
            "topics": [
                {
                    "name": name,
                    "partitions": [await self._deleted(*one, deadline) async for one in in_turns(partitions)],
                }
                async for name, partitions in in_turns(begun)
            ]
        }

    async def _delete_before(self, topic: str, wanted: Message) -> tuple[Replica, int] | ErrorCode:
        """The partition and its new log start offset, or the code of the error: a request may have 80,000 errors, and
        the loop would free them all at once."""
        try:
            if topic in INTERNAL_TOPICS:
                raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION)
            partition = self._leader(topic, wanted.partition_index, NO_EPOCH)
            log = partition.log
            if log.config.compact and not log.config.delete:
                raise ApiError(ErrorCode.POLICY_VIOLATION)
            directory = self._topics.directory_of(partition)
            return partition, await self._changes.run(lambda: _delete_before(directory, log, wanted.offset))
        except FAILURES as error:
            return code_of(error)

    async def _deleted(self, number: int, begun: tuple[Replica, int] | ErrorCode, deadline: float) -> dict[str, Any]:
        if isinstance(begun, ErrorCode):
            return {"partition_index": number, "low_watermark": -1, "error_code": int(begun)}
        try:
            low_watermark = await self._low_watermark(*begun, deadline)
        except FAILURES as error:
            return {"partition_index": number, "low_watermark": -1, "error_code": int(code_of(error))}
        code = ErrorCode.NONE if low_watermark >= begun[1] else ErrorCode.REQUEST_TIMED_OUT
        return {"partition_index": number, "low_watermark": low_watermark, "error_code": code}

    async def _low_watermark(self, partition: Replica, wanted: int, deadline: float) -> int:
        """The low watermark, once it has reached ``wanted`` or the time is over. `NotLeaderError`."""
        loop = asyncio.get_running_loop()
        while (found := self._topics.low_watermark(partition)) < wanted and loop.time() < deadline:
            await asyncio.sleep(_LOOK_AGAIN_SECONDS)
            partition.check_leads()
        return found


def _is_time(timestamp: int) -> bool:
    """Whether the timestamp requires a search in records."""
    return timestamp >= 0 or timestamp == MAX_TIMESTAMP


def _numbers(topic: Message) -> Mapping[int, int]:
    """How often the request names each partition."""
    return Counter([wanted.partition_index for wanted in topic.partitions])


def _look_up(log: Log, timestamp: int) -> _Found:
    """May run in any thread: reads take no lock."""
    try:
        return log.offset_for_timestamp(timestamp)
    except FAILURES as error:
        return error


def _find(partition: Replica, timestamp: int, isolation_level: int | None, found: _Found) -> FoundOffset:
    """By the rules of ``Partition.fetchOffsetForTimestamp``. ``isolation_level`` is None for another broker, which
    reads to the log end. ``found`` is the result of a timestamp search."""
    log = partition.log
    if isolation_level is None:
        end = log.log_end_offset
    else:
        end = log.last_stable_offset if isolation_level == _READ_COMMITTED else log.high_watermark
    if timestamp == LATEST:
        _check_available(partition, isolation_level)
        return FoundOffset(NO_TIMESTAMP, end, partition.leader_epoch)
    if timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return _NONE  # there is no tiered storage
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        first = log.offset_for_timestamp(EARLIEST)
        assert first is not None
        # An empty log knows of no epoch yet: what is written next is of this one.
        return first if first.leader_epoch >= 0 else first._replace(leader_epoch=partition.leader_epoch)
    if isinstance(found, FAILURES):
        raise found
    if found is not None and found.offset < end:
        return found
    _check_available(partition, isolation_level)
    return _NONE


def _check_available(partition: Replica, isolation_level: int | None) -> None:
    """`ApiError` for a consumer while a new leader does not know the high watermark yet (KIP-207)."""
    if isolation_level is not None and not partition.knows_committed:
        raise ApiError(ErrorCode.OFFSET_NOT_AVAILABLE)


def _delete_before(directory: LogDir, log: Log, offset: int) -> int:
    if offset < -1:
        raise OffsetOutOfRangeError(f"offset {offset} of {log.topic_partition}")
    if 0 <= offset <= log.log_start_offset:
        return log.log_start_offset  # they are deleted already
    return directory.delete_records(*log.topic_partition, offset)
