"""Changes of logs that must be durable before a replica goes on: in threads, grouped, and in the right order."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import TypeVar
from uuid import UUID

import pytest

from seglog.cluster.model import PartitionState, VersionedState
from seglog.core.errors import LogDirFullError, LogDirOfflineError, NotLeaderError
from seglog.core.ground import THREADS, Ground, Lane
from seglog.core.types import TopicPartition
from seglog.replication.log_changes import LogChanges
from seglog.replication.replica import Replica, ReplicaAnswer
from seglog.storage.directory.log_changes import BeginEpoch, Cut, LogChange, MoveStart, StartAt
from seglog.storage.directory.log_dir import LogDir
from seglog.storage.formats.checkpoints import read_leader_epochs
from seglog.storage.log.epochs import EpochEnd
from tests.kit.crash_fs import CrashFs
from tests.kit.fsyncs import CountedFs, Fsyncs
from tests.kit.manual_clock import ManualClock
from tests.kit.memory_fs import MemoryFs
from tests.replication.brokers import Node, controlling, is_whole
from tests.replication.logs import batch, content
from tests.replication.registrations import BROKERS, FOLLOWER, LAG_MS, LEADER

T = TypeVar("T")
Of = TypeVar("Of")


def sees_both(node: Node) -> bool:
    return len(node.view.brokers) == 2


def leads(node: Node, key: tuple[UUID, int]) -> bool:
    return key in node.replicas.by_key and node.replicas.by_key[key].leads


def test_no_fsync_runs_on_the_event_loop(tmp_path: Path) -> None:
    """New leaders, first batches of an epoch, truncations, deleted records, rolls and flushes of two brokers."""

    async def act() -> None:
        fsyncs = Fsyncs()
        async with controlling(tmp_path):
            one, two = [Node(tmp_path, number, fs=CountedFs(fsyncs)) for number in (1, 2)]
            await one.started()
            await two.started()
            try:
                for node in (one, two):
                    await node.until(partial(sees_both, node))
                fsyncs.begin()
                await changes(one, two)
                assert fsyncs.elsewhere
                assert not fsyncs.on_this_thread
            finally:
                await two.stop()
                await one.stop()

    async def changes(one: Node, two: Node) -> None:
        config = {"flush.messages": "1", "segment.bytes": str(1 << 20)}
        topic_id = await one.create("t", [[1, 2]] * 3, config)
        numbers = range(3)
        for number in numbers:
            await one.until(partial(leads, one, (topic_id, number)))
            for _ in range(3):
                one.replica(topic_id, number).append(batch(400_000), needs_all=False)
        for number in numbers:
            await one.until(partial(is_whole, [one, two], topic_id, number))
        for number in numbers:  # the follower has records that no leader has: it truncates
            follower = two.replica(topic_id, number)
            follower.log.append(batch(), leader_epoch=follower.log.epochs.latest)
            state = one.view.partitions[topic_id, number].state
            await one.put(topic_id, partial(replace, leader_epoch=state.leader_epoch + 1), number)
            await one.until(partial(leads, one, (topic_id, number)))
            one.replica(topic_id, number).append(batch(200))
        for number in numbers:
            await one.until(partial(is_whole, [one, two], topic_id, number))
        partition = TopicPartition("t", 0)
        directory = one.replica(topic_id).directory
        await asyncio.to_thread(directory.delete_records, *partition, 2)
        one.replica(topic_id).wake_followers()
        await two.until(lambda: two.replica(topic_id).log.log_start_offset == 2)
        for number in numbers:  # the other one leads, in another epoch
            state = one.view.partitions[topic_id, number].state
            await one.put(topic_id, partial(replace, leader=2, leader_epoch=state.leader_epoch + 1), number)
            await two.until(partial(leads, two, (topic_id, number)))
            two.replica(topic_id, number).append(batch(), needs_all=False)
            await one.until(partial(is_whole, [one, two], topic_id, number))
            assert content(one.replica(topic_id, number)) == content(two.replica(topic_id, number))

    asyncio.run(act())


class HeldThreads:
    """`seglog.core.ground.Workers`: runs what it is given once the test says so, on the test's thread."""

    def __init__(self) -> None:
        self.passes = 0
        self.gate = asyncio.Event()

    async def run(self, act: Callable[[], T], /) -> T:
        self.passes += 1
        await self.gate.wait()
        return act()

    def lane(self, name: str, /) -> Lane:
        return THREADS.lane(name)

    def spread(
        self, act: Callable[[Of], T], items: Sequence[Of], /, *, threads: int, name: str
    ) -> Iterator[tuple[Of, Callable[[], T]]]:
        return THREADS.spread(act, items, threads=threads, name=name)


PARTITIONS = 40


