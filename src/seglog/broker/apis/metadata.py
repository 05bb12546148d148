"""Metadata, DescribeTopicPartitions, DescribeCluster, DescribeLogDirs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Container, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple
from uuid import UUID

from seglog.broker.configuration import Configuration
from seglog.broker.identity import CLUSTER_OPERATIONS, NOT_ASKED, TOPIC_OPERATIONS, Identity
from seglog.broker.offload import SLICE, Offload, drop, in_turns, slices
from seglog.broker.requests import Answer, ApiHandler, RequestContext
from seglog.broker.topics.auto_creation import AutoCreation
from seglog.broker.topics.topic_changes import TopicChanges
from seglog.broker.topics.topics import PartitionMetadata, Topic, Topics
from seglog.core.error_codes import ErrorCode
from seglog.core.errors import InvalidTopicError
from seglog.core.ground import Workers
from seglog.core.topic_names import INTERNAL_TOPICS
from seglog.core.types import validate_topic
from seglog.protocol.apis import ApiKey
from seglog.protocol.messages import Message
from seglog.storage.directory.log_dir import LogDir
from seglog.storage.directory.strays import size_of

_log: Final = logging.getLogger("seglog.broker")
_BROKERS: Final = 1
_CONTROLLERS: Final = 2
_LISTENERS_SINCE: Final = 6
"""The first version of Metadata whose clients know LISTENER_NOT_FOUND."""
_IDS_SINCE: Final = 12
"""The first version of Metadata that may ask by topic id."""


class MetadataApis:
    """Describes topics, partitions, brokers and log directories. Metadata may create the topics that it asks for."""

    def __init__(
        self,
        topics: Topics,
        changes: TopicChanges,
        identity: Identity,
        configuration: Configuration,
        workers: Workers,
        offload: Offload,
    ) -> None:
        self._topics = topics
        self._auto_creation = AutoCreation(topics, changes, lambda: configuration.current)
        self._identity = identity
        self._configuration = configuration
        self._workers = workers
        self._offload = offload

    def handlers(self) -> Mapping[int, ApiHandler]:
        return {
            ApiKey.METADATA: self.metadata,
            ApiKey.DESCRIBE_TOPIC_PARTITIONS: self.describe_topic_partitions,
            ApiKey.DESCRIBE_CLUSTER: self.describe_cluster,
            ApiKey.DESCRIBE_LOG_DIRS: self.describe_log_dirs,
            ApiKey.ALTER_REPLICA_LOG_DIRS: self.alter_replica_log_dirs,
        }

    # Metadata

    def metadata(self, request: Message, context: RequestContext) -> Answer | Awaitable[Answer]:
        named = request.topics or ()
        if len(named) > SLICE:
            return self._metadata_in_slices(request, context)
        if context.version < _IDS_SINCE and _has_ids(named):
            return _refused_ids(request)
        if missing := self._to_create(named, request, context):
            return self._create_first(list(missing), request, context)
        if self._number_of_partitions(request) > SLICE:
            return self._metadata_in_slices(request, context)
        return self._metadata(request, context, {})

    def _number_of_partitions(self, request: Message) -> int:
        asked = self._topics if request.topics is None else filter(None, map(self._asked, request.topics))
        return sum(len(topic.partitions) for topic in asked)

    def _asked(self, asked: Message) -> Topic | None:
        topic_id = getattr(asked, "topic_id", None)
        return self._topics.by_id.get(topic_id) if topic_id else self._topics.by_name.get(asked.name)

    def _to_create(self, topics: Sequence[Message], request: Message, context: RequestContext) -> dict[str, None]:
        """The names of missing topics, if the request may create them."""
        is_enabled = self._configuration.current.auto_create_topics_enable
        if not is_enabled or (context.version >= 4 and not request.allow_auto_topic_creation):
            return {}
        return dict.fromkeys(
            topic.name
            for topic in topics
            if topic.name is not None and not topic.topic_id and topic.name not in self._topics.by_name
        )

    async def _metadata_in_slices(self, request: Message, context: RequestContext) -> Answer:
        """The same for many names or partitions. Other connections have their turn in between."""
        missing: dict[str, None] = {}
        async for some in slices(request.topics or ()):
            if context.version < _IDS_SINCE and _has_ids(some):
                return _refused_ids(request)
            missing |= self._to_create(some, request, context)
        refused = await self._auto_creation.create(list(missing), context.charge) if missing else {}
        answer = self._metadata(Message(**{**vars(request), "topics": ()}), context, {})
        viewer = self._viewer(request, context)
        asked = list(self._topics if request.topics is None else request.topics)
        seen: set[tuple[str | None, UUID | None]] = set()
        topics: list[dict[str, Any]] = []
        room = SLICE
        for one in asked:
            topic = one if isinstance(one, Topic) else self._asked(one)
            name = (one.name, getattr(one, "topic_id", None))
            if name in seen:
                continue
            seen.add(name)
            described = self._named(*name, refused, viewer) if topic is None else self._topic(topic, viewer, range(0))
            topics.append(described)
            count = 0 if topic is None else len(topic.partitions)
            for start in range(0, max(count, 1), SLICE):
                if topic is not None:
                    numbers = range(start, min(start + SLICE, count))
                    described["partitions"] += self._partitions(topic, viewer, numbers)
                room -= max(min(SLICE, count - start), 1)
                if room <= 0:
                    room = SLICE
                    await asyncio.sleep(0)
        request.topics = ()
        await self._offload.run(partial(drop, asked))
        return {**answer, "topics": topics}

    async def _create_first(self, names: list[str], request: Message, context: RequestContext) -> Answer:
        """Create missing topics first. Kafka answers UNKNOWN_TOPIC_OR_PARTITION while it creates them."""
        return self._metadata(request, context, await self._auto_creation.create(names, context.charge))

    def _viewer(self, request: Message, context: RequestContext) -> _Viewer:
        return _Viewer(
            frozenset(broker["node_id"] for broker in self._identity.brokers(context.listener)),
            ErrorCode.LISTENER_NOT_FOUND if context.version >= _LISTENERS_SINCE else ErrorCode.LEADER_NOT_AVAILABLE,
            bool(getattr(request, "include_topic_authorized_operations", False)),
        )

    def _metadata(self, request: Message, context: RequestContext, refused: Mapping[str, int]) -> Answer:
        viewer = self._viewer(request, context)
        if request.topics is None:
            answers = [self._topic(topic, viewer) for topic in self._topics]
        else:
            wanted = dict.fromkeys((topic.name, getattr(topic, "topic_id", None)) for topic in request.topics)
            answers = [self._named(name, topic_id, refused, viewer) for name, topic_id in wanted]
        own = self._identity.node_id
        wants_cluster = bool(getattr(request, "include_cluster_authorized_operations", False))
        return {
            "brokers": self._identity.brokers(context.listener),
            "cluster_id": self._identity.cluster_id,
            # Clients send changes to this id. Any broker serves them, and librdkafka would wait for a controller that
            # has just died, so the id is our own. (Kafka's brokers forward changes and name a random broker.)
            "controller_id": own if own in viewer.reachable else self._identity.controller_id,
            "topics": answers,
            "cluster_authorized_operations": CLUSTER_OPERATIONS if wants_cluster else NOT_ASKED,
        }

    def _named(
        self, name: str | None, topic_id: UUID | None, refused: Mapping[str, int], viewer: _Viewer
    ) -> dict[str, Any]:
        if topic_id is not None and topic_id.int:
            found = self._topics.by_id.get(topic_id)
            if found is None:
                return {"error_code": ErrorCode.UNKNOWN_TOPIC_ID, "name": None, "topic_id": topic_id}
            return self._topic(found, viewer)
        if name is None:
            return {"error_code": ErrorCode.INVALID_REQUEST, "name": ""}
        found = self._topics.by_name.get(name)
        if found is not None:
            return self._topic(found, viewer)
        return {
            "error_code": refused.get(name) or _why_not(name),
            "name": name,
            "is_internal": name in INTERNAL_TOPICS,
            "topic_authorized_operations": TOPIC_OPERATIONS if viewer.wants_operations else NOT_ASKED,
        }

    def _topic(self, topic: Topic, viewer: _Viewer, numbers: range | None = None) -> dict[str, Any]:
        return {
            "name": topic.name,
            "topic_id": topic.topic_id,
            "is_internal": topic.is_internal,
            "partitions": self._partitions(topic, viewer, range(len(topic.partitions)) if numbers is None else numbers),
            "topic_authorized_operations": TOPIC_OPERATIONS if viewer.wants_operations else NOT_ASKED,
        }

    def _partitions(self, topic: Topic, viewer: _Viewer, numbers: range) -> list[dict[str, Any]]:
        return [_partition(number, self._topics.metadata(topic, number), viewer) for number in numbers]

    # DescribeTopicPartitions

    def describe_topic_partitions(self, request: Message, context: RequestContext) -> Answer:
        """A page of partitions, ordered by topic name (KIP-966)."""
        cursor = request.cursor
        if cursor is not None and cursor.partition_index < 0:
            topics = [{"error_code": ErrorCode.INVALID_REQUEST, "name": topic.name} for topic in request.topics]
            return {"topics": topics}
        limit = max(1, request.response_partition_limit)
        limit = min(limit, self._configuration.current.max_request_partition_size_limit)
        asked = {topic.name for topic in request.topics} or set(self._topics.by_name)
        start = (cursor.topic_name, cursor.partition_index) if cursor is not None else ("", 0)
        reachable = frozenset(broker["node_id"] for broker in self._identity.brokers(context.listener))
        viewer = _Viewer(reachable, ErrorCode.LISTENER_NOT_FOUND, wants_operations=True)
        answers: list[dict[str, Any]] = []
        for name in sorted(asked):
            if name < start[0]:
                continue
            first = start[1] if name == start[0] else 0
            if limit == 0:
                return {"topics": answers, "next_cursor": {"topic_name": name, "partition_index": first}}
            topic = self._topics.by_name.get(name)
            if topic is None:
                answers.append(
                    {
                        "error_code": _why_not(name),
                        "name": name,
                        "is_internal": name in INTERNAL_TOPICS,
                        "topic_authorized_operations": TOPIC_OPERATIONS,
                    }
                )
                continue
            numbers = range(first, min(len(topic.partitions), first + limit))
            described = self._topic(topic, viewer, numbers)
            for partition in described["partitions"]:
                partition["error_code"] = ErrorCode.NONE  # Kafka says nothing more of one without a leader
            answers.append(described)
            limit -= len(numbers)
            if first + len(numbers) < len(topic.partitions):
                return {"topics": answers, "next_cursor": {"topic_name": name, "partition_index": numbers.stop}}
        return {"topics": answers}

    # DescribeCluster

    def describe_cluster(self, request: Message, context: RequestContext) -> Answer:
        asked = request.endpoint_type if context.version >= 1 else _BROKERS
        if asked == _CONTROLLERS:
            message = "The request was sent to an endpoint of type BROKER, but we wanted an endpoint of type CONTROLLER"
            return {"error_code": ErrorCode.MISMATCHED_ENDPOINT_TYPE, "error_message": message}
        if asked != _BROKERS:
            return {
                "error_code": ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
                "error_message": f"Unsupported endpoint type {asked}",
            }
        wants_operations = request.include_cluster_authorized_operations
        return {
            "cluster_id": self._identity.cluster_id,
            "controller_id": self._identity.controller_id,
            "brokers": self._identity.brokers(context.listener),
            "cluster_authorized_operations": CLUSTER_OPERATIONS if wants_operations else NOT_ASKED,
        }

    # DescribeLogDirs

    async def describe_log_dirs(self, request: Message, _: RequestContext) -> Answer:
        wanted = None if request.topics is None else {topic.topic: set(topic.partitions) for topic in request.topics}
        results = [await self._log_dir(directory, wanted) for directory in self._topics.directories()]
        return {"results": results + [_failed(path) for path in self._topics.lost_directories()]}

    async def alter_replica_log_dirs(self, request: Message, context: RequestContext) -> Answer:
        """A replica stays in its directory, so only its own may be named for it. Codes as in
        ``ReplicaManager.alterReplicaLogDirs``; 42 for a move."""
        wanted = {  # the last one counts, as in Kafka
            (topic.name, number): directory.path
            async for directory in in_turns(request.dirs)
            async for topic in in_turns(directory.topics)
            async for number in in_turns(topic.partitions)
        }
        found: dict[str, list[dict[str, int]]] = {}
        moves = []
        async for (name, number), path in in_turns(wanted.items()):
            code = self._move_code(name, number, path)
            found.setdefault(name, []).append({"partition_index": number, "error_code": int(code)})
            if code is ErrorCode.INVALID_REQUEST:
                moves.append(f"{name}-{number}")
        if moves:
            _log.info(
                "AlterReplicaLogDirs of %s: %s stays where it is: seglog does not move replicas between the log "
                "directories of a broker",
                context.client_id,
                moves[0] if len(moves) == 1 else f"each of {len(moves)} partitions",
            )
        return {"results": [{"topic_name": name, "partitions": partitions} for name, partitions in found.items()]}

    def _move_code(self, name: str, number: int, path: str) -> ErrorCode:
        if path in self._topics.lost_directories():
            return ErrorCode.KAFKA_STORAGE_ERROR
        directory = next((one for one in self._topics.directories() if one.path == path), None)
        if directory is None:
            return ErrorCode.LOG_DIR_NOT_FOUND
        if directory.health.failure is not None:
            return ErrorCode.KAFKA_STORAGE_ERROR
        if not self._topics.has(name, number):
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        partition = self._topics.partition(name, number)
        if partition is None:
            return ErrorCode.REPLICA_NOT_AVAILABLE
        is_there = directory.logs.get(partition.topic_partition) is partition.log
        return ErrorCode.NONE if is_there else ErrorCode.INVALID_REQUEST

    async def _log_dir(self, directory: LogDir, wanted: Mapping[str, Container[int]] | None) -> dict[str, Any]:
        if directory.health.failure is not None:
            return _failed(directory.path)
        topics = []
        for topic in self._topics:
            if wanted is not None and topic.name not in wanted:
                continue
            partitions = [
                {"partition_index": number, "partition_size": partition.log.size}
                for number, partition in enumerate(topic.partitions)
                if partition is not None
                and (wanted is None or number in wanted[topic.name])
                and directory.logs.get(partition.topic_partition) is partition.log
            ]
            if partitions:
                topics.append({"name": topic.name, "partitions": partitions})
        if wanted is None and self._topics.strays[0]:
            topics += await self._workers.run(partial(_strays, directory))
        space = await self._workers.run(partial(directory.fs.space, directory.path))
        return {
            "log_dir": directory.path,
            "topics": topics,
            "total_bytes": space.total,
            "usable_bytes": space.free,
        }


def _strays(directory: LogDir) -> list[dict[str, Any]]:
    """Strays take room too: each appears as a topic with the name of its directory."""
    return [
        {
            "name": one.name,
            "partitions": [
                {"partition_index": one.stray.partition.partition, "partition_size": size_of(directory.fs, one.path)}
            ],
        }
        for one in directory.strays()
    ]


class _Viewer(NamedTuple):
    """A client: the brokers that it can reach, and the error for a leader that it cannot reach."""

    reachable: Container[int]
    unreachable: ErrorCode
    wants_operations: bool


def _partition(number: int, standing: PartitionMetadata, viewer: _Viewer) -> dict[str, Any]:
    error, leader = standing.error, standing.leader
    if not error and leader not in viewer.reachable:
        error, leader = viewer.unreachable, -1
    return {
        "error_code": error,
        "partition_index": number,
        "leader_id": leader,
        "leader_epoch": standing.leader_epoch,
        "replica_nodes": standing.replicas,
        "isr_nodes": standing.isr,
        "offline_replicas": standing.offline,
        "eligible_leader_replicas": standing.eligible,
        "last_known_elr": standing.last_known,
    }


def _failed(path: str) -> dict[str, Any]:
    return {"error_code": ErrorCode.KAFKA_STORAGE_ERROR, "log_dir": path}


def _has_ids(topics: Sequence[Message]) -> bool:
    return any(topic.name is None or getattr(topic, "topic_id", None) for topic in topics)


def _refused_ids(request: Message) -> Answer:
    """Refuse the whole request: versions 10 and 11 have a field for ids but must not use it (KAFKA-10774)."""
    return {
        "controller_id": -1,
        "topics": [
            {"error_code": ErrorCode.INVALID_REQUEST, "name": topic.name or "", "topic_id": topic.topic_id}
            for topic in request.topics
        ],
    }


def _why_not(name: str) -> ErrorCode:
    try:
        validate_topic(name)
    except InvalidTopicError:
        return ErrorCode.INVALID_TOPIC_EXCEPTION
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
