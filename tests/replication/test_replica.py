"""One replica: what it acknowledges in doubt, truncates, publishes and reports. The test is its broker."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest

from seglog.cluster.model import NO_LEADER, Evidence, Member, PartitionState, VersionedState
from seglog.core.errors import CutRefusedError, NotLeaderError
from seglog.core.types import TopicPartition
from seglog.replication.replica import (
    NOT_LEADER_OR_FOLLOWER,
    Replica,
    ReplicaAnswer,
    ReplicaFetch,
    ReplicaListener,
    SavedCut,
)
from seglog.storage.directory.log_dir import LogDir
from seglog.storage.directory.loss_evidence import LogEvidence
from seglog.storage.log.epochs import EpochEnd
from tests.kit.log_changes import carry_out, take_over
from tests.replication.logs import batch
from tests.replication.registrations import BROKERS, FOLLOWER, LAG_MS, LEADER

NODES = (LEADER.node_id, FOLLOWER.node_id)


class Disk:
    """A directory with the ``replica`` of ``t-0``, which `apply` gives the next state."""

    def __init__(self, path: Path, listener: ReplicaListener | None = None) -> None:
        self._directory = LogDir.open(str(path), config={"log.retention.ms": "-1"}, hw_follows_end=False, create=True)
        self._directory.create_topic("t", 1)
        log = self._directory.log("t")
        self.replica = Replica(self._directory, TopicPartition("t", 0), UUID(int=1), log, listener=listener)
        self._versions = 0

    def apply(
        self, leader: Member, epoch: int, isr: Sequence[Member] = (LEADER, FOLLOWER), *, unclean_epoch: int = -1
    ) -> None:
        self._versions += 1
        state = PartitionState(
            replicas=NODES, leader=leader.node_id, leader_epoch=epoch, isr=tuple(isr), unclean_epoch=unclean_epoch
        )
        stored = VersionedState(state, self._versions)
        take_over(self.replica, stored, LEADER, BROKERS, 0, lag_max_ms=LAG_MS)

    def close(self) -> None:
        self._directory.close()


@pytest.mark.parametrize("is_written", [True, False])
def test_an_isr_that_is_on_its_way_counts_also_for_who_was_in_doubt_meanwhile(tmp_path: Path, is_written: bool) -> None:
    """The proposed ISR may still be written. A member that joins by it must have everything committed."""
    disk = Disk(tmp_path)
    replica = disk.replica
    state = PartitionState(replicas=(1, 2), leader=1, leader_epoch=3, isr=(LEADER,))

    def apply(stored: VersionedState) -> None:
        take_over(replica, stored, LEADER, BROKERS, 0, lag_max_ms=LAG_MS)

    apply(VersionedState(state, 7))
    replica.serve_replica(ReplicaFetch(*FOLLOWER, 3, 0, -1, 0, 1 << 20), BROKERS, 0)
    proposed, progress = replica.propose_isr(BROKERS, 0), replica.progress
    assert proposed is not None
    assert progress is not None
    replica.resign()
    apply(VersionedState(state, 7))
    assert replica.leads
    replica.append(batch())
    replica.advance(BROKERS, LAG_MS * 2)
    assert replica.log.high_watermark == 0
    if is_written:
        apply(VersionedState(proposed, 8))
        assert replica.log.high_watermark == 0
        replica.serve_replica(ReplicaFetch(*FOLLOWER, 3, 1, 3, 0, 1 << 20), BROKERS, 0)
    else:
        progress.refused()
        replica.advance(BROKERS, LAG_MS * 2)
    assert replica.log.high_watermark == 1
    disk.close()


def test_in_doubt_only_what_all_have_is_acknowledged(tmp_path: Path) -> None:
    """Followers keep fetching. A leader without followers serves no client."""
    disk = Disk(tmp_path)
    replica = disk.replica
    disk.apply(LEADER, 3)
    fetch = ReplicaFetch(*FOLLOWER, 3, 0, -1, 0, 1 << 20)
    replica.doubt()
    assert replica.weigh(1, unclean=False, silence_ms=1_000)  # nobody has fetched
    with pytest.raises(NotLeaderError):
        replica.append(batch(), needs_all=True)
    with pytest.raises(NotLeaderError):
        replica.check_leads()
    assert (replica.leads, replica.is_placed) == (False, False)
    replica.serve_replica(fetch, BROKERS, 2)
    assert replica.weigh(3, unclean=False, silence_ms=1_000)
    assert replica.leads
    with pytest.raises(NotLeaderError, match="acks=all"):
        replica.append(batch())
    end = replica.append(batch(), needs_all=True).last_offset + 1
    assert replica.outcome(3, end) is None
    replica.serve_replica(fetch._replace(offset=end, last_epoch=3), BROKERS, 4)
    assert replica.outcome(3, end) == 0
    later = replica.append(batch(), needs_all=True).last_offset + 1
    assert replica.weigh(5_000, unclean=False, silence_ms=1_000)  # all are silent
    assert replica.outcome(3, later) == NOT_LEADER_OR_FOLLOWER
    assert replica.trust()
    assert replica.outcome(3, later) is None
    replica.append(batch())
    disk.close()


def test_in_doubt_unclean_elections_stop_a_leader_at_once(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    replica = disk.replica
    disk.apply(LEADER, 3)
    replica.serve_replica(ReplicaFetch(*FOLLOWER, 3, 0, -1, 0, 1 << 20), BROKERS, 0)
    end = replica.append(batch(), needs_all=True).last_offset + 1
    replica.doubt()
    assert replica.weigh(1, unclean=True, silence_ms=1_000)
    replica.serve_replica(ReplicaFetch(*FOLLOWER, 3, end, 3, 0, 1 << 20), BROKERS, 2)
    assert replica.log.high_watermark == 0, "a follower that fetches acknowledges nothing"
    disk.close()


def test_in_doubt_a_state_that_comes_yet_is_taken_up(tmp_path: Path) -> None:
    """Reading the store may work while writing does not. Under a smaller ISR nothing is committed before it was
    checked."""
    disk = Disk(tmp_path)
    replica = disk.replica
    disk.apply(LEADER, 3)
    replica.serve_replica(ReplicaFetch(*FOLLOWER, 3, 0, -1, 0, 1 << 20), BROKERS, 0)
    replica.append(batch(), needs_all=True)
    replica.doubt()
    assert not replica.weigh(1, unclean=False, silence_ms=1_000)
    disk.apply(LEADER, 3, [LEADER])
    assert replica.log.high_watermark == 0
    replica.weigh(1, unclean=False, silence_ms=1_000)
    assert replica.is_suspended
    disk.apply(FOLLOWER, 4)
    assert replica.progress is None
    assert replica.is_placed, "it follows"
    disk.close()


def test_readers_of_the_directory_see_that_a_follower_has_less(tmp_path: Path) -> None:
    """After an unclean election committed records may be truncated."""
    disk = Disk(tmp_path)
    replica = disk.replica
    shown = memoryview(array("q", (0, 0)))
    replica.publish_in(shown)
    disk.apply(LEADER, 0, [LEADER])
    replica.append(batch())
    replica.append(batch())
    replica.advance(BROKERS, 0)
    assert list(shown) == [2, 2]
    disk.apply(FOLLOWER, 1, [FOLLOWER], unclean_epoch=1)
    asked = replica.ask(LEADER, 1 << 20)
    carry_out(replica, replica.take(asked, ReplicaAnswer(EpochEnd(epoch=0, end_offset=1), None, 0, 0), b""))
    assert list(shown) == [1, 1]
    carry_out(replica, replica.out_of_range(50, 60))
    assert list(shown) == [50, 50]
    disk.close()


class Cuts(ReplicaListener):
    def __init__(self) -> None:
        self.told: list[str] = []

    def cut_refused(self, replica: Replica) -> None:
        self.told.append(f"refused at {replica.refused_cut}")

    def cut_saved(self, replica: Replica, saved: SavedCut) -> None:
        del replica
        self.told.append(f"saved {saved.start} to {saved.end}")


def _follower(tmp_path: Path, high_watermark: int) -> tuple[Disk, Replica, list[str]]:
    """Of broker 2 in epoch 1, with four records of epoch 0; and what it tells."""
    cuts = Cuts()
    disk = Disk(tmp_path, cuts)
    replica = disk.replica
    disk.apply(LEADER, 0, [LEADER])
    for _ in range(4):
        replica.append(batch())
    replica.log.update_high_watermark(high_watermark)
    disk.apply(FOLLOWER, 1, [FOLLOWER])
    return disk, replica, cuts.told


def _diverge(replica: Replica, end: int) -> None:
    asked = replica.ask(LEADER, 1 << 20)
    carry_out(replica, replica.take(asked, ReplicaAnswer(EpochEnd(epoch=0, end_offset=end), None, 0, 0), b""))


def test_follower_refuses_to_truncate_below_its_high_watermark(tmp_path: Path) -> None:
    disk, replica, told = _follower(tmp_path, 3)
    for _ in range(2):
        with pytest.raises(CutRefusedError, match="does not have offsets 2 to 2"):
            _diverge(replica, 2)
        with pytest.raises(CutRefusedError, match="does not have offsets 0 to 2"):
            carry_out(replica, replica.out_of_range(0, 0))
    assert replica.log.log_end_offset == 4
    assert told == ["refused at 2", "refused at 0"] * 2
    _diverge(replica, 3)
    assert (replica.log.log_end_offset, replica.refused_cut) == (3, -1), "what is not committed goes"
    carry_out(replica, replica.out_of_range(9, 12))
    assert (replica.log.log_start_offset, replica.log.log_end_offset) == (9, 9), "the leader has deleted that"
    disk.close()


def test_unclean_election_allows_truncation_and_truncated_records_are_saved(tmp_path: Path) -> None:
    disk, replica, told = _follower(tmp_path, 4)
    disk.apply(FOLLOWER, 2, [FOLLOWER], unclean_epoch=0)
    with pytest.raises(CutRefusedError):
        _diverge(replica, 2)  # these records were written in the unclean epoch itself
    disk.apply(FOLLOWER, 3, [FOLLOWER], unclean_epoch=2)
    _diverge(replica, 2)
    assert (replica.log.log_end_offset, told) == (2, ["refused at 2", "saved 2 to 4"])
    (saved,) = (tmp_path / "t-0" / ".seglog").iterdir()
    (file,) = saved.iterdir()
    assert len(file.read_bytes()) == 2 * len(batch())
    disk.close()


def test_log_that_is_emptied_at_an_empty_leader_is_saved_first(tmp_path: Path) -> None:
    """Nothing in it is known to be committed, so the leader may be right."""
    disk, replica, told = _follower(tmp_path, 0)
    carry_out(replica, replica.out_of_range(0, 0))
    assert (replica.log.log_end_offset, told) == (0, ["saved 0 to 4"])
    disk.close()


def test_replica_reports_evidence_once_and_only_without_a_leader(tmp_path: Path) -> None:
    disk, replica, _ = _follower(tmp_path, 3)
    kept = LogEvidence("disk", 1, 10)
    led = PartitionState(replicas=(1, 2), leader=2, leader_epoch=1, isr=(FOLLOWER,))
    leaderless = PartitionState(replicas=(1, 2), leader=NO_LEADER, leader_epoch=2, isr=(), elr=(FOLLOWER,))
    assert replica.report(VersionedState(led, replica.version), LEADER, kept) is None
    assert replica.report(VersionedState(leaderless, 7), LEADER, kept) is None, "it may be following yet"
    take_over(replica, VersionedState(leaderless, 7), LEADER, BROKERS, 0, lag_max_ms=LAG_MS)
    state = replica.report(VersionedState(leaderless, 7), LEADER, kept)
    assert state is not None
    said = Evidence(1, 10, "disk", 0, start=0, flushed=0, high_watermark=3, end=4, made=1, kept_since=10)
    assert state == replace(leaderless, evidence=(said,))
    assert replica.report(VersionedState(state, 7), LEADER, kept) is None
    take_over(replica, VersionedState(led, 8), LEADER, BROKERS, 0, lag_max_ms=LAG_MS)
    with pytest.raises(CutRefusedError):
        _diverge(replica, 1)
    refused = replica.report(VersionedState(led, 8), LEADER, kept)
    assert refused == replace(led, evidence=(said._replace(refused_cut=1),))
    disk.close()
