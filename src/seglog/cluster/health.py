"""Judges the health of a cluster, from what its brokers or its metadata store say, and gives advice. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from seglog.cluster.model import Evidence, Recovery, Refusal
from seglog.cluster.reassignment_plan import Place

Key = TypeVar("Key", tuple[int, ...], tuple[tuple[int, ...], tuple[int, ...]])


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerStatus:
    """A registered broker. ``epoch`` and ``since`` (the epoch since which it has lost nothing) are known only to the
    metadata store. ``answers``: None if it was not asked. ``failed``: log directories and the reason."""

    node_id: int
    rack: str | None = None
    listeners: Mapping[str, str] = field(default_factory=dict)
    epoch: int | None = None
    since: int | None = None
    is_stopping: bool = False
    answers: bool | None = None
    failed: Mapping[str, str] = field(default_factory=dict)
    full: Mapping[str, int] = field(default_factory=dict)
    """Log directories whose disk is full or nearly full, with their free bytes."""
    strays: int = 0
    stray_bytes: int = 0
    """Replicas that the broker keeps and the cluster does not name."""
    refused: Mapping[Place, Refusal] = field(default_factory=dict)
    """Replicas that the broker does not serve although their disk works, and why. Known only to the metadata store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStatus:
    """A partition. ``ends`` are log end offsets and ``sizes`` bytes on disk, of the replicas that were asked.

    Known only to the metadata store: ``evidence``, ``recovery``, and ``unheard``, the candidates that have not reported
    what they have, or no longer have it.
    """

    topic: str
    number: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int | None
    leader_epoch: int | None = None
    elr: tuple[int, ...] = ()
    last_known: tuple[int, ...] = ()
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    min_insync: int | None = None
    ends: Mapping[int, int] = field(default_factory=dict)
    sizes: Mapping[int, int] = field(default_factory=dict)
    evidence: tuple[Evidence, ...] = ()
    unheard: tuple[int, ...] = ()
    recovery: Recovery | None = None

    @property
    def place(self) -> Place:
        return self.topic, self.number

    @property
    def missing(self) -> tuple[int, ...]:
        """Replicas that are out of sync and stay; those that are being added do not count yet."""
        return tuple(
            node
            for node in self.replicas
            if node not in self.isr and node not in self.adding and node not in self.removing
        )

    @property
    def lacks_min_insync(self) -> bool:
        needed = min(self.min_insync or 1, len(self.replicas))
        return self.leader is not None and len(self.isr) < needed

    def lag(self, node: int) -> int | None:
        """Return how many offsets a replica is behind its leader; None if either was not asked."""
        if self.leader is None or self.leader not in self.ends or node not in self.ends:
            return None
        return max(self.ends[self.leader] - self.ends[node], 0)

    def lag_bytes(self, node: int) -> int | None:
        """As `lag`, in bytes, as far as sizes on disk show it: each replica deletes segments at its own time."""
        if self.leader is None or self.leader not in self.sizes or node not in self.sizes:
            return None
        return max(self.sizes[self.leader] - self.sizes[node], 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterStatus:
    """The whole cluster at about one time."""

    cluster_id: str
    controller: int | None
    brokers: Mapping[int, BrokerStatus]
    partitions: tuple[PartitionStatus, ...]


class HealthFinding(NamedTuple):
    """Something that is wrong. ``kind``: a word for programs; ``advice``: one line for people."""

    kind: str
    what: str
    advice: str
    places: tuple[Place, ...] = ()


def judge(seen: ClusterStatus) -> list[HealthFinding]:
    """Return the findings, the worst first; none for a healthy cluster. A reassignment in progress is not a finding."""
    return [
        *_no_leader(seen),
        *_refused(seen),
        *_cuts_refused(seen),
        *_too_few_in_sync(seen),
        *_gone(seen),
        *_brokers(seen),
        *_under_replicated(seen),
        *_strays(seen),
    ]


def _no_leader(seen: ClusterStatus) -> Iterator[HealthFinding]:
    if seen.controller is None:
        yield HealthFinding(
            "no-controller",
            "the cluster has no controller: no leader is elected",
            "if this lasts, check the brokers' logs, and whether they reach the metadata store",
        )
    for (nodes, refusing), places in _grouped(
        ((nodes := tuple(sorted({*one.isr, *one.elr})), _refusing(seen, one, nodes)), one)
        for one in seen.partitions
        if one.leader is None
    ):
        if not nodes:
            yield from _only_last_known(seen, places)
            continue
        away = [node for node in nodes if node not in seen.brokers]
        if refusing and len(refusing) + len(away) == len(nodes):
            first = f"start {_brokers_named(away, 'or')}, or " if away else ""
            advice = (
                f"{first}repair the replica on {_brokers_named(refusing, 'or')}; refused-replica says how. {_CHOOSE}"
            )
        elif not away:
            advice = f"{_brokers_named(nodes)} may lead and is registered: wait for the controller"
        else:
            who = "it can lead" if len(away) == 1 else "the first of them can lead"
            advice = f"start {_brokers_named(away, 'or')}, with its own disk: {who}. {_CHOOSE}"
        yield HealthFinding("no-leader", f"{_count(places)} without a leader: {_named(places)}", advice, places)


def _only_last_known(seen: ClusterStatus, places: tuple[Place, ...]) -> Iterator[HealthFinding]:
    """No replica is known to have everything: those that had it last must all report what they have."""
    partitions = [one for one in seen.partitions if one.place in set(places)]
    for (nodes, refusing), some in _grouped(
        ((nodes := tuple(sorted(one.unheard or one.last_known)), _refusing(seen, one, nodes)), one)
        for one in partitions
    ):
        there = [node for node in nodes if node in seen.brokers]
        away = [node for node in nodes if node not in seen.brokers]
        if refusing:
            first = f"start {_brokers_named(away)}, and " if away else ""
            advice = f"{first}repair the replica on {_brokers_named(refusing)}; refused-replica says how. {_CHOOSE}"
        elif not nodes:
            advice = f"no replica is known to have everything. {_CHOOSE}"
        elif away:
            own = "with its own disk: its log" if len(away) == 1 else "each with its own disk: their logs"
            advice = f"start {_brokers_named(away)}, {own} will decide. {_CHOOSE}"
        else:
            advice = (
                f"the data of {_brokers_named(there)} is gone, or not reported yet. If a disk was removed: stop the "
                f"broker, put the disk back, and start the broker. {_CHOOSE}"
            )
        yield HealthFinding("no-leader", f"{_count(some)} without a leader: {_named(some)}", advice, some)


_CHOOSE = (
    "If the disk is lost for good: seglog cluster choose-leader TOPIC PARTITION shows what each replica has and lets "
    "one lead; records that only the lost disk had are lost"
)


def _refusing(seen: ClusterStatus, partition: PartitionStatus, nodes: Iterable[int]) -> tuple[int, ...]:
    """Those of the brokers that refuse their replica of the partition."""
    return tuple(node for node in nodes if node in seen.brokers and partition.place in seen.brokers[node].refused)


def _refused(seen: ClusterStatus) -> Iterator[HealthFinding]:
    """Replicas that their brokers do not serve: most are damaged."""
    partitions = {one.place: one for one in seen.partitions}
    for node, broker in sorted(seen.brokers.items()):
        for place, refusal in sorted(broker.refused.items()):
            partition = partitions.get(place)
            if partition is None or node not in partition.replicas:
                continue
            where = refusal.directory or f"the directory of {place[0]}-{place[1]}"
            advice = f"stop broker {node}; seglog repair {where} shows the damage and what can be done; start it again"
            if not refusal.is_damaged:
                advice = f"remove the cause; if the replica is not served then, start broker {node} again"
            elif partition.leader is not None:
                advice = (
                    f"stop broker {node}, move {where} away, and start it: it copies the partition from broker "
                    f"{partition.leader}. Or keep what is there: seglog repair {where}"
                )
            yield HealthFinding(
                "refused-replica",
                f"broker {node} does not serve its replica of {place[0]}-{place[1]}: {refusal.reason}",
                advice,
                (place,),
            )


def _cuts_refused(seen: ClusterStatus) -> Iterator[HealthFinding]:
    """Replicas that keep what their leader does not have."""
    for one in seen.partitions:
        for said in one.evidence:
            if said.refused_cut >= 0 and one.leader is not None:
                name, offsets = f"{one.topic}-{one.number}", f"{said.refused_cut} to {said.high_watermark - 1}"
                yield HealthFinding(
                    "cut-refused",
                    f"broker {said.node_id} keeps offsets {offsets} of {name}, which were committed but leader "
                    f"{one.leader} does not have: it is not in sync",
                    f"seglog cluster choose-leader {one.topic} {one.number} --node {said.node_id} lets it lead; with "
                    f"--node {one.leader} it saves a copy and truncates them",
                    (one.place,),
                )


def _too_few_in_sync(seen: ClusterStatus) -> Iterator[HealthFinding]:
    lacking = (one for one in seen.partitions if one.lacks_min_insync)
    for nodes, places in _grouped((tuple(sorted(one.missing)), one) for one in lacking):
        yield HealthFinding(
            "under-min-isr",
            f"{_count(places)} with fewer replicas in sync than min.insync.replicas: {_named(places)}",
            f"producers with acks=all are refused until {_brokers_named(nodes, 'or')} is in sync again",
            places,
        )


def _gone(seen: ClusterStatus) -> Iterator[HealthFinding]:
    """Brokers whose session is over, before the controller has decided about their partitions."""
    counted = ((node, one) for one in seen.partitions if one.leader is not None for node in {one.leader, *one.isr})
    for (node,), places in _grouped(((node,), one) for node, one in counted if node not in seen.brokers):
        yield HealthFinding(
            "broker-gone",
            f"broker {node} is gone, and is still in the ISR of {_count(places)}: {_named(places)}",
            "check again: the controller is about to remove it and to elect other leaders",
            places,
        )


def _brokers(seen: ClusterStatus) -> Iterator[HealthFinding]:
    for node, broker in sorted(seen.brokers.items()):
        last = tuple(one.place for one in seen.partitions if _may_be_last(one, node, seen))
        for directory, reason in broker.failed.items():
            yield HealthFinding(
                "log-dir-failed",
                f"broker {node}: log directory {directory}: {reason}",
                f"keep the disk: it may have the last copy of {_count(last)}. Repair or copy it, and start the broker "
                "again"
                if last
                else f"replace the disk, start the broker again, then seglog cluster replace-disk {node}",
                last,
            )
        for directory, free in broker.full.items():
            yield HealthFinding(
                "log-dir-full",
                f"broker {node}: log directory {directory} is full: {free} bytes are free",
                "delete records (retention.bytes, retention.ms, DeleteRecords) or topics, or enlarge the disk; "
                "the broker then continues by itself. Do not remove files by hand",
            )
        if broker.answers is False:
            yield HealthFinding(
                "broker-silent",
                f"broker {node} is registered and does not answer at {', '.join(broker.listeners.values())}",
                "it has just died (check again when its session is over), hangs, or cannot be reached from here",
            )


def _may_be_last(partition: PartitionStatus, node: int, seen: ClusterStatus) -> bool:
    """Whether no other registered broker is known to have all of it."""
    others = {one for one in partition.isr if one != node and one in seen.brokers}
    return node in partition.replicas and (partition.leader is None or not others)


def _under_replicated(seen: ClusterStatus) -> Iterator[HealthFinding]:
    lacking: dict[int, list[PartitionStatus]] = {}
    for partition in seen.partitions:
        for node in partition.missing if partition.leader is not None else ():  # `_no_leader` reports the others
            if _refusing(seen, partition, (node,)):
                continue  # as `_refused` says
            lacking.setdefault(node, []).append(partition)
    for node, partitions in sorted(lacking.items()):
        places = tuple(one.place for one in partitions)
        broker = seen.brokers.get(node)
        if broker is None:
            what = f"broker {node} is not registered: {_count(places)} lack its replica"
            advice = _come_back(node, all(set(seen.brokers) - set(one.replicas) for one in partitions))
        else:
            left = sum(one.lag_bytes(node) or 0 for one in partitions)
            offsets = sum(one.lag(node) or 0 for one in partitions)
            what = f"broker {node} is not in sync in {_count(places)}: {offsets} offsets, {left} bytes behind"
            advice = (
                "it is stopping" if broker.is_stopping else "it catches up; if the numbers do not fall, check its log"
            )
        yield HealthFinding("under-replicated", f"{what}: {_named(places)}", advice, places)


def _strays(seen: ClusterStatus) -> Iterator[HealthFinding]:
    for node, broker in sorted(seen.brokers.items()):
        if broker.strays:
            replicas = "1 replica" if broker.strays == 1 else f"{broker.strays} replicas"
            yield HealthFinding(
                "strays",
                f"broker {node} keeps {replicas} that the cluster does not name: {broker.stray_bytes} bytes",
                "seglog cluster strays DIR... on its machine lists them; if they are not needed, remove them with "
                "--remove NAME or --remove-all",
            )


# Words


def _come_back(node: int, can_be_removed: bool) -> str:
    """``can_be_removed``: each partition has a broker without a replica of it."""
    first = "" if can_be_removed else "start another one, then "
    return (
        f"start broker {node}, with an empty disk if its own is lost: it copies what it lacks; if it will not come "
        f"back: {first}seglog cluster remove-broker {node}"
    )


def _grouped(pairs: Iterable[tuple[Key, PartitionStatus]]) -> list[tuple[Key, tuple[Place, ...]]]:
    groups: dict[Key, list[Place]] = {}
    for nodes, partition in pairs:
        groups.setdefault(nodes, []).append(partition.place)
    return [(nodes, tuple(places)) for nodes, places in sorted(groups.items())]


def _count(places: tuple[Place, ...]) -> str:
    return "1 partition" if len(places) == 1 else f"{len(places)} partitions"


def _named(places: tuple[Place, ...], most: int = 5) -> str:
    """
    >>> _named((("t", 0), ("t", 1)), most=1)
    't-0 and 1 more'
    """
    text = ", ".join(f"{topic}-{number}" for topic, number in places[:most])
    return text if len(places) <= most else f"{text} and {len(places) - most} more"


def _brokers_named(nodes: Iterable[int], word: str = "and") -> str:
    """
    >>> _brokers_named([1, 2, 3], "or")
    'broker 1, 2 or 3'
    """
    texts = [str(node) for node in nodes]
    if len(texts) < 2:
        return f"broker {texts[0]}" if texts else "another broker"
    return f"broker {', '.join(texts[:-1])} {word} {texts[-1]}"
