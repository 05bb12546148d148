"""The answers that clients of a simulated world got, checked against the promises of replication.

P1: no acknowledged record is lost. P3: an offset that was read keeps its record. P7: replicas are equal in the end. Two
checks concern what clients never see: who leads (P6), and how one state follows another. An unclean election voids all
promises that were made before it, and none that are made after it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from seglog.cluster.model import ANY_EPOCH, NO_LEADER, BrokerRegistration, ElectionKind, Member, PartitionState
from seglog.replication.replica import Replica
from seglog.storage.log.log import Log
from tests.simulation.cluster.contents import TOPIC, number_of, records_of, values_kept, values_of
from tests.simulation.cluster.host import SESSION_MS

if TYPE_CHECKING:
    from tests.simulation.cluster.cluster import Cluster
    from tests.simulation.cluster.host import Host


def _kind(state: PartitionState) -> ElectionKind | None:
    """Why its leader was elected; None if it was in sync, or eligible."""
    recovery = state.recovery
    return recovery.kind if recovery is not None and recovery.leader_epoch == state.leader_epoch else None


class History:
    """By partition: what was acknowledged and read at which offset, up to where something was to be deleted, and the
    epoch of the last unclean election."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        numbers = range(cluster.scenario.partitions)
        self.acknowledged: dict[int, dict[int, int]] = {number: {} for number in numbers}
        self.read: dict[int, dict[int, int]] = {number: {} for number in numbers}
        self.promised: dict[int, dict[int, int]] = {number: {} for number in numbers}
        """The values that were acknowledged, with their offsets: also those of a store that went back since, and does
        not know where they are."""
        self.deleted = dict.fromkeys(numbers, 0)
        self.unclean_epoch = dict.fromkeys(numbers, -1)
        self.leaders: dict[tuple[int, int], Member] = {}
        self.states: dict[int, PartitionState] = {}
        self.registered: dict[Member, BrokerRegistration] = {}
        self.appended: dict[int, tuple[int, int]] = {}
        """Of each value the leader epoch in which it was appended last, and its offset."""
        self.refused: set[int] = set()
        """Values of writes that were denied, or will be."""
        self.in_doubt: set[int] = set()
        """Values that were written with acks=1."""
        self.attempts = 0
        self.blackouts = 0
        """How often all machines lost their power, and what was not flushed with it."""
        self.refusals = 0

    # The store

    def written(self, number: int, state: PartitionState) -> None:
        """A state came into the store: it is a sound one, and follows from the last."""
        # Who cancels a move may take the leader out of the replicas: it resigns, and another is elected
        is_left = state.leader not in state.replicas
        (replace(state, leader=NO_LEADER) if is_left else state).check()
        former = self.states.get(number)
        self.states[number] = state
        if former is None:
            return
        self.cluster.world.note("state", number, state)
        is_new_epoch = state.leader_epoch > former.leader_epoch
        assert is_new_epoch or state.leader_epoch == former.leader_epoch, (
            f"P6: {number} goes back from {former} to {state}"
        )
        assert is_new_epoch or state.leader == former.leader, f"P6: another leader in the same epoch: {former}, {state}"
        if is_new_epoch and state.leader != NO_LEADER and not is_left:
            me = next(member for member in state.isr if member.node_id == state.leader)
            self._check_evidence(number, former, state)
            if not self._is_longest_whole(former, state) and not self._has_kept(self.registered[me], former):
                self._elected_uncleanly(number, former, state)

    def _is_longest_whole(self, former: PartitionState, state: PartitionState) -> bool:
        """Whether the longest log has everything, though no replica says so: all replicas were asked, as an accepted
        store does, and no more was lost than may be; or each append was flushed, though nothing says so."""
        is_asked = any(member.epoch == ANY_EPOCH for member in former.candidates) or self.cluster.scenario.flushed
        return is_asked and not self.blackouts and _kind(state) is ElectionKind.LONGEST

    def _has_kept(self, broker: BrokerRegistration, former: PartitionState) -> bool:
        """Whether a new leader has all that it had as a candidate, by what its broker says, or its log; or all that
        another candidate has that provably lost nothing."""
        evidence = former.evidence_of(broker.node_id)
        has_own = any(
            broker.has_kept(member) or (evidence is not None and broker.proves(evidence, member))
            for member in former.candidates
            if member.node_id == broker.node_id
        )
        return has_own or any(
            self.registered[Member(one.node_id, one.epoch)].proves(one, member)
            and evidence is not None
            and (evidence.last_epoch, evidence.end) >= (one.last_epoch, one.end)
            for one in former.evidence
            for member in former.candidates
        )

    def _check_evidence(self, number: int, former: PartitionState, state: PartitionState) -> None:
        """An election chooses among those that had everything, and whose disks still are those that had it."""
        kind = _kind(state)
        if kind is None and any(one.node_id == state.leader and one in former.isr for one in state.isr):
            return  # in sync in a session that is not over: if its broker is in another life, it is elected anew
        if kind in (ElectionKind.UNCLEAN, ElectionKind.CHOSEN):
            scenario = self.cluster.scenario
            is_allowed = scenario.may_lose if kind is ElectionKind.CHOSEN else scenario.unclean
            assert is_allowed, f"UncleanExclusion: {state} after {former}"
            return
        if former.is_new and kind is None:
            was_written = self.acknowledged[number] or self.cluster.rules.committed[number]
            assert not was_written, f"new: records were acknowledged before {state} began again after {former}"
            return
        candidates = {member.node_id: member for member in former.candidates}
        left = {member.node_id: member for member in former.left} if kind is ElectionKind.LONGEST else {}
        electable = {**left, **candidates}
        assert state.leader in electable, f"candidates: {state.leader} leads after {former}"
        said = former.evidence_of(state.leader)
        assert kind is None or (said is not None and Member(said.node_id, said.epoch) in state.isr), (
            f"evidence: {state.leader} leads by what it said in an earlier life: {state} after {former}"
        )
        needed = [electable[state.leader], *(candidates.values() if kind is ElectionKind.LONGEST else ())]
        for member in needed:
            host, heard = self.cluster.hosts[member.node_id], former.evidence_of(member.node_id)
            epoch = heard.epoch if heard is not None else state.isr[0].epoch
            # What is done to it later nobody can know yet.
            is_replaced = max(member.epoch, 0) <= host.emptied_at < epoch  # an accepted store asks in any epoch
            assert not is_replaced, f"evidence: the disk of {member} was replaced: {state} after {former}"

    def cut_refused(self, node_id: int, number: int, replica: Replica) -> None:
        """The floor under every cut is met only where an operator, or more losses than are promised, took data. A store
        that went back may not know of it."""
        self.refusals += 1
        is_forgotten = self.unclean_epoch[number] > self.states[number].unclean_epoch
        assert self.cluster.scenario.unclean or self.blackouts or is_forgotten, (
            f"floor: broker {node_id} refuses to cut {number} at {replica.refused_cut} of {replica.log.high_watermark}"
        )

    def _elected_uncleanly(self, number: int, former: PartitionState, state: PartitionState) -> None:
        had_nothing = self.cluster.rules.committed[number] == 0
        is_chosen = state.unclean_epoch == state.leader_epoch  # and allowed: see `_check_evidence`
        may_lose = is_chosen or self.blackouts or self.cluster.scenario.unclean
        assert may_lose or had_nothing, f"UncleanExclusion: {state.leader} leads after {former}"
        self.cluster.world.note("unclean", number, state.leader_epoch)
        self.promised[number].clear()
        self._forget(number, state.leader_epoch)

    def _forget(self, number: int, epoch: int) -> None:
        self.unclean_epoch[number] = epoch
        self.acknowledged[number].clear()
        self.read[number].clear()
        self.cluster.rules.forget(number)

    def accepted(self, number: int, former: PartitionState) -> None:
        """An operator accepted an older store when ``former`` was the state. If the partition was moved since, its new
        replicas are not asked; what only they have is kept."""
        state = self.states[number]
        if not set(former.replicas) <= set(state.replicas):
            self.cluster.world.note("moved", number, state.leader_epoch)
            self._forget(number, state.leader_epoch)

    def removes(self, host: Host, path: str) -> None:
        """P22: a log file is about to be deleted with its replica. Nothing is deleted but what others have, however old
        the store is that names the removal."""
        number = number_of(path, TOPIC)
        if number is None or self.blackouts or self.cluster.scenario.retention:
            return
        promised, deleted = self.promised[number], self.deleted[number]
        here = {value for value in values_of(host.disk.read(path)) if promised.get(value, -1) >= deleted}
        for other in self.cluster.hosts.values():
            if here and other is not host:
                here -= values_kept(other.disk.files(), TOPIC, number)
        assert not here, f"P22: broker {host.node_id} deletes the only log of {number} that has {sorted(here)}"

    # Leaders

    def leads(self, number: int, epoch: int, who: Member, log: Log) -> None:
        """P6; LeaderCompleteness: it has everything that was acknowledged."""
        first = self.leaders.setdefault((number, epoch), who)
        assert first == who, f"P6: {first} and {who} lead partition {number} in epoch {epoch}"
        if epoch >= self.unclean_epoch[number] and epoch == self.states[number].leader_epoch:
            self._check_has_all(number, log, f"LeaderCompleteness: broker {who.node_id} leads in epoch {epoch}")

    def _check_has_all(self, number: int, log: Log, what: str) -> None:
        start = log.log_start_offset
        there = dict(records_of(log, start, log.log_end_offset))
        for offset, value in self.acknowledged[number].items():
            if offset >= start:
                found = there.get(offset)
                assert found == value, f"P1: {what}, and has {found} at {number}:{offset} instead of {value}"
        self._check_start(number, log)

    def _check_start(self, number: int, log: Log) -> None:
        """Only records that were to be deleted are gone."""
        if not self.cluster.scenario.retention:
            start, may = log.log_start_offset, self.deleted[number]
            assert start <= may, f"P13: {number} begins at {start}, and only what is below {may} was to go"

    def deletes(self, number: int, before: int) -> None:
        self.deleted[number] = max(self.deleted[number], before)

    # Clients

    def appends(self, host: Host, number: int, epoch: int, records: list[tuple[int, int]]) -> None:
        """A leader has appended these. P18: with acks=1 only if the store has confirmed its session within its time;
        one that was paused may answer once before it finds out."""
        for offset, value in records:
            self.appended[value] = epoch, offset
            assert value not in self.refused, f"P27: {host.node_id} appends {value} to {number}, which was denied"
            if value in self.in_doubt:
                silent = host.seconds_unconfirmed
                is_late = silent > SESSION_MS / 1000 and host.world.now - host.woken_at > SESSION_MS / 1000
                assert not is_late, (
                    f"P18: {host.node_id} takes acks=1 for {number} {silent:.3f} s after the store was there"
                )

    def refuses(self, value: int) -> None:
        assert value not in self.appended, f"P27: {value} was denied, and is at {self.appended[value]}"
        self.refused.add(value)

    def acknowledge(self, number: int, offset: int, value: int) -> None:
        assert value in self.appended, (
            f"P1: {value} was acknowledged at {number}:{offset}, and no leader has appended it"
        )
        epoch, there = self.appended[value]
        assert there == offset, f"P1: {value} was acknowledged at {number}:{offset}, it was appended at {there}"
        if epoch < self.unclean_epoch[number]:
            return
        self.promised[number][value] = offset
        found = self.acknowledged[number].setdefault(offset, value)
        assert found == value, f"P1: {found} and {value} were both acknowledged at {number}:{offset}"
        seen = self.read[number].get(offset, value)
        assert seen == value, f"P3: {seen} was read at {number}:{offset} where {value} is acknowledged"

    def consumed(self, number: int, epoch: int, high_watermark: int, records: list[tuple[int, int]]) -> None:
        """P3, and P1 as consumers see it; nothing is left out. ``epoch``: that in which the log that was read was known
        to be the leader's."""
        if epoch < self.unclean_epoch[number]:
            return
        read, acknowledged = self.read[number], self.acknowledged[number]
        for index, (offset, value) in enumerate(records):
            assert offset < high_watermark, f"P5: {number}:{offset} is read above {high_watermark}"
            assert offset == records[0][0] + index, f"P1: {number}:{offset} comes after {records[:index]}"
            first = read.setdefault(offset, value)
            assert first == value, f"P3: {number}:{offset} was {first} and is {value}"
            promised = acknowledged.get(offset, value)
            assert promised == value, f"P1: {promised} was acknowledged at {number}:{offset}, {value} is there"

    def at_the_end(self) -> None:
        """P1 and P7: everything acknowledged is there, everywhere."""
        self.cluster.rules.compare(whole=True)
        for host in self.cluster.hosts.values():
            for number, replica in host.replicas.items():
                self._check_has_all(number, replica.log, f"broker {host.node_id} has it")
