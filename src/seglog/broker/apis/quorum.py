"""DescribeQuorum: the controller as a quorum of one. Kafka's tools read from it which node is the controller."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from seglog.broker.identity import Identity
from seglog.broker.offload import in_turns
from seglog.broker.requests import NO_SUCH_PARTITION, Answer, ApiHandler, RequestContext
from seglog.cluster.cluster_view import ClusterView
from seglog.cluster.model import NO_LEADER
from seglog.core.clock import Clock
from seglog.core.error_codes import ErrorCode
from seglog.core.topic_names import METADATA_TOPIC
from seglog.protocol.apis import ApiKey
from seglog.protocol.messages import Message

_NO_EPOCH: Final = 0
_OFFSET: Final = 0
"""All offsets: the metadata store is not a log, so all brokers are equally far in it."""


class QuorumApis:
    """Answers DescribeQuorum: the controller votes, the other brokers observe."""

    def __init__(self, view: ClusterView, identity: Identity, clock: Clock) -> None:
        self._view = view
        self._identity = identity
        self._clock = clock

    def handlers(self) -> Mapping[int, ApiHandler]:
        return {ApiKey.DESCRIBE_QUORUM: self.describe_quorum}

    async def describe_quorum(self, request: Message, context: RequestContext) -> Answer:
        topics = [
            {
                "topic_name": topic.topic_name,
                "partitions": [
                    self._partition(topic.topic_name, one.partition_index) async for one in in_turns(topic.partitions)
                ],
            }
            async for topic in in_turns(request.topics)
        ]
        is_known = any(not one["error_code"] for topic in topics for one in topic["partitions"])
        nodes = [self._node(context.listener)] if is_known else []
        return {"error_code": 0, "error_message": "", "topics": topics, "nodes": [node for node in nodes if node]}

    def _partition(self, topic: str, number: int) -> dict[str, Any]:
        if (topic, number) != (METADATA_TOPIC, 0):
            refusal = {
                "error_code": int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
                "error_message": NO_SUCH_PARTITION,
            }
            return {"partition_index": number, **refusal}
        controller = self._view.controller
        leader = NO_LEADER if controller is None else controller.node_id
        now = self._clock.now_ms()
        members = {
            node: {
                "replica_id": node,
                "replica_directory_id": None,
                "log_end_offset": _OFFSET,
                "last_fetch_timestamp": now,
                "last_caught_up_timestamp": now,
            }
            for node in sorted(self._identity.registered())
        }
        return {
            "partition_index": number,
            "error_code": 0,
            "error_message": "",
            "leader_id": leader,
            "leader_epoch": _NO_EPOCH if controller is None else controller.epoch,
            "high_watermark": _OFFSET,
            "current_voters": [member for node, member in members.items() if node == leader],
            "observers": [member for node, member in members.items() if node != leader],
        }

    def _node(self, listener: str) -> dict[str, Any] | None:
        """The controller's address for clients of this listener."""
        controller = self._view.controller
        address = None if controller is None else self._identity.address(controller.node_id, listener)
        if controller is None or address is None:
            return None
        where = {"name": address.name, "host": address.host, "port": address.port}
        return {"node_id": controller.node_id, "listeners": [where]}
