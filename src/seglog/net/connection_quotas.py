"""The limits that a broker's connections share: their number, creation rate, memory and idle time (KIP-612,
``SocketServer.scala``, ``SimpleMemoryPool.java``)."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from seglog.core.rates import Rate, Window
from seglog.core.types import MAX_INT32
from seglog.net.connection import SLICE_BYTES, ClientConnection, IdleLimits
from seglog.net.refusals import Refusals, client_id_of, foreign_protocol
from seglog.net.request_memory import RequestMemory

__all__ = ["ConnectionQuotas", "CreationRates"]

_FIRST_SWEEP: Final = 1_024


MANY_STALLED: Final = 64
"""If more clients than this do not take their responses, each gets smaller slices."""
SMALL_SLICE_BYTES: Final = 32 << 10
MOST_UNSENT: Final = 256 << 20
"""If all clients together leave more bytes untaken, the slow ones are closed sooner."""


MAX_HANDSHAKES: Final = 256
"""The most TLS handshakes under way. More connections wait in the kernel."""
MAX_HANDSHAKES_PER_IP: Final = 64
"""The most from one address, which could otherwise keep out all others. Its further connections are closed."""


class CreationRates:
    """How fast connections may come (KIP-612): to the broker, to each of its listeners, and from each address. A limit
    of `MAX_INT32` is none. Rates of addresses that matter no more are dropped. Connections to the ``protected``
    listener, that of other brokers, do not count in the broker's rate."""

    def __init__(self, now: Callable[[], float], window: Window, most: int, protected: str | None = None) -> None:
        self._now = now
        self._window = window
        self._most = most
        self._protected = protected
        self._of_listeners: Mapping[str, int] = {}
        self._of_ips: Mapping[str, int] = {}
        self._of_other_ips = MAX_INT32
        self._rate = Rate()
        self._listener_rates: dict[str, Rate] = {}
        self._ip_rates: dict[str, Rate] = {}
        self._sweep_at = _FIRST_SWEEP

    def limit(self, most: int, of_listeners: Mapping[str, int]) -> None:
        """Change the limits of the broker and of listeners."""
        self._most, self._of_listeners = most, of_listeners

    def limit_ips(self, of_ips: Mapping[str, int], of_others: int = MAX_INT32) -> None:
        """Change the limits of addresses, and of those that have none of their own."""
        self._of_ips, self._of_other_ips = of_ips, of_others

    def take(self, listener: str) -> float:
        """Count a connection; return the seconds that it must wait."""
        now_ms = int(self._now() * 1000)
        return max((self._throttle_ms(rate, most, now_ms) for rate, most in self._rates(listener)), default=0) / 1000

    def take_ip(self, listener: str, ip: str) -> float:
        """Count a connection of this address. The seconds after which to close it, which then did not count; 0 if it
        may go on."""
        most = self._of_ips.get(ip, self._of_other_ips)
        if most >= MAX_INT32:
            return 0.0
        now_ms = int(self._now() * 1000)
        rate = self._ip_rates.get(ip)
        if rate is None:
            if len(self._ip_rates) >= self._sweep_at:
                self._sweep(now_ms)
            rate = self._ip_rates[ip] = Rate()
        milliseconds = self._throttle_ms(rate, most, now_ms)
        if milliseconds:
            for one in (rate, *(rate for rate, _ in self._rates(listener))):
                one.record(self._window, -1, now_ms)
        return milliseconds / 1000

    def _rates(self, listener: str) -> Iterator[tuple[Rate, int]]:
        """Those of the broker and of the listener, with their limits."""
        if self._most < MAX_INT32 and listener != self._protected:
            yield self._rate, self._most
        if (most := self._of_listeners.get(listener, MAX_INT32)) < MAX_INT32:
            yield self._listener_rates.setdefault(listener, Rate()), most

    def _throttle_ms(self, rate: Rate, most: int, now_ms: int) -> int:
        rate.record(self._window, 1, now_ms)
        return min(rate.throttle_ms(self._window, most, now_ms), self._window.sample_ms)

    def _sweep(self, now_ms: int) -> None:
        self._ip_rates = {ip: one for ip, one in self._ip_rates.items() if not one.is_fresh(self._window, now_ms)}
        self._sweep_at = max(_FIRST_SWEEP, 2 * len(self._ip_rates))


