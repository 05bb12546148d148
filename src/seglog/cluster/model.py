"""What a cluster agrees on: its brokers, its topics, and who leads which partition. Pure.

Each of these is one value in the metadata store, as JSON with a version of its form::

    brokers/<node id>                  Broker          goes with the broker's session
    topics/<name>                      TopicState      replicas are chosen when the topic is made or grown
    partitions/<topic id>/<number>     PartitionState  changed by compare-and-set only
    deleted/<topic id>/<node id>       the name of a topic that was deleted, for a broker that may have replicas of it
    strays/<node id>                   how many strays a broker keeps, and their bytes
    generation, generation/base        see `generation_of`

A partition belongs to the topic's id, not to its name: a topic that is deleted and made again has other partitions.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final, NamedTuple, TypeVar
from uuid import UUID

from seglog.cluster.store import ANY_VERSION, Change, Versioned
from seglog.core.errors import SeglogError

NO_LEADER: Final = -1
BROKERS: Final = "brokers"
TOPICS: Final = "topics"
PARTITIONS: Final = "partitions"
DELETED: Final = "deleted"
STRAYS: Final = "strays"
GENERATION: Final = "generation"
GENERATION_BASE: Final = "generation/base"
_FORM: Final = 1

RAISED: Final = Change(GENERATION, b"0", ANY_VERSION)
"""The step by which a commit raises the generation."""

T = TypeVar("T")


class InvalidStateError(SeglogError):
    """A value in the metadata store that is not one of ours."""


class Member(NamedTuple):
    """A replica that has everything, and the broker epoch in which that was so."""

    node_id: int
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    """A broker that is there. ``epoch`` counts registrations in the whole cluster, so that each is another one.

    ``kept_since`` is the epoch since which it has not lost anything: its own if its last life ended without the marker
    of a clean shutdown and on another start of the machine, so that what was not flushed may be gone. A replica that
    had everything in epoch 5 still has it if ``kept_since`` is at most 5 (KIP-966; the history of registrations would
    say the same, but a controller may miss one).
    """

    node_id: int
    epoch: int
    kept_since: int
    listeners: Mapping[str, str] = field(default_factory=dict)
    rack: str | None = None
    is_stopping: bool = False
    directories: tuple[str, ...] = ()
    offline: tuple[str, ...] = ()
    """Partitions, as `offline_name` names them, that it cannot serve: their log directory has failed (KIP-112)."""

    def has_kept(self, member: Member) -> bool:
        """Whether a replica of this broker that had everything as ``member`` still has it."""
        return self.node_id == member.node_id and self.kept_since <= member.epoch <= self.epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicState:
    """A topic. ``assignment`` has each partition's replicas, the preferred leader first, as they were first chosen:
    what they are now is in the state of the partition."""

    name: str
    topic_id: UUID
    assignment: tuple[tuple[int, ...], ...]
    config: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionState:
    """Who has a partition.

    ``isr`` has everything that is committed, and so have ``elr``, the eligible leaders: they left the ISR while it was
    smaller than ``min_insync``, when nothing more was committed (KIP-966). ``last_known`` had everything, and lost
    some of it in a crash. ``min_insync`` is part of the state and not only a configuration, because what ``elr``
    promises depends on it.
    """

    replicas: tuple[int, ...]
    leader: int
    leader_epoch: int
    isr: tuple[Member, ...]
    min_insync: int = 1
    elr: tuple[Member, ...] = ()
    last_known: tuple[int, ...] = ()
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    is_new: bool = False
    """No leader has opened a log for it yet, so brokers name no leader to clients: a leader that refuses the first of
    two pipelined batches, and takes the second, leaves an idempotent producer stuck. The first leader clears it."""

    def check(self) -> None:
        """Assert the invariants; tests and the simulator call it for every state that is written."""
        isr, elr = set(self.isr_nodes), {member.node_id for member in self.elr}
        assert self.leader == NO_LEADER or self.leader in isr
        assert len(isr) == len(self.isr)
        assert isr | elr | set(self.last_known) <= set(self.replicas)
        assert not isr & elr
        assert not (isr | elr) & set(self.last_known)
        assert len(isr) < self.needed or not (elr or self.last_known)
        assert set(self.adding) | set(self.removing) <= set(self.replicas)
        assert not set(self.adding) & set(self.removing)

    @property
    def isr_nodes(self) -> tuple[int, ...]:
        return tuple(member.node_id for member in self.isr)

    @property
    def needed(self) -> int:
        """In-sync replicas without which nothing is committed; no more than there are (``getEffectiveMinIsr``)."""
        return min(self.min_insync, len(self.replicas))


class TopicRules(NamedTuple):
    """What the configuration of a topic says about its leaders."""

    min_insync: int = 1
    unclean: bool = False
    replicas: int = 0
    """A partition that has fewer gets more as brokers join; 0: it keeps those it was made with."""


class Stored(NamedTuple):
    """A partition's state and the version that a compare-and-set names."""

    state: PartitionState
    version: int


