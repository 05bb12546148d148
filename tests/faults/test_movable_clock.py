"""A clock that a test moves, with timers, threads, and a broker's timeouts."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from seglog.core.clock import SystemClock
from seglog.faults.movable_clock import MovableClock, MovableLoop, MovableWorkers, workers_of
from seglog.testing import Broker, BrokerError, FaultError
from tests.kit.waiting import wait_until

_QUIET = {"log_level": 0}


def run(main: Callable[[MovableLoop], Coroutine[Any, Any, None]]) -> None:
    loop = MovableLoop(MovableClock())
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(main(loop))


def test_each_timer_runs_at_its_own_time_and_in_order() -> None:
    async def main(loop: MovableLoop) -> None:
        begun = loop.time()
        told: list[tuple[str, int]] = []

        async def tell_again() -> None:
            for _ in range(3):
                await asyncio.sleep(10)
                told.append(("sleep", round(loop.time() - begun)))

        task = loop.create_task(tell_again())
        loop.call_later(15, lambda: told.append(("timer", round(loop.time() - begun))))
        await asyncio.sleep(0)
        real = SystemClock().monotonic()
        await loop.move(25)
        assert told == [("sleep", 10), ("timer", 15), ("sleep", 20)]
        await loop.move(5)
        assert told[3:] == [("sleep", 30)]
        assert SystemClock().monotonic() - real < 25  # of 30 moved ones
        await task

    run(main)


def test_a_long_move_takes_a_thousand_steps() -> None:
    async def main(loop: MovableLoop) -> None:
        count = 0

        async def tick() -> None:
            nonlocal count
            while True:
                await asyncio.sleep(1)
                count += 1

        task = loop.create_task(tick())
        await asyncio.sleep(0)
        await loop.move(1_000_000)
        assert 900 < count <= 1001
        task.cancel()

    run(main)


def test_the_next_step_waits_for_threads() -> None:
    async def main(loop: MovableLoop) -> None:
        begun = loop.time()
        let_go = threading.Event()
        told: list[tuple[str, int]] = []

        async def work() -> None:
            await asyncio.sleep(5)
            await workers_of(loop).run(let_go.wait)
            told.append(("thread", round(loop.time() - begun)))

        task = loop.create_task(work())
        loop.call_later(20, lambda: told.append(("timer", round(loop.time() - begun))))
        threading.Timer(0.1, let_go.set).start()
        await asyncio.sleep(0)
        await loop.move(20)
        assert told == [("thread", 5), ("timer", 20)]
        await task

    run(main)


def test_directory_threads_run_due_work_after_a_move() -> None:
    async def main(loop: MovableLoop) -> None:
        threads, done = MovableWorkers(), threading.Event()
        worker = threads.make(loop.clock, lambda _: None, "test")
        worker.schedule(60_000, done.set)
        await threads.run_due()
        assert not done.is_set()
        await loop.move(61)
        await threads.run_due()
        assert done.is_set()
        worker.stop()

    run(main)


@pytest.fixture(scope="module", params=[False, True], ids=["thread", "process"])
def running(request: pytest.FixtureRequest) -> Iterator[Broker]:
    with Broker({"t": 1}, process=request.param) as broker:
        yield broker


@pytest.fixture
def broker(running: Broker) -> Broker:
    running.reset()
    return running


def produce(broker: Broker, value: bytes) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, **_QUIET})
    producer.produce("t", value, timestamp=broker.clock.now_ms())
    assert producer.flush(30) == 0


def offsets(broker: Broker) -> tuple[int, int]:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "-", **_QUIET})
    from confluent_kafka import TopicPartition

    found = consumer.get_watermark_offsets(TopicPartition("t", 0), 30)
    consumer.close()
    assert found is not None
    return found


def test_retention_deletes_records_that_expire_by_the_moved_clock(broker: Broker) -> None:
    produce(broker, b"1")
    broker.clock.advance(6 * 86_400)
    assert offsets(broker) == (0, 1)
    broker.clock.advance(2 * 86_400)
    assert offsets(broker) == (1, 1)
    produce(broker, b"2")
    assert offsets(broker) == (1, 2)


def test_a_transaction_times_out(broker: Broker) -> None:
    producer = Producer(
        {"bootstrap.servers": broker.bootstrap, "transactional.id": "x", "transaction.timeout.ms": 60_000, **_QUIET}
    )
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce("t", b"1")
    assert producer.flush(30) == 0
    broker.clock.advance(90)
    with pytest.raises(KafkaException):
        producer.commit_transaction(30)


def test_a_session_of_a_member_expires(broker: Broker) -> None:
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": "g", "session.timeout.ms": 45_000, **_QUIET}
        | {"heartbeat.interval.ms": 40_000}
    )
    consumer.subscribe(["t"])
    while not consumer.assignment():
        consumer.poll(0.1)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, **_QUIET})

    def members() -> int:
        return len(admin.describe_consumer_groups(["g"])["g"].result(30).members)

    assert members() == 1
    broker.clock.advance(46)
    assert members() == 0
    consumer.close()


def test_time_is_kept_while_the_broker_is_stopped(broker: Broker) -> None:
    before = broker.clock.now_ms()
    broker.stop()
    broker.clock.advance(8 * 86_400)
    broker.start()
    assert broker.clock.now_ms() - before >= 8 * 86_400_000
    produce(broker, b"1")
    assert offsets(broker)[1] >= 1


def test_time_does_not_go_back_nor_beyond_a_century(broker: Broker) -> None:
    with pytest.raises(ValueError, match="does not go back"):
        broker.clock.advance(-1)
    with pytest.raises(FaultError, match="cannot move"):
        broker.clock.advance(1e12)
    broker.pause()
    with pytest.raises(BrokerError, match="paused"):
        broker.clock.advance(1)
    broker.resume()
    wait_until(lambda: offsets(broker)[0] >= 0, "the broker answers")
