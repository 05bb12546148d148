"""The internal topics of coordinators, as this broker sees them."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from seglog.broker.identity import Identity
from seglog.broker.topics.topic_changes import TopicChanges
from seglog.broker.topics.topics import Topics
from seglog.cluster.model import NO_LEADER
from seglog.core.errors import SeglogError
from seglog.replication.replica import Replica

_log: Final = logging.getLogger("seglog.broker")
_SETTLED_SECONDS: Final = 2.0
"""How long the first key waits for its partition to have a leader: a client that is told that there is none asks again
only after a second."""


class InternalTopic:
    """The `CoordinatorTopic` of a coordinator. A new topic gets ``count`` partitions, up to ``factor`` replicas, and
    Kafka's ``config`` with ``more`` in addition."""

    def __init__(
        self,
        name: str,
        topics: Topics,
        changes: TopicChanges,
        identity: Identity,
        *,
        count: int,
        factor: int,
        config: Mapping[str, str],
        more: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.name = name
        self._topics = topics
        self._changes = changes
        self._identity = identity
        self._count = count
        self._factor = factor
        self._config = config
        self._more = more

    def partitions(self) -> Sequence[Replica | None]:
        topic = self._topics.by_name.get(self.name)
        return () if topic is None else topic.partitions

    def leader(self, number: int) -> int:
        topic = self._topics.by_name.get(self.name)
        if topic is None or number >= len(topic.partitions):
            return NO_LEADER
        return self._topics.metadata(topic, number).leader

    def is_awaited(self, number: int) -> bool:
        partitions = self.partitions()
        has_none = number < len(partitions) and partitions[number] is None
        return has_none and self.leader(number) == self._identity.node_id

    async def create(self) -> None:
        factor = min(self._factor, len(self._identity.racks()))
        config = {**self._config, **self._more}
        topic = await self._changes.ensure(self.name, self._count, config, factor=factor)
        await self._changes.settled([topic], _SETTLED_SECONDS)

    async def complete_config(self) -> None:
        """Give a topic that an earlier release made the configuration of a new one, except for keys that it has."""
        if self.name in self._topics.by_name:
            try:
                await self._changes.complete_config(self.name, self._more)
            except SeglogError as error:
                _log.warning("%s cannot be given the configuration of a new topic: %s", self.name, error)
