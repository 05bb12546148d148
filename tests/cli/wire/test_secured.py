"""Commands on a cluster whose listeners are all secured, with settings of librdkafka and of Kafka's Java clients."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from seglog.cli.options import OptionError
from seglog.cli.wire.client_settings import librdkafka_settings, security_of
from seglog.client.security.references import Secrets
from seglog.core.errors import InvalidConfigError
from seglog.testing import Broker
from seglog.testing.broker_security import SecurityProtocol, Style
from tests.cli.run import Ran

Run = Callable[..., Ran]
TOPIC: Final = "orders"
COMMANDS: Final[tuple[tuple[str, ...], ...]] = (
    ("consume", TOPIC, "--group", "g", "--count", "1"),
    ("topics", "list"),
    ("topics", "describe", TOPIC, "--sizes"),
    ("groups", "list"),
    ("groups", "describe", "g"),
    ("configs", "describe", "--broker-defaults"),
    ("configs", "describe", TOPIC),
    ("offsets", TOPIC),
    ("cluster", "status"),
    ("transactions", "list"),
)


@pytest.fixture(scope="module", params=["SSL", "SASL_SSL", "SASL_PLAINTEXT"])
def broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    protocol: SecurityProtocol = request.param
    with Broker([TOPIC], security=protocol) as made:
        yield made


def settings_file(broker: Broker, path: Path, style: Style, **more: Any) -> str:
    found = broker.client_properties("alice", style=style, **more)
    del found["bootstrap.servers"]
    path.write_text("".join(f"{name}={text}\n" for name, text in found.items()))
    return str(path)


@pytest.mark.parametrize("style", ["librdkafka", "java"])
def test_every_command_reaches_a_secured_cluster(broker: Broker, run: Run, tmp_path: Path, style: Style) -> None:
    """By a file; and without it, none does."""
    login = ("-b", broker.bootstrap, "-F", settings_file(broker, tmp_path / "client.properties", style))
    (tmp_path / "tea").write_text("tea\n")
    produced = run("produce", TOPIC, *login, "--from-file", str(tmp_path / "tea"))
    assert produced.code == 0, produced.err
    for command in COMMANDS:
        ran = run(*command, *login)
        assert ran.code == 0, (command, ran.err)
    assert run("cluster", "status", *login, "--json").objects[0]["healthy"]


def test_options_serve_as_well_as_a_file(broker: Broker, run: Run) -> None:
    found = broker.client_properties("alice", mechanism="SCRAM-SHA-512")
    words = [word for name, text in found.items() if name != "bootstrap.servers" for word in ("-X", f"{name}={text}")]
    for command in (("topics", "list"), ("cluster", "status"), ("groups", "list")):
        ran = run(*command, "-b", broker.bootstrap, *words)
        assert ran.code == 0, (command, ran.err)


def test_a_wrong_password_is_named_and_not_shown(broker: Broker, run: Run, tmp_path: Path) -> None:
    if not broker.security.uses_sasl:
        return
    for style in ("librdkafka", "java"):
        wrong = settings_file(broker, tmp_path / style, style, password="wr0ng")
        ran = run("cluster", "status", "-b", broker.bootstrap, "-F", wrong)
        assert ran.code == 2
        assert "SASL_AUTHENTICATION_FAILED" in ran.err
        assert "wr0ng" not in ran.err + ran.text


# The two spellings


def test_names_of_librdkafka_are_those_of_java(tmp_path: Path) -> None:
    chain, key = tmp_path / "my chain.pem", tmp_path / "key.pem"
    chain.write_text("chain")
    key.write_text("key")
    config = security_of(
        {
            "security.protocol": "sasl_ssl",
            "ssl.ca.location": "ca.pem",
            "ssl.certificate.location": str(chain),
            "ssl.key.location": str(key),
            "ssl.key.password": "p",
            "ssl.endpoint.identification.algorithm": "none",
            "sasl.mechanisms": "PLAIN",
            "sasl.username": 'a"b\\',
            "sasl.password": "c d",
            "socket.timeout.ms": "1",
        }
    )
    assert (config.ssl_truststore_location, config.ssl_endpoint_identification_algorithm) == ("ca.pem", "")
    assert config.sasl_jaas_config is not None
    assert dict(config.jaas(config.sasl_jaas_config).options) == {"username": 'a"b\\', "password": "c d"}
    assert config.ssl_keystore_key is not None
    assert Secrets().resolve("x", config.ssl_keystore_key) == "key"


def test_names_of_java_are_those_of_librdkafka(tmp_path: Path) -> None:
    store, secrets = tmp_path / "store.pem", tmp_path / "secrets.properties"
    store.write_text("-----BEGIN")
    secrets.write_text('password=s"e')
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    found = librdkafka_settings(
        {
            "security.protocol": "SASL_SSL",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": "ca.pem",
            "ssl.keystore.location": str(store),
            "ssl.endpoint.identification.algorithm": "",
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.jaas.config": f'{module} required username="ann" password="${{file:{secrets}:password}}";',
        }
    )
    assert found == {
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": "ca.pem",
        "ssl.certificate.location": str(store),
        "ssl.key.location": str(store),
        "ssl.endpoint.identification.algorithm": "none",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": "ann",
        "sasl.password": 's"e',
    }


def test_a_token_of_oauth_reaches_librdkafka() -> None:
    module = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
    found = librdkafka_settings(
        {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.jaas.config": f'{module} required token="a.b.c" extension_x="y";',
        }
    )
    token, _, principal, extensions = found["oauth_cb"]("")
    assert (token, principal, extensions) == ("a.b.c", "", {"x": "y"})


def test_settings_that_a_client_cannot_have_are_refused() -> None:
    sasl = {"security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-256"}
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    by_token = f'{module} required username="a" password="b" tokenauth="true";'
    with pytest.raises(OptionError, match="delegation tokens"):
        librdkafka_settings({**sasl, "sasl.jaas.config": by_token})
    with pytest.raises(OptionError, match="verifies certificates"):
        security_of({"security.protocol": "SSL", "enable.ssl.certificate.verification": "false"})
    with pytest.raises(InvalidConfigError, match="GSSAPI"):
        security_of({"security.protocol": "SASL_SSL", "sasl.mechanism": "GSSAPI"})
    with pytest.raises(InvalidConfigError, match=r"ssl\.truststore\.type=JKS"):
        librdkafka_settings({"security.protocol": "SSL", "ssl.truststore.type": "JKS", "ssl.truststore.location": "x"})


def test_json_of_a_command_is_still_one_document(broker: Broker, run: Run, tmp_path: Path) -> None:
    login = ("-b", broker.bootstrap, "-F", settings_file(broker, tmp_path / "client.properties", "java"))
    document = json.loads(run("topics", "describe", TOPIC, *login, "--json").text)
    assert document["topic"] == TOPIC
