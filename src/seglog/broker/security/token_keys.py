"""The keys of an identity provider, which ``sasl.oauthbearer.jwks.endpoint.url`` names: fetched when a token needs
them, and kept.

They are fetched again after ``sasl.oauthbearer.jwks.endpoint.refresh.ms``, and when a token names a key that is not
among them, but then at most every `UNKNOWN_SECONDS`. Connections that need them wait for one fetch. If it fails, the
old keys stay, and the next try comes after a pause, which doubles from one failure to the next.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple
from urllib.parse import unquote, urlsplit

from seglog.broker.security.access_tokens import KeySet
from seglog.client.security.http_fetch import MOST_BYTES, Timeouts, fetch
from seglog.client.security.references import Secrets
from seglog.client.security.security_config import SecurityConfig
from seglog.core.errors import BrokerUnavailableError, InvalidConfigError, SeglogError
from seglog.core.ground import Workers

_log: Final = logging.getLogger("seglog.security")
UNKNOWN_SECONDS: Final = 10.0
"""A client may name keys that do not exist: so often a fetch is worth it."""
_TIMEOUTS: Final = Timeouts(connect=5.0, read=5.0, whole=15.0)
"""Together less than a client has to authenticate."""
_OK: Final = 200


class Refresh(NamedTuple):
    """In seconds."""

    after: float
    pause: float
    longest_pause: float


class TokenKeys:
    """``load`` returns the key set as JSON, in a worker's thread. ``stamp`` changes when there are certainly others."""

    def __init__(
        self,
        where: str,
        load: Callable[[], bytes],
        refresh: Refresh,
        workers: Workers,
        now: Callable[[], float],
        stamp: Callable[[], object] = lambda: None,
    ) -> None:
        self.current = KeySet([])
        self.fetches = 0
        self._where = where
        self._load = load
        self._refresh = refresh
        self._workers = workers
        self._now = now
        self._stamp = stamp
        self._seen: object = None
        self._loaded_at: float | None = None
        self._tried_at = -math.inf
        self._failures = 0
        self._flight: asyncio.Task[None] | None = None

    @property
    def is_due(self) -> bool:
        """Whether `renew` is to be awaited before the next token is verified."""
        if self._failures and self._now() < self._tried_at + self._pause:
            return False
        if self._failures or self._loaded_at is None:
            return True
        return self._now() >= self._loaded_at + self._refresh.after or self._stamp() != self._seen

    @property
    def may_have_others(self) -> bool:
        """Whether `renew` is worth it for a token that no key fits."""
        pause = self._pause if self._failures else UNKNOWN_SECONDS
        return self._now() >= self._tried_at + pause

    @property
    def _pause(self) -> float:
        return min(self._refresh.pause * 2.0 ** min(self._failures - 1, 30), self._refresh.longest_pause)

    async def renew(self) -> None:
        """Fetch the keys, or wait for the fetch that is under way. A failure is logged."""
        if self._flight is None:
            self._flight = asyncio.get_running_loop().create_task(self._fetch())
        await asyncio.shield(self._flight)  # a client that goes away leaves it to the others

    async def _fetch(self) -> None:
        self.fetches += 1
        seen = self._stamp()
        try:
            found = KeySet.parse(await self._workers.run(self._load))
            if not len(found):
                raise ValueError("it has no key that can verify tokens")
        except (SeglogError, OSError, ValueError) as error:
            self._failures += 1
            _log.error("%s: the keys of access tokens cannot be fetched: %s", self._where, error)
        else:
            self._failures = 0
            self.current, self._seen = found, seen
            self._loaded_at = self._now()
        finally:
            self._tried_at = self._now()
            self._flight = None


def token_keys(
    key: str,
    url: str,
    tls: SecurityConfig,
    refresh: Refresh,
    workers: Workers,
    now: Callable[[], float],
    *,
    allows_http: bool,
) -> TokenKeys:
    """Of the URL that the configuration ``key`` has. `InvalidConfigError` if nothing can come from it."""
    try:
        parts = urlsplit(url)
        is_file = parts.scheme == "file" and parts.path.startswith("/") and not parts.hostname
        is_http = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        is_file = is_http = False
    if not is_file and not is_http:
        raise InvalidConfigError(f"{key}={url!r} is not allowed: https://HOST[:PORT]/PATH or file:///PATH")
    if parts.scheme == "http" and not allows_http:
        raise InvalidConfigError(
            f"{key}={url!r} is not allowed: whoever can change the answer could sign tokens; use https, or allow it: "
            "--insecure, or seglog.insecure.listeners=true"
        )
    secrets = Secrets()
    if is_file:
        path = unquote(parts.path)
        load = partial(secrets.read, key, path)
        try:
            KeySet.parse(load())
        except ValueError as error:
            raise InvalidConfigError(f"{key}: {path}: {error}") from None
        return TokenKeys(url, load, refresh, workers, now, partial(_state, secrets, path))
    return TokenKeys(url, partial(_get, url, tls, secrets), refresh, workers, now)


def _get(url: str, tls: SecurityConfig, secrets: Secrets) -> bytes:
    found = fetch(url, url, tls, secrets, _TIMEOUTS, headers={"Accept": "application/json"})
    if found.status != _OK:
        raise BrokerUnavailableError(f"HTTP {found.status} {found.reason}")
    if len(found.body) > MOST_BYTES:
        raise BrokerUnavailableError(f"its answer has more than {MOST_BYTES} bytes")
    return found.body


def _state(secrets: Secrets, path: str) -> tuple[int, int] | None:
    try:
        found = secrets.stat(path)
    except OSError:
        return None
    return found.mtime_ms, found.size
