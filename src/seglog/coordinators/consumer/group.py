"""A consumer group (KIP-848, ``ConsumerGroup``): the state that its records make up. Pure.

A group has three kinds of epochs. The group epoch grows when members, subscriptions or topics change. Then the broker
computes a target assignment for it, which takes over the number: the target epoch. Each member goes from its own epoch
to the target's at its own pace, by heartbeats (`seglog.coordinators.consumer.reconciliation`).

Only `ConsumerGroup.apply` changes this state, with records that are in the log. Deadlines are in `member_timers`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from types import MappingProxyType
from typing import Final
from uuid import UUID

from seglog.coordinators.consumer.member import NO_NUMBERS, ConsumerMember, partitions_of
from seglog.coordinators.consumer.member_timers import MemberTimers
from seglog.coordinators.consumer_records import (
    ConsumerGroupKey,
    ConsumerGroupValue,
    ConsumerRecord,
    CurrentAssignmentKey,
    CurrentAssignmentValue,
    MemberKey,
    MemberState,
    MemberTargetKey,
    MemberTargetValue,
    MemberValue,
    Partitions,
    RegularExpressionKey,
    RegularExpressionValue,
    TargetKey,
    TargetValue,
    TopicsKey,
)
from seglog.coordinators.coordinator_error import CoordinatorError
from seglog.core.error_codes import ErrorCode

CONSUMER: Final = "consumer"
"""The protocol type of consumers."""
EMPTY_TARGET: Final[Partitions] = MappingProxyType({})
NEVER_ASSIGNED: Final = TargetValue(1)


class ConsumerGroupState(Enum):
    """The values are those of ConsumerGroupDescribe."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"


