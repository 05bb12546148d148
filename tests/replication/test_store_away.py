"""The metadata store is away: what goes on and what stands still, in simulated worlds where nothing else goes wrong."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from tests.replication.clients import Clients
from tests.replication.node import Node
from tests.replication.run import settle
from tests.replication.scenario import Scenario
from tests.replication.simulator import World
from tests.replication.store import SESSION_MS

_AWAY_MS = 20 * SESSION_MS
_SESSIONS_MS = 5 * SESSION_MS
_DOUBT_MS = SESSION_MS
"""After so long everyone knows that the store is away."""
_RATES = (
    "loss", "twice", "slow", "store_lost", "store_slow", "disk_slow", "crash_every", "power_every", "pause_every",
    "cut_every", "expire_every", "stop_every", "disk_every", "clock_every", "away_every",
)  # fmt: skip


class Quiet:
    """A world without faults, with clients, led by ``leader`` with a full ISR."""

    def __init__(self, scenario: Scenario, seed: int = 1) -> None:
        self.world = World(seed, scenario)
        for rate in _RATES:
            setattr(self.world.faults, rate, 0)
        self.clients = Clients(self.world)
        self.run(5_000)

    @property
    def leader(self) -> Node:
        return self.world.nodes[self.world.history.states[0].leader]

    @property
    def followers(self) -> list[Node]:
        return [node for node in self.world.nodes.values() if node is not self.leader]

    def run(self, milliseconds: int) -> tuple[int, int]:
        """How many records were acknowledged meanwhile, and of how many nobody knows what became of them."""
        before = dict(self.clients.outcomes)
        self.world.run_until(self.world.now + milliseconds)
        after = self.clients.outcomes
        return after["ok"] - before["ok"], after["unknown"] - before["unknown"]

    def leave(self, nodes: Iterable[Node]) -> None:
        """The store leaves these, and for so long that all know it."""
        self.world.store.leave([node.node_id for node in nodes])
        self.run(_DOUBT_MS)

    def epochs(self) -> list[object]:
        return [node.me for node in self.world.nodes.values()]

    def end(self) -> None:
        """The store comes back: all is led and in sync, and nothing acknowledged is lost."""
        self.world.store.come_back()
        self.run(_DOUBT_MS)
        assert self.run(5_000)[0] > 50
        self.clients.is_on = False
        settle(self.world)
        self.world.history.at_the_end()


def test_writes_go_on_while_the_store_is_away_for_all() -> None:
    quiet = Quiet(Scenario(partitions=2))
    before, (normal, _) = quiet.epochs(), quiet.run(10_000)
    quiet.leave(quiet.world.nodes.values())
    assert all(node.in_doubt for node in quiet.world.nodes.values())
    acknowledged, _ = quiet.run(_AWAY_MS)
    assert acknowledged > 0.9 * normal * _AWAY_MS / 10_000
    assert sum(node.desk.asked_in_doubt for node in quiet.world.nodes.values()) > 20
    quiet.end()
    assert quiet.epochs() == before, "a store that is back expires nobody"
    assert {state.leader_epoch for state in quiet.world.history.states.values()} == {0}


def test_a_leader_that_alone_has_lost_the_store_is_followed_by_another() -> None:
    quiet = Quiet(Scenario())
    former = quiet.leader
    quiet.leave([former])
    quiet.run(2 * SESSION_MS)
    assert quiet.leader is not former
    assert former.partitions[0].progress is not None, "it believes that it leads"
    assert former.partitions[0].is_suspended, "nobody follows it: its clients are sent elsewhere"
    acknowledged, _ = quiet.run(10_000)
    assert acknowledged > 100
    quiet.end()


def test_a_follower_that_alone_has_lost_the_store_leaves_the_isr_and_stops_nobody() -> None:
    quiet = Quiet(Scenario())
    leader, follower = quiet.leader, quiet.followers[0]
    quiet.leave([follower])
    quiet.run(2 * SESSION_MS)
    assert follower.node_id not in quiet.world.history.states[0].isr_nodes
    acknowledged, _ = quiet.run(10_000)
    assert acknowledged > 100
    assert quiet.leader is leader
    quiet.end()


@pytest.mark.parametrize("replicas", [1, 2])
def test_an_isr_of_one_stops_unless_it_is_the_only_replica(replicas: int) -> None:
    quiet = Quiet(Scenario(replicas=replicas, min_insync=1))
    for node in quiet.followers:
        node.crash(power=False)
    quiet.run(2 * SESSION_MS)
    assert len(quiet.world.history.states[0].isr) == 1
    quiet.leave([quiet.leader])
    acknowledged, _ = quiet.run(10_000)
    assert (acknowledged > 100) == (replicas == 1)
    assert quiet.leader.partitions[0].is_suspended == (replicas > 1)
    for node in quiet.world.nodes.values():
        node.start()
    quiet.end()


def test_unclean_elections_fence_nobody_so_the_leader_stops() -> None:
    quiet = Quiet(Scenario(unclean=True))
    quiet.leave(quiet.world.nodes.values())
    assert quiet.run(_SESSIONS_MS)[0] == 0
    assert quiet.leader.partitions[0].is_suspended
    quiet.end()


def test_too_few_replicas_in_sync_stop_the_leader() -> None:
    quiet = Quiet(Scenario())
    for node in quiet.followers:
        node.crash(power=False)
    quiet.run(2 * SESSION_MS)
    quiet.leave([quiet.leader])
    assert quiet.run(_SESSIONS_MS) == (0, 0)
    for node in quiet.world.nodes.values():
        node.start()
    quiet.end()


@pytest.mark.parametrize("power", [False, True])
def test_without_a_member_of_the_isr_nothing_is_committed_until_the_store_is_back(power: bool) -> None:
    """It restarts, and waits for an epoch of its own: a fetch under the old one would count."""
    quiet = Quiet(Scenario())
    quiet.leave(quiet.world.nodes.values())
    leader, follower = quiet.leader, quiet.followers[0]
    before = leader.partitions[0].log.high_watermark
    follower.crash(power=power)
    follower.start()
    quiet.run(_SESSIONS_MS)
    assert follower.me is None
    assert leader.partitions[0].log.high_watermark < before + 10
    assert not leader.partitions[0].is_suspended, "the other member fetches: writes wait for their time"
    quiet.end()
