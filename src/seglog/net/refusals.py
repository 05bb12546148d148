"""Logs why clients are refused: one line at info for each, at most one a minute for each address.

The first bytes tell a TLS handshake, HTTP and Kafka requests apart. Those of a request have the client's name.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from struct import Struct
from typing import Final, NamedTuple

_log: Final = logging.getLogger("seglog.net")
SECONDS: Final = 60.0
MOST_ADDRESSES: Final = 1000
"""The most addresses to remember, and so the most lines a minute."""
HEAD: Final = 300
"""The first bytes of a frame that identify its sender."""
_TLS_HANDSHAKE: Final = b"\x16\x03"
_NOT_TLS: Final = frozenset(
    {"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNKNOWN_PROTOCOL", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG"}
)
"""OpenSSL's reasons if the first bytes are not those of TLS."""
_HTTP: Final = re.compile(rb"(?:GET|HEAD|POST|PUT|DELETE|OPTIONS|CONNECT|PATCH|PRI) [ -~]*")
_BEFORE_CLIENT_ID: Final = Struct(">ihhih")
_LONGEST_NAME: Final = 80


class _Said(NamedTuple):
    at: float
    unsaid: int
    """Refusals since then that were not logged."""


class Refusals:
    """Logs refusals at a limited rate."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._said: dict[str, _Said] = {}

    def log(self, address: str, listener: str, why: str, *, client_id: str = "") -> None:
        now = self._now()
        before = self._said.get(address)
        if before is not None and now - before.at < SECONDS:
            self._said[address] = before._replace(unsaid=before.unsaid + 1)
            return
        if before is None and len(self._said) >= MOST_ADDRESSES:
            self._said = {one: said for one, said in self._said.items() if now - said.at < SECONDS}
            if len(self._said) >= MOST_ADDRESSES:
                return
        self._said[address] = _Said(now, 0)
        more = f"; {before.unsaid} more from there since the last such line" if before and before.unsaid else ""
        who = f"{address} (client id {client_id})" if client_id else address
        _log.info("Connection from %s to %s refused: %s%s", who, listener, why, more)


def foreign_protocol(head: bytes) -> str:
    """The foreign protocol of a client that sent ``head``, or "" if it may be Kafka's.

    >>> foreign_protocol(b"GET /metrics HTTP/1.1")
    'it sent an HTTP request (GET /metrics HTTP/1.1), and this is a Kafka port'
    """
    if head.startswith(_TLS_HANDSHAKE):
        return "it began a TLS handshake, and this port has no TLS: set security.protocol=PLAINTEXT in the client"
    if (http := _HTTP.match(head)) is not None:
        line = http[0][:_LONGEST_NAME].decode("ascii").strip()
        return f"it sent an HTTP request ({line}), and this is a Kafka port"
    return ""


def handshake_failure(error: OSError) -> str:
    """Why a TLS handshake failed, for a log.

    >>> handshake_failure(ConnectionResetError(104, "Connection reset by peer"))
    'its TLS handshake failed: Connection reset by peer'
    """
    reason = getattr(error, "reason", None)
    if isinstance(reason, str):
        if reason in _NOT_TLS:
            return "it did not begin a TLS handshake, and this port has TLS: set security.protocol in the client"
        return f"its TLS handshake failed: {reason.rpartition('ALERT_')[2].replace('_', ' ').lower()}"
    return f"its TLS handshake failed: {error.strerror or error}"


def client_id_of(head: bytes) -> str:
    """The client id of a request whose frame begins with ``head``; "" if there is none."""
    if len(head) < _BEFORE_CLIENT_ID.size or foreign_protocol(head):
        return ""
    *_, length = _BEFORE_CLIENT_ID.unpack_from(head)
    name = head[_BEFORE_CLIENT_ID.size :][: max(length, 0)]
    return name.decode(errors="replace")[:_LONGEST_NAME] if name and name.isascii() else ""