class Desk:
    """Replicas of one directory, and the passes over their logs."""

    def __init__(self) -> None:
        self.fs = MemoryFs(clock=ManualClock())
        self.traced = CrashFs(self.fs)
        ground = Ground(fs=self.traced, clock=ManualClock(), rng=Random(1))
        self.directory = LogDir.open("/logs", ground=ground, hw_follows_end=False)
        self.directory.create_topic("t", PARTITIONS)
        self.workers = HeldThreads()
        self.settled: Counter[str] = Counter()
        self.changes = LogChanges(self.workers, lambda _, error: self.settled.update([type(error).__name__]))
        self.replicas = [
            Replica(self.directory, TopicPartition("t", number), UUID(int=1), self.directory.log("t", number))
            for number in range(PARTITIONS)
        ]
        self.versions = 0

    def state(self, leader: int, epoch: int) -> VersionedState:
        self.versions += 1
        state = PartitionState(replicas=(1, 2), leader=leader, leader_epoch=epoch, isr=(LEADER, FOLLOWER))
        return VersionedState(state, self.versions)

    def apply(self, replica: Replica, stored: VersionedState) -> bool:
        """As `Replicas` does."""
        is_new = replica.apply(stored, LEADER, BROKERS, 0, lag_max_ms=LAG_MS)
        if replica.wanted is not None:
            self.changes.want(replica, replica.wanted)
        return is_new

    def synced(self) -> int:
        return sum(self.fs.calls[name] for name in ("fsync", "fsync_dir", "write"))


def test_a_leader_serves_nothing_before_its_epoch_is_on_the_disk() -> None:
    async def act() -> None:
        desk = Desk()
        (replica, *_), stored = desk.replicas, desk.state(1, 3)
        replica.log.append(batch(), leader_epoch=0)
        assert desk.apply(replica, stored)
        await asyncio.sleep(0)
        assert (replica.leads, replica.is_changing, replica.version, replica.leader_epoch) == (False, True, -1, 3)
        with pytest.raises(NotLeaderError):
            replica.append(batch())
        assert not desk.apply(replica, desk.state(2, 4)), "the next state waits"
        desk.workers.gate.set()
        await desk.changes.until_settled(replica)
        assert read_leader_epochs(desk.fs.after_crash(Random(1)), replica.log.path) == [(0, 0), (3, 1)]
        assert desk.apply(replica, stored)
        assert replica.leads
        assert not desk.apply(replica, stored)

    asyncio.run(act())


@pytest.mark.parametrize("is_flushed", [True, False])
def test_the_first_epoch_of_a_new_log_waits_for_no_disk(*, is_flushed: bool) -> None:
    """It is on the disk before records are, for a recovery that does not read them."""

    async def act() -> None:
        desk = Desk()
        before = desk.synced()
        for replica in desk.replicas:
            assert desk.apply(replica, desk.state(1, 0))
            assert replica.leads
        assert (desk.workers.passes, desk.synced()) == (0, before)
        (replica, *_) = desk.replicas
        replica.log.flush()
        assert read_leader_epochs(desk.fs.after_crash(Random(1)), replica.log.path) == []
        replica.append(batch(), needs_all=False)
        if is_flushed:
            replica.log.flush()
            assert read_leader_epochs(desk.fs.after_crash(Random(1)), replica.log.path) == [(0, 0)]
        else:
            survivor = LogDir.open("/logs", ground=Ground(fs=desk.fs.after_crash(Random(1))), hw_follows_end=False)
            log = survivor.log("t")
            assert log.epochs.entries == ([(0, 0)] if log.log_end_offset else [])
        desk.workers.gate.set()
        other, third = desk.replicas[1:3]
        assert desk.apply(other, desk.state(2, 1)), "it follows, without an epoch that has no records"
        await desk.changes.until_settled(other)
        assert other.log.epochs.latest == -1
        assert desk.apply(third, desk.state(1, 1))
        await desk.changes.until_settled(third)
        assert read_leader_epochs(desk.fs.after_crash(Random(1)), third.log.path) == [(1, 0)]

    asyncio.run(act())


def test_a_change_that_was_begun_in_an_earlier_epoch_is_no_role_in_a_later_one() -> None:
    async def act() -> None:
        desk = Desk()
        (replica, *_) = desk.replicas
        replica.log.append(batch(), leader_epoch=0)
        desk.apply(replica, desk.state(1, 3))
        replica.resign()
        desk.workers.gate.set()
        await desk.changes.until_settled(replica)
        later = desk.state(2, 4)
        assert desk.apply(replica, later)
        assert replica.is_changing, "it forgets the epoch in which it has no records"
        await desk.changes.until_settled(replica)
        assert desk.apply(replica, later)
        assert (replica.leader, replica.leader_epoch, replica.log.epochs.latest) == (2, 4, 0)
        assert read_leader_epochs(desk.fs.after_crash(Random(1)), replica.log.path) == [(0, 0)]

    asyncio.run(act())


