"""A Kafka 4.4.0 with ``StandardAuthorizer``: clients of the listener SASL log in by PLAIN, those of PLAINTEXT may do
everything."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from seglog.core.broker_config import STANDARD_AUTHORIZER
from tests.kafka.node import KafkaNode
from tests.kit.ports import free_port

__all__ = ["AclKafkaNode", "acl_settings", "password_of"]

_MODULE: Final = "org.apache.kafka.common.security.plain.PlainLoginModule"


def password_of(user: str) -> str:
    return f"{user}-secret"


def acl_settings(users: Iterable[str]) -> dict[str, str]:
    """The settings of security that Kafka and seglog share, but for the listeners."""
    accepted = " ".join(f'user_{user}="{password_of(user)}"' for user in users)
    return {
        "authorizer.class.name": STANDARD_AUTHORIZER,
        "super.users": "User:ANONYMOUS",
        "listener.name.sasl.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl.plain.sasl.jaas.config": f"{_MODULE} required {accepted};",
    }


class AclKafkaNode(KafkaNode):
    """``secured`` is `host:port` of the listener SASL."""

    def __init__(self, data_dir: Path, users: Iterable[str]) -> None:
        self.secured = f"127.0.0.1:{free_port()}"
        super().__init__(data_dir, acl_settings(users))

    def settings(self) -> dict[str, str]:
        settings = super().settings()
        own = f",SASL://{self.secured}"
        protocols = settings["listener.security.protocol.map"] + ",SASL:SASL_PLAINTEXT"
        return {
            **settings,
            "listeners": settings["listeners"] + own,
            "advertised.listeners": settings["advertised.listeners"] + own,
            "listener.security.protocol.map": protocols,
            "auto.create.topics.enable": "true",
        }
