"""The rules that specifications of Kafka's replication state, looked at after every event of a simulated world.

From Kip320.tla: StrongIsr (what a leader has committed is the same on all members of the true ISR). From Vanlightly's
models (3.5, KIP-966): LeaderCandidateCompleteness, LogMatching, ReplicationQuorumSuperset, UncleanExclusion (in
`History.written` and by completeness), and a visible high watermark that does not go back. Bytes are compared now and
then, offsets always.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from seglog.cluster.model import Member, PartitionState
from seglog.core.types import NO_EPOCH
from seglog.replication.replica import Replica
from seglog.storage.log.log import Log
from tests.replication.contents import bytes_of

if TYPE_CHECKING:
    from tests.replication.node import Node
    from tests.replication.simulator import World

_COMPARE_EVERY = 300


class Rules:
    """``committed``: of each partition the highest high watermark that any leader has had."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.committed = dict.fromkeys(range(world.scenario.partitions), 0)
        self._shown: dict[int, dict[int, tuple[int, int]]] = {number: {} for number in self.committed}
        self._epochs: dict[tuple[int, int, int], int] = {}
        self._floors: dict[tuple[int, int], tuple[Replica, int, int]] = {}
        """Of each replica its high watermark, and the epoch of the record just below that."""

    def forget(self, number: int) -> None:
        """An unclean election: nothing counts as committed."""
        self.committed[number] = 0
        self._shown[number].clear()

    def check(self) -> None:
        """After each event: what can be seen of offsets; the comparison of logs now and then."""
        world = self.world
        if world.touched:
            for node_id in sorted(world.touched):
                node = world.nodes[node_id]
                for number, partition in node.partitions.items():
                    self._check_replica(node, number, partition)
            world.touched.clear()
        for number, state in world.history.states.items():
            self._check_candidates(number, state)
        if world.events % _COMPARE_EVERY == 0:
            self.compare()

    def _check_replica(self, node: Node, number: int, partition: Replica) -> None:
        log = partition.log
        start, stable, high, end = log.log_start_offset, log.last_stable_offset, log.high_watermark, log.log_end_offset
        assert start <= stable <= high <= end, f"B-9: {node.node_id}: {number}: {start} {stable} {high} {end}"
        assert log.recovery_point <= end, (
            f"B-9: {node.node_id}: {number} is flushed up to {log.recovery_point} of {end}"
        )
        key = (node.node_id, node.life, number)
        if partition.leader_epoch != NO_EPOCH:  # else it could not be taken up, on a full disk
            known = self._epochs.get(key, NO_EPOCH)
            assert partition.leader_epoch >= known, f"P6: {key} goes back to {partition.leader_epoch}"
            self._epochs[key] = partition.leader_epoch
        self._check_floor((node.node_id, number), partition)
        if partition.progress is None or partition.leader_epoch < self.world.history.unclean_epoch[number]:
            return
        if high > self.committed[number]:
            self.committed[number] = high
        self._check_quorum(node, number, partition)

    def _check_floor(self, key: tuple[int, int], partition: Replica) -> None:
        """What a replica knew to be committed is not cut, unless an unclean election came after it was written."""
        log = partition.log
        seen, high, epoch = self._floors.get(key, (partition, 0, -1))
        if seen is partition and log.high_watermark < high:
            assert epoch < partition._unclean_epoch, f"floor: {key} goes back from {high} to {log.high_watermark}"
        high = log.high_watermark if log.log_start_offset < log.high_watermark else 0
        # One that was begun anew within a batch of the leader's holds nothing yet, and goes back to where that begins
        self._floors[key] = partition, high, log.epochs.epoch_for_offset(high - 1)

    def _check_quorum(self, node: Node, number: int, partition: Replica) -> None:
        """ReplicationQuorumSuperset: a leader that may commit counts all who may be elected."""
        state, progress = self.world.history.states[number], partition.progress
        assert progress is not None
        if state.leader_epoch != partition.leader_epoch or not progress.has_enough:
            return
        counted = {*progress.state.isr, *(progress.proposed.isr if progress.proposed is not None else ())}
        electable = {*state.isr, *state.elr}
        assert electable <= counted, (
            f"ReplicationQuorumSuperset: {node.node_id} counts {sorted(counted)} of {sorted(electable)} in {number}"
        )
        enough = len(progress.state.isr) >= progress.state.needed
        assert enough, f"B-12: {node.node_id} commits {number} with {progress.state}"

    def _check_candidates(self, number: int, state: PartitionState) -> None:
        """LeaderCandidateCompleteness: who may be elected has all that is committed."""
        committed = self.committed[number]
        for member in (*state.isr, *state.elr):
            log = self._log_of(member, number)
            if log is not None and log.log_end_offset < committed:
                raise AssertionError(
                    f"LeaderCandidateCompleteness: {member} ends at {log.log_end_offset}, {number} is committed up to "
                    f"{committed}: {state}"
                )

    def _log_of(self, member: Member, number: int) -> Log | None:
        """Of one who still is who it was when it had everything, as far as that can be seen."""
        node = self.world.nodes[member.node_id]
        if node.me is None or number not in node.partitions:
            return None
        if member != node.me and (node.kept_since is None or node.kept_since > member.epoch):
            return None
        return node.partitions[number].log

    def shown(self, number: int, epoch: int, high_watermark: int) -> None:
        """P5: to whoever does not go back to an earlier leader, the high watermark does not go back (KIP-207)."""
        if epoch < self.world.history.unclean_epoch[number]:
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

    # Bytes

    def compare(self, *, whole: bool = False) -> None:
        """LogMatching (P4) and StrongIsr; with ``whole`` P7: the logs are equal to their ends.

        A replica that has not yet asked anyone since it was started may have lost the end below its high watermark, and
        got back an older one, where several lose their power: it knows so when it asks.
        """
        world = self.world
        for number, state in world.history.states.items():
            nodes = [node for node in world.nodes.values() if number in node.partitions]
            agreeing = [node for node in nodes if self._agrees(node, number)]
            for one, other in pairwise(agreeing):
                self._compare(number, one, other, min(_high(one, number), _high(other, number)), "P4")
            for leader in nodes:
                if leader.partitions[number].progress is not None and self._agrees(leader, number):
                    self._check_isr(number, state, leader)
            if whole:
                ends = {(one.partitions[number].log.log_end_offset, _high(one, number)) for one in nodes}
                assert len(ends) == 1, f"P7: partition {number} ends apart: {ends}"

    def _agrees(self, node: Node, number: int) -> bool:
        epoch = node.agreeing.get(number)
        if epoch is None:
            return not self.world.scenario.may_lose
        return epoch >= self.world.history.unclean_epoch[number]

    def _check_isr(self, number: int, state: PartitionState, leader: Node) -> None:
        for member in state.isr:
            node = self.world.nodes[member.node_id]
            if node is not leader and node.me == member and number in node.partitions:
                self._compare(number, leader, node, _high(leader, number), "StrongIsr")

    def _compare(self, number: int, one: Node, other: Node, end: int, what: str) -> None:
        first, second = one.partitions[number].log, other.partitions[number].log
        start = max(first.log_start_offset, second.log_start_offset)
        if start < end and bytes_of(first, start, end) != bytes_of(second, start, end):
            raise AssertionError(f"{what}: {number} from {start} to {end} of {one.node_id} and {other.node_id}")


def _high(node: Node, number: int) -> int:
    return node.partitions[number].log.high_watermark
