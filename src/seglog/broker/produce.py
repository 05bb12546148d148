"""Produce: appends each partition's batch to its log. Each partition has its own error."""

from __future__ import annotations

from typing import Final
from uuid import UUID

from seglog.broker.cluster_peers import LeaderHints
from seglog.broker.delayed_produce import DelayedProduce, PendingAppend
from seglog.broker.produce_checks import (
    INVALID_RECORD,
    Refusal,
    is_plain_batch,
    refuse,
    refuse_all,
    refused,
    without_repeats,
)
from seglog.broker.requests import RequestContext
from seglog.broker.topics import INTERNAL, Topics
from seglog.core.error_codes import ErrorCode
from seglog.core.errors import InvalidRequestError, SeglogError
from seglog.net.pending_replies import PendingReply
from seglog.protocol.produce import (
    LEADERS,
    PartitionAnswer,
    PartitionData,
    TopicAnswer,
    read_produce,
    write_produce,
)
from seglog.replication.replica import COMMITTED, Replica

UNKNOWN_TOPIC_OR_PARTITION: Final = int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
NOT_LEADER_OR_FOLLOWER: Final = int(ErrorCode.NOT_LEADER_OR_FOLLOWER)
INVALID_TOPIC: Final = 17
INVALID_REQUIRED_ACKS: Final = 21
UNKNOWN_TOPIC_ID: Final = 100
_ADMIN_CLIENT: Final = "__admin_client"
"""The client id whose records Kafka accepts for its internal topics (``AuthHelper``)."""


_ALL: Final = -1


class Produce:
    """Answers Produce requests."""

    def __init__(self, topics: Topics, hints: LeaderHints | None = None) -> None:
        self._topics = topics
        self._hints = hints

    def __call__(self, frame: memoryview, body: int, context: RequestContext) -> bytes | PendingReply[bytes] | None:
        """The response's body, or a wait that no longer needs the frame; None with acks=0, which has no response.

        `InvalidRequestError` closes the connection: a producer with acks=0 learns of an error in no other way.
        """
        request = read_produce(frame, context.version, body)
        asked = without_repeats(request.topics)
        is_plain = all(is_plain_batch(context.version, data.records) for topic in asked for data in topic.partitions)
        refusal = None if is_plain else refuse_all(asked)
        uncommitted: list[PendingAppend] = []
        if refusal is None:
            topics = [
                TopicAnswer(
                    topic,
                    [
                        self._append(request.acks, topic, data, context, is_plain, uncommitted, (at, place))
                        for place, data in enumerate(partitions)
                    ],
                )
                for at, (topic, partitions) in enumerate(asked)
            ]
        else:
            topics = [
                TopicAnswer(topic, [_refused(data.partition, refusal) for data in partitions])
                for topic, partitions in asked
            ]
        if request.acks == 0:
            if any(answer.error for topic in topics for answer in topic.partitions):
                raise InvalidRequestError("an append with acks=0 was refused")
            return None
        if uncommitted:
            return DelayedProduce(
                topics, uncommitted, request.timeout_ms / 1000, lambda: self._answer(topics, context)
            ).answer
        return self._answer(topics, context)

    def _answer(self, topics: list[TopicAnswer], context: RequestContext) -> bytes:
        """In a cluster, the response names the leaders of partitions that other brokers lead."""
        hints = self._hints
        if hints is None or context.version < LEADERS:
            return write_produce(context.version, topics)
        leaders = []
        for topic, partitions in topics:
            for place, answer in enumerate(partitions):
                if answer.error and (leader := hints.leader(topic, answer.partition, answer.error)) is not None:
                    partitions[place] = answer._replace(leader=leader)
                    leaders.append(leader)
        endpoints = hints.endpoints(leaders, context.listener) if leaders else ()
        return write_produce(context.version, topics, endpoints=endpoints)

    def _append(
        self,
        acks: int,
        topic: str | UUID,
        data: PartitionData,
        context: RequestContext,
        is_plain: bool,
        uncommitted: list[PendingAppend],
        place: tuple[int, int],
    ) -> PartitionAnswer:
        """``is_plain``: every partition of the request has a plain batch. If the answer at ``place`` must wait, the
        append joins ``uncommitted``."""
        number, records = data
        partition = self._topics.partition(topic, number)
        if partition is None:
            return PartitionAnswer(number, self._why_not(topic, number))
        if records is None or not is_plain:
            refusal = refuse(context.version, records)
            if refusal is not None or records is None:
                return _refused(number, refusal or Refusal(INVALID_RECORD))
        if acks not in (-1, 0, 1):
            return PartitionAnswer(number, INVALID_REQUIRED_ACKS)
        if context.client_id != _ADMIN_CLIENT and _is_internal(partition):
            return PartitionAnswer(number, INVALID_TOPIC, error_message="an internal topic is written by the broker")
        try:
            appended = partition.append(records, needs_all=acks == _ALL)
        except SeglogError as error:
            return refused(partition, error)
        needs_all = acks == _ALL
        if needs_all or (acks and partition.log.needs_flush):
            epoch, end = partition.leader_epoch, appended.last_offset + 1
            if partition.outcome(epoch, end, needs_all=needs_all) != COMMITTED:
                uncommitted.append(PendingAppend(*place, partition, epoch, end, needs_all))
        return PartitionAnswer(number, 0, appended.first_offset, appended.log_append_time, appended.log_start_offset)

    def _why_not(self, topic: str | UUID, number: int) -> int:
        found = self._topics.find(topic)
        if found is not None and 0 <= number < len(found.partitions):
            return NOT_LEADER_OR_FOLLOWER  # it is ours but damaged: see the broker's log
        return UNKNOWN_TOPIC_ID if isinstance(topic, UUID) and found is None else UNKNOWN_TOPIC_OR_PARTITION


def _is_internal(partition: Replica) -> bool:
    return partition.topic_partition.topic in INTERNAL


def _refused(number: int, refusal: Refusal) -> PartitionAnswer:
    return PartitionAnswer(number, refusal.code, error_message=refusal.message)
