"""Changes of topics. Any broker makes them, by compare-and-set of values in the metadata store.

When a change returns, this broker's view has it. The brokers with replicas then create and remove logs, and the
controller elects leaders; `TopicChanges.settled` waits for that. Without a cluster, a change is in the directory before
it is in the store (`seglog.broker.topics.directory_topics`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Final, NamedTuple, TypeVar
from uuid import UUID

from seglog.broker.identity import Identity
from seglog.broker.requests import ApiError
from seglog.broker.store_writes import read, write_each
from seglog.broker.topics.topic_validation import check_topic_name
from seglog.broker.topics.topics import Topic, Topics
from seglog.cluster.cluster_view import ClusterView, NamedValue
from seglog.cluster.model import (
    NO_LEADER,
    TOPICS,
    InvalidStateError,
    TopicState,
    decode_topic,
    encode,
    tombstone_name,
    topic_name,
)
from seglog.cluster.placement import place
from seglog.cluster.store import (
    MISSING,
    Change,
    CommitConflictError,
    MetadataStore,
    NameExistsError,
    NoSuchNameError,
    StoreFailedError,
    VersionChangedError,
    VersionedValue,
)
from seglog.core.config import LogConfig, LogDirConfig
from seglog.core.error_codes import ErrorCode
from seglog.core.errors import SeglogError, TopicExistsError, UnknownTopicError
from seglog.core.ground import Ground
from seglog.core.topic_names import FlatNames, may_collide
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

_MAX_TOPICS_PER_COMMIT: Final = 1_000
"""So that commits of others need not wait long, and that a commit is never too large: see `MAX_COMMIT_BYTES`."""
_NOTED_AT_ONCE: Final = 100
"""Topics that the view takes over before other tasks get a turn on the loop."""

Assignment = Sequence[Sequence[int]]
"""The brokers of each partition's replicas, the preferred leader first."""
_Update = Callable[[TopicState], TopicState]