class ConnectionQuotas:
    """``descriptors``: a connection whose file descriptor is this or higher is closed at once. Connections must not
    take the last descriptors from logs, which treat a failed `open` as a failed disk."""

    def __init__(
        self,
        *,
        largest: Callable[[memoryview], int],
        max_connections: int,
        max_connections_per_ip: int,
        in_flight_bytes: int,
        idle: IdleLimits,
        creation_rate: int = MAX_INT32,
        window: Window | None = None,
        protected: str | None = None,
        descriptors: int = MAX_INT32,
        now: Callable[[], float] | None = None,
    ) -> None:
        self._max_connections = max_connections
        self._max_per_ip = max_connections_per_ip
        self.largest_frame = largest
        self.memory = RequestMemory(in_flight_bytes)
        self._by_ip: Counter[str] = Counter()
        """Connections and handshakes by address."""
        self._handshakes: Counter[str] = Counter()
        self._has_place = asyncio.Event()
        self._stalled = 0
        self.idle = idle
        self.descriptors = descriptors
        self.now = now or asyncio.get_running_loop().time
        self.refusals = Refusals(self.now)
        self.rates = CreationRates(self.now, window or Window(), creation_rate, protected)
        self.connections: set[ClientConnection] = set()

    def limit_connections(self, most: int, most_per_ip: int) -> None:
        """Change the limits for new connections."""
        self._max_connections = most
        self._max_per_ip = most_per_ip
        self._has_place.set()

    # Connections

    def add(self, connection: ClientConnection) -> None:
        self.connections.add(connection)
        self._by_ip[connection.peer] += 1

    def discard(self, connection: ClientConnection) -> None:
        if connection not in self.connections:
            return
        self.connections.discard(connection)
        self._leave(connection.peer)

    def _leave(self, peer: str) -> None:
        self._by_ip[peer] -= 1
        if not self._by_ip[peer]:
            del self._by_ip[peer]
        self._has_place.set()

    def begin_handshake(self, peer: str) -> None:
        """Count a connection whose TLS handshake begins."""
        self._handshakes[peer] += 1
        self._by_ip[peer] += 1

    def end_handshake(self, peer: str) -> None:
        """The handshake is over, successful or not."""
        self._handshakes[peer] -= 1
        if not self._handshakes[peer]:
            del self._handshakes[peer]
        self._leave(peer)

    def handshakes_of(self, peer: str) -> int:
        return self._handshakes.get(peer, 0)

    async def place(self, *, handshake: bool = False) -> None:
        """Wait until there may be one more connection, and one more ``handshake``. Kafka's acceptor waits too."""
        while True:
            under_way = self._handshakes.total() if self._handshakes else 0
            is_free = not handshake or under_way < MAX_HANDSHAKES
            if is_free and len(self.connections) + under_way < self._max_connections:
                return
            self._has_place.clear()
            await self._has_place.wait()

    def allows(self, peer: str) -> bool:
        """Whether this address may have one more connection."""
        return self._by_ip[peer] < self._max_per_ip if peer in self._by_ip else self._max_per_ip > 0

    # Bytes that clients do not take

    @property
    def slice_bytes(self) -> int:
        return SLICE_BYTES if self._stalled <= MANY_STALLED else SMALL_SLICE_BYTES

    def stalled(self, by: int, /) -> None:
        self._stalled += by

    def refused(self, connection: ClientConnection, head: bytes, why: str, /) -> None:
        why = foreign_protocol(head) or why
        self.refusals.log(connection.peer, connection.listener, why, client_id=client_id_of(head))
