"""Three brokers that reach each other over TLS and SASL only."""

from __future__ import annotations

import json
import ssl
from base64 import b64decode
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pytest

from seglog.core.errors import InvalidConfigError
from tests.broker.broker_thread import RunningNode
from tests.broker.python_clients import AdminClient, NewTopic, Producer
from tests.broker.security.secured_node import PASSWORD, USER
from tests.client.security.token_endpoint import TokenEndpoint
from tests.kit.certificates import Authority
from tests.kit.token_issuer import AUDIENCE, ISSUER, TokenIssuer
from tests.kit.waiting import wait_until

_MODULE: Final = "org.apache.kafka.common.security.plain.PlainLoginModule"
_SCRAM: Final = "org.apache.kafka.common.security.scram.ScramLoginModule"
_USERS: Final = f'username="broker" password="broker-secret" user_broker="broker-secret" user_{USER}="{PASSWORD}";'


def settings_of(path: Path, node: int, authority: Authority) -> dict[str, str]:
    store = authority.issue(f"broker-{node}", "IP:127.0.0.1").store
    return {
        "listeners": "BROKERS://127.0.0.1:0,CLIENTS://127.0.0.1:0",
        "listener.security.protocol.map": "BROKERS:SASL_SSL,CLIENTS:SASL_SSL",
        "inter.broker.listener.name": "BROKERS",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.brokers.plain.sasl.jaas.config": f"{_MODULE} required {_USERS}",
        "listener.name.brokers.connections.max.reauth.ms": "1500",
        "listener.name.brokers.ssl.client.auth": "required",
        "listener.name.clients.plain.sasl.jaas.config": f"{_MODULE} required {_USERS}",
        "ssl.keystore.location": str(store),
        "ssl.truststore.location": str(authority.certificate),
        "cluster.store": f"sqlite:{path / 'store'}",
        "node.id": str(node),
        "default.replication.factor": "3",
        "min.insync.replicas": "2",
        "replica.lag.time.max.ms": "3000",
        "transaction.state.log.num.partitions": "1",
    }


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[list[RunningNode]]:
    authority = Authority(tmp_path / "authority")
    with ExitStack() as stack:
        yield [
            stack.enter_context(RunningNode(tmp_path / str(node), settings_of(tmp_path, node, authority)))
            for node in (1, 2, 3)
        ]


def client_of(nodes: list[RunningNode], tmp_path: Path) -> dict[str, str]:
    wait_until(lambda: all(len(one.node.view.brokers) == len(nodes) for one in nodes), "brokers that know each other")
    at = next(address.host_port for address in nodes[0].node.addresses if address.name == "CLIENTS")
    return {
        "bootstrap.servers": at,
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(tmp_path / "authority" / "ca.pem"),
        "sasl.mechanism": "PLAIN",
        "sasl.username": USER,
        "sasl.password": PASSWORD,
    }


def test_brokers_replicate_and_write_markers_over_sessions_that_end(nodes: list[RunningNode], tmp_path: Path) -> None:
    config = client_of(nodes, tmp_path)
    admin = AdminClient(config)
    admin.create_topics([NewTopic("t", 3, 3)])["t"].result(60)
    wait_until(lambda: all(len(node.node.topics.by_name) >= 1 for node in nodes), "the topic on all brokers")
    producer = Producer({**config, "transactional.id": "x", "acks": "all"})
    producer.init_transactions(60)
    errors: list[Any] = []

    def write() -> None:
        producer.begin_transaction()
        for partition in range(3):
            producer.produce("t", b"tea", partition=partition, on_delivery=lambda error, _: errors.append(error))
        producer.commit_transaction(60)

    write()
    renewed = [_renewals(node) for node in nodes]

    def all_renewed() -> bool:
        write()
        return all(_renewals(node) >= before + 2 for node, before in zip(nodes, renewed, strict=True))

    wait_until(all_renewed, "sessions between brokers to be renewed")
    assert set(errors) == {None}
    wait_until(
        lambda: all(
            len(found.state.isr_nodes) == 3 for node in nodes for found in list(node.node.view.partitions.values())
        ),
        "all replicas to be in sync",
    )
    # One whose session has just ended may be logging in.
    wait_until(
        lambda: {one.principal for node in nodes for one in node.connections("BROKERS")} == {"User:broker"},
        "brokers that are logged in",
    )