def test_no_answer_is_taken_while_the_log_is_cut() -> None:
    async def act() -> None:
        desk = Desk()
        (replica, *_) = desk.replicas
        for _ in range(4):
            replica.log.append(batch(), leader_epoch=0)
        desk.apply(replica, desk.state(2, 1))
        asked = replica.ask(LEADER, 1 << 20)
        change = replica.take(asked, ReplicaAnswer(EpochEnd(epoch=0, end_offset=2), None, 0, 0), b"")
        assert isinstance(change, Cut)
        done = desk.changes.want(replica, change)
        assert replica.take(asked, ReplicaAnswer(None, None, 4, 0), batch()) is None
        assert (replica.log.log_end_offset, replica.log.high_watermark) == (4, 0)
        desk.workers.gate.set()
        assert await done is None
        assert replica.log.log_end_offset == 2
        survivor = LogDir.open("/logs", ground=Ground(fs=desk.fs.after_crash(Random(1))), hw_follows_end=False)
        assert survivor.log("t").log_end_offset <= 2

    asyncio.run(act())


def test_many_changes_are_one_pass_and_few_checkpoints() -> None:
    """And what is wanted during a pass is the next one."""

    async def act() -> None:
        desk = Desk()
        for replica in desk.replicas:
            replica.log.append(batch(), leader_epoch=0)
        desk.apply(desk.replicas[0], desk.state(1, 1))
        await asyncio.sleep(0)
        for replica in desk.replicas[1:]:
            desk.apply(replica, desk.state(1, 1))
        before = desk.synced()
        desk.workers.gate.set()
        await desk.changes.until_settled(desk.replicas[-1])
        assert desk.workers.passes == 2
        assert desk.settled == {"NoneType": PARTITIONS}
        assert desk.synced() - before <= 2 * PARTITIONS + 1
        for replica in desk.replicas:
            for _ in range(3):
                replica.log.append(batch(), leader_epoch=1)
        begun = desk.traced.changes
        cuts = [Cut(replica.topic_partition, 2, 2, 4, saves=False) for replica in desk.replicas]
        for replica, cut in zip(desk.replicas, cuts, strict=True):
            desk.changes.want(replica, cut)
        await desk.changes.until_settled(desk.replicas[-1])
        assert desk.workers.passes == 3
        written = [call.path for call in desk.traced.trace[begun:] if call.operation == "write"]
        checkpoints = [path for path in written if path.endswith("-offset-checkpoint.tmp")]
        assert len(checkpoints) <= 3, "recovery points, high watermarks, log starts"

    asyncio.run(act())


FAILURES: Mapping[str, Callable[[TopicPartition], LogChange]] = {
    "epoch": lambda partition: BeginEpoch(partition, 3),
    "cut": lambda partition: Cut(partition, 1, 1, 3, saves=False),
    "start again": lambda partition: StartAt(partition, 9),
    "start": lambda partition: MoveStart(partition, 2),
}


@pytest.mark.parametrize("kind", FAILURES)
def test_a_change_that_fails_ends_no_other(kind: str) -> None:
    """A log that is closed, in the middle of a pass."""
    desk_directory = _with_records()
    changes = [FAILURES[kind](TopicPartition("t", number)) for number in range(5)]
    desk_directory.log("t", 2).close()
    outcomes = desk_directory.carry_out(changes)
    assert [outcome is None for outcome in outcomes] == [True, True, False, True, True]


@pytest.mark.parametrize("kind", FAILURES)
@pytest.mark.parametrize("error", [28, 5])
def test_a_disk_that_is_full_or_fails_is_reported_for_each(kind: str, error: int) -> None:
    directory = _with_records()
    fs = directory.fs
    assert isinstance(fs, MemoryFs)
    fs.fail_at(("write", "pwrite", "fsync", "open"), 1, error=error, times=1 << 30)
    outcomes = directory.carry_out([FAILURES[kind](TopicPartition("t", number)) for number in range(5)])
    expected = LogDirFullError if error == 28 else LogDirOfflineError
    assert [type(one) for one in outcomes] == [expected] * 5
    if error == 28:
        assert [directory.log("t", number).epochs.latest for number in range(5)] == [0] * 5
        assert [directory.log("t", number).log_start_offset for number in range(5)] == [0] * 5
        assert [directory.log("t", number).high_watermark for number in range(5)] == [3] * 5


def _with_records() -> LogDir:
    fs = MemoryFs(clock=ManualClock())
    directory = LogDir.open("/logs", ground=Ground(fs=fs, clock=ManualClock(), rng=Random(1)), hw_follows_end=False)
    directory.create_topic("t", 5)
    for number in range(5):
        log = directory.log("t", number)
        for _ in range(3):
            log.append(batch(), leader_epoch=0)
        log.update_high_watermark(3)
    return directory
