"""What the controller changes: from all that it sees to the partitions' states as they must be. Pure.

It does not react to events, which may be late, repeated or missed: it looks at the whole and writes what differs. Each
write is a compare-and-set on the version that was looked at, under the controller's own epoch, so that two who think
that they are the controller do no harm, and a leader who changes its ISR at that moment wins or loses whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple
from uuid import UUID

from seglog.cluster.election import first_state, prefer, settle
from seglog.cluster.model import NO_LEADER, PartitionState, TopicRules, TopicState, View


class Decision(NamedTuple):
    """A partition's new state; None: it is to be deleted. ``version`` is the one that was looked at, None: there was
    none."""

    topic_id: UUID
    number: int
    state: PartitionState | None
    version: int | None


def decide(view: View) -> Iterator[Decision]:
    """Everything that is to be written now. Written whole and seen again, it leaves nothing to decide."""
    known = set()
    for topic in view.topics.values():
        known.add(topic.topic_id)
        rules = view.rules(topic)
        for number in range(len(topic.assignment)):
            decision = _decide_one(view, topic, number, rules)
            if decision is not None:
                yield decision
    for (topic_id, number), stored in view.partitions.items():
        if topic_id not in known:
            yield Decision(topic_id, number, None, stored.version)


def _decide_one(view: View, topic: TopicState, number: int, rules: TopicRules) -> Decision | None:
    stored = view.partitions.get((topic.topic_id, number))
    if stored is None:
        state = first_state(topic.assignment[number], view.brokers, rules.min_insync)
        return None if state is None else Decision(topic.topic_id, number, state, None)
    settled = settle(stored.state, view.brokers, min_insync=rules.min_insync, unclean=rules.unclean)
    return None if settled == stored.state else Decision(topic.topic_id, number, settled, stored.version)


def balance(view: View, imbalance: float = 0.1) -> Iterator[Decision]:
    """Back to the preferred leaders, for each broker of whose partitions a larger part than ``imbalance`` is led by
    others (``leader.imbalance.per.broker.percentage``)."""
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
        if state.replicas[0] in tilted and state.leader != NO_LEADER and state.replicas[0] in view.brokers:
            changed = prefer(state, view.brokers)
            if changed is not state:
                yield Decision(topic_id, number, changed, stored.version)
