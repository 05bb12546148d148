"""The metadata store is away: which operations continue and which stop, in clusters without other faults."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import pytest

from seglog.replication.replica import Replica
from tests.simulation.cluster.clients import Client, Clients, Doubter, Operators
from tests.simulation.cluster.cluster import Cluster
from tests.simulation.cluster.host import SESSION_MS, Host
from tests.simulation.cluster.run import settle, unforeseen_errors
from tests.simulation.cluster.scenario import Scenario

_SESSION: float = SESSION_MS / 1000
_AWAY: float = 20 * _SESSION
_SESSIONS: float = 5 * _SESSION


class Quiet:
    """A cluster without faults, with clients, led by ``leader`` with a full ISR."""

    def __init__(self, scenario: Scenario, seed: int = 1) -> None:
        self.cluster = Cluster(seed, scenario)
        self.clients = Clients(self.cluster)
        self.doubter = Doubter(self.cluster)
        self.asking: tuple[Client, ...] = (self.clients, self.doubter, Operators(self.cluster))
        assert self.cluster.world.run(self.cluster.has_begun, 5.0)
        self.run(5.0)

    @property
    def leader(self) -> Host:
        return self.cluster.hosts[self.cluster.history.states[0].leader]

    @property
    def replica(self) -> Replica:
        return self.leader.replicas[0]

    @property
    def followers(self) -> list[Host]:
        return [host for host in self.cluster.hosts.values() if host is not self.leader]

    def run(self, seconds: float) -> tuple[int, int]:
        """How many records were acknowledged in this time, and how many have an unknown outcome."""
        before = dict(self.clients.outcomes)
        self.cluster.world.run(lambda: False, seconds)
        after = self.clients.outcomes
        return after["ok"] - before.get("ok", 0), after["unknown"] - before.get("unknown", 0)

    def leave(self, hosts: Iterable[Host]) -> None:
        """The store leaves these, and for so long that all know it."""
        names = [host.host for host in hosts]
        self.cluster.server.go_away(names, for_all=len(names) == len(self.cluster.hosts))
        self.run(_SESSION)

    def epochs(self) -> list[object]:
        return [host.me for host in self.cluster.hosts.values()]

    def end(self) -> None:
        """The store comes back: all is led and in sync, and nothing acknowledged is lost."""
        self.cluster.server.come_back()
        for host in self.cluster.hosts.values():
            host.begin()
        self.run(2 * _SESSION)
        assert self.run(5.0)[0] > 50
        for client in self.asking:
            client.is_on = False
        settle(self.cluster)
        self.cluster.history.at_the_end()


@contextmanager
def quiet(scenario: Scenario) -> Iterator[Quiet]:
    made = Quiet(scenario)
    try:
        with unforeseen_errors(made.cluster.world):
            yield made
    finally:
        for client in made.asking:
            client.loop.kill()
        made.cluster.end()


def test_writes_go_on_while_the_store_is_away_for_all() -> None:
    with quiet(Scenario(partitions=2, groups=True)) as world:
        before, (normal, _) = world.epochs(), world.run(10.0)
        world.leave(world.cluster.hosts.values())
        assert all(host.is_in_doubt for host in world.cluster.hosts.values())
        acknowledged, _ = world.run(_AWAY)
        assert acknowledged > 0.9 * normal * _AWAY / 10
        assert world.doubter.asked_in_doubt > 20
        world.end()
        assert world.epochs() == before, "a store that is back expires nobody"
        assert {state.leader_epoch for state in world.cluster.history.states.values()} == {0}


def test_a_coordinator_that_was_paused_doubts_its_session_before_it_answers() -> None:
    """Another one has committed meanwhile. When the paused one runs again, requests have waited longer than timers, and
    are handled first (P17)."""
    with quiet(Scenario(groups=True)) as world:
        state = world.cluster.offsets_state
        assert state is not None
        former, doubter = world.cluster.hosts[state.leader], world.doubter
        doubter.is_on = False
        before = doubter.committed
        former.pause(3 * _SESSION)
        world.run(2 * _SESSION)
        doubter.loop.create_task(doubter.commit())
        world.run(_SESSION / 2)
        assert doubter.committed > before, "by another coordinator"
        doubter.loop.create_task(doubter.fetch(former))
        world.run(_SESSION / 4)
        assert former.is_paused
        world.run(_SESSION)
        world.end()


def test_a_leader_that_alone_has_lost_the_store_is_followed_by_another() -> None:
    with quiet(Scenario()) as world:
        former = world.leader
        world.leave([former])
        world.run(2 * _SESSION)
        assert world.leader is not former
        assert former.replicas[0].progress is not None, "it believes that it leads"
        assert former.replicas[0].is_suspended, "nobody follows it: its clients are sent elsewhere"
        acknowledged, _ = world.run(10.0)
        assert acknowledged > 100
        world.end()


def test_follower_that_alone_lost_the_store_leaves_the_isr_without_stopping_writes() -> None:
    with quiet(Scenario()) as world:
        leader, follower = world.leader, world.followers[0]
        world.leave([follower])
        world.run(2 * _SESSION)
        assert follower.node_id not in world.cluster.history.states[0].isr_nodes
        acknowledged, _ = world.run(10.0)
        assert acknowledged > 100
        assert world.leader is leader
        world.end()


@pytest.mark.parametrize("replicas", [1, 2])
def test_an_isr_of_one_stops_unless_it_is_the_only_replica(replicas: int) -> None:
    with quiet(Scenario(replicas=replicas, min_insync=1)) as world:
        for host in world.followers:
            host.crash(power=False)
        world.run(2 * _SESSION)
        assert len(world.cluster.history.states[0].isr) == 1
        world.leave([world.leader])
        acknowledged, _ = world.run(10.0)
        assert (acknowledged > 100) == (replicas == 1)
        assert world.replica.is_suspended == (replicas > 1)
        world.end()


def test_leader_stops_if_unclean_elections_are_allowed() -> None:
    with quiet(Scenario(unclean=True)) as world:
        world.leave(world.cluster.hosts.values())
        assert world.run(_SESSIONS)[0] == 0
        assert world.replica.is_suspended
        world.end()


def test_too_few_replicas_in_sync_stop_the_leader() -> None:
    with quiet(Scenario()) as world:
        for host in world.followers:
            host.crash(power=False)
        world.run(2 * _SESSION)
        world.leave([world.leader])
        assert world.run(_SESSIONS)[0] == 0
        world.end()


@pytest.mark.parametrize("power", [False, True])
def test_without_a_member_of_the_isr_nothing_is_committed_until_the_store_is_back(power: bool) -> None:
    """It restarts, and waits for its new epoch: a fetch under the old one would count."""
    with quiet(Scenario()) as world:
        world.leave(world.cluster.hosts.values())
        follower = world.followers[0]
        before = world.replica.log.high_watermark
        follower.crash(power=power)
        follower.begin()
        world.run(_SESSIONS)
        assert follower.me is None
        assert world.replica.log.high_watermark < before + 10
        assert not world.replica.is_suspended, "the other member fetches: writes wait for their time"
        world.end()
