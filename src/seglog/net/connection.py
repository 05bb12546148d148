"""One client's connection. It receives frames, a size of four bytes and a body, and handles them one at a time, in
order.

The handler gets a frame in the receive buffer: the frame is valid until the handler returns or, if it waits, until the
wait is over. Meanwhile the connection receives only as much as it has room for. So a client that sends faster than it
is answered waits in its own kernel (Kafka mutes its channel: ``SocketServer.scala``), but its disconnect is noticed.
The connection does not read from a client that does not take its responses, and `ClientConnection.review` ends those
that are too slow.

A request that was accepted gets its whole response, or the connection ends. Clients match responses to requests by
their order, so after a response that is missing or incomplete no other may follow. One place decides that: `_fail`.
"""

from __future__ import annotations

import asyncio
import logging
import mmap
import socket
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from struct import Struct
from typing import Final, NamedTuple, Protocol, cast

from seglog.core.errors import InvalidRequestError, SeglogError
from seglog.core.types import Slice
from seglog.net.pending_replies import MAX_PENDING, Caught, PendingReply, ReplyQueue
from seglog.net.refusals import HEAD
from seglog.net.request_memory import SILENT_SECONDS, RequestMemory

_log: Final = logging.getLogger("seglog.net")
ANONYMOUS: Final = "User:ANONYMOUS"
"""The principal of a client that did not authenticate (``KafkaPrincipal.java``)."""
IDLE_BYTES: Final = 4 << 10
"""The buffer of a connection with small requests only; there may be thousands."""
RECEIVE_BYTES: Final = 64 << 10
"""The buffer that a connection may have without a reservation."""
SLICE_BYTES: Final = 1 << 20
STEP_BYTES: Final = 1 << 20
"""The step in which memory for a large request is reserved; the first steps double the buffer."""
_SMALL: Final = 4 << 10
_TOGETHER: Final = 64
"""How many small responses may wait to go out together."""
_TURN_SECONDS: Final = 0.005
"""How long one client's requests may keep the others waiting."""
_SIZE: Final = Struct(">i")
_NO_LINGER: Final = Struct("ii").pack(1, 0)
PEEK: Final = 4
"""Bytes of a frame that decide how large it may be: API and version."""


Reply = list[bytes | Slice] | bytes | None
"""A response with its size; None for a request without a response."""


class FrameHandler(Protocol):
    """Answers one frame. A response that waits is a coroutine, or a `PendingReply` if the client's next requests need
    not wait for it. Any exception closes the connection: `InvalidRequestError` for the client's fault."""

    def __call__(self, connection: ClientConnection, frame: memoryview, /) -> Reply | Awaitable[Reply]: ...


class ConnectionLimits(Protocol):
    """The limits of a listener's connections."""

    def largest_frame(self, head: memoryview, /) -> int:
        """The most bytes of a frame with this ``head`` (`PEEK` bytes). `InvalidRequestError` if it may not be sent at
        all."""

    @property
    def memory(self) -> RequestMemory:
        """Where connections reserve memory beyond `RECEIVE_BYTES`."""

    @property
    def slice_bytes(self) -> int:
        """How much of a file to read at a time: the client may not take it."""

    def stalled(self, by: int, /) -> None:
        """Count a client that does not take its responses (1), or takes them again (-1)."""

    def refused(self, connection: ClientConnection, head: bytes, why: str, /) -> None:
        """A connection is closed because of a frame with this ``head``."""


