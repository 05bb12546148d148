"""The broker's side of OAUTHBEARER (RFC 7628, ``OAuthBearerSaslServer.java``): the client's only message has its token.

::

    n,,^Aauth=Bearer <token>^Atraceparent=…^A^A

A client whose token is refused gets ``{"status":"invalid_token"}``, answers with ``^A``, and then fails. Extensions
(KIP-342) must be well-formed; as in Kafka, they change nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from seglog.broker.security.access_tokens import (
    TokenRefusedError,
    TokenRules,
    access_token,
    signed_claims,
    token_header,
    unsecured_claims,
)
from seglog.broker.security.listener_keys import ListenerKeys
from seglog.broker.security.token_keys import Refresh, TokenKeys, token_keys
from seglog.broker.security.verification import Exchange, Verified
from seglog.client.security.oauth_token import tls_of
from seglog.core.broker_config import HANDLER_CLASS, OAUTHBEARER, UNSECURED_HANDLER
from seglog.core.errors import AuthenticationFailedError, InvalidConfigError
from seglog.core.extras import require
from seglog.core.ground import Workers

_FIRST: Final = re.compile(
    r"n,(?:a=(?P<name>(?:[^\x00=,]|=2C|=3D)+))?,\x01(?P<pairs>(?:[A-Za-z]+=[\x21-\x7e \t\r\n]+\x01)*)\x01"
)
"""``OAuthBearerClientInitialResponse.java``."""
_AUTH: Final = re.compile(r"(?i:bearer) +(?P<token>[-_~+/.A-Za-z0-9]+=*)")
_PREFIX: Final = "sasl.oauthbearer"
_URL: Final = f"{_PREFIX}.jwks.endpoint.url"
_DEFAULT_SCOPE: Final = "scope"


class FirstMessage(NamedTuple):
    authorization: str
    token: str
    extensions: Mapping[str, str]

    @classmethod
    def parse(cls, message: bytes) -> FirstMessage:
        """ValueError if it is none.

        >>> FirstMessage.parse(b"n,a=ann,\\x01auth=Bearer a.b.c\\x01x=1\\x01\\x01")
        FirstMessage(authorization='ann', token='a.b.c', extensions={'x': '1'})
        """
        found = _FIRST.fullmatch(message.decode())
        if found is None:
            raise ValueError("the client's message cannot be read")
        pairs = dict(pair.split("=", 1) for pair in found["pairs"].split("\x01") if pair)
        auth = _AUTH.fullmatch(pairs.pop("auth", ""))
        if auth is None:
            raise ValueError("the client's message has no bearer token")
        return cls(found["name"] or "", auth["token"], pairs)


class TokenCheck:
    """Verifies tokens by the rules and keys of a listener. Without ``keys``, tokens have no signature."""

    def __init__(self, rules: TokenRules, keys: TokenKeys | None, now_ms: Callable[[], int], scope: str = "") -> None:
        self.keys = keys
        self._rules = rules
        self._now_ms = now_ms
        self._required_scope = frozenset(scope.split())

    def server(self) -> Exchange:
        """One exchange with a client."""
        first = FirstMessage.parse((yield b""))
        try:
            verified = yield from self._verified(first.token)
        except TokenRefusedError as error:
            said = _refusal(error)
            if (yield said.encode()) != b"\x01":
                raise ValueError("the client does not end the exchange") from None
            raise AuthenticationFailedError(said) from error
        if first.authorization not in ("", verified.user):
            raise AuthenticationFailedError(
                f"Authentication failed: Client requested an authorization id ({first.authorization}) that is "
                f"different from the token's principal name ({verified.user})"
            )
        return verified

    def _verified(self, token: str) -> Exchange:
        """Waits for keys if there are none that fit."""
        if self.keys is None:
            claims = unsecured_claims(token)
            missing = self._required_scope - _scopes(claims.get(self._rules.scope_claim))
            if missing:
                raise TokenRefusedError("its scope is not sufficient", scope=" ".join(sorted(self._required_scope)))
            claims = {"iat": 0, **claims}
        else:
            header = token_header(token)
            if self.keys.is_due:
                yield self.keys.renew()
            fitting = self.keys.current.fitting(header)
            if not fitting and self.keys.may_have_others:
                yield self.keys.renew()
                fitting = self.keys.current.fitting(header)
            if not fitting:
                raise TokenRefusedError(f"no key of the identity provider fits it (kid {header.get('kid')!r:.80})")
            claims = signed_claims(token, fitting)
        user, expires_ms = access_token(claims, self._rules, self._now_ms() / 1000)
        return Verified(user, b"", expires_ms)


def _refusal(error: TokenRefusedError) -> str:
    """In Kafka's spelling."""
    if not error.scope:
        return '{"status":"invalid_token"}'
    return f'{{"status":"insufficient_scope", "scope":{json.dumps(error.scope)}}}'


