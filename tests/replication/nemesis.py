"""Who kills, pauses, stops and cuts off the brokers of a simulated world, and takes their disks and clocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from seglog.cluster.model import PartitionState
from tests.replication.disk import PATHS

if TYPE_CHECKING:
    from tests.replication.node import Node
    from tests.replication.simulator import World

_HOUR_MS = 3_600_000


class Nemesis:
    """Data is lost only where another replica that has everything keeps it: more is not promised to survive. Where an
    unclean election is allowed, data may be lost anywhere."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.is_on = True
        self.struck: dict[str, int] = {}
        faults = world.faults
        self._begin(faults.crash_every, self._kill)
        self._begin(faults.power_every, self._cut_power)
        self._begin(faults.pause_every, self._pause)
        self._begin(faults.cut_every, self._cut)
        self._begin(faults.expire_every, self._expire)
        self._begin(faults.stop_every, self._stop)
        self._begin(faults.disk_every, self._fail_disk)
        self._begin(faults.clock_every, self._set_clock)
        self._begin(faults.away_every, self._take_store_away)

    def _begin(self, every: int, act: Callable[[], None]) -> None:
        if every:
            self.world.at(self.world.rng.randrange(every), lambda: self._strike(every, act))

    def _strike(self, every: int, act: Callable[[], None]) -> None:
        if self.is_on:
            act()
            self.world.at(self.world.rng.randrange(1, 2 * every), lambda: self._strike(every, act))

    def _anyone(self) -> Node:
        return self.world.nodes[self.world.rng.choice(sorted(self.world.nodes))]

    def _note(self, what: str) -> None:
        self.struck[what] = self.struck.get(what, 0) + 1

    def _start_later(self, node: Node) -> None:
        self.world.at(self.world.rng.choice((10, 500, 5_000)), node.start)

    def _kill(self) -> None:
        node = self._anyone()
        if node.is_up:
            self._note("kill")
            node.crash(power=False)
            self._start_later(node)

    def _cut_power(self) -> None:
        node = self._anyone()
        if (node.is_up or not node.disk.was_closed) and not self._may_lose(node):
            return
        self._note("power cut")
        node.crash(power=True)
        self._start_later(node)

    def _may_lose(self, node: Node) -> bool:
        """Whether fewer than min.insync.replicas have lost something then, and every partition is safe with another."""
        nodes, states = self.world.nodes.values(), self.world.history.states.values()
        losing = 1 + sum(self.world.is_losing(other) for other in nodes if other is not node)
        return self.world.scenario.unclean or all(
            losing < min(state.needed, self.world.min_insync) and self._is_safe_without(node, state) for state in states
        )

    def _is_safe_without(self, node: Node, state: PartitionState) -> bool:
        members = [member for member in (*state.isr, *state.elr) if member.node_id != node.node_id]
        for member in members:
            other = self.world.nodes[member.node_id]
            if other.kept_since is not None and other.kept_since <= member.epoch and not other.disk.has_lost:
                return True
        return False

    def _pause(self) -> None:
        node = self._anyone()
        if node.is_up and not node.is_paused:
            self._note("pause")
            self.world.note("pause", node.node_id)
            node.pause(self.world.rng.choice((300, 2_000, 6_000)))

    def _cut(self) -> None:
        link = self.world.faults.cut()
        self._note("cut")
        self.world.note("cut", link)
        self.world.at(self.world.rng.choice((500, 4_000)), lambda: self.world.faults.cuts.discard(link))

    def _expire(self) -> None:
        leases = sorted(self.world.store.leases)
        if leases and not self.world.faults.is_away_for_all:
            self._note("session lost")
            self.world.store.end_session(self.world.rng.choice(leases))

    def _take_store_away(self) -> None:
        """For all brokers, for some, for one that leads or one that follows; for up to five sessions."""
        world = self.world
        if world.faults.away:
            return
        nodes = sorted(world.nodes)
        number = world.rng.choice((len(nodes), len(nodes), 1, 1, 2))
        chosen = world.rng.sample(nodes, number)
        state = world.history.states.get(0)
        if number == 1 and state is not None and state.leader >= 0 and world.rng.random() < 0.5:
            chosen = [state.leader]
        self._note("store away for all" if number == len(nodes) else "store away for some")
        world.store.leave(chosen)
        world.at(world.rng.choice((2_500, 6_000, 15_000)), world.store.come_back)

    def _stop(self) -> None:
        """A controlled shutdown; the broker is there again after a while, however it has ended."""
        node = self._anyone()
        if node.me is not None and not node.is_stopping:
            self._note("controlled shutdown")
            node.when_running(node.stop)
            self.world.at(2_500 + self.world.rng.choice((10, 500, 5_000)), node.start)

    def _fail_disk(self) -> None:
        """One directory of a broker takes no write any more; later somebody puts in another disk, and starts anew."""
        node = self._anyone()
        if not node.is_up or node.disk.failed or not self._may_lose(node):
            return
        path = self.world.rng.choice(PATHS)
        self._note("disk failed")
        self.world.note("disk", node.node_id, path)
        node.disk.fail(path)
        life = node.life

        def replace() -> None:
            if node.life == life:
                node.crash(power=False)
            node.start()

        self.world.at(self.world.rng.choice((1_000, 5_000)), replace)

    def _set_clock(self) -> None:
        """The wall clock of one broker is set, as an operator or NTP may."""
        node = self._anyone()
        self._note("clock set")
        node.clock.set_wall(node.clock.now_ms() + self.world.rng.choice((-_HOUR_MS, -1_000, 1_000, _HOUR_MS)))