class ClientConnection(asyncio.BufferedProtocol):
    """``listener`` is the name of the listener that accepted the connection, ``principal`` who its client is.
    ``handler`` gets the next frame, and ``largest_frame`` decides how large it may be (`ConnectionLimits`)."""

    def __init__(
        self,
        *,
        listener: str,
        handler: FrameHandler,
        limits: ConnectionLimits,
        now: Callable[[], float],
        closed: Callable[[ClientConnection], None],
    ) -> None:
        self.listener = listener
        self.peer = ""
        self.principal = ANONYMOUS
        self.is_authenticated = True
        """Whether the client has the time of an idle one; else it must authenticate within the time of a frame."""
        self.largest_frame = limits.largest_frame
        self.last_active = now()
        self.handler = handler
        self._limits = limits
        self._now = now
        self._tell_closed = closed
        self._transport: asyncio.Transport | None = None
        self._memory = limits.memory
        self._buffer: bytearray | mmap.mmap = bytearray(IDLE_BYTES)
        # Invariant: 0 <= start <= end <= limit <= len(buffer). A mapping has memory only where bytes have been
        # received; what lies below its limit is reserved.
        self._start = self._end = 0
        self._limit = IDLE_BYTES
        self._frame = 0
        """Where the current frame begins."""
        self.received = 0
        self._task: asyncio.Task[None] | None = None
        self._drained: asyncio.Future[None] | None = None
        self._writable = True
        self._is_paused = False
        self._wants_room = self._is_behind = False
        self._is_finishing = False
        self._has_ended = False
        """No frame is handled any more, and nothing is written."""
        self._muted_until = 0.0
        self._outstanding = ReplyQueue(self._write, self._fail)
        self._watch = IdleWatch()

    # asyncio's side

    def restrict(self, handler: FrameHandler, largest_frame: Callable[[memoryview], int]) -> None:
        """Give frames of such a size to ``handler``, which authenticates the client, until `admit`."""
        self.handler = handler
        self.limit(largest_frame)
        self.is_authenticated = False

    def limit(self, largest_frame: Callable[[memoryview], int]) -> None:
        """Take only frames of such a size until `admit`: the client authenticates again."""
        self.largest_frame = largest_frame

    def identify(self, principal: str) -> None:
        """The client has shown in its handshake that it is ``principal``."""
        self.principal = principal

    def admit(self, principal: str, handler: FrameHandler) -> None:
        """The client is ``principal``: its frames have the listener's limits and go to ``handler``."""
        self.principal, self.handler = principal, handler
        self.largest_frame = self._limits.largest_frame
        self.is_authenticated = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        name = transport.get_extra_info("peername")
        self.peer = str(name[0]) if isinstance(name, tuple) else "local"

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._transport = None
        self._outstanding.drop()
        self._flows()
        if self._task is not None:
            # Not now: a task cancelled before its first step would leave coroutines that are never awaited.
            asyncio.get_running_loop().call_soon(self._task.cancel)
        if self._drained is not None and not self._drained.done():
            self._drained.cancel()
        self._tell_closed(self)
        self._drop_buffer()

    def get_buffer(self, sizehint: int) -> memoryview:
        del sizehint
        return memoryview(self._buffer)[self._end : self._limit]

    def buffer_updated(self, nbytes: int) -> None:
        self._end += nbytes
        self.received += nbytes
        if self._task is None:
            self._handle_frames()
        if self._task is not None and self._end == self._limit:
            self._pause()

    def pause_writing(self) -> None:
        self._writable = False
        self._limits.stalled(1)

    def _flows(self) -> None:
        if not self._writable:
            self._writable = True
            self._limits.stalled(-1)

    def resume_writing(self) -> None:
        self._flows()
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    def _slice_bytes(self) -> int:
        return self._limits.slice_bytes

    # Frames

    def _handle_frames(self) -> None:
        """Handle whole frames until one must wait for its response. Small responses go out together: a system call for
        each would double the cost."""
        ready: list[bytes] = []
        with Caught(self._fail_in_turn):
            try:
                self._handle_each(ready)
            except Exception:
                self._write(ready)
                raise
            self._send(ready)
            if self._task is None and self._is_open:
                self._make_room()

    def _handle_each(self, ready: list[bytes]) -> None:
        begun = None
        while self._task is None and self._is_open and (frame := self._next_frame()) is not None:
            now = self.last_active = self._now()
            if begun is None:
                begun = now
            reply = self.handler(self, frame)
            if self._outstanding.replies or isinstance(reply, PendingReply):
                self._write(ready)
                self._queue(reply)
            elif isinstance(reply, bytes):
                ready.append(reply)
                if len(reply) > _SMALL or len(ready) == _TOGETHER:
                    self._send(ready)
            elif isinstance(reply, list):
                parts = portions([*ready, *reply], self._slice_bytes)
                ready.clear()
                if not self._write_some(parts):
                    self._wait_for(self._write_rest(parts))
            elif reply is not None:
                self._wait_for(self._answer(reply))
            if now - begun > _TURN_SECONDS:
                self._send(ready)
                if self._task is None:
                    self._wait_for(asyncio.sleep(0))  # other clients have their turn

    def mute(self, seconds: float) -> None:
        """Handle no further frame for so long (KIP-219). The response to the current one still goes out: it is pending,
        or it is bytes."""
        self._muted_until = max(self._muted_until, self._now() + seconds)
        if self._task is None and self._is_open:
            self._wait_for(asyncio.sleep(0))

    def _queue(self, reply: Reply | Awaitable[Reply]) -> None:
        """Queue a response that is pending, or that follows a pending one."""
        if isinstance(reply, PendingReply):
            self._outstanding.add(reply)
        elif isinstance(reply, bytes):
            self._outstanding.add_known(reply)
        elif reply is not None:
            self._wait_for(self._answer_behind(reply))
        if self._task is not None:
            return
        if len(self._outstanding.replies) >= MAX_PENDING:
            self._wait_for(self._outstanding.fewer_than(MAX_PENDING // 2))
        elif not self._writable:
            self._wait_for(self._drain())

    async def _answer_behind(self, reply: list[bytes | Slice] | Awaitable[Reply]) -> None:
        try:
            found = reply if isinstance(reply, list) else await reply
        except Exception:
            await self._outstanding.fewer_than(1)
            raise
        await self._outstanding.fewer_than(1)
        await self._put(found)

    def _fail_in_turn(self, error: Exception) -> None:
        """Fail once the pending responses are out: their requests have been carried out."""
        if self._outstanding.replies and self._task is None:
            self._wait_for(self._answer_behind(_raised(error)))
        else:
            self._fail(error)

    def _send(self, ready: list[bytes]) -> None:
        """Write responses. The connection handles no further frame before the client takes them."""
        self._write(ready)
        if not self._writable and self._task is None:
            self._wait_for(self._drain())

    def _write(self, ready: list[bytes]) -> None:
        if ready and self._transport is not None and not self._has_ended:
            self._transport.write(b"".join(ready))
            ready.clear()

    def _next_frame(self) -> memoryview | None:
        """The next whole frame without its size, or None. The frame then counts as handled."""
        there = self._end - self._start
        if there < _SIZE.size + PEEK:
            return None
        (size,) = _SIZE.unpack_from(self._buffer, self._start)
        body = self._start + _SIZE.size
        self._frame = self._start
        if size < PEEK:
            raise InvalidRequestError(f"a frame of {size} bytes cannot be a request")
        if size > (largest := self.largest_frame(memoryview(self._buffer)[body : body + PEEK])):
            raise InvalidRequestError(f"a request of {size} bytes exceeds the limit of {largest} bytes")
        if there < _SIZE.size + size:
            return None
        self._start = body + size
        self._is_behind = True
        return memoryview(self._buffer)[body : self._start]

    def _make_room(self) -> None:
        """Make room for the rest of a partly received frame."""
        there = self._end - self._start
        if self._is_behind and self._is_mapped and there <= RECEIVE_BYTES and self._memory.is_short:
            self._receive_into(bytearray(RECEIVE_BYTES), RECEIVE_BYTES)  # other clients have their turn
            self._memory.release(self)
        if there == 0:
            self._start = self._end = 0
            return
        needed = RECEIVE_BYTES
        if there >= _SIZE.size + PEEK:
            needed = max(needed, _SIZE.size + _SIZE.unpack_from(self._buffer, self._start)[0])
        capacity = len(self._buffer)
        if self._is_mapped and needed > capacity:
            self._map(needed, self._limit)
        elif self._start and self._start + needed > capacity:
            self._receive_into(self._buffer, self._limit)
        if self._end < self._limit:
            return
        if not self._is_mapped and there < RECEIVE_BYTES:
            self._receive_into(bytearray(RECEIVE_BYTES), RECEIVE_BYTES)
            return
        reserved = self._limit if self._is_mapped else 0
        wanted = min(len(self._buffer), self._limit + min(self._limit, STEP_BYTES)) if reserved else 2 * RECEIVE_BYTES
        self._is_behind = False
        if self._memory.reserve(self, wanted - reserved):
            self._take(wanted - reserved)
        else:
            self._wants_room = True
            self._pause()

    def _take(self, size: int) -> None:
        """Use ``size`` more bytes, which are reserved."""
        if self._is_mapped:
            self._limit += size
            return
        self._map(_SIZE.size + _SIZE.unpack_from(self._buffer, self._start)[0], size)

    def _map(self, size: int, limit: int) -> None:
        """Receive into a mapping, whose pages take memory only when they are written. Its size is a power of two, so
        that a slightly larger next frame fits."""
        size = max(SLICE_BYTES, 1 << (size - 1).bit_length())
        try:
            mapping = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError as error:
            self._refuse(f"no memory for a request of up to {size} bytes: {error}")
            self._memory.release(self)
            if self._transport is not None:
                self._transport.abort()
            return
        self._receive_into(mapping, limit)

    def _receive_into(self, buffer: bytearray | mmap.mmap, limit: int) -> None:
        """Continue in ``buffer``, with the current frame at its start."""
        kept = bytes(memoryview(self._buffer)[self._start : self._end])
        buffer[: len(kept)] = kept
        self._buffer, self._limit = buffer, limit
        self._start, self._end = 0, len(kept)
        self._frame = 0

    @property
    def _is_mapped(self) -> bool:
        return isinstance(self._buffer, mmap.mmap)

    @property
    def awaits_bytes(self) -> bool:
        return self._task is None and not self._wants_room and self._start < self._end

    def has_room(self, size: int) -> None:
        self._wants_room = False
        self._take(size)
        self._resume()

    def shrink(self) -> None:
        if self._limit > IDLE_BYTES and self._task is None and self._start == self._end:
            self._drop_buffer()

    def end_silent(self) -> None:
        (size,) = _SIZE.unpack_from(self._buffer, self._start)
        self._refuse(
            f"{self._end - self._start} of {size} bytes of a request arrived, but none in {SILENT_SECONDS} s, while "
            "other requests waited for memory (queued.max.request.bytes)"
        )
        self._drop_buffer()
        if self._transport is not None:
            self._transport.abort()

    def _drop_buffer(self) -> None:
        """Free the buffer now: the connection is part of a reference cycle, and the garbage collector would be late."""
        was_mapped = self._is_mapped
        self._buffer, self._limit = bytearray(IDLE_BYTES), IDLE_BYTES
        self._start = self._end = 0
        if was_mapped or self._wants_room:
            self._wants_room = False
            self._memory.release(self)

    # Answers that wait

    @property
    def is_waiting(self) -> bool:
        """Whether a response is pending."""
        return self._task is not None or len(self._outstanding.replies) > 0

    def _wait_for(self, work: Coroutine[None, None, None]) -> None:
        self._task = asyncio.get_running_loop().create_task(self._carry_on_after(work))

    async def _carry_on_after(self, work: Coroutine[None, None, None]) -> None:
        try:
            await work
            while (left := self._muted_until - self._now()) > 0:
                await asyncio.sleep(left)
        except BaseException as error:
            self._task = None
            self._fail(error)
            if not isinstance(error, Exception):
                raise
            return
        self._task = None
        if self._is_open and not self._is_finishing:
            self.last_active = self._now()
            self._handle_frames()
            self._resume()

    def _pause(self) -> None:
        if not self._is_paused and self._transport is not None:
            self._is_paused = True
            self._transport.pause_reading()

    def _resume(self) -> None:
        if self._is_finishing:
            return
        if self._is_paused and self._task is None and not self._wants_room and self._transport is not None:
            self._is_paused = False
            self._transport.resume_reading()

    async def _answer(self, reply: Awaitable[Reply]) -> None:
        await self._put(await reply)

    async def _put(self, found: Reply) -> None:
        if isinstance(found, list):
            await self._write_rest(portions(found, self._slice_bytes))
        elif found is not None and self._is_open:
            self._write([found])
            await self._drain()

    def _write_some(self, portions: Iterator[list[bytes]]) -> bool:
        """Write as much as the client takes now. True if that was all."""
        for portion in portions:
            if self._transport is None or self._has_ended:
                return True
            self._transport.writelines(portion)
            if not self._writable:
                return False
        return True

    async def _write_rest(self, portions: Iterator[list[bytes]]) -> None:
        """Write all, no faster than the client takes it."""
        while True:
            await self._drain()
            if self._write_some(portions):
                return

    async def _drain(self) -> None:
        """Wait until the client has taken most of the written bytes."""
        if not self._writable:
            self._drained = asyncio.get_running_loop().create_future()
            await self._drained

    # Its end

    @property
    def _is_open(self) -> bool:
        return self._transport is not None and not self._has_ended

    def _fail(self, error: BaseException) -> None:
        """An accepted request gets no response, or only a part of one: end the connection. Responses that were written
        before are still sent, and no later one is."""
        if not self._is_open:
            return
        if isinstance(error, InvalidRequestError):
            self._refuse(str(error))
        elif isinstance(error, Exception):
            foreseen = isinstance(error, SeglogError | OSError)
            _log.warning(
                "The connection from %s to %s ends without the response to a request: %s",
                self.peer,
                self.listener,
                str(error) or type(error).__name__,
                exc_info=None if foreseen else error,
            )
        self.close()

    def _refuse(self, why: str) -> None:
        head = bytes(memoryview(self._buffer)[self._frame : min(self._frame + HEAD, self._end)])
        self._limits.refused(self, head, why)

    async def finish(self) -> None:
        """Handle no more requests, wait for the pending responses, and close.

        A producer that gets its responses need not repeat its batches. The snapshot of a clean stop has only the last
        batch of each producer: the next broker would have to search the log for the others."""
        if self._transport is None or self._transport.is_closing():
            return
        self._is_finishing = True
        self._pause()
        for reply in tuple(self._outstanding.replies):
            await reply.settled()
        self.close()

    def close(self) -> None:
        """Close now; written bytes are still sent."""
        self._has_ended = True
        self._outstanding.drop()
        if self._transport is not None:
            self._transport.close()

    def end(self, data: bytes, *, with_reset: bool = False, stays: bool = False) -> None:
        """Send these bytes, unless earlier responses are pending, and close; ``with_reset`` by RST. ``stays``: leave
        the connection open."""
        transport = self._transport
        if transport is None or self._has_ended:
            return
        if not self._outstanding.replies:
            transport.write(data)
        self._has_ended = not stays
        if with_reset:
            reset_on_close(transport.get_extra_info("socket"))
            transport.abort()
        elif not stays:
            transport.close()

    @property
    def unsent(self) -> int:
        """Bytes that the client has not taken."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def review(self, limits: IdleLimits, now: float, *, is_crowded: bool = False) -> None:
        """Close the connection if the client is idle, too slow, or gone unnoticed. The listener calls it regularly.
        ``now`` counts only the seconds in which it watched clients. ``is_crowded``: all clients together leave too many
        bytes untaken."""
        transport = self._transport
        if transport is None:
            return
        self.shrink()
        left = limits.idle
        if unsent := transport.get_write_buffer_size():
            seen = ("unsent", float(unsent))
            left = limits.frame if is_crowded or transport.is_closing() else left
        elif self.is_waiting and not self._is_paused:
            seen = ("answer", now)  # a disconnect would be noticed
        elif not self.is_authenticated:
            seen = ("unauthenticated", 0.0)
            left = limits.frame
        elif self._task is None and not self._wants_room and self._start < self._end:
            seen = ("frame", self.last_active)
            left = limits.frame + (self._end - self._start) / limits.rate
        else:
            seen = ("idle", self.last_active)
        if self._watch.is_over(seen, left, now):
            transport.abort()


async def _raised(error: Exception) -> Reply:
    raise error


def reset_on_close(raw: socket.socket) -> None:
    """Let the close of a socket reset its connection (RST), as a host does that has lost its process."""
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)


class IdleLimits(NamedTuple):
    """``idle`` is how many seconds a client may do nothing (``connections.max.idle.ms``). A frame may take ``frame``
    seconds, and one more for each ``rate`` bytes. Kafka treats half a frame as an idle client."""

    idle: float
    frame: float = 30.0
    rate: int = 64 << 10


class IdleWatch:
    """Remembers since when a client is in the same state."""

    def __init__(self) -> None:
        self.seen: tuple[str, float] = ("", 0.0)
        self._since = 0.0

    def is_over(self, seen: tuple[str, float], left: float, now: float) -> bool:
        """Whether the client was in state ``seen`` at every check in the last ``left`` seconds before ``now``."""
        if seen != self.seen:
            self.seen, self._since = seen, now
            return False
        return now - self._since >= left


def portions(parts: Iterable[bytes | Slice], slice_bytes: Callable[[], int]) -> Iterator[list[bytes]]:
    """The parts in portions. Slices of files are read ``slice_bytes`` at a time: about a MiB, or less if many clients
    are slow.

    The size of a response goes out before its slices. If a slice cannot be read, or its file was truncated meanwhile
    (`InvalidRequestError`), the exception ends the connection: there is no other way to report it.
    """
    portion: list[bytes] = []
    room = slice_bytes()
    for part in parts:
        if isinstance(part, bytes):
            portion.append(part)
            continue
        start = 0
        while start < part.size:
            if not room:
                yield portion
                portion, room = [], slice_bytes()
            try:
                piece = part.read_part(start, min(room, part.size - start))
                if not piece:
                    raise InvalidRequestError("a file was truncated while it was sent")
            except Exception:
                yield portion  # it may begin with other responses
                raise
            portion.append(piece)
            start += len(piece)
            room -= len(piece)
    yield portion
