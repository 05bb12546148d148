"""Connections over real sockets: order, limits, slow clients, and what half a request may cost."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import NamedTuple

import pytest

from seglog.core.errors import InvalidRequestError
from seglog.core.types import MAX_INT32
from seglog.net.connection import RECEIVE_BYTES, SLICE_BYTES, Connection, Reply
from seglog.net.listen import Endpoint, Listener, Shared

_LARGEST = 4 << 20
Answers = Callable[[bytes], Reply | Awaitable[Reply]]


class Bytes(NamedTuple):
    """A slice of a file that has ``there`` bytes although it had ``size``."""

    data: bytes
    size: int

    def read_part(self, start: int, size: int) -> bytes:
        return self.data[start : start + size]


def frame(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


Client = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Served(NamedTuple):
    listener: Listener
    shared: Shared
    clients: list[Client]

    async def connect(self) -> Client:
        self.clients.append(await asyncio.open_connection(self.listener.endpoint.host, self.listener.endpoint.port))
        return self.clients[-1]


@asynccontextmanager
async def serving(
    answers: Answers,
    *,
    max_connections: int = 100,
    per_ip: int = MAX_INT32,
    in_flight: int = 64 << 20,
    idle_ms: int = 60_000,
) -> AsyncIterator[Served]:
    def largest(head: memoryview) -> int:
        if bytes(head) == b"evil":
            raise InvalidRequestError("evil")
        return _LARGEST

    shared = Shared(
        largest=largest,
        max_connections=max_connections,
        max_connections_per_ip=per_ip,
        in_flight_bytes=in_flight,
        idle_ms=idle_ms,
    )

    def handle(_connection: Connection, body: memoryview, /) -> Reply | Awaitable[Reply]:
        return answers(bytes(body))

    listener = Listener(Endpoint("PLAINTEXT", "127.0.0.1", 0), handle, shared)
    await listener.start()
    served = Served(listener, shared, [])
    try:
        yield served
    finally:
        await listener.stop()
        for _, writer in served.clients:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, body: bytes) -> bytes:
    writer.write(frame(body))
    return await answer(reader)


async def answer(reader: asyncio.StreamReader) -> bytes:
    return await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))


async def is_closed(reader: asyncio.StreamReader) -> bool:
    try:
        return await reader.read(1) == b""
    except ConnectionResetError:
        return True


def echo(body: bytes) -> bytes:
    return frame(body[::-1])


@pytest.mark.parametrize("size", [4, 100, RECEIVE_BYTES - 4, RECEIVE_BYTES, RECEIVE_BYTES + 1, 1 << 20, _LARGEST])
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
            other_reader, other_writer = await served.connect()
            assert await ask(other_reader, other_writer, b"other") == b"rehto"
            assert order == [b"wait", b"other"]
            gate.set()
            assert [await answer(reader), await answer(reader)] == [b"tiaw", b"retfa"]

    asyncio.run(run())


@pytest.mark.parametrize(
    "sent", [(3).to_bytes(4, "big") + b"abcd", b"\xff" * 8, (_LARGEST + 1).to_bytes(4, "big") + b"abcd", frame(b"evil")]
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


def test_bytes_in_flight_are_limited_and_given_back() -> None:
    async def run() -> None:
        async with serving(echo, in_flight=3 << 20) as served:
            first = await served.connect()
            first[1].write((2 << 20).to_bytes(4, "big") + b"some")
            second = await served.connect()
            assert await ask(*second, b"small") == b"llams"  # by now the first one's head is there, and has its memory
            second[1].write((2 << 20).to_bytes(4, "big") + b"some")
            assert await is_closed(second[0])
            first[1].write(bytes((2 << 20) - 4))
            assert len(await answer(first[0])) == 2 << 20
            first[1].close()
            third = await served.connect()
            assert await ask(*third, bytes(2 << 20)) == bytes(2 << 20)

    asyncio.run(run())


def test_connections_are_limited() -> None:
    async def run() -> None:
        async with serving(echo, max_connections=2) as served:
            first, second, third = [await served.connect() for _ in range(3)]
            assert await is_closed(third[0])
            assert await ask(*first, b"fine") == b"enif"
            second[1].close()
            await second[1].wait_closed()
            while len(served.shared.connections) > 1:
                await asyncio.sleep(0)
            fourth = await served.connect()
            assert await ask(*fourth, b"fine") == b"enif"
        async with serving(echo, per_ip=1) as served:
            first, second = [await served.connect() for _ in range(2)]
            assert await is_closed(second[0])

    asyncio.run(run())


def test_half_a_request_is_not_waited_for_for_ever() -> None:
    async def run() -> None:
        async with serving(echo, idle_ms=40) as served:
            reader, writer = await served.connect()
            writer.write(b"\0\0\0\x10ab")
            assert await is_closed(reader)

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
            assert await reader.readexactly(8) == b"\0\0\0\x08abcd"
            assert await is_closed(reader)

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
            await asyncio.wait_for(cancelled.wait(), 10)
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

        def handle(_connection: Connection, body: memoryview, /) -> Reply | Awaitable[Reply]:
            return later(bytes(body))

        shared = Shared(
            largest=lambda _: _LARGEST,
            max_connections=1,
            max_connections_per_ip=1,
            in_flight_bytes=0,
            idle_ms=1000,
        )
        connection = Connection(
            listener="PLAINTEXT", handler=handle, limits=shared, now=lambda: 0.0, closed=lambda _: None
        )
        connection.connection_made(asyncio.Transport())
        sent = frame(b"wait")
        connection.get_buffer(-1)[: len(sent)] = sent
        connection.buffer_updated(len(sent))
        connection.connection_lost(None)
        await asyncio.wait_for(ended.wait(), 10)

    asyncio.run(run())
    gc.collect()
