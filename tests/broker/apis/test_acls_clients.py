"""Access control lists through stock clients: librdkafka and kafka-python."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import pytest

from seglog.broker.security.acls import Operation, ResourceType
from tests.broker.broker_thread import Wire
from tests.broker.python_clients import AdminClient, Producer, confluent_kafka, kafka
from tests.broker.security.acl_node import AclNode, acl, add
from tests.kafka.acl_node import password_of

rdkafka: Any = importlib.import_module("confluent_kafka.admin")
kafka_admin: Any = importlib.import_module("kafka.admin")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AclNode]:
    with AclNode(tmp_path_factory.mktemp("acls"), ["admin", "ann", "bob"]) as made, Wire(made.bootstrap) as wire:
        for one in (Operation.ALTER, Operation.DESCRIBE):
            add(wire, acl("admin", one, ResourceType.CLUSTER, "kafka-cluster"))
        wire.create_topic("t")
        yield made


def login(node: AclNode, user: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": node.secured,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": user,
        "sasl.password": password_of(user),
    }


def binding(operation: Any, permission: Any, name: str = "t") -> Any:
    kinds = rdkafka.ResourceType.TOPIC, name, rdkafka.ResourcePatternType.LITERAL
    return rdkafka.AclBinding(*kinds, "User:ann", "*", operation, permission)


def test_librdkafka_changes_acls_and_feels_them(node: AclNode) -> None:
    admin = AdminClient(login(node, "admin"))
    produced: list[Any] = []
    producer = Producer({**login(node, "ann"), "enable.idempotence": True, "message.timeout.ms": 30_000})
    producer.produce("t", b"v", on_delivery=lambda error, _: produced.append(error and error.code()))
    producer.flush(60)
    assert produced == [confluent_kafka.KafkaError.CLUSTER_AUTHORIZATION_FAILED] or produced == [
        confluent_kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED
    ]
    write = binding(rdkafka.AclOperation.WRITE, rdkafka.AclPermissionType.ALLOW)
    for future in admin.create_acls([write]).values():
        future.result(30)
    producer = Producer({**login(node, "ann"), "enable.idempotence": True})
    producer.produce("t", b"v", on_delivery=lambda error, _: produced.append(error))
    producer.flush(60)
    assert produced[1:] == [None]
    any_ = rdkafka.AclBindingFilter(
        rdkafka.ResourceType.ANY, None, rdkafka.ResourcePatternType.ANY, "User:ann", None,
        rdkafka.AclOperation.ANY, rdkafka.AclPermissionType.ANY,
    )  # fmt: skip
    assert admin.describe_acls(any_).result(30) == [write]
    (removed,) = (future.result(30) for future in admin.delete_acls([any_]).values())
    assert removed == [write]
    assert admin.describe_acls(any_).result(30) == []


def test_kafka_python_changes_acls(node: AclNode) -> None:
    def connect(user: str) -> Any:
        settings = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN"}
        return kafka.KafkaAdminClient(
            bootstrap_servers=node.secured,
            **settings,
            sasl_plain_username=user,
            sasl_plain_password=password_of(user),
        )

    wanted = kafka_admin.ACL(
        principal="User:bob",
        host="10.0.0.0/8",
        operation=kafka_admin.ACLOperation.READ,
        permission_type=kafka_admin.ACLPermissionType.DENY,
        resource_pattern=kafka_admin.ResourcePattern(
            kafka_admin.ResourceType.GROUP, "g", kafka_admin.ACLResourcePatternType.PREFIXED
        ),
    )
    admin = connect("admin")
    try:
        assert admin.create_acls([wanted])["succeeded"] == [wanted]
        asked = kafka_admin.ACLFilter(
            principal="User:bob",
            host=None,
            operation=kafka_admin.ACLOperation.ANY,
            permission_type=kafka_admin.ACLPermissionType.ANY,
            resource_pattern=kafka_admin.ResourcePatternFilter(
                kafka_admin.ResourceType.GROUP, "group", kafka_admin.ACLResourcePatternType.MATCH
            ),
        )
        found, _ = admin.describe_acls(asked)
        assert [(one.principal, one.host, one.resource_pattern.resource_name) for one in found] == [
            ("User:bob", "10.0.0.0/8", "g")
        ]
        ((_, removed, _),) = admin.delete_acls([asked])
        assert len(removed) == 1
    finally:
        admin.close()
