"""What a test needs to connect to a secured `Broker`: certificates, users, and the properties of clients."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Callable, Mapping
from typing import Final, Literal

from seglog.broker.security.demo_authority import DemoAuthority, DemoCertificate
from seglog.testing.injected_fault import BrokerError

SecurityProtocol = Literal["SSL", "SASL_PLAINTEXT", "SASL_SSL"]
Style = Literal["librdkafka", "java"]
PROTOCOLS: Final = ("SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
USERS: Final[Mapping[str, str]] = {"admin": "admin-secret", "alice": "alice-secret", "bob": "bob-secret"}
_HOSTS: Final = ("127.0.0.1", "localhost", "::1")
_MODULES: Final = "org.apache.kafka.common.security"


class BrokerSecurity:
    """``ca`` is the path of a certificate that clients trust, ``users`` has passwords by name. `certificate`,
    `expired_certificate` and `foreign_certificate` are for clients. The files are gone when the object is."""

    def __init__(self, protocol: SecurityProtocol, users: Mapping[str, str] = USERS) -> None:
        """`MissingExtraError` without `cryptography`."""
        if protocol not in PROTOCOLS:
            raise BrokerError(f"security={protocol!r} is none of {', '.join(PROTOCOLS)}")
        for user, password in users.items():
            if not user or not password or any(mark in user + password for mark in '"\\\0,='):
                raise BrokerError(f"user {user!r}: names and passwords have no quotes, backslashes, commas or =")
        self.protocol = protocol
        self.users = dict(users)
        self._directory = tempfile.mkdtemp(prefix="seglog-security-")
        weakref.finalize(self, shutil.rmtree, self._directory, ignore_errors=True)
        self._authority = DemoAuthority(self._directory)
        self._broker = self._authority.issue("broker", _HOSTS)
        self._others: dict[str, DemoCertificate] = {}
        self.ca = self._authority.certificate

    @property
    def uses_tls(self) -> bool:
        return self.protocol.endswith("SSL")

    @property
    def uses_sasl(self) -> bool:
        return self.protocol.startswith("SASL")

    def certificate(self, name: str) -> DemoCertificate:
        """Of the client ``name``; with SSL, its principal is ``User:CN=<name>``."""
        return self._made(f"client-{name}", lambda: self._authority.issue(name))

    @property
    def expired_certificate(self) -> DemoCertificate:
        return self._made("expired", lambda: self._authority.issue("expired", is_expired=True))

    @property
    def foreign_certificate(self) -> DemoCertificate:
        """Signed by an authority that the broker does not know."""
        return self._made("foreign", lambda: DemoAuthority(self._directory, "foreign-ca").issue("foreign"))

    def _made(self, key: str, make: Callable[[], DemoCertificate]) -> DemoCertificate:
        if key not in self._others:
            self._others[key] = make()
        return self._others[key]

    def settings(self) -> dict[str, str]:
        """Keys of the broker, whose listener is named as the protocol."""
        keys = {"seglog.scram.users": ",".join(f"{user}={password}" for user, password in self.users.items())}
        if self.uses_tls:
            keys["ssl.keystore.location"] = self._broker.store
            keys["ssl.truststore.location"] = self.ca
        if not self.uses_sasl:
            return {**keys, "ssl.client.auth": "required"}
        users = " ".join(f'user_{user}="{password}"' for user, password in self.users.items())
        name = f"listener.name.{self.protocol.lower()}"
        keys[f"{name}.sasl.enabled.mechanisms"] = ",".join(MECHANISMS)
        keys[f"{name}.plain.sasl.jaas.config"] = f"{_MODULES}.plain.PlainLoginModule required {users};"
        return keys

    def properties(
        self,
        bootstrap: str,
        user: str = "alice",
        *,
        password: str | None = None,
        mechanism: str = "SCRAM-SHA-256",
        certificate: DemoCertificate | None = None,
        style: Style = "librdkafka",
    ) -> dict[str, str]:
        """A client's properties: of librdkafka, so of confluent-kafka, or of Kafka's ``java`` clients, and of seglog.
        With SSL, ``user`` is the name in its certificate."""
        found = {"bootstrap.servers": bootstrap, "security.protocol": self.protocol}
        if self.uses_tls:
            trust = "ssl.ca.location" if style == "librdkafka" else "ssl.truststore.location"
            found[trust] = self.ca
            if style == "java":
                found["ssl.truststore.type"] = "PEM"
        if not self.uses_sasl:
            own = certificate or self.certificate(user)
            if style == "librdkafka":
                return {**found, "ssl.certificate.location": own.certificate, "ssl.key.location": own.key}
            return {**found, "ssl.keystore.type": "PEM", "ssl.keystore.location": own.store}
        if mechanism not in MECHANISMS:
            raise BrokerError(f"mechanism={mechanism!r} is none of {', '.join(MECHANISMS)}")
        if password is None and user not in self.users:
            raise BrokerError(f"there is no user {user!r}: there are {', '.join(self.users)}")
        secret = self.users[user] if password is None else password
        found["sasl.mechanism"] = mechanism
        if style == "librdkafka":
            return {**found, "sasl.username": user, "sasl.password": secret}
        module = "plain.PlainLoginModule" if mechanism == "PLAIN" else "scram.ScramLoginModule"
        return {**found, "sasl.jaas.config": f'{_MODULES}.{module} required username="{user}" password="{secret}";'}
