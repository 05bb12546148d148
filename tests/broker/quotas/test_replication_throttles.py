"""Throttles of replication between two brokers: a replica out of sync is held, and goes on once it may."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from seglog.core.types import TopicPartition
from seglog.protocol.apis import ApiKey
from tests.broker.broker_thread import RunningNode, Wire
from tests.broker.quotas.quota_requests import produce_request
from tests.kit.waiting import wait_until

_BATCHES = 50
TOPIC, BROKER = 2, 4


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[list[RunningNode]]:
    def settings(node: int) -> dict[str, str]:
        return {
            "cluster.store": f"sqlite:{tmp_path / 'store'}",
            "node.id": str(node),
            "replica.fetch.max.bytes": "100",  # one batch at a time
            "replica.fetch.response.max.bytes": "100",
            "replica.fetch.wait.max.ms": "50",
        }

    with ExitStack() as stack:
        yield [stack.enter_context(RunningNode(tmp_path / str(node), settings(node))) for node in (1, 2)]


def set_config(wire: Wire, kind: int, name: str, key: str, value: str | None) -> None:
    config = {"name": key, "config_operation": int(value is None), "value": value}
    resource = {"resource_type": kind, "resource_name": name, "configs": [config]}
    answer = wire.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, resources=[resource], validate_only=False)
    assert [(one.error_code, one.error_message) for one in answer.responses] == [(0, None)]


def end_on(node: RunningNode) -> int:
    """The end of the replica's log; -1 if it has none."""
    log = node.node.directories.dirs[0].logs.get(TopicPartition("t", 0))
    return -1 if log is None else log.log_end_offset


def throttle_on(node: RunningNode, key: str) -> str | None:
    """The throttled replicas, as far as this broker has heard of them."""
    topic = node.node.view.topics.get("t")
    return None if topic is None else topic.config.get(key)


def is_moving(node: RunningNode) -> bool:
    return any(one.state.adding for one in node.node.view.partitions.values())


@pytest.mark.parametrize("side", ["leader", "follower"])
@pytest.mark.parametrize("replicas", ["*", "0:1,0:2"])
def test_a_new_replica_is_held_until_its_throttle_goes(nodes: list[RunningNode], side: str, replicas: str) -> None:
    wait_until(lambda: all(len(one.node.view.brokers) == 2 for one in nodes), "brokers that know each other")
    rate, list_ = f"{side}.replication.throttled.rate", f"{side}.replication.throttled.replicas"
    with Wire(nodes[0].bootstrap) as first, Wire(nodes[1].bootstrap) as second:
        placed = [{"partition_index": 0, "broker_ids": [1]}]
        rest = {"num_partitions": -1, "replication_factor": -1, "configs": []}
        wanted = [{"name": "t", "assignments": placed, **rest}]
        answer = first.ask(ApiKey.CREATE_TOPICS, topics=wanted, timeout=30_000, validate_only=False)
        assert answer.topics[0].error_code == 0
        for _ in range(_BATCHES):
            answer = first.ask(ApiKey.PRODUCE, 9, **produce_request("t", 2_000))
            assert answer.responses[0].partition_responses[0].error_code == 0
        set_config(first, TOPIC, "t", list_, replicas)
        for node, wire in ((1, first), (2, second)):
            set_config(wire, BROKER, str(node), rate, "1")
        wait_until(lambda: throttle_on(nodes[1], list_) == replicas, "the throttle")
        moves = [{"name": "t", "partitions": [{"partition_index": 0, "replicas": [1, 2]}]}]
        answer = first.ask(ApiKey.ALTER_PARTITION_REASSIGNMENTS, topics=moves, timeout_ms=30_000)
        assert answer.error_code == 0
        wait_until(lambda: end_on(nodes[1]) > 0, "the first records")
        held_at = end_on(nodes[1])
        for _ in range(100):  # an append, a fetch and a produce of others do not free it
            first.ask(ApiKey.PRODUCE, 9, **produce_request("t", 10))
        assert held_at < _BATCHES
        assert end_on(nodes[1]) < _BATCHES
        assert is_moving(nodes[0])
        set_config(first, TOPIC, "t", list_, None)
        wait_until(lambda: end_on(nodes[1]) == _BATCHES + 100, "all records")
        wait_until(lambda: not is_moving(nodes[0]), "the end of the move")
        set_config(first, TOPIC, "t", list_, replicas)  # a replica in sync is not held
        answer = first.ask(ApiKey.PRODUCE, 9, **produce_request("t", 5_000, acks=-1))
        assert answer.responses[0].partition_responses[0].error_code == 0
        wait_until(lambda: end_on(nodes[1]) == _BATCHES + 101, "the last record")


def test_dynamic_rates_may_be_those_of_all_brokers(nodes: list[RunningNode]) -> None:
    key = "leader.replication.throttled.rate"
    with Wire(nodes[0].bootstrap) as wire:
        set_config(wire, BROKER, "", key, "5000")
        wait_until(lambda: nodes[1].node.configuration.dynamic(key) == "5000", "the rate")
        set_config(wire, BROKER, "1", key, "7000")
        assert nodes[0].node.configuration.dynamic(key) == "7000"
        set_config(wire, BROKER, "1", key, None)
        assert nodes[0].node.configuration.dynamic(key) == "5000"
        set_config(wire, BROKER, "", key, None)
        assert nodes[0].node.configuration.dynamic(key) is None
