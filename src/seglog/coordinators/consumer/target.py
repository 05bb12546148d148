"""The target assignment of a group: who subscribes to what, and which partitions each member should have
(``TargetAssignmentBuilder``). Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from typing import NamedTuple
from uuid import UUID

from seglog.coordinators.consumer.assignors import AssignorError, MemberSubscription, assign
from seglog.coordinators.consumer.decision import Decision
from seglog.coordinators.consumer.group import EMPTY_TARGET, ConsumerGroup
from seglog.coordinators.consumer.member import ConsumerMember
from seglog.coordinators.consumer.topic_image import ImageTopic, TopicImage
from seglog.coordinators.consumer_records import (
    ConsumerGroupKey,
    ConsumerGroupValue,
    MemberTargetKey,
    MemberTargetValue,
    Partitions,
    RegularExpressionValue,
    TargetKey,
    TargetValue,
    TopicsKey,
)
from seglog.coordinators.coordinator_error import CoordinatorError
from seglog.core.error_codes import ErrorCode


class Target(NamedTuple):
    """The epoch of the group's target, and one member's part of it."""

    epoch: int
    partitions: Partitions


class MemberUpdate(NamedTuple):
    """A member before and after a request."""

    before: ConsumerMember
    after: ConsumerMember


class Subscriptions(NamedTuple):
    """The topics that members name and how many do, those of resolved regular expressions and how many have them, and
    how many members have each regular expression."""

    by_name: Counter[str]
    by_expression: Counter[str]
    expressions: Counter[str]
    member_count: int

    @property
    def topics(self) -> set[str]:
        return {*self.by_name, *self.by_expression}

    @property
    def is_homogeneous(self) -> bool:
        """Whether all members subscribe to the same topics (``ConsumerGroup.subscriptionType``)."""
        everyone = self.member_count
        if not self.expressions:
            return all(self.by_name[topic] == everyone for topic in self.topics)
        if next(iter(self.expressions.values())) != everyone:
            return False
        return not self.by_name and all(count == 1 for count in self.by_expression.values())


def subscriptions(members: Collection[ConsumerMember], resolved: Collection[RegularExpressionValue]) -> Subscriptions:
    by_name = Counter(topic for member in members for topic in member.topics)
    by_expression = Counter(topic for value in resolved for topic in value.topics)
    expressions = Counter(member.expression for member in members if member.expression)
    return Subscriptions(by_name, by_expression, expressions, len(members))


def members_after(group: ConsumerGroup, update: MemberUpdate) -> dict[str, ConsumerMember]:
    """The group's members with the updated one, which takes the place of a static member's former id."""
    after = update.after
    members = dict(group.members)
    if after.instance_id is not None:
        members.pop(group.static.get(after.instance_id, ""), None)
    members[after.member_id] = after
    return members


def _subscriptions_after(group: ConsumerGroup, update: MemberUpdate) -> Subscriptions:
    dropped = dropped_expression(group, update)
    resolved = [value for expression, value in group.expressions.items() if expression != dropped]
    return subscriptions(members_after(group, update).values(), resolved)


def dropped_expression(group: ConsumerGroup, update: MemberUpdate) -> str | None:
    """The regular expression that no member has any more."""
    before, after = update.before.expression, update.after.expression
    return before if before and before != after and group.subscribers_of(before) == 1 else None


def compare_topics(decision: Decision, group: ConsumerGroup, update: MemberUpdate, *, bump: bool) -> int:
    """Begin a new group epoch if ``bump`` is set or the group's topics have changed. Return the group epoch."""
    epoch = group.epoch
    metadata_hash = decision.topics.hash_of(_subscriptions_after(group, update).topics)
    if bump or metadata_hash != group.metadata_hash:
        epoch += 1
        bump_epoch(decision, group, epoch, metadata_hash)
    decision.compared_topics()
    if group.has_topics_record:
        decision.write((TopicsKey(group.group_id), None))
    return epoch


def bump_epoch(decision: Decision, group: ConsumerGroup, epoch: int, metadata_hash: int) -> None:
    decision.write((ConsumerGroupKey(group.group_id), ConsumerGroupValue(epoch, metadata_hash)))
    decision.events.append(f"Group {group.group_id} is now in epoch {epoch}.")


def assign_target(decision: Decision, group: ConsumerGroup, group_epoch: int, update: MemberUpdate) -> Target:
    """Compute the target of the group epoch if there is none yet, and return the updated member's part. Two targets are
    at least ``group.consumer.assignment.interval.ms`` apart (KIP-1263). Raises `CoordinatorError`."""
    if group.target.epoch >= group_epoch or not _may_assign(decision, group):
        return Target(group.target.epoch, group.target_of(update.after))
    members = members_after(group, update)
    specs = {member_id: _spec(group, member, decision.topics) for member_id, member in members.items()}
    counts = {topic.topic_id: topic.partition_count for topic in _topics(group, members, decision.topics)}
    assignor = group.assignor(members.values(), decision.rules.assignors[0])
    try:
        assignment = assign(assignor, specs, counts, is_homogeneous=_subscriptions_after(group, update).is_homogeneous)
    except AssignorError as error:
        raise CoordinatorError(
            ErrorCode.UNKNOWN_SERVER_ERROR,
            f"Failed to compute a new target assignment for epoch {group_epoch}: {error}",
        ) from error
    for member_id in specs:
        partitions = assignment.get(member_id, {})
        if group.targets.get(member_id) != partitions:
            decision.write((MemberTargetKey(group.group_id, member_id), MemberTargetValue(partitions)))
    decision.write((TargetKey(group.group_id), TargetValue(group_epoch, decision.now.wall)))
    decision.events.append(
        f"Group {group.group_id} has a new target assignment for epoch {group_epoch} by assignor {assignor}."
    )
    return Target(group_epoch, assignment.get(update.after.member_id, EMPTY_TARGET))


def _may_assign(decision: Decision, group: ConsumerGroup) -> bool:
    """A target of the future counts as old: another coordinator's clock was ahead, or this one was set back, and the
    group must not wait until it has caught up."""
    last = group.target.timestamp
    return not last <= decision.now.wall < last + decision.rules.assignment_interval


def _spec(group: ConsumerGroup, member: ConsumerMember, topics: TopicImage) -> MemberSubscription:
    found = map(topics.find, group.topics_of(member))
    return MemberSubscription(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack=member.rack,
        topics=frozenset([topic.topic_id for topic in found if topic is not None]),
        assigned=group.targets.get(member.member_id) or group.target_of(member),
    )


def _topics(group: ConsumerGroup, members: dict[str, ConsumerMember], topics: TopicImage) -> Iterator[ImageTopic]:
    for name in {name for member in members.values() for name in group.topics_of(member)}:
        topic = topics.find(name)
        if topic is not None:
            yield topic


def subscribed_ids(group: ConsumerGroup, member: ConsumerMember, topics: TopicImage) -> frozenset[UUID]:
    found = map(topics.find, group.topics_of(member))
    return frozenset([topic.topic_id for topic in found if topic is not None])
