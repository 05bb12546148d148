"""The controller's decisions: from all metadata to the states that partitions should have. Pure.

The controller does not react to events, which may be late, repeated or lost: it compares what is with what should be,
and writes what differs. A change only says where to compare (`DecisionScope`): the decision about a partition reads its
topic, its state and the registrations of its replicas, so a change of something else cannot alter it. Each write is a
compare-and-set under the controller's epoch. So two brokers that both believe that they are the controller do no harm,
and a leader that changes its ISR at the same moment either wins or loses.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol
from uuid import UUID

from seglog.cluster.cluster_view import Changes
from seglog.cluster.election import first_state, prefer, reassign, settle
from seglog.cluster.model import (
    NO_LEADER,
    BrokerRegistration,
    MetadataImage,
    PartitionState,
    TopicRules,
    TopicState,
    of_partition,
)

Key = tuple[UUID, int]


class IndexedMetadata(Protocol):
    """`seglog.cluster.cluster_view.ClusterView`: all metadata, and what belongs to one topic or one broker."""

    def view(self) -> MetadataImage: ...
    def numbers_of(self, topic_id: UUID, /) -> Collection[int]: ...
    def partitions_on(self, node_id: int, /) -> Collection[Key]: ...


class DecisionScope:
    """The partitions about which the controller has to decide again: all at first, then those that changes concern.

    Invariant: `decide` yields nothing about any other partition, but for those that were put off. ``_open`` are the
    partitions whose decision also reads brokers that are not replicas by a state: those without a state, and those that
    get replicas as brokers join.
    """

    def __init__(self, metadata: IndexedMetadata) -> None:
        self._metadata = metadata
        self._keys: set[Key] = set()
        self._open: set[Key] = set()
        self._put_off: set[Key] = set()
        self._is_all = True

    def add_all(self) -> None:
        """Anything may have changed, or the rules of topics."""
        self._is_all = True

    def add(self, keys: Iterable[Key]) -> None:
        self._keys.update(keys)

    def put_off(self, keys: Iterable[Key]) -> None:
        """Decide again when a topic changes: these partitions have none that the view knows."""
        self._put_off.update(keys)

    def note(self, changes: Changes) -> None:
        """Add what these changes concern."""
        self._keys |= changes.partitions
        if changes.topics:
            self._keys |= self._put_off
            self._put_off.clear()
            image = self._metadata.view()
            for topic_id in changes.topic_ids:
                topic = image.topics.get(topic_id)
                self._keys.update((topic_id, number) for number in range(0 if topic is None else len(topic.assignment)))
                self._keys.update((topic_id, number) for number in self._metadata.numbers_of(topic_id))
        if changes.brokers:
            self._keys |= self._open
            for node in changes.brokers:
                self._keys.update(self._metadata.partitions_on(node))

    @property
    def is_empty(self) -> bool:
        return not (self._keys or self._is_all)

    def wrote(self, keys: Collection[Key]) -> None:
        """The metadata has the final decisions about these partitions. They are decided again only if they may get more
        replicas."""
        self._sort(keys)
        self._keys.update(key for key in keys if key in self._open)

    def take(self) -> list[Key]:
        """Return the scope, which is empty then. `add` again what could not be decided."""
        image = self._metadata.view()
        keys = all_keys(image) if self._is_all else sorted(self._keys)
        if self._is_all:
            self._open.clear()
        self._keys, self._is_all = set(), False
        self._sort(keys)
        return keys

    def _sort(self, keys: Iterable[Key]) -> None:
        image = self._metadata.view()
        rules: dict[UUID, TopicRules] = {}
        for key in keys:
            if _is_open(image, key, rules):
                self._open.add(key)
            else:
                self._open.discard(key)


def _is_open(image: MetadataImage, key: Key, rules: dict[UUID, TopicRules]) -> bool:
    topic, stored = image.topics.get(key[0]), image.partitions.get(key)
    if topic is None:
        return False
    if stored is None:
        return True
    if key[0] not in rules:
        rules[key[0]] = image.rules(topic)
    return rules[key[0]].replicas > len(stored.state.replicas)


class PartitionDecision(NamedTuple):
    """A partition's new state; None: delete it. ``version`` is that of the state before, None if there was none."""

    topic_id: UUID
    number: int
    state: PartitionState | None
    version: int | None

    @property
    def is_final(self) -> bool:
        """Whether nothing follows from it: the partition begins, or ends. An election may take two decisions."""
        return self.state is None or self.version is None


