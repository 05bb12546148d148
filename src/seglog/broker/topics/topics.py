"""All topics of the cluster by name and id, and the local replicas of their partitions. Produce and Fetch look up each
partition here."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import NamedTuple, overload
from uuid import UUID

from seglog.broker.requests import ApiError
from seglog.cluster.cluster_view import Changes, ClusterView
from seglog.cluster.model import NO_LEADER, BrokerRegistration, TopicState, offline_name
from seglog.core.error_codes import ErrorCode
from seglog.core.topic_names import INTERNAL_TOPICS, FlatNames
from seglog.core.types import NO_EPOCH, TopicPartition
from seglog.replication.replica import Replica
from seglog.storage.directory.log_dir import LogDir

Key = tuple[UUID, int]


class Topic:
    """A topic. ``partitions`` has None where this broker has no replica, or refused it when it opened the directory."""

    __slots__ = ("name", "partitions", "topic_id")

    def __init__(self, name: str, topic_id: UUID, partitions: Sequence[Replica | None]) -> None:
        self.name = name
        self.topic_id = topic_id
        self.partitions = partitions

    @property
    def is_internal(self) -> bool:
        return self.name in INTERNAL_TOPICS


class PartitionMetadata(NamedTuple):
    """A partition's leader and replicas, as clients see them. Without a leader, ``error`` is LEADER_NOT_AVAILABLE and
    ``leader`` is -1."""

    error: ErrorCode
    leader: int
    leader_epoch: int
    replicas: Sequence[int]
    isr: Sequence[int]
    offline: Sequence[int] = ()
    eligible: Sequence[int] = ()
    last_known: Sequence[int] = ()
    needed: int = 1
    """How many replicas must be in sync for a commit."""


class LocalPartitions(Sequence[Replica | None]):
    """The local replicas of a topic by partition number; None where there is none."""

    __slots__ = ("_by_key", "_count", "_topic_id")

    def __init__(self, by_key: Mapping[Key, Replica], topic_id: UUID, count: int) -> None:
        self._by_key = by_key
        self._topic_id = topic_id
        self._count = count

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, number: int) -> Replica | None: ...
    @overload
    def __getitem__(self, number: slice) -> Sequence[Replica | None]: ...
    def __getitem__(self, number: int | slice) -> Replica | Sequence[Replica | None] | None:
        if isinstance(number, slice):
            return [self[index] for index in range(*number.indices(self._count))]
        if not -self._count <= number < self._count:
            raise IndexError(number)
        return self._by_key.get((self._topic_id, number % self._count))

    def __iter__(self) -> Iterator[Replica | None]:
        get, topic_id = self._by_key.get, self._topic_id
        return (get((topic_id, number)) for number in range(self._count))


class Topics:
    """``by_key`` are the local replicas, ``directories`` the log directories, and ``lost`` the paths of unusable ones,
    opened or not; ``strays`` see `strays`."""

    def __init__(
        self,
        view: ClusterView,
        by_key: Mapping[Key, Replica],
        directories: Callable[[], Sequence[LogDir]],
        *,
        node_id: int,
        lost: Callable[[], Collection[str]] = tuple,
        strays: Callable[[], tuple[int, int]] = lambda: (0, 0),
    ) -> None:
        self.by_name: dict[str, Topic] = {}
        self.by_id: dict[UUID, Topic] = {}
        self._view = view
        self._by_key = by_key
        self._directories = directories
        self._node_id = node_id
        self._lost = lost
        self._strays = strays
        self.removed: list[Callable[[Sequence[Topic]], None]] = []
        """Called with the topics that the cluster no longer has."""
        self._flat_names = FlatNames()
        for state in view.topics.values():
            self._show(state)
        view.listeners.append(self._seen)

    def _seen(self, changes: Changes) -> None:
        gone: list[Topic] = []
        for name in changes.topics:
            state, before = self._view.topics.get(name), self.by_name.get(name)
            if before is not None and (state is None or state.topic_id != before.topic_id):
                self._take(name)
                for partition in before.partitions:
                    if partition is not None:
                        partition.wake()
                gone.append(before)
            if state is not None:
                self._show(state)
        if gone:
            for removed in self.removed:
                removed(gone)

    def _show(self, state: TopicState) -> None:
        partitions = LocalPartitions(self._by_key, state.topic_id, len(state.assignment))
        self._put(Topic(state.name, state.topic_id, partitions))

    def _put(self, topic: Topic) -> None:
        self.by_name[topic.name] = topic
        self._flat_names.add(topic.name)
        self.by_id[topic.topic_id] = topic

    def _take(self, name: str) -> None:
        topic = self.by_name.pop(name, None)
        if topic is not None:
            self.by_id.pop(topic.topic_id, None)
            self._flat_names.discard(name)

    @property
    def strays(self) -> tuple[int, int]:
        """Number and bytes of the strays that this broker keeps: replicas that the cluster does not name."""
        return self._strays()

    def __iter__(self) -> Iterator[Topic]:
        return iter(self.by_name.values())

    def colliding(self, name: str) -> str | None:
        """Another topic whose name differs from this one only in ``.`` and ``_``."""
        return next(iter(self._flat_names.others(name)), None)

    def find(self, topic: str | UUID) -> Topic | None:
        return self.by_name.get(topic) if isinstance(topic, str) else self.by_id.get(topic)

    def leader(self, partition: TopicPartition) -> int | None:
        """The id of the broker that leads a partition, -1 if none does; None if there is no such topic."""
        topic = self.by_name.get(partition.topic)
        if topic is None:
            return None
        is_there = partition.partition < len(topic.partitions)
        return self.metadata(topic, partition.partition).leader if is_there else NO_LEADER

    def has(self, topic: str | UUID, number: int) -> bool:
        """Whether the partition exists, here or elsewhere."""
        found = self.find(topic)
        return found is not None and 0 <= number < len(found.partitions)

    def partition(self, topic: str | UUID, number: int) -> Replica | None:
        """The local replica, if there is one."""
        found = self.find(topic)
        return None if found is None else self._by_key.get((found.topic_id, number))

    def metadata(self, topic: Topic, number: int) -> PartitionMetadata:
        """A partition's leader and replicas, by the rules of ``KRaftMetadataCache``."""
        key = (topic.topic_id, number)
        stored = self._view.partitions.get(key)
        if stored is None:  # none of its replicas has started yet
            state = self._view.topics_by_id.get(topic.topic_id)
            chosen = () if state is None or number >= len(state.assignment) else state.assignment[number]
            return PartitionMetadata(
                ErrorCode.LEADER_NOT_AVAILABLE, NO_LEADER, NO_EPOCH, chosen, (), self._offline(key, chosen)
            )
        state_of = stored.state
        offline = self._offline(key, state_of.replicas)
        is_led = state_of.leader in self._view.brokers and not state_of.is_new and state_of.leader not in offline
        return PartitionMetadata(
            ErrorCode.NONE if is_led else ErrorCode.LEADER_NOT_AVAILABLE,
            state_of.leader if is_led else NO_LEADER,
            state_of.leader_epoch,
            state_of.replicas,
            state_of.isr_nodes,
            offline,
            tuple(member.node_id for member in state_of.elr),
            state_of.last_known_nodes,
            state_of.needed,
        )

    def _offline(self, key: Key, nodes: Sequence[int]) -> Sequence[int]:
        brokers = self._view.brokers
        there = [node for node in nodes if node in brokers and not _is_offline(brokers[node], key)]
        return () if len(there) == len(nodes) else tuple(node for node in nodes if node not in there)

    def why_not(self, topic: str | UUID, number: int) -> ErrorCode:
        """The error for a partition without a local replica (`partition` is None), by name or id."""
        found = self.find(topic)
        if found is None and isinstance(topic, UUID):
            return ErrorCode.UNKNOWN_TOPIC_ID
        if found is None or not 0 <= number < len(found.partitions):
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        me = self._view.brokers.get(self._node_id)
        if me is not None and _is_offline(me, (found.topic_id, number)):
            return ErrorCode.KAFKA_STORAGE_ERROR
        return ErrorCode.NOT_LEADER_OR_FOLLOWER

    def low_watermark(self, partition: Replica) -> int:
        """The smallest log start offset of all replicas on live brokers (``lowWatermarkIfLeader``)."""
        starts = [partition.log.log_start_offset]
        if partition.progress is not None:
            brokers = self._view.brokers
            followers = partition.progress.followers.items()
            starts += [follower.log_start_offset for node, follower in followers if node in brokers]
        return min(starts)

    def overrides(self, name: str) -> Mapping[str, str]:
        """A topic's own configuration."""
        state = self._view.topics.get(name)
        return {} if state is None else state.config

    def directories(self) -> Sequence[LogDir]:
        """The log directories, including those that failed after the start."""
        return self._directories()

    def lost_directories(self) -> Collection[str]:
        """The paths of directories that could not be opened."""
        opened = {directory.path for directory in self.directories()}
        return [path for path in self._lost() if path not in opened]

    def directory_of(self, partition: Replica) -> LogDir:
        """The directory of a partition's log. `ApiError` if the partition was just deleted."""
        for directory in self.directories():
            if directory.logs.get(partition.topic_partition) is partition.log:
                return directory
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


def _is_offline(broker: BrokerRegistration, key: Key) -> bool:
    """Whether the broker cannot serve its replica."""
    return bool(broker.offline) and broker.has_offline(offline_name(*key))
