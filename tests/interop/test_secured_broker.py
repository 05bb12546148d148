"""Kafka's own tools on a secured broker of seglog: each protocol and mechanism, and users that they create."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from seglog.testing import Broker
from seglog.testing.broker_security import MECHANISMS, SecurityProtocol
from tests.kafka.tools import configs, topics

pytestmark = pytest.mark.xdist_group("secured-broker")


@pytest.fixture(scope="module", params=["SSL", "SASL_PLAINTEXT", "SASL_SSL"])
def broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    protocol: SecurityProtocol = request.param
    with Broker(["orders"], security=protocol) as made:
        yield made


def login(
    broker: Broker, path: Path, *, user: str = "alice", password: str | None = None, mechanism: str = "SCRAM-SHA-256"
) -> tuple[str, str]:
    """``--command-config`` with a file of a Java client's properties."""
    found = broker.client_properties(user, password=password, mechanism=mechanism, style="java")
    path.write_text("".join(f"{name}={text}\n" for name, text in found.items()))
    return "--command-config", str(path)


def test_kafkas_tools_log_in(broker: Broker, tmp_path: Path) -> None:
    for mechanism in MECHANISMS if broker.security.uses_sasl else MECHANISMS[:1]:
        right = login(broker, tmp_path / "right", mechanism=mechanism)
        assert topics(broker.bootstrap, *right, "--list").split() == ["orders"]
    if broker.security.uses_sasl:
        wrong = login(broker, tmp_path / "wrong", password="wrong")
        with pytest.raises(RuntimeError, match="SaslAuthenticationException: Authentication failed during"):
            topics(broker.bootstrap, *wrong, "--list")


def test_kafka_configs_changes_users(broker: Broker, tmp_path: Path) -> None:
    words = (*login(broker, tmp_path / "alice"), "--entity-type", "users", "--entity-name", "zoe")
    added = "SCRAM-SHA-256=[iterations=8192,password=zoe-secret],SCRAM-SHA-512=[password=zoe-secret]"
    configs(broker.bootstrap, *words, "--alter", "--add-config", added)
    said = configs(broker.bootstrap, *words, "--describe")
    assert "SCRAM-SHA-256=iterations=8192" in said
    assert "SCRAM-SHA-512=iterations=4096" in said
    if broker.security.uses_sasl:
        mine = login(broker, tmp_path / "zoe", user="zoe", password="zoe-secret", mechanism="SCRAM-SHA-512")
        assert topics(broker.bootstrap, *mine, "--list").split() == ["orders"]
    configs(broker.bootstrap, *words, "--alter", "--delete-config", "SCRAM-SHA-256,SCRAM-SHA-512")
    assert "iterations" not in configs(broker.bootstrap, *words, "--describe")
