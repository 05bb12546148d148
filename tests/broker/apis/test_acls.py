"""CreateAcls, DescribeAcls and DeleteAcls, and the effect of ACLs on clients that are connected."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from seglog.broker.requests import RequestContext
from seglog.broker.security.acl_store import FOLDER, name_of
from seglog.broker.security.acls import Acl, AclFilter, Operation, Pattern, PatternType, Permission, ResourceType
from seglog.broker.security.authorization import Authorization
from seglog.broker.security.authorizer import Authorizer
from seglog.core.error_codes import ErrorCode
from seglog.core.types import TopicPartition
from seglog.protocol.apis import ApiKey
from seglog.records.record import NewRecord, encode_batch
from tests.broker.broker_thread import Wire
from tests.broker.python_clients import Producer
from tests.broker.security.acl_node import AclNode, acl, add, everything, remove
from tests.broker.security.permission_requests import creation
from tests.kafka.acl_node import password_of
from tests.kit.waiting import wait_until

TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
READ, WRITE, ALL = Operation.READ, Operation.WRITE, Operation.ALL
DENIED = int(ErrorCode.TOPIC_AUTHORIZATION_FAILED)


@pytest.fixture
def node(tmp_path: Path) -> AclNode:
    return AclNode(tmp_path / "log", ["ann", "bob"])


def listed(wire: Wire, **more: object) -> set[tuple[int, str, int, str, int, int]]:
    found = wire.ask(ApiKey.DESCRIBE_ACLS, **everything(**more)).resources
    return {
        (one.resource_type, one.resource_name, one.pattern_type, acl.principal, acl.operation, acl.permission_type)
        for one in found
        for acl in one.acls
    }


def fetch(wire: Wire, topic: str) -> int:
    part = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
    topics = [{"topic": topic, "partitions": [part]}]
    answer = wire.ask(ApiKey.FETCH, 12, max_wait=0, min_bytes=0, max_bytes=1 << 20, topics=topics)
    code: int = answer.responses[0].partitions[0].error_code
    return code


def produce(wire: Wire, topic: str, acks: int = 1) -> int:
    data = [{"index": 0, "records": bytes(encode_batch([NewRecord(b"v")]))}]
    wire.send(ApiKey.PRODUCE, 9, acks=acks, timeout=30_000, topic_data=[{"name": topic, "partition_data": data}])
    code: int = wire.answer(ApiKey.PRODUCE, 9).responses[0].partition_responses[0].error_code
    return code


def test_acls_are_created_described_and_deleted(node: AclNode) -> None:
    long = "ж" * 200
    prefixed = acl("ann", READ, TOPIC, "or", kind=PatternType.PREFIXED)
    wanted = [acl("ann", READ, TOPIC, "orders"), prefixed, acl("bob", ALL, GROUP, long, permission=Permission.DENY)]
    with node, Wire(node.bootstrap) as wire:
        add(wire, *wanted, wanted[0])
        assert len(listed(wire)) == 3
        assert listed(wire, resource_name_filter="orders") == {(2, "orders", 3, "User:ann", 3, 3)}
        assert len(listed(wire, resource_name_filter="orders", pattern_type_filter=2)) == 2
        assert listed(wire, principal_filter="User:bob") == {(3, long, 3, "User:bob", 2, 2)}
        assert remove(wire, resource_name_filter="orders", pattern_type_filter=2) == 2
        assert len(listed(wire)) == 1
        assert remove(wire) == 1
        assert remove(wire) == 0
        assert not [name for name in node.node.view.configs if name.startswith(FOLDER)]


def test_an_acl_counts_when_its_creation_is_answered(node: AclNode) -> None:
    with node, Wire(node.bootstrap) as wire:
        stored = node.node._authorization
        assert stored is not None
        for number in range(30):
            wanted = [acl("ann", READ, kind, f"n{number}") for kind in (TOPIC, GROUP)]
            add(wire, *wanted)
            assert set(stored.authorizer.matching(AclFilter(name=f"n{number}"))) == set(wanted)
            assert remove(wire, resource_name_filter=f"n{number}") == 2
            assert not list(stored.authorizer.matching(AclFilter()))


def test_invalid_acls_are_refused_one_by_one(node: AclNode) -> None:
    good = acl("ann", READ, TOPIC, "t")
    bad = Acl(Pattern(CLUSTER, "x"), good.entry)
    with node, Wire(node.bootstrap) as wire:
        results = wire.ask(ApiKey.CREATE_ACLS, creations=[creation(one) for one in (bad, good)]).results
        assert [one.error_code for one in results] == [ErrorCode.INVALID_REQUEST, 0]
        assert results[0].error_message == "The only valid name for the CLUSTER resource is kafka-cluster"
        assert len(listed(wire)) == 1
    with node, Wire(node.bootstrap) as wire:  # Kafka ends the connection too
        wire.send(ApiKey.CREATE_ACLS, creations=[{**creation(good), "operation": 99}])
        assert wire.is_ended()


def test_acls_are_there_after_a_restart(node: AclNode) -> None:
    with node, Wire(node.bootstrap) as wire:
        wire.create_topic("t")
        add(wire, acl("ann", WRITE, TOPIC, "t"))
    with node, node.of("ann") as ann, node.of("bob") as bob:
        assert produce(ann, "t") == 0
        assert produce(bob, "t") == DENIED
        assert fetch(ann, "t") == DENIED


def test_a_revoked_acl_counts_for_clients_that_are_connected(node: AclNode) -> None:
    with node, Wire(node.bootstrap) as wire, node.of("ann") as ann:
        wire.create_topic("t")
        assert (produce(ann, "t"), fetch(ann, "t")) == (DENIED, DENIED)
        add(wire, acl("ann", READ, TOPIC, "t"), acl("ann", WRITE, TOPIC, "t"))
        assert (produce(ann, "t"), fetch(ann, "t")) == (0, 0)
        add(wire, acl("ann", READ, TOPIC, "t", permission=Permission.DENY))
        assert (produce(ann, "t"), fetch(ann, "t")) == (0, DENIED)
        assert remove(wire) == 3
        assert (produce(ann, "t"), fetch(ann, "t")) == (DENIED, DENIED)
        assert node.node.directories.dirs[0].logs[TopicPartition("t", 0)].log_end_offset == 2


def test_a_fetch_that_waits_gets_nothing_after_the_acl_is_gone(node: AclNode) -> None:
    with node, Wire(node.bootstrap) as wire, node.of("ann") as ann:
        wire.create_topic("t")
        add(wire, acl("ann", READ, TOPIC, "t"))
        part = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
        topics = [{"topic": "t", "partitions": [part]}]
        ann.send(ApiKey.FETCH, 12, max_wait=60_000, min_bytes=1, max_bytes=1 << 20, topics=topics)
        replica = node.node.topics.partition("t", 0)
        assert replica is not None
        wait_until(lambda: bool(replica.waiters), "the fetch that waits")
        assert remove(wire) == 1
        assert produce(wire, "t") == 0
        (found,) = ann.answer(ApiKey.FETCH, 12).responses[0].partitions
        assert (found.error_code, bytes(found.records or b"")) == (DENIED, b"")


def test_acks_0_to_a_denied_topic_ends_the_connection(node: AclNode) -> None:
    with node, Wire(node.bootstrap) as wire, node.of("ann") as ann:
        wire.create_topic("t")
        data = [{"index": 0, "records": bytes(encode_batch([NewRecord(b"v")]))}]
        ann.send(ApiKey.PRODUCE, 9, acks=0, timeout=30_000, topic_data=[{"name": "t", "partition_data": data}])
        assert ann.is_ended()
        assert node.node.directories.dirs[0].logs[TopicPartition("t", 0)].log_end_offset == 0


def test_acls_reach_every_broker_of_a_cluster(tmp_path: Path) -> None:
    store = {"cluster.store": f"sqlite:{tmp_path / 'store'}"}
    with ExitStack() as stack:
        nodes = [
            stack.enter_context(AclNode(tmp_path / str(number), ["ann"], {**store, "node.id": str(number)}))
            for number in (1, 2)
        ]
        first, second = (stack.enter_context(Wire(one.bootstrap)) for one in nodes)
        other = stack.enter_context(nodes[1].of("ann"))
        add(first, acl("ann", READ, TOPIC, "t"), acl("ann", READ, GROUP, "g"))
        wait_until(lambda: len(listed(second)) == 2, "the ACLs on the other broker")
        describes = {"topics": [{"name": "t"}], "allow_auto_topic_creation": False}
        assert other.ask(ApiKey.METADATA, 12, **describes).topics[0].error_code != DENIED
        # A broker removes ACLs that it has not seen yet.
        add(second, acl("ann", WRITE, TOPIC, "t"))
        assert remove(first, resource_type_filter=2) == 2
        wait_until(lambda: len(listed(second)) == 1, "the end of the ACLs on the other broker")
        assert other.ask(ApiKey.METADATA, 12, **describes).topics[0].error_code == DENIED


def test_brokers_need_no_acls_and_others_pose_as_none(tmp_path: Path) -> None:
    """On the listener of the brokers everyone is anonymous: only the secret of the metadata store tells them apart."""
    settings = {
        "cluster.store": f"sqlite:{tmp_path / 'store'}",
        "super.users": "User:admin",
        "default.replication.factor": "2",
        "min.insync.replicas": "2",
        "transaction.state.log.num.partitions": "2",
    }
    with ExitStack() as stack:
        nodes = [
            stack.enter_context(AclNode(tmp_path / str(number), ["admin"], {**settings, "node.id": str(number)}))
            for number in (1, 2)
        ]
        wait_until(lambda: all(len(one.node.view.brokers) == 2 for one in nodes), "brokers that know each other")
        admin = stack.enter_context(nodes[0].of("admin"))
        topic = {"name": "t", "num_partitions": 2, "replication_factor": 2, "assignments": [], "configs": []}
        assert admin.ask(ApiKey.CREATE_TOPICS, topics=[topic], timeout=30_000).topics[0].error_code == 0
        login = {
            "bootstrap.servers": nodes[0].secured,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "admin",
            "sasl.password": password_of("admin"),
        }
        producer = Producer({**login, "transactional.id": "x", "acks": "all"})
        producer.init_transactions(60)
        producer.begin_transaction()
        for number in range(2):
            producer.produce("t", b"v", partition=number)
        producer.commit_transaction(60)  # by both brokers, with markers and verification between them

        posing = stack.enter_context(Wire(nodes[0].bootstrap))
        part = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
        ids = {one.name: one.topic_id for one in nodes[0].node.topics}
        asked = {"topics": [{"topic_id": ids["t"], "partitions": [part]}], "max_wait": 0, "min_bytes": 0}
        as_replica = posing.ask(ApiKey.FETCH, 17, replica_state={"replica_id": 2, "replica_epoch": 1}, **asked)
        assert as_replica.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        marker = {"producer_id": 1, "producer_epoch": 0, "transaction_result": False, "coordinator_epoch": 0}
        topics = [{"name": "t", "partition_indexes": [0]}]
        markers = posing.ask(ApiKey.WRITE_TXN_MARKERS, markers=[{**marker, "topics": topics}]).markers
        assert markers[0].topics[0].partitions[0].error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        verified = {"transactional_id": "x", "producer_id": 1, "producer_epoch": 0, "verify_only": True}
        added = posing.ask(ApiKey.ADD_PARTITIONS_TO_TXN, 5, transactions=[{**verified, "topics": []}])
        assert added.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        assert posing.ask(ApiKey.LIST_TRANSACTIONS).transaction_states == ()
        # A broker of an older release has no secret: without an authorizer, the listener would tell.
        peers = nodes[0].node.peers
        assert peers is not None
        old = {number: replace(one, proof="") for number, one in nodes[0].node.view.brokers.items()}
        context = RequestContext(int(ApiKey.FETCH), 17, "", "127.0.0.1", peers.listener)
        assert not peers._replace(brokers=lambda: old).is_broker(context)
        assert peers._replace(brokers=lambda: old, needs_proof=False).is_broker(context)


def test_delegation_tokens_are_seen_by_their_own_users_and_by_permission(tmp_path: Path) -> None:
    settings = {"delegation.token.secret.key": "a secret of the cluster"}
    with (
        AclNode(tmp_path, ["ann", "bob"], settings) as node,
        Wire(node.bootstrap) as wire,
        node.of("ann") as ann,
        node.of("bob") as bob,
    ):
        own: dict[str, Any] = {
            "owner_principal_type": None,
            "owner_principal_name": None,
            "renewers": [],
            "max_lifetime": -1,
        }
        theirs = {**own, "owner_principal_type": "User", "owner_principal_name": "ann"}
        assert ann.ask(ApiKey.CREATE_DELEGATION_TOKEN, **own).error_code == 0
        refused = bob.ask(ApiKey.CREATE_DELEGATION_TOKEN, **theirs)
        assert refused.error_code == ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED
        assert (refused.principal_name, refused.token_requester_principal_name) == ("ann", "bob")

        def seen(by: Wire) -> int:
            answer = by.ask(ApiKey.DESCRIBE_DELEGATION_TOKEN, owners=None)
            assert answer.error_code == 0
            return len(answer.tokens)

        assert (seen(ann), seen(bob)) == (1, 0)
        add(wire, acl("bob", Operation.DESCRIBE_TOKENS, ResourceType.USER, "User:ann"))
        assert seen(bob) == 1
        add(wire, acl("bob", Operation.CREATE_TOKENS, ResourceType.USER, "User:ann"))
        assert bob.ask(ApiKey.CREATE_DELEGATION_TOKEN, **theirs).error_code == 0
        assert remove(wire) == 2
        assert seen(bob) == 1  # that it asked for
        (token,) = bob.ask(ApiKey.DESCRIBE_DELEGATION_TOKEN, owners=None).tokens
        add(wire, acl("bob", Operation.DESCRIBE, ResourceType.DELEGATION_TOKEN, "*"))
        assert seen(bob) == 2
        assert token.principal_name == "ann"


def test_a_value_that_cannot_be_read_leaves_the_last_one_in_force(
    node: AclNode, caplog: pytest.LogCaptureFixture
) -> None:
    deny = acl("ann", READ, TOPIC, "t", permission=Permission.DENY)
    with node, Wire(node.bootstrap) as wire, node.of("ann") as ann:
        wire.create_topic("t")
        add(wire, acl("ann", ALL, TOPIC, "*"), deny)
        assert fetch(ann, "t") == DENIED
        name = name_of(deny.pattern)

        async def spoil() -> None:
            found = await node.node.store.get(name)
            assert found is not None
            node.node.view.note(name, b"?", await node.node.store.cas(name, b"?", found.version))

        with caplog.at_level(logging.ERROR, "seglog.security"):
            node.on_loop(spoil)
        assert fetch(ann, "t") == DENIED
        assert f"the ACLs at {name} in the metadata store cannot be read" in caplog.text


def test_a_denial_is_logged_with_its_rule(node: AclNode, caplog: pytest.LogCaptureFixture) -> None:
    with node, Wire(node.bootstrap) as wire, node.of("ann") as ann:
        wire.create_topic("t")
        add(wire, acl("ann", READ, TOPIC, "t", permission=Permission.DENY, host="127.0.0.0/8"))
        with caplog.at_level(logging.INFO, "seglog.authorizer"):
            assert fetch(ann, "t") == DENIED
            assert produce(ann, "t") == DENIED
    what = "from host = 127.0.0.1 on resource = TOPIC:LITERAL:'t' for request ="
    rule = "DENY READ to User:ann from 127.0.0.0/8 on TOPIC:LITERAL:t"
    assert [one.getMessage() for one in caplog.records if one.name == "seglog.authorizer"] == [
        f"Principal = User:ann is Denied operation = READ {what} Fetch based on rule {rule}",
        f"Principal = User:ann is Denied operation = WRITE {what} Produce based on rule DefaultDeny",
    ]


def test_denials_are_logged_at_a_bounded_rate(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    authorization = Authorization(Authorizer(), lambda _: False, lambda: now)
    context = RequestContext(int(ApiKey.FETCH), 12, "", "10.0.0.1", "SASL", "", "User:ann")
    with caplog.at_level(logging.INFO, "seglog.authorizer"):
        for _ in range(150):
            assert not authorization.may(context, READ, TOPIC, "t")
        assert not authorization.may(context, READ, TOPIC, "t", logs=False)
        assert len(caplog.records) == 100
        now = 10.0
        assert not authorization.may(context, READ, TOPIC, "t")
    assert caplog.records[100].getMessage() == "50 more denials were not logged in 10 s"
    assert len(caplog.records) == 102


def test_a_broker_whose_clients_authenticate_warns_without_an_authorizer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "seglog.broker"), AclNode(tmp_path, ["ann"], {"authorizer.class.name": ""}):
        pass
    assert "clients authenticate, but there is no authorizer" in caplog.text
