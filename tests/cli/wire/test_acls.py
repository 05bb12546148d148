"""`seglog acls` with a broker that checks them, as the client of a user that may change them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from seglog.broker.security.acls import Acl, AclFilter, Operation, ResourceType
from seglog.cli.main import main
from tests.broker.broker_thread import Wire
from tests.broker.security.acl_node import AclNode, acl, add
from tests.kafka.acl_node import password_of

TOPIC, GROUP, TRANSACTION = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID
CLUSTER = ResourceType.CLUSTER


@pytest.fixture
def node(tmp_path: Path) -> Iterator[AclNode]:
    with AclNode(tmp_path / "log", ["admin", "ann"]) as made, Wire(made.bootstrap) as wire:
        add(wire, *(acl("admin", one, CLUSTER, "kafka-cluster") for one in (Operation.ALTER, Operation.DESCRIBE)))
        yield made


def words(node: AclNode, user: str = "admin") -> list[str]:
    settings = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": user,
        "sasl.password": password_of(user),
    }
    return ["-b", node.secured, *(word for name, text in settings.items() for word in ("-X", f"{name}={text}"))]


def there(node: AclNode, user: str) -> set[Acl]:
    assert node.node._authorization is not None
    return set(node.node._authorization.authorizer.matching(AclFilter(principal=f"User:{user}")))


def test_acls_are_added_listed_and_removed(node: AclNode, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["acls", "list", *words(node, "ann")]) == 2
    assert "CLUSTER_AUTHORIZATION_FAILED" in capsys.readouterr().err
    who = ["--allow-principal", "User:ann", "--deny-principal", "User:bob", "--deny-host", "10.0.0.0/8"]
    what = ["--operation", "read", "--operation", "DescribeConfigs", "--topic", "orders", "--topic", "*"]
    assert main(["acls", "add", *what, *who, *words(node)]) == 0
    assert len(there(node, "ann")) == 4
    assert {(one.entry.host, one.entry.permission.name) for one in there(node, "bob")} == {("10.0.0.0/8", "DENY")}
    capsys.readouterr()
    assert main(["acls", "list", "--topic", "orders", "--principal", "User:ann", "--json", *words(node)]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == {
        "resource": "Topic",
        "name": "orders",
        "pattern": "Literal",
        "permission": "Allow",
        "operation": "Read",
        "principal": "User:ann",
        "host": "*",
    }
    assert [one["operation"] for one in lines] == ["Read", "DescribeConfigs"]
    match = ["--topic", "orders", "--resource-pattern-type", "match"]
    assert main(["acls", "list", *match, *words(node)]) == 0
    assert "10.0.0.0/8" in capsys.readouterr().out
    one = ["--topic", "orders", "--allow-principal", "User:ann", "--operation", "Read"]
    capsys.readouterr()
    assert main(["acls", "remove", *one, "--dry-run", *words(node)]) == 0
    assert "User:ann" in capsys.readouterr().out
    assert len(there(node, "ann")) == 4
    assert main(["acls", "remove", *one, "--yes", *words(node)]) == 0
    assert len(there(node, "ann")) == 3
    # The same with a file of settings with Kafka's names.
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    login = f'{module} required username="admin" password="{password_of("admin")}";'
    file = tmp_path / "admin.properties"
    file.write_text(f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.jaas.config={login}\n")
    assert main(["acls", "remove", *match, "-y", "-b", node.secured, "-F", str(file)]) == 0
    assert not there(node, "ann") | there(node, "bob")
    capsys.readouterr()
    assert main(["acls", "list", *match, *words(node)]) == 0
    assert capsys.readouterr().out == "no ACLs\n"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            ["--producer", "--topic", "t", "--transactional-id", "x", "--idempotent"],
            {
                (TOPIC, "WRITE"), (TOPIC, "DESCRIBE"), (TOPIC, "CREATE"), (TRANSACTION, "WRITE"),
                (TRANSACTION, "DESCRIBE"), (CLUSTER, "IDEMPOTENT_WRITE"),
            },
        ),
        (
            ["--consumer", "--topic", "t", "--group", "g"],
            {(TOPIC, "READ"), (TOPIC, "DESCRIBE"), (GROUP, "READ")},
        ),
        (
            ["--producer", "--consumer", "--topic", "t", "--group", "g"],
            {(TOPIC, "WRITE"), (TOPIC, "CREATE"), (TOPIC, "READ"), (TOPIC, "DESCRIBE"), (GROUP, "READ")},
        ),
        (["--cluster"], {(CLUSTER, "ALL")}),
        (["--delegation-token", "x", "--operation", "Describe"], {(ResourceType.DELEGATION_TOKEN, "DESCRIBE")}),
        (["--user-principal", "User:x", "--operation", "create_tokens"], {(ResourceType.USER, "CREATE_TOKENS")}),
    ],
)  # fmt: skip
def test_roles_and_kinds_of_resources(
    node: AclNode, options: list[str], expected: set[tuple[ResourceType, str]]
) -> None:
    assert main(["acls", "add", *options, "--allow-principal", "User:ann", *words(node)]) == 0
    assert {(one.pattern.resource, one.entry.operation.name) for one in there(node, "ann")} == expected


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--topic", "t"], "needs a resource such as --topic, and --allow-principal"),
        (["--allow-principal", "User:ann"], "needs a resource such as --topic"),
        (["--topic", "t", "--allow-principal", "ann"], "Could not parse principal from `ann`"),
        (["--topic", "t", "--allow-principal", "User:a", "--operation", "Fly"], "--operation Fly: not one of Any, All"),
        (["--group", "g", "--allow-principal", "User:a", "--operation", "Write"], "--operation Write: Group only has"),
        (["--topic", "t", "--allow-principal", "User:a", "--resource-pattern-type", "match"], "Invalid patternType"),
        (["--topic", "t", "--allow-principal", "User:a", "--deny-host", "h"], "--deny-host needs --deny-principal"),
        (["--producer", "--group", "g", "--allow-principal", "User:a"], "need --topic"),
        (["--consumer", "--topic", "t", "--allow-principal", "User:a"], "--consumer needs --group"),
        (["--consumer", "--topic", "t", "--group", "g", "--cluster", "--allow-principal", "User:a"], "no --cluster"),
        (["--producer", "--topic", "t", "--operation", "Read", "--allow-principal", "User:a"], "take no --operation"),
        (["--consumer", "--idempotent", "--topic", "t", "--group", "g", "--allow-principal", "User:a"], "--idempotent"),
        (["--topic", "t", "--allow-principal", "User:a", "--allow-host", "10.0.0.0/99"], "Invalid CIDR notation"),
    ],
)
def test_wrong_options(options: list[str], complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["acls", "add", *options]) == 2
    assert complaint in capsys.readouterr().err


def test_remove_needs_a_resource(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["acls", "remove", "-y"]) == 2
    assert "needs a resource" in capsys.readouterr().err
    assert main(["acls", "remove", "-y", "--topic", "t", "--operation", "Read"]) == 2
    assert "needs --allow-principal or --deny-principal" in capsys.readouterr().err
