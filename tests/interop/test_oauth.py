"""OAUTHBEARER: Kafka's broker and ours on the same tokens, and Kafka's own client on ours."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from seglog.protocol.apis import ApiKey
from tests.broker.broker_thread import RunningNode, Wire
from tests.kafka.node import JVM_OPTIONS, KafkaNode
from tests.kafka.tools import run_java
from tests.kit.ports import free_port
from tests.kit.token_issuer import AUDIENCE, ISSUER, TokenIssuer, new_key, part, unsecured_token

pytestmark = pytest.mark.xdist_group("oauth")

_PACKAGE: Final = "org.apache.kafka.common.security.oauthbearer"
_PREFIX: Final = "listener.name.oauth.oauthbearer"


def settings_of(keys: Path) -> dict[str, str]:
    return {
        "listener.name.oauth.sasl.enabled.mechanisms": "OAUTHBEARER",
        f"{_PREFIX}.sasl.jaas.config": f"{_PACKAGE}.OAuthBearerLoginModule required;",
        f"{_PREFIX}.sasl.server.callback.handler.class": f"{_PACKAGE}.OAuthBearerValidatorCallbackHandler",
        f"{_PREFIX}.sasl.oauthbearer.jwks.endpoint.url": keys.as_uri(),
        f"{_PREFIX}.sasl.oauthbearer.expected.audience": f"other,{AUDIENCE}",
        f"{_PREFIX}.sasl.oauthbearer.expected.issuer": ISSUER,
    }


class OauthKafkaNode(KafkaNode):
    """Kafka with the listener OAUTH."""

    def __init__(self, data_dir: Path, keys: Path) -> None:
        self.oauth = f"127.0.0.1:{free_port()}"
        self._keys = keys
        allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={keys.as_uri()}"
        super().__init__(data_dir, jvm=[*JVM_OPTIONS, allowed])

    def settings(self) -> dict[str, str]:
        settings = super().settings()
        return {
            **settings,
            "listeners": f"{settings['listeners']},OAUTH://{self.oauth}",
            "advertised.listeners": f"{settings['advertised.listeners']},OAUTH://{self.oauth}",
            "listener.security.protocol.map": f"{settings['listener.security.protocol.map']},OAUTH:SASL_PLAINTEXT",
            **settings_of(self._keys),
        }


class Brokers(NamedTuple):
    issuer: TokenIssuer
    kafka: str
    ours: str


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    path = tmp_path_factory.mktemp("oauth")
    issuer = TokenIssuer(one=new_key(), two=new_key("RS256"), three=new_key("PS512"))
    keys = path / "keys.json"
    keys.write_text(json.dumps(issuer.jwks()))
    ours = {
        "listeners": "PLAINTEXT://127.0.0.1:0,OAUTH://127.0.0.1:0",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,OAUTH:SASL_PLAINTEXT",
        "connection.failed.authentication.delay.ms": "1",
        **settings_of(keys),
    }
    with OauthKafkaNode(path / "kafka", keys) as kafka, RunningNode(path / "ours", ours) as node:
        at = next(address.host_port for address in node.node.addresses if address.name == "OAUTH")
        yield Brokers(issuer, kafka.oauth, at)


def log_in(at: str, message: bytes, began: float) -> tuple[object, ...]:
    """The answers, and when the session ends: in minutes since ``began``, however long the logins before it took."""
    with Wire(at) as wire, suppress(ConnectionError):
        answers = [wire.ask(ApiKey.SASL_HANDSHAKE, mechanism="OAUTHBEARER")]
        answers.append(wire.ask(ApiKey.SASL_AUTHENTICATE, auth_bytes=message))
        if answers[-1].auth_bytes:
            answers.append(wire.ask(ApiKey.SASL_AUTHENTICATE, auth_bytes=b"\x01"))
        last = answers[-1]
        left = last.session_lifetime / 1000
        end = round((time.time() + left - began) / 60) if left else None
        return len(answers), bytes(answers[1].auth_bytes), last.error_code, last.error_message, end
    return ("closed",)


def messages(issuer: TokenIssuer) -> Mapping[str, bytes]:
    """Without another scheme than bearer: an IllegalArgumentException in Kafka's error message ends its connection."""
    claims: list[Mapping[str, Any]] = [
        {},
        {"sub": " ann "},
        {"sub": None},
        {"sub": ""},
        {"sub": 7},
        {"exp": None},
        {"exp": "x"},
        {"exp": 1},
        {"exp": int(time.time()) + 1000},
        {"iat": None},
        {"iat": "x"},
        {"iat": 1},
        {"iat": int(time.time()) + 100_000},
        {"nbf": 1},
        {"nbf": int(time.time()) + 1000, "exp": int(time.time()) + 2000},
        {"aud": None},
        {"aud": "x"},
        {"aud": ["x", "other"]},
        {"iss": None},
        {"iss": "x"},
        {"scope": "a b"},
        {"scope": ["a", "b"]},
        {"scope": ["a", "a"]},
        {"scope": ["a", ""]},
        {"scope": ""},
        {"scope": 7},
        {"more": {"deep": [1]}},
    ]
    tokens = {f"claims {one}": issuer.token(**one) for one in claims}
    tokens |= {f"header {one}": issuer.token(header=one) for one in ({"kid": None}, {"kid": "x"}, {"crit": ["x"]})}
    tokens |= {
        "RS256": issuer.token(kid="two", algorithm="RS256"),
        "PS512": issuer.token(kid="three", algorithm="PS512"),
        "a key of another": TokenIssuer().token(),
        "another type of key": TokenIssuer(one=new_key("RS256")).token(algorithm="RS256"),
        "none": unsecured_token(),
        "none with a signature": f"{unsecured_token()}YQ",
        "HMAC": f"{part({'alg': 'HS256', 'kid': 'two'})}.{part({'sub': 'a'})}.YQ",
        "two parts": "a.b",
        "garbage": "x",
    }
    found = {name: f"n,,\x01auth=Bearer {token}\x01\x01".encode() for name, token in tokens.items()}
    right = issuer.token()
    return found | {
        f"message {text[:40]!r}": text.replace("TOKEN", right).encode()
        for text in (
            "n,a=alice,\x01auth=Bearer TOKEN\x01\x01",
            "n,a=bob,\x01auth=Bearer TOKEN\x01\x01",
            "n,,\x01auth=bEARER   TOKEN\x01\x01",
            "n,,\x01auth=Bearer TOKEN\x01traceparent=00 1\x01\x01",
            "n,,\x01auth=Bearer TOKEN\x01trace1=x\x01\x01",
            "n,,\x01auth=Bearer TOKEN\x01",
            "n,,\x01x=y\x01\x01",
            "y,,\x01auth=Bearer TOKEN\x01\x01",
            "",
        )
    }


