"""CreateTopics, CreatePartitions, DeleteTopics. Rules and messages are those of ``ReplicationControlManager`` and
``ControllerApis``."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from typing import Any, Final
from uuid import UUID

from seglog.broker.apis.config_rules import check_topic_config, describe_topic
from seglog.broker.configuration import Configuration
from seglog.broker.identity import Identity
from seglog.broker.offload import in_turns
from seglog.broker.requests import NO_SUCH_ID, NO_SUCH_PARTITION, Answer, ApiError, ApiHandler, RequestContext, failure
from seglog.broker.topics.topic_changes import MAX_PARTITIONS_PER_REQUEST, Assignment, TopicChanges, TopicWish
from seglog.broker.topics.topic_validation import check_collisions, check_replicas, check_topic_name
from seglog.broker.topics.topics import Topic, Topics
from seglog.core.error_codes import ErrorCode
from seglog.core.errors import SeglogError, TopicExistsError
from seglog.protocol.apis import ApiKey
from seglog.protocol.messages import Message

_DUPLICATE: Final = "Duplicate topic name."
_STRICT: Final = {ApiKey.CREATE_TOPICS: 6, ApiKey.CREATE_PARTITIONS: 3, ApiKey.DELETE_TOPICS: 5}
"""From which version on a client knows an error for a quota that it has used up (KIP-599)."""


class TopicApis:
    """Creates, grows and deletes topics."""

    def __init__(self, topics: Topics, changes: TopicChanges, identity: Identity, configuration: Configuration) -> None:
        self._topics = topics
        self._changes = changes
        self._identity = identity
        self._configuration = configuration

    def handlers(self) -> Mapping[int, ApiHandler]:
        return {
            ApiKey.CREATE_TOPICS: self.create_topics,
            ApiKey.CREATE_PARTITIONS: self.create_partitions,
            ApiKey.DELETE_TOPICS: self.delete_topics,
        }

    # CreateTopics

    async def create_topics(self, request: Message, context: RequestContext) -> Answer:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + request.timeout / 1000
        times = Counter(topic.name for topic in request.topics)
        asked = sum(max(topic.num_partitions, len(topic.assignments), 1) for topic in request.topics)
        answers: dict[str, dict[str, Any]] = {}
        wanted: dict[str, TopicWish] = {}
        async for topic in in_turns(request.topics):
            try:
                if times[topic.name] > 1:
                    raise ApiError(ErrorCode.INVALID_REQUEST, _DUPLICATE)
                if asked > MAX_PARTITIONS_PER_REQUEST:
                    message = "Excessively large number of partitions per request."
                    raise ApiError(ErrorCode.POLICY_VIOLATION, message)
                wish = self._checked(topic)
                _charge(context, len(wish.assignment))
                wanted[topic.name] = wish
                answers[topic.name] = {}  # in the order of the request
            except SeglogError as error:
                answers[topic.name] = {"name": topic.name, "configs": (), **failure(error)}
        made: dict[str, Topic] = {}
        if not request.validate_only:
            for name, outcome in zip(wanted, await self._changes.create_all(list(wanted.values())), strict=True):
                if isinstance(outcome, Topic):
                    made[name] = outcome
                else:
                    answers[name] = {"name": name, "configs": (), **failure(_in_kafkas_words(name, outcome))}
        await self._describe(wanted, made, answers)
        await self._changes.settled(list(made.values()), deadline - loop.time())
        return {"topics": list(answers.values())}

    def _checked(self, wanted: Message) -> TopicWish:
        """`ApiError` if the topic cannot be created."""
        name = wanted.name
        if name in self._topics.by_name:
            raise ApiError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
        check_topic_name(name)
        check_collisions(name, self._topics)
        assignment = self._assignment(wanted)
        given = {config.name: config.value for config in wanted.configs}
        return TopicWish(name, assignment, check_topic_config(given) if given else {})

    async def _describe(
        self, wanted: Mapping[str, TopicWish], made: Mapping[str, Topic], answers: dict[str, dict[str, Any]]
    ) -> None:
        """Describe the topics that were created, or could be, in the answers that are empty."""
        known: dict[tuple[tuple[str, str], ...], list[dict[str, Any]]] = {}
        async for one in in_turns(list(wanted.values())):
            if answers[one.name]:
                continue
            config = tuple(sorted(one.config.items()))
            if config not in known:
                known[config] = describe_topic(one.config, self._configuration, None)
            answers[one.name] = {
                "name": one.name,
                "topic_id": made[one.name].topic_id if one.name in made else None,
                "num_partitions": len(one.assignment),
                "replication_factor": max(len(one.assignment[0]), 1),
                "configs": known[config],
            }

    def _assignment(self, wanted: Message) -> Assignment:
        """The brokers of a new topic's replicas."""
        partitions, factor = wanted.num_partitions, wanted.replication_factor
        if wanted.assignments:
            what = "A manual partition assignment was specified, but"
            if factor != -1:
                raise ApiError(ErrorCode.INVALID_REQUEST, f"{what} replication factor was not set to -1.")
            if partitions != -1:
                raise ApiError(ErrorCode.INVALID_REQUEST, f"{what} numPartitions was not set to -1.")
            return self._assigned(wanted.assignments)
        if factor < -1 or factor == 0:
            message = "Replication factor must be larger than 0, or -1 to use the default value."
            raise ApiError(ErrorCode.INVALID_REPLICATION_FACTOR, message)
        if partitions < -1 or partitions == 0:
            message = "Number of partitions was set to an invalid non-positive value."
            raise ApiError(ErrorCode.INVALID_PARTITIONS, message)
        config = self._configuration.current
        replicas = config.default_replication_factor if factor == -1 else factor
        why = self._too_few(replicas)
        if why is not None:
            message = f"Unable to replicate the partition {replicas} time(s): {why}"
            raise ApiError(ErrorCode.INVALID_REPLICATION_FACTOR, message)
        return self._changes.place(config.directory.num_partitions if partitions == -1 else partitions, replicas)

    def _too_few(self, replicas: int) -> str | None:
        """Why so many replicas cannot be placed, in the words of ``StripedReplicaPlacer``."""
        brokers = len(self._identity.racks())
        if replicas <= brokers:
            return None
        return (
            f"The target replication factor of {replicas} cannot be reached because only {brokers} broker(s) are "
            "registered."
        )

    def _assigned(self, assignments: Sequence[Message]) -> Assignment:
        """The manual assignment of a new topic. `ApiError` if it is not valid."""
        found: dict[int, Sequence[int]] = {}
        for assignment in assignments:
            number, brokers = assignment.partition_index, assignment.broker_ids
            if number in found:
                message = f"Found multiple manual partition assignments for partition {number}"
                raise ApiError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)
            factor = None if not found else len(next(iter(found.values())))
            self._check_replicas(number, brokers, factor)
            found[number] = brokers
        if sorted(found) != list(range(len(found))):
            message = "partitions should be a consecutive 0-based integer sequence"
            raise ApiError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)
        return [found[number] for number in range(len(found))]

    def _check_replicas(self, number: int, brokers: Sequence[int], factor: int | None) -> None:
        """`ApiError` unless a live broker can lead the new partition, and it has as many replicas as the others."""
        check_replicas(brokers, self._identity, factor)
        if not set(brokers) & self._identity.racks().keys():
            message = (
                f"All brokers specified in the manual partition assignment for partition {number} are fenced or in "
                "controlled shutdown."
            )
            raise ApiError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)

    # CreatePartitions

    async def create_partitions(self, request: Message, context: RequestContext) -> Answer:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + request.timeout / 1000
        times = Counter(topic.name for topic in request.topics)
        wanted: list[tuple[Topic, Assignment]] = []
        results: dict[str, dict[str, Any]] = {}
        async for topic in in_turns(request.topics):
            results[topic.name] = {"name": topic.name}
            try:
                if times[topic.name] > 1:
                    raise ApiError(ErrorCode.INVALID_REQUEST, _DUPLICATE)
                growth = self._growth(topic)
                _charge(context, len(growth[1]))
                wanted.append(growth)
            except SeglogError as error:
                results[topic.name].update(failure(error))
        if not request.validate_only:
            errors = await self._changes.grow_all(wanted)
            for one, failed in zip(wanted, errors, strict=True):
                if failed is not None:
                    results[one[0].name].update(failure(failed))
        grown = [there for one in wanted if (there := self._topics.by_name.get(one[0].name)) is not None]
        await self._changes.settled(grown, deadline - loop.time())
        return {"results": list(results.values())}

    def _growth(self, wanted: Message) -> tuple[Topic, Assignment]:
        """The topic, and the brokers of its new partitions. `ApiError` if it cannot have them."""
        topic = self._topics.by_name.get(wanted.name)
        if topic is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        there, count = len(topic.partitions), wanted.count
        if count == there:
            raise ApiError(ErrorCode.INVALID_PARTITIONS, f"Topic already has {there} partition(s).")
        if count < there:
            message = f"The topic {topic.name} currently has {there} partition(s); {count} would not be an increase."
            raise ApiError(ErrorCode.INVALID_PARTITIONS, message)
        if count - there > MAX_PARTITIONS_PER_REQUEST:
            raise ApiError(ErrorCode.POLICY_VIOLATION, "Excessively large number of partitions per request.")
        if wanted.assignments is not None and len(wanted.assignments) != count - there:
            message = (
                f"Attempted to add {count - there} additional partition(s), but only {len(wanted.assignments)} "
                "assignment(s) were specified."
            )
            raise ApiError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)
        return topic, self._more(topic, count, wanted.assignments)

    def _more(self, topic: Topic, count: int, assignments: Sequence[Message] | None) -> Assignment:
        """The brokers of the new partitions, which have as many replicas as the first partition."""
        there, factor = len(topic.partitions), len(self._topics.metadata(topic, 0).replicas)
        if assignments is not None:
            for number, assignment in enumerate(assignments, there):
                self._check_replicas(number, assignment.broker_ids, factor)
            return [assignment.broker_ids for assignment in assignments]
        why = self._too_few(factor)
        if why is not None:
            raise ApiError(ErrorCode.INVALID_REPLICATION_FACTOR, why)
        return self._changes.place(count - there, factor, first=there)

    # DeleteTopics

    async def delete_topics(self, request: Message, context: RequestContext) -> Answer:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + request.timeout / 1000
        names = Counter(topic.name for topic in request.topics if topic.name is not None)
        ids = Counter(topic.topic_id for topic in request.topics if topic.topic_id)
        answers: dict[tuple[str | None, UUID | None], dict[str, Any]] = {}
        chosen: dict[Topic, tuple[str | None, UUID | None]] = {}
        async for wanted in in_turns(request.topics):
            key = (wanted.name, wanted.topic_id)
            answers[key] = {"name": wanted.name, "topic_id": wanted.topic_id}
            try:
                if wanted.name is not None and wanted.topic_id:
                    message = "You may not specify both topic name and topic id."
                    raise ApiError(ErrorCode.INVALID_REQUEST, message)
                if wanted.name is None and not wanted.topic_id:
                    raise ApiError(ErrorCode.INVALID_REQUEST, "Neither topic name nor id were specified.")
                if names[wanted.name] > 1 or ids[wanted.topic_id] > 1:
                    message = _DUPLICATE if wanted.name is not None else "Duplicate topic id."
                    raise ApiError(ErrorCode.INVALID_REQUEST, message)
                topic = self._to_delete(wanted, context, chosen)
                answers[key] = {"name": topic.name, "topic_id": topic.topic_id}
                _charge(context, len(topic.partitions))
                chosen[topic] = key
            except SeglogError as error:
                answers[key].update(failure(error))
        errors = await self._changes.delete_all(list(chosen), deadline - loop.time())
        for key, failed in zip(chosen.values(), errors, strict=True):
            if failed is not None:
                answers[key].update(failure(failed))
        return {"responses": list(answers.values())}

    def _to_delete(self, wanted: Message, context: RequestContext, chosen: Container[Topic]) -> Topic:
        """The topic, unless the request names it twice: by its name and by its id."""
        if not self._configuration.current.delete_topic_enable:
            # Versions before KIP-322 have no code of its own for this.
            code = ErrorCode.TOPIC_DELETION_DISABLED if context.version >= 3 else ErrorCode.INVALID_REQUEST
            raise ApiError(code, "Topic deletion is disabled.")
        topic = self._topics.find(wanted.topic_id or wanted.name)
        if topic is None or topic in chosen:
            if wanted.name is None:
                raise ApiError(ErrorCode.UNKNOWN_TOPIC_ID, NO_SUCH_ID)
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, NO_SUCH_PARTITION)
        return topic


def _charge(context: RequestContext, partitions: int) -> None:
    """`ApiError` if the client has used up its quota of partitions that are created and deleted."""
    if context.charge is not None:
        context.charge.mutated(partitions, strict=context.version >= _STRICT[ApiKey(context.key)])


def _in_kafkas_words(name: str, error: SeglogError) -> SeglogError:
    if isinstance(error, TopicExistsError):
        return ApiError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
    return error
