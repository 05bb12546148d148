"""A listener for tests of sockets, and the least of a client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import NamedTuple

from seglog.core.addresses import Address
from seglog.core.errors import InvalidRequestError
from seglog.core.types import MAX_INT32
from seglog.net.connection import ClientConnection, IdleLimits, Reply
from seglog.net.connection_quotas import ConnectionQuotas
from seglog.net.listener import Keepalive, Listener

LARGEST = 4 << 20
Answers = Callable[[bytes], Reply | Awaitable[Reply]]


class Bytes(NamedTuple):
    """A slice of a file that has ``there`` bytes although it had ``size``."""

    data: bytes
    size: int

    def read_part(self, start: int, size: int) -> bytes:
        return self.data[start : start + size]


def frame(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


Run = Callable[[Callable[[], Awaitable[None]]], None]
"""Runs a coroutine on a loop."""
Client = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Served(NamedTuple):
    listener: Listener
    shared: ConnectionQuotas
    clients: list[Client]

    async def connect(self) -> Client:
        self.clients.append(await asyncio.open_connection(self.listener.address.host, self.listener.address.port))
        return self.clients[-1]


@asynccontextmanager
async def serving(
    answers: Answers,
    *,
    max_connections: int = 1000,
    per_ip: int = MAX_INT32,
    in_flight: int = 64 << 20,
    idle: IdleLimits | None = None,
    keepalive: Keepalive | None = None,
    descriptors: int = MAX_INT32,
    host: str = "127.0.0.1",
    now: Callable[[], float] | None = None,
) -> AsyncIterator[Served]:
    def largest(head: memoryview) -> int:
        if bytes(head) == b"evil":
            raise InvalidRequestError("evil")
        return LARGEST

    shared = ConnectionQuotas(
        largest=largest,
        max_connections=max_connections,
        max_connections_per_ip=per_ip,
        in_flight_bytes=in_flight,
        descriptors=descriptors,
        idle=idle or IdleLimits(60),
        now=now,
    )

    def handle(_connection: ClientConnection, body: memoryview, /) -> Reply | Awaitable[Reply]:
        return answers(bytes(body))

    listener = Listener(Address("PLAINTEXT", host, 0), handle, shared, keepalive)
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
    except ConnectionError:
        return True


def echo(body: bytes) -> bytes:
    return frame(body[::-1])


async def until(is_so: Callable[[], bool]) -> None:
    while not is_so():
        await asyncio.sleep(0.001)
