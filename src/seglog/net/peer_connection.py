"""A connection to another broker. Requests go out without waiting for each other, and responses come in the same order.

A response stays where it was received: it is a part of the buffer, and no buffer is filled twice, so a caller may keep
it. A large response has a buffer of its own, and all but its start is received directly into it.

A wrong response (another correlation id, an impossible size, no request) ends the connection: the start of the next one
is unknown.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from struct import Struct
from typing import Final, NamedTuple, Self, cast

from seglog.core.error_codes import ErrorCode
from seglog.core.errors import InvalidRequestError, SeglogError
from seglog.core.ground import Dial, connect
from seglog.protocol.apis import APIS, ApiKey
from seglog.protocol.framing import header_tags
from seglog.protocol.wire import WireReader

__all__ = ["PeerConnection", "PeerConnectionLostError"]

RECEIVE_BYTES: Final = 64 << 10
_LEAST_ROOM: Final = 4 << 10
"""A smaller rest of a buffer is not worth a system call."""
_SIZE: Final = Struct(">i")
_HEADER: Final = Struct(">ihhi")
_CORRELATION: Final = Struct(">i")
_MAX_CORRELATION: Final = 0x7FFFFFFF


class PeerConnectionLostError(SeglogError):
    """The connection to another broker has ended. Whether the request took effect is unknown."""

    code = ErrorCode.NETWORK_EXCEPTION
    retriable = True


class _PendingRequest(NamedTuple):
    correlation_id: int
    is_flexible: bool
    asked_at: float
    timeout: float
    answer: asyncio.Future[memoryview]


class PeerConnection(asyncio.BufferedProtocol):
    def __init__(self, peer: str, *, client_id: str, largest: int, proof: str) -> None:
        """For `open`. ``largest`` is the most bytes of a response; ``proof`` goes into each request
        (`seglog.protocol.framing.PROOF_TAG`)."""
        self.peer = peer
        raw = client_id.encode()
        self._client_id = len(raw).to_bytes(2, "big") + raw
        self._tags = header_tags(proof)
        self._largest = largest
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._lost: str | None = None
        self.is_ended_by_peer = False
        """The other broker has ended it, as one does that stops, and has not sent anything wrong."""
        self._questions: deque[_PendingRequest] = deque()
        self._held: deque[tuple[_PendingRequest, bytes]] | None = None
        """Requests that wait while the connection authenticates again; None if it does not."""
        self._correlation_id = 0
        self._timer: asyncio.TimerHandle | None = None
        self._received_at = 0.0
        self._buffer = memoryview(bytearray(RECEIVE_BYTES))
        self._start = self._end = 0

    @classmethod
    async def open(
        cls,
        host: str,
        port: int,
        *,
        client_id: str,
        timeout: float,
        largest: int,
        proof: str = "",
        dial: Dial = connect,
    ) -> Self:
        """Connect within ``timeout`` seconds. OSError, including TimeoutError."""
        link = cls(f"{host}:{port}", client_id=client_id, largest=largest, proof=proof)
        try:
            async with asyncio.timeout(timeout):
                await dial(link, host, port)
        except BaseException:
            link.close()
            raise
        return link

    @property
    def is_closed(self) -> bool:
        return self._lost is not None

    @property
    def is_receiving(self) -> bool:
        """Whether a response has arrived in part."""
        return self._end > self._start

    async def ask(self, key: int, version: int, body: bytes | Sequence[bytes], *, timeout: float) -> memoryview:
        """The body of the response to a request of one of `APIS`.

        If no byte of any response comes for ``timeout`` seconds while this one is due next, the connection is closed
        with TimeoutError. `PeerConnectionLostError` if it ends before.
        """
        return await self.send(key, version, body, timeout=timeout)

    def send(
        self, key: int, version: int, body: bytes | Sequence[bytes], *, timeout: float, overtakes: bool = False
    ) -> asyncio.Future[memoryview]:
        """As `ask`; the caller must await the result. It ``overtakes`` requests that `hold` holds."""
        answer: asyncio.Future[memoryview] = self._loop.create_future()
        if self._lost is not None or self._transport is None:
            answer.set_exception(PeerConnectionLostError(self._lost or f"{self.peer} is not connected"))
            return answer
        correlation_id = self._correlation_id = (self._correlation_id + 1) & _MAX_CORRELATION
        is_flexible = version >= APIS[key].flexible
        parts = [self._client_id, self._tags if is_flexible else b"", *([body] if isinstance(body, bytes) else body)]
        size = _HEADER.size - _SIZE.size + sum(map(len, parts))
        data = b"".join((_HEADER.pack(size, key, version, correlation_id), *parts))
        # ApiVersions is answered with the old header in all versions (KIP-511).
        has_tags = is_flexible and key != ApiKey.API_VERSIONS
        now = self._loop.time()
        question = _PendingRequest(correlation_id, has_tags, now, timeout, answer)
        if self._held is None or overtakes:
            self._transport.write(data)
            self._questions.append(question)
            self._watch(now + timeout)
        else:
            self._held.append((question, data))
        return answer

    def hold(self) -> None:
        """Send no further requests, except those that overtake, until `release`."""
        self._held = deque()

    def release(self) -> None:
        """Send the requests that were held."""
        held, self._held = self._held or (), None
        now = self._loop.time()
        for question, data in held:
            if self._transport is not None:
                self._transport.write(data)
            self._questions.append(question._replace(asked_at=now))
            self._watch(now + question.timeout)

    def close(self) -> None:
        """Close now; pending requests get `PeerConnectionLostError`."""
        self._end_with(f"the connection to {self.peer} was closed")

    # Time

    def _watch(self, until: float) -> None:
        """Check the oldest request at that time or before. As a rule the existing timer serves."""
        if self._timer is not None:
            if self._timer.when() <= until:
                return
            self._timer.cancel()
        self._timer = self._loop.call_at(until, self._look)

    def _look(self) -> None:
        self._timer = None
        if not self._questions:
            return
        oldest = self._questions[0]
        until = max(oldest.asked_at, self._received_at) + oldest.timeout
        if until > self._loop.time():
            self._watch(until)
            return
        reason = f"{self.peer} has not answered for {oldest.timeout:g} seconds"
        if not oldest.answer.done():
            oldest.answer.set_exception(TimeoutError(reason))
        self._end_with(reason)

    # asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self._lost is not None:  # closed before it was connected
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self.is_ended_by_peer = self._lost is None
        self._end_with(f"{self.peer} has ended the connection" + (f": {exc}" if exc is not None else ""))

    def get_buffer(self, sizehint: int) -> memoryview:
        del sizehint
        return self._buffer[self._end :]

    def buffer_updated(self, nbytes: int) -> None:
        if self._lost is not None:
            return
        self._end += nbytes
        self._received_at = self._loop.time()
        try:
            self._take_answers()
        except InvalidRequestError as error:
            self._end_with(f"{self.peer} sent a wrong response: {error}")

    def _take_answers(self) -> None:
        """Deliver whole responses, and make room for the rest of a partial one."""
        buffer, start, end = self._buffer, self._start, self._end
        needed = _LEAST_ROOM
        while end - start >= _SIZE.size:
            (size,) = _SIZE.unpack_from(buffer, start)
            if not _CORRELATION.size <= size <= self._largest:
                raise InvalidRequestError(f"{size} bytes, not {_CORRELATION.size} to {self._largest}")
            whole = start + _SIZE.size + size
            if whole > end:
                needed = max(needed, _SIZE.size + size)
                break
            self._take_answer(buffer[start + _SIZE.size : whole])
            start = whole
        self._start = start
        if start + needed > len(buffer):
            fresh = memoryview(bytearray(max(needed, RECEIVE_BYTES)))
            fresh[: end - start] = buffer[start:end]
            self._buffer, self._start, self._end = fresh, 0, end - start

    def _take_answer(self, frame: memoryview) -> None:
        if not self._questions:
            raise InvalidRequestError("there is no request")
        question = self._questions.popleft()
        try:
            (correlation_id,) = _CORRELATION.unpack_from(frame)
            if correlation_id != question.correlation_id:
                raise InvalidRequestError(f"it is for request {correlation_id}, but {question.correlation_id} is due")
            position = _CORRELATION.size
            if question.is_flexible:
                reader = WireReader(frame, position)
                reader.skip_tags()
                position = reader.position
        except InvalidRequestError:
            self._questions.appendleft(question)
            raise
        if not question.answer.done():  # else the caller was cancelled
            question.answer.set_result(frame[position:])

    def _end_with(self, reason: str) -> None:
        if self._lost is not None:
            return
        self._lost = reason
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._transport is not None:
            self._transport.abort()
        questions = [*self._questions, *(question for question, _ in self._held or ())]
        self._questions, self._held = deque(), None
        for question in questions:
            if not question.answer.done():
                question.answer.set_exception(PeerConnectionLostError(reason))
