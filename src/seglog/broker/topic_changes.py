"""Changes of topics. Any broker makes them, by compare-and-set of values in the metadata store.

When a change returns, this broker's view has it. The brokers with replicas then create and remove logs, and the
controller elects leaders; `TopicChanges.settled` waits for that. Without a cluster, a change is in the directory before
it is in the store (`seglog.broker.directory_topics`).
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
"""How long a change may take if the request has no timeout."""
MAX_DELETIONS: Final = 10_000
"""The most tombstones of deleted topics that are kept for brokers that are down."""
_LAST: Final = "last-topic"
"""The name of the last created topic that has a ``.`` or ``_``."""

Assignment = Sequence[Sequence[int]]
"""The brokers of each partition's replicas, the preferred leader first."""


class TopicChanges:
    """All changes of topics go through here. They raise `SeglogError`: `ApiError` with REQUEST_TIMED_OUT while the
    store is away."""

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
        """Run ``act`` in the thread and ``then`` on the loop with its result, even if the caller is cancelled
        meanwhile."""

        async def work() -> T:
            result = await self._lane.run(act)
            then(result)
            return result

        task = asyncio.get_running_loop().create_task(work())
        self._pending.add(task)
        task.add_done_callback(self._over)
        return await asyncio.shield(task)

    def _over(self, task: asyncio.Task[T]) -> None:
        """Log an unexpected error: the caller may have been cancelled."""
        self._pending.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, SeglogError):
            _log.error("a change of topics has failed", exc_info=error)

    def place(self, partitions: int, factor: int, *, first: int = 0) -> Assignment:
        """The brokers for ``factor`` replicas of each of ``partitions`` new partitions, the first of which is number
        ``first``. `InvalidReplicationFactorError`."""
        return place(self._identity.racks(), partitions, factor, self._rng, first=first)

    async def create(self, name: str, assignment: Assignment, config: Mapping[str, str]) -> Topic:
        """Create a topic. `TopicExistsError`."""
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
        """Topics with a ``.`` or ``_`` in their names are created one after the other, so that no two that collide are
        created at once."""
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
        """`ApiError` if the name differs from another only in ``.`` and ``_``. The view may lag behind the store."""
        flat = name.replace(".", "_")
        for other in await read(self._store.list(TOPICS)):
            if other != name and other.replace(".", "_") == flat:
                message = f"Topic '{name}' collides with existing topic: {other}"
                raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, message)

    async def ensure(self, name: str, partitions: int, config: Mapping[str, str], *, factor: int = 1) -> Topic:
        """The topic of that name. If it does not exist, create it with ``factor`` replicas of each partition.

        `TopicExistsError` if another broker just created it and this broker's view does not have it yet.
        """
        try:
            there = self._topics.by_name.get(name)
            return there or await self.create(name, self.place(partitions, factor), config)
        except TopicExistsError:  # two asked at the same time
            there = self._topics.by_name.get(name)
            if there is None:
                raise
            return there

    async def settled(self, topics: Sequence[Topic], seconds: float) -> bool:
        """Wait until all partitions have leaders; False if the time is over first."""
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
        """Add partitions; ``assignment`` has only the new ones. `ApiError` if another change was first."""
        there = len(topic.partitions)

        def grown(state: TopicState) -> TopicState:
            if len(state.assignment) != there:
                message = f"Topic already has {len(state.assignment)} partition(s)."
                raise ApiError(ErrorCode.INVALID_PARTITIONS, message)
            return replace(state, assignment=state.assignment + _tuples(assignment))

        await self._change(topic.name, topic.topic_id, grown)

    async def alter(self, name: str, changes: Mapping[str, str | None]) -> None:
        """Change a topic's own configuration; None removes a key."""
        given = LogConfig.from_mapping({key: value for key, value in changes.items() if value is not None}).overrides()

        def altered(state: TopicState) -> TopicState:
            config = {key: value for key, value in state.config.items() if key not in changes} | given
            self._check_config(config)
            return replace(state, config=config)

        await self._change(name, None, altered)

    async def complete_config(self, name: str, config: Mapping[str, str]) -> None:
        """Set those of these keys that the topic does not have."""
        await self._change(name, None, lambda state: replace(state, config={**config, **state.config}))

    def _check_config(self, overrides: Mapping[str, str]) -> None:
        """`InvalidConfigError` if a topic's own configuration conflicts with the broker's defaults."""
        self._topics.directories()[0].config.topics.with_overrides(overrides)

    async def _change(self, name: str, topic_id: UUID | None, update: Callable[[TopicState], TopicState]) -> None:
        """`UnknownTopicError` if the topic does not exist, or has another id; errors of ``update``."""
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
        """Whether the view has this version of the topic, or a later one."""
        seen = self._view.topics.get(state.name)
        is_it = seen is not None and seen.topic_id == state.topic_id
        return not is_it or self._view.versions.get(topic_name(state.name), MISSING) >= version

    async def _write(self, state: TopicState, version: int) -> int:
        name, value = topic_name(state.name), encode(state)
        written = await write(self._store, name, value, version)
        self._view.note(name, value, written)
        return written

    async def _until(self, condition: Callable[[], bool]) -> None:
        """The view follows the store within moments."""
        await self._view.until(condition, DEFAULT_SECONDS)

    async def delete(self, topic: Topic, seconds: float = DEFAULT_SECONDS) -> None:
        """Delete a topic. Its waiting fetches are woken. ``seconds`` limits the wait until this broker no longer shows
        it. `UnknownTopicError` if another deletion was first."""
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
        """One tombstone for each broker that may have replicas. The broker removes it after it has deleted them."""
        nodes = {node for replicas in state.assignment for node in replicas}
        for (topic_id, _), stored in self._view.partitions.items():
            if topic_id == state.topic_id:
                nodes.update(stored.state.replicas)
        return {tombstone_name(state.topic_id, node): state.name.encode() for node in sorted(nodes)}

    async def _forget_tombstones(self) -> None:
        """If there are too many tombstones, remove those of brokers that are down. The replicas of such a broker become
        strays, which are kept until an operator removes them."""
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
            _log.warning("%s is dropped: %d deleted topics already wait for absent brokers", name, len(deletions))

    async def reconfigure(self, config: LogDirConfig) -> None:
        """Apply a new configuration to all directories, even if one of them fails. Raises the first error."""

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
        """Wait for changes that have begun."""
        await asyncio.gather(*self._pending, return_exceptions=True)
        await self._lane.close()


def _unknown(name: str) -> UnknownTopicError:
    return UnknownTopicError(f"there is no topic {name!r}")


def _tuples(assignment: Assignment) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(replicas) for replicas in assignment)
