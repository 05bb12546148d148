"""The shared metadata of a cluster: its brokers, its topics, and who leads which partition. Pure.

Each of these is one value in the metadata store, as JSON with a format version::

    brokers/<node id>                  BrokerRegistration, deleted with the broker's session
    topics/<name>                      TopicState; replicas are chosen when the topic is created or grown
    partitions/<topic id>/<number>     PartitionState, changed only by compare-and-set
    features                           see `seglog.cluster.features`
    deleted/<topic id>/<node id>       the name of a deleted topic, for a broker that may have replicas of it
    strays/<node id>                   the number of a broker's strays, and their bytes
    generation, generation/base        see `generation_of`

A partition belongs to the topic's id, not to its name: a topic that is deleted and created again has other partitions.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from functools import lru_cache
from itertools import islice
from typing import Any, Final, NamedTuple, TypeVar
from uuid import UUID

from seglog.cluster.store import ANY_VERSION, Change, VersionedValue
from seglog.core.errors import SeglogError

NO_LEADER: Final = -1
ANY_EPOCH: Final = -2
"""The epoch of a candidate that had everything at an unknown time: any log that it has counts, and none is proven."""
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
    """A value in the metadata store that seglog cannot decode."""


class Member(NamedTuple):
    """A replica that has everything, and the broker epoch in which it had that."""

    node_id: int
    epoch: int


class Evidence(NamedTuple):
    """The log of a replica of a partition without a leader, and how much of it was provably kept.

    ``epoch`` is the broker epoch of the report, which is void in any other. ``last_epoch`` is the leader epoch of the
    last batch; offsets are those of the log. ``directory`` is the id of the log directory.

    The other epochs are broker epochs. ``made``: this log was created in it, or restored from a backup. ``kept_since``:
    a member of this epoch, or of a later one, has lost nothing of this partition.

    ``refused_cut`` is the offset, below its high watermark, at which the replica refused to truncate its log; -1 if it
    did not. Only such a replica reports while the partition has a leader.
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
    """Why a replica outside of the ISR leads: it provably lost nothing; its log is the longest of all candidates; the
    topic allows unclean elections; an operator chose it."""

    PROVEN = "proven"
    LONGEST = "longest"
    UNCLEAN = "unclean"
    CHOSEN = "chosen"


class Recovery(NamedTuple):
    """The last election of a replica outside of the ISR: its leader epoch, the leader, the reason, and the leader's log
    end (-1 if unknown). ``furthest`` is the largest log end that any other replica had reported (-1: none)."""

    leader_epoch: int
    leader: int
    kind: ElectionKind
    end: int
    furthest: int

    def __str__(self) -> str:
        first = f"broker {self.leader} leads since epoch {self.leader_epoch}: {_REASONS[self.kind]}"
        if self.kind is ElectionKind.PROVEN:
            return first
        if self.end == 0 and self.furthest <= 0:
            return f"{first}. No replica has reported a record"
        end = "Where its log ended is not known" if self.end < 0 else f"It ends at offset {self.end}"
        more = f", and another replica had offsets up to {self.furthest - 1}" if self.furthest > self.end else ""
        return f"{first}. {end}: records from there on may be missing{more}"


_REASONS: Final[Mapping[ElectionKind, str]] = {
    ElectionKind.PROVEN: "it provably lost nothing",
    ElectionKind.LONGEST: "its log is the longest of all that had everything",
    ElectionKind.UNCLEAN: "unclean.leader.election.enable allows it",
    ElectionKind.CHOSEN: "an operator chose it",
}


class Refusal(NamedTuple):
    """The reason why a broker does not serve a replica that it has: with file and offset, if it ``is_damaged``.
    ``directory`` is the partition's, on that broker."""

    reason: str
    directory: str = ""
    is_damaged: bool = True