class _FreshTokens(TokenEndpoint):
    """Tokens of some seconds, which name the client by its id."""

    SECONDS: Final = 4

    def __init__(self, issuer: TokenIssuer, tls: ssl.SSLContext) -> None:
        self._issuer = issuer
        super().__init__(None, tls=tls)

    @property
    def answer(self) -> Any:
        token = self._issuer.token("brokers", lifetime=self.SECONDS)
        return {"access_token": token, "expires_in": self.SECONDS}

    @answer.setter
    def answer(self, _: Any) -> None:
        """The last one is never repeated."""


def oauth_settings(path: Path, url: str) -> dict[str, str]:
    module = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
    prefix = "listener.name.brokers.oauthbearer"
    return {
        "sasl.mechanism.inter.broker.protocol": "OAUTHBEARER",
        "listener.name.brokers.sasl.enabled.mechanisms": "OAUTHBEARER",
        "listener.name.brokers.connections.max.reauth.ms": "0",
        f"{prefix}.sasl.login.callback.handler.class": (
            "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"
        ),
        f"{prefix}.sasl.jaas.config": f'{module} required ssl.truststore.location="{path / "authority" / "ca.pem"}";',
        f"{prefix}.sasl.oauthbearer.token.endpoint.url": url,
        "sasl.oauthbearer.client.credentials.client.id": "brokers",
        "sasl.oauthbearer.client.credentials.client.secret": "client-secret",
        "sasl.oauthbearer.scope": "kafka",
        "sasl.oauthbearer.jwks.endpoint.url": (path / "keys.json").as_uri(),
        "sasl.oauthbearer.expected.audience": AUDIENCE,
        "sasl.oauthbearer.expected.issuer": ISSUER,
    }


def test_brokers_replicate_by_access_tokens_that_expire(tmp_path: Path) -> None:
    """Each gets its token by its credentials, and the next one before that has expired."""
    issuer, authority = TokenIssuer(), Authority(tmp_path / "authority")
    (tmp_path / "keys.json").write_text(json.dumps(issuer.jwks()))
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(authority.issue("endpoint", "IP:127.0.0.1").store)
    with _FreshTokens(issuer, tls) as endpoint, ExitStack() as stack:
        changes = oauth_settings(tmp_path, endpoint.url)
        nodes = [
            stack.enter_context(
                RunningNode(tmp_path / str(node), {**settings_of(tmp_path, node, authority), **changes})
            )
            for node in (1, 2, 3)
        ]
        config = client_of(nodes, tmp_path)
        admin = AdminClient(config)
        admin.create_topics([NewTopic("t", 3, 3)])["t"].result(60)
        producer = Producer({**config, "acks": "all"})
        errors: list[Any] = []

        def all_renewed() -> bool:
            for partition in range(3):
                producer.produce("t", b"tea", partition=partition, on_delivery=lambda error, _: errors.append(error))
            producer.flush(60)
            return all(_renewals(node) >= 2 for node in nodes)

        wait_until(all_renewed, "sessions between brokers to be renewed")
        assert set(errors) == {None}
        wait_until(
            lambda: {one.principal for node in nodes for one in node.connections("BROKERS")} == {"User:brokers"},
            "brokers that are logged in",
        )
        assert {one.form for one in endpoint.asked} == {"grant_type=client_credentials&scope=kafka"}
        credentials = {b64decode(one.authorization.removeprefix("Basic ")) for one in endpoint.asked}
        assert credentials == {b"brokers:client-secret"}


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (
            {"listener.name.brokers.oauthbearer.sasl.oauthbearer.token.endpoint.url": ""},
            "OAUTHBEARER needs .*token.end",
        ),
        (
            {"listener.name.brokers.oauthbearer.sasl.oauthbearer.token.endpoint.url": "HTTP://idp/token"},
            "secret of this broker would be sent in the clear",
        ),
        ({"listener.name.brokers.oauthbearer.sasl.oauthbearer.token.endpoint.url": "ldap://idp"}, "https://HOST"),
        ({"sasl.oauthbearer.client.credentials.client.id": ""}, "needs sasl.oauthbearer.client.credentials.client.id"),
        ({"sasl.oauthbearer.client.credentials.client.secret": ""}, r"needs .*\.client\.secret"),
        (
            {"listener.name.brokers.oauthbearer.sasl.login.callback.handler.class": "com.example.Tokens"},
            "login.callback.handler.class='com.example.Tokens' is not allowed",
        ),
    ],
)
def test_a_broker_without_a_source_of_tokens_does_not_start(
    tmp_path: Path, change: Mapping[str, str], complaint: str
) -> None:
    (tmp_path / "keys.json").write_text(json.dumps(TokenIssuer().jwks()))
    settings = settings_of(tmp_path, 1, Authority(tmp_path / "authority")) | oauth_settings(tmp_path, "https://idp/t")
    with pytest.raises(InvalidConfigError, match=complaint) as refused:
        RunningNode(tmp_path / "1", {**settings, **change}).start()
    assert "client-secret" not in str(refused.value)


