"""Connections to other brokers over a listener with TLS or SASL."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Mapping
from random import Random
from typing import Final
from urllib.parse import urlsplit

from seglog.broker.security.listener_keys import ListenerKeys
from seglog.broker.security.scram import SCRAM_DIGESTS
from seglog.broker.security.server_tls import RenewedContext, client_context
from seglog.client.security.oauth_token import TOKENS, TokenCache
from seglog.client.security.references import Secrets
from seglog.client.security.sasl import Mechanism, authentication, extensions_of, oauth_bearer, plain
from seglog.client.security.scram import new_nonce, scram
from seglog.client.security.security_config import SecurityConfig
from seglog.core.broker_config import OAUTHBEARER, BrokerConfig
from seglog.core.errors import InvalidConfigError, SeglogError
from seglog.core.ground import THREADS, Dial, Workers, connect
from seglog.net.listener import HANDSHAKE_SECONDS
from seglog.net.peer_connection import PeerConnection
from seglog.protocol.apis import APIS
from seglog.protocol.messages import read_answer, write_request

_log: Final = logging.getLogger("seglog.security")
_TIMEOUT_SECONDS: Final = 30.0
_PREFIX: Final = "sasl.oauthbearer"
_AGAIN_SECONDS: Final = 1.0
"""Between two attempts to get a token for a session that has not ended."""
_RENEWED: Final = (0.85, 0.95)
"""The part of a session after which it is renewed, as by Kafka's clients."""


