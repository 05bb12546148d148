"""A TCP proxy in the event loop that is slow, deaf or cut when a test says so."""

from __future__ import annotations

import asyncio
import contextlib
from types import TracebackType
from typing import Self

_LARGEST = 1 << 16


class Proxy:
    """A proxy between clients of ``port`` and the server at ``target`` on this machine.

    ``delay`` delays everything by seconds, in order. With ``loses_requests`` nothing that clients send arrives, with
    ``loses_answers`` nothing that the server sends; `lost` is set at the first loss.
    """

    def __init__(self, target: int) -> None:
        self.target = target
        self.port = 0
        self.delay = 0.0
        self.loses_requests = False
        self.loses_answers = False
        self.is_closed = False
        self.lost = asyncio.Event()
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.is_closed = True
        self.cut()
        self._server.close()
        await self._server.wait_closed()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        """Reset all connections; what was delayed or lost never arrives."""
        for writer in self._writers:
            writer.transport.abort()
        self.loses_requests = self.loses_answers = False
        self.lost.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.is_closed:
            writer.transport.abort()
            return
        try:
            up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, up_writer}
        both = [
            asyncio.create_task(self._pump(reader, up_writer, is_request=True)),
            asyncio.create_task(self._pump(up_reader, writer, is_request=False)),
        ]
        self._tasks |= set(both)
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        for one in (writer, up_writer):
            one.transport.abort()
        await asyncio.wait(both)
        self._tasks -= set(both)
        self._writers -= {writer, up_writer}

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_request: bool) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(_LARGEST):
                if self.delay:
                    await asyncio.sleep(self.delay)
                if self.loses_requests if is_request else self.loses_answers:
                    self.lost.set()
                    continue
                writer.write(data)
                await writer.drain()
