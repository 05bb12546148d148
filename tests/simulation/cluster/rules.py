"""The rules that specifications of Kafka's replication state, looked at after every event of a simulated world.

From Kip320.tla: StrongIsr (what a leader has committed is the same on all members of the true ISR). From Vanlightly's
models (3.5, KIP-966): LeaderCandidateCompleteness, LogMatching, ReplicationQuorumSuperset, UncleanExclusion (in
`History.written` and by completeness), and a visible high watermark that does not go back. Bytes are compared now and
then, offsets always.
"""

from __future__ import annotations

from contextlib import suppress
from itertools import pairwise
from typing import TYPE_CHECKING

from seglog.cluster.model import Member, PartitionState
from seglog.core.errors import LogDirOfflineError
from seglog.core.types import NO_EPOCH
from seglog.replication.progress import Progress
from seglog.replication.replica import Replica
from seglog.storage.log.log import Log
from tests.simulation.cluster.contents import bytes_of, records_of
from tests.simulation.cluster.stable_offsets import StableOffsets

if TYPE_CHECKING:
    from tests.simulation.cluster.cluster import Cluster
    from tests.simulation.cluster.host import Host

_COMPARE_SECONDS = 0.5
Facts = tuple[int, int, int, int, int, int, Progress | None, PartitionState | None, int]
"""End, high watermark, start and recovery point of a log; version and epoch of its state; who leads it; what is
proposed; where a cut was refused."""


