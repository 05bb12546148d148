"""Groups of the consumer protocol over Kafka's protocol (KIP-848): epochs and assignments, which confluent-kafka's
descriptions lack."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from seglog.client.admin import Admin
from seglog.client.cluster_connections import GROUP
from seglog.client.connection import describe_code
from seglog.cluster.reassignment_plan import Place
from seglog.core.error_codes import ErrorCode
from seglog.core.errors import RequestFailedError
from seglog.protocol.apis import ApiKey
from seglog.protocol.message_reader import Message

_CLASSIC: Final = 0
_CONSUMER: Final = 1
_OTHERS: Final = frozenset({ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION})
"""The answers about a classic group, and of a broker whose ``group.version`` is 0."""


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
