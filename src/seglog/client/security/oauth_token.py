"""The token of OAUTHBEARER: from a token endpoint (RFC 6749 section 4.4, KIP-768), from a file, or as given.

An endpoint is asked as Kafka's ``ClientCredentialsJwtRetriever`` asks it. Its token is kept for this process until 80%
of its lifetime have passed, as Kafka keeps it, and then until its end while the endpoint does not answer. A file and
references to secrets are read for each connection.
"""

from __future__ import annotations

import json
import re
import threading
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple
from urllib.parse import quote_plus, unquote, urlencode, urlsplit

from seglog.client.security.http_fetch import MOST_BYTES, Timeouts, fetch
from seglog.client.security.references import Secrets
from seglog.client.security.security_config import SecurityConfig, check_endpoint
from seglog.core.clock import Clock, SystemClock
from seglog.core.errors import AuthenticationFailedError, BrokerUnavailableError, InvalidConfigError

_URL: Final = "sasl.oauthbearer.token.endpoint.url"
_ID: Final = "sasl.oauthbearer.client.credentials.client.id"
_SECRET: Final = "sasl.oauthbearer.client.credentials.client.secret"
_SCOPE: Final = "sasl.oauthbearer.scope"
_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/=-]+")
"""``b64token`` of RFC 6750."""
_KEPT: Final = 0.8
"""``sasl.login.refresh.window.factor``."""
_AGAIN_SECONDS: Final = 10.0
"""How long an endpoint that does not answer is left alone while its token is valid."""
_TEMPORARY: Final = frozenset({408, 425, 429})
"""Statuses below 500 after which the endpoint may answer later."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Endpoint:
    """A token endpoint, and what it is asked."""

    url: str
    client_id: str
    client_secret: str
    scope: str | None
    encode: bool


class _Kept(NamedTuple):
    """Times of the monotonic clock."""

    token: str
    renewed_at: float
    ends_at: float


class TokenCache:
    """Tokens of endpoints, for all threads of this process."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = SystemClock() if clock is None else clock
        self._lock = threading.Lock()
        self._tokens: dict[Endpoint, _Kept] = {}

    def token(self, options: Mapping[str, str], config: SecurityConfig, secrets: Secrets) -> str:
        """``options`` are those of ``sasl.jaas.config``, resolved. Errors show neither token nor secret.

        Raises `InvalidConfigError`, `AuthenticationFailedError` if the endpoint refuses, and `BrokerUnavailableError`
        if it cannot be reached.
        """
        if "token" in options:
            return _checked(options["token"].strip(), "sasl.jaas.config: token")
        given = config.sasl_oauthbearer_token_endpoint_url
        if given is None:
            raise InvalidConfigError(f"{_URL} is missing: set it, or the option token in sasl.jaas.config")
        url = secrets.resolve(_URL, given)
        check_endpoint(url)
        parts = urlsplit(url)
        if parts.scheme == "file":
            path = unquote(parts.path)
            return _checked(secrets.read_text(_URL, path).strip(), path)
        endpoint = Endpoint(
            url=url,
            client_id=_credential(
                _ID, config.sasl_oauthbearer_client_credentials_client_id, "clientId", options, secrets
            ),
            client_secret=_credential(
                _SECRET, config.sasl_oauthbearer_client_credentials_client_secret, "clientSecret", options, secrets
            ),
            scope=_given(_SCOPE, config.sasl_oauthbearer_scope, "scope", options, secrets),
            encode=config.sasl_oauthbearer_header_urlencode,
        )
        kept = self._tokens.get(endpoint)
        is_valid = kept is not None and self._clock.monotonic() < kept.ends_at
        # One thread asks. Others get its answer, or go on with the token that is still valid.
        if not self._lock.acquire(blocking=not is_valid):
            assert kept is not None
            return kept.token
        try:
            return self._token(endpoint, config, tls_of(options), secrets)
        finally:
            self._lock.release()

    def _token(self, endpoint: Endpoint, config: SecurityConfig, tls: SecurityConfig, secrets: Secrets) -> str:
        kept = self._tokens.get(endpoint)
        now = self._clock.monotonic()
        if kept is not None and now < kept.renewed_at:
            return kept.token
        others = {one: it for one, it in self._tokens.items() if it.ends_at > now}
        try:
            token, lifetime = _ask(endpoint, config, tls, secrets)
        except BrokerUnavailableError:
            now = self._clock.monotonic()
            if kept is None or now >= kept.ends_at:
                raise
            self._tokens = {**others, endpoint: kept._replace(renewed_at=min(kept.ends_at, now + _AGAIN_SECONDS))}
            return kept.token
        self._tokens = {**others, endpoint: _Kept(token, now + lifetime * _KEPT, now + lifetime)}
        return token