class TopicWish(NamedTuple):
    """A topic to create, with its own configuration."""

    name: str
    assignment: Assignment
    config: Mapping[str, str]


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
        self._names = FlatNames()
        self._names_version: int | None = None
        """`_names` has all topics that were created up to this version of `_LAST`, and perhaps some that are gone. None
        if that is not known."""
        topics.removed.append(self._forget_names)

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
        """`create_all` for one topic; raises its error."""
        (made,) = await self.create_all([TopicWish(name, assignment, config)])
        if isinstance(made, SeglogError):
            raise made
        return made

    async def create_all(self, wanted: Sequence[TopicWish]) -> list[Topic | SeglogError]:
        """Create topics, whose names differ, in as few commits as possible. Return each, or its error:
        `TopicExistsError`, `ApiError` for an illegal name or one that collides, `InvalidConfigError`."""
        errors: dict[str, SeglogError] = {}
        states: dict[str, TopicState] = {}
        for one in wanted:
            try:
                states[one.name] = self._new(one)
            except SeglogError as error:
                errors[one.name] = error
        for names in _in_parts(states, _MAX_TOPICS_PER_COMMIT):
            errors |= await self._create_some({name: states[name] for name in names})
        made = {name: state.topic_id for name, state in states.items() if name not in errors}
        there = [name for name, error in errors.items() if isinstance(error, TopicExistsError)]
        await self._until_each(there, lambda name: name in self._topics.by_name)
        await self._until_each(list(made.values()), lambda topic_id: topic_id in self._topics.by_id)
        return [errors.get(one.name) or self._made(one, made[one.name]) for one in wanted]

    def _made(self, wanted: TopicWish, topic_id: UUID) -> Topic:
        return self._topics.by_id.get(topic_id) or Topic(wanted.name, topic_id, [None] * len(wanted.assignment))

    def _new(self, wanted: TopicWish) -> TopicState:
        check_topic_name(wanted.name)
        overrides = LogConfig.from_mapping(wanted.config).overrides() if wanted.config else {}
        self._check_config(overrides)
        return TopicState(
            name=wanted.name, topic_id=new_id(self._rng), assignment=_tuples(wanted.assignment), config=overrides
        )

    async def _create_some(self, states: dict[str, TopicState]) -> dict[str, SeglogError]:
        """Create topics in one commit, and again those that others have disturbed; return the errors. A commit with
        names that may collide raises the version of `_LAST`, so that no two that collide are created at once."""
        errors: dict[str, SeglogError] = {}
        while states:
            before: VersionedValue | None = None
            turns = [name for name in states if may_collide(name)]
            if turns:
                try:
                    before = await read(self._store.get(_LAST))
                    collisions = await self._collisions(turns, before)
                except ApiError as error:
                    return {**errors, **dict.fromkeys(states, error)}
                errors |= collisions
                states = {name: state for name, state in states.items() if name not in collisions}
                turns = [name for name in turns if name in states]
            fence = Change(_LAST, turns[-1].encode(), _version(before)) if turns else None
            changes = {name: [Change(topic_name(name), encode(one), MISSING)] for name, one in states.items()}
            outcomes = await self._write_each(changes, fence)
            written = [name for name, outcome in outcomes.items() if not isinstance(outcome, SeglogError)]
            if turns:
                self._names_seen(_version(before), [name for name in turns if name in written], len(turns))
            again: dict[str, TopicState] = {}
            for name, outcome in outcomes.items():
                if isinstance(outcome, NameExistsError):
                    errors[name] = TopicExistsError(f"topic {name!r} exists")
                elif isinstance(outcome, CommitConflictError):
                    again[name] = states[name]
                elif isinstance(outcome, SeglogError):
                    errors[name] = outcome
            states = again
        return errors

    async def _collisions(self, names: Sequence[str], last: VersionedValue | None) -> dict[str, SeglogError]:
        """The errors of those names that differ from another topic's, or from an earlier one of them, only in ``.`` and
        ``_``. The view may lag behind the store: all names in it are read, unless no other broker has created such a
        topic since they were, by the version of `_LAST`."""
        if self._names_version != _version(last):
            self._names = FlatNames(await read(self._store.list(TOPICS)))
            self._names_version = _version(last)
        among = FlatNames()
        errors: dict[str, SeglogError] = {}
        for name in names:
            other = next(iter(among.others(name)), None) or await self._colliding(name)
            if other is None:
                among.add(name)
                continue
            message = f"Topic '{name}' collides with existing topic: {other}"
            errors[name] = ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, message)
        return errors

    async def _colliding(self, name: str) -> str | None:
        others = self._names.others(name)
        there = await read(self._store.get_many([topic_name(other) for other in others])) if others else {}
        for other in others:
            if topic_name(other) in there:
                return other
            self._names.discard(other)  # it was deleted
        return None

    def _names_seen(self, before: int, written: Sequence[str], wanted: int) -> None:
        """Note that a commit with ``written`` of the ``wanted`` names began at this version of `_LAST`."""
        if len(written) < wanted:
            self._names_version = None  # not known: others may have written meanwhile
            return
        for name in written:
            self._names.add(name)
        self._names_version = 0 if before == MISSING else before + 1

    def _forget_names(self, gone: Sequence[Topic]) -> None:
        for topic in gone:
            if topic.name not in self._view.topics:
                self._names.discard(topic.name)

    async def _write_each(
        self, changes: Mapping[str, Sequence[Change]], fence: Change | None = None
    ) -> Mapping[str, int | SeglogError]:
        """`write_each` of topics by their names; the view takes over what is written."""
        outcomes = await write_each(
            self._store, {topic_name(name): steps for name, steps in changes.items()}, fence=fence
        )
        by_topic = {name: outcomes[topic_name(name)] for name in changes}
        written = [name for name, outcome in by_topic.items() if not isinstance(outcome, SeglogError)]
        for some in _in_parts(written, _NOTED_AT_ONCE):
            self._view.note_all(
                NamedValue(step.name, None if step.value is None else VersionedValue(step.value, version))
                for name in some
                for step, version in _versions(changes[name], by_topic[name])
            )
            await asyncio.sleep(0)
        return by_topic

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
        """`grow_all` for one topic; raises its error."""
        (error,) = await self.grow_all([(topic, assignment)])
        if error is not None:
            raise error

    async def grow_all(self, wanted: Sequence[tuple[Topic, Assignment]]) -> list[SeglogError | None]:
        """Add partitions to topics; each assignment has only the new ones. Return the errors: `UnknownTopicError`, and
        `ApiError` if another change was first."""
        updates = {topic.name: (topic.topic_id, partial(_grown, topic, assignment)) for topic, assignment in wanted}
        errors = await self._change_all(updates)
        return [errors.get(topic.name) for topic, _ in wanted]

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

    async def _change(self, name: str, topic_id: UUID | None, update: _Update) -> None:
        """`_change_all` for one topic; raises its error."""
        errors = await self._change_all({name: (topic_id, update)})
        if name in errors:
            raise errors[name]

    async def _change_all(self, updates: Mapping[str, tuple[UUID | None, _Update]]) -> dict[str, SeglogError]:
        """Change topics, and wait until the view has that. Return the errors: `UnknownTopicError` if a topic does not
        exist, or has another id, and those of the updates."""
        errors: dict[str, SeglogError] = {}
        changed: list[tuple[TopicState, int]] = []
        for names in _in_parts(updates, _MAX_TOPICS_PER_COMMIT):
            left: Sequence[str] = names
            while left:
                states: dict[str, TopicState] = {}
                changes: dict[str, Sequence[Change]] = {}
                for name, found in (await self._read_all(left)).items():
                    if isinstance(found, SeglogError):
                        errors[name] = found
                        continue
                    topic_id, update = updates[name]
                    state, version = found
                    try:
                        if topic_id not in (None, state.topic_id):
                            raise _unknown(name)
                        states[name] = update(state)
                    except SeglogError as error:
                        errors[name] = error
                        continue
                    if states[name] != state:
                        changes[name] = [Change(topic_name(name), encode(states[name]), version)]
                outcomes = await self._write_each(changes)
                left = []
                for name, outcome in outcomes.items():
                    if isinstance(outcome, CommitConflictError):
                        left.append(name)
                    elif isinstance(outcome, SeglogError):
                        errors[name] = outcome
                    else:
                        changed.append((states[name], outcome))
        await self._until_each(changed, lambda one: self._has_seen(*one))
        return errors

    async def _read_all(self, names: Sequence[str]) -> dict[str, tuple[TopicState, int] | SeglogError]:
        """The topics in the store with their versions, or the errors."""
        try:
            found = await read(self._store.get_many([topic_name(name) for name in names]))
        except ApiError as error:
            return dict.fromkeys(names, error)
        topics: dict[str, tuple[TopicState, int] | SeglogError] = {}
        for name in names:
            there = found.get(topic_name(name))
            try:
                topics[name] = (
                    _unknown(name) if there is None else (decode_topic(topic_name(name), there.value), there.version)
                )
            except InvalidStateError as error:
                topics[name] = error
        return topics

    def _has_seen(self, state: TopicState, version: int) -> bool:
        """Whether the view has this version of the topic, or a later one."""
        seen = self._view.topics.get(state.name)
        is_it = seen is not None and seen.topic_id == state.topic_id
        return not is_it or self._view.versions.get(topic_name(state.name), MISSING) >= version

    async def _until_each(
        self, all_of: Sequence[T], condition: Callable[[T], bool], seconds: float = DEFAULT_SECONDS
    ) -> None:
        """The view follows the store within moments."""
        waiting = list(all_of)

        def is_met() -> bool:
            while waiting and condition(waiting[-1]):
                waiting.pop()
            return not waiting

        await self._view.until(is_met, seconds)

    async def delete(self, topic: Topic, seconds: float = DEFAULT_SECONDS) -> None:
        """`delete_all` for one topic; raises its error."""
        (error,) = await self.delete_all([topic], seconds)
        if error is not None:
            raise error

    async def delete_all(self, topics: Sequence[Topic], seconds: float = DEFAULT_SECONDS) -> list[SeglogError | None]:
        """Delete topics in as few commits as possible. Their waiting fetches are woken. ``seconds`` limits the wait
        until this broker no longer shows them. Return the errors: `UnknownTopicError` if another deletion was first."""
        errors: dict[str, SeglogError] = {}
        deleted: list[UUID] = []
        for some in _in_parts({topic.name: topic for topic in topics}.values(), _MAX_TOPICS_PER_COMMIT):
            left = {topic.name: topic for topic in some}
            while left:
                changes: dict[str, Sequence[Change]] = {}
                for name, found in (await self._read_all(list(left))).items():
                    if isinstance(found, SeglogError):
                        errors[name] = found
                    elif found[0].topic_id != left[name].topic_id:
                        errors[name] = _unknown(name)
                    else:
                        state, version = found
                        changes[name] = [Change(topic_name(name), None, version), *self._tombstones(state)]
                outcomes = await self._write_each(changes)
                again = {}
                for name, outcome in outcomes.items():
                    if isinstance(outcome, VersionChangedError | NoSuchNameError):
                        again[name] = left[name]
                    elif isinstance(outcome, SeglogError):
                        errors[name] = outcome
                    else:
                        deleted.append(left[name].topic_id)
                left = again
        await self._until_each(deleted, lambda topic_id: topic_id not in self._topics.by_id, seconds)
        await self._forget_tombstones()
        return [errors.get(topic.name) for topic in topics]

    def _tombstones(self, state: TopicState) -> list[Change]:
        """One tombstone for each broker that may have replicas. The broker removes it after it has deleted them."""
        nodes = {node for replicas in state.assignment for node in replicas}
        for number in self._view.numbers_of(state.topic_id):
            nodes.update(self._view.partitions[state.topic_id, number].state.replicas)
        return [Change(tombstone_name(state.topic_id, node), state.name.encode(), MISSING) for node in sorted(nodes)]

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


def _grown(topic: Topic, assignment: Assignment, state: TopicState) -> TopicState:
    if len(state.assignment) != len(topic.partitions):
        message = f"Topic already has {len(state.assignment)} partition(s)."
        raise ApiError(ErrorCode.INVALID_PARTITIONS, message)
    return replace(state, assignment=state.assignment + _tuples(assignment))


def _versions(steps: Sequence[Change], outcome: int | SeglogError) -> Iterator[tuple[Change, int]]:
    """The steps of a topic's change with the versions that they have now; those that belong to it are new values, and
    come first: see `_TURNS` in `seglog.cluster.cluster_view`."""
    assert isinstance(outcome, int)
    first, *others = steps
    yield from ((step, 0) for step in others)
    yield first, outcome


def _version(found: VersionedValue | None) -> int:
    return MISSING if found is None else found.version


def _tuples(assignment: Assignment) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(replicas) for replicas in assignment)


def _in_parts(items: Iterable[T], size: int) -> Iterator[tuple[T, ...]]:
    left = iter(items)
    while part := tuple(islice(left, size)):
        yield part