class ConsumerGroup:
    """One group. Invariants, which `check` asserts: a partition has at most one holder, which has it or is giving it
    up; no member is ahead of the target, nor the target ahead of the group."""

    __slots__ = (
        "_holders",
        "epoch",
        "expressions",
        "group_id",
        "has_topics_record",
        "members",
        "metadata_hash",
        "static",
        "target",
        "targets",
        "timers",
        "topics_version",
    )

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.epoch = 1
        self.metadata_hash = 0
        self.target = NEVER_ASSIGNED
        self.members: dict[str, ConsumerMember] = {}
        self.targets: dict[str, Partitions] = {}
        self.expressions: dict[str, RegularExpressionValue] = {}
        self.static: dict[str, str] = {}
        """Member ids by instance id."""
        self.has_topics_record = False
        self.timers = MemberTimers()
        self.topics_version = -1
        """The version of the topics that `metadata_hash` was last compared with; not stored."""
        self._holders: dict[UUID, dict[int, str]] = {}

    # Records

    def apply(self, record: ConsumerRecord) -> None:
        """Take over a record of the log. A group whose key 3 is deleted is to be removed by the caller."""
        key, value = record
        match key:
            case ConsumerGroupKey():
                if isinstance(value, ConsumerGroupValue):
                    self.epoch, self.metadata_hash = value
            case TopicsKey():
                self.has_topics_record = value is not None
            case TargetKey():
                self.target = value if isinstance(value, TargetValue) else TargetValue(-1)
            case RegularExpressionKey():
                self.expressions.pop(key.expression, None)
                if isinstance(value, RegularExpressionValue):
                    self.expressions[key.expression] = value
            case MemberTargetKey():
                self.targets.pop(key.member, None)
                if isinstance(value, MemberTargetValue):
                    self.targets[key.member] = value.partitions
            case MemberKey():
                if isinstance(value, MemberValue):
                    self._put(self._member(key.member).with_subscription(value))
                else:
                    self._remove(key.member)
            case CurrentAssignmentKey():
                if isinstance(value, CurrentAssignmentValue):
                    self._put(self._member(key.member).with_assignment(value))
                elif key.member in self.members:
                    self._put(self.members[key.member].gone())

    def _member(self, member_id: str) -> ConsumerMember:
        return self.members.get(member_id) or ConsumerMember(member_id=member_id)

    def _put(self, member: ConsumerMember) -> None:
        self._release(self.members.get(member.member_id))
        self.members[member.member_id] = member
        if member.instance_id is not None:
            self.static[member.instance_id] = member.member_id
        for assignment in (member.assigned, member.revoking):
            for topic_id, numbers in assignment.items():
                self._holders.setdefault(topic_id, {}).update(dict.fromkeys(numbers, member.member_id))

    def _remove(self, member_id: str) -> None:
        member = self.members.pop(member_id, None)
        self._release(member)
        if member is not None and member.instance_id is not None and self.static.get(member.instance_id) == member_id:
            del self.static[member.instance_id]

    def _release(self, member: ConsumerMember | None) -> None:
        """Forget that it holds its partitions. Another member may hold some by now."""
        if member is None:
            return
        for assignment in (member.assigned, member.revoking):
            for topic_id, numbers in assignment.items():
                holders = self._holders.get(topic_id, {})
                for number in numbers:
                    if holders.get(number) == member.member_id:
                        del holders[number]
                if not holders:
                    self._holders.pop(topic_id, None)

    def knows_topics(self, version: int) -> None:
        """The hash of the group is that of its topics in this version."""
        self.topics_version = version

    def deletion(self, renamed: Mapping[str, str] = MappingProxyType({})) -> Iterator[ConsumerRecord]:
        """The records that delete the group. ``renamed`` has the new ids of members whose records these are by now."""
        ids = [renamed.get(member_id, member_id) for member_id in self.members]
        for member_id in ids:
            yield CurrentAssignmentKey(self.group_id, member_id), None
        for member_id in ids:
            yield MemberTargetKey(self.group_id, member_id), None
        yield TargetKey(self.group_id), None
        for member_id in ids:
            yield MemberKey(self.group_id, member_id), None
        for expression in self.expressions:
            yield RegularExpressionKey(self.group_id, expression), None
        yield TopicsKey(self.group_id), None
        yield ConsumerGroupKey(self.group_id), None

    # Queries

    @property
    def protocol_type(self) -> str:
        return CONSUMER

    @property
    def state(self) -> ConsumerGroupState:
        if not self.members:
            return ConsumerGroupState.EMPTY
        if self.epoch > self.target.epoch:
            return ConsumerGroupState.ASSIGNING
        if all(member.is_reconciled_to(self.target.epoch) for member in self.members.values()):
            return ConsumerGroupState.STABLE
        return ConsumerGroupState.RECONCILING

    @property
    def is_empty(self) -> bool:
        return not self.members

    @property
    def earliest(self) -> int:
        """The next deadline, in monotonic milliseconds."""
        return self.timers.earliest

    def get(self, member_id: str) -> ConsumerMember:
        """Raises `CoordinatorError` (UNKNOWN_MEMBER_ID)."""
        member = self.members.get(member_id)
        if member is None:
            raise CoordinatorError(
                ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {self.group_id}."
            )
        return member

    def static_member(self, instance_id: str | None) -> ConsumerMember | None:
        member_id = None if instance_id is None else self.static.get(instance_id)
        return None if member_id is None else self.members.get(member_id)

    def target_of(self, member: ConsumerMember) -> Partitions:
        """The target of a member, perhaps under the id that it had before it joined again."""
        member_id: str | None = member.member_id
        if member.instance_id is not None:
            member_id = self.static.get(member.instance_id)
        return EMPTY_TARGET if member_id is None else self.targets.get(member_id, EMPTY_TARGET)

    def is_held(self, topic_id: UUID, number: int) -> bool:
        """Whether a member has the partition or is still giving it up."""
        return number in self._holders.get(topic_id, ())

    def waits_for_others(self, member: ConsumerMember) -> bool:
        """Whether a partition of the member's target is still held by another one."""
        if member.state is not MemberState.UNRELEASED_PARTITIONS:
            return False
        return any(
            number not in member.assigned.get(topic_id, NO_NUMBERS) and self.is_held(topic_id, number)
            for topic_id, numbers in self.targets.get(member.member_id, EMPTY_TARGET).items()
            for number in numbers
        )

    @property
    def classic_members(self) -> int:
        return sum(member.is_classic for member in self.members.values())

    def subscribers_of(self, expression: str) -> int:
        return sum(member.expression == expression for member in self.members.values())

    def topics_of(self, member: ConsumerMember) -> frozenset[str]:
        """The topics that the member names, and those of its regular expression as far as it is resolved."""
        resolved = self.expressions.get(member.expression) if member.expression else None
        return member.topics if resolved is None else member.topics | resolved.topics

    def is_subscribed(self, topic: str) -> bool:
        return any(topic in member.topics for member in self.members.values()) or any(
            topic in resolved.topics for resolved in self.expressions.values()
        )

    def assignor(self, members: Iterable[ConsumerMember], default: str) -> str:
        """The assignor that most of the members ask for."""
        votes = Counter(member.assignor for member in members if member.assignor is not None)
        # On a tie Kafka takes the first one in the order of its hash map.
        return max(sorted(votes, reverse=True), key=votes.__getitem__, default=default)

    def check(self) -> None:
        """Assert the invariants."""
        held: set[tuple[UUID, int]] = set()
        for member in self.members.values():
            for assignment in (member.assigned, member.revoking):
                for topic_id, numbers in partitions_of(assignment).items():
                    for number in numbers:
                        assert (topic_id, number) not in held, f"{topic_id}-{number} has two holders"
                        held.add((topic_id, number))
                        assert self._holders[topic_id][number] == member.member_id
            assert member.epoch <= self.target.epoch or not member.epoch
            assert member.state is MemberState.UNREVOKED_PARTITIONS or not member.revoking or member.epoch < 0
            if member.instance_id is not None:
                assert self.static[member.instance_id] == member.member_id
        assert sum(map(len, self._holders.values())) == len(held)
        assert self.target.epoch <= self.epoch
        assert self.targets.keys() <= self.members.keys()
