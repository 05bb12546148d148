"""Kafka's own tools and our client on a secured broker of seglog."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from seglog.testing import Broker
from seglog.testing.broker_security import MECHANISMS, SecurityProtocol
from tests.kafka.tools import run_java

pytestmark = pytest.mark.xdist_group("secured-broker")


@pytest.fixture(scope="module", params=["SSL", "SASL_PLAINTEXT", "SASL_SSL"])
def broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    protocol: SecurityProtocol = request.param
    with Broker(["orders"], security=protocol) as made:
        yield made


def properties(broker: Broker, path: Path, **login: str) -> Path:
    """The file of a Java client."""
    found = broker.client_properties(style="java", **login)  # type: ignore[arg-type]
    path.write_text("".join(f"{name}={text}\n" for name, text in found.items()))
    return path


def test_kafkas_tools_on_each_protocol_and_mechanism(broker: Broker, tmp_path: Path) -> None:
    for mechanism in MECHANISMS if broker.security.uses_sasl else ("",):
        login = {"mechanism": mechanism} if mechanism else {}
        config = properties(broker, tmp_path / "client.properties", **login)
        listed = run_java(
            "org.apache.kafka.tools.TopicCommand",
            *("--bootstrap-server", broker.bootstrap, "--command-config", config, "--list"),
        )
        assert listed.split() == ["orders"]
        if mechanism:
            wrong = properties(broker, tmp_path / "wrong.properties", password="wrong", **login)
            with pytest.raises((subprocess.CalledProcessError, AssertionError, RuntimeError)):
                run_java(
                    "org.apache.kafka.tools.TopicCommand",
                    *("--bootstrap-server", broker.bootstrap, "--command-config", wrong, "--list"),
                )


def test_kafka_configs_alters_users(broker: Broker, tmp_path: Path) -> None:
    config = properties(broker, tmp_path / "client.properties")
    words = ("--bootstrap-server", broker.bootstrap, "--command-config", config, "--entity-type", "users")
    tool = "org.apache.kafka.tools.ConfigCommand"
    alter = "SCRAM-SHA-256=[iterations=8192,password=zoe-secret],SCRAM-SHA-512=[password=zoe-secret]"
    run_java(tool, *words, "--entity-name", "zoe", "--alter", "--add-config", alter)
    said = run_java(tool, *words, "--entity-name", "zoe", "--describe")
    assert "SCRAM-SHA-256=iterations=8192" in said
    assert "SCRAM-SHA-512=iterations=4096" in said
    if broker.security.uses_sasl:
        login = {"user": "zoe", "password": "zoe-secret", "mechanism": "SCRAM-SHA-512"}
        mine = properties(broker, tmp_path / "zoe.properties", **login)
        listed = run_java(
            "org.apache.kafka.tools.TopicCommand",
            *("--bootstrap-server", broker.bootstrap, "--command-config", mine, "--list"),
        )
        assert listed.split() == ["orders"]
    run_java(tool, *words, "--entity-name", "zoe", "--alter", "--delete-config", "SCRAM-SHA-256,SCRAM-SHA-512")
    assert "iterations" not in run_java(tool, *words, "--entity-name", "zoe", "--describe")
