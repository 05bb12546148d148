"""Listening sockets, and the limits that all their connections share (KIP-612's and `SocketServer`'s)."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Final, NamedTuple

from seglog.net.connection import Connection, Handler

__all__ = ["Endpoint", "Listener", "Shared"]

_BACKLOG: Final = 1024
WRITE_AHEAD: Final = 256 << 10
"""Bytes that may wait in a connection for a slow client, beside the slice that is being written."""
SWEEPS: Final = 4
"""How often in the time that a connection may be idle it is looked at."""


class Endpoint(NamedTuple):
    """A listener's name and address; port 0 asks for a free one."""

    name: str
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.name}://{host}:{self.port}"


class Shared:
    """Limits of a broker: how many connections there may be, and bytes of frames that are being received."""

    def __init__(
        self,
        *,
        largest: Callable[[memoryview], int],
        max_connections: int,
        max_connections_per_ip: int,
        in_flight_bytes: int,
        idle_ms: int,
    ) -> None:
        self._largest = largest
        self._max_connections = max_connections
        self._max_per_ip = max_connections_per_ip
        self._left = in_flight_bytes
        self.idle_ms = idle_ms
        self.connections: set[Connection] = set()

    def limit_connections(self, most: int, most_per_ip: int) -> None:
        """Other limits, for the connections that come from now on."""
        self._max_connections = most
        self._max_per_ip = most_per_ip

    def largest_frame(self, head: memoryview, /) -> int:
        return self._largest(head)

    def reserve(self, size: int, /) -> bool:
        if size > self._left:
            return False
        self._left -= size
        return True

    def release(self, size: int, /) -> None:
        self._left += size

    def allows(self, connection: Connection) -> bool:
        """Whether there may be one more from where it comes."""
        if len(self.connections) >= self._max_connections:
            return False
        same = sum(other.peer == connection.peer for other in self.connections) if self._max_per_ip < 2**31 - 1 else 0
        return same < self._max_per_ip


class Listener:
    """Accepts connections on one endpoint and gives each its `Connection`."""

    def __init__(self, endpoint: Endpoint, handler: Handler, shared: Shared) -> None:
        self.endpoint = endpoint
        self._handler = handler
        self._shared = shared
        self._server: asyncio.Server | None = None
        self._sweeper: asyncio.TimerHandle | None = None

    async def start(self) -> Endpoint:
        """Listen; returns the endpoint with its real port. OSError if it is taken."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: _Accepted(self.endpoint.name, self._handler, self._shared, loop.time),
            self.endpoint.host,
            self.endpoint.port,
            backlog=_BACKLOG,
            reuse_address=True,
        )
        port = self._server.sockets[0].getsockname()[1]
        self.endpoint = self.endpoint._replace(port=port)
        self._sweep()
        return self.endpoint

    def _sweep(self) -> None:
        """Close what has been idle for too long, a half-sent request too."""
        loop = asyncio.get_running_loop()
        idle = self._shared.idle_ms / 1000
        for connection in list(self._shared.connections):
            connection.shrink()
            if loop.time() - connection.last_active > idle and not connection.is_waiting:
                connection.close()
        self._sweeper = loop.call_later(idle / SWEEPS, self._sweep)

    async def stop(self) -> None:
        """Accept no more, and end what there is."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        if self._server is not None:
            self._server.close()
        for connection in list(self._shared.connections):
            if connection.listener == self.endpoint.name:
                connection.close()
        if self._server is not None:
            await self._server.wait_closed()


class _Accepted(Connection):
    """A connection that counts among all others, if there is room for it."""

    def __init__(self, listener: str, handler: Handler, shared: Shared, now: Callable[[], float]) -> None:
        super().__init__(listener=listener, handler=handler, limits=shared, now=now, closed=shared.connections.discard)
        self._shared = shared

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if not self._shared.allows(self):
            transport.close()
            return
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "set_write_buffer_limits")
        transport.set_write_buffer_limits(high=WRITE_AHEAD)
        raw = transport.get_extra_info("socket")
        if raw is not None and raw.family != getattr(socket, "AF_UNIX", None):
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._shared.connections.add(self)
