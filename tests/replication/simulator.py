"""Several brokers in one thread, under one seed: the real logs on disks in memory, the real decisions of controller,
leader and follower, and links, clocks and a metadata store that do what they like.

Time is a heap of events. Nothing waits; whatever comes late, twice or never comes so because the seed says so. Run with
the same seed it does the same, to the last message (`World.trace`).
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final
from zlib import crc32

from seglog.cluster.controller import decide
from seglog.cluster.model import Broker, Member, PartitionState, Stored, TopicRules, TopicState, View
from tests.replication.faults import Faults
from tests.replication.history import History

TOPIC: Final = "t"
SESSION_MS: Final = 3_000
LAG_MS: Final = 2_000


class RefusedError(Exception):
    """The store's answer to a change of a version that is not there any more."""


@dataclass(slots=True)
class Lease:
    """A session in the store."""

    node_id: int
    expires_ms: int
    names: set[str] = field(default_factory=set)


class Store:
    """The metadata store: versioned values, sessions, and a log of changes that is told to everyone in order."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.values: dict[str, tuple[Any, int]] = {}
        self.leases: dict[int, Lease] = {}
        self.readers: dict[int, Callable[[str, Any, int], None]] = {}
        self._told_at: dict[int, int] = {}
        self._counter = 0

    def next_number(self) -> int:
        self._counter += 1
        return self._counter

    def open_session(self, node_id: int) -> int:
        number = self.next_number()
        self.leases[number] = Lease(node_id, self.world.now + SESSION_MS)
        self.world.at(SESSION_MS + 1, lambda: self._expire(number))
        return number

    def renew(self, number: int) -> bool:
        lease = self.leases.get(number)
        if lease is None:
            return False
        lease.expires_ms = self.world.now + SESSION_MS
        return True

    def _expire(self, number: int) -> None:
        lease = self.leases.get(number)
        if lease is None:
            return
        left = lease.expires_ms - self.world.now
        if left >= 0:
            self.world.at(left + 1, lambda: self._expire(number))
        else:
            self.end_session(number)

    def end_session(self, number: int) -> None:
        lease = self.leases.pop(number, None)
        for name in sorted(lease.names) if lease is not None else ():
            self._set(name, None)

    def create(self, name: str, value: Any, session: int | None = None) -> int:
        if name in self.values:
            raise RefusedError(name)
        if session is not None:
            lease = self.leases.get(session)
            if lease is None:
                raise RefusedError("session")
            lease.names.add(name)
        return self._set(name, value)

    def cas(self, name: str, value: Any, version: int) -> int:
        found = self.values.get(name)
        if found is None or (version >= 0 and found[1] != version):
            raise RefusedError(name)
        return self._set(name, value)

    def remove(self, name: str) -> None:
        if name in self.values:
            for lease in self.leases.values():
                lease.names.discard(name)
            self._set(name, None)

    def _set(self, name: str, value: Any) -> int:
        version = self.values[name][1] + 1 if name in self.values else 0
        if isinstance(value, PartitionState):
            value.check()
            self.world.history.written(name, value)
        if value is None:
            version = self.values.pop(name)[1] + 1
        else:
            self.values[name] = (value, version)
        for node_id in sorted(self.readers):
            self._tell(node_id, name, value, version)
        return version

    def _tell(self, node_id: int, name: str, value: Any, version: int) -> None:
        """In order, after a while."""
        world = self.world
        when = max(self._told_at.get(node_id, 0), world.now + world.faults.store_delay())
        self._told_at[node_id] = when
        reader = self.readers[node_id]

        def tell() -> None:
            if self.readers.get(node_id) is reader:
                reader(name, value, version)

        world.at(when - world.now, tell)

    def subscribe(self, node_id: int, reader: Callable[[str, Any, int], None]) -> dict[str, tuple[Any, int]]:
        """All values as they are now; what comes later is told to ``reader``."""
        self.readers[node_id] = reader
        self._told_at[node_id] = self.world.now
        return dict(self.values)


class World:
    """The heap of events, and everything that is in it."""

    def __init__(self, seed: int, *, nodes: int = 3, partitions: int = 1, min_insync: int = 2) -> None:
        from tests.replication.node import Node

        self.seed = seed
        self.now = 0
        self.rng = random.Random(seed)
        self.faults = Faults(random.Random(seed + 1), nodes)
        self.history = History(self)
        self.trace = 0
        self.events = 0
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._pushed = 0
        self.store = Store(self)
        self.min_insync = min_insync
        self.partitions = partitions
        self.topic = TopicState(
            name=TOPIC,
            topic_id=self.history.topic_id,
            assignment=tuple(tuple((first + step) % nodes + 1 for step in range(nodes)) for first in range(partitions)),
        )
        self.store.create(f"topics/{TOPIC}", self.topic)
        self.nodes = {number: Node(self, number) for number in range(1, nodes + 1)}

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
            self.history.check()
        self.now = max(self.now, time)

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
        life = node.life

        def answer(found: Any) -> None:
            if node.life == life:
                node.when_running(lambda: then(found))

        def apply() -> None:
            if not fate.is_applied:
                self.at(fate.delay, lambda: answer(None))
                return
            try:
                found = work()
            except RefusedError as error:
                found = error
            self.at(fate.delay, lambda: answer(found if fate.is_answered else None))

        self.at(fate.delay, apply)


def view_of(values: dict[str, tuple[Any, int]], min_insync: int, *, unclean: bool = False) -> View:
    """What a node sees of the store."""
    brokers: dict[int, Broker] = {}
    topics: dict[str, TopicState] = {}
    partitions = {}
    for name, (value, version) in values.items():
        if isinstance(value, Broker):
            brokers[value.node_id] = value
        elif isinstance(value, TopicState):
            topics[value.name] = value
        elif isinstance(value, PartitionState):
            _, topic_id, number = name.split("/")
            key = (next(one.topic_id for one in topics.values()), int(number)) if topics else None
            if key is not None and str(key[0]) == topic_id:
                partitions[key] = Stored(value, version)
    return View(brokers, topics, partitions, lambda _: TopicRules(min_insync, unclean))


__all__ = ["LAG_MS", "SESSION_MS", "TOPIC", "Member", "RefusedError", "Store", "World", "decide", "replace", "view_of"]
