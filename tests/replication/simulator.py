"""Several brokers in one thread, under one seed: the real logs on disks in memory, the real decisions of controller,
leader and follower, and links, clocks, disks and a metadata store that do what they like.

Time is a heap of events. Nothing waits; whatever comes late, twice or never comes so because the seed says so. Run with
the same seed it does the same, to the last message (`World.trace`).
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

from seglog.cluster.model import (
    BrokerRegistration,
    MetadataImage,
    PartitionState,
    TopicRules,
    TopicState,
    VersionedState,
)
from tests.replication.faults import Faults
from tests.replication.history import History
from tests.replication.rules import Rules
from tests.replication.scenario import Scenario
from tests.replication.store import RefusedError, Store

if TYPE_CHECKING:
    from tests.replication.node import Node

TOPIC: Final = "t"
LAG_MS: Final = 2_000


class World:
    """The heap of events, and everything that is in it. ``touched`` are the nodes that this event has changed."""

    def __init__(self, seed: int, scenario: Scenario) -> None:
        from tests.replication.node import Node

        self.seed = seed
        self.scenario = scenario
        self.now = 0
        self.rng = random.Random(seed)
        self.faults = Faults(seed + 1, scenario)
        self.history = History(self)
        self.rules = Rules(self)
        self.trace = 0
        self.events = 0
        self.strays = 0
        """How many replicas were set aside."""
        self.touched: set[int] = set()
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._pushed = 0
        self.store = Store(self)
        self.topic = TopicState(
            name=TOPIC,
            topic_id=self.history.topic_id,
            assignment=scenario.assignment,
            config=topic_config(scenario.min_insync, unclean=scenario.unclean),
        )
        self.store.create(f"topics/{TOPIC}", self.topic)
        self.nodes = {number: Node(self, number) for number in range(1, scenario.nodes + 1)}

    def at(self, delay: int, act: Callable[[], None]) -> None:
        self._pushed += 1
        heapq.heappush(self._heap, (self.now + max(delay, 0), self._pushed, act))

    def note(self, *what: object) -> None:
        """A line of the trace: two runs of one seed have the same."""
        self.trace = crc32(repr((self.now, what)).encode(), self.trace)

    def run_until(self, time: int) -> None:
        while self._heap and self._heap[0][0] <= time:
            self.now, _, act = heapq.heappop(self._heap)
            self.events += 1
            act()
            self.rules.check()
        self.now = max(self.now, time)

    @property
    def min_insync(self) -> int:
        """As the topic is configured."""
        topic, _ = self.store.values[f"topics/{TOPIC}"]
        return topic_rules(topic).min_insync

    def is_losing(self, node: Node) -> bool:
        """Whether it has lost something, and not everyone knows yet."""
        kept = -1 if node.kept_since is None else node.kept_since
        states = self.history.states.values()
        members = [member for state in states for member in (*state.isr, *state.elr) if member.node_id == node.node_id]
        return node.disk.has_lost or any(member.epoch < kept for member in members)

    # Messages

    def send(self, source: int, target: int, what: Callable[[], None]) -> None:
        """``what`` happens at the target later, perhaps twice, perhaps never. A client is node 0."""
        for delay in self.faults.deliveries(source, target):
            self.at(delay, lambda: self._deliver(target, what))

    def _deliver(self, target: int, what: Callable[[], None]) -> None:
        if target == 0:
            what()
            return
        node = self.nodes[target]
        node.when_running(what)

    def ask_store(self, node_id: int, work: Callable[[], Any], then: Callable[[Any], None]) -> None:
        """One call of the store: applied or not, answered or not. ``then`` gets the answer, a `RefusedError`, or None
        if nobody knows what came of it."""
        fate = self.faults.store_call(node_id)
        node = self.nodes[node_id]
        life, put_back_count = node.life, self.store.put_back_count

        def answer(found: Any) -> None:
            if node.life == life:
                node.when_running(lambda: then(found))

        def apply() -> None:
            if not fate.is_applied or put_back_count != self.store.put_back_count:
                self.at(fate.delay, lambda: answer(None))
                return
            try:
                found = work()
            except RefusedError as error:
                found = error
            self.at(fate.delay, lambda: answer(found if fate.is_answered else None))

        self.at(fate.delay, apply)


def topic_config(min_insync: int, *, unclean: bool) -> dict[str, str]:
    return {"min.insync.replicas": str(min_insync), "unclean.leader.election.enable": str(unclean).lower()}


def topic_rules(topic: TopicState) -> TopicRules:
    config = topic.config
    return TopicRules(int(config["min.insync.replicas"]), config["unclean.leader.election.enable"] == "true")


def view_of(values: dict[str, tuple[Any, int]]) -> MetadataImage:
    """What a node sees of the store."""
    brokers: dict[int, BrokerRegistration] = {}
    topics: dict[str, TopicState] = {}
    partitions = {}
    for name, (value, version) in values.items():
        if isinstance(value, PartitionState):
            partitions[int(name.rsplit("/", 1)[1])] = VersionedState(value, version)
        elif isinstance(value, BrokerRegistration):
            brokers[value.node_id] = value
        elif isinstance(value, TopicState):
            topics[value.name] = value
    topic_id = next((topic.topic_id for topic in topics.values()), None)
    keys = {(topic_id, number): stored for number, stored in partitions.items()} if topic_id is not None else {}
    return MetadataImage(brokers, topics, keys, topic_rules)
