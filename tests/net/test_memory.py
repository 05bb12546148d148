"""Memory of large frames: who waits for it, and who gets it."""

from __future__ import annotations

import asyncio

from seglog.net.patience import Patience
from tests.net.serving import Client, Run, answer, ask, echo, frame, is_closed, serving, until

LARGE = 2 << 20
FOREVER = 600.0


async def begin(client: Client, size: int = LARGE) -> None:
    """The head of a frame, and then nothing for now."""
    client[1].write(size.to_bytes(4, "big") + b"some")
    await client[1].drain()


async def end(client: Client, size: int = LARGE) -> None:
    client[1].write(bytes(size - 4))
    assert await answer(client[0]) == bytes(size - 4) + b"emos"


def test_large_frames_wait_for_memory_and_small_ones_do_not(run: Run) -> None:
    async def act() -> None:
        async with serving(echo, in_flight=3 << 20) as served:
            shared = served.shared
            first, second, third = [await served.connect() for _ in range(3)]
            await begin(first)
            await until(lambda: shared._left == (3 << 20) - LARGE - 4)
            await begin(second)
            await until(lambda: shared.is_short)
            assert await ask(*third, b"small") == b"llams"
            await begin(third)
            await end(first)
            await end(second)
            await end(third)
            for client in (first, second, third):
                client[1].close()
            await until(lambda: shared._left == 3 << 20)

    run(act)


def test_memory_of_who_goes_is_given_to_the_next(run: Run) -> None:
    async def act() -> None:
        async with serving(echo, in_flight=3 << 20) as served:
            clients = [await served.connect() for _ in range(4)]
            for client in clients:
                await begin(client)
            await until(lambda: len(served.shared._waiting) == 3)
            clients[1][1].transport.abort()  # one that waits: it is noticed when it has its turn
            clients[0][1].transport.abort()  # the one that has it
            await end(clients[2])
            await end(clients[3])

    run(act)


def test_many_busy_clients_share_memory_that_is_too_small(run: Run) -> None:
    async def act() -> None:
        async with serving(echo, in_flight=5 << 20) as served:

            async def work(client: Client) -> None:
                for _ in range(5):
                    client[1].write(frame(b"x" * LARGE) * 2)
                    for _ in range(2):
                        assert await answer(client[0]) == b"x" * LARGE

            await asyncio.gather(*[work(await served.connect()) for _ in range(8)])
            assert not served.shared.is_short

    run(act)


def test_who_holds_memory_and_sends_nothing_ends_so_that_others_go_on(run: Run) -> None:
    async def act() -> None:
        async with serving(echo, in_flight=3 << 20, patience=Patience(idle=FOREVER, frame=0.05)) as served:
            first, second = [await served.connect() for _ in range(2)]
            await begin(first)
            await until(lambda: served.shared._left < 3 << 20)
            await begin(second)
            await end(second)
            assert await is_closed(first[0])

    run(act)
