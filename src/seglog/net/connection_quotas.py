"""The limits that a broker's connections share: their number, creation rate, memory and idle time (KIP-612,
``SocketServer.scala``, ``SimpleMemoryPool.java``)."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Final

from seglog.core.types import MAX_INT32
from seglog.net.connection import SLICE_BYTES, ClientConnection, IdleLimits
from seglog.net.refusals import Refusals, client_id_of, foreign_protocol
from seglog.net.request_memory import RequestMemory

__all__ = ["ConnectionQuotas", "CreationRate"]

_WINDOW_SECONDS: Final = 10
"""The window of Kafka's rates (``quota.window.num`` - 1 samples of a second): connections that did not come may come
later."""


MANY_STALLED: Final = 64
"""If more clients than this do not take their responses, each gets smaller slices."""
SMALL_SLICE_BYTES: Final = 32 << 10
MOST_UNSENT: Final = 256 << 20
"""If all clients together leave more bytes untaken, the slow ones are closed sooner."""


MAX_HANDSHAKES: Final = 256
"""The most TLS handshakes under way. More connections wait in the kernel."""
MAX_HANDSHAKES_PER_IP: Final = 64
"""The most from one address, which could otherwise keep out all others. Its further connections are closed."""


class CreationRate:
    """Allows ``rate`` connections a second, and after a quiet time as many at once as in ten seconds."""

    def __init__(self, rate: int, now: Callable[[], float]) -> None:
        self._now = now
        self._at = now()
        self._rate = rate
        self._left = float(rate * _WINDOW_SECONDS)

    def change(self, rate: int) -> None:
        if rate != self._rate:
            self._rate = rate
            self._left = float(rate * _WINDOW_SECONDS)

    def take(self) -> float:
        """Count a connection; returns the seconds that it must wait."""
        if self._rate >= MAX_INT32:
            return 0.0
        now = self._now()
        self._left = min(self._left + (now - self._at) * self._rate, self._rate * _WINDOW_SECONDS) - 1
        self._at = now
        return max(-self._left / self._rate, 0.0)


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
        self.rate = CreationRate(creation_rate, self.now)
        self.connections: set[ClientConnection] = set()

    def limit_connections(self, most: int, most_per_ip: int, creation_rate: int = MAX_INT32) -> None:
        """Change the limits for new connections."""
        self._max_connections = most
        self._max_per_ip = most_per_ip
        self.rate.change(creation_rate)
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
