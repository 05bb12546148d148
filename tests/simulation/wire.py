"""Requests from a simulated process: our own protocol code over the network of a `World`."""

from __future__ import annotations

import asyncio
import math
import struct
from collections.abc import Mapping
from typing import Final

from seglog.core.errors import InvalidRequestError
from seglog.protocol.apis import APIS, ApiKey
from seglog.protocol.message_reader import Message, read_message
from seglog.protocol.message_writer import write_message
from seglog.protocol.schema import request_class, response_class
from tests.kit.virtual_loop import VirtualLoop
from tests.kit.virtual_net import Address, Network

VERSIONS: Final = {ApiKey.PRODUCE: 12, ApiKey.FETCH: 12, ApiKey.OFFSET_COMMIT: 9, ApiKey.OFFSET_FETCH: 9}
"""The last ones by topic names; of all other requests the newest."""


class LostError(Exception):
    """No answer: the connection has ended, or it took too long. Whether it was done is not known."""


class UnsentError(LostError):
    """There is no connection: it was not sent."""


class Channel(asyncio.Protocol):
    """One connection: requests out, answers in, in the same order."""

    def __init__(self, loop: VirtualLoop, client_id: str) -> None:
        self.is_open = True
        self.renew_at = math.inf
        """When its session is to be renewed."""
        self._loop = loop
        self._name = client_id.encode()
        self._data = bytearray()
        self._number = 0
        self._waiting: dict[int, tuple[ApiKey, int, asyncio.Future[Message]]] = {}
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._fail()

    def close(self) -> None:
        self._fail()
        if self._transport is not None:
            self._transport.close()

    def _fail(self) -> None:
        self.is_open = False
        waiting, self._waiting = self._waiting, {}
        for _, _, future in waiting.values():
            if not future.done():
                future.set_exception(LostError())
                future.exception()  # nobody may be waiting any more

    def send(self, key: ApiKey, contents: Mapping[str, object], version: int | None = None) -> asyncio.Future[Message]:
        api = APIS[key]
        version = VERSIONS.get(key, api.high) if version is None else version
        self._number += 1
        future: asyncio.Future[Message] = self._loop.create_future()
        if not self.is_open or self._transport is None:
            future.set_exception(LostError())
            future.exception()
            return future
        self._waiting[self._number] = (key, version, future)
        head = struct.pack(">hhih", key, version, self._number, len(self._name)) + self._name
        body = write_message(request_class(key, version), contents)
        frame = head + (b"\0" if version >= api.flexible else b"") + body
        self._transport.write(struct.pack(">i", len(frame)) + frame)
        return future

    def data_received(self, data: bytes) -> None:
        self._data += data
        while len(self._data) >= 4:
            (size,) = struct.unpack_from(">i", self._data)
            if len(self._data) < 4 + size:
                return
            frame = bytes(self._data[4 : 4 + size])
            del self._data[: 4 + size]
            self._take(frame)

    def _take(self, frame: bytes) -> None:
        (number,) = struct.unpack_from(">i", frame)
        assert number == min(self._waiting, default=-1), "an answer that nobody waits for, or not in order"
        key, version, future = self._waiting.pop(number)
        message = response_class(key, version)
        try:
            answer = read_message(message, message, frame, 5 if version >= APIS[key].flexible else 4)
        except InvalidRequestError as error:
            raise AssertionError(f"an answer to {key.name} that cannot be decoded: {error}") from error
        if not future.done():
            future.set_result(answer)


async def connect(loop: VirtualLoop, network: Network, address: Address, seconds: float) -> Channel:
    """Raises `UnsentError`."""
    try:
        async with asyncio.timeout(seconds):
            channel = await network.connect(loop, lambda: Channel(loop, loop.name), address)
    except (OSError, TimeoutError) as error:
        raise UnsentError from error
    assert isinstance(channel, Channel)
    await asyncio.sleep(0)  # until it is told that it is connected
    return channel
