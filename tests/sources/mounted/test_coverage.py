"""Offsets of a mounted replica count only if the leader has the same records there, whatever happened to both logs."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import count
from typing import NamedTuple
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog.sources.mounted.coverage import (
    Coverage,
    EpochSpan,
    LeaderLog,
    MountedReplica,
    TransactionsBelow,
    boundary_of,
    committed,
    cover,
    questions,
)
from seglog.sources.ranges import OffsetRange
from seglog.storage.formats.checkpoints import EpochEntry
from seglog.storage.log.epochs import EpochEnd, LeaderEpochs
from tests.cases import case

TOPIC_ID = UUID(int=7)
EVERYTHING = OffsetRange(0, 1 << 40)


@dataclass
class Replica:
    """A log in which every record is another number, and its leader epochs."""

    start: int = 0
    records: list[int] = field(default_factory=list)
    written_in: list[int] = field(default_factory=list)
    epochs: LeaderEpochs = field(default_factory=LeaderEpochs)

    @property
    def end(self) -> int:
        return self.start + len(self.records)

    def has(self, offset: int) -> int | None:
        return self.records[offset - self.start] if self.start <= offset < self.end else None

    def append(self, record: int, epoch: int) -> None:
        self.epochs.assign(epoch, self.end)
        self.records.append(record)
        self.written_in.append(epoch)

    def follow(self, leader: Replica, most: int) -> None:
        """Truncate to the point of divergence, and copy up to ``most`` records."""
        if leader.start > self.end or leader.end < self.start:
            self.start, self.records, self.written_in, self.epochs = leader.start, [], [], LeaderEpochs()
        common = min(self.end, leader.end)
        low = max(self.start, leader.start)
        common = next((at for at in range(low, common) if self.has(at) != leader.has(at)), common)
        del self.records[common - self.start :], self.written_in[common - self.start :]
        self.epochs.truncate_from_end(common)
        for offset in range(common, min(leader.end, common + most)):
            self.append(leader.records[offset - leader.start], leader.written_in[offset - leader.start])

    def trim(self, offset: int) -> None:
        offset = min(max(offset, self.start), self.end)
        del self.records[: offset - self.start], self.written_in[: offset - self.start]
        self.start = offset
        self.epochs.truncate_from_start(offset)

    def copy(self) -> Replica:
        return Replica(self.start, [*self.records], [*self.written_in], self.epochs.copy())


class History(NamedTuple):
    """The log of a partition's leader, and that of another replica, now or as it was at some moment."""

    leader: Replica
    mount: Replica


@st.composite
def histories(draw: st.DrawFn) -> History:
    """Terms of leaders, elected cleanly or not, of which some write what no other replica gets before the next term."""
    numbers, epoch = count(), 0
    replicas = [Replica() for _ in range(3)]
    taken = []
    for _ in range(draw(st.integers(2, 6))):
        leader = replicas[draw(st.integers(0, 2))]
        leader.epochs.assign(epoch, leader.end)
        for _ in range(draw(st.integers(1, 3))):
            for _ in range(draw(st.integers(0, 6))):
                leader.append(next(numbers), epoch)
            for other in replicas:
                if other is not leader and draw(st.booleans()):
                    other.follow(leader, draw(st.sampled_from([1, 3, 100])))
        if draw(st.booleans()):
            taken.append(replicas[draw(st.integers(0, 2))].copy())
        if draw(st.integers(0, 4)) == 0:
            replicas[draw(st.integers(0, 2))].trim(draw(st.integers(0, 20)))
        epoch += draw(st.integers(1, 2))
    others = [one for one in replicas if one is not leader]
    return History(leader, draw(st.sampled_from([*others, *taken])))


def mounted(replica: Replica, rolls: set[int]) -> MountedReplica:
    """Its files, with segments that begin at ``rolls``."""
    starts = sorted({replica.start, *(at for at in rolls if replica.start < at <= replica.end)})
    return MountedReplica(
        directory="/d/t-0",
        cluster_id="c",
        topic_id=TOPIC_ID,
        epochs=tuple(replica.epochs.entries),
        segment_starts=tuple(starts),
    )


def asked(replica: MountedReplica, leader: Replica, wanted: OffsetRange) -> LeaderLog:
    ends = {epoch: leader.epochs.end_offset_for(epoch, leader.end) for epoch in questions(replica, wanted)}
    return LeaderLog(cluster_id="c", topic_id=TOPIC_ID, is_compacted=False, epoch_ends=ends)


WHOLE = (0, 1000)


