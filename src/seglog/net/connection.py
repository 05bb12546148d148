"""One client's connection: frames of four bytes of size and a body, handled one at a time, in order.

A frame is handed over where it was received, and is only valid until the handler returns or, if that waits, until what
it waits for is done. Meanwhile no more is read from the socket than there is room for, so that a client which sends
faster than it is answered waits in its own kernel (Kafka mutes its channel: ``SocketServer.scala``); that it has gone
is noticed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from struct import Struct
from typing import Final, Protocol, cast

from seglog.core.errors import InvalidRequestError
from seglog.core.types import Slice

RECEIVE_BYTES: Final = 64 << 10
"""What a connection that only asks small things holds."""
SLICE_BYTES: Final = 1 << 20
_SIZE: Final = Struct(">i")
PEEK: Final = 4
"""Bytes of a frame that tell how large it may be: API and version."""


Reply = list[bytes | Slice] | bytes | None
"""What goes out, sizes included; None where a request is not answered."""


class Handler(Protocol):
    """Answers one frame. A waiting answer is a coroutine; `InvalidRequestError` closes the connection."""

    def __call__(self, connection: Connection, frame: memoryview, /) -> Reply | Awaitable[Reply]: ...


class Limits(Protocol):
    """What a listener allows its connections."""

    def largest_frame(self, head: memoryview, /) -> int:
        """Bytes that a frame beginning with ``head`` (`PEEK` bytes) may have. `InvalidRequestError`: none at all."""

    def reserve(self, size: int, /) -> bool:
        """Whether there is room for a frame of ``size`` bytes beyond `RECEIVE_BYTES`; if so, it is taken."""

    def release(self, size: int, /) -> None: ...


class Connection(asyncio.BufferedProtocol):
    """Receives, hands over, answers. ``listener`` is the name of the listener that it came in by."""

    def __init__(
        self,
        *,
        listener: str,
        handler: Handler,
        limits: Limits,
        now: Callable[[], float],
        closed: Callable[[Connection], None],
    ) -> None:
        self.listener = listener
        self.peer = ""
        self.last_active = now()
        self._handler = handler
        self._limits = limits
        self._now = now
        self._tell_closed = closed
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray(RECEIVE_BYTES)
        self._start = self._end = 0
        self._reserved = 0
        self._task: asyncio.Task[None] | None = None
        self._drained: asyncio.Future[None] | None = None
        self._writable = True
        self._is_paused = False

    # asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        name = transport.get_extra_info("peername")
        self.peer = str(name[0]) if isinstance(name, tuple) else "local"

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._transport = None
        if self._task is not None:
            # Not at once: a task that was cancelled before its first step would leave coroutines that nobody awaited.
            asyncio.get_running_loop().call_soon(self._task.cancel)
        if self._drained is not None and not self._drained.done():
            self._drained.cancel()
        self._give_back()
        self._tell_closed(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        del sizehint
        return memoryview(self._buffer)[self._end :]

    def buffer_updated(self, nbytes: int) -> None:
        self._end += nbytes
        if self._task is None:
            self._handle_frames()
        elif self._end == len(self._buffer):
            assert self._transport is not None
            self._is_paused = True
            self._transport.pause_reading()

    def pause_writing(self) -> None:
        self._writable = False

    def resume_writing(self) -> None:
        self._writable = True
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    # Frames

    def _handle_frames(self) -> None:
        """Hand over what is whole, until a frame has to wait for its answer."""
        try:
            while self._task is None and self._transport is not None and (frame := self._next_frame()) is not None:
                self.last_active = self._now()
                reply = self._handler(self, frame)
                if isinstance(reply, Awaitable):
                    self._wait_for(self._answer(reply))
                elif isinstance(reply, list):
                    pieces = _pieces(reply)
                    if not self._write_some(pieces):
                        self._wait_for(self._write_rest(pieces))
                elif reply is not None:
                    self._transport.write(reply)
        except InvalidRequestError:
            self.close()
            return
        if self._task is None:
            self._make_room()

    def _next_frame(self) -> memoryview | None:
        """The next whole frame without its size, which is then counted as handled; None while there is none."""
        there = self._end - self._start
        if there < _SIZE.size + PEEK:
            return None
        (size,) = _SIZE.unpack_from(self._buffer, self._start)
        body = self._start + _SIZE.size
        if size < PEEK:
            raise InvalidRequestError(f"a frame of {size} bytes")
        if size > self._limits.largest_frame(memoryview(self._buffer)[body : body + PEEK]):
            raise InvalidRequestError(f"a frame of {size} bytes")
        if there < _SIZE.size + size:
            return None
        self._start = body + size
        return memoryview(self._buffer)[body : self._start]

    def _make_room(self) -> None:
        """See to it that the rest of the frame that has begun fits behind what is there of it."""
        there = self._end - self._start
        if there == 0:
            self._start = self._end = 0
            return
        needed = RECEIVE_BYTES
        if there >= _SIZE.size + PEEK:
            needed = max(needed, _SIZE.size + _SIZE.unpack_from(self._buffer, self._start)[0])
        if self._start + needed <= len(self._buffer):
            return
        kept = bytes(memoryview(self._buffer)[self._start : self._end])
        if needed > len(self._buffer):
            if not self._limits.reserve(needed - self._reserved):
                self.close()
                return
            self._reserved = needed
            self._buffer = bytearray(needed)
        self._buffer[:there] = kept
        self._start, self._end = 0, there

    def shrink(self) -> None:
        """Give the memory of large frames back, if none is being received."""
        if self._reserved and self._task is None and self._start == self._end:
            self._buffer = bytearray(RECEIVE_BYTES)
            self._start = self._end = 0
            self._give_back()

    def _give_back(self) -> None:
        self._limits.release(self._reserved)
        self._reserved = 0

    # Answers that wait

    @property
    def is_waiting(self) -> bool:
        """Whether an answer is still to come."""
        return self._task is not None

    def _wait_for(self, work: Coroutine[None, None, None]) -> None:
        self._task = asyncio.get_running_loop().create_task(self._carry_on_after(work))

    async def _carry_on_after(self, work: Coroutine[None, None, None]) -> None:
        try:
            await work
        except InvalidRequestError:
            self.close()
            return
        finally:
            self._task = None
        if self._transport is not None:
            self.last_active = self._now()
            self._handle_frames()
            self._resume()

    def _resume(self) -> None:
        if self._is_paused and self._task is None and self._transport is not None:
            self._is_paused = False
            self._transport.resume_reading()

    async def _answer(self, reply: Awaitable[Reply]) -> None:
        found = await reply
        if isinstance(found, list):
            await self._write_rest(_pieces(found))
        elif found is not None and self._transport is not None:
            self._transport.write(found)

    def _write_some(self, pieces: Iterator[bytes]) -> bool:
        """Write as much as the client takes for now; whether that was all."""
        for piece in pieces:
            if self._transport is None:
                return True
            self._transport.write(piece)
            if not self._writable:
                return False
        return True

    async def _write_rest(self, pieces: Iterator[bytes]) -> None:
        """Write all, a piece at a time, and no faster than the client takes them."""
        while True:
            if not self._writable:
                self._drained = asyncio.get_running_loop().create_future()
                await self._drained
            if self._write_some(pieces):
                return

    def close(self) -> None:
        """End it at once; what was written is still sent."""
        if self._transport is not None:
            self._transport.close()


def _pieces(parts: Iterable[bytes | Slice]) -> Iterator[bytes]:
    """Parts in turn, slices of files read a piece at a time.

    The size of a response is out before its slices: if a file was cut meanwhile there is no way to say so but to end
    the connection, by `InvalidRequestError`.
    """
    for part in parts:
        if isinstance(part, bytes):
            yield part
            continue
        start = 0
        while start < part.size:
            piece = part.read_part(start, min(SLICE_BYTES, part.size - start))
            if not piece:
                raise InvalidRequestError("a file was cut while it was sent")
            start += len(piece)
            yield piece
