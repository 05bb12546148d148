"""Broker addresses of a command line, and a connection to one of them."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from seglog.core.errors import BrokerUnavailableError

_PORT: Final = 9092


class HostPort(NamedTuple):
    """The address of a broker."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_bootstrap(text: str) -> list[HostPort]:
    """One or more ``HOST[:PORT]``, separated by commas. ValueError if one is not valid.

    >>> [str(one) for one in parse_bootstrap("a:1, PLAINTEXT://b,[::1]:3")]
    ['a:1', 'b:9092', '[::1]:3']
    """
    found = [_parse(part.strip().rpartition("://")[2]) for part in text.split(",") if part.strip()]
    if not found:
        raise ValueError("it names no broker")
    return found


def _parse(text: str) -> HostPort:
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):
        host, port = text, str(_PORT)
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"{text!r} is not HOST:PORT")
    return HostPort(host, int(port))


Dial = Callable[[Sequence[HostPort], float], tuple[socket.socket, HostPort]]
"""`connect`, or a simulated network's counterpart."""


def connect(addresses: Sequence[HostPort], timeout: float) -> tuple[socket.socket, HostPort]:
    """A connection to the first broker that accepts one, and which that is. `BrokerUnavailableError`, with all reasons,
    if none does."""
    reasons = []
    for address in addresses:
        try:
            return socket.create_connection(address, timeout=timeout), address
        except OSError as error:
            reasons.append(f"{address}: {error.strerror or error}")
    raise BrokerUnavailableError(f"no broker answers at {', '.join(reasons)}")
