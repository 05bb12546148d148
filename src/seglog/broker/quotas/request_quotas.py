"""Measures requests, and holds clients that use more than their quota (KIP-124, 219).

The answer comes at once and tells the client how long to be silent. For that time the broker handles no further frame
of its connection, so a client that does not know of quotas, or does not care, is held as well.

Rates are kept while they matter. One that has seen nothing for the length of its window measures as a new one would, so
it is dropped, and client ids that are made up take no memory for long. Kafka keeps them for an hour.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Mapping
from functools import partial
from hashlib import sha256
from typing import Any, Final, Generic, Protocol, TypeVar

from seglog.broker.quotas import client_quotas
from seglog.broker.quotas.client_quotas import Limits, Sharing, applied
from seglog.broker.requests import ApiError, Charge
from seglog.core.error_codes import ErrorCode
from seglog.core.rates import Rate, TokenBucket, Window
from seglog.core.types import MAX_INT32
from seglog.net.connection import ClientConnection, Reply
from seglog.net.pending_replies import PendingReply
from seglog.protocol.apis import ApiKey
from seglog.protocol.framing import RequestHeader, frame_response
from seglog.protocol.throttle import throttled

T = TypeVar("T")
_FIRST_SWEEP: Final = 1_024
_LONG: Final = 128
_EXEMPT: Final = frozenset({int(ApiKey.WRITE_TXN_MARKERS)})
"""Requests of brokers."""
_PRODUCE: Final = int(ApiKey.PRODUCE)


class Measure(Protocol):
    def is_idle(self, window: Window, bound: float, now_ms: int) -> bool:
        """Whether it would measure the same if it were new."""


class _ClientRate(Rate):
    __slots__ = ()

    def is_idle(self, window: Window, bound: float, now_ms: int) -> bool:
        del bound
        return self.is_fresh(window, now_ms)


class _ClientBucket(TokenBucket):
    __slots__ = ()

    def is_idle(self, window: Window, bound: float, now_ms: int) -> bool:
        return self.is_full(window, bound, now_ms)


M = TypeVar("M", bound=Measure)


class _Measures(Generic[M]):
    """The measures of one quota, by who shares it."""

    def __init__(self, limits: Limits, window: Window, make: Callable[[], M]) -> None:
        self.limits = limits
        self.window = window
        self._make = make
        self._found: dict[Sharing, tuple[M, float]] = {}
        """With the bound that was last in force."""
        self._sweep_at = _FIRST_SWEEP

    def __len__(self) -> int:
        return len(self._found)

    def of(self, user: str, client: str, now_ms: int) -> tuple[M, float] | None:
        """The measure of a client, and its bound; None without a limit."""
        if not self.limits or (found := applied(self.limits, user, client)) is None:
            return None
        bound, sharing = found
        if len(sharing[0]) > _LONG or len(sharing[1]) > _LONG:
            sharing = _digest(sharing[0]), _digest(sharing[1])
        known = self._found.get(sharing)
        if known is None and len(self._found) >= self._sweep_at:
            self._sweep(now_ms)
        if known is None or known[1] != bound:
            known = self._found[sharing] = (self._make() if known is None else known[0], bound)
        return known

    def _sweep(self, now_ms: int) -> None:
        self._found = {
            sharing: (measure, bound)
            for sharing, (measure, bound) in self._found.items()
            if not measure.is_idle(self.window, bound, now_ms)
        }
        self._sweep_at = max(_FIRST_SWEEP, 2 * len(self._found))


def _digest(name: str) -> str:
    return sha256(name.encode(errors="surrogatepass")).hexdigest() if len(name) > _LONG else name


class _Rates(_Measures[_ClientRate]):
    def __init__(self, limits: Limits, window: Window, most_ms: int = MAX_INT32) -> None:
        super().__init__(limits, window, _ClientRate)
        self._most_ms = most_ms

    def record(self, user: str, client: str, value: float, now_ms: int) -> int:
        """Count ``value``; return for how many milliseconds the client must be held."""
        found = self.of(user, client, now_ms)
        if found is None:
            return 0
        rate, bound = found
        rate.record(self.window, value, now_ms)
        return min(rate.throttle_ms(self.window, bound, now_ms), self._most_ms)

    def largest(self, user: str, client: str, now_ms: int) -> int:
        """The most that a client without a history may use at once."""
        found = self.of(user, client, now_ms)
        return MAX_INT32 if found is None else min(int(found[1] * self.window.burst_seconds), MAX_INT32)


class RequestQuotas:
    """``limits`` are those in force, by the names of quotas; ``now`` is in seconds."""

    def __init__(
        self, limits: Mapping[str, Limits], now: Callable[[], float], window: Window, of_mutations: Window
    ) -> None:
        self.now = now
        self.produce = _Rates(limits[client_quotas.PRODUCE], window)
        self.fetch = _Rates(limits[client_quotas.FETCH], window)
        self.request = _Rates(limits[client_quotas.REQUEST], window, window.sample_ms)
        self.mutations = _Measures(limits[client_quotas.MUTATION], of_mutations, _ClientBucket)

    @property
    def are_in_force(self) -> bool:
        return any(one.limits for one in (self.produce, self.fetch, self.request, self.mutations))

    def now_ms(self) -> int:
        return int(self.now() * 1000)

    def __call__(
        self,
        header: RequestHeader,
        connection: ClientConnection,
        size: int,
        handle: Callable[[Charge], Reply | Awaitable[Reply]],
    ) -> Reply | Awaitable[Reply]:
        """The reply of ``handle``, with the throttle time in it; the connection is muted for that time."""
        charge = RequestCharge(self, header.key, connection.principal.partition(":")[2], header.client_id or "", size)
        reply = handle(charge)
        charge.pause()
        if isinstance(reply, PendingReply):
            # The client is held from now on, not only from when the followers have its records.
            milliseconds = self._hold(charge, connection, is_answered=True)
            return reply.map(partial(_with_time, header, milliseconds)) if milliseconds else reply
        if isinstance(reply, Awaitable):
            return self._later(charge, header, connection, reply)
        return _with_time(header, self._hold(charge, connection, is_answered=reply is not None), reply)

    async def _later(
        self, charge: RequestCharge, header: RequestHeader, connection: ClientConnection, reply: Awaitable[Reply]
    ) -> Reply:
        found = await (_Timed(reply, charge) if self.request.limits else reply)
        return _with_time(header, self._hold(charge, connection, is_answered=found is not None), found)

    def _hold(self, charge: RequestCharge, connection: ClientConnection, *, is_answered: bool) -> int:
        milliseconds = charge.settle(is_answered=is_answered)
        if milliseconds:
            connection.mute(milliseconds / 1000)
        return milliseconds


class RequestCharge:
    """One request of a client. Its time counts while the broker works on it, without its waits."""

    __slots__ = ("_begun", "_key", "_percent", "_quotas", "_size", "_throttle_ms", "_until_ms", "_who", "is_exempt")

    def __init__(self, quotas: RequestQuotas, key: int, user: str, client: str, size: int) -> None:
        self._quotas = quotas
        self._key = key
        self._who = user, client
        self._size = size
        self._percent = 0.0
        self._throttle_ms: int | None = None
        """What a Fetch was found to use up."""
        self._until_ms = 0
        """Until when the client pays for mutations."""
        self.is_exempt = key in _EXEMPT
        self._begun = quotas.now()

    def begin(self) -> None:
        self._begun = self._quotas.now()

    def pause(self) -> None:
        now = self._quotas.now()
        self._percent += (now - self._begun) * 100
        self._begun = now

    def exempt(self) -> None:
        """The request is another broker's."""
        self.is_exempt = True

    @property
    def largest_fetch(self) -> int:
        """The most bytes of records that the client may get at once."""
        return self._quotas.fetch.largest(*self._who, self._quotas.now_ms())

    def fetched(self, size: int) -> bool:
        """Count a Fetch response. True if the client must be held: then it gets an empty one, which costs nothing."""
        quotas, now_ms = self._quotas, self._quotas.now_ms()
        self.pause()
        of_time = quotas.request.record(*self._who, self._percent, now_ms)
        of_bytes = quotas.fetch.record(*self._who, size, now_ms)
        self._throttle_ms = max(of_time, of_bytes)
        if self._throttle_ms:
            quotas.fetch.record(*self._who, -size, now_ms)
        return self._throttle_ms > 0

    def mutated(self, partitions: int, *, strict: bool) -> None:
        """Count partitions that are created or deleted. ``strict``: `ApiError` if the client has used up its quota.
        Otherwise it is held after them."""
        quotas, now_ms = self._quotas, self._quotas.now_ms()
        found = quotas.mutations.of(*self._who, now_ms)
        if found is None:
            return
        (bucket, quota), window = found, quotas.mutations.window
        milliseconds = bucket.throttle_ms(window, quota, now_ms) if strict else 0
        if not milliseconds:
            bucket.record(window, quota, partitions, now_ms)
        if not strict:
            milliseconds = bucket.throttle_ms(window, quota, now_ms)
        if milliseconds:
            self._until_ms = now_ms + milliseconds
        if milliseconds and strict:
            raise ApiError(ErrorCode.THROTTLING_QUOTA_EXCEEDED)

    def settle(self, *, is_answered: bool) -> int:
        """Count the request; return for how many milliseconds the client must be held."""
        if self.is_exempt:
            return 0
        if self._throttle_ms is not None:
            return self._throttle_ms
        quotas, now_ms = self._quotas, self._quotas.now_ms()
        milliseconds = max(self._until_ms - now_ms, 0)
        if self._key == _PRODUCE:
            milliseconds = quotas.produce.record(*self._who, self._size, now_ms)
        if is_answered:
            milliseconds = max(milliseconds, quotas.request.record(*self._who, self._percent, now_ms))
        return milliseconds


