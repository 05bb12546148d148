"""A classic group becomes a consumer group while its members stay, and the other way round (KIP-848). Pure.

A consumer group may have classic members: those that were there when its first consumer member came. When its last
consumer member leaves, it becomes a classic group again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from uuid import UUID

from seglog.coordinators.classic.group import ClassicGroup
from seglog.coordinators.classic.members import GroupMember, GroupMembers
from seglog.coordinators.consumer.decision import Decision, Downgrade
from seglog.coordinators.consumer.group import CONSUMER, ConsumerGroup
from seglog.coordinators.consumer.member import ConsumerMember, with_epoch
from seglog.coordinators.consumer.member_timers import TimerChange, TimerKind
from seglog.coordinators.consumer.settings import ConsumerRules
from seglog.coordinators.consumer.topic_image import TopicImage
from seglog.coordinators.consumer_protocol import (
    decode_assignment,
    decode_subscription,
    encode_assignment,
    version_of,
)
from seglog.coordinators.consumer_records import (
    ClassicMemberMetadata,
    ConsumerGroupKey,
    ConsumerGroupValue,
    ConsumerRecord,
    MemberTargetKey,
    MemberTargetValue,
    Partitions,
    TargetKey,
    TargetValue,
)
from seglog.coordinators.coordinator_error import CoordinatorError
from seglog.coordinators.group_records import GroupMetadataKey, GroupRecord
from seglog.core.error_codes import ErrorCode
from seglog.core.errors import InvalidRequestError

# Classic to consumer


def upgrade(decision: Decision, classic: ClassicGroup) -> ConsumerGroup:
    """Return the consumer group that takes the place of a classic one with members. Raises `CoordinatorError`."""
    _check_upgrade(decision, classic)
    group = ConsumerGroup(classic.group_id)
    records = list(_as_consumer(decision, classic))
    for record in records:
        group.apply(record)
    decision.upgrade(classic, [(GroupMetadataKey(classic.group_id), None), *records])
    decision.set_timers(
        [TimerChange(TimerKind.SESSION, member.member_id, member.session_timeout) for member in classic.members]
    )
    decision.events.append(f"Group {classic.group_id} is a consumer group now; it was a classic one.")
    return group


def _check_upgrade(decision: Decision, classic: ClassicGroup) -> None:
    why = None
    if not decision.rules.migration.upgrades:
        why = "online upgrade is disabled"
    elif classic.protocol_type != CONSUMER:
        why = "the group does not use the consumer embedded protocol"
    elif len(classic.members) > decision.rules.max_size:
        why = "the group size exceeds the consumer group maximum size"
    if why is not None:
        raise _no_upgrade(classic, why)
    if classic.protocol is None:
        # Its first rebalance has not chosen a protocol. Kafka answers UNKNOWN_SERVER_ERROR, with which clients give up.
        raise CoordinatorError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"group {classic.group_id} has no protocol yet")


def _no_upgrade(classic: ClassicGroup, why: str) -> CoordinatorError:
    message = f"Cannot upgrade classic group {classic.group_id} to consumer group because {why}."
    return CoordinatorError(ErrorCode.GROUP_ID_NOT_FOUND, message)


def _as_consumer(decision: Decision, classic: ClassicGroup) -> list[ConsumerRecord]:
    """The records of the same group under the new protocol: its generation becomes the epoch of everything."""
    members: list[ConsumerMember] = []
    targets: list[ConsumerRecord] = []
    topics: set[str] = set()
    for one in classic.members:
        member, target = _consumer_member(classic, one, decision.topics)
        topics |= member.topics
        members.append(member)
        targets.append((MemberTargetKey(classic.group_id, one.member_id), MemberTargetValue(target)))
    epoch = ConsumerGroupValue(classic.generation, decision.topics.hash_of(topics))
    return [
        *(member.subscription_record(classic.group_id) for member in members),
        (ConsumerGroupKey(classic.group_id), epoch),
        *targets,
        (TargetKey(classic.group_id), TargetValue(classic.generation)),
        *(member.assignment_record(classic.group_id) for member in members),
    ]


def _consumer_member(
    classic: ClassicGroup, member: GroupMember, topics: TopicImage
) -> tuple[ConsumerMember, Partitions]:
    try:
        subscription = decode_subscription(member.metadata(classic.protocol))
        assignment = decode_assignment(member.assignment) if member.assignment else None
    except InvalidRequestError as error:
        raise _no_upgrade(classic, "the embedded consumer protocol is malformed") from error
    if assignment is not None and assignment.user_data:
        raise _no_upgrade(
            classic,
            "an unsupported custom assignor is in use. Please refer to the documentation or switch to a default "
            "assignor before re-attempting the upgrade",
        )
    target = {} if assignment is None else by_id(assignment.partitions, topics)
    converted = ConsumerMember(
        member_id=member.member_id,
        epoch=classic.generation,
        previous_epoch=classic.generation,
        instance_id=member.instance_id,
        rack=subscription.rack or None,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout=member.rebalance_timeout,
        topics=subscription.topics,
        assigned=with_epoch(target, classic.generation),
        classic=ClassicMemberMetadata(member.session_timeout, member.protocols),
    )
    return converted, target


# Consumer to classic


def may_downgrade(rules: ConsumerRules, staying: Collection[ConsumerMember]) -> bool:
    """Whether a group becomes a classic one if only these members stay."""
    if not staying or not all(member.is_classic for member in staying) or not rules.migration.downgrades:
        return False
    return len(staying) <= rules.classic.max_size


def downgrade(
    decision: Decision,
    group: ConsumerGroup,
    staying: Collection[ConsumerMember],
    reason: str | None,
    renamed: Mapping[str, str] | None = None,
) -> None:
    """Replace the group by a classic one of these members. ``reason``: why that rebalances; None: it need not, so that
    each member gets its target. ``renamed`` has the former ids of members that have come back under others.

    A group that rebalances records what each member has, where Kafka's records the targets: the next consumer member
    may come before the others have given up what is not theirs any more, and its group must know who has it.
    """
    former = {new: old for old, new in (renamed or {}).items()}
    had = {one.member_id: one.partitions() for one in staying}
    members = GroupMembers()
    for one in staying:
        assert one.classic is not None
        members.add(
            GroupMember(
                one.member_id,
                one.instance_id,
                one.client_id,
                one.client_host,
                one.rebalance_timeout,
                one.classic.session_timeout,
                one.classic.protocols,
            )
        )
    protocol = members.select_protocol()
    try:
        for member in members:
            if reason is None:
                assignment = group.targets.get(former.get(member.member_id, member.member_id), {})
            else:
                assignment = had[member.member_id]
            version = version_of(member.metadata(protocol))
            member.assign(encode_assignment(by_name(assignment, decision.topics), version))
    except InvalidRequestError as error:
        raise CoordinatorError(
            ErrorCode.GROUP_ID_NOT_FOUND, f"Cannot downgrade the classic group {group.group_id}: {error}."
        ) from error
    classic = ClassicGroup.converted(
        group.group_id, group.epoch, members, protocol, decision.rules.classic, decision.now
    )
    records: list[GroupRecord] = [*group.deletion(renamed or {})]
    records.append((GroupMetadataKey(group.group_id), classic.value()))
    decision.go_back(Downgrade(classic, reason), records)
    decision.events.append(f"Group {group.group_id} is a classic group now; it was a consumer group.")


# Names and ids


def by_id(partitions: Mapping[str, frozenset[int]], topics: TopicImage) -> dict[UUID, frozenset[int]]:
    """Those of the topics that exist."""
    found = ((topics.find(name), numbers) for name, numbers in partitions.items())
    return {topic.topic_id: numbers for topic, numbers in found if topic is not None}


def by_name(partitions: Partitions, topics: TopicImage) -> dict[str, frozenset[int]]:
    """Those of the topics that exist."""
    found = ((topics.find(topic_id), numbers) for topic_id, numbers in partitions.items())
    return {topic.name: numbers for topic, numbers in found if topic is not None}
