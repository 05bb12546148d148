"""Groups over Kafka's protocol, for what confluent-kafka lacks: descriptions of the consumer protocol with epochs and
assignments (KIP-848), and commits of a simple consumer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from seglog.client.admin import Admin
from seglog.client.cluster_connections import GROUP, ClusterConnections
from seglog.client.connection import describe_code
from seglog.cluster.reassignment_plan import Place
from seglog.core.clock import SystemClock
from seglog.core.error_codes import ErrorCode
from seglog.core.errors import BrokerUnavailableError, RequestFailedError
from seglog.core.types import TopicPartition
from seglog.protocol.apis import ApiKey
from seglog.protocol.message_reader import Message

_CLASSIC: Final = 0
_CONSUMER: Final = 1
_OTHERS: Final = frozenset({ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION})
"""The answers about a classic group, and of a broker whose ``group.version`` is 0."""
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


class ConsumerGroupMember(NamedTuple):
    """``partitions`` are those that the member has or still gives up, ``target`` those that it is to have at the
    group's target epoch. ``is_upgraded``: whether it uses the consumer protocol; None from brokers before Kafka 4.0."""

    epoch: int
    topics: tuple[str, ...]
    regex: str | None
    partitions: tuple[Place, ...]
    target: tuple[Place, ...]
    is_upgraded: bool | None


class ConsumerGroup(NamedTuple):
    """``epoch`` rises with each change of members, subscriptions or topics; ``target_epoch`` follows when the target
    assignment is computed. ``state`` is one of Kafka's names, such as Reconciling. ``members`` by id."""

    state: str
    epoch: int
    target_epoch: int
    members: Mapping[str, ConsumerGroupMember]


class ConsumerGroupAdmin(Admin):
    """Use as a context manager, in one thread. `RequestFailedError` names the broker or group."""

    def describe(self, group: str) -> ConsumerGroup | None:
        """Ask the group's coordinator. None for other groups, and if the broker has no such groups."""
        coordinator = self._at(self._cluster.coordinator(GROUP, group).address)
        if not coordinator.has(ApiKey.CONSUMER_GROUP_DESCRIBE):
            return None
        contents = {"group_ids": (group,), "include_authorized_operations": False}
        (found,) = coordinator.ask(ApiKey.CONSUMER_GROUP_DESCRIBE, contents).groups
        if found.error_code in _OTHERS:
            return None
        if found.error_code:
            raise RequestFailedError(f"group {group}: {found.error_message or describe_code(found.error_code)}")
        members = {one.member_id: _member(one) for one in found.members}
        return ConsumerGroup(found.group_state, found.group_epoch, found.assignment_epoch, members)


def _member(one: Message) -> ConsumerGroupMember:
    return ConsumerGroupMember(
        one.member_epoch,
        tuple(one.subscribed_topic_names),
        one.subscribed_topic_regex or None,
        _places(one.assignment),
        _places(one.target_assignment),
        one.member_type == _CONSUMER if one.member_type in (_CLASSIC, _CONSUMER) else None,
    )


def _places(assignment: Message) -> tuple[Place, ...]:
    return tuple(sorted((topic.topic_name, at) for topic in assignment.topic_partitions for at in topic.partitions))


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
