"""Who may use the console. Pure but for its secrets.

Any page in a browser on this machine can send requests to a port of loopback, and any name can resolve to 127.0.0.1
(DNS rebinding). So a request must name a host that is ours, and carry a secret that no other site can read or send:

- The address that the command prints has a token. The first request with it gets a cookie (HttpOnly, SameSite=Strict),
  and the token is spent: neither history nor logs nor a Referer keep anything that opens the console.
- A program sends the token of ``--token-file`` as ``Authorization: Bearer``.
- A request that changes something must also come from our own origin, or from a program.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Collection, Mapping
from http import HTTPStatus
from typing import Final, NamedTuple

from seglog.net.http import HttpRequest

SECURITY_HEADERS: Final = (
    (
        "Content-Security-Policy",
        "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'",
    ),
    ("Referrer-Policy", "no-referrer"),
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Cache-Control", "no-store"),
)
_OPEN_ORIGINS: Final = ("same-origin", "none")


class Refusal(NamedTuple):
    status: HTTPStatus
    reason: str


class Access:
    """The secrets of one console. ``new_secret`` makes one; ``bearer`` is the token of programs, if there is one."""

    def __init__(self, new_secret: Callable[[], str], *, bearer: str | None = None) -> None:
        self._new_secret = new_secret
        self._bearer = bearer
        self._session = new_secret()
        self.token = new_secret()
        """Opens the console once."""
        self._hosts: frozenset[str] = frozenset()
        self._cookie = "seglog-console"

    def listens_on(self, port: int, hosts: Collection[str]) -> None:
        """Our names, as a Host header gives them. Cookies do not know ports, so the cookie's name has it."""
        self._hosts = frozenset(f"{host}:{port}" for host in hosts) | (frozenset(hosts) if port == 80 else frozenset())
        self._cookie = f"seglog-console-{port}"

    def spend(self, token: str) -> str | None:
        """The Set-Cookie header for the right token, which then is another one; None for a wrong one."""
        if not _same(token, self.token):
            return None
        self.token = self._new_secret()
        return f"{self._cookie}={self._session}; Path=/; HttpOnly; SameSite=Strict"

    def check_host(self, headers: Mapping[str, str]) -> Refusal | None:
        if headers.get("host", "").lower() not in self._hosts:
            return Refusal(HTTPStatus.FORBIDDEN, "the request names another host")
        return None

    def refusal(self, request: HttpRequest, *, changes: bool) -> Refusal | None:
        """Why not to answer; None to answer. ``changes``: the operation changes something."""
        headers = request.headers
        origin = headers.get("origin")
        if origin is not None and not self._is_ours(origin):
            return Refusal(HTTPStatus.FORBIDDEN, "the request comes from a foreign origin")
        if headers.get("sec-fetch-site", "none") not in _OPEN_ORIGINS:
            return Refusal(HTTPStatus.FORBIDDEN, "the request comes from a foreign site")
        scheme, _, token = headers.get("authorization", "").partition(" ")
        is_program = scheme.lower() == "bearer" and self._bearer is not None and _same(token, self._bearer)
        if not is_program and not _same(_cookies(headers).get(self._cookie, ""), self._session):
            return Refusal(
                HTTPStatus.UNAUTHORIZED,
                "there is no session: open the address that seglog console printed last; it opens the console once",
            )
        if changes and not is_program and origin is None:
            return Refusal(HTTPStatus.FORBIDDEN, "a change needs an Origin header of the console's own page")
        return None

    def _is_ours(self, origin: str) -> bool:
        scheme, _, host = origin.partition("://")
        return scheme == "http" and host in self._hosts


def _same(given: str, known: str) -> bool:
    return hmac.compare_digest(given.encode(), known.encode())


def _cookies(headers: Mapping[str, str]) -> dict[str, str]:
    """
    >>> _cookies({"cookie": "a=1; b=2"})
    {'a': '1', 'b': '2'}
    """
    pairs = (one.strip().partition("=") for one in headers.get("cookie", "").split(";"))
    return {name: value for name, _, value in pairs}
