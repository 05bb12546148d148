"""Groups of the consumer protocol (KIP-848): ConsumerGroupHeartbeat and ConsumerGroupDescribe."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final
from uuid import UUID

from seglog.broker.apis.groups import GROUP_OPERATIONS
from seglog.broker.identity import NOT_ASKED
from seglog.broker.requests import Answer, ApiHandler, RequestContext, Sees, sees_all
from seglog.coordinators.consumer.group import EMPTY_TARGET, ConsumerGroup
from seglog.coordinators.consumer.member import (
    JOINS,
    LEAVES,
    LEAVES_FOR_NOW,
    NO_NUMBERS,
    ConsumerMember,
)
from seglog.coordinators.consumer.messages import ConsumerHeartbeat
from seglog.coordinators.consumer.topic_image import TopicImage
from seglog.coordinators.consumer_records import Partitions
from seglog.coordinators.coordinator_error import CoordinatorError
from seglog.coordinators.group_coordinator import GroupCoordinator
from seglog.core.error_codes import ErrorCode
from seglog.protocol.apis import ApiKey
from seglog.protocol.messages import Message

_CLIENT_MAKES_ID_FROM: Final = 1
_CLASSIC_MEMBER: Final = 0
_CONSUMER_MEMBER: Final = 1
_ZERO: Final = UUID(int=0)


class ConsumerGroupApis:
    """Answers members of consumer groups, and administrators that describe them. With ``group.version`` 0 there are no
    such groups."""

    def __init__(self, coordinator: GroupCoordinator, group_version: Callable[[], int], sees: Sees = sees_all) -> None:
        self._coordinator = coordinator
        self._sees = sees
        self._group_version = group_version

    def handlers(self) -> Mapping[int, ApiHandler]:
        return {
            ApiKey.CONSUMER_GROUP_HEARTBEAT: self.heartbeat,
            ApiKey.CONSUMER_GROUP_DESCRIBE: self.describe,
        }

    async def heartbeat(self, request: Message, context: RequestContext) -> Answer:
        if not self._group_version():
            return {"error_code": int(ErrorCode.UNSUPPORTED_VERSION)}
        try:
            assignors = self._coordinator.rules(request.group_id).assignors
            _check_heartbeat(request, context.version, assignors)
            wanted = _heartbeat(request, context)
            answered = await self._coordinator.consumer_heartbeat(wanted, self._sees(context))
        except CoordinatorError as error:
            return _refused(error)
        assigned = answered.assigned
        return {
            "member_id": answered.member_id,
            "member_epoch": answered.epoch,
            "heartbeat_interval": answered.interval,
            "assignment": None
            if assigned is None
            else {
                "topic_partitions": [
                    {"topic_id": topic_id, "partitions": sorted(numbers)} for topic_id, numbers in assigned.items()
                ]
            },
        }

    def describe(self, request: Message, _: RequestContext) -> Answer:
        operations = GROUP_OPERATIONS if request.include_authorized_operations else NOT_ASKED
        groups: list[dict[str, Any]] = []
        for group_id in request.group_ids:
            if not self._group_version():
                groups.append({"group_id": group_id, "error_code": int(ErrorCode.UNSUPPORTED_VERSION)})
                continue
            if not group_id:
                groups.append({"group_id": group_id, "error_code": int(ErrorCode.INVALID_GROUP_ID)})
                continue
            try:
                group = self._coordinator.shard(group_id).consumer_group(group_id)
            except CoordinatorError as error:
                groups.append({"group_id": group_id, **_refused(error)})
            else:
                assignor = self._coordinator.rules(group_id).assignors[0]
                described = _described(group, assignor, self._coordinator.topics)
                groups.append({**described, "authorized_operations": operations})
        return {"groups": groups}


def _refused(error: CoordinatorError) -> dict[str, Any]:
    return {"error_code": int(error.code), "error_message": str(error)}


def _heartbeat(request: Message, context: RequestContext) -> ConsumerHeartbeat:
    topics = request.subscribed_topic_names
    owned = request.topic_partitions
    return ConsumerHeartbeat(
        request.group_id,
        request.member_id,
        request.member_epoch,
        request.instance_id,
        request.rack_id,
        request.rebalance_timeout,
        None if topics is None else frozenset(topics),
        getattr(request, "subscribed_topic_regex", None),
        request.server_assignor,
        None if owned is None else _partitions(owned),
        context.client_id,
        f"/{context.client_host}",
    )


def _partitions(owned: Iterable[Message]) -> Partitions:
    found: dict[UUID, frozenset[int]] = {}
    for topic in owned:
        topic_id = topic.topic_id or _ZERO
        found[topic_id] = found.get(topic_id, frozenset()) | frozenset(topic.partitions)
    return found


def _check_heartbeat(request: Message, version: int, assignors: Iterable[str]) -> None:
    """Raises `CoordinatorError` (``GroupCoordinatorService.throwIfConsumerGroupHeartbeatRequestIsInvalid``)."""
    epoch = request.member_epoch
    if (version >= _CLIENT_MAKES_ID_FROM or epoch > JOINS or epoch == LEAVES) and not request.member_id.strip():
        raise _invalid("MemberId can't be empty.")
    for name, text in (("GroupId", request.group_id), ("InstanceId", request.instance_id), ("RackId", request.rack_id)):
        if text is not None and not text.strip():
            raise _invalid(f"{name} can't be empty.")
    if epoch == JOINS:
        _check_join(request)
    elif epoch == LEAVES_FOR_NOW and request.instance_id is None:
        raise _invalid("InstanceId can't be null.")
    elif epoch < LEAVES_FOR_NOW:
        raise _invalid("MemberEpoch is invalid.")
    if request.server_assignor is not None and request.server_assignor not in assignors:
        raise CoordinatorError(
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            f"ServerAssignor {request.server_assignor} is not supported. Supported assignors: {', '.join(assignors)}.",
        )


def _check_join(request: Message) -> None:
    if request.rebalance_timeout == -1:
        raise _invalid("RebalanceTimeoutMs must be provided in first request.")
    if request.topic_partitions is None or request.topic_partitions:
        raise _invalid("TopicPartitions must be empty when (re-)joining.")
    if request.subscribed_topic_names is None and getattr(request, "subscribed_topic_regex", None) is None:
        raise _invalid("Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.")


def _invalid(message: str) -> CoordinatorError:
    return CoordinatorError(ErrorCode.INVALID_REQUEST, message)


def _described(group: ConsumerGroup, default_assignor: str, topics: TopicImage) -> dict[str, Any]:
    return {
        "group_id": group.group_id,
        "group_state": group.state.value,
        "group_epoch": group.epoch,
        "assignment_epoch": group.target.epoch,
        "assignor_name": group.assignor(group.members.values(), default_assignor),
        "members": [_member(group, member, topics) for member in group.members.values()],
    }


def _member(group: ConsumerGroup, member: ConsumerMember, topics: TopicImage) -> dict[str, Any]:
    """Partitions that it must give up still count as assigned."""
    assigned = {
        topic_id: frozenset({*member.assigned.get(topic_id, NO_NUMBERS), *member.revoking.get(topic_id, NO_NUMBERS)})
        for topic_id in {*member.assigned, *member.revoking}
    }
    return {
        "member_id": member.member_id,
        "instance_id": member.instance_id,
        "rack_id": member.rack,
        "member_epoch": member.epoch,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "subscribed_topic_names": sorted(member.topics),
        "subscribed_topic_regex": member.expression,
        "assignment": _assignment(assigned, topics),
        "target_assignment": _assignment(group.targets.get(member.member_id, EMPTY_TARGET), topics),
        "member_type": _CLASSIC_MEMBER if member.is_classic else _CONSUMER_MEMBER,
    }


def _assignment(partitions: Partitions, topics: TopicImage) -> dict[str, Any]:
    found = ((topics.find(topic_id), numbers) for topic_id, numbers in partitions.items())
    return {
        "topic_partitions": [
            {"topic_id": topic.topic_id, "topic_name": topic.name, "partitions": sorted(numbers)}
            for topic, numbers in found
            if topic is not None
        ]
    }
