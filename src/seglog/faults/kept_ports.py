"""Ports of a broker that is stopped: no other process gets them, and clients are refused."""

from __future__ import annotations

import socket
from collections.abc import Iterable


class KeptPorts:
    """Sockets that are bound and do not listen. With SO_REUSEADDR, Linux lets the broker bind its own beside them;
    elsewhere call `release` first."""

    def __init__(self) -> None:
        self._sockets: list[socket.socket] = []

    def keep(self, addresses: Iterable[tuple[str, int]]) -> None:
        """Hold each host and port. One that another process already has is left to it; the next start says so."""
        for host, port in addresses:
            kept = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
            kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                kept.bind((host, port))
            except OSError:
                kept.close()
            else:
                self._sockets.append(kept)

    def release(self) -> None:
        while self._sockets:
            self._sockets.pop().close()
