"""The layer between a broker's connections and its dispatch that carries faults out.

Without faults and without an observer a frame passes through at once. Otherwise a connection's requests are handled one
after the other, as Kafka does.

A Fetch in a session names only the partitions that changed (KIP-227), so a fault would miss the others. While a fault
may meet a client's Fetch requests, the layer therefore ends their sessions and opens no new ones, as a broker may at
any time. The client then names all partitions in each request.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any, Final, NamedTuple, NoReturn, Protocol
from uuid import UUID
from weakref import WeakKeyDictionary

from seglog.core.error_codes import ErrorCode
from seglog.core.errors import InvalidRequestError
from seglog.core.types import MAX_INT32
from seglog.faults import error_answers
from seglog.faults.fault import Fault, FaultError, FaultReport, MetRequest, Request
from seglog.faults.request_scope import (
    NO_SESSION,
    Names,
    is_incremental,
    names_in,
    opens_session,
    without,
)
from seglog.net.connection import ClientConnection, FrameHandler, Reply, portions
from seglog.net.pending_replies import PendingReply
from seglog.protocol.apis import APIS, ApiKey, name_of
from seglog.protocol.framing import RequestHeader, frame_response, read_header
from seglog.protocol.message_reader import read_message
from seglog.protocol.message_writer import write_message
from seglog.protocol.messages import as_mapping
from seglog.protocol.schema import request_class, response_class
from seglog.protocol.throttle import throttled

_REMEMBERED: Final = 100
"""How many requests that met a fault are reported."""
_HOLD_SECONDS: Final = 5.0
"""How long ``reorder`` waits for its other requests if the fault does not say."""
_NO_REPLICA: Final = -1


class FrameObserver(Protocol):
    """Gets every request, and every answer as far as the client gets it."""

    def requested(self, connection: int, header: RequestHeader, frame: bytes) -> int:
        """A request has arrived; returns its number, for the answer."""

    def answered(self, number: int, answer: bytes | None, ending: str | None) -> None:
        """``answer`` includes its size. ``ending``: how the connection ends after it; None if it stays."""


class _ArmedFault:
    """A fault, and how often it was met."""

    def __init__(self, fault_id: int, fault: Fault, follows: _ArmedFault | None) -> None:
        self.fault_id = fault_id
        self.fault = fault
        self.seen = self.fired = 0
        self.met: deque[MetRequest] = deque(maxlen=_REMEMBERED)
        self.problem: str | None = None
        self.held: list[_HeldRequest] = []
        self.release: asyncio.TimerHandle | None = None
        self._follows = follows
        self._rng = Random(fault.seed)

    @property
    def is_over(self) -> bool:
        return self.fault.times is not None and self.fired >= self.fault.times

    @property
    def may_fire(self) -> bool:
        return not self.is_over and (self._follows is None or self._follows.is_over)

    def fires(self, met: MetRequest) -> bool:
        """Count a matching request. Whether it meets the fault."""
        fault = self.fault
        self.seen += 1
        if self.seen < fault.nth:
            return False
        if fault.probability is not None and self._rng.random() >= fault.probability:
            return False
        self.fired += 1
        self.met.append(met)
        return True

    def failed(self, why: str) -> None:
        self.problem = why

    def order(self, count: int) -> list[int]:
        """The order in which held requests are applied."""
        places = list(range(count))
        if self.fault.seed is None:
            return places[::-1]
        self._rng.shuffle(places)
        return places

    def hold(self, held: _HeldRequest) -> None:
        self.held.append(held)

    def releases_at(self, timer: asyncio.TimerHandle) -> None:
        self.release = timer

    def take_held(self) -> list[_HeldRequest]:
        held, self.held = self.held, []
        if self.release is not None:
            self.release.cancel()
            self.release = None
        return held

    def report(self) -> FaultReport:
        return FaultReport(self.fault_id, self.fault, self.seen, self.fired, tuple(self.met), self.problem)


class _HeldRequest(NamedTuple):
    connection: ClientConnection
    frame: bytes
    reply: PendingReply[bytes | None]


class FaultLayer:
    """Faults of one broker, over all of its listeners. Use it on the broker's event loop."""

    def __init__(self) -> None:
        self._armed: dict[int, _ArmedFault] = {}
        self._ids = itertools.count(1)
        self._connection_ids = itertools.count(1)
        self._connections: WeakKeyDictionary[ClientConnection, int] = WeakKeyDictionary()
        self._observer: FrameObserver | None = None
        self._topic_names: Callable[[UUID], str | None] = lambda _: None
        self._tasks: set[asyncio.Task[None]] = set()

    # For whoever controls it

    def use_topics(self, names: Callable[[UUID], str | None]) -> None:
        """``names`` knows the broker's topic ids."""
        self._topic_names = names

    def observe(self, observer: FrameObserver | None) -> None:
        self._observer = observer

    def add(self, *faults: Fault, in_order: bool = False) -> list[int]:
        """Arm the faults; returns their ids. ``in_order``: each begins to count when the one before it is over.

        `FaultError` if one can never be shown; none is armed then."""
        for fault in faults:
            error_answers.check(fault)
        ids: list[int] = []
        before: _ArmedFault | None = None
        for fault in faults:
            armed = _ArmedFault(next(self._ids), fault, before)
            self._armed[armed.fault_id] = armed
            ids.append(armed.fault_id)
            before = armed if in_order else None
        return ids

    def remove(self, fault_id: int) -> None:
        """`FaultError` if there is none with this id."""
        armed = self._armed.pop(fault_id, None)
        if armed is None:
            raise FaultError(f"there is no fault {fault_id}")
        self._release(armed)

    def clear(self) -> None:
        for fault_id in list(self._armed):
            self.remove(fault_id)

    def reports(self) -> list[FaultReport]:
        return [armed.report() for armed in self._armed.values()]

    # For connections

    def around(self, handler: FrameHandler) -> FrameHandler:
        """The handler with the faults of this layer."""

        def handle(connection: ClientConnection, frame: memoryview, /) -> Reply | Awaitable[Reply]:
            if not self._armed and self._observer is None:
                return handler(connection, frame)
            return self._handle(handler, connection, frame)

        return handle

    def refuses(self) -> bool:
        """Whether a new connection is to be reset."""
        met = MetRequest("", 0, "", 0, 0)
        for armed in self._armed.values():
            if armed.fault.effect == "refuse" and armed.may_fire:
                return armed.fires(met)
        return False

    def connection_id(self, connection: ClientConnection) -> int:
        if connection not in self._connections:
            self._connections[connection] = next(self._connection_ids)
        return self._connections[connection]

    def _handle(
        self, handler: FrameHandler, connection: ClientConnection, frame: memoryview
    ) -> Reply | Awaitable[Reply]:
        header = read_header(frame)
        api = APIS.get(header.key)
        if api is None or not api.served <= header.version <= api.high:
            return handler(connection, frame)
        number, observer = -1, self._observer
        if observer is not None:
            number = observer.requested(self.connection_id(connection), header, bytes(frame))
        exchange = _Exchange(handler, connection, frame, header, number, observer, self._topic_names)
        candidates = self._candidates(exchange)
        if header.key == ApiKey.FETCH and any(armed.fault.may_meet_fetch for armed in candidates):
            if is_incremental(exchange.body):
                return exchange.session_ended()
            exchange.open_no_session()
        armed = self._firing(exchange, candidates)
        if armed is not None and armed.fault.effect == "reorder":
            return self._hold(armed, handler, exchange)
        return exchange.normal() if armed is None else exchange.faulty(armed)

    def _candidates(self, exchange: _Exchange) -> list[_ArmedFault]:
        """The faults that the request may meet, by its header and its sender."""
        header = exchange.header
        known = (name_of(header.key), header.version, header.client_id or "", self.connection_id(exchange.connection))
        found = [
            armed
            for armed in self._armed.values()
            if armed.fault.effect != "refuse" and armed.may_fire and armed.fault.may_match(*known)
        ]
        if found and _is_peer(header, exchange.body):
            return [armed for armed in found if armed.fault.peers]
        return found

    def _firing(self, exchange: _Exchange, candidates: list[_ArmedFault]) -> _ArmedFault | None:
        """The first fault that the request meets."""
        if not candidates:
            return None
        request = exchange.request(self.connection_id(exchange.connection))
        met = MetRequest(*request[:5])
        for armed in candidates:
            if armed.fault.matches(request) and armed.fires(met):
                return armed
        return None

    # Requests that are held

    def _hold(self, armed: _ArmedFault, handler: FrameHandler, exchange: _Exchange) -> PendingReply[bytes | None]:
        reply: PendingReply[bytes | None] = PendingReply()
        armed.hold(_HeldRequest(exchange.connection, bytes(exchange.frame), reply))
        if len(armed.held) == 1:
            seconds = armed.fault.seconds or _HOLD_SECONDS
            loop = asyncio.get_running_loop()
            armed.releases_at(loop.call_later(seconds, self._release, armed, handler))
        if len(armed.held) == armed.fault.count:
            self._release(armed, handler)
        return reply

    def _release(self, armed: _ArmedFault, handler: FrameHandler | None = None) -> None:
        held = armed.take_held()
        if not held:
            return
        if handler is None:
            for one in held:  # the fault was removed
                one.connection.close()
            return
        task = asyncio.get_running_loop().create_task(_apply(handler, [held[at] for at in armed.order(len(held))]))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _apply(handler: FrameHandler, held: list[_HeldRequest]) -> None:
    """Carry requests out in this order. Answers still go out in the order of each connection's requests."""
    for one in held:
        with one.reply.or_fails():
            one.reply.set(await _whole(handler(one.connection, memoryview(one.frame))))