class PeerDial:
    """`seglog.core.ground.Dial` for `PeerConnection`. A session that ends is renewed before, between two requests
    (KIP-368)."""

    def __init__(
        self,
        config: BrokerConfig,
        rng: Random,
        workers: Workers = THREADS,
        tokens: TokenCache = TOKENS,
        *,
        dial: Dial = connect,
    ) -> None:
        """``dial`` connects without TLS. `InvalidConfigError` if the configuration of the inter-broker listener is not
        valid."""
        keys = ListenerKeys(config, config.inter_broker_listener)
        self._keys = keys
        self._rng = rng
        self._tls = RenewedContext(keys, client_context) if keys.uses_tls else None
        self._name = config.sasl_mechanism_inter_broker_protocol.upper() if keys.uses_sasl else ""
        self.renewals = 0
        """Sessions that were renewed."""
        self._under_way: set[asyncio.Task[None]] = set()
        if self._name and self._name not in keys.mechanisms:
            raise InvalidConfigError(
                f"sasl.mechanism.inter.broker.protocol={self._name} is not allowed: the listener {keys.listener} has "
                f"{', '.join(keys.mechanisms)}"
            )
        self._is_insecure = config.seglog_insecure_listeners
        self._workers = workers
        self._tokens = tokens
        self._dial = dial
        if self._name == OAUTHBEARER:
            self._token_client()
        elif self._name:
            self._login()

    async def __call__(self, protocol: asyncio.BaseProtocol, host: str, port: int) -> None:
        if self._tls is None:
            await self._dial(protocol, host, port)
        else:
            try:
                await asyncio.get_running_loop().create_connection(
                    lambda: protocol,
                    host,
                    port,
                    ssl=self._tls.context(),
                    ssl_handshake_timeout=HANDSHAKE_SECONDS,
                    ssl_shutdown_timeout=HANDSHAKE_SECONDS,
                )
            except ssl.SSLError as error:
                raise ConnectionError(f"{host}:{port}: TLS: {error.reason or error}") from error
        if self._name:
            assert isinstance(protocol, PeerConnection)
            await self._authenticate(protocol, await self._mechanism())

    async def _mechanism(self) -> Mechanism:
        return oauth_bearer(*await self._workers.run(self._new_token)) if self._name == OAUTHBEARER else self._login()

    async def _authenticate(self, link: PeerConnection, mechanism: Mechanism) -> None:
        steps = authentication(link.peer, self._name, lambda: mechanism)
        key, contents = next(steps)
        while True:
            version = APIS[key].high
            body = write_request(key, version, contents)
            answer = await link.send(key, version, body, timeout=_TIMEOUT_SECONDS, overtakes=True)
            try:
                key, contents = steps.send(read_answer(key, version, answer))
            except StopIteration as end:
                lifetime: float | None = end.value
                break
        if lifetime is not None:
            self._renew_in(lifetime * self._rng.uniform(*_RENEWED), link)

    def _renew_in(self, seconds: float, link: PeerConnection) -> None:
        asyncio.get_running_loop().call_later(seconds, self._renew, link)

    def _renew(self, link: PeerConnection) -> None:
        if not link.is_closed:
            task = asyncio.get_running_loop().create_task(self._authenticate_again(link))
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)

    async def _authenticate_again(self, link: PeerConnection) -> None:
        try:
            mechanism = await self._mechanism()
        except (SeglogError, OSError) as error:  # the session lasts until its end, which the other broker knows
            _log.warning("A session with %s cannot be renewed yet: %s", link.peer, error)
            self._renew_in(_AGAIN_SECONDS, link)
            return
        link.hold()
        try:
            await self._authenticate(link, mechanism)
        except (SeglogError, OSError) as error:
            _log.warning("A session with %s cannot be renewed: %s", link.peer, error)
            link.close()
        else:
            self.renewals += 1
            link.release()

    def _new_token(self) -> tuple[str, Mapping[str, str]]:
        """A token, and the extensions of SASL. It may block, so it runs off the event loop."""
        options, client = self._token_client()
        return self._tokens.token(options, client, Secrets()), extensions_of(options)

    def _token_client(self) -> tuple[Mapping[str, str], SecurityConfig]:
        """The options of the login module, and how to ask for a token. `InvalidConfigError` if none can come from
        there; the endpoint may be away."""
        keys = self._keys

        def name_of(name: str) -> str:
            return keys.mechanism_name(OAUTHBEARER, f"{_PREFIX}.{name}")

        def text(name: str) -> str | None:
            return keys.mechanism_text(OAUTHBEARER, f"{_PREFIX}.{name}").strip() or None

        jaas = keys.jaas(OAUTHBEARER)
        options = {} if jaas is None else jaas.options
        url = text("token.endpoint.url")
        client_id, secret = (text(f"client.credentials.client.{name}") for name in ("id", "secret"))
        if url is None and "token" not in options:
            raise InvalidConfigError(
                f"sasl.mechanism.inter.broker.protocol=OAUTHBEARER needs {name_of('token.endpoint.url')}, from which "
                "this broker gets its token"
            )
        scheme = urlsplit(url or "").scheme  # in small letters
        if scheme == "http" and not self._is_insecure:
            raise InvalidConfigError(
                f"{name_of('token.endpoint.url')}={url!r} is not allowed: the secret of this broker would be sent in "
                "the clear; use https, or allow it: --insecure, or seglog.insecure.listeners=true"
            )
        for name, value, option in (("id", client_id, "clientId"), ("secret", secret, "clientSecret")):
            if scheme in ("http", "https") and not value and not options.get(option):
                raise InvalidConfigError(
                    f"{name_of('token.endpoint.url')} needs {name_of(f'client.credentials.client.{name}')}"
                )
        client = SecurityConfig(
            security_protocol=keys.protocol,
            sasl_mechanism=OAUTHBEARER,
            sasl_oauthbearer_token_endpoint_url=url,
            sasl_oauthbearer_client_credentials_client_id=client_id,
            sasl_oauthbearer_client_credentials_client_secret=secret,
            sasl_oauthbearer_scope=text("scope"),
        )
        return options, client

    def _login(self) -> Mechanism:
        """Raises `InvalidConfigError` if no user is configured."""
        name, keys = self._name, self._keys
        jaas = keys.jaas(name)
        options = {} if jaas is None else jaas.options
        user, password = options.get("username", ""), options.get("password", "")
        if not user or not password:
            raise InvalidConfigError(
                f"listener.name.{keys.listener.lower()}.{name.lower()}.sasl.jaas.config has no username and password, "
                "by which brokers authenticate to each other"
            )
        if name in SCRAM_DIGESTS:
            return scram(SCRAM_DIGESTS[name], user, password, new_nonce())
        return plain(user, password)
