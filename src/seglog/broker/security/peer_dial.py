"""Connections to other brokers over a listener with TLS or SASL."""

from __future__ import annotations

import asyncio
import logging
import ssl
from random import Random
from typing import Final

from seglog.broker.security.listener_keys import ListenerKeys
from seglog.broker.security.scram import SCRAM_DIGESTS
from seglog.broker.security.server_tls import RenewedContext, client_context
from seglog.client.security.sasl import Mechanism, authentication, plain
from seglog.client.security.scram import new_nonce, scram
from seglog.core.broker_config import OAUTHBEARER, BrokerConfig
from seglog.core.errors import InvalidConfigError, SeglogError
from seglog.net.listener import HANDSHAKE_SECONDS
from seglog.net.peer_connection import PeerConnection
from seglog.protocol.apis import APIS
from seglog.protocol.messages import read_answer, write_request

_log: Final = logging.getLogger("seglog.security")
_TIMEOUT_SECONDS: Final = 30.0
_RENEWED: Final = (0.85, 0.95)
"""The part of a session after which it is renewed, as by Kafka's clients."""


class PeerDial:
    """`seglog.core.ground.Dial` for `PeerConnection`. A session that ends is renewed before, between two requests
    (KIP-368)."""

    def __init__(self, config: BrokerConfig, rng: Random) -> None:
        """`InvalidConfigError` if the configuration of the inter-broker listener is not valid."""
        keys = ListenerKeys(config, config.inter_broker_listener)
        self._keys = keys
        self._rng = rng
        self._tls = RenewedContext(keys, client_context) if keys.uses_tls else None
        self._name = config.sasl_mechanism_inter_broker_protocol.upper() if keys.uses_sasl else ""
        self.renewals = 0
        """Sessions that were renewed."""
        self._under_way: set[asyncio.Task[None]] = set()
        if keys.uses_sasl:
            self._mechanism()

    async def __call__(self, protocol: asyncio.BaseProtocol, host: str, port: int) -> None:
        loop = asyncio.get_running_loop()
        if self._tls is None:
            await loop.create_connection(lambda: protocol, host, port)
        else:
            try:
                await loop.create_connection(
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
            await self._authenticate(protocol)

    async def _authenticate(self, link: PeerConnection) -> None:
        steps = authentication(link.peer, self._name, self._mechanism)
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
            asyncio.get_running_loop().call_later(lifetime * self._rng.uniform(*_RENEWED), self._renew, link)

    def _renew(self, link: PeerConnection) -> None:
        if not link.is_closed:
            task = asyncio.get_running_loop().create_task(self._authenticate_again(link))
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)

    async def _authenticate_again(self, link: PeerConnection) -> None:
        link.hold()
        try:
            await self._authenticate(link)
        except (SeglogError, OSError) as error:
            _log.warning("A session with %s cannot be renewed: %s", link.peer, error)
            link.close()
        else:
            self.renewals += 1
            link.release()

    def _mechanism(self) -> Mechanism:
        """`InvalidConfigError` if there is none, or no user for it."""
        name, keys = self._name, self._keys
        if name not in keys.mechanisms:
            raise InvalidConfigError(
                f"sasl.mechanism.inter.broker.protocol={name} is not allowed: the listener {keys.listener} has "
                f"{', '.join(keys.mechanisms)}"
            )
        if name == OAUTHBEARER:
            raise InvalidConfigError(
                "sasl.mechanism.inter.broker.protocol=OAUTHBEARER is not allowed: brokers authenticate to each other "
                "by PLAIN or SCRAM, which may be mechanisms of a listener of their own"
            )
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
