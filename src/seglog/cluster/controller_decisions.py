"""The controller's decisions: from all metadata to the states that partitions should have. Pure.

The controller does not react to events, which may be late, repeated or lost: it compares the whole and writes what
differs. Each write is a compare-and-set under the controller's epoch. So two brokers that both believe that they are
the controller do no harm, and a leader that changes its ISR at the same moment either wins or loses.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

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


class PartitionDecision(NamedTuple):
    """A partition's new state; None: delete it. ``version`` is that of the state before, None if there was none."""

    topic_id: UUID
    number: int
    state: PartitionState | None
    version: int | None


def decide(view: MetadataImage, among: Collection[tuple[UUID, int]] | None = None) -> Iterator[PartitionDecision]:
    """Yield everything to be written now; for all partitions, or for those of ``among``, whose topics may not exist. It
    is idempotent: once all of it is written and seen, nothing is left to decide."""
    topics = {topic.topic_id: topic for topic in view.topics.values()}
    rules: dict[UUID, TopicRules] = {}
    for topic_id, number in all_keys(view) if among is None else among:
        topic = topics.get(topic_id)
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


def all_keys(view: MetadataImage) -> list[tuple[UUID, int]]:
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
