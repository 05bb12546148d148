"""TLS to ZooKeeper, and the login there, from Kafka's ``zookeeper.*`` keys and ``cluster.store.jaas.config``."""

from __future__ import annotations

import ssl
from typing import Final

from seglog.broker.security.listener_keys import TlsKeys
from seglog.broker.security.server_tls import client_context
from seglog.client.security import pem
from seglog.client.security.jaas import parse_jaas
from seglog.client.security.references import Secrets
from seglog.client.security.security_config import TLS_1_2, TLS_1_3
from seglog.client.security.tls import TlsFault, fault_of
from seglog.cluster.zookeeper_security import PLAIN, Login, ZooKeeperSecurity
from seglog.core.broker_config import BROKER_KEYS, CNXN_NETTY, CNXN_NIO, BrokerConfig
from seglog.core.errors import InvalidConfigError
from seglog.core.settings import HIDDEN

_JAAS: Final = "cluster.store.jaas.config"
_MODULE: Final = "org.apache.zookeeper.server.auth.DigestLoginModule"
_STORE: Final = "ssl.keystore.location"
_PASSWORD: Final = "ssl.keystore.password"
_KEY_PASSWORD: Final = "ssl.key.password"


class ZooKeeperKeys(TlsKeys):
    """The keys ``ssl.*`` of a listener, as ``zookeeper.ssl.*``."""

    def __init__(self, config: BrokerConfig, secrets: Secrets | None = None) -> None:
        super().__init__(secrets)
        self._config = config

    def name(self, key: str) -> str:
        return f"zookeeper.{_PASSWORD if key == _KEY_PASSWORD else key}"

    def text(self, key: str) -> str:
        if key in (_PASSWORD, _KEY_PASSWORD):  # one key for both: PEM encrypts the private key alone
            is_pem = pem.store_type(self.read(_STORE, self.text(_STORE))) is None
            return self.value(f"zookeeper.{_PASSWORD}") if is_pem == (key == _KEY_PASSWORD) else ""
        if key == "ssl.enabled.protocols":
            newest = self.value("zookeeper.ssl.protocol")
            return self.value(f"zookeeper.{key}") or (
                newest if newest in (TLS_1_2, TLS_1_3) else f"{TLS_1_2},{TLS_1_3}"
            )
        return self.value(f"zookeeper.{key}")

    def value(self, name: str) -> str:
        """The value of a broker's key; "" if brokers have no such key."""
        row = BROKER_KEYS.get(name)
        if row is None:
            return ""
        return self._secrets.resolve(name, row.rule.format(getattr(self._config, row.attribute)))

    def login(self) -> Login:
        """`InvalidConfigError` shows no value of it."""
        try:
            found = parse_jaas(self.value(_JAAS))
        except ValueError as error:
            raise InvalidConfigError(f"{_JAAS}={HIDDEN} is not valid: {error}") from None
        if found.module != _MODULE:
            raise InvalidConfigError(f"{_JAAS} names the login module {found.module}, but seglog has only {_MODULE}")
        user, password = found.options.get("username", ""), found.options.get("password", "")
        if not user or not password:
            raise InvalidConfigError(f"{_JAAS} has no username and password, by which brokers log in at ZooKeeper")
        return Login(user, password, _JAAS)

    def explain(self, error: BaseException) -> tuple[str, bool]:
        """As `ZooKeeperSecurity.explain` has it."""
        if not isinstance(error, OSError):
            return str(error), False
        fault, words = fault_of(error)
        store, trust = self.text(_STORE), self.text("ssl.truststore.location")
        match fault:
            case TlsFault.UNTRUSTED | TlsFault.MISNAMED | TlsFault.EXPIRED:
                hint = {
                    TlsFault.UNTRUSTED: "its CA must be in zookeeper.ssl.truststore.location"
                    + (f": {trust}" if trust else ""),
                    TlsFault.MISNAMED: "zookeeper.ssl.endpoint.identification.algorithm requires the host name in it",
                    TlsFault.EXPIRED: "it, or the certificate of its CA, must be renewed",
                }[fault]
                return f"TLS: the certificate of this server of ZooKeeper is refused: {words}; {hint}", True
            case TlsFault.NO_TLS:
                return "this port does not speak TLS: zookeeper.ssl.client.enable=true needs a secureClientPort", True
            case TlsFault.CLIENT if store:
                return f"TLS: ZooKeeper refuses the certificate in zookeeper.{_STORE}: {store} ({words})", True
            case TlsFault.CLIENT:
                return f"TLS: ZooKeeper asks for a certificate: set zookeeper.{_STORE} ({words})", True
            case TlsFault.PARAMETERS:
                hint = "" if store else f", or ZooKeeper asks for a certificate: set zookeeper.{_STORE}"
                return (
                    f"TLS: no common version or cipher suite ({words}): check zookeeper.ssl.protocol, "
                    f"zookeeper.ssl.enabled.protocols and zookeeper.ssl.cipher.suites{hint}"
                ), True
        if isinstance(error, ssl.SSLEOFError | ConnectionResetError):
            words += (
                "; if this port is not for TLS, zookeeper.ssl.client.enable=true needs ZooKeeper's secureClientPort"
            )
        return f"TLS: {words}" if isinstance(error, ssl.SSLError) else words, False


def zookeeper_security(config: BrokerConfig, secrets: Secrets | None = None) -> ZooKeeperSecurity:
    """`InvalidConfigError` if the keys cannot be used."""
    keys = ZooKeeperKeys(config, secrets)
    uses_tls, has_login = config.zookeeper_ssl_client_enable, bool(config.cluster_store_jaas_config)
    if uses_tls and config.zookeeper_clientCnxnSocket == CNXN_NIO:
        raise InvalidConfigError(
            f"zookeeper.clientCnxnSocket={CNXN_NIO} excludes zookeeper.ssl.client.enable=true: TLS needs {CNXN_NETTY}"
        )
    has_certificate = uses_tls and bool(config.zookeeper_ssl_keystore_location)
    if config.zookeeper_set_acl and not has_login and not has_certificate:
        raise InvalidConfigError(
            "zookeeper.set.acl=true needs a user of ZooKeeper: set cluster.store.jaas.config, or "
            "zookeeper.ssl.client.enable=true and zookeeper.ssl.keystore.location"
        )
    if not uses_tls and not has_login:
        return PLAIN
    if uses_tls:
        client_context(keys)
    if has_login:
        keys.login()
    return ZooKeeperSecurity(
        context=(lambda: client_context(keys)) if uses_tls else None,
        login=keys.login if has_login else None,
        explain=keys.explain if uses_tls else None,
        sets_acls=config.zookeeper_set_acl,
    )
