"""Runs of simulated worlds: clients that write and read, faults that come and go, and a quiet end."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from seglog.cluster.model import PartitionState
from tests.replication.simulator import World

_WRITE_EVERY_MS = 40
_READ_EVERY_MS = 60


class Clients:
    """A producer with acks=all that sends each value once, and a consumer; both guess who leads."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.is_on = True
        self.positions = dict.fromkeys(range(world.partitions), 0)
        self.outcomes: dict[str, int] = {"ok": 0, "unknown": 0, "failed": 0}
        world.at(100, self._write)
        world.at(100, self._read)

    def _target(self) -> int:
        """Whoever a client thinks that it is: mostly who it is, sometimes anyone."""
        world = self.world
        states = [value for value, _ in world.store.values.values() if isinstance(value, PartitionState)]
        leaders = [state.leader for state in states if state.leader >= 0]
        if leaders and world.rng.random() < 0.8:
            return world.rng.choice(leaders)
        return world.rng.choice(sorted(world.nodes))

    def _write(self) -> None:
        world = self.world
        if self.is_on:
            number = world.rng.randrange(world.partitions)
            target = self._target()
            world.history.attempts += 1
            value = world.history.attempts

            def answered(outcome: str, offset: int) -> None:
                self.outcomes[outcome] += 1
                if outcome == "ok":
                    world.history.acknowledge(number, offset, value)

            def act() -> None:
                if number in world.nodes[target].partitions:
                    world.nodes[target].desk.produce(number, value, answered)

            world.send(0, target, act)
            world.at(world.rng.randrange(2 * _WRITE_EVERY_MS), self._write)

    def _read(self) -> None:
        world = self.world
        number = world.rng.randrange(world.partitions)
        target = self._target()
        start = self.positions[number] if world.rng.random() < 0.9 else 0

        def answered(records: list[tuple[int, int]], high_watermark: int) -> None:
            del high_watermark
            world.history.consumed(number, records)
            if records:
                self.positions[number] = max(self.positions[number], records[-1][0] + 1)

        def act() -> None:
            if number in world.nodes[target].partitions:
                world.nodes[target].desk.consume(number, start, answered)

        world.send(0, target, act)
        if self.is_on:
            world.at(world.rng.randrange(2 * _READ_EVERY_MS), self._read)


class Nemesis:
    """Kills, pauses, cuts off. Data is lost on one node at a time: more is not promised to survive."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.is_on = True
        faults = world.faults
        self._begin(faults.crash_every, self._kill)
        self._begin(faults.power_every, self._cut_power)
        self._begin(faults.pause_every, self._pause)
        self._begin(faults.cut_every, self._cut)
        self._begin(faults.expire_every, self._expire)

    def _begin(self, every: int, act: Callable[[], None]) -> None:
        if every:
            self.world.at(self.world.rng.randrange(every), lambda: self._strike(every, act))

    def _strike(self, every: int, act: Callable[[], None]) -> None:
        if self.is_on:
            act()
            self.world.at(self.world.rng.randrange(1, 2 * every), lambda: self._strike(every, act))

    def _anyone(self) -> int:
        return self.world.rng.choice(sorted(self.world.nodes))

    def _kill(self) -> None:
        node = self.world.nodes[self._anyone()]
        node.crash(power=False)
        self.world.at(self.world.rng.choice((10, 500, 5_000)), node.start)

    def _cut_power(self) -> None:
        """Only where all others have kept everything: with min.insync.replicas=2 one may lose what it had."""
        node = self.world.nodes[self._anyone()]
        states = [value for value, _ in self.world.store.values.values() if isinstance(value, PartitionState)]
        others = {number for number in self.world.nodes if number != node.node_id}
        if node.is_up and all(self._is_safe(state, others) for state in states):
            node.crash(power=True)
            self.world.at(self.world.rng.choice((10, 500, 5_000)), node.start)

    def _is_safe(self, state: PartitionState, others: set[int]) -> bool:
        brokers = {number: self.world.nodes[number] for number in others}
        full = [
            member
            for member in (*state.isr, *state.elr)
            if member.node_id in others
            and brokers[member.node_id].kept_since is not None
            and (brokers[member.node_id].kept_since or 0) <= member.epoch
            and not brokers[member.node_id]._lost_power
        ]
        return len(full) >= 1 and len(state.isr) + len(state.elr) >= 2

    def _pause(self) -> None:
        node = self.world.nodes[self._anyone()]
        if node.is_up and not node.is_paused:
            node.is_paused = True
            self.world.note("pause", node.node_id)
            self.world.at(self.world.rng.choice((300, 2_000, 6_000)), node.resume)

    def _cut(self) -> None:
        link = self.world.faults.cut()
        self.world.note("cut", link)
        self.world.at(self.world.rng.choice((500, 4_000)), lambda: self.world.faults.cuts.discard(link))

    def _expire(self) -> None:
        leases = sorted(self.world.store.leases)
        if leases:
            self.world.store.end_session(self.world.rng.choice(leases))


class Run(NamedTuple):
    """What came of it."""

    world: World
    clients: Clients

    @property
    def trace(self) -> int:
        return self.world.trace

    @property
    def events(self) -> int:
        return self.world.events


def run(seed: int, *, nodes: int = 3, partitions: int = 1, seconds: int = 30) -> Run:
    """A world with faults for so long, then without, until everyone agrees. AssertionError names the property."""
    world = World(seed, nodes=nodes, partitions=partitions)
    clients, nemesis = Clients(world), Nemesis(world)
    world.run_until(seconds * 1000)
    nemesis.is_on = clients.is_on = False
    world.faults.heal()
    for node in world.nodes.values():
        if node.is_paused:
            node.resume()
        node.start()
    _settle(world)
    world.history.at_the_end()
    return Run(world, clients)


def _settle(world: World) -> None:
    """P15: in half a minute all replicas are in sync and committed."""
    states: list[PartitionState] = []
    for _ in range(30):
        world.run_until(world.now + 1_000)
        states = [value for value, _ in world.store.values.values() if isinstance(value, PartitionState)]
        is_whole = all(len(state.isr) == len(world.nodes) and state.leader >= 0 for state in states)
        if len(states) == world.partitions and is_whole and all(map(_is_settled, _ends(world))):
            return
    raise AssertionError(f"P15: not in sync: {states}, {_ends(world)}")


def _ends(world: World) -> list[set[tuple[int, int]]]:
    """Of each partition the log ends and high watermarks."""
    return [
        {(log.log_end_offset, log.high_watermark) for log in (node.partitions[number].log for node in nodes)}
        for number in range(world.partitions)
        for nodes in ([node for node in world.nodes.values() if number in node.partitions],)
    ]


def _is_settled(ends: set[tuple[int, int]]) -> bool:
    return len(ends) == 1 and all(end == high_watermark for end, high_watermark in ends)
