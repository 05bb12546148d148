"""Delegation tokens: Kafka's broker and ours on the same requests, and Kafka's own tool and client on ours."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from seglog.protocol.apis import ApiKey
from seglog.protocol.message_reader import Message
from tests.broker.broker_thread import Wire
from tests.broker.security.secured_node import PLAIN_USERS, SecuredNode, log_in
from tests.kafka.node import KafkaNode
from tests.kafka.tools import run_java, topics
from tests.kit.ports import free_port

pytestmark = pytest.mark.xdist_group("delegation-tokens")

_KEY: Final = {"delegation.token.secret.key": "key of all brokers"}
_SCRAM: Final = "org.apache.kafka.common.security.scram.ScramLoginModule"
_PLAIN: Final = "org.apache.kafka.common.security.plain.PlainLoginModule"
_USERS: Final = f'{_PLAIN} required user_alice="alice-secret" user_bob="bob-secret";'
_HOUR: Final = 3_600_000


class TokenKafkaNode(KafkaNode):
    """Kafka with the listener SASL."""

    def __init__(self, data_dir: Path) -> None:
        self.sasl = f"127.0.0.1:{free_port()}"
        super().__init__(data_dir, _KEY)

    def settings(self) -> dict[str, str]:
        settings = super().settings()
        return {
            **settings,
            "listeners": f"{settings['listeners']},SASL://{self.sasl}",
            "advertised.listeners": f"{settings['advertised.listeners']},SASL://{self.sasl}",
            "listener.security.protocol.map": f"{settings['listener.security.protocol.map']},SASL:SASL_PLAINTEXT",
            "listener.name.sasl.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
            "listener.name.sasl.plain.sasl.jaas.config": _USERS,
            "listener.name.sasl.scram-sha-256.sasl.jaas.config": f"{_SCRAM} required;",
        }


class Addresses(NamedTuple):
    plain: str
    sasl: str


class Brokers(NamedTuple):
    kafka: Addresses
    ours: Addresses


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    path = tmp_path_factory.mktemp("tokens")
    keys = {**_KEY, "listener.name.sasl.plain.sasl.jaas.config": _USERS}
    assert PLAIN_USERS != _USERS
    with TokenKafkaNode(path / "kafka") as kafka, SecuredNode(path / "ours", keys) as node:
        yield Brokers(Addresses(kafka.bootstrap, kafka.sasl), Addresses(node.at("PLAINTEXT"), node.at("SASL")))


def script(at: Addresses) -> list[object]:
    """What a broker answers; ids and secrets are left out, times are rounded to hours from now."""
    told: list[object] = []
    with Wire(at.sasl) as alice, Wire(at.sasl) as bob, Wire(at.plain) as anonymous:
        log_in(alice, "alice", "alice-secret")
        log_in(bob, "bob", "bob-secret")

        def ask(wire: Wire, key: ApiKey, version: int, **contents: object) -> Message:
            answer = wire.ask(key, version, **contents)
            told.append((key.name, version, _plain(answer, start)))
            return answer

        start = _now(alice)
        made: list[Message] = []
        for version in (1, 2, 3):
            own = {"owner_principal_type": None, "owner_principal_name": None} if version > 2 else {}
            renewers = [{"principal_type": "User", "principal_name": "bob"}]
            made.append(
                ask(alice, ApiKey.CREATE_DELEGATION_TOKEN, version, renewers=renewers, max_lifetime=9 * _HOUR, **own)
            )
        other = {"owner_principal_type": "User", "owner_principal_name": "carol"}
        made.append(ask(alice, ApiKey.CREATE_DELEGATION_TOKEN, 3, renewers=[], max_lifetime=-1, **other))
        group = [{"principal_type": "Group", "principal_name": "x"}]
        ask(alice, ApiKey.CREATE_DELEGATION_TOKEN, 2, renewers=group, max_lifetime=-1)
        ask(anonymous, ApiKey.CREATE_DELEGATION_TOKEN, 2, renewers=[], max_lifetime=-1)
        _settle(alice, {one.token_id for one in made})
        for version in (1, 2):
            first = made[version - 1].hmac
            for wire, hmac, period in (
                (bob, first, 5 * _HOUR),
                (alice, first, -1),
                (alice, b"x", 1),
                (bob, made[3].hmac, 1),
            ):
                ask(wire, ApiKey.RENEW_DELEGATION_TOKEN, version, hmac=hmac, renew_period=period)
                ask(wire, ApiKey.EXPIRE_DELEGATION_TOKEN, version, hmac=hmac, expiry_time_period=abs(period))
            ask(anonymous, ApiKey.RENEW_DELEGATION_TOKEN, version, hmac=first, renew_period=1)
            ask(anonymous, ApiKey.EXPIRE_DELEGATION_TOKEN, version, hmac=first, expiry_time_period=1)
        ask(alice, ApiKey.EXPIRE_DELEGATION_TOKEN, 2, hmac=made[3].hmac, expiry_time_period=-1)
        ask(alice, ApiKey.EXPIRE_DELEGATION_TOKEN, 2, hmac=made[2].hmac, expiry_time_period=-1)
        _settle(alice, {one.token_id for one in (made[0], made[1], made[3])})
        for owners in (None, [], ["alice"], ["bob"], ["carol"], ["dave"]):
            asked = None if owners is None else [{"principal_type": "User", "principal_name": one} for one in owners]
            for version in (1, 2, 3):
                ask(bob, ApiKey.DESCRIBE_DELEGATION_TOKEN, version, owners=asked)
        ask(anonymous, ApiKey.DESCRIBE_DELEGATION_TOKEN, 3, owners=None)
    return told


def _now(wire: Wire) -> int:
    answer = wire.ask(ApiKey.CREATE_DELEGATION_TOKEN, 2, renewers=[], max_lifetime=1)
    now: int = answer.issue_timestamp
    _settle(wire, {answer.token_id})
    wire.ask(ApiKey.EXPIRE_DELEGATION_TOKEN, 2, hmac=answer.hmac, expiry_time_period=-1)
    _settle(wire, set())
    return now


def _settle(wire: Wire, ids: set[str]) -> None:
    """Until the broker has heard of its controller's changes."""
    from tests.kit.waiting import wait_until

    def seen() -> bool:
        answer = wire.ask(ApiKey.DESCRIBE_DELEGATION_TOKEN, 3, owners=None)
        return {one.token_id for one in answer.tokens} == ids

    wait_until(seen, "the tokens to be seen")


