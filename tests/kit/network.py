"""Networks for the brokers of a test: loopback, or a network namespace for each broker, so that links can be cut."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from typing import Final

from tests.kit.ports import free_port
from tests.kit.service import Service

_PORT: Final = 9092
_NOBODY: Final = "02:00:00:00:00:01"
_NETWORKS: Final = 512
"""The /24 networks of 198.18.0.0/15, which RFC 2544 keeps for tests."""


class Loopback(Service):
    """Addresses of brokers by their numbers, from 1 on; 0 is where the test and its clients are. Nothing can be cut."""

    def __init__(self) -> None:
        self._ports: dict[int, int] = {}

    def start(self) -> None:
        pass

    def leave(self) -> None:
        pass

    def address(self, node_id: int) -> str:
        """``host:port``, always the same."""
        if node_id not in self._ports:
            self._ports[node_id] = free_port()
        return f"127.0.0.1:{self._ports[node_id]}"

    def prefix(self, _: int) -> Sequence[str]:
        """The words before the broker's command."""
        return ()

    def heal(self) -> None:
        """Undo all cuts."""


class Namespaces(Loopback):
    """A namespace for each of ``count`` brokers, on one bridge with the test; needs root (`can_be_made`).

    The bridge exists from the constructor on, for its name keeps the addresses from other runs. A cut gives the sender
    a hardware address that nobody has: packets are lost without a word, connections stay open, and what comes the other
    way still arrives.
    """

    def __init__(self, count: int) -> None:
        super().__init__()
        self._name, self._subnet = _reserve()
        self._count = count
        self._cuts: set[tuple[int, int]] = set()

    @staticmethod
    def can_be_made() -> bool:
        """Whether this machine lets us."""
        name = f"sltry{os.getpid() % 100_000}"
        try:
            made = subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False)
        except FileNotFoundError:
            return False
        if made.returncode:
            return False
        bridged = _add_bridge(name)
        if bridged:
            _ip("link", "del", name)
        _ip("netns", "del", name)
        return bridged

    def start(self) -> None:
        try:
            _ip("addr", "add", f"{self.host(0)}/24", "dev", self._name)
            _ip("link", "set", self._name, "up")
            self._delete_spaces()  # those that a killed run has left
            for node_id in range(1, self._count + 1):
                self._add(node_id)
        except BaseException:
            self.leave()
            raise

    def _add(self, node_id: int) -> None:
        space, outside, inside = self._space(node_id), f"{self._name}v{node_id}", f"{self._name}w{node_id}"
        _ip("netns", "add", space)
        _ip("link", "add", outside, "type", "veth", "peer", "name", inside, "netns", space)
        _ip("link", "set", outside, "master", self._name, "up")
        _ip("-n", space, "addr", "add", f"{self.host(node_id)}/24", "dev", inside)
        _ip("-n", space, "link", "set", inside, "up")
        _ip("-n", space, "link", "set", "lo", "up")

    def _delete_spaces(self) -> None:
        for node_id in range(1, self._count + 1):
            subprocess.run(["ip", "netns", "del", self._space(node_id)], capture_output=True, check=False)

    def leave(self) -> None:
        self._delete_spaces()
        subprocess.run(["ip", "link", "del", self._name], capture_output=True, check=False)

    def _space(self, node_id: int) -> str:
        return f"{self._name}b{node_id}"

    def host(self, node_id: int) -> str:
        """The address of a broker, or with 0 of the test: what a ZooKeeper of the test has to listen on."""
        return f"{self._subnet}.{node_id + 1}"

    def address(self, node_id: int) -> str:
        return f"{self.host(node_id)}:{_PORT}"

    def prefix(self, node_id: int) -> Sequence[str]:
        return ("ip", "netns", "exec", self._space(node_id))

    def cut(self, source: int, target: int) -> None:
        """Drop all packets that ``source`` sends to ``target``."""
        self._neighbour(source, "replace", self.host(target), "lladdr", _NOBODY, "nud", "permanent")
        self._cuts.add((source, target))

    def heal(self) -> None:
        for source, target in self._cuts:
            self._neighbour(source, "del", self.host(target))
        self._cuts.clear()

    def _neighbour(self, source: int, *arguments: str) -> None:
        where = ("-n", self._space(source)) if source else ()
        device = f"{self._name}w{source}" if source else self._name
        _ip(*where, "neigh", *arguments, "dev", device)


def _reserve() -> tuple[str, str]:
    """A bridge and the first three numbers of its addresses. The kernel refuses a second bridge of one name, so no two
    runs have one network, even where a killed run has left its own behind."""
    first = os.getpid()
    for number in range(first, first + _NETWORKS):
        name = f"sl{number % _NETWORKS}"
        if _add_bridge(name):
            return name, f"198.{18 + number % _NETWORKS // 256}.{number % 256}"
    raise RuntimeError(f"all {_NETWORKS} bridges sl0, sl1 ... exist: remove those of killed runs with ip link del")


def _add_bridge(name: str) -> bool:
    command = ["ip", "link", "add", name, "type", "bridge"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
