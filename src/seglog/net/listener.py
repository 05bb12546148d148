"""Listening sockets. Each accepts one connection at a time, within the limits of `seglog.net.connection_quotas`."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NamedTuple, Protocol, cast

from seglog.core.addresses import Address
from seglog.core.errors import InvalidRequestError, SeglogError
from seglog.net.connection import ClientConnection, FrameHandler
from seglog.net.connection_quotas import MAX_HANDSHAKES_PER_IP, MOST_UNSENT, ConnectionQuotas
from seglog.net.refusals import handshake_failure

__all__ = ["Keepalive", "Listener", "ListenerSecurity"]

_log: Final = logging.getLogger("seglog.net")
_BACKLOG: Final = 1024
WRITE_AHEAD: Final = 256 << 10
"""Bytes that may wait for a slow client, beside the slice being written."""
SWEEPS: Final = 4
"""How many checks of a client there are within each time limit."""
_LONGEST: Final = 1.5
"""The most that one interval between checks counts, relative to its plan."""
_RETRY_SECONDS: Final = 0.5
_FINISH_SECONDS: Final = 5.0
"""The longest that a stop waits for pending responses."""
_SAY_SECONDS: Final = 60.0
_MOST_TO_CLOSE: Final = 1_024
"""The most connections that stay open only to be closed later."""
HANDSHAKE_SECONDS: Final = 10.0
"""The longest that a TLS handshake may take, and the goodbye at a connection's end."""
_NO_MORE: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class Keepalive(NamedTuple):
    """TCP keepalive: seconds of silence before the first probe, seconds between probes, and probes without an answer.
    Linux waits two hours by default, and Kafka keeps that."""

    idle: int = 120
    interval: int = 30
    questions: int = 4


class ListenerSecurity(Protocol):
    """How the connections of a listener are secured."""

    @property
    def uses_tls(self) -> bool: ...

    def context(self) -> ssl.SSLContext:
        """For the handshake of the next connection, if it ``uses_tls``."""

    def begin(self, connection: ClientConnection, transport: asyncio.Transport, /) -> None:
        """A connection is there, after its handshake: set its principal, or the handler that authenticates it.
        `InvalidRequestError` closes it."""


