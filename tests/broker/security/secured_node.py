"""A broker with a listener for each way to secure one, as `tests.kafka.secure_node` has them."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from seglog.protocol.apis import ApiKey
from tests.broker.broker_thread import RunningNode, Wire
from tests.kit.certificates import Authority, Identity

USER: Final = "alice"
PASSWORD: Final = "alice-secret"
MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
LISTENERS: Final[Mapping[str, str]] = {
    "PLAINTEXT": "PLAINTEXT",
    "TLS": "SSL",
    "MTLS": "SSL",
    "SASL": "SASL_PLAINTEXT",
    "SASL_TLS": "SASL_SSL",
    "SHORT": "SASL_PLAINTEXT",
}
"""SHORT has sessions of `SESSION_MS`."""
SESSION_MS: Final = 3_600_000
_MODULE: Final = "org.apache.kafka.common.security.plain.PlainLoginModule"
PLAIN_USERS: Final = f'{_MODULE} required user_{USER}="{PASSWORD}";'


def settings_of(authority: Authority, broker: Identity) -> dict[str, str]:
    found = {
        "listeners": ",".join(f"{name}://127.0.0.1:0" for name in LISTENERS),
        "listener.security.protocol.map": ",".join(f"{name}:{protocol}" for name, protocol in LISTENERS.items()),
        "ssl.keystore.location": str(broker.store),
        "ssl.truststore.location": str(authority.certificate),
        "listener.name.mtls.ssl.client.auth": "required",
        "listener.name.mtls.ssl.principal.mapping.rules": "RULE:^CN=(.*?)$/$1/U,DEFAULT",
        "sasl.enabled.mechanisms": ",".join(MECHANISMS),
        "listener.name.short.connections.max.reauth.ms": str(SESSION_MS),
        "connection.failed.authentication.delay.ms": "1",
    }
    for name, protocol in LISTENERS.items():
        if protocol.startswith("SASL"):
            found[f"listener.name.{name.lower()}.plain.sasl.jaas.config"] = PLAIN_USERS
    return found


class SecuredNode(RunningNode):
    """``authority`` signs its certificate, which is for ``127.0.0.1``, and those of clients. `USER` has all
    mechanisms."""

    def __init__(self, path: Path, settings: Mapping[str, str] | None = None) -> None:
        self.authority = Authority(path / "authority")
        self.broker = self.authority.issue("broker", "IP:127.0.0.1")
        super().__init__(path / "log", {**settings_of(self.authority, self.broker), **(settings or {})})

    def start(self) -> None:
        super().start()
        with Wire(self.at("PLAINTEXT")) as wire:
            alter_password(wire, USER, PASSWORD)

    def at(self, listener: str) -> str:
        """`host:port` of a listener."""
        return next(address.host_port for address in self.node.addresses if address.name == listener)

    def client_context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.authority.certificate))


def alter_password(wire: Wire, user: str, password: str) -> None:
    """By both mechanisms of SCRAM."""
    from hashlib import pbkdf2_hmac

    upsertions = [
        {
            "name": user,
            "mechanism": number,
            "iterations": 4096,
            "salt": b"salt",
            "salted_password": pbkdf2_hmac(digest, password.encode(), b"salt", 4096),
        }
        for number, digest in ((1, "sha256"), (2, "sha512"))
    ]
    answer = wire.ask(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, deletions=[], upsertions=upsertions)
    assert [(one.user, one.error_code) for one in answer.results] == [(user, 0)]


class TlsWire(Wire):
    """A `Wire` over TLS."""

    def __init__(self, bootstrap: str, context: ssl.SSLContext, *, timeout: float = 30) -> None:
        super().__init__(bootstrap, timeout=timeout)
        plain: socket.socket = self._socket
        self._socket = context.wrap_socket(plain, server_hostname="127.0.0.1")


def log_in(wire: Wire, user: str = USER, password: str = PASSWORD) -> None:
    """By PLAIN."""
    assert wire.ask(ApiKey.SASL_HANDSHAKE, mechanism="PLAIN").error_code == 0
    answer = wire.ask(ApiKey.SASL_AUTHENTICATE, auth_bytes=f"\0{user}\0{password}".encode())
    assert answer.error_code == 0, answer