class _Timed(Generator[Any, Any, T]):
    """An awaitable whose steps are charged, without the waits between them."""

    def __init__(self, waiting: Awaitable[T], charge: RequestCharge) -> None:
        self._steps = waiting.__await__()
        self._charge = charge

    def __await__(self) -> Generator[Any, Any, T]:
        return self

    def send(self, value: Any, /) -> Any:
        return self._charged(partial(self._steps.send, value))

    def throw(self, kind: Any, value: Any = None, trace: Any = None, /) -> Any:
        del trace
        return self._charged(partial(self._steps.throw, kind if value is None else value))

    def _charged(self, step: Callable[[], Any]) -> Any:
        self._charge.begin()
        try:
            return step()
        finally:
            self._charge.pause()


def _with_time(header: RequestHeader, milliseconds: int, reply: Reply) -> Reply:
    """A reply that is not bytes alone is not thrown into memory: a Fetch response is empty if its client is held."""
    if not milliseconds or reply is None:
        return reply
    frame = reply if isinstance(reply, bytes) else b"".join(one for one in reply if isinstance(one, bytes))
    key, version, correlation_id = header.key, header.version, header.correlation_id
    at = len(frame_response(key, version, correlation_id, 0))
    body = throttled(key, version, frame[at:], milliseconds)
    return frame_response(key, version, correlation_id, len(body)) + body