TOKENS: Final = TokenCache()


def _given(name: str, value: str | None, option: str, options: Mapping[str, str], secrets: Secrets) -> str | None:
    """KIP-1139's name comes first, then the option of the login module."""
    return options.get(option) if value is None else secrets.resolve(name, value)


def _credential(name: str, value: str | None, option: str, options: Mapping[str, str], secrets: Secrets) -> str:
    found = _given(name, value, option, options, secrets)
    if not found:
        raise InvalidConfigError(f"{name} is missing: set it, or {option} in sasl.jaas.config")
    return found


def tls_of(options: Mapping[str, str]) -> SecurityConfig:
    """The login module's own ``ssl.*`` options are for the endpoint (``JaasOptionsUtils.java``)."""
    values: dict[str, Any] = {name.replace(".", "_"): text for name, text in options.items() if name.startswith("ssl.")}
    return SecurityConfig(security_protocol="SSL", **values)


def _ask(endpoint: Endpoint, config: SecurityConfig, tls: SecurityConfig, secrets: Secrets) -> tuple[str, float]:
    """A new token and its lifetime in seconds, 0 if the endpoint does not tell it."""
    what = f"token endpoint {endpoint.url}"
    form = {"grant_type": "client_credentials"}
    if endpoint.scope:
        form["scope"] = endpoint.scope
    pair = [quote_plus(one) if endpoint.encode else one for one in (endpoint.client_id, endpoint.client_secret)]
    headers = {
        "Accept": "application/json",
        "Authorization": f"Basic {b64encode(':'.join(pair).encode()).decode()}",
        "Content-Type": "application/x-www-form-urlencoded",
        "Cache-Control": "no-cache",
    }
    timeouts = Timeouts(
        config.sasl_login_connect_timeout_ms / 1000 or None, config.sasl_login_read_timeout_ms / 1000 or None
    )
    response = fetch(what, endpoint.url, tls, secrets, timeouts, form=urlencode(form), headers=headers)
    body = response.body
    if response.status not in (200, 201):
        is_temporary = response.status >= 500 or response.status in _TEMPORARY
        raised = BrokerUnavailableError if is_temporary else AuthenticationFailedError
        raise raised(f"{what}: HTTP {response.status} {response.reason}{_error_of(body)}")
    answer = _json(body)
    token = answer.get("access_token")
    if not isinstance(token, str):
        raise AuthenticationFailedError(f"{what}: its answer has no access_token")
    lifetime = answer.get("expires_in")
    is_known = isinstance(lifetime, int | float) and not isinstance(lifetime, bool) and lifetime > 0
    return _checked(token, what), float(lifetime) if is_known and lifetime is not None else 0.0


def _json(body: bytes) -> Mapping[str, Any]:
    try:
        found = json.loads(body) if len(body) <= MOST_BYTES else None
    except (ValueError, RecursionError):
        found = None
    return found if isinstance(found, dict) else {}


def _error_of(body: bytes) -> str:
    """The error fields that RFC 6749, section 5.2, defines."""
    answer = _json(body)
    said = [str(answer[name])[:200] for name in ("error", "error_description") if answer.get(name)]
    return f": {': '.join(said)}" if said else ""


def _checked(token: str, where: str) -> str:
    if not _TOKEN.fullmatch(token):
        raise InvalidConfigError(f"{where} is not a token: it is empty or has characters that no token has")
    return token
