"""Links to another broker: answers in order, of any size and in any pieces; what is no answer ends them."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from struct import Struct

import pytest

from seglog.net.peer_connection import RECEIVE_BYTES, PeerConnection, PeerConnectionLostError
from seglog.protocol.apis import ApiKey
from seglog.protocol.framing import frame_response, read_header
from tests.cases import case
from tests.net.serving import Run, until

LARGEST = 8 << 20
_SIZE = Struct(">i")
Peer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def linked(peer: Peer, largest: int = LARGEST) -> AsyncIterator[PeerConnection]:
    """A link to ``peer``, which is there until the end."""
    tasks = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.append(asyncio.current_task())
        try:
            await peer(reader, writer)
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    link = await PeerConnection.open(host, port, client_id="me", timeout=60, largest=largest)
    try:
        yield link
    finally:
        link.close()
        server.close()
        for task in tasks:
            if task is not None and not task.done():
                task.cancel()
        await asyncio.gather(*filter(None, tasks), return_exceptions=True)
        await server.wait_closed()


async def request(reader: asyncio.StreamReader) -> tuple[int, int, int, bytes]:
    """Key, version, correlation id, body."""
    frame = await reader.readexactly(*_SIZE.unpack(await reader.readexactly(4)))
    header = read_header(frame)
    assert header.client_id == "me"
    return header.key, header.version, header.correlation_id, frame[header.body :]


def answer(key: int, version: int, correlation_id: int, body: bytes) -> bytes:
    return frame_response(key, version, correlation_id, len(body)) + body


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while not reader.at_eof():
        try:
            key, version, correlation_id, body = await request(reader)
        except asyncio.IncompleteReadError:
            return
        writer.write(answer(key, version, correlation_id, body[::-1]))


@pytest.mark.parametrize("version", [1, 5, 6])
def test_answers_come_in_order(run: Run, version: int) -> None:
    async def act() -> None:
        async with linked(echo) as link:
            bodies = [bytes([number]) * (number * 37) for number in range(200)]
            found = await asyncio.gather(
                *[link.ask(ApiKey.LIST_OFFSETS, version, [body[:5], body[5:]], timeout=60) for body in bodies]
            )
            assert [bytes(one) for one in found] == [body[::-1] for body in bodies]

    run(act)


def test_answers_stay_as_they_were(run: Run) -> None:
    """They are not copied: what comes later goes elsewhere."""

    async def act() -> None:
        async with linked(echo) as link:
            rng = random.Random(3)
            sizes = [0, 1, RECEIVE_BYTES - 9, RECEIVE_BYTES, RECEIVE_BYTES + 1, 3 << 20]
            sizes += [rng.randrange(2 * RECEIVE_BYTES) for _ in range(40)]
            asked, found = [], []
            for size in sizes:
                case()
                asked.append(rng.randbytes(size))
                found.append(await link.ask(ApiKey.FETCH, 17, asked[-1], timeout=60))
            assert [bytes(one) for one in found] == [body[::-1] for body in asked]

    run(act)


def test_answers_in_pieces(run: Run) -> None:
    async def byte_by_byte(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        stream = b""
        for _ in range(3):
            key, version, correlation_id, body = await request(reader)
            stream += answer(key, version, correlation_id, body * 30)
        for at in range(len(stream)):
            writer.write(stream[at : at + 1])
            await writer.drain()

    async def act() -> None:
        async with linked(byte_by_byte) as link:
            asked = [link.ask(ApiKey.FETCH, 17, body, timeout=60) for body in (b"one", b"two", b"three")]
            found = await asyncio.gather(*asked)
            assert [bytes(one) for one in found] == [b"one" * 30, b"two" * 30, b"three" * 30]
            assert not link.is_receiving

    run(act)


HOSTILE: dict[str, Callable[[int], bytes]] = {
    "another's": lambda at: frame_response(1, 17, at + 1, 0),
    "negative size": lambda _: _SIZE.pack(-1),
    "no correlation id": lambda _: _SIZE.pack(3) + bytes(3),
    "too large": lambda _: _SIZE.pack(LARGEST + 1),
    "millions of tags": lambda at: _SIZE.pack(9) + _SIZE.pack(at) + b"\xff\xff\xff\xff\x0f",
    "no tags": lambda at: _SIZE.pack(4) + _SIZE.pack(at),
    "the end": lambda at: answer(1, 17, at, b"half")[:-2],
}


@pytest.mark.parametrize("name", HOSTILE)
def test_malformed_response_closes_the_connection(run: Run, name: str) -> None:
    async def peer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        _, _, correlation_id, _ = await request(reader)
        writer.write(HOSTILE[name](correlation_id))
        if name == "the end":
            return
        await reader.read()

    async def act() -> None:
        async with linked(peer) as link:
            asked = asyncio.gather(
                link.ask(ApiKey.FETCH, 17, b"", timeout=60),
                link.ask(ApiKey.FETCH, 17, b"", timeout=60),
                return_exceptions=True,
            )
            for error in await asked:
                assert isinstance(error, PeerConnectionLostError)
                assert link.peer in str(error)
            assert link.is_closed
            with pytest.raises(PeerConnectionLostError, match=link.peer):
                await link.ask(ApiKey.FETCH, 17, b"", timeout=60)

    run(act)


def test_unrequested_response_closes_the_connection(run: Run) -> None:
    async def peer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        _, _, correlation_id, _ = await request(reader)
        writer.write(answer(1, 17, correlation_id, b"") + answer(1, 17, correlation_id + 1, b""))
        await reader.read()

    async def act() -> None:
        async with linked(peer) as link:
            assert not await link.ask(ApiKey.FETCH, 17, b"", timeout=60)
            await until(lambda: link.is_closed)
            with pytest.raises(PeerConnectionLostError, match="there is no request"):
                await link.ask(ApiKey.FETCH, 17, b"", timeout=60)

    run(act)


def test_silence_ends_it_and_slowness_does_not(run: Run) -> None:
    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        key, version, correlation_id, body = await request(reader)
        for byte in answer(key, version, correlation_id, body):
            writer.write(bytes([byte]))
            turn = loop.create_future()
            loop.call_later(0.05, turn.set_result, None)
            await turn
        await reader.read()

    async def act() -> None:
        async with linked(slow) as link:
            # In 1.9 s. The other side is in this loop, too: both may stand still for a while.
            assert bytes(await link.ask(ApiKey.FETCH, 17, bytes(30), timeout=1.7)) == bytes(30)
            silent = asyncio.gather(
                link.ask(ApiKey.FETCH, 17, b"", timeout=0.05),
                link.ask(ApiKey.FETCH, 17, b"", timeout=60),
                return_exceptions=True,
            )
            first, second = await silent
            assert isinstance(first, TimeoutError)
            assert isinstance(second, PeerConnectionLostError)
            assert str(first) == str(second) == f"{link.peer} has not answered for 0.05 seconds"

    run(act)


def test_a_shorter_patience_counts_though_a_longer_one_was_first(run: Run) -> None:
    async def peer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        key, version, correlation_id, body = await request(reader)
        writer.write(answer(key, version, correlation_id, body))
        await reader.read()

    async def act() -> None:
        async with linked(peer) as link:
            assert bytes(await link.ask(ApiKey.FETCH, 17, b"a", timeout=60)) == b"a"
            async with asyncio.timeout(60):
                with pytest.raises(TimeoutError, match=f"{link.peer} has not answered for 0.05 seconds"):
                    await link.ask(ApiKey.FETCH, 17, b"b", timeout=0.05)
            assert link.is_closed

    run(act)


def test_cancelled_request_does_not_shift_later_responses(run: Run) -> None:
    async def act() -> None:
        async with linked(echo) as link:
            one = asyncio.ensure_future(link.ask(ApiKey.FETCH, 17, b"one", timeout=60))
            other = asyncio.ensure_future(link.ask(ApiKey.FETCH, 17, b"two", timeout=60))
            await asyncio.wait([one], timeout=0)
            one.cancel()
            assert bytes(await other) == b"owt"

    run(act)


def test_connection_refused_raises_os_error(run: Run) -> None:
    async def act() -> None:
        with socket.socket() as bound:  # it does not listen, and nobody else can
            bound.bind(("127.0.0.1", 0))
            with pytest.raises(OSError, match=r"Connect|connect|refused"):
                await PeerConnection.open(*bound.getsockname(), client_id="me", timeout=60, largest=LARGEST)

    run(act)


def test_closed_here(run: Run) -> None:
    async def silent(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async def act() -> None:
        async with linked(silent) as link:
            asked = asyncio.ensure_future(link.ask(ApiKey.FETCH, 17, b"", timeout=60))
            await asyncio.wait([asked], timeout=0)
            link.close()
            link.close()
            with pytest.raises(PeerConnectionLostError, match="was closed"):
                await asked

    run(act)