def _scopes(value: object) -> set[str]:
    if isinstance(value, str):
        return set(value.split())
    return {str(one) for one in value} if isinstance(value, list) else set()


def token_check(
    keys: ListenerKeys, workers: Workers, now: Callable[[], float], now_ms: Callable[[], int], *, is_insecure: bool
) -> TokenCheck:
    """`InvalidConfigError` if the keys of the configuration are not valid, or leave tokens unverified without saying
    so."""
    jaas = keys.jaas(OAUTHBEARER)
    options = {} if jaas is None else dict(jaas.options)
    if keys.own.get(f"{OAUTHBEARER.lower()}.{HANDLER_CLASS}") == UNSECURED_HANDLER:
        if not is_insecure:
            raise InvalidConfigError(
                f"listener.name.{keys.listener.lower()}.{OAUTHBEARER.lower()}.{HANDLER_CLASS}={UNSECURED_HANDLER} is "
                "not allowed: every client could make its own token. Allow it for tests: --insecure, or "
                "seglog.insecure.listeners=true"
            )
        return _unsecured(options, now_ms)
    require("joserfc", "oauth", purpose="verifying the tokens of OAUTHBEARER")

    def text(name: str) -> str:
        return keys.mechanism_text(OAUTHBEARER, f"{_PREFIX}.{name}").strip()

    def seconds(name: str) -> float:
        return int(text(f"jwks.endpoint.{name}")) / 1000

    url = text("jwks.endpoint.url")
    if not url:
        raise InvalidConfigError(f"listener {keys.listener}: OAUTHBEARER needs {_URL}: the keys that sign tokens")
    audiences = frozenset(item for part in text("expected.audience").split(",") if (item := part.strip()))
    issuer = text("expected.issuer")
    for name, expected in (("audience", audiences), ("issuer", issuer)):
        if not expected and text(f"allow.unverified.{name}") != "true":
            raise InvalidConfigError(
                f"listener {keys.listener}: OAUTHBEARER needs {_PREFIX}.expected.{name}, or "
                f"{_PREFIX}.allow.unverified.{name}=true"
            )
    rules = TokenRules(
        audiences,
        issuer,
        text("sub.claim.name"),
        text("scope.claim.name"),
        int(text("clock.skew.seconds")),
    )
    refresh = Refresh(seconds("refresh.ms"), seconds("retry.backoff.ms"), seconds("retry.backoff.max.ms"))
    name = keys.mechanism_name(OAUTHBEARER, _URL)
    source = token_keys(name, url, tls_of(options), refresh, workers, now, allows_http=is_insecure)
    return TokenCheck(rules, source, now_ms)


def _unsecured(options: Mapping[str, str], now_ms: Callable[[], int]) -> TokenCheck:
    """``OAuthBearerUnsecuredValidatorCallbackHandler.java``."""

    def option(name: str, default: str = "") -> str:
        return options.get(f"unsecuredValidator{name}", default).strip() or default

    skew = option("AllowableClockSkewMs", "0")
    if not skew.isdecimal():
        raise InvalidConfigError("sasl.jaas.config: unsecuredValidatorAllowableClockSkewMs is not a number of ms")
    rules = TokenRules(
        frozenset(),
        "",
        option("PrincipalClaimName", "sub"),
        option("ScopeClaimName", _DEFAULT_SCOPE),
        int(skew) // 1000,
    )
    return TokenCheck(rules, None, now_ms, option("RequiredScope"))