class Listener:
    """Accepts connections on one address and gives each its `ClientConnection`. TLS handshakes run beside each other,
    within a limit of number and time."""

    def __init__(
        self,
        address: Address,
        handler: FrameHandler,
        quotas: ConnectionQuotas,
        keepalive: Keepalive | None = None,
        *,
        security: ListenerSecurity | None = None,
    ) -> None:
        """Port 0 asks for a free one. Without ``security``, connections are neither encrypted nor authenticated."""
        self.address = address
        self._handler = handler
        self._quotas = quotas
        self._security = security
        self._uses_tls = security is not None and security.uses_tls
        self._handshakes: set[asyncio.Task[None]] = set()
        self._keepalive = keepalive or Keepalive()
        self._sockets: list[socket.socket] = []
        self._to_close: dict[socket.socket, asyncio.TimerHandle] = {}
        self._accepting: list[asyncio.Task[None]] = []
        self._sweeper: asyncio.TimerHandle | None = None
        self._said = -_SAY_SECONDS
        self._looked = self._planned = 0.0
        self._looked_at = quotas.now()

    async def start(self) -> Address:
        """Listen on all addresses of the host; returns the address with its real port. OSError if it is taken."""
        loop = asyncio.get_running_loop()
        name, host, port = self.address
        found = await loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        try:
            for family, *_, address in dict.fromkeys(found):
                listening = _listening(family, (address[0], port, *address[2:]))
                self._sockets.append(listening)
                port = listening.getsockname()[1]
        except OSError:
            self._close_sockets()
            raise
        self.address = Address(name, host, port)
        self._accepting = [
            loop.create_task(self._accept_from(one), name=f"seglog-accept-{name}") for one in self._sockets
        ]
        self._sweep()
        return self.address

    async def run(self) -> None:
        """Ends with the error after which the listener accepts no connections."""
        await asyncio.gather(*self._accepting, asyncio.get_running_loop().create_future())  # which has no end

    async def _accept_from(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                raw, address = await loop.sock_accept(listening)
            except OSError as error:
                if error.errno in _NO_MORE:
                    self._say("no connection can be accepted for now: %s", error)
                    await asyncio.sleep(_RETRY_SECONDS)
                continue
            try:
                await self._begin(raw, str(address[0]))
            except OSError:  # it has gone again
                raw.close()
            except BaseException:
                raw.close()
                raise

    async def _begin(self, raw: socket.socket, peer: str) -> None:
        """Start the connection, once the quotas allow it."""
        quotas = self._quotas
        if raw.fileno() >= quotas.descriptors:
            self._say("a connection of %s was closed: file descriptors run out (ulimit -n)", peer)
            raw.close()
            return
        if (seconds := quotas.rates.take(self.address.name)) > 0:
            self._say("connections arrive faster than max.connection.creation.rate; %s waits", peer)
            await asyncio.sleep(seconds)
        await quotas.place(handshake=self._uses_tls)
        if (seconds := quotas.rates.take_ip(self.address.name, peer)) > 0:
            self._close_later(raw, seconds)
            return
        if not quotas.allows(peer):
            self._say("a connection of %s was closed: it has max.connections.per.ip already", peer)
            raw.close()
            return
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _keep_alive(raw, self._keepalive)
        if self._uses_tls:
            self._begin_handshake(raw, peer)
            return
        await asyncio.get_running_loop().connect_accepted_socket(lambda: self._connection(peer), raw)

    def _close_later(self, raw: socket.socket, seconds: float) -> None:
        """A client whose address has used up its quota would come again at once."""
        if len(self._to_close) >= _MOST_TO_CLOSE:
            raw.close()
            return
        self._to_close[raw] = asyncio.get_running_loop().call_later(seconds, self._close_now, raw)

    def _close_now(self, raw: socket.socket) -> None:
        self._to_close.pop(raw).cancel()
        raw.close()

    def _connection(self, peer: str) -> _QuotaConnection:
        return _QuotaConnection(self.address.name, peer, self._handler, self._quotas, self._security)

    def _begin_handshake(self, raw: socket.socket, peer: str) -> None:
        if self._quotas.handshakes_of(peer) >= MAX_HANDSHAKES_PER_IP:
            self._say("a connection of %s was closed: it has too many unfinished TLS handshakes", peer)
            raw.close()
            return
        self._quotas.begin_handshake(peer)
        task = asyncio.get_running_loop().create_task(self._shake_hands(raw, peer), name="seglog-tls-handshake")
        self._handshakes.add(task)
        task.add_done_callback(self._handshakes.discard)

    async def _shake_hands(self, raw: socket.socket, peer: str) -> None:
        assert self._security is not None
        loop = asyncio.get_running_loop()
        try:
            await loop.connect_accepted_socket(
                lambda: self._connection(peer),
                raw,
                ssl=self._security.context(),
                ssl_handshake_timeout=HANDSHAKE_SECONDS,
                ssl_shutdown_timeout=HANDSHAKE_SECONDS,
            )
        except OSError as error:
            self._quotas.refusals.log(peer, self.address.name, handshake_failure(error))
        except SeglogError as error:
            self._quotas.refusals.log(peer, self.address.name, str(error))
            raw.close()
        finally:
            self._quotas.end_handshake(peer)

    def _say(self, what: str, about: object) -> None:
        """Log at most once a minute, or clients could fill the log."""
        now = self._quotas.now()
        if now - self._said >= _SAY_SECONDS:
            self._said = now
            _log.warning(what, about)

    def _sweep(self) -> None:
        idle, now = self._quotas.idle, self._quotas.now()
        # A process that was stopped, or had no CPU, has not read yet what clients have sent meanwhile.
        self._looked += min(now - self._looked_at, self._planned * _LONGEST)
        self._looked_at = now
        is_crowded = sum([connection.unsent for connection in self._quotas.connections]) > MOST_UNSENT
        for connection in list(self._quotas.connections):
            if connection.listener == self.address.name:
                connection.review(idle, self._looked, is_crowded=is_crowded)
        self._planned = min(idle.idle, idle.frame) / SWEEPS
        self._sweeper = asyncio.get_running_loop().call_later(self._planned, self._sweep)

    async def stop(self) -> None:
        """Accept no more connections and requests, and close all connections, each after its pending responses. Those
        that take longer than a few seconds are lost."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        tasks = [*self._accepting, *self._handshakes]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._close_sockets()
        for raw in tuple(self._to_close):
            self._close_now(raw)
        connections = [one for one in self._quotas.connections if one.listener == self.address.name]
        with suppress(TimeoutError):
            async with asyncio.timeout(_FINISH_SECONDS):
                await asyncio.gather(*(connection.finish() for connection in connections))
        for connection in connections:
            connection.close()

    def _close_sockets(self) -> None:
        for listening in self._sockets:
            listening.close()
        self._sockets.clear()


def _listening(family: int, address: tuple[object, ...]) -> socket.socket:
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listening.bind(address)
        listening.listen(_BACKLOG)
        listening.settimeout(0)
    except OSError as error:
        listening.close()
        raise OSError(error.errno, f"cannot listen on {address[0]}:{address[1]}: {error.strerror}") from error
    return listening


def _keep_alive(raw: socket.socket, keepalive: Keepalive) -> None:
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    idle = getattr(socket, "TCP_KEEPIDLE", None) or getattr(socket, "TCP_KEEPALIVE", None)  # Linux's name, macOS's
    if idle is not None:
        raw.setsockopt(socket.IPPROTO_TCP, idle, keepalive.idle)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, keepalive.interval)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, keepalive.questions)


class _QuotaConnection(ClientConnection):
    """A connection that counts in the quotas."""

    def __init__(
        self,
        listener: str,
        peer: str,
        handler: FrameHandler,
        quotas: ConnectionQuotas,
        security: ListenerSecurity | None,
    ) -> None:
        gone: Callable[[ClientConnection], None] = quotas.discard
        super().__init__(listener=listener, handler=handler, limits=quotas, now=quotas.now, closed=gone)
        self._from = peer
        self._quotas = quotas
        self._security = security

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.peer = self._from
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "set_write_buffer_limits")
        transport.set_write_buffer_limits(high=min(WRITE_AHEAD, self._quotas.slice_bytes))
        self._quotas.add(self)
        if self._security is not None:
            try:
                self._security.begin(self, cast(asyncio.Transport, transport))
            except InvalidRequestError as error:
                self._quotas.refusals.log(self.peer, self.listener, str(error))
                self.close()
