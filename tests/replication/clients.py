"""Who asks something of a simulated world: a producer and a consumer, and those who operate it."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from seglog.cluster.election import cancel_reassignment, prefer, reassign
from seglog.cluster.model import BrokerRegistration, PartitionState, partition_name
from tests.replication.simulator import TOPIC, topic_config
from tests.replication.store import RefusedError

if TYPE_CHECKING:
    from tests.replication.desk import Found
    from tests.replication.simulator import World

_WRITE_EVERY_MS = 50
_READ_EVERY_MS = 80
_ASK_EVERY_MS = 60
_EPOCH_MS = 1_700_000_000_000


class Clients:
    """A producer with acks=all that sends each value once, and a consumer; both guess who leads."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.is_on = True
        self.positions = dict.fromkeys(range(world.scenario.partitions), 0)
        self.outcomes: dict[str, int] = {"ok": 0, "unknown": 0, "failed": 0}
        world.at(100, self._write)
        world.at(100, self._read)
        self._rng = random.Random(world.seed + 4)
        world.at(100, self._ask)

    def _target(self, number: int) -> int:
        """Whoever a client thinks that it is: mostly who it is, sometimes anyone."""
        world = self.world
        state = world.history.states.get(number)
        if state is not None and state.leader >= 0 and world.rng.random() < 0.9:
            return state.leader
        return world.rng.choice(sorted(world.nodes))

    def _write(self) -> None:
        if not self.is_on:
            return
        world, rng = self.world, self.world.rng
        number = rng.randrange(world.scenario.partitions)
        count = rng.choice((1, 1, 1, 2, 3))
        values = [world.history.attempts + 1 + index for index in range(count)]
        world.history.attempts += count
        time = _EPOCH_MS + world.now + rng.choice((0, 0, 0, 0, -5_000, 5_000, 3_600_000))
        node = world.nodes[self._target(number)]

        def answered(outcome: str, epoch: int, offset: int) -> None:
            self.outcomes[outcome] += count
            if outcome == "ok":
                for index, value in enumerate(values):
                    world.history.acknowledge(number, epoch, offset + index, value)

        world.send(0, node.node_id, lambda: node.desk.produce(number, values, [time] * count, answered))
        world.at(rng.randrange(2 * _WRITE_EVERY_MS), self._write)

    def _read(self) -> None:
        if not self.is_on:
            return
        world = self.world
        number = world.rng.randrange(world.scenario.partitions)
        node = world.nodes[self._target(number)]
        start = self.positions[number] if world.rng.random() < 0.9 else 0

        def answered(found: Found) -> None:
            world.history.consumed(number, found)
            if found.records:
                self.positions[number] = max(self.positions[number], found.records[-1][0] + 1)
            else:
                self.positions[number] = max(self.positions[number], found.start)

        world.send(0, node.node_id, lambda: node.desk.consume(number, start, answered))
        world.at(world.rng.randrange(2 * _READ_EVERY_MS), self._read)

    def _ask(self) -> None:
        """Anyone, who may lead or believe that it does."""
        if not self.is_on:
            return
        world = self.world
        for node in world.nodes.values():
            if node.in_doubt:
                number = self._rng.randrange(world.scenario.partitions)
                world.send(0, node.node_id, partial(node.desk.newest, number))
                if self._rng.random() < 0.3:
                    world.history.attempts += 1
                    value, time = world.history.attempts, _EPOCH_MS + world.now
                    world.send(0, node.node_id, partial(node.desk.produce_one, number, value, time))
        world.at(self._rng.randrange(2 * _ASK_EVERY_MS), self._ask)


class Operators:
    """What is changed while the cluster runs: replicas move, preferred leaders come back, topics are configured,
    records are deleted. Each is done by a broker as it sees the cluster, by compare-and-set."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.is_on = True
        self.done: dict[str, int] = {}
        faults = world.faults
        self._begin(faults.reassign_every, self._reassign)
        self._begin(faults.prefer_every, self._prefer)
        self._begin(faults.configure_every, self._configure)
        self._begin(faults.delete_every, self._delete)

    def _begin(self, every: int, act: Callable[[], None]) -> None:
        if every:
            self.world.at(1_000 + self.world.rng.randrange(every), lambda: self._again(every, act))

    def _again(self, every: int, act: Callable[[], None]) -> None:
        if self.is_on:
            act()
            self.world.at(self.world.rng.randrange(1, 2 * every), lambda: self._again(every, act))

    def _change(
        self, what: str, number: int, change: Callable[[PartitionState, dict[int, BrokerRegistration]], PartitionState]
    ) -> None:
        """Of a state, as some broker sees it."""
        world = self.world
        node = world.nodes[world.rng.choice(sorted(world.nodes))]
        name = partition_name(world.topic.topic_id, number)
        if node.me is None or name not in node.values:
            return
        state, version = node.values[name]
        try:
            changed = change(state, node.brokers)
        except ValueError:
            return
        if changed == state:
            return

        def answered(found: object) -> None:
            if found is not None and not isinstance(found, RefusedError):
                self._count(what)

        world.note(what, node.node_id, number, changed)
        world.ask_store(node.node_id, lambda: world.store.cas(name, changed, version), answered)

    def _number(self) -> int:
        return self.world.rng.randrange(self.world.scenario.partitions)

    def _reassign(self) -> None:
        world = self.world
        if world.rng.random() < 0.25:
            self._change("cancel", self._number(), lambda state, _: cancel_reassignment(state))
        else:
            target = tuple(world.rng.sample(sorted(world.nodes), world.scenario.replicas))
            self._change("reassign", self._number(), lambda state, _: reassign(state, target))

    def _prefer(self) -> None:
        if self.world.rng.random() < 0.5:
            self._change("prefer", self._number(), prefer)
        else:
            for node in self.world.nodes.values():
                node.when_running(node.office.balance)

    def _configure(self) -> None:
        world = self.world
        least = world.rng.randrange(1, world.scenario.replicas + 1)
        if world.faults.is_away_for_all:
            return
        if least >= world.min_insync or not any(map(world.is_losing, world.nodes.values())):
            topic, version = world.store.values[f"topics/{TOPIC}"]
            config = topic_config(least, unclean=world.scenario.unclean)
            world.note("configure", config)
            world.store.cas(f"topics/{TOPIC}", replace(topic, config=config), version)
            self._count("configure")

    def _count(self, what: str) -> None:
        self.done[what] = self.done.get(what, 0) + 1

    def _delete(self) -> None:
        world = self.world
        number = self._number()
        state = world.history.states.get(number)
        if state is None or state.leader < 0:
            return
        node, before = world.nodes[state.leader], world.rules.committed[number] - world.rng.randrange(-3, 40)
        if before > 0:
            self._count("delete records")
            world.send(0, node.node_id, lambda: node.desk.delete_records(number, before))
