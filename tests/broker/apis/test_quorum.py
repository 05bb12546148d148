"""DescribeQuorum: the shape is that of a Kafka 4.4 with one node, which has offsets of its log besides."""

from __future__ import annotations

import pytest

from seglog.protocol.apis import ApiKey
from seglog.protocol.message_reader import Message
from tests.broker.broker_thread import Wire


def described(wire: Wire, version: int, topic: str = "__cluster_metadata", number: int = 0) -> Message:
    asked = [{"topic_name": topic, "partitions": [{"partition_index": number}]}]
    answer = wire.ask(ApiKey.DESCRIBE_QUORUM, version, topics=asked)
    assert answer.error_code == 0
    return answer


@pytest.mark.parametrize("version", range(3))
def test_the_controller_is_a_quorum_of_one(wire: Wire, version: int) -> None:
    answer = described(wire, version)
    (partition,) = answer.topics[0].partitions
    cluster = wire.ask(ApiKey.DESCRIBE_CLUSTER)
    assert (partition.error_code, partition.leader_id) == (0, cluster.controller_id)
    assert partition.leader_epoch > 0
    (voter,) = partition.current_voters
    assert (voter.replica_id, voter.log_end_offset) == (cluster.controller_id, partition.high_watermark)
    assert partition.observers == ()
    if version >= 1:
        assert voter.last_fetch_timestamp == voter.last_caught_up_timestamp > 1_600_000_000_000
    if version >= 2:
        (node,) = answer.nodes
        (broker,) = cluster.brokers
        (listener,) = node.listeners
        assert (node.node_id, listener.host, listener.port) == (broker.broker_id, broker.host, broker.port)


def test_there_is_no_other_quorum(wire: Wire) -> None:
    for topic, number in (("__cluster_metadata", 1), ("t", 0)):
        answer = described(wire, 2, topic, number)
        (partition,) = answer.topics[0].partitions
        assert (partition.error_code, partition.error_message) == (3, "This server does not host this topic-partition.")
        assert answer.nodes == ()
    assert wire.ask(ApiKey.DESCRIBE_QUORUM, topics=[]).topics == ()
