"""Faults that strike a cluster, drawn from a seed: brokers are killed, hang, stop or are cut off, and disks fill up.
Sometimes two strike at a time, and the next before the last is healed."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from random import Random
from typing import Final, NamedTuple

from tests.kafka.zookeeper import ZooKeeperNode
from tests.kit.cluster import ClusterBroker, SeglogCluster
from tests.kit.disk import Disk
from tests.kit.network import Namespaces

Act = Callable[[], None]
_AGAIN: Final = 0.35
"""How likely a second fault comes while there is one."""


class Fault(NamedTuple):
    """It has struck; ``heal`` undoes it."""

    kind: str
    node_id: int
    heal: Act


def _nothing() -> None:
    pass


class Nemesis:
    """Call `run`. ``told`` lists its actions, with seconds since the start; ``wrong`` lists effects that must not
    happen."""

    def __init__(
        self,
        cluster: SeglogCluster,
        rng: Random,
        session_seconds: float,
        *,
        links: Namespaces | None,
        disks: dict[int, Disk] | None = None,
        servers: Sequence[ZooKeeperNode] = (),
    ) -> None:
        self.told: list[str] = []
        self._cluster = cluster
        self._rng = rng
        self._session = session_seconds
        self._links = links
        self._disks = disks or {}
        self._servers = servers
        self._began = time.monotonic()
        self._kinds: list[Callable[[int], Fault]] = [self._kill, self._stop, self._pause]
        self._kinds += (
            [self._cut] * (links is not None) + [self._fill] * bool(disks) + [self._kill_server] * (len(servers) > 1)
        )

    def run(self, seconds: float, least: int) -> int:
        """Faults for so long, and ``least`` of them, then all is healed; how many there were. Each kind comes at least
        once, if time is."""
        count = 0
        bag: list[Callable[[int], Fault]] = []
        while time.monotonic() < self._began + seconds or count < least:
            faults: list[Fault] = []
            while not faults or (len(faults) < 2 and self._rng.random() < _AGAIN):
                if not bag:
                    bag = self._rng.sample(self._kinds, len(self._kinds))
                free = [node for node in self._cluster.running if all(node != fault.node_id for fault in faults)]
                faults.append(self._strike(bag.pop(), self._rng.choice(free)))
                count += 1
                self._wait(0.1, 0.8)
            self._wait(0.2, self._session)
            for fault in self._rng.sample(faults, len(faults)):
                fault.heal()
                self._tell(f"healed: {fault.kind} of {fault.node_id}")
                self._wait(0.0, 0.5)
            self._check()
            self._wait(0.0, self._session * 1.5)
        self._cluster.heal()
        return count

    def _strike(self, kind: Callable[[int], Fault], node_id: int) -> Fault:
        fault = kind(node_id)
        self._tell(f"{fault.kind} of {fault.node_id}")
        return fault

    def _check(self) -> None:
        """Nobody has ended who was not ended."""
        for broker in self._cluster.brokers.values():
            assert broker.is_running, f"broker {broker.node_id} has ended: {self.told[-6:]}\n{_tail(broker)}"

    def _wait(self, least: float, most: float) -> None:
        time.sleep(self._rng.uniform(least, most))  # how long a fault lasts, or a calm

    def _tell(self, what: str) -> None:
        self.told.append(f"{time.monotonic() - self._began:.1f} {what}")

    # What there is

    def _kill(self, node_id: int) -> Fault:
        broker = self._cluster[node_id]
        broker.kill()
        return Fault("kill -9", node_id, broker.start)

    def _stop(self, node_id: int) -> Fault:
        broker = self._cluster[node_id]
        broker.stop()
        return Fault("controlled shutdown", node_id, broker.start)

    def _pause(self, node_id: int) -> Fault:
        broker, is_long = self._cluster[node_id], self._rng.random() < 0.6

        def resume() -> None:
            since = time.monotonic() - began
            time.sleep(max(0.0, self._session * (1.6 if is_long else 0.4) - since))  # how long the process stands
            broker.resume()

        began = time.monotonic()
        broker.pause()
        return Fault("long pause" if is_long else "pause", node_id, resume)

    def _cut(self, node_id: int) -> Fault:
        """From the other brokers, or some of them, one way or both."""
        assert self._links is not None
        others = [node for node in self._cluster.brokers if node != node_id]
        some = self._rng.sample(others, self._rng.randint(1, len(others)))
        ways = self._rng.choice(["both ways", "outwards", "inwards"])
        for other in some:
            if ways != "inwards":
                self._links.cut(node_id, other)
            if ways != "outwards":
                self._links.cut(other, node_id)
        return Fault(f"a cut from {some} {ways}", node_id, self._links.heal)

    def _fill(self, node_id: int) -> Fault:
        """It continues without a restart once there is space, and has lost nothing."""
        disk = self._disks[node_id]
        disk.fill()
        return Fault("full disk", node_id, disk.free)

    def _kill_server(self, _: int) -> Fault:
        at = self._rng.randrange(len(self._servers))
        server = self._servers[at]
        server.kill()
        return Fault(f"kill -9 of ZooKeeper {at + 1}", 0, server.start)


def _tail(broker: ClusterBroker) -> str:
    return broker.log.read_text(errors="replace")[-3000:]
