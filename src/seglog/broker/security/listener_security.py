"""The security of one listener, from its configuration: TLS, SASL, and the principals of its clients."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol

from seglog.broker.security.certificate_names import subject
from seglog.broker.security.listener_keys import ListenerKeys
from seglog.broker.security.plain import PlainUsers, plain_server
from seglog.broker.security.principal_mapping import MappingRule, mapped, parse_rules
from seglog.broker.security.sasl_session import SaslSession, SaslSettings
from seglog.broker.security.scram import SCRAM_DIGESTS, Invented, ScramCredential, TokenCredential, scram_server
from seglog.broker.security.server_tls import RenewedContext, client_auth, server_context
from seglog.broker.security.verification import Exchange, Mechanism
from seglog.core.broker_config import OAUTHBEARER, BrokerConfig
from seglog.core.clock import Clock
from seglog.core.errors import InvalidConfigError, InvalidRequestError
from seglog.core.ground import Workers
from seglog.net.connection import ClientConnection
from seglog.net.refusals import Refusals

if TYPE_CHECKING:
    from seglog.broker.security.oauth_bearer import TokenCheck
    from seglog.broker.security.token_keys import TokenKeys

__all__ = ["Credentials", "SecuredListener", "secured_listeners"]


class Credentials(Protocol):
    """Of users with SCRAM: `seglog.broker.security.users.UserCredentials`."""

    def find(self, mechanism: str, user: str, /) -> ScramCredential | None: ...

    def find_token(self, mechanism: str, token_id: str, /) -> TokenCredential | None: ...

    def invented(self) -> Invented: ...


class _Parts(NamedTuple):
    """``names_clients``: their certificates name their principals, by ``rules``. ``tokens``: keys of access tokens."""

    keys: ListenerKeys
    tls: RenewedContext | None
    names_clients: bool
    rules: Sequence[MappingRule]
    sasl: SaslSettings | None
    tokens: TokenKeys | None


class SecuredListener:
    """`seglog.net.listener.ListenerSecurity` of a listener whose protocol is not PLAINTEXT."""

    def __init__(
        self,
        config: BrokerConfig,
        listener: str,
        users: Credentials,
        refusals: Refusals,
        now: Callable[[], float],
        clock: Clock,
        workers: Workers,
    ) -> None:
        """`InvalidConfigError` if the configuration is not valid, or a file of it cannot be used. ``now`` is the time
        of the event loop."""
        self._listener = listener
        self._users = users
        self._refusals = refusals
        self._now = now
        self._clock = clock
        self._workers = workers
        self._parts = self._made(config)

    def check(self, config: BrokerConfig) -> None:
        """`InvalidConfigError` if `use` would raise it."""
        self._made(config)

    def use(self, config: BrokerConfig) -> None:
        """Secure the next connections by another configuration."""
        if config.listener_keys.get(self._listener, {}) != self._parts.keys.own:
            self._parts = self._made(config)

    def _made(self, config: BrokerConfig) -> _Parts:
        keys = ListenerKeys(config, self._listener)
        tls = RenewedContext(keys, server_context) if keys.uses_tls else None
        name = "ssl.principal.mapping.rules"
        try:
            rules = parse_rules(keys.text(name))
        except ValueError as error:
            raise InvalidConfigError(f"{keys.name(name)}={keys.text(name)!r} is not allowed: {error}") from None
        sasl = tokens = None
        if keys.uses_sasl:
            mechanisms = {one: self._mechanism(keys, one) for one in keys.mechanisms if one != OAUTHBEARER}
            if OAUTHBEARER in keys.mechanisms:
                check = self._token_check(keys, config)
                mechanisms[OAUTHBEARER], tokens = check.server, check.keys
            sasl = SaslSettings(
                mechanisms,
                {one: keys.reauthentication_ms(one) for one in mechanisms},
                config.connection_failed_authentication_delay_ms / 1000,
                keys.number("sasl.server.max.receive.size"),
                self._now,
                self._clock.now_ms,
                self._refused,
            )
        return _Parts(keys, tls, keys.uses_tls and client_auth(keys) != "none", rules, sasl, tokens)

    @property
    def uses_tls(self) -> bool:
        return self._parts.tls is not None

    async def prepare(self) -> None:
        """Fetch the keys of access tokens before a client needs them."""
        if self._parts.tokens is not None:
            await self._parts.tokens.renew()

    def context(self) -> ssl.SSLContext:
        tls = self._parts.tls
        assert tls is not None
        return tls.context()

    def begin(self, connection: ClientConnection, transport: asyncio.Transport, /) -> None:
        if self._parts.sasl is not None:
            SaslSession(connection, connection.handler, self._parts.sasl)
        elif self._parts.names_clients:
            certificate = transport.get_extra_info("ssl_object").getpeercert(binary_form=True)
            if certificate is not None:
                connection.identify(f"User:{self._name_in(certificate)}")

    def _name_in(self, certificate: bytes) -> str:
        try:
            name = subject(certificate)
        except ValueError as error:
            raise InvalidRequestError(f"the subject of its certificate cannot be read: {error}") from None
        found = mapped(self._parts.rules, name)
        if found is None:
            raise InvalidRequestError(f"no rule of ssl.principal.mapping.rules matches the name {name}")
        return found

    def _refused(self, connection: ClientConnection, why: str, client_id: str) -> None:
        self._refusals.log(connection.peer, connection.listener, why, client_id=client_id)

    def _token_check(self, keys: ListenerKeys, config: BrokerConfig) -> TokenCheck:
        from seglog.broker.security.oauth_bearer import token_check

        insecure = config.seglog_insecure_listeners
        return token_check(keys, self._workers, self._now, self._clock.now_ms, is_insecure=insecure)

    def _mechanism(self, keys: ListenerKeys, name: str) -> Mechanism:
        if name in SCRAM_DIGESTS:
            return partial(_scram, name, self._users)
        jaas = keys.jaas(name)
        if jaas is None:
            raise InvalidConfigError(
                f"listener {keys.listener}: PLAIN has no users: set listener.name.{keys.listener.lower()}."
                "plain.sasl.jaas.config to org.apache.kafka.common.security.plain.PlainLoginModule required "
                'user_<name>="<password>";'
            )
        return partial(plain_server, PlainUsers(jaas))


def _scram(mechanism: str, users: Credentials) -> Exchange:
    digest = SCRAM_DIGESTS[mechanism]
    return scram_server(
        digest,
        lambda user: users.find(mechanism, user),
        lambda user: users.invented().credential(digest, user),
        find_token=lambda token_id: users.find_token(mechanism, token_id),
    )


def secured_listeners(
    config: BrokerConfig,
    users: Credentials,
    refusals: Refusals,
    now: Callable[[], float],
    clock: Clock,
    workers: Workers,
) -> Mapping[str, SecuredListener]:
    """By name, without those of PLAINTEXT. `InvalidConfigError`."""
    return {
        address.name: SecuredListener(config, address.name, users, refusals, now, clock, workers)
        for address in config.broker_listeners
        if config.protocol(address.name) != "PLAINTEXT"
    }