REFUSED_REPLICAS: Final = "seglog.refused.replicas"
"""The key under which a broker describes its refused replicas in its configuration, if it is asked for this key: for a
client that cannot read the metadata store. It cannot be set."""
MOST_REFUSALS: Final = 100
"""Refusals in a registration: ZooKeeper takes values of up to 1 MiB."""
MOST_REASON: Final = 1000
"""Characters of a refusal's reason."""


class VersionRange(NamedTuple):
    """The lowest and the highest level of a feature that a broker supports.

    >>> 1 in VersionRange(0, 2), str(VersionRange(0, 2)), str(VersionRange(1, 1))
    (True, '0-2', '1')
    """

    low: int
    high: int

    def __contains__(self, level: object) -> bool:
        return isinstance(level, int) and self.low <= level <= self.high

    def __str__(self) -> str:
        return f"{self.low}-{self.high}" if self.low != self.high else f"{self.low}"


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRegistration:
    """A registered broker. ``epoch`` counts the registrations of the whole cluster, so each one is unique.

    ``kept_since`` is the epoch since which the broker has lost nothing. It is the current one if the last run ended
    without the marker of a clean shutdown and the machine was restarted since, so that unflushed data may be gone. A
    replica that had everything in epoch 5 still has it if ``kept_since`` is at most 5 (KIP-966; the history of
    registrations would say the same, but a controller may miss one).
    """

    node_id: int
    epoch: int
    kept_since: int
    listeners: Mapping[str, str] = field(default_factory=dict)
    rack: str | None = None
    is_stopping: bool = False
    directories: tuple[str, ...] = ()
    offline: tuple[str, ...] = ()
    """Partitions, by `offline_name`, that it cannot serve: their log directory has failed (KIP-112), or they are
    damaged."""
    refused: Mapping[str, Refusal] = field(default_factory=dict)
    """Those of ``offline`` that it refuses, and why; at most `MOST_REFUSALS`. An older seglog names none."""
    reports: bool = False
    """Whether it reports `Evidence`; an older seglog does not."""
    features: Mapping[str, VersionRange] = field(default_factory=dict)
    """The features that it supports (KIP-584); an older seglog names none."""
    proof: str = ""
    """Sent with its requests to other brokers, which thereby know that a registered broker asks: only brokers read the
    metadata store. Each run of a broker has another one; an older seglog has none."""
    _offline: frozenset[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_offline", frozenset(self.offline))

    def has_offline(self, partition: str) -> bool:
        """Whether it cannot serve this partition, by its `offline_name`."""
        return partition in self._offline

    def has_kept(self, member: Member) -> bool:
        """Whether a replica of this broker that had everything as ``member`` still has it."""
        return self.node_id == member.node_id and self.kept_since <= member.epoch <= self.epoch

    def had(self, evidence: Evidence, member: Member) -> bool:
        """Whether ``evidence`` is about the log that ``member`` had, and not about one created later or a former
        copy."""
        is_ours = evidence.node_id == member.node_id == self.node_id and evidence.epoch == self.epoch
        return is_ours and (evidence.made <= member.epoch or member.epoch == ANY_EPOCH)

    def proves(self, evidence: Evidence, member: Member) -> bool:
        """Whether ``evidence`` proves that ``member`` still has everything that it had."""
        return self.had(evidence, member) and evidence.kept_since <= member.epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicState:
    """A topic. ``assignment`` has the first replicas of each partition, the preferred leader first. The state of the
    partition has the current ones."""

    name: str
    topic_id: UUID
    assignment: tuple[tuple[int, ...], ...]
    config: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionState:
    """The replicas of a partition, its leader and its ISR (Kafka's ``LeaderAndIsr``).

    ``isr`` has everything that is committed, and so have ``elr``, the eligible leaders: they left the ISR while it was
    smaller than ``min_insync`` and nothing more could be committed (KIP-966). ``last_known`` had everything and may
    have lost some of it since: evidence decides. ``min_insync`` is part of the state, and not only of the
    configuration, because the promise of ``elr`` depends on it.
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
    """No leader has opened a log for the partition yet, so brokers name no leader to clients: a leader that refused the
    first of two pipelined batches and accepted the second would block an idempotent producer. The first leader clears
    it and appends nothing before that is written, so a new state proves that nothing was ever acknowledged."""
    left: tuple[Member, ...] = ()
    """Members that the controller removed from an ISR that stayed large enough, since a leader last wrote the ISR. That
    leader may be dead too, with its session not over yet."""
    evidence: tuple[Evidence, ...] = ()
    """Reports of replicas while the partition has no leader; with a leader, of those that refuse to truncate."""
    unclean_epoch: int = -1
    """The last leader epoch that an unclean election or an operator began. Only then may a follower truncate what it
    knew to be committed in an earlier epoch."""
    recovery: Recovery | None = None
    recreated_epoch: int = -1
    """The leader epoch in which an operator restored, accepted or rebuilt this state. A log that ends in an earlier
    epoch may have records that no replica of this state has, so this state does not name its removal."""

    def check(self) -> None:
        """Assert the invariants. Tests and the simulator check every state that is written."""
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
        """The replicas that may lead without losing anything: each had everything, so each committed record was in all
        their logs."""
        return (*self.isr, *self.elr, *self.last_known)

    def names_removal(self, log_epoch: int) -> bool:
        """Whether a broker that is no longer a replica deletes its log, which ends in ``log_epoch``.

        A replica is removed in a new epoch, when the others have everything that is committed. A state from an older
        store does not know where the partition has moved since, so it does not name the removal of a log that ends in
        an epoch from before the state was accepted.
        """
        return bool(self.isr) and self.leader_epoch > log_epoch >= self.recreated_epoch

    def evidence_of(self, node_id: int) -> Evidence | None:
        return next((one for one in self.evidence if one.node_id == node_id), None)

    @property
    def needed(self) -> int:
        """The number of in-sync replicas without which nothing is committed; at most all replicas
        (``getEffectiveMinIsr``)."""
        return min(self.min_insync, len(self.replicas))


class TopicRules(NamedTuple):
    """The parts of a topic's configuration that elections need."""

    min_insync: int = 1
    unclean: bool = False
    replicas: int = 0
    """A partition with fewer replicas gets more as brokers join; 0: it keeps those of its creation."""


class VersionedState(NamedTuple):
    """A partition's state and its version for compare-and-set."""

    state: PartitionState
    version: int


class MetadataImage(NamedTuple):
    """All metadata as one reader sees it at one time; topics by their ids."""

    brokers: Mapping[int, BrokerRegistration]
    topics: Mapping[UUID, TopicState]
    partitions: Mapping[tuple[UUID, int], VersionedState]
    rules: Callable[[TopicState], TopicRules]


def encode_refusals(refused: Mapping[str, Refusal]) -> str:
    """As a broker describes its own refused replicas, by ``<topic>-<number>``: see `REFUSED_REPLICAS`."""
    return json.dumps(refused, sort_keys=True, separators=(",", ":"))


def decode_refusals(text: str) -> dict[str, Refusal]:
    """The inverse of `encode_refusals`; nothing of what another software says."""
    try:
        return {name: Refusal(*found[:3]) for name, found in json.loads(text).items()}
    except (ValueError, TypeError, AttributeError):
        return {}


def with_refusals(registration: BrokerRegistration, refused: Mapping[str, Refusal]) -> BrokerRegistration:
    """Return the registration with these refusals, as many and as long as a value of the store may be."""
    kept = {name: refused[name]._replace(reason=refused[name].reason[:MOST_REASON]) for name in sorted(refused)}
    return replace(registration, refused=dict(islice(kept.items(), MOST_REFUSALS)))


def of_partition(brokers: Mapping[int, BrokerRegistration], key: tuple[UUID, int]) -> Mapping[int, BrokerRegistration]:
    """Return the brokers that can serve the partition: without those whose log directory with it has failed."""
    if not any(broker.offline for broker in brokers.values()):
        return brokers
    name = offline_name(*key)
    return {node: broker for node, broker in brokers.items() if not broker.has_offline(name)}


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
    """The inverse of `partition_name`. Raises `InvalidStateError`."""
    try:
        _, topic_id, number = name.split("/")
        return UUID(topic_id), int(number)
    except ValueError as error:
        raise InvalidStateError(f"{name} is not the name of a partition's state") from error


def tombstone_name(topic_id: UUID, node_id: int) -> str:
    """The name of a value that tells a broker to delete its replicas of a deleted topic. The broker removes it when it
    is done."""
    return f"{DELETED}/{topic_id}/{node_id}"


def strays_name(node_id: int) -> str:
    return f"{STRAYS}/{node_id}"


def parse_tombstone_name(name: str) -> tuple[UUID, int]:
    """The inverse of `tombstone_name`. Raises `InvalidStateError`."""
    try:
        _, topic_id, node_id = name.split("/")
        return UUID(topic_id), int(node_id)
    except ValueError as error:
        raise InvalidStateError(f"{name} is not the name of a deleted topic") from error


def generation_of(values: Mapping[str, VersionedValue]) -> int:
    """Return the generation of a store with these values: the version of ``generation``, which each important commit
    raises, plus the base. -1 if no broker was ever registered, or only one of the first release. Raises
    `InvalidStateError`.

    >>> generation_of({"generation": VersionedValue(b"0", 3), "generation/base": VersionedValue(b"100", 0)})
    103
    """
    found, base = values.get(GENERATION), values.get(GENERATION_BASE)
    if base is not None and not base.value.isdigit():
        raise InvalidStateError(f"{GENERATION_BASE} in the metadata store is {base.value[:20]!r}, not a number")
    return (-1 if found is None else found.version) + (0 if base is None else int(base.value))


def encode(value: BrokerRegistration | TopicState | PartitionState) -> bytes:
    told = {"form": _FORM, **{one.name: getattr(value, one.name) for one in fields(value) if one.init}}
    return json.dumps(told, sort_keys=True, separators=(",", ":"), default=str).encode()


def decode_broker(name: str, data: bytes) -> BrokerRegistration:
    return _decode(
        name,
        data,
        lambda told: BrokerRegistration(
            **{
                **{one.name: told[one.name] for one in fields(BrokerRegistration) if one.init and one.name in told},
                "directories": tuple(told["directories"]),
                "offline": tuple(told.get("offline", ())),
                "refused": {name: Refusal(*found[:3]) for name, found in told.get("refused", {}).items()},
                "features": {name: VersionRange(*found) for name, found in told.get("features", {}).items()},
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
    """Decode a state. Equal values are decoded to the same object, as most partitions of a topic are equal."""
    try:
        return _known_partition(data)
    except InvalidStateError:
        return _decode(name, data, _partition)  # for an error with the name


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
            raise InvalidStateError(f"{name} in the metadata store has form {form}: a later seglog wrote it")
        return make(told)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidStateError(f"{name} in the metadata store cannot be read: {error!r}") from error


def _numbers(values: Iterable[int]) -> tuple[int, ...]:
    return tuple(int(value) for value in values)


def _last_known(values: Iterable[int | Iterable[int]]) -> tuple[Member, ...]:
    """These members are from before evidence existed, and have no epoch. Their logs of that time prove nothing."""
    return tuple(Member(value, -1) if isinstance(value, int) else Member(*_numbers(value)) for value in values)


def _recovery(told: list[Any] | None) -> Recovery | None:
    if told is None:
        return None
    leader_epoch, leader, kind, end, furthest = told
    return Recovery(leader_epoch, leader, ElectionKind(kind), end, furthest)


def _members(values: Iterable[Iterable[int]]) -> tuple[Member, ...]:
    return tuple(Member(*_numbers(value)) for value in values)
