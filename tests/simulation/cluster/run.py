"""Runs of simulated clusters: clients that write and read, faults that come and go, and a quiet end."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import NamedTuple

from seglog.cluster.formats import Formats
from tests.kit.virtual_loop import World
from tests.simulation.cluster.clients import Clients, Doubter, Operators
from tests.simulation.cluster.cluster import Cluster, UnforeseenErrors
from tests.simulation.cluster.guests import Administrator, invite
from tests.simulation.cluster.nemesis import Nemesis
from tests.simulation.cluster.scenario import Scenario, draw

SECONDS = 15
_SETTLING_SECONDS = 40
_BEGINNING_SECONDS = 5
_QUIET_BEGINNINGS = 0.8
"""The share of runs in which there is a topic before the first fault."""


class Run(NamedTuple):
    """The result of a run."""

    cluster: Cluster
    clients: Clients
    doubter: Doubter
    operators: Operators
    nemesis: Nemesis

    @property
    def trace(self) -> str:
        return self.cluster.world.trace

    @property
    def events(self) -> int:
        return self.cluster.world.steps


def run(
    seed: int,
    *,
    unclean: bool = False,
    operators: bool = False,
    scenario: Scenario | None = None,
    rates: Mapping[str, float] = MappingProxyType({}),
    seconds: int = SECONDS,
) -> Run:
    """A cluster with faults for so long, then without, until everyone agrees. ``rates`` of `Faults` are instead of what
    the seed says. AssertionError names the property."""
    cluster = Cluster(seed, scenario or draw(seed, unclean=unclean, operators=operators))
    for name, rate in rates.items():
        setattr(cluster.faults, name, rate)
    asking = Clients(cluster), Doubter(cluster), Operators(cluster)
    guests = invite(cluster)
    nemesis = Nemesis(cluster)
    try:
        with unforeseen_errors(cluster.world):
            if cluster.world.rng.random() < _QUIET_BEGINNINGS:
                cluster.world.run(cluster.has_begun, _BEGINNING_SECONDS)
            cluster.faults.is_on = True
            nemesis.begin()
            run_until(cluster.world, cluster.world.now + seconds)
            nemesis.is_on = False
            for client in (*asking, *guests):
                client.is_on = False
            heal(cluster)
            settle(cluster, nemesis)
            for guest in guests:
                if isinstance(guest, Administrator):
                    agree(cluster, guest)
            cluster.history.at_the_end()
    except BaseException as error:
        error.add_note("\n".join(cluster.world.last))
        raise
    finally:
        for client in (*asking, *guests):
            client.loop.kill()
        nemesis.end()
        cluster.end()
    return Run(cluster, *asking, nemesis)


@contextmanager
def unforeseen_errors(world: World) -> Iterator[None]:
    """Those that a broker has only logged."""
    handler, logger = UnforeseenErrors(world), logging.getLogger("seglog")
    level, logger.propagate = logger.level, False
    logger.addHandler(handler)
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = True


def run_until(world: World, seconds: float) -> None:
    world.run(lambda: False, seconds - world.now)


def heal(cluster: Cluster) -> None:
    """From now on all is well."""
    cluster.world.note("healed")
    cluster.faults.heal()
    cluster.server.come_back()
    for link in cluster.network.links():
        link.heal()
    _install_current_release(cluster)
    for host in cluster.hosts.values():
        host.resume()
        host.enlarge()
        if host.failed:
            host.crash(power=False)
        host.begin()


def _install_current_release(cluster: Cluster) -> None:
    """Every broker speaks the cluster's format."""
    for host in cluster.hosts.values():
        if not host.formats.low <= cluster.format <= host.formats.high:
            host.formats = Formats(1, cluster.format)


def settle(cluster: Cluster, nemesis: Nemesis | None = None) -> None:
    """P15: in a while all replicas are in sync and committed, and no reassignment is under way. Where operators have
    taken what was needed, they choose who leads; and where more was lost than is promised, also between a leader and a
    replica that refuses to cut."""
    for second in range(_SETTLING_SECONDS):
        if nemesis is not None and cluster.scenario.may_lose and second % 5 == 4:
            nemesis.choose_leaders(also_leaderless=cluster.scenario.operators)
        run_until(cluster.world, cluster.world.now + 1.0)
        _install_current_release(cluster)  # an operator may have raised the format just then
        if all(_is_settled(cluster, number) for number in range(cluster.scenario.partitions)):
            return
    ends = {number: _ends(cluster, number) for number in range(cluster.scenario.partitions)}
    raise AssertionError(f"P15: not in sync: {cluster.history.states}, {ends}")


def agree(cluster: Cluster, administrator: Administrator) -> None:
    """P27: in a while all brokers go by the last ACLs."""
    task = administrator.loop.create_task(administrator.agree())
    assert cluster.world.run(task.done, _SETTLING_SECONDS), "P27: not all brokers go by the last ACLs"


def _is_settled(cluster: Cluster, number: int) -> bool:
    state = cluster.history.states.get(number)
    if state is None or state.leader < 0 or len(state.isr) < len(state.replicas) or state.adding or state.removing:
        return False
    if any(cluster.hosts[member.node_id].me != member for member in state.isr):
        return False  # the controller has not seen their new lives yet
    ends = _ends(cluster, number)
    return set(ends) == set(state.replicas) and len(set(ends.values())) == 1 and all(a == b for a, b in ends.values())


def _ends(cluster: Cluster, number: int) -> dict[int, tuple[int, int]]:
    """Log ends and high watermarks, by broker."""
    found = {}
    for host in cluster.hosts.values():
        replica = host.replicas.get(number)
        if replica is not None:
            found[host.node_id] = (replica.log.log_end_offset, replica.log.high_watermark)
    return found
