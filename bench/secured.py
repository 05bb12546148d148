"""Both brokers side by side, with listeners for TLS and SASL, and what librdkafka needs to reach them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from bench.brokers import Seglog, Server
from bench.kafka import BROKER, QUIET
from tests.broker.broker_thread import Wire
from tests.broker.security.secured_node import LISTENERS, alter_password
from tests.broker.security.secured_node import settings_of as secured_settings
from tests.kafka.secure_node import PASSWORD, USER, SecureKafkaNode
from tests.kit.certificates import Authority

_SASL: Final = {"sasl.mechanism": "SCRAM-SHA-256", "sasl.username": USER, "sasl.password": PASSWORD}


class SecuredServer(Server, Protocol):
    """Its ``bootstrap`` is plaintext, for the one who makes the topics."""

    def at(self, listener: str) -> str:
        """``host:port`` of PLAINTEXT, TLS, SASL or SASL_TLS."""


class SecuredSeglog(Seglog):
    def __init__(self, data_dir: Path, authority: Authority) -> None:
        settings = secured_settings(authority, authority.issue("seglog", "IP:127.0.0.1"))
        del settings["listeners"]
        settings |= {
            "connection.failed.authentication.delay.ms": "100",
            "max.connection.creation.rate": "100000",
        }  # Kafka's
        listen = [word for name in LISTENERS if name != "PLAINTEXT" for word in ("--listen", f"{name}://127.0.0.1:0")]
        super().__init__(data_dir, settings, options=listen)

    def start(self) -> None:
        super().start()
        with Wire(self.bootstrap) as wire:
            alter_password(wire, USER, PASSWORD)

    def at(self, listener: str) -> str:
        texts: list[str] = self.ready_line["listeners"]
        return next(rest for name, _, rest in (text.partition("://") for text in texts) if name == listener)


class SecuredKafka(SecureKafkaNode):
    def at(self, listener: str) -> str:
        return self.bootstrap if listener == "PLAINTEXT" else super().at(listener)


class Secured(NamedTuple):
    """``settings`` are librdkafka's, by listener."""

    servers: Mapping[str, SecuredServer]
    settings: Mapping[str, Mapping[str, str]]


@contextmanager
def both_secured() -> Iterator[Secured]:
    """Both brokers, running; their data are gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="seglog-bench-") as name, ExitStack() as stack:
        root = Path(name)
        authority = Authority(root / "authority")
        tls = {"ssl.ca.location": str(authority.certificate)}
        yield Secured(
            {
                "seglog": stack.enter_context(SecuredSeglog(root / "seglog", authority)),
                "Kafka": stack.enter_context(SecuredKafka(root / "kafka", authority, jvm=(*BROKER, QUIET))),
            },
            {
                "PLAINTEXT": {},
                "TLS": {"security.protocol": "SSL", **tls},
                "SASL": {"security.protocol": "SASL_PLAINTEXT", **_SASL},
                "SASL_TLS": {"security.protocol": "SASL_SSL", **tls, **_SASL},
            },
        )
