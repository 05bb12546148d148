"""One bounded request to an endpoint of OAuth: tokens for clients, keys for brokers. It blocks its thread."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from seglog.client.security.references import Secrets
from seglog.client.security.security_config import SecurityConfig
from seglog.client.security.tls import explain, tls_context
from seglog.core.clock import SystemClock
from seglog.core.errors import BrokerUnavailableError

MOST_BYTES: Final = 1 << 20
"""The largest body that is read."""
_PIECE: Final = 64 << 10


class Fetched(NamedTuple):
    """``body`` has at most `MOST_BYTES` and one byte more."""

    status: int
    reason: str
    body: bytes


class Timeouts(NamedTuple):
    """In seconds; None for no limit. ``read`` is for silence, ``whole`` for the whole body."""

    connect: float | None = 10.0
    read: float | None = 10.0
    whole: float = 60.0


def fetch(
    what: str,
    url: str,
    tls: SecurityConfig,
    secrets: Secrets,
    timeouts: Timeouts,
    *,
    form: str | None = None,
    headers: Mapping[str, str],
) -> Fetched:
    """GET, or POST of a ``form``. Redirects are not followed. Errors begin with ``what``: those of `explain`,
    `InvalidConfigError` if the stores cannot be used, `BrokerUnavailableError` otherwise."""
    from http.client import HTTPConnection, HTTPException, HTTPSConnection  # takes long to load

    clock = SystemClock()
    parts = urlsplit(url)
    host = parts.hostname or ""
    connection = (
        HTTPSConnection(host, parts.port, timeout=timeouts.connect, context=tls_context(tls, secrets))
        if parts.scheme == "https"
        else HTTPConnection(host, parts.port, timeout=timeouts.connect)
    )
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    try:
        connection.connect()
        connection.sock.settimeout(timeouts.read)
        connection.request("GET" if form is None else "POST", path, form, dict(headers))
        end = clock.monotonic() + timeouts.whole
        with connection.getresponse() as response:
            body = b""
            while len(body) <= MOST_BYTES and (piece := response.read1(_PIECE)):
                body += piece
                if clock.monotonic() > end:
                    raise BrokerUnavailableError(f"{what}: its answer took more than {timeouts.whole:g} s")
    except OSError as error:
        raise explain(error, what, tls) from error
    except HTTPException as error:
        raise BrokerUnavailableError(f"{what}: {str(error) or type(error).__name__}") from error
    finally:
        connection.close()
    return Fetched(response.status, response.reason, body[: MOST_BYTES + 1])
