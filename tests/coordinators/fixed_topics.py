"""The topics of a cluster as a dictionary: a `TopicImage` that tests change by hand."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from uuid import UUID

from seglog.coordinators.consumer.metadata_hash import group_hash, topic_hash
from seglog.coordinators.consumer.topic_image import ImageTopic


class FixedTopics:
    """Topics with these numbers of partitions. Each new one gets the next id."""

    def __init__(self, counts: Mapping[str, int] | None = None) -> None:
        self.version = self.created_version = 1
        self._topics: dict[str, ImageTopic] = {}
        self._created = 0
        for name, count in (counts or {}).items():
            self.create(name, count)

    def create(self, name: str, count: int) -> UUID:
        self._created += 1
        self.version += 1
        self.created_version = self.version
        topic = self._topics[name] = ImageTopic(name, UUID(int=self._created), ((),) * count)
        return topic.topic_id

    def grow(self, name: str, count: int) -> None:
        self.version += 1
        self._topics[name] = self._topics[name]._replace(racks=((),) * count)

    def delete(self, name: str) -> None:
        self.version += 1
        del self._topics[name]

    def count(self, name: str) -> int:
        return self._topics[name].partition_count

    def id_of(self, name: str) -> UUID:
        return self._topics[name].topic_id

    @property
    def names(self) -> Collection[str]:
        return self._topics.keys()

    def find(self, topic: str | UUID) -> ImageTopic | None:
        if isinstance(topic, str):
            return self._topics.get(topic)
        return next((one for one in self._topics.values() if one.topic_id == topic), None)

    def hash_of(self, names: Iterable[str]) -> int:
        found = [self._topics[name] for name in names if name in self._topics]
        return group_hash({topic.name: topic_hash(topic.name, topic.topic_id, topic.racks) for topic in found})