class Rules:
    """``committed``: of each partition the highest high watermark that any leader has had."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.committed = dict.fromkeys(range(cluster.scenario.partitions), 0)
        self._shown: dict[int, dict[int, tuple[int, int]]] = {number: {} for number in self.committed}
        self._floors: dict[tuple[int, int], tuple[Replica, int, int]] = {}
        """Of each replica its high watermark, and the epoch of the record just below that."""
        self._seen: dict[int, dict[int, _Seen]] = {}
        """The state of each host's replicas at the last check."""
        self._agreed: dict[tuple[int, int], tuple[Replica, int]] = {}
        """Of each replica the epoch in which its log was last known to be a part of the leader's."""
        self._stable = StableOffsets()
        cluster.world.after(_COMPARE_SECONDS, self._compare_again)

    def forget(self, number: int) -> None:
        """An unclean election: nothing counts as committed."""
        self.committed[number] = 0
        self._shown[number].clear()

    def look(self, host: Host) -> None:
        """After each step of a broker's: what can be seen of its replicas."""
        node = host.node
        assert node is not None
        for directory in node.directories.dirs:
            if directory.health.failure is not None:
                assert directory.path in host.failed, f"P19: {host.host} gives up {directory.path}"
        me = node.membership.me
        if me is not None:
            assert host.loop is not None
            is_ours = me.epoch in self.cluster.entered.get(host.loop, ())
            assert is_ours, f"P16: broker {host.node_id} speaks in epoch {me.epoch} of another life"
        seen = self._seen.get(host.node_id)
        if seen is None:
            seen = self._seen[host.node_id] = {}
        for number, replica in host.followed():
            log, progress = replica.log, replica.progress
            facts = (
                log.log_end_offset,
                log.high_watermark,
                log.log_start_offset,
                log.recovery_point,
                replica.version,
                replica.leader_epoch,
                progress,
                None if progress is None else progress.proposed,
                replica.refused_cut,
            )
            former = seen.get(number)
            if former is None or former.replica is not replica:
                former = _Seen(replica, (0, 0, 0, 0, -1, NO_EPOCH, None, None, -1))
                seen[number] = former
            elif former.facts == facts:
                continue
            before, former.facts = former.facts, facts
            with suppress(LogDirOfflineError):  # its disk has failed since, and it serves nobody
                self._look_at(host, number, replica, before)

    def _look_at(self, host: Host, number: int, replica: Replica, before: Facts) -> None:
        log, progress, history = replica.log, replica.progress, self.cluster.history
        start, stable, high, end = log.log_start_offset, log.last_stable_offset, log.high_watermark, log.log_end_offset
        assert start <= stable <= high <= end, f"B-9: {host.host}: {number}: {start} {stable} {high} {end}"
        assert log.recovery_point <= end, f"B-9: {host.host}: {number} is flushed up to {log.recovery_point} of {end}"
        assert high <= log.flushed_end, f"flush: {host.host}: {number} shows {high}, and has flushed {log.flushed_end}"
        if self.cluster.scenario.coordinators:
            self._stable.look(f"{host.host}: {number}", replica.log)
        epoch = replica.leader_epoch
        if epoch != NO_EPOCH:  # else it could not be taken up, on a full disk
            known = before[5]
            assert epoch >= known, f"P6: {host.host} goes back to epoch {epoch} of {number} from {known}"
        if replica.refused_cut >= 0 and before[8] != replica.refused_cut:
            history.cut_refused(host.node_id, number, replica)
        self._check_floor((host.node_id, number), replica)
        if progress is not None:
            begins = before[6] is None or before[5] != epoch
            if begins:
                self.cluster.world.note("leads", host.node_id, number, epoch)
                latest = log.epochs.latest
                assert latest == epoch, f"B-5: {host.host} leads {number} in epoch {epoch}, its log knows {latest}"
                history.leads(number, epoch, Member(host.node_id, _epoch_of(progress)), log)
            since = progress.epoch_start if begins else before[0]
            if end > since:
                history.appends(host, number, epoch, records_of(log, max(since, start), end))
            if replica.leads and replica.knows_committed:
                self.shown(number, epoch, high)
            if epoch >= history.unclean_epoch[number]:
                self.committed[number] = max(self.committed[number], high)
                self._check_quorum(host, number, replica)
        self.check_candidates(number)

    def _check_floor(self, key: tuple[int, int], partition: Replica) -> None:
        """A high watermark that a replica knew goes back only if an unclean election came after its last record."""
        log = partition.log
        seen, high, epoch = self._floors.get(key, (partition, 0, -1))
        if seen is partition and log.high_watermark < high:
            assert epoch < partition._unclean_epoch, f"floor: {key} goes back from {high} to {log.high_watermark}"
        high = log.high_watermark if log.log_start_offset < log.high_watermark else 0
        # One that was begun anew within a batch of the leader's holds nothing yet, and goes back to where that begins
        self._floors[key] = partition, high, log.epochs.epoch_for_offset(high - 1)

    def _check_quorum(self, host: Host, number: int, partition: Replica) -> None:
        """ReplicationQuorumSuperset: a leader that may commit counts all who may be elected."""
        state, progress = self.cluster.history.states[number], partition.progress
        assert progress is not None
        if state.leader_epoch != partition.leader_epoch or not progress.has_enough:
            return
        counted = {*progress.state.isr, *(progress.proposed.isr if progress.proposed is not None else ())}
        electable = {*state.isr, *state.elr}
        assert electable <= counted, (
            f"ReplicationQuorumSuperset: {host.host} counts {sorted(counted)} of {sorted(electable)} in {number}"
        )
        enough = len(progress.state.isr) >= progress.state.needed
        assert enough, f"B-12: {host.host} commits {number} with {progress.state}"

    def check_candidates(self, number: int) -> None:
        """LeaderCandidateCompleteness: who may be elected has all that is committed."""
        committed, state = self.committed[number], self.cluster.history.states.get(number)
        for member in (*state.isr, *state.elr) if state is not None else ():
            log = self._log_of(member, number)
            if log is not None and log.log_end_offset < committed:
                raise AssertionError(
                    f"LeaderCandidateCompleteness: {member} ends at {log.log_end_offset}, {number} is committed up to "
                    f"{committed}: {state}"
                )

    def _log_of(self, member: Member, number: int) -> Log | None:
        """Of one who still is who it was when it had everything, as far as that can be seen."""
        host = self.cluster.hosts[member.node_id]
        me = host.me
        if me is None or (member != me and (host.kept_since is None or host.kept_since > member.epoch)):
            return None
        replica = host.replicas.get(number)
        return None if replica is None else replica.log

    def shown(self, number: int, epoch: int, high_watermark: int) -> None:
        """P5: the high watermark does not go back, except for a client that returns to an earlier leader (KIP-207)."""
        if epoch < self.cluster.history.unclean_epoch[number]:
            return
        shown = self._shown[number]
        for other, (least, most) in shown.items():
            assert other > epoch or most <= high_watermark, (
                f"P5: {number} shows {high_watermark} in epoch {epoch} after {most} in {other}"
            )
            assert other <= epoch or high_watermark <= least, (
                f"P5: {number} shows {high_watermark} in epoch {epoch}, and {least} in {other}"
            )
        least, _ = shown.get(epoch, (high_watermark, 0))
        shown[epoch] = (least, high_watermark)

    # Whose log is the leader's

    def agreed(self, host: Host, number: int) -> int:
        """The epoch in which the log of this replica was last known to be a part of the leader's; -1: in none."""
        replica = host.replicas.get(number)
        if replica is None:
            return -1
        if replica.progress is not None:
            return replica.leader_epoch
        key = (host.node_id, number)
        leader = self.cluster.hosts.get(replica.leader)
        me = host.me
        if leader is not None and me is not None:
            leading = leader.replicas.get(number)
            if leading is not None and leading.progress is not None and leading.leader_epoch == replica.leader_epoch:
                follower = leading.progress.followers.get(host.node_id)
                if follower is not None and follower.broker_epoch == me.epoch and follower.end_offset >= 0:
                    self._agreed[key] = replica, replica.leader_epoch
        known = self._agreed.get(key)
        return known[1] if known is not None and known[0] is replica else -1

    # Bytes

    def _compare_again(self) -> None:
        self.compare()
        self.cluster.world.after(_COMPARE_SECONDS, self._compare_again)

    def compare(self, *, whole: bool = False) -> None:
        """LogMatching (P4) and StrongIsr; with ``whole`` P7: the logs are equal to their ends.

        A replica that has not yet asked anyone since it was started may have lost the end below its high watermark, and
        got back an older one, where several lose their power: it knows so when it asks.
        """
        for number, state in self.cluster.history.states.items():
            hosts = [host for host in self.cluster.hosts.values() if number in host.replicas]
            agreeing = [host for host in hosts if self._agrees(host, number)]
            for one, other in pairwise(agreeing):
                self._compare(number, one, other, min(_high(one, number), _high(other, number)), "P4")
            for leader in agreeing:
                if leader.replicas[number].progress is not None:
                    self._check_isr(number, state, leader)
            if whole:
                ends = {(one.replicas[number].log.log_end_offset, _high(one, number)) for one in hosts}
                assert len(ends) == 1, f"P7: partition {number} ends apart: {ends}"

    def _agrees(self, host: Host, number: int) -> bool:
        epoch = self.agreed(host, number)
        if epoch == -1:
            return not self.cluster.scenario.may_lose
        return epoch >= self.cluster.history.unclean_epoch[number]

    def _check_isr(self, number: int, state: PartitionState, leader: Host) -> None:
        for member in state.isr:
            host = self.cluster.hosts[member.node_id]
            if host is not leader and host.me == member and number in host.replicas:
                self._compare(number, leader, host, _high(leader, number), "StrongIsr")

    def _compare(self, number: int, one: Host, other: Host, end: int, what: str) -> None:
        first, second = one.replicas[number].log, other.replicas[number].log
        start = max(first.log_start_offset, second.log_start_offset)
        if start < end and bytes_of(first, start, end) != bytes_of(second, start, end):
            raise AssertionError(f"{what}: {number} from {start} to {end} of {one.host} and {other.host}")


class _Seen:
    __slots__ = ("facts", "replica")

    def __init__(self, replica: Replica, facts: Facts) -> None:
        self.replica = replica
        self.facts = facts


def _epoch_of(progress: Progress) -> int:
    return next(member.epoch for member in progress.state.isr if member.node_id == progress.node_id)


def _high(host: Host, number: int) -> int:
    return host.replicas[number].log.high_watermark
