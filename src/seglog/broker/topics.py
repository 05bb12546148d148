"""The topics of this broker by name and by id: what Produce and Fetch look up for each partition."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final
from uuid import UUID

from seglog.core.types import TopicPartition
from seglog.replication.partition import Partition
from seglog.storage.log_dir import LogDir, TopicInfo

INTERNAL: Final = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})


class Topic:
    """A topic with its partitions by number; None where one was refused when the directory was opened."""

    __slots__ = ("name", "partitions", "topic_id")

    def __init__(self, name: str, topic_id: UUID, partitions: list[Partition | None]) -> None:
        self.name = name
        self.topic_id = topic_id
        self.partitions = partitions

    @property
    def is_internal(self) -> bool:
        return self.name in INTERNAL


class Topics:
    """All topics. `refresh` after each change of the directory's."""

    def __init__(self, directory: LogDir) -> None:
        self.directory = directory
        self.by_name: dict[str, Topic] = {}
        self.by_id: dict[UUID, Topic] = {}
        self.shown: Callable[[Topic], None] = lambda _: None
        self.hidden: Callable[[Topic], None] = lambda _: None
        """Are told of a topic that is served, as it is now, and of one that is no longer served."""
        for info in directory.topics().values():
            self.show(info)

    def __iter__(self) -> Iterator[Topic]:
        return iter(self.by_name.values())

    def find(self, topic: str | UUID) -> Topic | None:
        return self.by_name.get(topic) if isinstance(topic, str) else self.by_id.get(topic)

    def partition(self, topic: str | UUID, number: int) -> Partition | None:
        found = self.find(topic)
        if found is None or not 0 <= number < len(found.partitions):
            return None
        return found.partitions[number]

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
        topic = self.by_name[name] = Topic(name, topic_id, partitions)
        if topic_id.int:
            self.by_id[topic_id] = topic
        self.shown(topic)
        return topic

    def hide(self, name: str) -> Topic | None:
        """Serve a topic no more; what it was."""
        topic = self._take(name)
        if topic is not None:
            self.hidden(topic)
        return topic

    def _take(self, name: str) -> Topic | None:
        topic = self.by_name.pop(name, None)
        if topic is not None:
            self.by_id.pop(topic.topic_id, None)
        return topic

    def _open(self, name: str, number: int, topic_id: UUID) -> Partition | None:
        key = TopicPartition(name, number)
        log = self.directory.logs.get(key)
        return None if log is None else Partition(key, topic_id, log)
