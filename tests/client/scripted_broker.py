"""A broker whose answers a test writes down, for states of a cluster that last milliseconds elsewhere."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple
from uuid import UUID

from seglog.core.error_codes import ErrorCode
from seglog.protocol.apis import ApiKey
from tests.kit.protocol_server import ProtocolServer

TOPIC: Final = "t"
PLANNED_ID: Final = UUID(int=1)
"""The id that the topic has at first."""
_VERSIONS: Final = {ApiKey.FETCH: 12, ApiKey.LIST_OFFSETS: 5, ApiKey.METADATA: 10}


class FetchedPartition(NamedTuple):
    """A partition in an answer to Fetch; by default it is empty, and nothing is known of it."""

    high_watermark: int = -1
    last_stable: int = -1
    records: bytes = b""
    error: ErrorCode = ErrorCode.NONE
    preferred: int = -1
    diverging: int = -1
    throttle_ms: int = 0
    is_left_out: bool = False

    def contents(self, partition: int) -> dict[str, Any]:
        return {
            "partition_index": partition,
            "error_code": self.error,
            "high_watermark": self.high_watermark,
            "last_stable_offset": self.last_stable,
            "preferred_read_replica": self.preferred,
            "diverging_epoch": {"epoch": 0 if self.diverging >= 0 else -1, "end_offset": self.diverging},
            "records": self.records,
        }


class FetchRequest(NamedTuple):
    """The asked partitions with their offsets, in order."""

    offsets: Mapping[int, int]
    rack: str


class ScriptedBroker(ProtocolServer):
    """Broker ``node``, which leads ``partitions`` of topic ``t`` unless ``leader`` is another one.

    Each answer to Fetch is the next of ``script``, by partition, and the last one again after that; a partition without
    one is as `FetchedPartition` by default. ``offsets`` are the log start offset and the high watermark by ListOffsets.
    From ``fetch_version`` 13 on, Fetch has topic ids.
    """

    def __init__(
        self,
        *script: Mapping[int, FetchedPartition],
        node: int = 0,
        partitions: int = 1,
        fetch_version: int = _VERSIONS[ApiKey.FETCH],
    ) -> None:
        super().__init__({**_VERSIONS, ApiKey.FETCH: fetch_version})
        self.node = node
        self.leader = node
        self.others: Sequence[ScriptedBroker] = ()
        self.topic_id: UUID | None = PLANNED_ID
        self.offsets = (0, 10)
        self.fetches: list[FetchRequest] = []
        self.look_ups = 0
        """Requests for the topic's metadata."""
        self._partitions = partitions
        self._script = deque(script)

    def contents(self, key: ApiKey, request: Any) -> Mapping[str, Any]:
        if key == ApiKey.METADATA:
            return self._metadata(request)
        if key == ApiKey.LIST_OFFSETS:
            return self._list_offsets(request)
        asked = {one.partition: one.fetch_offset for topic in request.topics for one in topic.partitions}
        self.fetches.append(FetchRequest(asked, request.rack_id))
        answer = self.answer(request.rack_id)
        found = {number: answer.get(number, FetchedPartition()) for number in asked}
        partitions = [one.contents(number) for number, one in found.items() if not one.is_left_out]
        throttle = max(one.throttle_ms for one in found.values())
        responses = [{"topic": TOPIC, "topic_id": PLANNED_ID, "partitions": partitions}] if partitions else []
        return {"throttle_time": throttle, "responses": responses}

    def answer(self, rack: str) -> Mapping[int, FetchedPartition]:
        """The answer to the next Fetch."""
        del rack
        return self._script.popleft() if len(self._script) > 1 else self._script[0]

    def _metadata(self, request: Any) -> Mapping[str, Any]:
        brokers = [
            {"node_id": one.node, "host": one.address.host, "port": one.address.port} for one in (self, *self.others)
        ]
        numbers = range(self._partitions) if self.topic_id else ()
        topic = {
            "name": TOPIC,
            "topic_id": self.topic_id,
            "error_code": ErrorCode.NONE if self.topic_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            "partitions": [{"partition_index": number, "leader_id": self.leader} for number in numbers],
        }
        is_asked = request.topics is None or request.topics
        self.look_ups += bool(is_asked)
        return {"brokers": brokers, "controller_id": self.node, "topics": [topic] if is_asked else []}

    def _list_offsets(self, request: Any) -> Mapping[str, Any]:
        start, end = self.offsets
        partitions = [
            {"partition_index": one.partition_index, "offset": start if one.timestamp == -2 else end}
            for topic in request.topics
            for one in topic.partitions
        ]
        return {"topics": [{"name": TOPIC, "partitions": partitions}]}