def test_kafka_and_seglog_judge_tokens_alike(brokers: Brokers) -> None:
    began = time.time()
    told = messages(brokers.issuer)
    ours = {name: log_in(brokers.ours, message, began) for name, message in told.items()}
    assert ours == {name: log_in(brokers.kafka, message, began) for name, message in told.items()}


def test_kafkas_client_logs_in(brokers: Brokers, tmp_path: Path) -> None:
    token = tmp_path / "token"
    command = tmp_path / "client.properties"
    command.write_text(
        "security.protocol=SASL_PLAINTEXT\n"
        "sasl.mechanism=OAUTHBEARER\n"
        f"sasl.jaas.config={_PACKAGE}.OAuthBearerLoginModule required;\n"
        f"sasl.login.callback.handler.class={_PACKAGE}.OAuthBearerLoginCallbackHandler\n"
        f"sasl.oauthbearer.token.endpoint.url={token.as_uri()}\n"
        "default.api.timeout.ms=60000\n"
    )
    options = [f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={token.as_uri()}"]
    words = ["--bootstrap-server", brokers.ours, "--command-config", str(command)]

    def run(*more: str) -> str:
        return run_java("org.apache.kafka.tools.TopicCommand", [*words, *more], options=options)

    token.write_text(brokers.issuer.token())
    run("--create", "--topic", "tea")
    assert "tea" in run("--list").split()
    token.write_text(brokers.issuer.token(aud="x"))
    with pytest.raises(RuntimeError, match=r'SaslAuthenticationException: \{"status":"invalid_token"\}'):
        run("--list")
