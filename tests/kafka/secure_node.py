"""A Kafka 4.4.0 with a listener for each way to secure one, and a Kafka 2.8.2 with SASL PLAIN."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from tests.kafka.node import JVM_OPTIONS, KafkaNode
from tests.kafka.zk_node import ZkKafkaNode
from tests.kit.certificates import Authority
from tests.kit.ports import free_port

__all__ = ["LISTENERS", "MECHANISMS", "PASSWORD", "SESSION_MS", "USER", "OldSecureKafkaNode", "SecureKafkaNode"]

USER: Final = "alice"
PASSWORD: Final = "alice-secret"
MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
SESSION_MS: Final = 6000
LISTENERS: Final[Mapping[str, str]] = {
    "TLS": "SSL",
    "MTLS": "SSL",
    "EXPIRED": "SSL",
    "SASL": "SASL_PLAINTEXT",
    "SASL_TLS": "SASL_SSL",
    "ONLY_PLAIN": "SASL_PLAINTEXT",
    "SHORT": "SASL_PLAINTEXT",
}
"""The listeners besides PLAINTEXT, with their protocols. MTLS asks for a certificate; EXPIRED has an old one; sessions
of SHORT last for `SESSION_MS`."""

_SECURITY: Final = "org.apache.kafka.common.security"
_LOGIN_MODULES: Final = {
    "PLAIN": f'{_SECURITY}.plain.PlainLoginModule required user_{USER}="{PASSWORD}";',
    "SCRAM-SHA-256": f"{_SECURITY}.scram.ScramLoginModule required;",
    "SCRAM-SHA-512": f"{_SECURITY}.scram.ScramLoginModule required;",
    # Tokens without a signature, as the default handlers take them.
    "OAUTHBEARER": f'{_SECURITY}.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="broker";',
}


class SecureKafkaNode(KafkaNode):
    """``authority`` signs its certificates, which are for ``127.0.0.1``, and those of clients."""

    def __init__(self, data_dir: Path, authority: Authority, *, jvm: Sequence[str] = JVM_OPTIONS) -> None:
        self._ports = {name: free_port() for name in LISTENERS}
        self._authority = authority
        self._stores = {
            "broker": authority.issue("broker", "IP:127.0.0.1").store,
            "expired": authority.issue("expired", "IP:127.0.0.1", days=-1).store,
        }
        super().__init__(data_dir, jvm=jvm)

    def at(self, listener: str) -> str:
        """`host:port` of a listener."""
        return f"127.0.0.1:{self._ports[listener]}"

    def settings(self) -> dict[str, str]:
        settings = super().settings()
        own = "".join(f",{name}://{self.at(name)}" for name in LISTENERS)
        protocols = "".join(f",{name}:{protocol}" for name, protocol in LISTENERS.items())
        return {
            **settings,
            "listeners": settings["listeners"] + own,
            "advertised.listeners": settings["advertised.listeners"] + own,
            "listener.security.protocol.map": settings["listener.security.protocol.map"] + protocols,
            "ssl.keystore.type": "PEM",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self._authority.certificate),
            **dict(self._listener_settings()),
        }

    def _listener_settings(self) -> Iterator[tuple[str, str]]:
        for name, protocol in LISTENERS.items():
            prefix = f"listener.name.{name.lower()}"
            if protocol.endswith("SSL"):
                yield f"{prefix}.ssl.keystore.location", str(self._stores["expired" if name == "EXPIRED" else "broker"])
                yield f"{prefix}.ssl.client.auth", "required" if name == "MTLS" else "none"
            if protocol.startswith("SASL"):
                mechanisms = ("PLAIN",) if name == "ONLY_PLAIN" else MECHANISMS
                yield f"{prefix}.sasl.enabled.mechanisms", ",".join(mechanisms)
                for mechanism in mechanisms:
                    yield f"{prefix}.{mechanism.lower()}.sasl.jaas.config", _LOGIN_MODULES[mechanism]
            if name == "SHORT":
                yield f"{prefix}.connections.max.reauth.ms", str(SESSION_MS)

    def format_options(self) -> list[str]:
        mechanisms = (one for one in MECHANISMS if one.startswith("SCRAM"))
        return [
            word
            for mechanism in mechanisms
            for word in ("--add-scram", f"{mechanism}=[name={USER},password={PASSWORD}]")
        ]


class OldSecureKafkaNode(ZkKafkaNode):
    """``secured`` is `host:port` of a second listener."""

    def __init__(self, data_dir: Path) -> None:
        super().__init__(data_dir)
        self.secured = f"127.0.0.1:{free_port()}"

    def settings(self) -> dict[str, str]:
        settings = super().settings()
        listeners = f"{settings['listeners']},SASL_PLAINTEXT://{self.secured}"
        return {
            **settings,
            "listeners": listeners,
            "advertised.listeners": listeners,
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.sasl_plaintext.plain.sasl.jaas.config": _LOGIN_MODULES["PLAIN"],
        }
