"""The transaction coordinator, with its topic on a disk in memory and markers that come when the test says so."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final
from uuid import UUID

import pytest

from seglog.coordinators.coordinator_error import CoordinatorError
from seglog.coordinators.transactions.coordinator import TransactionContext, TransactionCoordinator
from seglog.coordinators.transactions.markers import MarkerRequest, MarkerWriter, Results
from seglog.coordinators.transactions.settings import TransactionSettings
from seglog.coordinators.transactions.shard import TransactionShard
from seglog.coordinators.transactions.transaction import Transaction
from seglog.core.error_codes import ErrorCode
from seglog.core.ground import Ground
from seglog.core.topic_names import TRANSACTION_TOPIC
from seglog.core.types import ProducerIdAndEpoch, TopicPartition
from seglog.replication.replica import Replica
from seglog.storage.directory.log_dir import LogDir
from tests.kit.manual_clock import ManualClock
from tests.kit.memory_fs import MemoryFs
from tests.lone import led

ID: Final = "payments"
PAID: Final = TopicPartition("paid", 0)
NODE: Final = 1


class Topic:
    """``__transaction_state`` with one partition, which this broker leads."""

    def __init__(self, ground: Ground) -> None:
        directory = LogDir.open("/log", ground=ground)
        directory.create_topic(TRANSACTION_TOPIC)
        self._partitions = [led(directory, TopicPartition(TRANSACTION_TOPIC, 0), UUID(int=1))]

    def partitions(self) -> Sequence[Replica | None]:
        return self._partitions

    def leader(self, number: int) -> int:
        del number
        return NODE

    def is_awaited(self, number: int) -> bool:
        del number
        return False

    async def create(self) -> None:
        raise AssertionError("it is there")


def run(test: Callable[[TransactionCoordinator, asyncio.Event], Awaitable[None]]) -> None:
    """Run a coordinator whose markers are written once the event is set."""

    async def main() -> None:
        clock, may_mark = ManualClock(1_790_000_000_000), asyncio.Event()
        ground = Ground(fs=MemoryFs(clock=clock), clock=clock, rng=random.Random(1))

        async def write(broker: int, requests: Sequence[MarkerRequest]) -> Sequence[Results]:
            assert broker == NODE
            await may_mark.wait()
            return [dict.fromkeys(partitions, ErrorCode.NONE) for _, partitions in requests]

        async def new_producer_id() -> int:
            return 7

        coordinator = TransactionCoordinator(
            Topic(ground),
            TransactionSettings(transaction_state_log_num_partitions=1),
            MarkerWriter(lambda _: NODE, write),
            new_producer_id=new_producer_id,
            version=lambda: 0,
            ground=ground,
        )
        running = asyncio.create_task(coordinator.run())
        await asyncio.sleep(0)
        try:
            await test(coordinator, may_mark)
        finally:
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running

    asyncio.run(main())


async def committed(coordinator: TransactionCoordinator) -> ProducerIdAndEpoch:
    """A producer whose transaction is committed, but not completed."""
    producer = await coordinator.init_producer_id(ID, 60_000, None)
    await coordinator.add_partitions(ID, producer, [PAID], 0)
    await coordinator.end(ID, producer, commit=True, version=0)
    return producer


async def is_refused(coordinator: TransactionCoordinator, producer: ProducerIdAndEpoch) -> bool:
    try:
        await coordinator.add_partitions(ID, producer, [PAID], 0)
    except CoordinatorError as error:
        return error.code is ErrorCode.CONCURRENT_TRANSACTIONS
    return False


def test_the_next_transaction_waits_for_the_markers_of_the_last() -> None:
    async def test(coordinator: TransactionCoordinator, may_mark: asyncio.Event) -> None:
        producer = await committed(coordinator)
        assert await is_refused(coordinator, producer)
        waiting = asyncio.create_task(coordinator.until_completed(ID))
        done, _ = await asyncio.wait((waiting,), timeout=0.01)
        assert not done
        may_mark.set()
        await waiting
        assert not await is_refused(coordinator, producer)

    run(test)


def test_the_wait_ends_without_the_markers() -> None:
    async def test(coordinator: TransactionCoordinator, _: asyncio.Event) -> None:
        producer = await committed(coordinator)
        async with asyncio.timeout(60):
            await coordinator.until_completed(ID)
        assert await is_refused(coordinator, producer)

    run(test)


def test_expiry_of_an_id_that_another_pass_has_deleted_is_nothing_to_do() -> None:
    shard = TransactionShard()
    shard.replay(ID, Transaction(ID, 7, 0, 60_000, 0))
    assert shard.expire(ID, 100, 10)
    assert not shard.expire(ID, 100, 10), "it is proposed already"
    shard.settle(ID)
    assert not shard.expire(ID, 100, 10)


def test_passes_of_expiry_do_not_overlap(monkeypatch: pytest.MonkeyPatch) -> None:
    """One waits for its records to be committed, perhaps for longer than the interval."""
    monkeypatch.setattr(TransactionContext, "committed", _never_committed)

    async def test(coordinator: TransactionCoordinator, may_mark: asyncio.Event) -> None:
        may_mark.set()
        await coordinator.init_producer_id(ID, 60_000, None)
        clock = coordinator._clock
        assert isinstance(clock, ManualClock)
        passes = set()
        for _ in range(3):
            clock.advance(coordinator.settings.transactional_id_expiration_ms + 3_600_000)
            coordinator.check()
            passes.add(coordinator._expiring)
            await asyncio.sleep(0)
        assert len(passes) == 1

    run(test)


async def _never_committed(_: object, __: int) -> bool:
    await asyncio.Event().wait()
    return False
