"""Markers from clients: only what hangs may be aborted. Brokers write all markers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from seglog.core.error_codes import ErrorCode
from seglog.protocol import replica_fetch
from seglog.protocol.apis import ApiKey
from seglog.protocol.framing import header_tags, read_header
from seglog.protocol.replica_fetch import RequestHead
from tests.broker.broker_thread import RunningNode, Wire
from tests.broker.transactional_producer import COORDINATOR_FENCED, UNKNOWN_TOPIC, TransactionalProducer, stable_end
from tests.kit.cluster import SeglogCluster
from tests.kit.virtual_cluster import VirtualCluster
from tests.kit.waiting import wait_until

UNVERIFIED = {"transaction.partition.verification.enable": "false"}
REFUSED = ErrorCode.CLUSTER_AUTHORIZATION_FAILED


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    with RunningNode(tmp_path_factory.mktemp("markers"), UNVERIFIED) as running:
        yield running


def mark(
    wire: Wire,
    producer: TransactionalProducer,
    topic: str,
    *partitions: int,
    commit: bool = False,
    coordinator_epoch: int = 0,
) -> list[int]:
    marker = {
        "producer_id": producer.producer_id,
        "producer_epoch": producer.epoch,
        "transaction_result": commit,
        "topics": [{"name": topic, "partition_indexes": partitions}],
        "coordinator_epoch": coordinator_epoch,
        "transaction_version": 0,
    }
    (answer,) = wire.ask(ApiKey.WRITE_TXN_MARKERS, markers=[marker]).markers
    return [one.error_code for one in answer.topics[0].partitions]


def test_a_client_aborts_a_hanging_transaction(wire: Wire, topic: str) -> None:
    """KIP-664: of a batch that no coordinator knows."""
    producer = TransactionalProducer(wire, topic, 0)
    assert producer.produce(topic, b"late") == 0
    assert mark(wire, producer, topic, 0, 9, commit=True) == [REFUSED, REFUSED]
    assert stable_end(wire, topic) == 0
    assert mark(wire, producer, topic, 0, 9) == [0, UNKNOWN_TOPIC]
    assert stable_end(wire, topic) == 2


@pytest.mark.parametrize("commit", [False, True])
@pytest.mark.parametrize("version", [0, 2])
def test_a_client_ends_no_transaction_of_a_coordinator(wire: Wire, topic: str, commit: bool, version: int) -> None:
    producer = TransactionalProducer(wire, f"{topic}-{version}", version)
    assert producer.send(topic, b"a") == 0
    assert mark(wire, producer, topic, 0, commit=commit) == [REFUSED]
    assert stable_end(wire, topic) == 0
    assert producer.end().error_code == 0
    while stable_end(wire, topic) < 2:
        pass


def test_a_partition_that_is_not_in_the_open_transaction_hangs(wire: Wire, topic: str) -> None:
    producer = TransactionalProducer(wire, topic, 0)
    assert producer.send(topic, b"a") == 0
    assert producer.produce(topic, b"late", 1) == 0
    assert mark(wire, producer, topic, 0, 1) == [REFUSED, 0]
    producer.end()


def test_a_marker_of_a_coordinator_that_was_replaced_is_refused(wire: Wire, topic: str) -> None:
    producer = TransactionalProducer(wire, topic, 0)
    epochs = (7, 7, 6, 8)
    found = [mark(wire, producer, topic, 0, coordinator_epoch=epoch) for epoch in epochs]
    assert found == [[0], [0], [COORDINATOR_FENCED], [0]]


def test_in_a_cluster_all_coordinators_are_asked(tmp_path: Path) -> None:
    """The leader of the partition seldom coordinates the transaction."""
    with SeglogCluster(tmp_path, settings=UNVERIFIED) as cluster, Wire(cluster[1].bootstrap) as any_broker:
        wanted = {"name": "t", "num_partitions": 6, "replication_factor": 3}
        (created,) = any_broker.ask(ApiKey.CREATE_TOPICS, topics=[wanted], timeout=30_000).topics
        assert created.error_code == 0
        wait_until(lambda: _coordinators(any_broker, "id")[0].node_id > 0, "a coordinator")
        (found,) = _coordinators(any_broker, "id")
        also_there = next(
            one.key
            for one in _coordinators(any_broker, *(f"id-{number}" for number in range(100)))
            if one.node_id == found.node_id
        )
        leaders = {number: cluster.leader("t", number) for number in range(6)}
        number, leader = next(one for one in leaders.items() if one[1] not in (None, found.node_id))
        assert leader is not None
        with Wire(f"{found.host}:{found.port}") as coordinator, Wire(cluster[leader].bootstrap) as at_leader:
            producer = TransactionalProducer(coordinator, "id", 0)
            assert producer.add("t", number) == 0
            hanging = TransactionalProducer(coordinator, also_there, 0)
            for one, code in ((producer, REFUSED), (hanging, 0)):
                one.wire = at_leader
                assert one.produce("t", b"a", number) == 0
                assert mark(at_leader, one, "t", number) == [code]
            producer.wire = coordinator
            assert producer.end().error_code == 0
            wait_until(lambda: stable_end(at_leader, "t", number) == 4, "the marker, which comes from a broker")


def _coordinators(wire: Wire, *ids: str) -> Any:
    return wire.ask(ApiKey.FIND_COORDINATOR, key_type=1, coordinator_keys=ids).coordinators


def test_only_a_registered_broker_follows() -> None:
    """A client that claims to be a follower would advance the high watermark: acks=all would mean nothing."""
    with VirtualCluster(2) as cluster:
        follower = cluster[2].running
        cluster.until(lambda: len(cluster[1].running.view.brokers) == 2)
        me = cluster[2].me
        assert me is not None
        body = replica_fetch.write_request(RequestHead(0, 1, 1 << 20, 0, 0, *me), {}, {})

        def ask(proof: str) -> int:
            answer = cluster.ask(cluster[1], ApiKey.FETCH, replica_fetch.VERSION, body, proof=proof)
            return replica_fetch.read_response(answer).error

        assert ask(follower.membership.proof) == 0
        others = cluster[1].running.membership.proof
        assert [ask(proof) for proof in ("", "0" * 32, others)] == [REFUSED] * 3


@pytest.mark.parametrize("proof", ["", "7f" * 16])
def test_a_proof_is_a_tagged_field_of_the_header(proof: str) -> None:
    head = bytes((0, ApiKey.FETCH, 0, 17, 0, 0, 0, 7, 255, 255))
    found = read_header(head + header_tags(proof))
    assert (found.proof, found.body) == (proof, len(head + header_tags(proof)))
