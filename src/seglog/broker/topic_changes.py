"""Changes of topics: values in the metadata store, written by compare-and-set by whichever broker is asked.

What was written is in this broker's view when a change returns. Logs are made and removed by the brokers that have
replicas, and leaders are chosen by the controller: `TopicChanges.settled` waits for those. Of a broker that is alone
the store is what its directory says (`seglog.broker.directory_topics`), and a change is in the directory first.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final, TypeVar
from uuid import UUID

from seglog.broker.identity import Identity
from seglog.broker.requests import ApiError
from seglog.broker.store_writes import create_in_turn, delete, read, write
from seglog.broker.topic_validation import check_topic_name
from seglog.broker.topics import Topic, Topics
from seglog.cluster.cluster_view import ClusterView
from seglog.cluster.model import (
    NO_LEADER,
    TOPICS,
    TopicState,
    decode_topic,
    encode,
    tombstone_name,
    topic_name,
)
from seglog.cluster.placement import place
from seglog.cluster.store import (
    MISSING,
    MetadataStore,
    NameExistsError,
    NoSuchNameError,
    StoreFailedError,
    VersionChangedError,
)
from seglog.core.config import LogConfig, LogDirConfig
from seglog.core.error_codes import ErrorCode
from seglog.core.errors import SeglogError, TopicExistsError, UnknownTopicError
from seglog.core.ground import Ground
from seglog.storage.formats.checkpoints import new_id

T = TypeVar("T")
_log: Final = logging.getLogger("seglog.broker")
MAX_PARTITIONS_PER_REQUEST: Final = 10_000
"""As in Kafka's ``ReplicationControlManager``."""
DEFAULT_SECONDS: Final = 30.0
"""How long a change may take, where a request does not say."""
MAX_DELETIONS: Final = 10_000
"""Deleted topics that brokers which are away are told of when they come back."""
_LAST: Final = "last-topic"
"""The topic with a ``.`` or ``_`` in its name that was created last."""

Assignment = Sequence[Sequence[int]]
"""The brokers that have each partition's replicas, the preferred leader first."""


