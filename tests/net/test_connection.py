"""Connections over real sockets: order, pieces, waiting answers. Their limits: `tests.net.test_connection_quotas`."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable

import pytest

from seglog.net.connection import RECEIVE_BYTES, SLICE_BYTES, ClientConnection, IdleLimits, Reply
from seglog.net.connection_quotas import ConnectionQuotas
from seglog.net.pending_replies import PendingReply
from tests.net.serving import LARGEST, Bytes, answer, ask, echo, frame, is_closed, serving, until


@pytest.mark.parametrize("size", [4, 100, RECEIVE_BYTES - 4, RECEIVE_BYTES, RECEIVE_BYTES + 1, 1 << 20, LARGEST])
def test_frames_of_every_size_come_whole(size: int) -> None:
    async def run() -> None:
        async with serving(echo) as served:
            reader, writer = await served.connect()
            for turn in range(3):
                body = bytes([65 + turn]) * (size - 1) + b"!"
                assert await ask(reader, writer, body) == body[::-1]
            writer.close()

    asyncio.run(run())


def test_frames_come_in_pieces_and_several_at_once() -> None:
    async def run() -> None:
        async with serving(echo) as served:
            reader, writer = await served.connect()
            bodies = [f"body {number}".encode() * (number * 300 + 1) for number in range(60)]
            stream = b"".join(map(frame, bodies))
            for start in range(200):
                writer.write(stream[start : start + 1])
                await writer.drain()
            writer.write(stream[200:])
            for body in bodies:
                assert await answer(reader) == body[::-1]

    asyncio.run(run())


def test_answers_that_are_ready_wait_for_no_other() -> None:
    async def run() -> None:
        gate = asyncio.Event()

        async def later(body: bytes) -> Reply:
            await gate.wait()
            return echo(body)

        def answers(body: bytes) -> Reply | Awaitable[Reply]:
            if body == b"parts":
                return [(8).to_bytes(4, "big"), Bytes(b"abcd", 4), b"tail"]
            return later(body) if body == b"wait" else echo(body)

        async with serving(answers) as served:
            reader, writer = await served.connect()
            writer.write(b"".join(map(frame, (b"first", b"parts", b"second", b"wait", b"last"))))
            async with asyncio.timeout(60):
                for expected in (b"tsrif", b"abcdtail", b"dnoces"):
                    assert await answer(reader) == expected
            gate.set()
            for expected in (b"tiaw", b"tsal"):
                assert await answer(reader) == expected

    asyncio.run(run())


def test_answers_keep_the_order_of_requests_though_one_has_to_wait() -> None:
    async def run() -> None:
        gate = asyncio.Event()
        order: list[bytes] = []

        async def later(body: bytes) -> Reply:
            await gate.wait()
            return echo(body)

        def answers(body: bytes) -> Reply | Awaitable[Reply]:
            order.append(body)
            return later(body) if body == b"wait" else echo(body)

        async with serving(answers) as served:
            reader, writer = await served.connect()
            writer.write(frame(b"wait") + frame(b"after"))
            await until(lambda: bool(order))
            other_reader, other_writer = await served.connect()
            assert await ask(other_reader, other_writer, b"other") == b"rehto"
            assert order == [b"wait", b"other"]
            gate.set()
            assert [await answer(reader), await answer(reader)] == [b"tiaw", b"retfa"]

    asyncio.run(run())


@pytest.mark.parametrize(
    "sent", [(3).to_bytes(4, "big") + b"abcd", b"\xff" * 8, (LARGEST + 1).to_bytes(4, "big") + b"abcd", frame(b"evil")]
)
def test_a_frame_that_cannot_be_ends_its_connection_and_no_other(sent: bytes) -> None:
    async def run() -> None:
        async with serving(echo) as served:
            reader, writer = await served.connect()
            other_reader, other_writer = await served.connect()
            writer.write(sent)
            assert await is_closed(reader)
            assert await ask(other_reader, other_writer, b"fine") == b"enif"

    asyncio.run(run())


def test_a_buffer_is_full_when_its_first_frame_begins_to_wait() -> None:
    async def run() -> None:
        gate = asyncio.Event()

        async def later(body: bytes) -> Reply:
            await gate.wait()
            return echo(body)

        async with serving(lambda body: later(body) if body == b"wait" else echo(body)) as served:
            reader, writer = await served.connect()
            count = RECEIVE_BYTES // 50
            writer.write(frame(b"wait") + frame(b"x" * 100) * count)
            await until(lambda: any(connection._end == connection._limit for connection in served.shared.connections))
            for _ in range(10):  # the loop looks at the socket again
                await asyncio.sleep(0)
            gate.set()
            assert await answer(reader) == b"tiaw"
            for _ in range(count):
                assert await answer(reader) == b"x" * 100

    asyncio.run(run())


def test_a_slow_client_is_sent_slices_as_it_takes_them() -> None:
    parts = 40

    async def run() -> None:
        read: list[int] = []

        class Counted(Bytes):
            def read_part(self, start: int, size: int) -> bytes:
                read.append(start)
                return super().read_part(start, size)

        data = bytes(range(256)) * (SLICE_BYTES * parts // 256)

        def answers(_body: bytes) -> Reply:
            return [len(data).to_bytes(4, "big"), Counted(data, len(data))]

        async with serving(answers) as served:
            reader, writer = await served.connect()
            writer.write(frame(b"give"))
            head = await reader.readexactly(4)
            other = await served.connect()
            other[1].write(frame(b"more"))
            await other[0].readexactly(4)
            assert len(read) < parts  # the client has not taken much yet
            assert int.from_bytes(head, "big") == len(data)
            assert await reader.readexactly(len(data)) == data

    asyncio.run(run())


def test_a_file_that_was_cut_ends_the_connection() -> None:
    async def run() -> None:
        async with serving(lambda _: [b"\0\0\0\x08", Bytes(b"abcd", 8)]) as served:
            reader, writer = await served.connect()
            writer.write(frame(b"give"))
            assert len(await reader.read()) < 4 + 8

    asyncio.run(run())


def test_a_client_that_goes_while_its_answer_waits_leaves_nothing() -> None:
    async def run() -> None:
        cancelled = asyncio.Event()

        async def never(_body: bytes) -> Reply:
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()
            return None

        async with serving(never) as served:
            _, writer = await served.connect()
            writer.write(frame(b"wait"))
            writer.close()
            await asyncio.wait_for(cancelled.wait(), 60)
            while served.shared.connections:
                await asyncio.sleep(0)

    asyncio.run(run())


def test_a_client_that_goes_before_its_answer_has_begun_leaves_no_coroutine() -> None:
    async def run() -> None:
        ended = asyncio.Event()

        async def later(_body: bytes) -> Reply:
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()
            return None

        def handle(_connection: ClientConnection, body: memoryview, /) -> Reply | Awaitable[Reply]:
            return later(bytes(body))

        shared = ConnectionQuotas(
            largest=lambda _: LARGEST,
            max_connections=1,
            max_connections_per_ip=1,
            in_flight_bytes=0,
            idle=IdleLimits(1),
        )
        connection = ClientConnection(
            listener="PLAINTEXT", handler=handle, limits=shared, now=lambda: 0.0, closed=lambda _: None
        )
        connection.connection_made(asyncio.Transport())
        sent = frame(b"wait")
        connection.get_buffer(-1)[: len(sent)] = sent
        connection.buffer_updated(len(sent))
        connection.connection_lost(None)
        await asyncio.wait_for(ended.wait(), 60)

    asyncio.run(run())
    gc.collect()


def test_stopping_listener_answers_handled_requests_and_accepts_no_more() -> None:
    """Or an idempotent producer would send again more batches than the snapshot of a clean stop knows."""

    async def run() -> None:
        outstanding: list[PendingReply[bytes | None]] = []

        def answers(body: bytes) -> Reply | Awaitable[Reply]:
            del body
            outstanding.append(PendingReply())
            return outstanding[-1]

        async with serving(answers) as served:
            reader, writer = await served.connect()
            writer.write(frame(b"first") + frame(b"second"))
            await until(lambda: len(outstanding) == 2)
            stopping = asyncio.create_task(served.listener.stop())
            await asyncio.wait([stopping], timeout=0.05)
            assert not stopping.done()
            writer.write(frame(b"third"))
            await writer.drain()
            for pending, reply in zip(tuple(outstanding), (b"1", b"2"), strict=True):
                pending.set(frame(reply))
                assert await answer(reader) == reply
            await stopping
            assert await is_closed(reader)
            assert len(outstanding) == 2

    asyncio.run(run())
