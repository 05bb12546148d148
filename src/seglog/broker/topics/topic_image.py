"""The topics of the cluster, as consumer groups see them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from uuid import UUID

from seglog.cluster.cluster_view import Changes, ClusterView
from seglog.cluster.model import TopicState
from seglog.coordinators.consumer.metadata_hash import group_hash, topic_hash
from seglog.coordinators.consumer.topic_image import ImageTopic
from seglog.core.clock import Clock


class ClusterTopicImage:
    """The `TopicImage` of a cluster's view. Versions are milliseconds since 1970, so that they grow over restarts."""

    def __init__(self, view: ClusterView, clock: Clock) -> None:
        self._view = view
        self._clock = clock
        self._hashes: dict[str, int] = {}
        self.version = self.created_version = clock.now_ms()
        view.listeners.append(self._seen)

    def _seen(self, changes: Changes) -> None:
        """Racks count too: they are those of the brokers that have the replicas."""
        if not changes.topics and not changes.brokers and not (changes.partitions and self._has_racks()):
            return
        self.version = max(self.version + 1, self._clock.now_ms())
        if any(name in self._view.topics for name in changes.topics):
            self.created_version = self.version
        if changes.brokers:
            self._hashes.clear()
        for name in (*changes.topics, *self._names_of(changes.partitions)):
            self._hashes.pop(name, None)

    def _names_of(self, partitions: Iterable[tuple[UUID, int]]) -> Iterator[str]:
        topics = (self._view.topics_by_id.get(topic_id) for topic_id, _ in partitions)
        return (topic.name for topic in topics if topic is not None)

    def _has_racks(self) -> bool:
        return any(broker.rack for broker in self._view.brokers.values())

    @property
    def names(self) -> Collection[str]:
        return self._view.topics.keys()

    def find(self, topic: str | UUID) -> ImageTopic | None:
        state = self._view.topics.get(topic) if isinstance(topic, str) else self._view.topics_by_id.get(topic)
        if state is None:
            return None
        return ImageTopic(state.name, state.topic_id, self._racks(state))

    def _racks(self, topic: TopicState) -> tuple[tuple[str, ...], ...]:
        if not self._has_racks():
            return ((),) * len(topic.assignment)
        brokers = self._view.brokers
        found = []
        for number, assigned in enumerate(topic.assignment):
            partition = self._view.partitions.get((topic.topic_id, number))
            replicas = assigned if partition is None else partition.state.replicas
            racks = (brokers[node_id].rack for node_id in replicas if node_id in brokers)
            found.append(tuple([rack for rack in racks if rack]))
        return tuple(found)

    def hash_of(self, names: Iterable[str]) -> int:
        return group_hash({name: self._hash(name) for name in names if name in self._view.topics})

    def _hash(self, name: str) -> int:
        known = self._hashes.get(name)
        if known is None:
            state = self._view.topics[name]
            known = self._hashes[name] = topic_hash(name, state.topic_id, self._racks(state))
        return known
