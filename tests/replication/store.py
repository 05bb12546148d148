"""The metadata store of a simulated world: versioned values, sessions, and changes that are told late but in order."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import UUID

from seglog.cluster import formats
from seglog.cluster.backup import counters, later_epoch, undecided
from seglog.cluster.formats import BROKER_EPOCHS, OURS, SPEAKS, FormatError, Formats, check_format, encode_formats
from seglog.cluster.generation import StoreWentBackError, check_store, seen_name
from seglog.cluster.model import (
    BROKERS,
    GENERATION,
    GENERATION_BASE,
    PARTITIONS,
    TOPICS,
    BrokerRegistration,
    Member,
    PartitionState,
    partition_name,
)
from seglog.cluster.store import VersionedValue
from seglog.storage.directory.cluster_mark import ClusterMark

if TYPE_CHECKING:
    from tests.replication.simulator import World

SESSION_MS: Final = 3_000
_YEAR_2023_MS: Final = 1_700_000_000_000
LogEpoch = tuple[UUID, int, str, int]
"""A topic's id, a partition's number, the path of its log and the latest epoch in it."""


class RefusedError(Exception):
    """The store's answer to a change of a version that is not there any more."""


class WrongFormatError(RefusedError):
    """The store's answer to a broker that does not speak the cluster's format."""


class WentBackError(RefusedError):
    """The store's answer to a broker that has seen a later one."""


class Copy(NamedTuple):
    """What a store was, without what sessions hold."""

    values: dict[str, tuple[Any, int]]
    lives: dict[int, int]
    counter: int
    raised: int
    base: int
    seen: dict[int, int]


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
        self._raised = self._base = 0
        self._seen: dict[int, int] = {}
        self.put_back_count = 0
        self.format = OURS.high
        self.speaks: dict[int, Formats] = {}
        """Of each broker, what its last registration said."""

    # Copies

    @property
    def generation(self) -> int:
        """As `seglog.cluster.generation` has it."""
        return self._base + self._raised

    def note_seen(self, node_id: int) -> int:
        self._seen[node_id] = self.generation
        return self.generation

    def copy(self) -> Copy:
        values = {name: kept for name, kept in self.values.items() if name.startswith((f"{TOPICS}/", f"{PARTITIONS}/"))}
        return Copy(values, dict(self.lives), self._counter, self._raised, self._base, dict(self._seen))

    def put_back(self, copy: Copy) -> None:
        """Be what the copy was; no broker is running."""
        self.put_back_count += 1
        self.leases.clear()
        self.readers.clear()
        self._held.clear()
        self.values, self.lives, self._seen = dict(copy.values), dict(copy.lives), dict(copy.seen)
        self._counter, self._raised, self._base = copy.counter, copy.raised, copy.base

    def accept(self) -> None:
        """Let brokers go on with it, as `seglog.cluster.backup.accepted` does; a millisecond here is a second there."""
        now_ms = _YEAR_2023_MS + self.world.now * 1000
        self._counter = int(counters(now_ms, broker_epoch=self._counter)[BROKER_EPOCHS])
        for name, (value, _) in sorted(self.values.items()):
            if isinstance(value, PartitionState):
                self._set(name, undecided(value, later_epoch(value.leader_epoch, now_ms)))
        self._base = max(self.generation, now_ms)

    def check_history(self, node_id: int, marks: Mapping[str, ClusterMark], epochs: Iterable[LogEpoch]) -> None:
        """`WentBackError`, as a broker does before it serves anything."""
        values = {
            GENERATION: VersionedValue(b"0", self._raised),
            GENERATION_BASE: VersionedValue(b"%d" % self._base, 0),
            BROKER_EPOCHS: VersionedValue(b"%d" % self._counter, 0),
        }
        if node_id in self._seen:
            values[seen_name(node_id)] = VersionedValue(b"%d" % self._seen[node_id], 0)
        try:
            for path, mark in marks.items():
                check_store(
                    "store",
                    values,
                    node_id=node_id,
                    generation=mark.generation,
                    broker_epoch=mark.broker_epoch,
                    directory=path,
                )
            for topic_id, number, path, epoch in epochs:
                found = self.values.get(partition_name(topic_id, number))
                if found is not None and epoch > found[0].leader_epoch:
                    raise WentBackError(path)
        except StoreWentBackError as error:
            raise WentBackError(str(error)) from error

    # Formats

    def check_format(self, speaks: Formats) -> None:
        """`WrongFormatError`: a broker that speaks these cannot take part."""
        try:
            check_format(VersionedValue(b"%d" % self.format, 0), speaks)
        except FormatError as error:
            raise WrongFormatError(str(error)) from error

    def raise_format(self, to: int) -> bool:
        """Whether all that are registered speak it, as `seglog.cluster.formats.raise_format` asks."""
        brokers = {name: VersionedValue(b"", 0) for name in self.values if name.startswith(f"{BROKERS}/")}
        speaks = {f"{SPEAKS}/{node}": VersionedValue(encode_formats(one), 0) for node, one in self.speaks.items()}
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
            former = self.values[name][0] if name in self.values else None
            is_raised = (
                former is None
                or former.leader_epoch < value.leader_epoch
                or former.is_new > value.is_new
                or set(former.isr) - set(value.isr)
            )
            self._raised += bool(is_raised)
            self.world.history.written(name, value)
        elif isinstance(value, BrokerRegistration):
            self.world.history.registered[Member(value.node_id, value.epoch)] = value
            if name not in self.values:
                self.speaks[value.node_id] = self.world.nodes[value.node_id].speaks
        if value is None:
            version = self.values.pop(name)[1] + 1
        else:
            self.values[name] = (value, version)
        if isinstance(value, BrokerRegistration):
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
