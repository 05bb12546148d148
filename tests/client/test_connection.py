"""Connections that authenticate: what they send and when, and what their errors say."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from seglog.client.bootstrap import HostPort, parse_bootstrap
from seglog.client.client_config import ClientConfig
from seglog.client.connection import BrokerConnection
from seglog.core.errors import AuthenticationFailedError, BrokerUnavailableError, InvalidConfigError
from seglog.protocol.apis import ApiKey
from seglog.testing import Broker
from tests.client.sasl_broker import SaslBroker
from tests.kit.manual_clock import ManualClock
from tests.kit.ports import free_port

_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
_METADATA = {"topics": ()}
_LOGIN = [ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE]


def config(broker: SaslBroker, password: str = "geheim", **properties: str) -> ClientConfig:
    named = {name.replace("_", "."): text for name, text in properties.items()}
    return ClientConfig.from_mapping(
        {
            "bootstrap.servers": str(broker.address),
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.jaas.config": f'{_MODULE} required username="alice" password="{password}";',
            **named,
        },
        use="read",
    )


def connect(config: ClientConfig, clock: ManualClock | None = None) -> BrokerConnection:
    return BrokerConnection(config.bootstrap, config, clock)


def test_it_authenticates_after_api_versions() -> None:
    with SaslBroker({"alice": "geheim"}) as broker:
        connection = connect(config(broker))
        assert connection.ask(ApiKey.METADATA, _METADATA).cluster_id == "made"
        connection.close()
        assert broker.requests == [ApiKey.API_VERSIONS, *_LOGIN, ApiKey.METADATA]


def test_a_session_is_renewed_between_requests_and_answers_keep_their_order() -> None:
    clock = ManualClock()
    with SaslBroker({"alice": "geheim"}, session_ms=10_000) as broker:
        connection = connect(config(broker), clock)
        connection.send(ApiKey.METADATA, _METADATA)
        clock.advance(8_000)
        connection.send(ApiKey.METADATA, _METADATA)
        clock.advance(2_000)
        connection.send(ApiKey.METADATA, _METADATA)
        with pytest.raises(RuntimeError, match="not answered yet"):
            connection.ask(ApiKey.METADATA, _METADATA)
        assert [connection.receive().cluster_id for _ in range(3)] == ["made"] * 3
        clock.advance(8_000)
        connection.ask(ApiKey.METADATA, _METADATA)
        connection.close()
        twice = [ApiKey.METADATA, ApiKey.METADATA]
        assert broker.requests == [ApiKey.API_VERSIONS, *_LOGIN, *twice, *_LOGIN, *twice]


def test_sessions_without_an_end_are_not_renewed() -> None:
    clock = ManualClock()
    with SaslBroker({"alice": "geheim"}) as broker:
        connection = connect(config(broker), clock)
        clock.advance(1 << 40)
        connection.ask(ApiKey.METADATA, _METADATA)
        connection.close()
        assert broker.requests.count(ApiKey.SASL_AUTHENTICATE) == 1


def test_a_secret_is_read_for_each_connection_and_each_session(tmp_path: Path) -> None:
    secret, clock = tmp_path / "password", ManualClock()
    with SaslBroker({"alice": "old"}, session_ms=10_000) as broker:
        made = config(broker, f"${{directory:{tmp_path}:password}}")
        with pytest.raises(InvalidConfigError, match=f"sasl.jaas.config: {secret}: No such file"):
            connect(made)
        secret.write_text("old")
        connection = connect(made, clock)
        secret.write_text("new")
        broker.passwords["alice"] = "new"
        connect(made).close()
        clock.advance(10_000)
        connection.ask(ApiKey.METADATA, _METADATA)
        connection.close()


def test_the_whole_login_module_may_be_a_secret(tmp_path: Path) -> None:
    path = tmp_path / "login.properties"
    with SaslBroker({"alice": "a$b"}) as broker:
        made = config(broker, sasl_jaas_config=f"${{file:{path}:jaas}}")
        path.write_text(f'jaas={_MODULE} required username="alice" password="a$b";\n')
        connect(made).close()
        path.write_text(f"jaas={_MODULE} required geheim;\n")
        with pytest.raises(InvalidConfigError, match="option 1 is not") as raised:
            connect(made)
        assert "geheim" not in str(raised.value)


def test_a_wrong_password_names_broker_mechanism_and_reason_but_no_secret() -> None:
    with SaslBroker({"alice": "other"}) as broker:
        with pytest.raises(AuthenticationFailedError) as raised:
            connect(config(broker))
        assert str(raised.value) == (
            f"{broker.address}: SASL PLAIN: SASL_AUTHENTICATION_FAILED: wrong user or password"
        )
        assert not raised.value.retriable


def test_a_session_that_cannot_be_renewed_ends_the_request() -> None:
    clock = ManualClock()
    with SaslBroker({"alice": "geheim"}, session_ms=10_000) as broker:
        connection = connect(config(broker), clock)
        broker.passwords.clear()
        clock.advance(10_000)
        with pytest.raises(AuthenticationFailedError, match="wrong user or password"):
            connection.ask(ApiKey.METADATA, _METADATA)
        with pytest.raises(BrokerUnavailableError, match=str(broker.address)):
            connection.ask(ApiKey.METADATA, _METADATA)


def test_seglogs_own_broker_is_without_sasl(seglog_broker: Broker) -> None:
    with (
        SaslBroker() as secured,
        pytest.raises(AuthenticationFailedError, match=r"the listener does not use SASL: check security\.protocol"),
    ):
        connect(replace(config(secured), bootstrap=tuple(parse_bootstrap(seglog_broker.bootstrap))))


def test_a_mechanism_that_the_broker_lacks() -> None:
    scram = "org.apache.kafka.common.security.scram.ScramLoginModule"
    jaas = f'{scram} required username="alice" password="geheim";'
    with (
        SaslBroker() as broker,
        pytest.raises(
            AuthenticationFailedError, match=r"SCRAM-SHA-256: .*; set sasl\.mechanism to one that it has: PLAIN"
        ),
    ):
        connect(config(broker, sasl_mechanism="SCRAM-SHA-256", sasl_jaas_config=jaas))


def test_errors_name_the_broker_that_was_reached() -> None:
    nobody = HostPort("127.0.0.1", free_port())
    with SaslBroker() as broker, pytest.raises(AuthenticationFailedError, match=f"^{broker.address}: "):
        BrokerConnection([nobody, broker.address], config(broker))
    with pytest.raises(BrokerUnavailableError, match=str(nobody)):
        BrokerConnection([nobody], ClientConfig(bootstrap=(nobody,)))
