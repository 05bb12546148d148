"""kafka-acls on a broker of seglog, and `seglog acls` on a Kafka with ``StandardAuthorizer``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from seglog.cli.main import main
from tests.broker.security.acl_node import AclNode
from tests.kafka.acl_node import AclKafkaNode, password_of
from tests.kafka.tools import acls

pytestmark = pytest.mark.xdist_group("acl-answers")


def login(path: Path, user: str) -> tuple[str, str]:
    """``--command-config`` with a file of a Java client's properties."""
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    path.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
        f'sasl.jaas.config={module} required username="{user}" password="{password_of(user)}";\n'
    )
    return "--command-config", str(path)


def test_kafka_acls_changes_acls_of_seglog(tmp_path: Path) -> None:
    with AclNode(tmp_path / "log", ["ann"]) as node:
        plain = node.bootstrap
        who = ("--allow-principal", "User:ann", "--allow-host", "127.0.0.0/8")
        acls(plain, "--add", *who, "--operation", "Read", "--topic", "orders", "--resource-pattern-type", "prefixed")
        acls(plain, "--add", *who, "--producer", "--topic", "orders", "--transactional-id", "x", "--idempotent")
        acls(plain, "--add", "--deny-principal", "User:bob", "--operation", "All", "--group", "*")
        said = acls(plain, "--list")
        assert "resourceType=TOPIC, name=orders, patternType=PREFIXED" in said
        assert "(principal=User:ann, host=127.0.0.0/8, operation=IDEMPOTENT_WRITE, permissionType=ALLOW)" in said
        assert "(principal=User:bob, host=*, operation=ALL, permissionType=DENY)" in said
        said = acls(plain, "--list", "--topic", "orders-eu", "--resource-pattern-type", "match")
        assert "operation=READ" in said
        assert "operation=WRITE" not in said
        with pytest.raises(RuntimeError, match="ClusterAuthorizationException"):
            acls(node.secured, "--list", *login(tmp_path / "ann", "ann"))
        acls(plain, "--remove", "--force", "--topic", "orders", "--resource-pattern-type", "any")
        said = acls(plain, "--list")
        assert "resourceType=TOPIC" not in said
        assert "resourceType=GROUP" in said


def test_seglog_acls_changes_acls_of_kafka(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with AclKafkaNode(tmp_path / "kafka", ["ann"]) as kafka:
        plain = ["-b", kafka.bootstrap]
        who = ["--allow-principal", "User:ann"]
        assert main(["acls", "add", "--consumer", "--topic", "t", "--group", "g", *who, *plain]) == 0
        assert main(["acls", "add", "--user-principal", "User:x", "--operation", "CreateTokens", *who, *plain]) == 0
        said = acls(kafka.bootstrap, "--list")
        assert "resourceType=GROUP, name=g, patternType=LITERAL" in said
        assert "operation=CREATE_TOKENS" in said
        capsys.readouterr()
        assert main(["acls", "list", "--json", *plain]) == 0
        rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert [(one["resource"], one["operation"]) for one in rows] == [
            ("Topic", "Read"),
            ("Topic", "Describe"),
            ("Group", "Read"),
            ("User", "CreateTokens"),
        ]
        settings = (tmp_path / "ann", "ann")
        assert main(["acls", "list", "-b", kafka.secured, "-F", login(*settings)[1]]) == 2
        assert "CLUSTER_AUTHORIZATION_FAILED" in capsys.readouterr().err
        assert main(["acls", "remove", "--topic", "t", "--group", "g", "--yes", *plain]) == 0
        assert "resourceType=TOPIC" not in acls(kafka.bootstrap, "--list")
