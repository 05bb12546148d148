"""What the controller decides after changes, compared with a decision about everything."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from random import Random
from uuid import UUID

from seglog.cluster.cluster_view import Changes
from seglog.cluster.controller_decisions import DecisionScope, PartitionDecision, decide
from seglog.cluster.model import (
    BrokerRegistration,
    Member,
    MetadataImage,
    TopicRules,
    TopicState,
    VersionedState,
    offline_name,
)
from tests.cases import case, is_long

Key = tuple[UUID, int]
NODES = range(1, 5)


class Cluster:
    """All metadata, changed at random. What belongs to a topic or a broker is found by looking at everything."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.brokers: dict[int, BrokerRegistration] = {}
        self.topics: dict[str, TopicState] = {}
        self.partitions: dict[Key, VersionedState] = {}
        self.min_insync = 1
        self.epochs = 0
        self.ids = 0
        self.scope = DecisionScope(self)

    def view(self) -> MetadataImage:
        by_id = {topic.topic_id: topic for topic in self.topics.values()}
        return MetadataImage(self.brokers, by_id, self.partitions, self.rules)

    def numbers_of(self, topic_id: UUID, /) -> Collection[int]:
        return [number for found, number in self.partitions if found == topic_id]

    def partitions_on(self, node_id: int, /) -> Collection[Key]:
        return [key for key, stored in self.partitions.items() if node_id in stored.state.replicas]

    def rules(self, topic: TopicState) -> TopicRules:
        """Some topics get replicas as brokers join."""
        return TopicRules(self.min_insync, topic.topic_id.int % 3 == 0, 3 if topic.topic_id.int % 2 else 0)

    # Changes

    def change(self) -> None:
        acts = (self.topic, self.topic, self.grow, self.configure, self.broker, self.broker, self.state, self.orphan)
        self.rng.choice(acts)()

    def topic(self) -> None:
        """Create, replace or delete a topic."""
        name = self.rng.choice("abcd")
        before = self.topics.pop(name, None)
        if self.rng.random() < 0.7:
            self.ids += 1
            assignment = tuple(self.replicas() for _ in range(self.rng.randrange(1, 4)))
            self.topics[name] = TopicState(name=name, topic_id=UUID(int=self.ids), assignment=assignment)
        self.tell_topic(name, before)

    def replicas(self) -> tuple[int, ...]:
        return tuple(self.rng.sample(NODES, self.rng.randrange(1, 4)))

    def tell_topic(self, name: str, before: TopicState | None) -> None:
        ids = frozenset(one.topic_id for one in (before, self.topics.get(name)) if one is not None)
        self.scope.note(Changes(topics=frozenset([name]), topic_ids=ids))

    def grow(self) -> None:
        for name in self.rng.sample(sorted(self.topics), min(len(self.topics), 1)):
            before = self.topics[name]
            self.topics[name] = replace(before, assignment=(*before.assignment, self.replicas()))
            self.tell_topic(name, before)

    def configure(self) -> None:
        self.min_insync = self.rng.randrange(1, 4)
        self.scope.add_all()

    def broker(self) -> None:
        """One joins, leaves, returns, stops, or loses a partition's disk."""
        node = self.rng.choice(NODES)
        there = self.brokers.get(node)
        if there is None or self.rng.random() < 0.3:
            self.epochs += 1
            kept = self.epochs if self.rng.random() < 0.5 else 0
            self.brokers[node] = BrokerRegistration(node_id=node, epoch=self.epochs, kept_since=kept)
        elif self.rng.random() < 0.4:
            del self.brokers[node]
        elif self.rng.random() < 0.5:
            self.brokers[node] = replace(there, is_stopping=not there.is_stopping)
        else:
            lost = [offline_name(*key) for key in self.partitions if self.rng.random() < 0.3]
            self.brokers[node] = replace(there, offline=tuple(lost))
        self.scope.note(Changes(brokers=frozenset([node])))

    def state(self) -> None:
        """A leader changes its ISR, or an operator moves a partition."""
        for key in self.rng.sample(sorted(self.partitions), min(len(self.partitions), 1)):
            state, version = self.partitions[key]
            if self.rng.random() < 0.5:
                there = [node for node in state.replicas if node in self.brokers]
                isr = tuple(Member(node, self.brokers[node].epoch) for node in there)
                state = replace(state, isr=isr, is_new=False, elr=(), last_known=(), left=())
            else:
                moved = self.replicas()
                state = replace(state, replicas=moved, isr=(), elr=(), last_known=(), left=(), adding=(), removing=())
            self.put(key, VersionedState(state, version + 1))

    def orphan(self) -> None:
        """A partition of a topic that is not there."""
        for stored in list(self.partitions.values())[:1]:
            self.ids += 1
            self.put((UUID(int=self.ids), 0), stored)

    def put(self, key: Key, stored: VersionedState | None) -> None:
        if stored is None:
            del self.partitions[key]
        else:
            self.partitions[key] = stored
        self.scope.note(Changes(partitions=frozenset([key])))

    # Decisions

    def decide(self) -> None:
        """Decide about the scope; of what is written, some is lost."""
        decided = list(decide(self.view(), self.scope.take()))
        assert sorted(map(_text, decided)) == sorted(map(_text, decide(self.view())))
        for one in decided:
            topic_id, number, state, version = one
            if self.rng.random() < 0.2:
                self.scope.add([(topic_id, number)])
            else:
                written = None if state is None else VersionedState(state, 0 if version is None else version + 1)
                key = (topic_id, number)
                if not one.is_final:
                    self.put(key, written)
                    continue
                if written is None:
                    del self.partitions[key]
                else:
                    self.partitions[key] = written
                self.scope.wrote({key})


def _text(decision: PartitionDecision) -> str:
    return repr(decision)


def test_changes_decide_as_the_whole_does() -> None:
    """Whatever has changed, in any order, the scope has every partition about which there is something to decide."""
    for seed in range(1_000 if is_long() else 60):
        case()
        cluster = Cluster(seed)
        for _ in range(60):
            for _ in range(cluster.rng.randrange(4)):
                cluster.change()
            cluster.decide()


def test_the_scope_of_a_change_does_not_grow_with_the_cluster() -> None:
    sizes: list[list[int]] = []
    for count in (20, 200):
        cluster = Cluster(1)
        for node in (1, 2):
            cluster.brokers[node] = BrokerRegistration(node_id=node, epoch=node, kept_since=0)
        for number in range(count):
            name = f"t{number}"
            cluster.topics[name] = TopicState(name=name, topic_id=UUID(int=2 * number + 2), assignment=((1,), (1, 2)))
        while decided := list(decide(cluster.view(), cluster.scope.take())):
            for topic_id, number, state, _ in decided:
                assert state is not None
                cluster.put((topic_id, number), VersionedState(state, 0))
        before = cluster.topics["t3"]
        cluster.topics["t3"] = replace(before, config={"retention.ms": "5"})
        cluster.tell_topic("t3", before)
        configured = len(cluster.scope.take())
        cluster.tell_topic("t3", cluster.topics.pop("t3"))
        deleted = len(cluster.scope.take())
        cluster.put((before.topic_id, 0), cluster.partitions[before.topic_id, 0])
        written = len(cluster.scope.take())
        cluster.scope.note(Changes(brokers=frozenset([3])))
        sizes.append([configured, deleted, written, len(cluster.scope.take())])
    assert sizes == [[2, 2, 1, 0]] * 2
