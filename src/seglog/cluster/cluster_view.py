"""A broker's view of its cluster: the decoded values of the metadata store, which a mirror keeps current.

A value in it is never older than a previous one. If this seglog cannot decode a value, the previous one stays: a later
seglog may have written it, and a compare-and-set with the previous version does not overwrite it.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple, TypeVar
from uuid import UUID

from seglog.cluster.features import FEATURES, NO_FEATURES, FinalizedFeatures, decode_features
from seglog.cluster.mirror import Mirror
from seglog.cluster.model import (
    BROKERS,
    DELETED,
    GENERATION,
    PARTITIONS,
    TOPICS,
    BrokerRegistration,
    InvalidStateError,
    MetadataImage,
    TopicRules,
    TopicState,
    VersionedState,
    decode_broker,
    decode_partition,
    decode_topic,
    generation_of,
    parse_partition_name,
    parse_tombstone_name,
)
from seglog.cluster.store import MetadataStore, VersionedValue
from seglog.core.errors import InvalidTopicError
from seglog.core.types import validate_topic

CONTROLLER: Final = "controller"
CONFIG: Final = "config"
_AT_ONCE: Final = 100
"""Names to take up before other tasks get a turn on the loop: some milliseconds, with all that listeners do."""
_TURNS: Final = {TOPICS: 1, PARTITIONS: 2}
"""A tombstone is there before its topic goes: without one, replicas of a missing topic are kept as strays."""
_logger: Final = logging.getLogger("seglog.cluster")

K = TypeVar("K")
V = TypeVar("V")


class ControllerRegistration(NamedTuple):
    """The value at ``controller``: the broker that writes the states of partitions, and its controller epoch."""

    node_id: int
    broker_epoch: int
    epoch: int


class Changes(NamedTuple):
    """The changes that the view has just taken over: new, different or gone. ``configs`` are full names, and
    ``topic_ids`` are the ids that the ``topics`` had before or have now."""

    brokers: frozenset[int] = frozenset()
    topics: frozenset[str] = frozenset()
    partitions: frozenset[tuple[UUID, int]] = frozenset()
    configs: frozenset[str] = frozenset()
    controller: bool = False
    deletions: frozenset[UUID] = frozenset()
    generation: bool = False
    features: bool = False
    topic_ids: frozenset[UUID] = frozenset()


class NamedValue(NamedTuple):
    """A name and the value that the store has just returned for it; None: it is deleted."""

    name: str
    value: VersionedValue | None


def encode_controller(controller: ControllerRegistration) -> bytes:
    return json.dumps(controller._asdict(), separators=(",", ":")).encode()


def decode_controller(data: bytes) -> ControllerRegistration:
    """`InvalidStateError`.

    >>> decode_controller(encode_controller(ControllerRegistration(1, 7, 3)))
    ControllerRegistration(node_id=1, broker_epoch=7, epoch=3)
    """
    try:
        told = json.loads(data)
        return ControllerRegistration(int(told["node_id"]), int(told["broker_epoch"]), int(told["epoch"]))
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidStateError(f"{CONTROLLER} in the metadata store cannot be read: {error!r}") from error


class ClusterView:
    """``listeners`` are called on the loop, in order, after the view has changed; an error in one is logged.

    ``deletions`` are the ids of deleted topics, with the brokers that may still have replicas of them. ``generation``
    is the highest that was seen (`seglog.cluster.generation`). A store with a lower one is an older copy: the view
    ignores it, and ``went_back_to`` is its generation.

    Many changes come in parts, and other tasks get a turn in between: topics before their partitions.

    ``versions`` are those of all decoded names, ``configs`` the values below ``config/`` by full name, ``unreadable``
    the names that could not be decoded. All mappings change in place.
    """

    def __init__(self, store: MetadataStore, rules: Callable[[TopicState], TopicRules]) -> None:
        self.listeners: list[Callable[[Changes], None]] = []
        self.controller: ControllerRegistration | None = None
        self.features: FinalizedFeatures = NO_FEATURES
        self.generation = -1
        self.went_back_to: int | None = None
        self._rules = rules
        self._deletions: dict[UUID, frozenset[int]] = {}
        self.deletions: Mapping[UUID, frozenset[int]] = MappingProxyType(self._deletions)
        self._brokers: dict[int, BrokerRegistration] = {}
        self._topics: dict[str, TopicState] = {}
        self._topics_by_id: dict[UUID, TopicState] = {}
        self._partitions: dict[tuple[UUID, int], VersionedState] = {}
        self._numbers: dict[UUID, set[int]] = {}
        self._on_broker: dict[int, set[tuple[UUID, int]]] = {}
        self._removed: set[UUID] = set()
        self._versions: dict[str, int] = {}
        self._configs: dict[str, bytes] = {}
        self.brokers: Mapping[int, BrokerRegistration] = MappingProxyType(self._brokers)
        self.topics: Mapping[str, TopicState] = MappingProxyType(self._topics)
        self.topics_by_id: Mapping[UUID, TopicState] = MappingProxyType(self._topics_by_id)
        self.partitions: Mapping[tuple[UUID, int], VersionedState] = MappingProxyType(self._partitions)
        self.versions: Mapping[str, int] = MappingProxyType(self._versions)
        self.configs: Mapping[str, bytes] = MappingProxyType(self._configs)
        self._mirror = Mirror(store, "", self._take_up_in_parts)
        self._parts: deque[str] = deque()
        """Changed names that are taken up later."""
        self._taken = 0
        """How many were."""
        self._unreadable: dict[str, VersionedValue] = {}
        self.unreadable: Collection[str] = self._unreadable.keys()
        self._waiting: dict[asyncio.Future[None], Callable[[], bool]] = {}
        self._to_tell: deque[Changes] = deque()
        self._is_telling = False

    async def start(self) -> None:
        """Load everything in the store. Raises the store's errors."""
        await self._mirror.start()
        self._take_up(self._mirror.values)

    async def stop(self) -> None:
        """Keep the view as it is."""
        self._parts.clear()
        await self._mirror.stop()

    async def until_failed(self) -> BaseException:
        """Return the error after which the view may not follow the store any more."""
        return await self._mirror.until_failed()

    def view(self) -> MetadataImage:
        """The current values, until the next await."""
        return MetadataImage(self.brokers, self.topics_by_id, self.partitions, self._rules)

    def numbers_of(self, topic_id: UUID) -> Collection[int]:
        """The partitions of a topic that have a state."""
        return self._numbers.get(topic_id, ())

    def partitions_on(self, node_id: int) -> Collection[tuple[UUID, int]]:
        """The partitions of which this broker is a replica by their states."""
        return self._on_broker.get(node_id, ())

    def was_removed(self, topic_id: UUID) -> bool:
        """Whether this topic was certainly deleted: the view has seen it go while it had partitions, or there is a
        tombstone. An id is never used again."""
        return topic_id in self._removed or topic_id in self._deletions

    def is_unclean(self, topic_id: UUID) -> bool:
        """Whether any replica of the topic may be elected; also True for an unknown topic."""
        topic = self._topics_by_id.get(topic_id)
        return topic is None or self._rules(topic).unclean

    def note(self, name: str, value: bytes, version: int) -> None:
        """Take over a value that this broker has just written or read, unless the view has a later one."""
        self.note_all([NamedValue(name, VersionedValue(value, version))])

    def note_all(self, noted: Iterable[NamedValue]) -> None:
        """Take over many values and call the listeners once."""
        names = []
        for name, value in noted:
            if self._is_later(name, value):
                self._mirror.note(name, value)
                names.append(name)
            elif self._mirror.values.get(name) == value and self._versions.get(name) != (value and value.version):
                names.append(name)  # the mirror has read it, and was going to say so
            if not name.startswith(f"{PARTITIONS}/") or name not in self._mirror.values:
                self._mirror.read_again(name)  # it may have been deleted and created again in between
        self._take_up(names)

    def _is_later(self, name: str, value: VersionedValue | None) -> bool:
        """Whether ``value`` is certainly later than the one in the view. The version alone does not prove that for a
        name that may be deleted and created again: its versions start again."""
        seen = self._mirror.values.get(name)
        if seen is None or value is None:
            return value is not seen
        try:
            was, now = _life(name, seen.value), _life(name, value.value)
        except InvalidStateError:
            return False
        if isinstance(was, UUID) or isinstance(now, UUID):
            return was == now and value.version > seen.version
        return (now, value.version) > (was, seen.version)

    async def until(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Wait until ``condition`` holds, checking it after every change. False if the time is over first."""
        if condition():
            return True
        met: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[met] = condition
        try:
            async with asyncio.timeout(seconds):
                await met
        except TimeoutError:
            return condition()
        finally:
            del self._waiting[met]
        return True

    async def until_taken_up(self) -> None:
        """Wait until the view has all parts of the changes that have come up to now."""
        end = self._taken + len(self._parts)
        while self._parts and self._taken < end:
            await asyncio.sleep(0)

    # Taking over

    def _take_up_in_parts(self, names: frozenset[str]) -> None:
        if len(names) <= _AT_ONCE and not self._parts:
            self._take_up(names)
            return
        is_due = not self._parts
        self._parts.extend(sorted(names, key=_turn_of))
        if is_due:
            self._take_up_part()

    def _take_up_part(self) -> None:
        part = [self._parts.popleft() for _ in range(min(len(self._parts), _AT_ONCE))]
        self._taken += len(part)
        if part:
            self._take_up(part)
        if self._parts:
            asyncio.get_running_loop().call_soon(self._take_up_part)

    def _take_up(self, names: Iterable[str]) -> None:
        if self._has_gone_back():
            return
        brokers: set[int] = set()
        deletions: set[UUID] = set()
        is_generation = False
        topics: set[str] = set()
        topic_ids: set[UUID] = set()
        partitions: set[tuple[UUID, int]] = set()
        configs: set[str] = set()
        is_controller = is_features = False
        for name in names:
            value = self._mirror.values.get(name)
            kind, _, rest = name.partition("/")
            try:
                if kind == PARTITIONS:
                    partitions.add(self._take_partition(name, value))
                elif kind == BROKERS:
                    brokers.add(self._take_broker(name, rest, value))
                elif kind == TOPICS:
                    topic_ids |= self._take_topic(name, rest, value)
                    topics.add(rest)
                elif kind == CONFIG:
                    _put(self._configs, name, value and value.value)
                    configs.add(name)
                elif name == CONTROLLER:
                    self.controller = None if value is None else decode_controller(value.value)
                    is_controller = True
                elif kind == DELETED:
                    deletions.add(self._take_tombstone(name, value))
                elif kind == GENERATION:
                    is_generation = True
                elif name == FEATURES:
                    self.features = decode_features(value and value.value)
                    is_features = True
            except InvalidStateError as error:
                self._pass_over(name, value, error)
                continue
            self._unreadable.pop(name, None)
            _put(self._versions, name, value and value.version)
        changes = Changes(
            frozenset(brokers),
            frozenset(topics),
            frozenset(partitions),
            frozenset(configs),
            is_controller,
            frozenset(deletions),
            is_generation,
            is_features,
            frozenset(topic_ids),
        )
        if changes != Changes():
            self._tell(changes)

    def _has_gone_back(self) -> bool:
        """Whether the store is older than it was: then nothing in it counts."""
        found = generation_of(self._mirror.values)
        if found < self.generation and self.went_back_to is None:
            self.went_back_to = found
            _logger.critical("the metadata store went back from generation %d to %d", self.generation, found)
            self._tell(Changes(generation=True))
        self.generation = max(self.generation, found)
        return self.went_back_to is not None

    def _take_tombstone(self, name: str, value: VersionedValue | None) -> UUID:
        topic_id, node_id = parse_tombstone_name(name)
        nodes = self._deletions.get(topic_id, frozenset()) - {node_id}
        _put(self._deletions, topic_id, (nodes if value is None else nodes | {node_id}) or None)
        return topic_id

    def _take_partition(self, name: str, value: VersionedValue | None) -> tuple[UUID, int]:
        key = parse_partition_name(name)
        state = value and VersionedState(decode_partition(name, value.value), value.version)
        before = self._partitions.get(key)
        _put(self._partitions, key, state)
        self._index(key, before, state)
        return key

    def _index(self, key: tuple[UUID, int], before: VersionedState | None, now: VersionedState | None) -> None:
        were, are = (frozenset(() if one is None else one.state.replicas) for one in (before, now))
        for node in were - are:
            _discard(self._on_broker, node, key)
        for node in are - were:
            self._on_broker.setdefault(node, set()).add(key)
        topic_id, number = key
        if before is None and now is not None:
            self._numbers.setdefault(topic_id, set()).add(number)
        elif before is not None and now is None:
            _discard(self._numbers, topic_id, number)
            if topic_id not in self._numbers:
                self._removed.discard(topic_id)

    def _take_broker(self, name: str, node: str, value: VersionedValue | None) -> int:
        try:
            node_id = int(node)
        except ValueError as error:
            raise InvalidStateError(f"{name} is not the name of a broker") from error
        broker = value and decode_broker(name, value.value)
        if broker is not None and broker.node_id != node_id:
            raise InvalidStateError(f"{name} in the metadata store belongs to broker {broker.node_id}")
        _put(self._brokers, node_id, broker)
        return node_id

    def _take_topic(self, name: str, topic: str, value: VersionedValue | None) -> set[UUID]:
        """Return the ids that the topic had before and has now."""
        state = value and decode_topic(name, value.value)
        if state is not None and not _is_legal(topic):
            _logger.error("%r in the metadata store is not a legal topic name: no broker serves this topic", topic)
            state = None
        before = self._topics.get(topic)
        if before is not None and (state is None or state.topic_id != before.topic_id):
            self._topics_by_id.pop(before.topic_id, None)
            if before.topic_id in self._numbers:
                self._removed.add(before.topic_id)
        _put(self._topics, topic, state)
        if state is not None:
            self._topics_by_id[state.topic_id] = state
        return {one.topic_id for one in (before, state) if one is not None}

    def _pass_over(self, name: str, value: VersionedValue | None, error: InvalidStateError) -> None:
        if value is not None and self._unreadable.get(name) != value:
            self._unreadable[name] = value
            _logger.error("%s; its previous value still counts", error)

    def _tell(self, changes: Changes) -> None:
        """Call the listeners. A listener may note a value itself; those changes follow."""
        self._to_tell.append(changes)
        if self._is_telling:
            return
        self._is_telling = True
        try:
            while self._to_tell:
                changes = self._to_tell.popleft()
                for listener in tuple(self.listeners):
                    try:
                        listener(changes)
                    except Exception:
                        _logger.exception("a listener failed on a change of the cluster")
                for met, condition in list(self._waiting.items()):
                    if not met.done() and condition():
                        met.set_result(None)
        finally:
            self._is_telling = False


def _life(name: str, data: bytes) -> int | UUID:
    """Return the incarnation of a name that may be deleted and created again: a number if later ones have larger
    numbers."""
    kind = name.partition("/")[0]
    if kind == BROKERS:
        return decode_broker(name, data).epoch
    if kind == CONTROLLER:
        return decode_controller(data).epoch
    return decode_topic(name, data).topic_id if kind == TOPICS else 0


def _is_legal(topic: str) -> bool:
    """Whether a topic may have this name. A store from before auto-creation checked names may contain others."""
    try:
        validate_topic(topic)
    except InvalidTopicError:
        return False
    return True


def _turn_of(name: str) -> int:
    """The order in which changes are taken up."""
    return _TURNS.get(name.partition("/")[0], 0)


def _discard(index: dict[K, set[V]], key: K, value: V) -> None:
    there = index[key]
    there.discard(value)
    if not there:
        del index[key]


def _put(into: dict[K, V], key: K, value: V | None) -> None:
    if value is None:
        into.pop(key, None)
    else:
        into[key] = value
