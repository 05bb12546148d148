"""Memory of large requests: it is taken as bytes come, and who sends nothing is in front of no other client."""

from __future__ import annotations

import asyncio
import logging
from random import Random

import pytest

from seglog.net import request_memory
from seglog.net.connection import RECEIVE_BYTES, STEP_BYTES
from seglog.net.request_memory import RequestMemory
from tests.cases import case
from tests.net.serving import LARGEST, Client, Run, answer, ask, echo, frame, is_closed, serving, until

BUDGET = 3 << 20
LARGE = 2 << 20
HALF = LARGE // 2


async def begin(client: Client, sent: int, size: int = LARGE) -> None:
    """A frame of ``size`` bytes, of which ``sent`` come, and then nothing for now."""
    client[1].write(size.to_bytes(4, "big") + b"some" + bytes(sent - 4))
    await client[1].drain()


async def end(client: Client, sent: int, size: int = LARGE) -> None:
    client[1].write(bytes(size - sent))
    assert await answer(client[0]) == bytes(size - 4) + b"emos"


def test_an_announced_size_reserves_nothing(run: Run) -> None:
    async def act() -> None:
        async with serving(echo, in_flight=BUDGET) as served:
            for _ in range(20):
                client = await served.connect()
                await begin(client, 100, size=LARGEST)
            await until(lambda: sum(connection.received for connection in served.shared.connections) == 20 * 104)
            assert served.shared.memory.left == BUDGET
            assert await ask(*await served.connect(), b"x" * LARGE) == b"x" * LARGE

    run(act)


def test_memory_is_reserved_as_bytes_come_and_given_back_at_the_end(run: Run) -> None:
    async def act() -> None:
        async with serving(echo, in_flight=16 << 20) as served:
            memory = served.shared.memory
            client = await served.connect()
            await begin(client, HALF, size=LARGEST)
            await until(lambda: sum(connection.received for connection in served.shared.connections) == HALF + 4)
            assert HALF <= (16 << 20) - memory.left <= HALF + STEP_BYTES
            await end(client, HALF, size=LARGEST)
            client[1].transport.abort()
            await until(lambda: memory.left == 16 << 20)

    run(act)


def test_small_requests_wait_for_no_memory(run: Run) -> None:
    async def act() -> None:
        async with serving(echo, in_flight=0) as served:
            first, second, third = [await served.connect() for _ in range(3)]
            await begin(first, HALF)
            await until(lambda: served.shared.memory.left < 0)
            await begin(second, HALF)
            await until(lambda: served.shared.memory.is_short)
            assert await ask(*third, bytes(RECEIVE_BYTES - 4)) == bytes(RECEIVE_BYTES - 4)

    run(act)


def test_the_oldest_request_finishes_where_memory_is_full_of_unfinished_ones(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_memory, "_TICK_SECONDS", 60.0)  # so that no request counts as silent

    async def act() -> None:
        async with serving(echo, in_flight=BUDGET) as served:
            clients = [await served.connect() for _ in range(5)]
            for client in clients:
                await begin(client, HALF)
            await until(lambda: served.shared.memory.is_short)
            await asyncio.gather(*[end(client, HALF) for client in clients])
            assert not served.shared.memory.is_short

    run(act)


def test_silent_requests_end_so_that_another_has_their_memory(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    async def act() -> None:
        async with serving(echo, in_flight=BUDGET) as served:
            silent = [await served.connect() for _ in range(4)]
            for client in silent:
                await begin(client, HALF)
            assert await ask(*await served.connect(), b"x" * LARGE) == b"x" * LARGE
            assert await is_closed(silent[0][0])
            assert served.shared.memory.left >= -LARGE

    with caplog.at_level(logging.INFO, "seglog.net"):
        run(act)
    assert "while other requests waited for memory (queued.max.request.bytes)" in caplog.text


def test_memory_of_a_closed_connection_goes_to_the_next_request(run: Run) -> None:
    async def act() -> None:
        async with serving(echo, in_flight=BUDGET) as served:
            clients = [await served.connect() for _ in range(6)]
            for client in clients:
                await begin(client, HALF)
            await until(lambda: served.shared.memory.is_short)
            for client in clients[:4]:
                client[1].transport.abort()
            await asyncio.gather(*[end(client, HALF) for client in clients[4:]])

    run(act)


def test_many_busy_clients_share_memory_that_is_too_small(run: Run) -> None:
    async def act() -> None:
        async with serving(echo, in_flight=BUDGET) as served:

            async def work(client: Client) -> None:
                for _ in range(5):
                    client[1].write(frame(b"x" * LARGE) * 2)
                    for _ in range(2):
                        assert await answer(client[0]) == b"x" * LARGE

            await asyncio.gather(*[work(await served.connect()) for _ in range(8)])
            assert not served.shared.memory.is_short

    run(act)


class Sender:
    """A `Holder` that sends requests of ``size`` bytes, some of which never come whole."""

    def __init__(self, memory: RequestMemory, size: int) -> None:
        self.memory = memory
        self.size = size
        self.received = self.room = 0
        self.is_waiting = self.is_over = False

    @property
    def awaits_bytes(self) -> bool:
        return not self.is_waiting and 0 < self.received < self.size

    def send(self, step: int) -> None:
        if self.is_waiting or self.is_over:
            return
        if self.received < self.room:
            self.received = min(self.room, self.received + step, self.size)
        if self.received == self.size:
            self.finish()
        elif self.received == self.room:
            wanted = min(step, self.size - self.room)
            if self.memory.reserve(self, wanted):
                self.room += wanted
            else:
                self.is_waiting = True

    def finish(self) -> None:
        self.is_over, self.is_waiting = True, False
        self.room = 0
        self.memory.release(self)

    def has_room(self, size: int) -> None:
        self.is_waiting = False
        self.room += size

    def shrink(self) -> None:
        if self.received == 0 and not self.is_waiting and not self.is_over:
            self.room = 0
            self.memory.release(self)

    def end_silent(self) -> None:
        assert self.awaits_bytes
        self.finish()


def test_budget_is_exceeded_by_at_most_one_request_and_every_sender_finishes() -> None:
    largest = 100

    async def run(rng: Random) -> None:
        case()
        budget = rng.randrange(0, 200)
        memory = RequestMemory(budget)
        senders = [Sender(memory, rng.randrange(1, largest)) for _ in range(rng.randrange(1, 12))]
        silent = {sender: rng.randrange(sender.size) for sender in senders if rng.random() < 0.4}
        for _ in range(1200):
            sender = rng.choice(senders)
            if sender.received <= silent.get(sender, largest):
                sender.send(rng.randrange(1, 20))
            if memory._timer is not None and rng.random() < 0.1:
                memory._timer.cancel()
                memory._tick()
            assert memory.left + sum(one.room for one in senders) == budget
            assert memory.left >= -largest
        assert all(sender.is_over for sender in senders if sender not in silent)
        if memory._timer is not None:
            memory._timer.cancel()

    async def run_all() -> None:
        for seed in range(200):
            await run(Random(seed))

    asyncio.run(run_all())
