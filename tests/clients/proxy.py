"""A TCP proxy that cuts connections where a seed says: in the middle of a request, of an answer, or between them."""

from __future__ import annotations

import random
import socket
import struct
import threading
from contextlib import suppress

from tests.kit.service import Service

_PIECE = 64 << 10
_RESET = struct.pack("ii", 1, 0)  # l_onoff, l_linger: a close sends RST


class CuttingProxy(Service):
    """Passes on what comes to ``port``; each of the first ``cuts`` connections that carry enough is cut after as many
    bytes, of both directions together, as ``seed`` says: between ``least`` and ``most``. ``happened`` counts them.

    The upstream port is set before the first connection.
    """

    def __init__(self, *, seed: int, cuts: int, least: int = 4_000, most: int = 60_000) -> None:
        self._random = random.Random(seed)
        self._bounds = least, most
        self._left = cuts
        self.happened = 0
        self.upstream = 0
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._sockets: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._is_over = False

    def start(self) -> None:
        self._start(self._accept)

    def leave(self) -> None:
        self._is_over = True
        self._listener.shutdown(socket.SHUT_RDWR)
        with self._lock:
            open_ = list(self._sockets)
        for one in open_:
            _end(one)
        for thread in self._threads:
            thread.join()
        self._listener.close()

    def _start(self, run: object, *arguments: object) -> None:
        assert callable(run)
        thread = threading.Thread(target=run, args=arguments, name="proxy")
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self.upstream), timeout=60)
            except OSError:
                client.close()
                continue
            server.settimeout(None)
            for one in (client, server):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self._sockets |= {client, server}
                pair = _Pair(client, server, self._random.randint(*self._bounds))
            self._start(self._pass_on, pair, client, server)
            self._start(self._pass_on, pair, server, client)
            if self._is_over:
                _end(client)
                _end(server)

    def _pass_on(self, pair: _Pair, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(_PIECE):
                allowed = self._allowed(pair, len(data))
                target.sendall(data[:allowed])
                if allowed < len(data):
                    break
        with self._lock:
            self._sockets -= {pair.client, pair.server}
            pair.ended += 1
            is_last = pair.ended == 2
        for one in (pair.client, pair.server):
            # Whoever waits at it wakes up; the side that is to be reset must not be told of an end before.
            _end(one, socket.SHUT_RD if pair.is_reset else socket.SHUT_RDWR)
        if is_last:
            for one in (pair.client, pair.server):
                if pair.is_reset:
                    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                one.close()

    def _allowed(self, pair: _Pair, size: int) -> int:
        """How many of the bytes may pass; fewer than there are if the connection is to be cut here."""
        with self._lock:
            if self._left <= 0 or pair.is_cut:
                return 0 if pair.is_cut else size
            if size < pair.budget:
                pair.budget -= size
                return size
            self._left -= 1
            self.happened += 1
            pair.is_cut = True
            pair.is_reset = self._random.random() < 0.5
            return min(pair.budget, size - 1)


class _Pair:
    """A connection of a client, and ours to the server for it."""

    def __init__(self, client: socket.socket, server: socket.socket, budget: int) -> None:
        self.client = client
        self.server = server
        self.budget = budget
        self.is_cut = False
        self.is_reset = False
        self.ended = 0


def _end(one: socket.socket, how: int = socket.SHUT_RDWR) -> None:
    """It is closed by the thread that is done with it last."""
    with suppress(OSError):
        one.shutdown(how)
