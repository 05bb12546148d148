"""Requests whose handler raises an unforeseen exception."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable
from typing import Any

import pytest

from seglog.broker.dispatch import Dispatch
from seglog.broker.fetch.fetch import Fetch
from seglog.broker.fetch.fetch_sessions import FetchSessionCache
from seglog.broker.offload import Offload
from seglog.broker.produce.produce import Produce
from seglog.broker.requests import Answer, ApiHandler, RequestContext
from seglog.core.errors import InvalidRequestError
from seglog.core.ground import THREADS, Ground
from seglog.net.connection import ClientConnection
from seglog.net.request_memory import RequestMemory
from seglog.protocol.api_versions import Features
from seglog.protocol.apis import ApiKey
from seglog.protocol.messages import Message
from seglog.storage.directory.log_dir import LogDir
from tests.kit.manual_clock import ManualClock
from tests.kit.memory_fs import MemoryFs
from tests.lone import LoneTopics

HEARTBEAT = bytes((0, ApiKey.HEARTBEAT, 0, 0, 0, 0, 0, 7, 255, 255)) + b"\0\1g" + bytes(4) + b"\0\1m"


def broken(_request: Message, _context: RequestContext) -> Answer:
    raise ZeroDivisionError("nobody thought of this")


async def broken_later(_request: Message, _context: RequestContext) -> Answer:
    raise ZeroDivisionError("nobody thought of this")


@pytest.mark.parametrize("handler", [broken, broken_later])
def test_an_unforeseen_error_ends_its_connection_and_is_logged(handler: Any, caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    with LogDir.open("/data", ground=Ground(fs=MemoryFs(clock=clock), clock=clock, rng=random.Random(1))) as directory:
        topics = LoneTopics(directory)
        offload = Offload(THREADS)
        sessions = FetchSessionCache(1, now=lambda: 0.0, rng=random.Random(1))
        fetch = Fetch(topics, sessions, offload, max_bytes=1)
        handlers: dict[int, ApiHandler] = {ApiKey.HEARTBEAT: handler}
        dispatch = Dispatch(Produce(topics), fetch, handlers, offload, Features, ("c", 1))

        def unreachable(_connection: ClientConnection, _frame: memoryview, /) -> None:
            raise AssertionError("frames are handed over by this test")

        class Limits:
            def largest_frame(self, _head: memoryview, /) -> int:
                return 0

            memory = RequestMemory(0)
            slice_bytes = 1

            def stalled(self, _by: int, /) -> None:
                pass

            def refused(self, _connection: ClientConnection, _head: bytes, _why: str, /) -> None:
                pass

        connection = ClientConnection(
            listener="PLAINTEXT", handler=unreachable, limits=Limits(), now=lambda: 0.0, closed=lambda _: None
        )

        async def run() -> None:
            reply = dispatch(connection, memoryview(HEARTBEAT))
            assert isinstance(reply, Awaitable)
            await reply

        with caplog.at_level(logging.ERROR, "seglog.broker"), pytest.raises(InvalidRequestError, match="API 12"):
            asyncio.run(run())
        assert "nobody thought of this" in caplog.text