class View(NamedTuple):
    """All of it, as someone sees it at some time."""

    brokers: Mapping[int, Broker]
    topics: Mapping[str, TopicState]
    partitions: Mapping[tuple[UUID, int], Stored]
    rules: Callable[[TopicState], TopicRules]


def of_partition(brokers: Mapping[int, Broker], key: tuple[UUID, int]) -> Mapping[int, Broker]:
    """Those who can serve it: without the brokers whose log directory with it has failed."""
    if not any(broker.offline for broker in brokers.values()):
        return brokers
    name = offline_name(*key)
    return {node: broker for node, broker in brokers.items() if name not in broker.offline}


# Names and values in the store


def offline_name(topic_id: UUID, number: int) -> str:
    """
    >>> offline_name(UUID(int=1), 7)
    '00000000-0000-0000-0000-000000000001/7'
    """
    return f"{topic_id}/{number}"


def broker_name(node_id: int) -> str:
    return f"{BROKERS}/{node_id}"


def topic_name(name: str) -> str:
    return f"{TOPICS}/{name}"


def partition_name(topic_id: UUID, number: int) -> str:
    """
    >>> partition_name(UUID(int=1), 7)
    'partitions/00000000-0000-0000-0000-000000000001/7'
    """
    return f"{PARTITIONS}/{topic_id}/{number}"


def parse_partition_name(name: str) -> tuple[UUID, int]:
    """What `partition_name` was made of. `InvalidStateError`."""
    try:
        _, topic_id, number = name.split("/")
        return UUID(topic_id), int(number)
    except ValueError as error:
        raise InvalidStateError(f"{name} is not the name of a partition's state") from error


def tombstone_name(topic_id: UUID, node_id: int) -> str:
    """What says to a broker that a topic was deleted, until that broker has deleted what it has of it."""
    return f"{DELETED}/{topic_id}/{node_id}"


def strays_name(node_id: int) -> str:
    return f"{STRAYS}/{node_id}"


def parse_tombstone_name(name: str) -> tuple[UUID, int]:
    """What `tombstone_name` was made of. `InvalidStateError`."""
    try:
        _, topic_id, node_id = name.split("/")
        return UUID(topic_id), int(node_id)
    except ValueError as error:
        raise InvalidStateError(f"{name} is not the name of a deleted topic") from error


def generation_of(values: Mapping[str, Versioned]) -> int:
    """How far a store with these values has come: the version of ``generation``, which each commit that matters raises,
    above the base. -1: no broker was ever in it, or only one of the first release. `InvalidStateError`.

    >>> generation_of({"generation": Versioned(b"0", 3), "generation/base": Versioned(b"100", 0)})
    103
    """
    found, base = values.get(GENERATION), values.get(GENERATION_BASE)
    if base is not None and not base.value.isdigit():
        raise InvalidStateError(f"{GENERATION_BASE} in the metadata store is {base.value[:20]!r}, not a number")
    return (-1 if found is None else found.version) + (0 if base is None else int(base.value))


def encode(value: Broker | TopicState | PartitionState) -> bytes:
    told = {"form": _FORM, **{one.name: getattr(value, one.name) for one in fields(value)}}
    return json.dumps(told, sort_keys=True, separators=(",", ":"), default=str).encode()


def decode_broker(name: str, data: bytes) -> Broker:
    return _decode(
        name,
        data,
        lambda told: Broker(
            **{**told, "directories": tuple(told["directories"]), "offline": tuple(told.get("offline", ()))}
        ),
    )


def decode_topic(name: str, data: bytes) -> TopicState:
    return _decode(
        name,
        data,
        lambda told: TopicState(
            name=told["name"],
            topic_id=UUID(told["topic_id"]),
            assignment=tuple(map(_numbers, told["assignment"])),
            config=told["config"],
        ),
    )


def decode_partition(name: str, data: bytes) -> PartitionState:
    return _decode(
        name,
        data,
        lambda told: PartitionState(
            replicas=_numbers(told["replicas"]),
            leader=told["leader"],
            leader_epoch=told["leader_epoch"],
            isr=_members(told["isr"]),
            min_insync=told["min_insync"],
            elr=_members(told["elr"]),
            last_known=_numbers(told["last_known"]),
            adding=_numbers(told["adding"]),
            removing=_numbers(told["removing"]),
            is_new=bool(told.get("is_new", False)),
        ),
    )


def _decode(name: str, data: bytes, make: Callable[[dict[str, Any]], T]) -> T:
    try:
        told = json.loads(data)
        form = told.pop("form")
        if form != _FORM:
            raise InvalidStateError(f"{name} in the metadata store is of form {form}: a later seglog has written it")
        return make(told)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidStateError(f"{name} in the metadata store cannot be read: {error!r}") from error


def _numbers(values: Iterable[int]) -> tuple[int, ...]:
    return tuple(int(value) for value in values)


def _members(values: Iterable[Iterable[int]]) -> tuple[Member, ...]:
    return tuple(Member(*_numbers(value)) for value in values)
