"""Acknowledgements of a leader with ``flush.messages=1``, before and after a flush. The tests hold the flushes back."""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar
from uuid import UUID

import pytest

from seglog.cluster.model import PartitionState, VersionedState
from seglog.core.errors import LogDirOfflineError
from seglog.core.ground import Ground, Threads
from seglog.core.types import TopicPartition
from seglog.replication import group_flushes
from seglog.replication.group_flushes import GroupFlushes
from seglog.replication.replica import COMMITTED, KAFKA_STORAGE_ERROR, Replica, ReplicaFetch, ReplicaListener
from seglog.replication.waiters import GrowthWaiter
from seglog.storage.directory.log_dir import LogDir
from tests.kit.log_changes import take_over
from tests.kit.manual_clock import ManualClock
from tests.kit.memory_fs import MemoryFs
from tests.lone import led
from tests.replication.logs import batch
from tests.replication.registrations import BROKERS, FOLLOWER, LAG_MS, LEADER

T = TypeVar("T")
PARTITION = TopicPartition("t", 0)


class HeldWorkers(Threads):
    """Work waits until `let_go`. ``waiting`` counts it."""

    def __init__(self) -> None:
        self.waiting = 0
        self._may_go = asyncio.Semaphore(0)

    async def run(self, act: Callable[[], T], /) -> T:
        self.waiting += 1
        await self._may_go.acquire()
        self.waiting -= 1
        return act()

    async def let_go(self) -> None:
        """Do one piece of work, and everything that follows from it."""
        self._may_go.release()
        for _ in range(10):
            await asyncio.sleep(0)


class Setup(ReplicaListener):
    def __init__(self, *, hw_follows_end: bool) -> None:
        self.fs = MemoryFs(clock=ManualClock())
        self.directory = LogDir.open(
            "/logs", ground=Ground(fs=self.fs, clock=ManualClock(), rng=random.Random(1)), hw_follows_end=hw_follows_end
        )
        self.directory.create_topic("t", 1, {"flush.messages": "1"})
        self.log = self.directory.log("t")
        self.workers = HeldWorkers()
        self.flushes = GroupFlushes(self.workers)

    def leader(self) -> Replica:
        replica = Replica(self.directory, PARTITION, UUID(int=1), self.log, listener=self)
        state = PartitionState(replicas=(1, 2), leader=1, leader_epoch=3, isr=(LEADER, FOLLOWER))
        take_over(replica, VersionedState(state, 1), LEADER, BROKERS, 0, lag_max_ms=LAG_MS)
        return replica

    def appended(self, replica: Replica) -> None:
        replica.advance(BROKERS, 0)

    def flush_due(self, replica: Replica) -> None:
        self.flushes.due(replica)


@asynccontextmanager
async def setup(*, hw_follows_end: bool = False) -> AsyncIterator[Setup]:
    one = Setup(hw_follows_end=hw_follows_end)
    try:
        yield one
    finally:
        for _ in range(one.workers.waiting):
            await one.workers.let_go()
        await one.flushes.close()


def run(act: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await act()

    asyncio.run(bounded())


def fetch(replica: Replica, offset: int) -> None:
    """The follower has flushed everything before ``offset``."""
    asked = ReplicaFetch(FOLLOWER.node_id, FOLLOWER.epoch, 3, offset, 3 if offset else -1, 0, 1 << 20)
    replica.serve_replica(asked, BROKERS, 0)


def test_leader_commits_nothing_that_it_has_not_flushed() -> None:
    async def act() -> None:
        async with setup() as one:
            leader = one.leader()
            leader.append(batch(), needs_all=True)
            fetch(leader, 1)
            assert (leader.log.high_watermark, leader.outcome(3, 1)) == (0, None)
            await one.workers.let_go()
            assert (leader.log.high_watermark, leader.outcome(3, 1)) == (1, COMMITTED)

    run(act)


def test_acks_1_waits_for_the_flush_and_for_nobody_else() -> None:
    async def act() -> None:
        async with setup() as one:
            leader = one.leader()
            leader.append(batch())
            assert leader.outcome(3, 1, needs_all=False) is None
            await one.workers.let_go()
            assert leader.outcome(3, 1, needs_all=False) == COMMITTED
            assert leader.outcome(3, 1) is None, "no follower has it"

    run(act)


def test_one_flush_is_for_all_that_was_appended_before_it_began() -> None:
    async def act() -> None:
        async with setup() as one:
            leader = one.leader()
            leader.append(batch())
            before = one.fs.calls["fsync"]
            for _ in range(50):
                leader.append(batch())
            await asyncio.sleep(0)
            assert one.fs.calls["fsync"] == before, "an append waits for no disk"
            assert one.workers.waiting == 1
            await one.workers.let_go()
            assert (leader.log.flushed_end, one.workers.waiting) == (51, 0)
            assert one.fs.calls["fsync"] - before <= 4, "the log, and its indexes for the first time"

    run(act)


def test_append_during_a_flush_is_flushed_by_the_next() -> None:
    async def act() -> None:
        async with setup() as one:
            leader = one.leader()
            leader.append(batch())
            one.log.flush()  # as a roll does, beside
            leader.append(batch())
            await one.workers.let_go()
            assert leader.log.flushed_end == 2
            leader.append(batch())
            await one.workers.let_go()
            assert leader.log.flushed_end == 3

    run(act)


def test_new_leader_flushes_what_it_had_as_a_follower() -> None:
    async def act() -> None:
        async with setup() as one:
            one.log.defer_flushes()
            one.log.append(batch())
            leader = one.leader()
            fetch(leader, 1)
            assert leader.log.high_watermark == 0
            await one.workers.let_go()
            assert leader.log.high_watermark == 1

    run(act)


def test_broker_that_is_alone_shows_what_it_has_flushed() -> None:
    async def act() -> None:
        async with setup(hw_follows_end=True) as one:
            partition = led(one.directory, PARTITION, UUID(int=1), listener=one)
            partition.append(batch())
            assert (one.log.high_watermark, partition.outcome(0, 1)) == (0, None)
            await one.workers.let_go()
            assert (one.log.high_watermark, partition.outcome(0, 1)) == (1, COMMITTED)

    run(act)


def test_records_whose_index_has_no_room_are_acknowledged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_flushes, "_FULL_AGAIN_SECONDS", 0.0)

    async def act() -> None:
        async with setup() as one:
            leader = one.leader()
            one.fs.fail_at("pwrite", 1, error=errno.ENOSPC, path="index")
            leader.append(batch(5_000))
            leader.append(batch(5_000))
            leader.waiters[waiter := GrowthWaiter(0, 30.0)] = None
            await one.workers.let_go()
            assert leader.log.recovery_point == 0
            assert await waiter.wait()
            assert leader.outcome(3, 2, needs_all=False) == COMMITTED
            await one.workers.let_go()
            assert leader.log.recovery_point == 2

    run(act)


def test_failed_flush_takes_the_directory_out_of_use_and_is_not_retried() -> None:
    async def act() -> None:
        async with setup(hw_follows_end=True) as one:
            partition = led(one.directory, PARTITION, UUID(int=1), listener=one)
            partition.append(batch())
            one.fs.fail_at("fsync", 1)
            await one.workers.let_go()
            assert (one.workers.waiting, one.log.flushed_end) == (0, 0)
            assert partition.outcome(0, 1) == partition.outcome(0, 1, needs_all=False) == KAFKA_STORAGE_ERROR
            with pytest.raises(LogDirOfflineError):
                partition.append(batch())

    run(act)
