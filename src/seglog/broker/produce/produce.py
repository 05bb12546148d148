"""Produce: appends each partition's batch to its log. Each partition has its own error."""

from __future__ import annotations

from collections.abc import Collection, Coroutine, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import UUID

from seglog.broker.produce.delayed_produce import DelayedProduce, PendingAppend
from seglog.broker.produce.produce_checks import (
    INVALID_PRODUCER_ID_MAPPING,
    INVALID_RECORD,
    Refusal,
    are_plain_batches,
    is_of_new_producer,
    refuse,
    refuse_all,
    refused,
    transactional_producer,
    without_repeats,
)
from seglog.broker.produce.transaction_verification import TransactionVerifier
from seglog.broker.requests import FAILURES, RequestContext, code_of
from seglog.broker.security.permissions import NEEDS, Need
from seglog.broker.topics.leader_hints import LeaderHints
from seglog.broker.topics.topics import Topics
from seglog.core.error_codes import ErrorCode
from seglog.core.errors import InvalidRequestError
from seglog.core.topic_names import INTERNAL_TOPICS
from seglog.core.types import MAX_INT32, ProducerIdAndEpoch
from seglog.net.pending_replies import PendingReply
from seglog.protocol.apis import ApiKey
from seglog.protocol.produce import (
    LEADERS,
    PartitionAnswer,
    PartitionData,
    ProduceRequest,
    TopicAnswer,
    TopicData,
    read_produce,
    write_produce,
)
from seglog.replication.replica import COMMITTED, Replica

if TYPE_CHECKING:
    from seglog.broker.security.authorization import Authorization

INVALID_TOPIC: Final = int(ErrorCode.INVALID_TOPIC_EXCEPTION)
INVALID_REQUIRED_ACKS: Final = int(ErrorCode.INVALID_REQUIRED_ACKS)
THROTTLING_QUOTA_EXCEEDED: Final = int(ErrorCode.THROTTLING_QUOTA_EXCEEDED)
_ADMIN_CLIENT: Final = "__admin_client"
"""The client id whose records Kafka accepts for its internal topics (``AuthHelper``)."""


_ALL: Final = -1
_ADDS_PARTITIONS: Final = 12
"""The version from which a producer leaves it to the broker to add partitions to its transaction (KIP-890)."""
_KNOWS_ABORTABLE: Final = 11
_NOT_IN_TRANSACTION: Final = "the partition could not be verified to be in the producer's open transaction"
_new: Final = tuple.__new__
"""Makes a named tuple in half the time that its own constructor takes."""
ProduceReply = bytes | PendingReply[bytes] | None


class _Verification(NamedTuple):
    """Of a request's transactional batches, which are of one producer. ``guards`` are for the partitions to ask the
    coordinator for; ``refused`` are those that need no question."""

    producer: ProducerIdAndEpoch
    replicas: Collection[Replica]
    guards: dict[Replica, int]
    refused: dict[Replica, ErrorCode]


