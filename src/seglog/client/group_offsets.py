"""Commits offsets to a consumer group without being a member of it, as a simple consumer does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from seglog.client.cluster_connections import GROUP, ClusterConnections
from seglog.client.connection import describe_code
from seglog.core.clock import SystemClock
from seglog.core.error_codes import ErrorCode
from seglog.core.errors import BrokerUnavailableError, RequestFailedError
from seglog.core.types import TopicPartition
from seglog.protocol.apis import ApiKey
from seglog.protocol.message_reader import Message

_MOVED: Final = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNSTABLE_OFFSET_COMMIT,
    }
)
_TRIES: Final = 5


def commit_offsets(cluster: ClusterConnections, group: str, offsets: Mapping[TopicPartition, int]) -> None:
    """The next offset to read of each partition. `RequestFailedError` names the group if it has members, or if no
    coordinator takes the offsets after some tries."""
    topics: dict[str, list[dict[str, object]]] = {}
    for partition, offset in offsets.items():
        one = {"partition_index": partition.partition, "committed_offset": offset, "committed_metadata": ""}
        topics.setdefault(partition.topic, []).append(one)
    problem = ""
    for attempt in range(_TRIES):
        if attempt:
            SystemClock().sleep(cluster.config.retry_backoff * 2**attempt)
        try:
            ids = {name: topic.topic_id for name, topic in cluster.metadata(topics).topics.items()}
            wanted = [
                {"name": name, "topic_id": ids.get(name), "partitions": partitions}
                for name, partitions in topics.items()
            ]
            contents = {"group_id": group, "generation_id_or_member_epoch": -1, "member_id": "", "topics": wanted}
            address = cluster.coordinator(GROUP, group).address
            codes = _codes(cluster.ask_at(address, ApiKey.OFFSET_COMMIT, contents))
        except BrokerUnavailableError as error:
            problem = str(error)
            continue
        except RequestFailedError as error:
            problem = str(error)
            if ErrorCode.COORDINATOR_NOT_AVAILABLE.name in problem:
                continue
            raise
        bad = codes - {ErrorCode.NONE}
        if not bad:
            return
        problem = f"broker {address}: {', '.join(sorted(describe_code(code) or '' for code in bad))}"
        if bad - _MOVED:
            break
    raise RequestFailedError(f"offsets of group {group}: {problem}")


def _codes(answer: Message) -> set[int]:
    return {one.error_code for topic in answer.topics for one in topic.partitions}
