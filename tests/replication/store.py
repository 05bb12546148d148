"""The metadata store of a simulated world: versioned values, sessions, and changes that are told late but in order."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from seglog.cluster import formats
from seglog.cluster.formats import OURS, SPEAKS, FormatError, Formats, check_format, encode_formats
from seglog.cluster.model import BROKERS, Broker, Member, PartitionState
from seglog.cluster.store import Versioned

if TYPE_CHECKING:
    from tests.replication.simulator import World

SESSION_MS: Final = 3_000


class RefusedError(Exception):
    """The store's answer to a change of a version that is not there any more."""


class WrongFormatError(RefusedError):
    """The store's answer to a broker that does not speak the cluster's format."""


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
        self.lives: dict[int, int] = {}
        """The epoch of each broker's last registration."""
        self.leases: dict[int, Lease] = {}
        self.readers: dict[int, Callable[[str, Any, int], None]] = {}
        self._told_at: dict[int, int] = {}
        self._held: dict[int, list[Callable[[], None]]] = {}
        """What nodes are told when the store is there again for them."""
        self._counter = 0
        self.format = OURS.high
        self.speaks: dict[int, Formats] = {}
        """Of each broker, what its last registration said."""

    # Formats

    def check_format(self, speaks: Formats) -> None:
        """`WrongFormatError`: a broker that speaks these cannot take part."""
        try:
            check_format(Versioned(b"%d" % self.format, 0), speaks)
        except FormatError as error:
            raise WrongFormatError(str(error)) from error

    def raise_format(self, to: int) -> bool:
        """Whether all that are registered speak it, as `seglog.cluster.formats.raise_format` asks."""
        brokers = {name: Versioned(b"", 0) for name in self.values if name.startswith(f"{BROKERS}/")}
        speaks = {f"{SPEAKS}/{node}": Versioned(encode_formats(one), 0) for node, one in self.speaks.items()}
        try:
            formats._check_brokers(brokers, speaks, to)
        except FormatError:
            return False
        self.format = to
        self.world.note("format", to)
        self._check_formats()
        return True

    def _check_formats(self) -> None:
        """P20: who is registered speaks the cluster's format."""
        for name in self.values:
            if name.startswith(f"{BROKERS}/"):
                node_id = int(name.partition("/")[2])
                low, high = self.speaks[node_id]
                assert low <= self.format <= high, f"P20: {node_id} speaks {low} to {high}, not format {self.format}"

    def next_number(self) -> int:
        self._counter += 1
        return self._counter

    # Away

    def leave(self, nodes: Collection[int]) -> None:
        """Be away for these nodes, until `come_back`."""
        self.world.note("away", sorted(nodes))
        self.world.faults.away.update(nodes)

    def come_back(self) -> None:
        """For all nodes. Who could not renew because nobody could has the time of a session for it."""
        faults = self.world.faults
        if faults.is_away_for_all:
            for lease in self.leases.values():
                lease.expires_ms = self.world.now + SESSION_MS
        faults.away.clear()
        self.world.note("back")
        held, self._held = self._held, {}
        for acts in held.values():
            for act in acts:
                act()

    @property
    def count(self) -> int:
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
        if self.world.faults.is_away_for_all:
            self.world.at(SESSION_MS, lambda: self._expire(number))
        elif left >= 0:
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
            self.world.history.written(name, value)
        elif isinstance(value, Broker):
            self.world.history.registered[Member(value.node_id, value.epoch)] = value
            self.speaks[value.node_id] = self.world.nodes[value.node_id].speaks
        if value is None:
            version = self.values.pop(name)[1] + 1
        else:
            self.values[name] = (value, version)
        if isinstance(value, Broker):
            self._check_formats()
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
            if node_id in world.faults.away:
                self._held.setdefault(node_id, []).append(tell)
            elif self.readers.get(node_id) is reader:
                reader(name, value, version)

        world.at(when - world.now, tell)

    def subscribe(self, node_id: int, reader: Callable[[str, Any, int], None]) -> dict[str, tuple[Any, int]]:
        """All values as they are now; what comes later is told to ``reader``."""
        self.readers[node_id] = reader
        self._told_at[node_id] = self.world.now
        return dict(self.values)