@given(histories(), st.integers(1, 8), st.just(WHOLE) | st.tuples(st.integers(0, 30), st.integers(0, 30)))
def test_the_longest_run_of_the_same_records(history: History, every: int, bounds: tuple[int, int]) -> None:
    case()
    leader = history.leader
    wanted = OffsetRange(max(min(bounds), leader.start), min(max(bounds), leader.end))
    rolls = set(range(0, history.mount.end + 1, every))
    replica = mounted(history.mount, rolls)
    found = cover(replica, asked(replica, leader, wanted), wanted)
    # The model compares records, not epochs.
    runs: list[list[int]] = [[]]
    for offset in range(wanted.start, wanted.end):
        is_same = history.mount.has(offset) == leader.has(offset)
        if is_same and replica.sealed.start <= offset < replica.sealed.end:
            runs[-1].append(offset)
        elif runs[-1]:
            runs.append([])
    longest = max(runs, key=len)
    assert [*range(*found.offsets)] == longest
    for epoch, start, end in found.spans:
        assert {leader.written_in[offset - leader.start] for offset in range(start, end)} == {epoch}


REPLICA = MountedReplica(
    directory="/d/t-0",
    cluster_id="c",
    topic_id=TOPIC_ID,
    epochs=(EpochEntry(0, 0), EpochEntry(3, 60)),
    segment_starts=(0, 50, 90),
)
LEADER = LeaderLog(
    cluster_id="c",
    topic_id=TOPIC_ID,
    is_compacted=False,
    epoch_ends={0: EpochEnd(0, 60), 2: EpochEnd(0, 60), 3: EpochEnd(3, 200)},
)


def test_sealed_segments_in_the_epochs_of_the_leader() -> None:
    assert questions(REPLICA, EVERYTHING) == (0, 2, 3)
    assert cover(REPLICA, LEADER, EVERYTHING) == Coverage((EpochSpan(0, 0, 60), EpochSpan(3, 60, 90)))
    assert questions(REPLICA, OffsetRange(60, 70)) == (2, 3)
    assert questions(REPLICA, OffsetRange(90, 100)) == ()


def test_the_leader_is_asked_nothing_about_the_segment_that_is_written() -> None:
    alone = replace(REPLICA, segment_starts=(0,))
    assert questions(alone, EVERYTHING) == ()
    assert cover(alone, LEADER, EVERYTHING) == Coverage(())


def test_an_epoch_that_the_leader_never_had_ends_the_coverage() -> None:
    diverged = replace(LEADER, epoch_ends={0: EpochEnd(0, 40), 2: EpochEnd(1, 60), 3: EpochEnd(1, 60)})
    assert cover(REPLICA, diverged, EVERYTHING).offsets == OffsetRange(0, 40)


def test_answers_of_two_leaders_do_not_make_a_span() -> None:
    """The leader changes between the two questions."""
    moved = replace(LEADER, epoch_ends={0: EpochEnd(0, 60), 2: EpochEnd(0, 60), 3: EpochEnd(2, 80)})
    assert cover(REPLICA, moved, EVERYTHING).offsets == OffsetRange(0, 60)


def test_an_epoch_before_all_of_the_leaders_is_not_one_of_its_own() -> None:
    later = replace(LEADER, epoch_ends={2: EpochEnd(2, 100), 3: EpochEnd(3, 100)})
    found = cover(replace(REPLICA, epochs=(EpochEntry(3, 60),)), later, EVERYTHING)
    assert found == Coverage((), "the leader has other leader epochs there")


@pytest.mark.parametrize(
    ("replica", "leader", "reason"),
    [
        (replace(REPLICA, cluster_id=None), LEADER, "its log directory names no cluster"),
        (replace(REPLICA, cluster_id="d"), LEADER, "it belongs to cluster d, and the brokers to c"),
        (replace(REPLICA, topic_id=None), LEADER, "it has no topic id"),
        (replace(REPLICA, topic_id=UUID(int=8)), LEADER, "it is of a topic of the same name with another id"),
        (REPLICA, replace(LEADER, topic_id=None), "the brokers have no topic ids"),
        (replace(REPLICA, topic_id=None), replace(LEADER, topic_id=None), "the brokers have no topic ids"),
        (REPLICA, replace(LEADER, is_compacted=True), "the topic is compacted"),
        (REPLICA, replace(LEADER, is_compacted=None), "the brokers do not say whether it is compacted"),
        (REPLICA, replace(LEADER, epoch_ends=None), "the leader does not answer about its epochs"),
        (REPLICA, replace(LEADER, epoch_ends={}), "the leader has other leader epochs there"),
    ],
)
def test_uncertain_offsets_are_not_covered(replica: MountedReplica, leader: LeaderLog, reason: str) -> None:
    assert cover(replica, leader, EVERYTHING) == Coverage((), reason)


def test_transactions_count_up_to_a_start_of_a_segment() -> None:
    found = cover(REPLICA, LEADER, OffsetRange(10, 75))
    assert boundary_of(REPLICA, found) == 50
    assert committed(found, TransactionsBelow(50, None, ())).offsets == OffsetRange(10, 50)
    assert committed(found, TransactionsBelow(50, 40, ())).offsets == OffsetRange(10, 40)
    assert committed(found, TransactionsBelow(50, 5, ())).spans == ()
    assert committed(found, None) == Coverage((), "it has no snapshot of its transactions")
