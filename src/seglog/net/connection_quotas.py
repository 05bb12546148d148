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
        self._by_ip[connection.peer] -= 1
        if not self._by_ip[connection.peer]:
            del self._by_ip[connection.peer]
        self._has_place.set()

    async def place(self) -> None:
        """Wait until there may be one more connection. Kafka's acceptor waits too."""
        while len(self.connections) >= self._max_connections:
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
