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
from enum import StrEnum
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeVar
from uuid import UUID

from seglog.cluster.store import ANY_VERSION, Change, VersionedValue
from seglog.core.errors import SeglogError

NO_LEADER: Final = -1
ANY_EPOCH: Final = -2
"""Of a candidate that may have had everything, where nobody knows when: whatever log it has counts, none is proved."""
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


class Evidence(NamedTuple):
    """What one replica of a partition without a leader has, and how much of what it had it provably kept.

    ``epoch`` is the broker epoch in which it was reported: in any other it is void. ``last_epoch`` is the leader epoch
    of the last batch; offsets are the log's. ``directory`` is the id of the log directory.

    The other epochs are broker epochs. ``made``: this log was made in it, or put back from a backup. ``kept_since``: a
    member of this epoch, or of a later one, has lost nothing of this partition.

    ``refused_cut`` is the offset at which the replica was told to cut its log, below its high watermark; -1 if it was
    not. Only such a replica reports while the partition has a leader.
    """

    node_id: int
    epoch: int
    directory: str
    last_epoch: int
    start: int
    flushed: int
    high_watermark: int
    end: int
    made: int
    kept_since: int
    refused_cut: int = -1


class ElectionKind(StrEnum):
    """Why a replica leads that was not in sync: it provably lost nothing; it has the longest log of all candidates; the
    topic allows unclean elections; an operator chose it."""

    PROVEN = "proven"
    LONGEST = "longest"
    UNCLEAN = "unclean"
    CHOSEN = "chosen"


class Recovery(NamedTuple):
    """The last election of a replica that was not in sync: in which leader epoch, who, why, and where its log ended (-1
    if it had not said). ``furthest`` is the largest end that any other replica had reported by then (-1: none)."""

    leader_epoch: int
    leader: int
    kind: ElectionKind
    end: int
    furthest: int

    def __str__(self) -> str:
        first = f"broker {self.leader} leads since epoch {self.leader_epoch}: {_REASONS[self.kind]}"
        if self.kind is ElectionKind.PROVEN:
            return first
        end = "Where its log ended is not known" if self.end < 0 else f"It ends at offset {self.end}"
        more = f", and another replica had offsets up to {self.furthest - 1}" if self.furthest > self.end else ""
        return f"{first}. {end}: records from there on may be missing{more}"


