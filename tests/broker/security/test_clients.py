"""Stock clients on each kind of listener, with the right credentials and with wrong ones."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from typing import Any, Final

import pytest

from seglog.client.client_config import ClientConfig
from seglog.client.cluster_connections import ClusterConnections
from seglog.core.errors import AuthenticationFailedError, RequestFailedError
from tests.broker.python_clients import (
    AdminClient,
    ClosedTlsSocket,
    aiokafka_admin,
    aiokafka_errors,
    confluent_kafka,
    kafka,
)
from tests.broker.security.secured_node import LISTENERS, MECHANISMS, PASSWORD, USER, SecuredNode
from tests.kit.certificates import Identity

_SECURITY: Final = "org.apache.kafka.common.security"
WAYS: Final = [
    ("TLS", ""),
    ("MTLS", ""),
    *((listener, mechanism) for listener in ("SASL", "SASL_TLS") for mechanism in MECHANISMS),
]


class Login:
    """What a client needs for a listener; a wrong one has another password, or no certificate."""

    def __init__(self, node: SecuredNode, listener: str, mechanism: str, *, right: bool, identity: Identity) -> None:
        self.node = node
        self.at = node.at(listener)
        self.protocol = LISTENERS[listener]
        self.mechanism = mechanism
        self.password = PASSWORD if right else "wrong"
        self.identity = identity if listener == "MTLS" and right else None
        self.trusts = right or listener != "TLS"

    @property
    def context(self) -> ssl.SSLContext | None:
        if not self.protocol.endswith("SSL"):
            return None
        context = self.node.client_context() if self.trusts else ssl.create_default_context()
        context.sslsocket_class = ClosedTlsSocket
        if self.identity is not None:
            context.load_cert_chain(self.identity.chain, self.identity.key)
        return context


@pytest.fixture(scope="module")
def identity(secured: SecuredNode) -> Identity:
    return secured.authority.issue("client")


Client = Callable[[Login], list[str]]
"""Returns the names of all topics, or raises."""


def librdkafka(login: Login) -> list[str]:
    config = {"bootstrap.servers": login.at, "security.protocol": login.protocol, "log_level": 0}
    if login.protocol.endswith("SSL") and login.trusts:
        config["ssl.ca.location"] = str(login.node.authority.certificate)
    if login.identity is not None:
        config |= {
            "ssl.certificate.location": str(login.identity.chain),
            "ssl.key.location": str(login.identity.key),
        }
    if login.mechanism:
        config |= {"sasl.mechanism": login.mechanism, "sasl.username": USER, "sasl.password": login.password}
    right = login.password == PASSWORD
    return list(AdminClient(config).list_topics(timeout=30 if right else 2).topics)


def aiokafka(login: Login) -> list[str]:
    async def run() -> list[str]:
        admin = aiokafka_admin.AIOKafkaAdminClient(
            bootstrap_servers=login.at,
            security_protocol=login.protocol,
            ssl_context=login.context,
            request_timeout_ms=30_000,
            **_sasl(login),
        )
        try:
            await admin.start()
            topics: list[str] = await admin.list_topics()
            return topics
        finally:
            with suppress(Exception):
                await admin.close()

    return asyncio.run(run())


def kafka_python(login: Login) -> list[str]:
    right = login.password == PASSWORD
    with closing(
        kafka.KafkaConsumer(
            bootstrap_servers=login.at,
            security_protocol=login.protocol,
            ssl_context=login.context,
            bootstrap_timeout_ms=30_000 if right else 2000,
            **_sasl(login),
        )
    ) as consumer:
        return list(consumer.topics())


def _sasl(login: Login) -> Mapping[str, Any]:
    if not login.mechanism:
        return {}
    return {
        "sasl_mechanism": login.mechanism,
        "sasl_plain_username": USER,
        "sasl_plain_password": login.password,
    }


def ours(login: Login) -> list[str]:
    options = {"security.protocol": login.protocol}
    if login.protocol.endswith("SSL") and login.trusts:
        options["ssl.truststore.location"] = str(login.node.authority.certificate)
    if login.identity is not None:
        options["ssl.keystore.location"] = str(login.identity.store)
    if login.mechanism:
        module = "plain.PlainLoginModule" if login.mechanism == "PLAIN" else "scram.ScramLoginModule"
        options["sasl.mechanism"] = login.mechanism
        options["sasl.jaas.config"] = f'{_SECURITY}.{module} required username="{USER}" password="{login.password}";'
    config = ClientConfig.from_mapping({"bootstrap.servers": login.at, **options}, use="read")
    with ClusterConnections(config) as cluster:
        return list(cluster.metadata().topics)


REFUSALS: Final[dict[Client, type[Exception]]] = {
    librdkafka: confluent_kafka.KafkaException,
    aiokafka: aiokafka_errors.KafkaError,
    kafka_python: kafka.errors.KafkaError,
    ours: RequestFailedError,
}
CLIENTS: Final = list(REFUSALS)


@pytest.mark.parametrize(("listener", "mechanism"), WAYS)
@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.__name__)
def test_the_right_credentials_let_a_client_in(
    secured: SecuredNode, identity: Identity, client: Client, listener: str, mechanism: str
) -> None:
    assert "t" in client(Login(secured, listener, mechanism, right=True, identity=identity))


@pytest.mark.parametrize(("listener", "mechanism"), [*WAYS[:4], WAYS[-1]])
@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.__name__)
def test_wrong_ones_do_not(
    secured: SecuredNode, identity: Identity, client: Client, listener: str, mechanism: str
) -> None:
    login = Login(secured, listener, mechanism, right=False, identity=identity)
    with pytest.raises(REFUSALS[client]) as refused:
        client(login)
    if client is ours and mechanism:
        assert isinstance(refused.value, AuthenticationFailedError)
    assert "wrong" not in str(refused.value)