class Produce:
    """Answers Produce requests."""

    def __init__(
        self,
        topics: Topics,
        hints: LeaderHints | None = None,
        verifier: TransactionVerifier | None = None,
        *,
        max_producers: int = MAX_INT32,
        authorization: Authorization | None = None,
    ) -> None:
        """``max_producers`` is the most producer ids that a partition remembers."""
        self._authorization = authorization
        self._topics = topics
        self._hints = hints
        self._verifier = verifier
        self._max_producers = max_producers

    def __call__(
        self, frame: memoryview, body: int, context: RequestContext
    ) -> ProduceReply | Coroutine[Any, Any, bytes | None]:
        """The response's body, or a wait for it, for which the frame is not needed; None with acks=0, which is not
        answered. A coroutine if the coordinator of a transaction must answer first: it needs the frame.

        `InvalidRequestError` closes the connection: a producer with acks=0 learns of an error in no other way.
        """
        request = read_produce(frame, context.version, body)
        asked = without_repeats(request.topics)
        if self._authorization is None:
            return self._append_allowed(request, asked, context)
        asked, denied = self._split(self._authorization, request, asked, context)
        return self._append_allowed(request, asked, context, denied)

    def _split(
        self,
        authorization: Authorization,
        request: ProduceRequest,
        asked: Sequence[TopicData],
        context: RequestContext,
    ) -> tuple[Sequence[TopicData], Sequence[TopicAnswer]]:
        """The topics that the client may write to, and the refusals of the others."""
        of_transaction, of_topic = NEEDS[ApiKey.PRODUCE]
        transactional_id = request.transactional_id
        batches = (records for _, partitions in asked for _, records in partitions)
        if (
            transactional_id is not None
            and any(transactional_producer(records) is not None for records in batches)
            and not authorization.permits(context, of_transaction, transactional_id)
        ):
            return (), [_denied(one, of_transaction) for one in asked]
        allowed: list[TopicData] = []
        denied: list[TopicAnswer] = []
        for one in asked:
            topic = one.topic
            found = self._topics.by_id.get(topic) if isinstance(topic, UUID) else None
            name = found.name if found is not None else topic
            if isinstance(name, UUID) or authorization.permits(context, of_topic, name):
                allowed.append(one)
            else:
                denied.append(_denied(one, of_topic))
        return allowed, denied

    def _append_allowed(
        self,
        request: ProduceRequest,
        asked: Sequence[TopicData],
        context: RequestContext,
        denied: Sequence[TopicAnswer] = (),
    ) -> ProduceReply | Coroutine[Any, Any, bytes | None]:
        """``denied`` are the answers for topics that the client may not write to."""
        if are_plain_batches(context.version, asked):
            return self._append_all(request, asked, context, is_plain=True, denied=denied)
        refusal = refuse_all(asked, request.transactional_id)
        batches = self._transactional_batches(asked) if refusal is None else {}
        if len({producer for producer, _ in batches.values()}) > 1:
            refusal = Refusal(INVALID_PRODUCER_ID_MAPPING, "a request with batches of several transactional producers")
        if refusal is not None or not batches or not self._verifies(context.version):
            return self._append_all(request, asked, context, is_plain=False, refusal=refusal, denied=denied)
        verification = _begin_verification(batches, bumps_epoch=context.version >= _ADDS_PARTITIONS)
        if not verification.guards:
            refused = verification.refused
            return self._append_all(request, asked, context, is_plain=False, refused=refused, denied=denied)
        return self._append_verified(request, asked, verification, context, denied)

    def _append_all(
        self,
        request: ProduceRequest,
        asked: Sequence[TopicData],
        context: RequestContext,
        *,
        is_plain: bool,
        refusal: Refusal | None = None,
        refused: Mapping[Replica, ErrorCode] = MappingProxyType({}),
        denied: Sequence[TopicAnswer] = (),
    ) -> ProduceReply:
        uncommitted: list[PendingAppend] = []
        acks = request.acks
        topics: list[TopicAnswer] = []
        for at, (topic, partitions) in enumerate(asked):
            answers: list[PartitionAnswer] = []
            for place, data in enumerate(partitions):
                if refusal is None:
                    answers.append(
                        self._append(acks, topic, data, context, is_plain, uncommitted, (at, place), refused)
                    )
                else:
                    answers.append(_refused(data.partition, refusal))
            topics.append(TopicAnswer(topic, answers))
        topics += denied
        if acks == 0:
            if any(answer.error for topic in topics for answer in topic.partitions):
                raise InvalidRequestError("an append with acks=0 was refused")
            return None
        if uncommitted:
            return DelayedProduce(
                topics, uncommitted, request.timeout_ms / 1000, lambda: self._answer(topics, context)
            ).answer
        return self._answer(topics, context)

    # Transactions

    def _transactional_batches(self, asked: Sequence[TopicData]) -> dict[Replica, tuple[ProducerIdAndEpoch, int]]:
        """Producer and first sequence of each, for partitions that this broker leads."""
        found: dict[Replica, tuple[ProducerIdAndEpoch, int]] = {}
        for topic, partitions in asked:
            for number, records in partitions:
                batch = transactional_producer(records)
                replica = None if batch is None else self._topics.partition(topic, number)
                if batch is not None and replica is not None and replica.leads:
                    found[replica] = batch
        return found

    def _verifies(self, version: int) -> bool:
        return self._verifier is not None and (self._verifier.is_enabled() or version >= _ADDS_PARTITIONS)

    async def _append_verified(
        self,
        request: ProduceRequest,
        asked: Sequence[TopicData],
        verification: _Verification,
        context: RequestContext,
        denied: Sequence[TopicAnswer],
    ) -> bytes | None:
        """Append what the coordinator says is in the transaction, unless a marker has come meanwhile."""
        assert self._verifier is not None
        assert request.transactional_id is not None
        guards, refused = verification.guards, verification.refused
        partitions = {replica.topic_partition: replica for replica in guards}
        codes = await self._verifier.check_produce(
            request.transactional_id,
            verification.producer,
            list(partitions),
            adds=context.version >= _ADDS_PARTITIONS,
            knows_abortable=context.version >= _KNOWS_ABORTABLE,
        )
        refused.update((partitions[one], code) for one, code in codes.items() if code is not ErrorCode.NONE)
        for replica in verification.replicas:
            if replica in refused or not self._verifier.is_enabled():
                continue
            try:
                replica.log.producers.check_verified(verification.producer, guards.get(replica))
            except FAILURES as error:
                refused[replica] = code_of(error)
        reply = self._append_all(request, asked, context, is_plain=False, refused=refused, denied=denied)
        return await reply if isinstance(reply, PendingReply) else reply

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
        refusals: Mapping[Replica, ErrorCode],
    ) -> PartitionAnswer:
        """``is_plain``: every partition of the request has a plain batch. If the answer at ``place`` must wait, the
        append joins ``uncommitted``."""
        number, records = data
        partition = self._topics.partition(topic, number)
        if partition is None:
            return PartitionAnswer(number, self._topics.why_not(topic, number))
        if records is None or not is_plain:
            refusal = refuse(context.version, records)
            if refusal is not None or records is None:
                return _refused(number, refusal or Refusal(INVALID_RECORD))
        if acks not in (-1, 0, 1):
            return PartitionAnswer(number, INVALID_REQUIRED_ACKS)
        if partition.topic_partition.topic in INTERNAL_TOPICS and context.client_id != _ADMIN_CLIENT:
            return PartitionAnswer(number, INVALID_TOPIC, error_message="an internal topic is written by the broker")
        if refusals and (code := refusals.get(partition)) is not None:
            return PartitionAnswer(number, int(code), error_message=_NOT_IN_TRANSACTION)
        producers = partition.log.producers.entries
        if len(producers) >= self._max_producers and is_of_new_producer(records, producers):
            reason = f"the partition remembers {len(producers)} producer ids (seglog.max.producers)"
            return PartitionAnswer(number, THROTTLING_QUOTA_EXCEEDED, error_message=reason)
        needs_all = acks == _ALL
        try:
            appended = partition.append(records, needs_all=needs_all)
        except FAILURES as error:
            return refused(partition, error)
        if needs_all or (acks and partition.log.needs_flush):
            epoch, end = partition.leader_epoch, appended.last_offset + 1
            if partition.outcome(epoch, end, needs_all=needs_all) != COMMITTED:
                uncommitted.append(PendingAppend(*place, partition, epoch, end, needs_all))
        first_offset, _, _, log_append_time, log_start_offset, _ = appended
        return _new(PartitionAnswer, (number, 0, first_offset, log_append_time, log_start_offset, (), None, None))


def _begin_verification(
    batches: Mapping[Replica, tuple[ProducerIdAndEpoch, int]], *, bumps_epoch: bool
) -> _Verification:
    guards: dict[Replica, int] = {}
    refused: dict[Replica, ErrorCode] = {}
    for replica, (producer, sequence) in batches.items():
        try:
            guard = replica.log.verify(producer, sequence, bumps_epoch=bumps_epoch)
        except FAILURES as error:
            refused[replica] = code_of(error)
            continue
        if guard is not None:
            guards[replica] = guard
    return _Verification(next(iter(batches.values()))[0], batches.keys(), guards, refused)


def _denied(asked: TopicData, need: Need) -> TopicAnswer:
    code = int(need.code)
    return TopicAnswer(asked.topic, [PartitionAnswer(one.partition, code) for one in asked.partitions])


def _refused(number: int, refusal: Refusal) -> PartitionAnswer:
    return PartitionAnswer(number, refusal.code, error_message=refusal.message)
