"""Committed offsets: OffsetCommit, OffsetFetch, OffsetDelete."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final
from uuid import UUID

from seglog.broker.offload import in_turns
from seglog.broker.produce.transaction_verification import TransactionVerifier
from seglog.broker.requests import Answer, ApiHandler, RequestContext
from seglog.broker.topics.topics import Topic, Topics
from seglog.coordinators.committed_offsets import FetchedOffset
from seglog.coordinators.coordinator_error import CoordinatorError, code_of_append
from seglog.coordinators.coordinator_shard import CoordinatorShard, OffsetCommit, OffsetCommitRequest
from seglog.coordinators.group_coordinator import GroupCoordinator
from seglog.coordinators.group_records import NO_RETENTION
from seglog.core.error_codes import ErrorCode
from seglog.core.errors import AppendError
from seglog.core.topic_names import OFFSETS_TOPIC
from seglog.core.types import NO_SEQUENCE, ProducerIdAndEpoch, TopicPartition
from seglog.protocol.apis import ApiKey
from seglog.protocol.messages import Message

_TOPIC_IDS: Final[Mapping[int, int]] = {
    ApiKey.OFFSET_COMMIT: 10,
    ApiKey.OFFSET_FETCH: 10,
    ApiKey.TXN_OFFSET_COMMIT: 6,
}
"""By API: the first version with topic ids in place of names. OffsetDelete has names."""
_NEVER: Final = 1 << 15
_NO_OFFSET: Final = -1
_KNOWS_ABORTABLE: Final = 4
_ADDS_PARTITIONS: Final = 5
"""The versions of TxnOffsetCommit of clients that know TRANSACTION_ABORTABLE, and that leave it to the broker to add
the group's partition to the transaction (KIP-890)."""
_OF_VERIFICATION: Final = {ErrorCode.NETWORK_EXCEPTION: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
"""The retriable error as a client expects it from a group coordinator."""
_ZERO: Final = UUID(int=0)


class GroupOffsetApis:
    """Answers requests for offsets of groups."""

    def __init__(self, coordinator: GroupCoordinator, topics: Topics, verifier: TransactionVerifier) -> None:
        self._coordinator = coordinator
        self._topics = topics
        self._verifier = verifier

    def handlers(self) -> Mapping[int, ApiHandler]:
        return {
            ApiKey.OFFSET_COMMIT: self.commit,
            ApiKey.OFFSET_FETCH: self.fetch,
            ApiKey.OFFSET_DELETE: self.delete,
            ApiKey.TXN_OFFSET_COMMIT: self.commit_in_transaction,
        }

    def _find(self, named: Message, context: RequestContext) -> Topic | None:
        if _has_ids(context):
            return self._topics.find(named.topic_id or _ZERO)
        return self._topics.find(named.name)

    # OffsetCommit

    async def commit(self, request: Message, context: RequestContext) -> Answer:
        return await self._commit_topics(request, context, partial(self._commit, request, context.version))

    async def commit_in_transaction(self, request: Message, context: RequestContext) -> Answer:
        """TxnOffsetCommit: offsets that count when the producer's transaction is committed (KIP-98, 447)."""
        commit = partial(self._commit_in_transaction, request, context.version)
        return await self._commit_topics(request, context, commit)

    async def _commit_topics(
        self,
        request: Message,
        context: RequestContext,
        commit: Callable[[list[OffsetCommit]], Awaitable[list[ErrorCode]]],
    ) -> Answer:
        """Commit the partitions that are there; each partition has its own error."""
        commits: list[OffsetCommit] = []
        answers: list[dict[str, Any]] = []
        topics = []
        for wanted in request.topics:
            topic = self._find(wanted, context)
            partitions = []
            for partition in wanted.partitions:
                answer = {
                    "partition_index": partition.partition_index,
                    "error_code": _why_not(topic, partition, context),
                }
                partitions.append(answer)
                if topic is not None and not answer["error_code"]:
                    answers.append(answer)
                    commits.append(_offset_commit(topic, partition))
            topics.append(_named(wanted, topic) | {"partitions": partitions})
        if commits:
            for answer, code in zip(answers, await commit(commits), strict=True):
                answer["error_code"] = int(code)
        return {"topics": topics}

    async def _commit_in_transaction(
        self, request: Message, version: int, commits: list[OffsetCommit]
    ) -> list[ErrorCode]:
        if not request.group_id:
            return [ErrorCode.INVALID_GROUP_ID for _ in commits]
        producer = ProducerIdAndEpoch(request.producer_id, request.producer_epoch)
        wanted = OffsetCommitRequest(
            request.group_id,
            request.generation_id_or_member_epoch,
            request.member_id,
            request.group_instance_id,
            commits,
            version,
        )
        partition = TopicPartition(OFFSETS_TOPIC, self._coordinator.partition_of(request.group_id))
        try:
            self._coordinator.shard(request.group_id)  # refused here, nothing becomes a part of the transaction
            guard = await self._verify(request.transactional_id, producer, partition, version)
            if self._verifier.is_enabled() and (replica := self._topics.partition(*partition)) is not None:
                replica.log.producers.check_verified(producer, guard)
            return await self._coordinator.commit_in_transaction(wanted, producer)
        except CoordinatorError as error:
            return [error.code for _ in commits]
        except AppendError as error:
            return [code_of_append(error) for _ in commits]

    async def _verify(
        self, transactional_id: str, producer: ProducerIdAndEpoch, partition: TopicPartition, version: int
    ) -> int | None:
        """The guard under which the offsets may be appended. Raises `CoordinatorError` and `AppendError`."""
        replica = self._topics.partition(*partition)
        adds = version >= _ADDS_PARTITIONS
        if replica is None or not (adds or self._verifier.is_enabled()):
            return None
        guard = replica.log.verify(producer, NO_SEQUENCE, bumps_epoch=adds)
        if guard is None:
            return None
        codes = await self._verifier.check(
            transactional_id, producer, (partition,), adds=adds, knows_abortable=version >= _KNOWS_ABORTABLE
        )
        code = codes[partition]
        if code is not ErrorCode.NONE:
            raise CoordinatorError(
                _OF_VERIFICATION.get(code, code), f"{partition} is not in the transaction of {transactional_id}"
            )
        return guard

    async def _commit(self, request: Message, version: int, commits: list[OffsetCommit]) -> list[ErrorCode]:
        wanted = OffsetCommitRequest(
            request.group_id,
            request.generation_id_or_member_epoch,
            request.member_id,
            request.group_instance_id,
            commits,
            version,
            getattr(request, "retention_time", NO_RETENTION),
        )
        try:
            return await self._coordinator.commit(wanted)
        except CoordinatorError as error:
            return [error.code for _ in commits]

    # OffsetFetch

    def fetch(self, request: Message, context: RequestContext) -> Answer | Awaitable[Answer]:
        stable = bool(request.require_stable)
        if any(self._coordinator.is_in_doubt(group.group_id) for group in request.groups):
            return self._fetch_newest(request.groups, context, require_stable=stable)
        if len(request.groups) > 1:
            return self._fetch_in_turns(request.groups, context, require_stable=stable)
        return {"groups": [self._fetch(group, context, require_stable=stable) for group in request.groups]}

    async def _fetch_in_turns(
        self, groups: Sequence[Message], context: RequestContext, *, require_stable: bool
    ) -> Answer:
        """Other connections have their turn after each group, which may have any number of offsets."""
        found = [self._fetch(group, context, require_stable=require_stable) async for group in in_turns(groups, 1)]
        return {"groups": found}

    async def _fetch_newest(
        self, groups: Sequence[Message], context: RequestContext, *, require_stable: bool
    ) -> Answer:
        """While the metadata store is away, return no offset that another coordinator may have changed."""

        async def fetch(group: Message) -> dict[str, Any]:
            try:
                await self._coordinator.newest(group.group_id)
            except CoordinatorError as error:
                return _no_group(group, context.version, error)
            return self._fetch(group, context, require_stable=require_stable)

        return {"groups": await asyncio.gather(*map(fetch, groups))}

    def _fetch(self, group: Message, context: RequestContext, *, require_stable: bool) -> dict[str, Any]:
        try:
            shard = self._coordinator.shard(group.group_id)
            shard.check_fetch(group.group_id, getattr(group, "member_id", None), getattr(group, "member_epoch", -1))
        except CoordinatorError as error:
            return _no_group(group, context.version, error)
        if group.topics is None:
            return {
                "group_id": group.group_id,
                "topics": self._fetch_all(group.group_id, shard, context, require_stable),
            }
        return {
            "group_id": group.group_id,
            "topics": [
                self._fetch_topic(group.group_id, shard, topic, context, require_stable) for topic in group.topics
            ],
        }

    def _fetch_topic(
        self, group_id: str, shard: CoordinatorShard, wanted: Message, context: RequestContext, require_stable: bool
    ) -> dict[str, Any]:
        topic = self._find(wanted, context)
        if topic is None and _has_ids(context):
            return _no_offsets(wanted, ErrorCode.UNKNOWN_TOPIC_ID)
        name = wanted.name if topic is None else topic.name
        topic_id = _known_id(topic)
        return _named(wanted, topic) | {
            "partitions": [
                _fetched(number, shard.fetch(group_id, (name, number), topic_id, require_stable=require_stable))
                for number in wanted.partition_indexes
            ]
        }

    def _fetch_all(
        self, group_id: str, shard: CoordinatorShard, context: RequestContext, require_stable: bool
    ) -> list[dict[str, Any]]:
        """All committed offsets. Versions that name topics by id leave out deleted topics."""
        found: dict[str, list[dict[str, Any]]] = {}
        for place in shard.places(group_id):
            name, number = place
            topic = self._topics.find(name)
            if topic is None and _has_ids(context):
                continue
            topic_id = _known_id(topic)
            offset = shard.fetch(group_id, place, topic_id, require_stable=require_stable)
            if offset.value is not None or offset.is_unstable:
                found.setdefault(name, []).append(_fetched(number, offset))
        return [
            {"name": name, "topic_id": _id_of(self._topics.find(name)), "partitions": partitions}
            for name, partitions in found.items()
        ]

    # OffsetDelete

    async def delete(self, request: Message, context: RequestContext) -> Answer:
        if not request.group_id:
            return {"error_code": int(ErrorCode.INVALID_GROUP_ID)}
        places: list[tuple[str, int]] = []
        answers: list[dict[str, Any]] = []
        topics = []
        async for wanted in in_turns(request.topics):
            topic = self._topics.find(wanted.name)
            partitions = []
            async for partition in in_turns(wanted.partitions):
                answer = {
                    "partition_index": partition.partition_index,
                    "error_code": _why_not(topic, partition, context),
                }
                partitions.append(answer)
                if not answer["error_code"]:
                    places.append((wanted.name, partition.partition_index))
                    answers.append(answer)
            topics.append({"name": wanted.name, "partitions": partitions})
        try:
            codes = await self._coordinator.delete_offsets(request.group_id, places)
        except CoordinatorError as error:
            return {"error_code": int(error.code)}
        async for answer, code in in_turns(zip(answers, codes, strict=True)):
            answer["error_code"] = int(code)
        return {"topics": topics}


def _has_ids(context: RequestContext) -> bool:
    """Whether the request has topic ids in place of names."""
    return context.version >= _TOPIC_IDS.get(context.key, _NEVER)


def _why_not(topic: Topic | None, partition: Message, context: RequestContext) -> int:
    if topic is None and _has_ids(context):
        return int(ErrorCode.UNKNOWN_TOPIC_ID)
    if topic is None or not 0 <= partition.partition_index < len(topic.partitions):
        return int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    return 0


def _offset_commit(topic: Topic, partition: Message) -> OffsetCommit:
    return OffsetCommit(
        (topic.name, partition.partition_index),
        _known_id(topic),
        partition.committed_offset,
        partition.committed_leader_epoch,
        partition.committed_metadata,
    )


def _id_of(topic: Topic | None) -> UUID:
    return _ZERO if topic is None else topic.topic_id


def _known_id(topic: Topic | None) -> UUID | None:
    """None for an unknown topic, and for a topic of Kafka before 2.8."""
    return topic.topic_id if topic is not None and topic.topic_id.int else None


def _named(wanted: Message, topic: Topic | None) -> dict[str, Any]:
    """A topic by the name or id of the request, with the other one added."""
    name = getattr(wanted, "name", None) or ("" if topic is None else topic.name)
    return {"name": name, "topic_id": getattr(wanted, "topic_id", None) or _id_of(topic)}


def _no_group(group: Message, version: int, error: CoordinatorError) -> dict[str, Any]:
    # Only version 1 has no other place for the error than each partition.
    topics = [] if version >= 2 or group.topics is None else [_no_offsets(topic) for topic in group.topics]
    return {"group_id": group.group_id, "error_code": int(error.code), "topics": topics}


def _fetched(number: int, found: FetchedOffset) -> dict[str, Any]:
    value = found.value
    code = ErrorCode.UNSTABLE_OFFSET_COMMIT if found.is_unstable else ErrorCode.NONE
    if value is None:
        return _no_offset(number, code)
    return {
        "partition_index": number,
        "committed_offset": value.offset,
        "committed_leader_epoch": value.leader_epoch,
        "metadata": value.metadata,
        "error_code": int(code),
    }


def _no_offset(number: int, code: ErrorCode) -> dict[str, Any]:
    return {
        "partition_index": number,
        "committed_offset": _NO_OFFSET,
        "committed_leader_epoch": -1,
        "metadata": "",
        "error_code": int(code),
    }


def _no_offsets(wanted: Message, code: ErrorCode = ErrorCode.NONE) -> dict[str, Any]:
    return _named(wanted, None) | {"partitions": [_no_offset(number, code) for number in wanted.partition_indexes]}
