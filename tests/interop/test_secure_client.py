"""Our client and a Kafka with TLS and SASL: every mechanism by every protocol, and what is refused with which words."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

import pytest

from seglog.client.client_config import ClientConfig
from seglog.client.cluster_connections import ClusterConnections
from seglog.client.connection import BrokerConnection
from seglog.core.errors import (
    AuthenticationFailedError,
    BrokerUnavailableError,
    InvalidConfigError,
    RequestFailedError,
)
from seglog.core.types import TopicPartition
from seglog.protocol.apis import ApiKey
from seglog.records.batch import read_header
from tests.broker.python_clients import NewTopic
from tests.client.security.token_endpoint import TokenEndpoint
from tests.kafka.secure_node import (
    LISTENERS,
    MECHANISMS,
    PASSWORD,
    SESSION_MS,
    USER,
    OldSecureKafkaNode,
    SecureKafkaNode,
)
from tests.kit.certificates import Authority, Identity
from tests.kit.topics import create_topics, write

pytestmark = pytest.mark.xdist_group("secure-kafka")

_SECURITY: Final = "org.apache.kafka.common.security"
_TOPIC: Final = "secrets"
_Options = dict[str, str | Path]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("stranger"), "stranger")


@pytest.fixture(scope="module")
def client(authority: Authority) -> Identity:
    return authority.issue("client", password="key-secret")


@pytest.fixture(scope="module")
def node(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureKafkaNode]:
    """With a topic of one record."""
    made = SecureKafkaNode(tmp_path_factory.mktemp("secure-kafka"), authority)
    made.start()
    try:
        create_topics(made.bootstrap, NewTopic(_TOPIC, 1, 1))
        assert write(made.bootstrap, _TOPIC, "tea") is None
        yield made
    finally:
        made.kill()


def token(user: str) -> str:
    """One without a signature, as the broker's default handler takes it."""
    now = time.time()
    parts = {"alg": "none"}, {"sub": user, "iat": now - 10, "exp": now + 3600}
    return "".join(base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") + "." for part in parts)


def login(mechanism: str, password: str = PASSWORD) -> _Options:
    if mechanism == "OAUTHBEARER":
        given = token(USER) if password == PASSWORD else "wrong"
        jaas = f'{_SECURITY}.oauthbearer.OAuthBearerLoginModule required token="{given}";'
    else:
        module = "plain.PlainLoginModule" if mechanism == "PLAIN" else "scram.ScramLoginModule"
        jaas = f'{_SECURITY}.{module} required username="{USER}" password="{password}";'
    return {"sasl.mechanism": mechanism, "sasl.jaas.config": jaas}


def config(node: SecureKafkaNode, listener: str, options: _Options | None = None) -> ClientConfig:
    """``security.protocol`` is the listener's, unless it is one of the options."""
    bootstrap = node.bootstrap if listener == "PLAINTEXT" else node.at(listener)
    protocol = LISTENERS.get(listener, "PLAINTEXT")
    given = {"bootstrap.servers": bootstrap, "security.protocol": protocol, **(options or {})}
    return ClientConfig.from_mapping({name: str(value) for name, value in given.items()}, use="read")


def fetch(config: ClientConfig) -> int:
    """The number of records in the topic's first batch, by way of its leader."""
    with ClusterConnections(config) as cluster:
        metadata = cluster.metadata([_TOPIC])
        leader = metadata.leader(TopicPartition(_TOPIC, 0))
        assert leader is not None
        answer = cluster.ask_at(metadata.brokers[leader.leader], ApiKey.FETCH, fetch_request(cluster))
        return read_header(answer.responses[0].partitions[0].records).records_count


def fetch_request(cluster: ClusterConnections, offset: int = 0, *, max_wait: int = 0) -> dict[str, object]:
    """``max_wait`` milliseconds for a byte."""
    topic_id = cluster.metadata([_TOPIC]).topics[_TOPIC].topic_id
    wanted = {"partition": 0, "current_leader_epoch": -1, "fetch_offset": offset, "partition_max_bytes": 1 << 20}
    topic = {"topic": _TOPIC, "topic_id": topic_id, "partitions": [wanted]}
    return {"replica_id": -1, "max_wait": max_wait, "min_bytes": 1, "max_bytes": 1 << 20, "topics": [topic]}


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("listener", ["SASL", "SASL_TLS"])
def test_each_mechanism_by_each_protocol(
    node: SecureKafkaNode, authority: Authority, listener: str, mechanism: str
) -> None:
    trust: _Options = {"ssl.truststore.location": authority.certificate}
    assert fetch(config(node, listener, {**login(mechanism), **trust})) == 1
    with pytest.raises(AuthenticationFailedError, match=f"SASL {mechanism}: SASL_AUTHENTICATION_FAILED: ") as raised:
        fetch(config(node, listener, {**login(mechanism, "wrong"), **trust}))
    assert str(raised.value).startswith(node.at(listener))
    assert "wrong" not in str(raised.value)


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
def test_tls_and_a_broker_that_asks_for_a_certificate(
    node: SecureKafkaNode, authority: Authority, stranger: Authority, client: Identity, version: str
) -> None:
    trust: _Options = {"ssl.truststore.location": authority.certificate, "ssl.enabled.protocols": version}
    assert fetch(config(node, "TLS", trust)) == 1
    mine: _Options = {"ssl.keystore.location": client.store, "ssl.key.password": "key-secret"}
    assert fetch(config(node, "MTLS", {**trust, **mine})) == 1
    with pytest.raises(AuthenticationFailedError, match="asks for a certificate of the client"):
        fetch(config(node, "MTLS", trust))
    with pytest.raises(AuthenticationFailedError, match="refuses the client's certificate"):
        fetch(config(node, "MTLS", {**trust, "ssl.keystore.location": stranger.issue("other").store}))
    with pytest.raises(InvalidConfigError, match=r"set ssl\.key\.password"):
        fetch(config(node, "MTLS", {**trust, "ssl.keystore.location": client.store}))


def test_certificates_of_brokers_that_are_refused(
    node: SecureKafkaNode, authority: Authority, stranger: Authority
) -> None:
    trust: _Options = {"ssl.truststore.location": authority.certificate}
    with pytest.raises(AuthenticationFailedError, match=r"the CA in ssl\.truststore\.location must have signed it"):
        fetch(config(node, "TLS", {"ssl.truststore.location": stranger.certificate}))
    with pytest.raises(AuthenticationFailedError, match="certificate has expired"):
        fetch(config(node, "EXPIRED", trust))
    by_name = config(node, "TLS", {**trust, "bootstrap.servers": node.at("TLS").replace("127.0.0.1", "localhost")})
    with pytest.raises(AuthenticationFailedError, match=r"'localhost'; ssl\.endpoint\.identification\.algorithm"):
        fetch(by_name)


def test_suites_of_java_have_the_same_names_here(node: SecureKafkaNode, authority: Authority) -> None:
    suites = "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256"
    trust: _Options = {"ssl.truststore.location": authority.certificate}
    assert fetch(config(node, "TLS", {**trust, "ssl.cipher.suites": suites})) == 1
    with pytest.raises(RequestFailedError, match="no common version or cipher suite"):
        fetch(config(node, "TLS", {**trust, "ssl.cipher.suites": "TLS_DHE_RSA_WITH_AES_128_GCM_SHA256"}))


def test_a_mechanism_that_the_broker_lacks(node: SecureKafkaNode) -> None:
    with pytest.raises(AuthenticationFailedError, match=r"set sasl\.mechanism to one that it has: PLAIN$"):
        fetch(config(node, "ONLY_PLAIN", login("SCRAM-SHA-256")))


@pytest.mark.parametrize(
    ("listener", "protocol", "error", "words"),
    [
        ("PLAINTEXT", "SSL", BrokerUnavailableError, "if its listener does not speak TLS, change"),
        ("PLAINTEXT", "SASL_PLAINTEXT", AuthenticationFailedError, "the listener does not use SASL: check"),
        ("TLS", "PLAINTEXT", RequestFailedError, "the listener speaks TLS: set"),
        ("TLS", "SASL_SSL", AuthenticationFailedError, "the listener does not use SASL: check"),
        ("SASL", "PLAINTEXT", BrokerUnavailableError, "if its listener has SASL, set"),
        ("SASL_TLS", "SSL", BrokerUnavailableError, "if its listener has SASL, set"),
        ("SASL_TLS", "SASL_PLAINTEXT", RequestFailedError, "the listener speaks TLS: set"),
    ],
)
def test_a_wrong_protocol_is_named(
    node: SecureKafkaNode, authority: Authority, listener: str, protocol: str, error: type[Exception], words: str
) -> None:
    options = {"security.protocol": protocol, "ssl.truststore.location": authority.certificate, **login("PLAIN")}
    with pytest.raises(error, match=rf"{words} security\.protocol"):
        fetch(config(node, listener, options))


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_session_is_renewed_in_the_middle_of_use(node: SecureKafkaNode, mechanism: str) -> None:
    """The broker closes a connection whose session has ended. Two requests are always under way."""
    made = config(node, "SHORT", login(mechanism))
    with ClusterConnections(made) as cluster:
        request = fetch_request(cluster, 1, max_wait=100)
        with closing(BrokerConnection(made.bootstrap, made)) as connection:
            start = time.monotonic()
            connection.send(ApiKey.FETCH, request)
            answers = 0
            while time.monotonic() < start + 1.3 * SESSION_MS / 1000:
                connection.send(ApiKey.FETCH, request)
                assert connection.receive().error_code == 0
                answers += 1
            assert connection.receive().error_code == 0
    assert answers > 3


def test_secrets_are_read_for_each_connection(node: SecureKafkaNode, tmp_path: Path) -> None:
    path = tmp_path / "kafka.properties"
    made = config(node, "SASL", login("SCRAM-SHA-512", f"${{file:{path}:password}}"))
    path.write_text("password=wrong\n")
    with pytest.raises(AuthenticationFailedError):
        fetch(made)
    path.write_text(f"password={PASSWORD}\n")
    assert fetch(made) == 1


def test_tokens_of_an_endpoint_and_of_a_file(node: SecureKafkaNode, tmp_path: Path) -> None:
    url = "sasl.oauthbearer.token.endpoint.url"
    credentials: _Options = {
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.client.credentials.client.id": "me",
        "sasl.oauthbearer.client.credentials.client.secret": "geheim",
    }
    with TokenEndpoint({"access_token": token(USER), "expires_in": 3600}) as endpoint:
        assert fetch(config(node, "SASL", {**credentials, url: endpoint.url})) == 1
        assert len(endpoint.asked) == 1, "the second connection has the same token"
    (tmp_path / "token").write_text(token(USER))
    assert fetch(config(node, "SASL", {**credentials, url: f"file://{tmp_path}/token"})) == 1


def test_kafka_2_8(tmp_path: Path) -> None:
    with OldSecureKafkaNode(tmp_path) as old:
        made = {"bootstrap.servers": old.secured, "security.protocol": "SASL_PLAINTEXT"}
        options = {name: str(value) for name, value in login("PLAIN").items()}
        with ClusterConnections(ClientConfig.from_mapping({**made, **options}, use="read")) as cluster:
            assert len(cluster.metadata().brokers) == 1