def decide(view: MetadataImage, among: Collection[Key] | None = None) -> Iterator[PartitionDecision]:
    """Yield everything to be written now; for all partitions, or for those of ``among``, whose topics may not exist. It
    is idempotent: once all of it is written and seen, nothing is left to decide."""
    rules: dict[UUID, TopicRules] = {}
    for topic_id, number in all_keys(view) if among is None else among:
        topic = view.topics.get(topic_id)
        stored = view.partitions.get((topic_id, number))
        if topic is None:
            if stored is not None:
                yield PartitionDecision(topic_id, number, None, stored.version)
            continue
        if topic_id not in rules:
            rules[topic_id] = view.rules(topic)
        decision = _decide_one(view, topic, number, rules[topic_id])
        if decision is not None:
            yield decision


def all_keys(view: MetadataImage) -> list[Key]:
    """Return the partitions that exist or should exist: first those of topics, then those without a topic."""
    keys = dict.fromkeys(
        (topic.topic_id, number) for topic in view.topics.values() for number in range(len(topic.assignment))
    )
    return list(keys | dict.fromkeys(view.partitions))


def _decide_one(view: MetadataImage, topic: TopicState, number: int, rules: TopicRules) -> PartitionDecision | None:
    key = (topic.topic_id, number)
    stored, brokers = view.partitions.get(key), of_partition(view.brokers, key)
    if stored is None:
        if number >= len(topic.assignment):
            return None
        state = first_state(topic.assignment[number], brokers, rules.min_insync)
        return None if state is None else PartitionDecision(*key, state, None)
    settled = settle(stored.state, brokers, min_insync=rules.min_insync, unclean=rules.unclean)
    if settled == stored.state:
        settled = _widened(settled, topic.assignment, number, brokers, rules)
    return None if settled == stored.state else PartitionDecision(*key, settled, stored.version)


def _widened(
    state: PartitionState,
    assignment: Sequence[tuple[int, ...]],
    number: int,
    brokers: Mapping[int, BrokerRegistration],
    rules: TopicRules,
) -> PartitionState:
    """Start adding replicas to a partition that was created with too few brokers. If an operator has moved it, so that
    its replicas no longer begin with those of its creation, it stays unchanged."""
    first = assignment[number] if number < len(assignment) else ()
    is_settled = state.leader != NO_LEADER and not (state.adding or state.removing)
    missing = rules.replicas - len(state.replicas)
    if missing <= 0 or not is_settled or state.replicas[: len(first)] != first:
        return state
    racks = {brokers[node].rack for node in state.replicas if node in brokers}
    others = sorted(node for node in brokers if node not in state.replicas and not brokers[node].is_stopping)
    start = number % max(len(others), 1)
    turned = others[start:] + others[:start]
    added = sorted(turned, key=lambda node: brokers[node].rack in racks)[:missing]  # other racks first
    return reassign(state, (*state.replicas, *added)) if added else state


def balance(view: MetadataImage, imbalance: float = 0.1) -> Iterator[PartitionDecision]:
    """Yield the partitions of brokers of whose preferred partitions others lead more than ``imbalance``, given back to
    them (``leader.imbalance.per.broker.percentage``)."""
    preferred: dict[int, int] = {}
    elsewhere: dict[int, int] = {}
    for stored in view.partitions.values():
        first = stored.state.replicas[0]
        preferred[first] = preferred.get(first, 0) + 1
        if stored.state.leader != first:
            elsewhere[first] = elsewhere.get(first, 0) + 1
    tilted = {node for node, count in elsewhere.items() if count > imbalance * preferred[node]}
    for (topic_id, number), stored in view.partitions.items():
        state = stored.state
        if state.replicas[0] in tilted and state.leader != NO_LEADER:
            changed = prefer(state, of_partition(view.brokers, (topic_id, number)))
            if changed is not state:
                yield PartitionDecision(topic_id, number, changed, stored.version)
