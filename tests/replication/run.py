"""Runs of simulated worlds: clients that write and read, faults that come and go, and a quiet end."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from seglog.cluster.formats import Formats
from tests.replication.clients import Clients, Operators
from tests.replication.nemesis import Nemesis
from tests.replication.scenario import Scenario, draw
from tests.replication.simulator import World

SECONDS = 15
_SETTLING_SECONDS = 40


class Run(NamedTuple):
    """What came of it."""

    world: World
    clients: Clients
    operators: Operators
    nemesis: Nemesis

    @property
    def trace(self) -> int:
        return self.world.trace

    @property
    def events(self) -> int:
        return self.world.events


def run(
    seed: int,
    *,
    unclean: bool = False,
    operators: bool = False,
    scenario: Scenario | None = None,
    rates: Mapping[str, float] = MappingProxyType({}),
    seconds: int = SECONDS,
) -> Run:
    """A world with faults for so long, then without, until everyone agrees. ``rates`` of `Faults` are instead of what
    the seed says. AssertionError names the property."""
    world = World(seed, scenario or draw(seed, unclean=unclean, operators=operators))
    for name, rate in rates.items():
        setattr(world.faults, name, rate)
    clients, requests, nemesis = Clients(world), Operators(world), Nemesis(world)
    world.run_until(seconds * 1000)
    nemesis.is_on = clients.is_on = requests.is_on = False
    world.faults.heal()
    world.store.come_back()
    for node in world.nodes.values():
        node.resume()
        if not node.speaks.low <= world.store.format <= node.speaks.high:
            node.speaks = Formats(1, world.store.format)
        node.disk.enlarge()
        if node.disk.failed and node.is_up:
            node.crash(power=False)
        node.start()
    settle(world, nemesis)
    world.history.at_the_end()
    return Run(world, clients, requests, nemesis)


def settle(world: World, nemesis: Nemesis | None = None) -> None:
    """P15: in a while all replicas are in sync and committed, and no reassignment is under way. Where operators have
    taken what was needed, they choose who leads; and where more was lost than is promised, also between a leader and a
    replica that refuses to cut."""
    for second in range(_SETTLING_SECONDS):
        if nemesis is not None and world.scenario.may_lose and second % 5 == 4:
            nemesis.choose_leaders(also_leaderless=world.scenario.operators)
        world.run_until(world.now + 1_000)
        if all(_is_settled(world, number) for number in range(world.scenario.partitions)):
            return
    ends = {number: _ends(world, number) for number in range(world.scenario.partitions)}
    raise AssertionError(f"P15: not in sync: {world.history.states}, {ends}")


def _is_settled(world: World, number: int) -> bool:
    state = world.history.states.get(number)
    if state is None or state.leader < 0 or len(state.isr) < len(state.replicas) or state.adding or state.removing:
        return False
    if any(world.nodes[member.node_id].me != member for member in state.isr):
        return False  # the controller has not seen their new lives yet
    ends = _ends(world, number)
    return set(ends) == set(state.replicas) and len(set(ends.values())) == 1 and all(a == b for a, b in ends.values())


def _ends(world: World, number: int) -> dict[int, tuple[int, int]]:
    """Log ends and high watermarks, by broker."""
    found = {}
    for node in world.nodes.values():
        if number in node.partitions:
            log = node.partitions[number].log
            found[node.node_id] = (log.log_end_offset, log.high_watermark)
    return found
