"""Answers that come later go out in the order of their requests, whatever kind of answer comes between them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from random import Random

from seglog.net.connection import Reply
from seglog.net.pending_replies import MAX_PENDING, PendingReply
from tests.cases import case
from tests.net.serving import Bytes, answer, frame, serving


def test_the_order_of_answers_is_that_of_requests() -> None:
    """Plain answers, slices of files, coroutines and answers that come later, in any order, known in any order."""
    for seed in range(30):
        asyncio.run(_one_client(Random(seed)))
        case()


async def _one_client(rng: Random) -> None:
    kinds = [
        rng.choice(["now", "now", "slice", "wait", "later", "later", "later"]) for _ in range(rng.randrange(1, 90))
    ]
    seen: list[bytes] = []
    outstanding: list[tuple[PendingReply[bytes | None], bytes]] = []
    came = asyncio.Event()

    async def wait(body: bytes) -> Reply:
        await asyncio.sleep(0)
        return frame(body)

    def answers(body: bytes) -> Reply | Awaitable[Reply]:
        seen.append(body)
        came.set()
        kind = body.split()[0].decode()
        if kind == "slice":
            return [len(body).to_bytes(4, "big"), Bytes(body, len(body))]
        if kind == "wait":
            return wait(body)
        if kind == "later":
            later: PendingReply[bytes | None] = PendingReply()
            outstanding.append((later, frame(body)))
            return later
        return frame(body)

    async with serving(answers) as served:
        reader, writer = await served.connect()
        bodies = [f"{kind} request {number}".encode() for number, kind in enumerate(kinds)]
        writer.write(b"".join(map(frame, bodies)))
        received = asyncio.create_task(_answers(reader, len(bodies)))
        while not received.done():
            came.clear()
            if outstanding:
                later, reply = outstanding.pop(rng.randrange(len(outstanding)))
                later.set(reply)
                await asyncio.sleep(0)
            else:
                waits = [asyncio.create_task(came.wait()), received]
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                waits[0].cancel()
        assert received.result() == bodies
        assert seen == bodies


async def _answers(reader: asyncio.StreamReader, count: int) -> list[bytes]:
    return [await answer(reader) for _ in range(count)]


def test_no_more_than_so_many_are_outstanding() -> None:
    async def run() -> None:
        outstanding: list[PendingReply[bytes | None]] = []
        full = asyncio.Event()

        def answers(body: bytes) -> Reply | Awaitable[Reply]:
            del body
            later: PendingReply[bytes | None] = PendingReply()
            outstanding.append(later)
            if len(outstanding) == MAX_PENDING:
                full.set()
            return later

        async with serving(answers) as served:
            reader, writer = await served.connect()
            writer.write(frame(b"body") * (MAX_PENDING + 1))
            await full.wait()
            (connection,) = served.shared.connections
            assert connection.is_waiting
            for number in range(MAX_PENDING // 2):
                outstanding[number].set(frame(b"%d" % number))
            assert await _answers(reader, MAX_PENDING // 2) == [b"%d" % number for number in range(MAX_PENDING // 2)]
            assert len(outstanding) == MAX_PENDING
            outstanding[MAX_PENDING // 2].set(frame(b"half"))
            async with asyncio.timeout(60):
                while len(outstanding) == MAX_PENDING:  # the next is read while half of them are still to come
                    await asyncio.sleep(0)
            for number in range(MAX_PENDING // 2 + 1, MAX_PENDING):
                outstanding[number].set(frame(b"%d" % number))
            rest = [b"half"] + [b"%d" % number for number in range(MAX_PENDING // 2 + 1, MAX_PENDING)]
            assert await _answers(reader, MAX_PENDING // 2) == rest
            outstanding[-1].set(None)  # one that is not answered
            writer.write(frame(b"last"))
            while len(outstanding) == MAX_PENDING + 1:
                await asyncio.sleep(0)
            outstanding[-1].set(frame(b"last"))
            assert await answer(reader) == b"last"

    asyncio.run(run())


def test_a_client_that_goes_leaves_nothing_behind() -> None:
    async def run() -> None:
        outstanding: list[PendingReply[bytes | None]] = []
        came = asyncio.Event()

        def answers(body: bytes) -> Reply | Awaitable[Reply]:
            del body
            outstanding.append(PendingReply())
            came.set()
            return outstanding[-1]

        async with serving(answers) as served:
            _, writer = await served.connect()
            writer.write(frame(b"body"))
            await came.wait()
            writer.close()
            await writer.wait_closed()
            while served.shared.connections:
                await asyncio.sleep(0)
            outstanding[0].set(frame(b"nobody is there"))

    asyncio.run(run())


def test_it_can_be_awaited_and_mapped() -> None:
    async def run() -> None:
        later: PendingReply[int] = PendingReply()
        doubled = later.map(lambda value: 2 * value)
        waiting = asyncio.ensure_future(_value(doubled))
        await asyncio.sleep(0)
        later.set(21)
        assert await waiting == 42
        assert await doubled == 42

    asyncio.run(run())


async def _value(later: PendingReply[int]) -> int:
    return await later


def test_a_slow_client_that_asks_behind_large_answers_gets_all_of_them_in_their_order() -> None:
    """The answers that came later fill what the client does not take; then something is asked that has to be waited
    for. One thing at a time is waited for, or the next requests are handled meanwhile, in the same memory."""

    async def run() -> None:
        outstanding: list[PendingReply[bytes | None]] = []
        released = asyncio.Event()
        running = most = 0

        async def wait(body: bytes) -> Reply:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await released.wait()
            running -= 1
            return frame(body)

        def answers(body: bytes) -> Reply | Awaitable[Reply]:
            if not body.startswith(b"later"):
                return wait(body)
            later: PendingReply[bytes | None] = PendingReply()
            outstanding.append(later)
            return later

        async with serving(answers) as served:
            reader, writer = await served.connect()
            writer.write(frame(b"later 1") + frame(b"later 2"))
            while len(outstanding) < 2:
                await asyncio.sleep(0)
            large = frame(b"x" * (16 << 20))
            outstanding[0].set(large)  # more than the sockets hold: the client takes nothing yet
            writer.write(frame(b"wait 1") + frame(b"wait 2") + frame(b"wait 3"))
            while not running:
                await asyncio.sleep(0)
            assert await reader.readexactly(len(large)) == large
            outstanding[1].set(frame(b"second"))
            for _ in range(50):
                await asyncio.sleep(0)
            released.set()
            for expected in (b"second", b"wait 1", b"wait 2", b"wait 3"):
                assert await answer(reader) == expected
            assert most == 1

    asyncio.run(run())
