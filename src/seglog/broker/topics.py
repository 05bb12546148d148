"""The topics of this broker by name and by id: what Produce and Fetch look up for each partition."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Final, NamedTuple
from uuid import UUID

from seglog.broker.codes import Code, RefusedError
from seglog.core.types import TopicPartition
from seglog.replication.partition import Partition, flush_now
from seglog.storage.directory.catalog import config_of_found
from seglog.storage.directory.log_dir import LogDir
from seglog.storage.formats.topics_file import TopicInfo

INTERNAL: Final = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})


class Topic:
    """A topic with its partitions by number; None where there is no log of it here: it was refused when the directory
    was opened, or in a cluster other brokers have it."""

    __slots__ = ("name", "partitions", "topic_id")

    def __init__(self, name: str, topic_id: UUID, partitions: Sequence[Partition | None]) -> None:
        self.name = name
        self.topic_id = topic_id
        self.partitions = partitions

    @property
    def is_internal(self) -> bool:
        return self.name in INTERNAL


class Standing(NamedTuple):
    """Who has a partition, as clients are told: ids of brokers. ``error`` is `Code.LEADER_NOT_AVAILABLE` where nobody
    leads it, and then ``leader`` is -1."""

    error: Code
    leader: int
    leader_epoch: int
    replicas: Sequence[int]
    isr: Sequence[int]
    offline: Sequence[int] = ()
    eligible: Sequence[int] = ()
    last_known: Sequence[int] = ()
    needed: int = 1
    """So many have to be in sync for anything to be committed."""


class Topics(ABC):
    """All topics, of one node or of a cluster."""

    def __init__(self) -> None:
        self.by_name: dict[str, Topic] = {}
        self.by_id: dict[UUID, Topic] = {}
        self.shown: Callable[[Topic], None] = lambda _: None
        self.hidden: Callable[[Topic], None] = lambda _: None
        """Are told of a topic that is served, as it is now, and of one that is no longer served."""
        self.strays = (0, 0)
        """Replicas that the cluster does not name and this broker keeps, and their bytes."""

    def note_strays(self, count: int, size: int) -> None:
        self.strays = (count, size)

    @abstractmethod
    def standing(self, topic: Topic, number: int) -> Standing:
        """Who has a partition of the topic."""

    @abstractmethod
    def why_not(self, topic: str | UUID, number: int) -> Code:
        """With which code a partition is refused that is not here (`partition` has None)."""

    def low_watermark(self, partition: Partition) -> int:
        """Before which offset all replicas that are there have forgotten a partition's records."""
        return partition.log.log_start_offset

    @abstractmethod
    def overrides(self, name: str) -> Mapping[str, str]:
        """A topic's own configuration."""

    @abstractmethod
    def directories(self) -> Sequence[LogDir]:
        """This broker's log directories, those that have failed while it runs too."""

    def __iter__(self) -> Iterator[Topic]:
        return iter(self.by_name.values())

    def find(self, topic: str | UUID) -> Topic | None:
        return self.by_name.get(topic) if isinstance(topic, str) else self.by_id.get(topic)

    def has(self, topic: str | UUID, number: int) -> bool:
        """Whether there is such a partition, here or elsewhere."""
        found = self.find(topic)
        return found is not None and 0 <= number < len(found.partitions)

    def partition(self, topic: str | UUID, number: int) -> Partition | None:
        found = self.find(topic)
        if found is None or not 0 <= number < len(found.partitions):
            return None
        return found.partitions[number]

    def lost_directories(self) -> Collection[str]:
        """The paths of those that could not even be opened."""
        return ()

    def directory_of(self, partition: Partition) -> LogDir:
        """The directory in which a partition's log is. `RefusedError` if it was just deleted."""
        for directory in self.directories():
            if directory.logs.get(partition.topic_partition) is partition.log:
                return directory
        raise RefusedError(Code.UNKNOWN_TOPIC_OR_PARTITION)

    def hide(self, name: str) -> Topic | None:
        """Serve a topic no more; what it was."""
        topic = self._take(name)
        if topic is not None:
            self.hidden(topic)
        return topic

    def _put(self, topic: Topic) -> None:
        self.by_name[topic.name] = topic
        if topic.topic_id.int:
            self.by_id[topic.topic_id] = topic
        self.shown(topic)

    def _take(self, name: str) -> Topic | None:
        topic = self.by_name.pop(name, None)
        if topic is not None:
            self.by_id.pop(topic.topic_id, None)
        return topic


class LocalTopics(Topics):
    """The topics of a node that is alone: those of its directory. `refresh` after each change of the directory's."""

    def __init__(self, directory: LogDir, flush_due: Callable[[Partition], None] = flush_now) -> None:
        """``flush_due``: see `Partition`."""
        super().__init__()
        self.directory = directory
        self._flush_due = flush_due
        self._nodes = (directory.meta.node_id or 0,)
        for info in directory.topics().values():
            self.show(info)

    def standing(self, topic: Topic, number: int) -> Standing:
        nodes = self._nodes
        partition = topic.partitions[number]
        if partition is None or self.directory.health.failure is not None:
            return Standing(Code.LEADER_NOT_AVAILABLE, -1, -1, nodes, (), offline=nodes)
        return Standing(Code.NONE, nodes[0], partition.leader_epoch, nodes, nodes)

    def why_not(self, topic: str | UUID, number: int) -> Code:
        return Code.KAFKA_STORAGE_ERROR if self.has(topic, number) else Code.UNKNOWN_TOPIC_OR_PARTITION

    def overrides(self, name: str) -> Mapping[str, str]:
        entry = self.directory.entries.get(name)
        return config_of_found(name) if entry is None else entry.config

    def directories(self) -> Sequence[LogDir]:
        return (self.directory,)

    def refresh(self, name: str) -> Topic | None:
        """Take over what the directory says of a topic; it may be changing another one, and is waited for."""
        info = self.directory.topics().get(name)
        if info is None:
            self.hide(name)
            return None
        return self.show(info)

    def show(self, info: TopicInfo) -> Topic:
        """Serve a topic as it now is; a partition that is there stays the same object."""
        name = info.name
        before = self._take(name)
        topic_id = info.topic_id or UUID(int=0)
        if before is not None and before.topic_id != topic_id:
            self.hidden(before)
            before = None
        kept = before.partitions if before is not None else []
        partitions = [
            kept[number] if number < len(kept) else self._open(name, number, topic_id)
            for number in range(info.partitions)
        ]
        topic = Topic(name, topic_id, partitions)
        self._put(topic)
        return topic

    def _open(self, name: str, number: int, topic_id: UUID) -> Partition | None:
        key = TopicPartition(name, number)
        log = self.directory.logs.get(key)
        return None if log is None else Partition(key, topic_id, log, flush_due=self._flush_due)