class TopicChanges:
    """The one place of a broker from which topics are changed. Errors of all: `SeglogError`; `ApiError` with
    REQUEST_TIMED_OUT while the store cannot be reached."""

    def __init__(
        self,
        store: MetadataStore,
        view: ClusterView,
        topics: Topics,
        identity: Identity,
        *,
        ground: Ground,
    ) -> None:
        self._topics = topics
        self._lane = ground.workers.lane("seglog-topics")
        self._pending: set[asyncio.Task[object]] = set()
        self._store = store
        self._view = view
        self._identity = identity
        self._rng = ground.rng

    async def run(self, act: Callable[[], T], then: Callable[[T], object] = lambda _: None) -> T:
        """``act`` in the thread, ``then`` on the loop with its result, also if whoever asked for it has gone."""

        async def work() -> T:
            result = await self._lane.run(act)
            then(result)
            return result

        task = asyncio.get_running_loop().create_task(work())
        self._pending.add(task)
        task.add_done_callback(self._over)
        return await asyncio.shield(task)

    def _over(self, task: asyncio.Task[T]) -> None:
        """Whoever asked for it may have gone: then nobody else looks at how it ended."""
        self._pending.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, SeglogError):
            _log.error("a change of topics has failed", exc_info=error)

    def place(self, partitions: int, factor: int, *, first: int = 0) -> Assignment:
        """Where ``factor`` replicas of each of ``partitions`` new partitions are to be, numbered from ``first`` on.
        `InvalidReplicationFactorError`."""
        return place(self._identity.racks(), partitions, factor, self._rng, first=first)

    async def create(self, name: str, assignment: Assignment, config: Mapping[str, str]) -> Topic:
        """A new topic with so many partitions. `TopicExistsError`."""
        check_topic_name(name)
        overrides = LogConfig.from_mapping(config).overrides()
        self._check_config(overrides)
        topic_id = new_id(self._rng)
        state = TopicState(name=name, topic_id=topic_id, assignment=_tuples(assignment), config=overrides)
        try:
            await self._create(state)
        except NameExistsError as error:
            await self._until(lambda: name in self._topics.by_name)
            raise TopicExistsError(f"topic {name!r} exists") from error
        await self._until(lambda: topic_id in self._topics.by_id)
        return self._topics.by_id.get(topic_id) or Topic(name, topic_id, [None] * len(assignment))

    async def _create(self, state: TopicState) -> None:
        """Topics with a ``.`` or ``_`` in their names one after the other: two that collide could be made at once."""
        if "_" not in state.name.replace(".", "_"):
            await self._write(state, MISSING)
            return
        name, value = topic_name(state.name), encode(state)
        written = None
        while written is None:
            before = await read(self._store.get(_LAST))
            await self._check_collisions(state.name)
            written = await create_in_turn(self._store, name, value, _LAST, before)
        self._view.note(name, value, written)

    async def _check_collisions(self, name: str) -> None:
        """`ApiError` if a name differs from another's in nothing but ``.`` and ``_``: ours may not know it yet."""
        flat = name.replace(".", "_")
        for other in await read(self._store.list(TOPICS)):
            if other != name and other.replace(".", "_") == flat:
                message = f"Topic '{name}' collides with existing topic: {other}"
                raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, message)

    async def ensure(self, name: str, partitions: int, config: Mapping[str, str], *, factor: int = 1) -> Topic:
        """The topic of that name, which is created if there is none, with ``factor`` replicas of each partition.

        `TopicExistsError` if it exists, and cannot be seen from here yet."""
        try:
            there = self._topics.by_name.get(name)
            return there or await self.create(name, self.place(partitions, factor), config)
        except TopicExistsError:  # two asked at the same time
            there = self._topics.by_name.get(name)
            if there is None:
                raise
            return there

    async def settled(self, topics: Sequence[Topic], seconds: float) -> bool:
        """Wait until all partitions of these have leaders; False when the time is over."""
        waiting = [(topic.topic_id, number) for topic in topics for number in range(len(topic.partitions))]

        def is_led() -> bool:
            while waiting:
                stored = self._view.partitions.get(waiting[-1])
                serves = stored is not None and stored.state.leader != NO_LEADER and not stored.state.is_new
                if waiting[-1][0] in self._view.topics_by_id and not serves:
                    return False
                waiting.pop()
            return True

        return await self._view.until(is_led, seconds)

    async def add_partitions(self, topic: Topic, assignment: Assignment) -> None:
        """More partitions; ``assignment`` is that of the new ones. `ApiError` if somebody else was faster."""
        there = len(topic.partitions)

        def grown(state: TopicState) -> TopicState:
            if len(state.assignment) != there:
                message = f"Topic already has {len(state.assignment)} partition(s)."
                raise ApiError(ErrorCode.INVALID_PARTITIONS, message)
            return replace(state, assignment=state.assignment + _tuples(assignment))

        await self._change(topic.name, topic.topic_id, grown)

    async def alter(self, name: str, changes: Mapping[str, str | None]) -> None:
        """Give keys of a topic's own configuration other values, or with None none."""
        given = LogConfig.from_mapping({key: value for key, value in changes.items() if value is not None}).overrides()

        def altered(state: TopicState) -> TopicState:
            config = {key: value for key, value in state.config.items() if key not in changes} | given
            self._check_config(config)
            return replace(state, config=config)

        await self._change(name, None, altered)

    async def complete_config(self, name: str, config: Mapping[str, str]) -> None:
        """Give a topic those of these keys that its own configuration does not have."""
        await self._change(name, None, lambda state: replace(state, config={**config, **state.config}))

    def _check_config(self, overrides: Mapping[str, str]) -> None:
        """`InvalidConfigError` if a topic's own configuration does not go with the defaults of its broker."""
        self._topics.directories()[0].config.topics.with_overrides(overrides)

    async def _change(self, name: str, topic_id: UUID | None, update: Callable[[TopicState], TopicState]) -> None:
        """`UnknownTopicError` if there is no such topic, or with another id; what ``update`` raises."""
        while True:
            state, version = await self._read(name)
            if topic_id not in (None, state.topic_id):
                raise _unknown(name)
            changed = update(state)
            if changed == state:
                return
            try:
                written = await self._write(changed, version)
            except (VersionChangedError, NoSuchNameError):
                continue
            break
        await self._until(lambda: self._has_seen(changed, written))

    async def _read(self, name: str) -> tuple[TopicState, int]:
        found = await read(self._store.get(topic_name(name)))
        if found is None:
            raise _unknown(name)
        return decode_topic(topic_name(name), found.value), found.version

    def _has_seen(self, state: TopicState, version: int) -> bool:
        """Whether the view has a topic as it is at a version, or later."""
        seen = self._view.topics.get(state.name)
        is_it = seen is not None and seen.topic_id == state.topic_id
        return not is_it or self._view.versions.get(topic_name(state.name), MISSING) >= version

    async def _write(self, state: TopicState, version: int) -> int:
        name, value = topic_name(state.name), encode(state)
        written = await write(self._store, name, value, version)
        self._view.note(name, value, written)
        return written

    async def _until(self, condition: Callable[[], bool]) -> None:
        """What the store has, the view has very soon."""
        await self._view.until(condition, DEFAULT_SECONDS)

    async def delete(self, topic: Topic, seconds: float = DEFAULT_SECONDS) -> None:
        """Delete a topic; who waits for its records is told. ``seconds``: how long it may take until this broker no
        longer shows it. `UnknownTopicError` if somebody else was faster."""
        while True:
            state, version = await self._read(topic.name)
            if state.topic_id != topic.topic_id:
                raise _unknown(topic.name)
            try:
                await delete(self._store, topic_name(topic.name), version, self._tombstones(state))
            except (VersionChangedError, NoSuchNameError):
                continue
            break
        await self._view.until(lambda: topic.topic_id not in self._topics.by_id, seconds)
        await self._forget_tombstones()

    def _tombstones(self, state: TopicState) -> Mapping[str, bytes]:
        """One for each broker that may have replicas: it takes that away itself when it has deleted them."""
        nodes = {node for replicas in state.assignment for node in replicas}
        for (topic_id, _), stored in self._view.partitions.items():
            if topic_id == state.topic_id:
                nodes.update(stored.state.replicas)
        return {tombstone_name(state.topic_id, node): state.name.encode() for node in sorted(nodes)}

    async def _forget_tombstones(self) -> None:
        """Those of brokers that are not there, where there are too many. What such a broker has is then a stray: it is
        kept until an operator removes it."""
        there = self._view.brokers.keys()
        deletions = self._view.deletions
        if len(deletions) <= MAX_DELETIONS:
            return
        away = [tombstone_name(topic_id, node) for topic_id, nodes in deletions.items() for node in nodes - there]
        for name in away[: len(deletions) - MAX_DELETIONS]:
            try:
                await self._store.delete(name)
            except (NoSuchNameError, StoreFailedError):
                continue
            _log.warning("%s is forgotten, as %d deleted topics wait for brokers that are away", name, len(deletions))

    async def reconfigure(self, config: LogDirConfig) -> None:
        """Take up other defaults for topics, and what else a broker's configuration says of its logs, in all
        directories, also when one of them fails at this."""

        def act() -> None:
            errors: list[SeglogError] = []
            for directory in self._topics.directories():
                try:
                    directory.reconfigure(config)
                except SeglogError as error:
                    errors.append(error)
            if errors:
                raise errors[0]

        await self.run(act)

    async def close(self) -> None:
        """Wait for what has begun."""
        await asyncio.gather(*self._pending, return_exceptions=True)
        await self._lane.close()


def _unknown(name: str) -> UnknownTopicError:
    return UnknownTopicError(f"there is no topic {name!r}")


def _tuples(assignment: Assignment) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(replicas) for replicas in assignment)