def _renewals(node: RunningNode) -> int:
    dial: Any = node.node._ground.dial
    renewals: int = dial.renewals
    return renewals


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-256"}, "the listener BROKERS has PLAIN"),
        (
            {"listener.name.brokers.plain.sasl.jaas.config": f'{_MODULE} required user_broker="x";'},
            "brokers.plain.sasl.jaas.config has no username and password",
        ),
        (
            {"listener.name.brokers.plain.sasl.jaas.config": f'{_SCRAM} required username="a" password="b-secret";'},
            "but PLAIN needs",
        ),
        ({"listener.name.brokers.ssl.endpoint.identification.algorithm": "ldap"}, "https or nothing"),
    ],
)
def test_a_broker_that_could_not_reach_others_does_not_start(
    tmp_path: Path, change: Mapping[str, str], complaint: str
) -> None:
    settings = settings_of(tmp_path, 1, Authority(tmp_path / "authority"))
    with pytest.raises(InvalidConfigError, match=complaint) as refused:
        RunningNode(tmp_path / "1", {**settings, **change}).start()
    assert "secret" not in str(refused.value)


def test_a_broker_with_another_password_gets_no_records(tmp_path: Path) -> None:
    """It registers by the store, but replicates nothing."""
    authority = Authority(tmp_path / "authority")
    with ExitStack() as stack:
        nodes = [
            stack.enter_context(RunningNode(tmp_path / str(node), settings_of(tmp_path, node, authority)))
            for node in (1, 2)
        ]
        wrong = settings_of(tmp_path, 3, authority)
        name = "listener.name.brokers.plain.sasl.jaas.config"
        wrong[name] = wrong[name].replace('password="broker-secret"', 'password="wrong"')
        nodes.append(stack.enter_context(RunningNode(tmp_path / "3", wrong)))
        config = client_of(nodes, tmp_path)
        admin = AdminClient(config)
        admin.create_topics([NewTopic("t", 1, replica_assignment=[[1, 2, 3]])])["t"].result(60)
        producer = Producer({**config, "acks": "all"})
        errors: list[Any] = []

        def is_out_of_sync() -> bool:
            producer.produce("t", b"tea", on_delivery=lambda error, _: errors.append(error))
            producer.flush(30)
            (found,) = nodes[0].node.view.partitions.values()
            return 3 not in found.state.isr_nodes

        wait_until(is_out_of_sync, "the third broker to leave the ISR")