def _plain(answer: Message, start: int) -> dict[str, Any]:
    def value(name: str, found: Any) -> Any:
        if name == "tokens":
            rows = [{key: value(key, getattr(one, key)) for key in _names(one)} for one in found]
            return sorted(rows, key=str)
        if name == "renewers":
            return [(one.principal_type, one.principal_name) for one in found]
        if name in ("token_id", "hmac"):
            return len(found)
        if name.endswith("timestamp") and found > 0:
            return round((found - start) / _HOUR)
        return found

    return {name: value(name, getattr(answer, name)) for name in _names(answer) if name != "throttle_time"}


def _names(message: Message) -> list[str]:
    return sorted(vars(message))


def test_kafka_and_seglog_answer_alike(brokers: Brokers) -> None:
    assert script(brokers.ours) == script(brokers.kafka)


def test_kafkas_tool_and_client_use_tokens(brokers: Brokers, tmp_path: Path) -> None:
    at = brokers.ours.sasl
    login = tmp_path / "alice"
    login.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
        f'sasl.jaas.config={_PLAIN} required username="alice" password="alice-secret";\n'
    )

    def tool(*words: str) -> str:
        always = ["--bootstrap-server", at, "--command-config", str(login)]
        return run_java("org.apache.kafka.tools.DelegationTokenCommand", [*always, *words])

    said = tool("--create", "--max-life-time-period", "-1", "--renewer-principal", "User:bob")
    found = re.search(r"(\S{22})\s+(\S{80,90}==)\s+User:alice", said)
    assert found is not None, said
    token_id, secret = found.groups()
    assert token_id in tool("--describe", "--owner-principal", "User:alice")
    assert "Completed renew operation" in tool("--renew", "--renew-time-period", "3600000", "--hmac", secret)
    with_token = tmp_path / "token"
    with_token.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-256\n"
        f'sasl.jaas.config={_SCRAM} required username="{token_id}" password="{secret}" tokenauth="true";\n'
    )
    topics(at, "--command-config", str(with_token), "--create", "--topic", "by-token")
    assert "by-token" in topics(at, "--command-config", str(with_token), "--list").split()
    login_of_token = ["--bootstrap-server", at, "--command-config", str(with_token), "--describe"]
    with pytest.raises(RuntimeError, match=r"DelegationTokenDisabled|not allowed|not-allowed"):
        run_java("org.apache.kafka.tools.DelegationTokenCommand", login_of_token)
    assert "Completed expire operation" in tool("--expire", "--expiry-time-period", "-1", "--hmac", secret)
    with pytest.raises(RuntimeError, match="SaslAuthenticationException"):
        topics(at, "--command-config", str(with_token), "--list")