_REASONS: Final[Mapping[ElectionKind, str]] = {
    ElectionKind.PROVEN: "it provably lost nothing",
    ElectionKind.LONGEST: "its log is the longest of all that had everything",
    ElectionKind.UNCLEAN: "unclean.leader.election.enable let it",
    ElectionKind.CHOSEN: "an operator chose it",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRegistration:
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
    reports: bool = False
    """Whether it says what its replicas have (`Evidence`): an older seglog does not."""

    def has_kept(self, member: Member) -> bool:
        """Whether a replica of this broker that had everything as ``member`` still has it."""
        return self.node_id == member.node_id and self.kept_since <= member.epoch <= self.epoch

    def had(self, evidence: Evidence, member: Member) -> bool:
        """Whether ``evidence`` is about the log that ``member`` had: not one that was made later, nor a former copy."""
        is_ours = evidence.node_id == member.node_id == self.node_id and evidence.epoch == self.epoch
        return is_ours and (evidence.made <= member.epoch or member.epoch == ANY_EPOCH)

    def proves(self, evidence: Evidence, member: Member) -> bool:
        """Whether ``evidence`` says that ``member`` still has everything that it had."""
        return self.had(evidence, member) and evidence.kept_since <= member.epoch


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
    smaller than ``min_insync``, when nothing more was committed (KIP-966). ``last_known`` had everything, and may
    have lost some of it since: evidence decides. ``min_insync`` is part of the state and not only a configuration,
    because what ``elr`` promises depends on it.
    """

    replicas: tuple[int, ...]
    leader: int
    leader_epoch: int
    isr: tuple[Member, ...]
    min_insync: int = 1
    elr: tuple[Member, ...] = ()
    last_known: tuple[Member, ...] = ()
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    is_new: bool = False
    """No leader has opened a log for it yet, so brokers name no leader to clients: a leader that refuses the first of
    two pipelined batches, and takes the second, leaves an idempotent producer stuck. The first leader clears it, and
    appends nothing before that is written: a state that is new proves that nothing was ever acknowledged."""
    left: tuple[Member, ...] = ()
    """Members that the controller took out of an ISR that stayed large enough, since a leader last wrote the ISR. That
    leader may be as dead as they are, and its session only not over yet."""
    evidence: tuple[Evidence, ...] = ()
    """What replicas report while nobody leads; with a leader, of those that refuse to cut what it does not have."""
    unclean_epoch: int = -1
    """The last leader epoch that an unclean election began, or an operator: only then may a follower cut what it knew
    to be committed in an earlier one."""
    recovery: Recovery | None = None
    recreated_epoch: int = -1
    """The leader epoch in which an operator restored, accepted or rebuilt this state. A log that ends in an earlier one
    may have records that no replica of this state has, so its removal is not named by this state."""

    def check(self) -> None:
        """Assert the invariants; tests and the simulator call it for every state that is written."""
        isr, elr, last_known = set(self.isr_nodes), {member.node_id for member in self.elr}, set(self.last_known_nodes)
        assert self.leader == NO_LEADER or self.leader in isr
        assert len(isr) == len(self.isr)
        assert isr | elr | last_known <= set(self.replicas)
        assert {member.node_id for member in self.left} <= set(self.replicas) - isr - elr - last_known
        assert not isr & elr
        assert not (isr | elr) & last_known
        assert len({one.node_id for one in self.evidence}) == len(self.evidence)
        assert {one.node_id for one in self.evidence} <= set(self.replicas)
        assert self.unclean_epoch <= self.leader_epoch
        assert self.recreated_epoch <= self.leader_epoch
        assert len(isr) < self.needed or not (elr or self.last_known)
        assert set(self.adding) | set(self.removing) <= set(self.replicas)
        assert not set(self.adding) & set(self.removing)

    @property
    def isr_nodes(self) -> tuple[int, ...]:
        return tuple(member.node_id for member in self.isr)

    @property
    def last_known_nodes(self) -> tuple[int, ...]:
        return tuple(member.node_id for member in self.last_known)

    @property
    def candidates(self) -> tuple[Member, ...]:
        """Who may lead if the partition may lose nothing: each had everything, and a record that is committed was in
        the log of each of them."""
        return (*self.isr, *self.elr, *self.last_known)

    def names_removal(self, log_epoch: int) -> bool:
        """Whether a log that ends in ``log_epoch``, of a broker that is no replica any more, is to be deleted.

        A replica is removed in a new epoch, when the others have all that is committed. A state from an older store
        does not know where the partition was moved since: it does not name the removal of a log that ends in an epoch
        from before it was accepted.
        """
        return bool(self.isr) and self.leader_epoch > log_epoch >= self.recreated_epoch

    def evidence_of(self, node_id: int) -> Evidence | None:
        return next((one for one in self.evidence if one.node_id == node_id), None)

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


class VersionedState(NamedTuple):
    """A partition's state and the version that a compare-and-set names."""

    state: PartitionState
    version: int


class MetadataImage(NamedTuple):
    """All of it, as someone sees it at some time."""

    brokers: Mapping[int, BrokerRegistration]
    topics: Mapping[str, TopicState]
    partitions: Mapping[tuple[UUID, int], VersionedState]
    rules: Callable[[TopicState], TopicRules]


def of_partition(brokers: Mapping[int, BrokerRegistration], key: tuple[UUID, int]) -> Mapping[int, BrokerRegistration]:
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


def generation_of(values: Mapping[str, VersionedValue]) -> int:
    """How far a store with these values has come: the version of ``generation``, which each commit that matters raises,
    above the base. -1: no broker was ever in it, or only one of the first release. `InvalidStateError`.

    >>> generation_of({"generation": VersionedValue(b"0", 3), "generation/base": VersionedValue(b"100", 0)})
    103
    """
    found, base = values.get(GENERATION), values.get(GENERATION_BASE)
    if base is not None and not base.value.isdigit():
        raise InvalidStateError(f"{GENERATION_BASE} in the metadata store is {base.value[:20]!r}, not a number")
    return (-1 if found is None else found.version) + (0 if base is None else int(base.value))


def encode(value: BrokerRegistration | TopicState | PartitionState) -> bytes:
    told = {"form": _FORM, **{one.name: getattr(value, one.name) for one in fields(value)}}
    return json.dumps(told, sort_keys=True, separators=(",", ":"), default=str).encode()


def decode_broker(name: str, data: bytes) -> BrokerRegistration:
    return _decode(
        name,
        data,
        lambda told: BrokerRegistration(
            **{
                **{one.name: told[one.name] for one in fields(BrokerRegistration) if one.name in told},
                "directories": tuple(told["directories"]),
                "offline": tuple(told.get("offline", ())),
            }
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
    """Equal states are the same object, as most of those of a topic are equal."""
    try:
        return _known_partition(data)
    except InvalidStateError:
        return _decode(name, data, _partition)  # which names it


@lru_cache(maxsize=256)
def _known_partition(data: bytes) -> PartitionState:
    return _decode(PARTITIONS, data, _partition)


def _partition(told: Mapping[str, Any]) -> PartitionState:
    return PartitionState(
        replicas=_numbers(told["replicas"]),
        leader=told["leader"],
        leader_epoch=told["leader_epoch"],
        isr=_members(told["isr"]),
        min_insync=told["min_insync"],
        elr=_members(told["elr"]),
        last_known=_last_known(told["last_known"]),
        adding=_numbers(told["adding"]),
        removing=_numbers(told["removing"]),
        is_new=bool(told.get("is_new", False)),
        left=_members(told.get("left", ())),
        evidence=tuple(Evidence(*one) for one in told.get("evidence", ())),
        unclean_epoch=told.get("unclean_epoch", -1),
        recovery=_recovery(told.get("recovery")),
        recreated_epoch=told.get("recreated_epoch", -1),
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


def _last_known(values: Iterable[int | Iterable[int]]) -> tuple[Member, ...]:
    """Before there was evidence they had no epoch: what they had then is not known, and so never proved."""
    return tuple(Member(value, -1) if isinstance(value, int) else Member(*_numbers(value)) for value in values)


def _recovery(told: list[Any] | None) -> Recovery | None:
    if told is None:
        return None
    leader_epoch, leader, kind, end, furthest = told
    return Recovery(leader_epoch, leader, ElectionKind(kind), end, furthest)


def _members(values: Iterable[Iterable[int]]) -> tuple[Member, ...]:
    return tuple(Member(*_numbers(value)) for value in values)