class _Exchange:
    """A request on its way through the layer."""

    def __init__(
        self,
        handler: FrameHandler,
        connection: ClientConnection,
        frame: memoryview,
        header: RequestHeader,
        number: int,
        observer: FrameObserver | None,
        topic_names: Callable[[UUID], str | None],
    ) -> None:
        self.connection = connection
        self.frame = frame
        self.header = header
        self._handler = handler
        self._number = number
        self._observer = observer
        self._topic_names = topic_names
        self._body: Any = None

    @property
    def body(self) -> Any:
        """The decoded request. `InvalidRequestError` if it cannot be decoded."""
        if self._body is None:
            message = request_class(self.header.key, self.header.version)
            self._body = read_message(message, message, self.frame, self.header.body)
        return self._body

    def request(self, connection: int) -> Request:
        key, version, correlation_id, client_id = self.header[:4]
        names: Names = names_in(key, request_class(key, version), as_mapping(self.body), self._topic_names)
        return Request(name_of(key), version, client_id or "", connection, correlation_id, *names, self.body)

    # Its fetch session

    def open_no_session(self) -> None:
        """Let the broker answer a full Fetch without a session: the client's next Fetch is full again."""
        if opens_session(self.body):
            message = request_class(self.header.key, self.header.version)
            changed = {**as_mapping(self.body), "session_epoch": NO_SESSION}
            self.frame = memoryview(bytes(self.frame[: self.header.body]) + write_message(message, changed))
            self._body = None

    async def session_ended(self) -> Reply:
        """Answer an incremental Fetch as if the broker had dropped the session: the client's next Fetch is full."""
        message = response_class(self.header.key, self.header.version)
        ended = {"error_code": ErrorCode.FETCH_SESSION_ID_NOT_FOUND}
        return self._out(self._framed(write_message(message, ended)))

    # Its end

    def normal(self) -> Reply | Awaitable[Reply]:
        if self._observer is None:
            return self._handler(self.connection, self.frame)
        return self._observed()

    async def _observed(self) -> Reply:
        return self._out(await self._applied())

    async def faulty(self, armed: _ArmedFault) -> Reply:
        fault = armed.fault
        if fault.effect == "delay" and not fault.is_applied:
            await asyncio.sleep(fault.seconds)
            return self._out(await self._applied())
        if fault.effect == "error":
            try:
                return self._out(await self._failed(fault))
            except FaultError as error:
                armed.failed(str(error))
                return self._out(await self._applied())
        answer = await self._applied() if fault.is_applied else None
        if fault.effect == "lose" or (fault.effect == "cut" and answer is None):
            await self._end(b"", fault.then)
        if fault.effect == "cut":
            assert answer is not None
            await self._end(answer[: fault.size], fault.then)
        if fault.effect == "delay":
            await asyncio.sleep(fault.seconds)
        if fault.effect == "throttle" and answer is not None:
            key, version = self.header.key, self.header.version
            milliseconds = round(fault.seconds * 1000)
            answer = self._framed(throttled(key, version, self._body_of(answer), milliseconds))
        return self._out(answer)

    def _out(self, answer: bytes | None) -> bytes | None:
        if self._observer is not None:
            self._observer.answered(self._number, answer, None)
        return answer

    async def _end(self, answer: bytes, then: str) -> NoReturn:
        """Send these bytes and end the connection. Its later requests are not carried out."""
        if self._observer is not None:
            self._observer.answered(self._number, answer, then)
        if then != "hang":
            self.connection.end(answer, with_reset=then == "reset")
        elif answer:
            self.connection.end(answer, stays=True)
        await asyncio.get_running_loop().create_future()  # until the connection is lost
        raise AssertionError

    # Its answer

    async def _applied(self, frame: memoryview | None = None) -> bytes | None:
        return await _whole(self._handler(self.connection, self.frame if frame is None else frame))

    async def _failed(self, fault: Fault) -> bytes | None:
        key, version = self.header.key, self.header.version
        names = self._topic_names
        if fault.is_applied or error_answers.changes_nothing(key):
            answer = await self._applied()
            if answer is None:
                return None
            return self._framed(error_answers.failed_answer(key, version, self._body_of(answer), fault, names))
        asked, rest = as_mapping(self.body), None
        if fault.names_topic:
            rest, asked = without(request_class(key, version), asked, fault, names)
        failed = error_answers.error_answer(key, version, asked, fault, names)
        if rest:
            raw = bytes(self.frame[: self.header.body]) + write_message(request_class(key, version), rest)
            answer = await self._applied(memoryview(raw))
            if answer is not None:
                applied = error_answers.decoded(key, version, self._body_of(answer))
                failed = error_answers.joined(key, version, applied, failed)
        if key == ApiKey.PRODUCE and self.body.acks == 0:
            raise InvalidRequestError(f"error {fault.error} of a request without an answer (acks=0)")
        return self._framed(write_message(response_class(key, version), failed))

    def _body_of(self, answer: bytes) -> bytes:
        return answer[len(frame_response(self.header.key, self.header.version, 0, 0)) :]

    def _framed(self, body: bytes) -> bytes:
        key, version, correlation_id = self.header[:3]
        return frame_response(key, version, correlation_id, len(body)) + body


async def _whole(reply: Reply | Awaitable[Reply]) -> bytes | None:
    """A response in one piece."""
    found = reply if reply is None or isinstance(reply, bytes | list) else await reply
    if found is None or isinstance(found, bytes):
        return found
    return b"".join([piece for portion in portions(found, lambda: MAX_INT32) for piece in portion])


def _is_peer(header: RequestHeader, body: Any) -> bool:
    """Whether another broker sends this."""
    if header.key != ApiKey.FETCH:
        return header.key == ApiKey.WRITE_TXN_MARKERS
    replica = body.replica_state.replica_id if hasattr(body, "replica_state") else _NO_REPLICA
    return max(replica, getattr(body, "replica_id", _NO_REPLICA)) > _NO_REPLICA
