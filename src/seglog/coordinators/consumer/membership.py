"""The heartbeats of a consumer group's members: join, stay, leave (``GroupMetadataManager``). Pure.

Each function decides by the group as its records have it, and puts what follows into a `Decision`. A refused request
raises `CoordinatorError` with Kafka's code and message.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Final

from seglog.coordinators.consumer.decision import Decision
from seglog.coordinators.consumer.group import ConsumerGroup
from seglog.coordinators.consumer.member import JOINS, LEAVES_FOR_NOW, ConsumerMember
from seglog.coordinators.consumer.member_timers import Expired, TimerChange, TimerKind, stopped
from seglog.coordinators.consumer.messages import ConsumerHeartbeat, ConsumerHeartbeatAnswer
from seglog.coordinators.consumer.migration import downgrade, may_downgrade
from seglog.coordinators.consumer.reconciliation import reconcile
from seglog.coordinators.consumer.regular_expressions import ExpressionChange, change_expression
from seglog.coordinators.consumer.target import (
    MemberUpdate,
    Target,
    assign_target,
    bump_epoch,
    compare_topics,
    members_after,
    subscribed_ids,
    subscriptions,
)
from seglog.coordinators.consumer_records import (
    CurrentAssignmentKey,
    MemberKey,
    MemberState,
    MemberTargetKey,
    MemberTargetValue,
    Partitions,
    RegularExpressionKey,
    TargetKey,
    TargetValue,
)
from seglog.coordinators.coordinator_error import CoordinatorError
from seglog.core.error_codes import ErrorCode

_MUST_REJOIN: Final = "The member must abandon all its partitions and rejoin."


def heartbeat(
    decision: Decision, group: ConsumerGroup, request: ConsumerHeartbeat, new_id: str
) -> ConsumerHeartbeatAnswer:
    """Handle the heartbeat of a member that joins or stays. Before version 1 it may join without an id: ``new_id``
    becomes its id."""
    check_room(decision, group, request.member_id, request.instance_id)
    member = _find_member(decision, group, request, request.member_id or new_id)
    update = MemberUpdate(member, _updated(member, request))
    names_changed = record_subscription(decision, group, update)
    expression = change_expression(decision, group, update)
    bump = names_changed or expression is ExpressionChange.RESOLVED or _changes_assignor(decision, group, update)
    group_epoch = group.epoch
    if bump or group.topics_version != decision.topics.version:
        group_epoch = compare_topics(decision, group, update, bump=bump)
    target = assign_target(decision, group, group_epoch, update)
    changed = names_changed or expression is not ExpressionChange.NONE
    after = record_reconciliation(
        decision, group, update.after, target, request.owned, has_subscription_changed=changed
    )
    decision.set_timers([TimerChange(TimerKind.SESSION, after.member_id, decision.rules.session_timeout)])
    tells = request.epoch == JOINS or request.is_full or after.assigned != member.assigned
    assigned = after.assigned if tells else None
    return ConsumerHeartbeatAnswer(after.member_id, after.epoch, decision.rules.heartbeat_interval, assigned)


def _changes_assignor(decision: Decision, group: ConsumerGroup, update: MemberUpdate) -> bool:
    """Whether the group has another assignor with this update; a new target by it needs a new epoch."""
    if update.after.assignor == update.before.assignor:
        return False
    default = decision.rules.assignors[0]
    after = members_after(group, update).values()
    return group.assignor(after, default) != group.assignor(group.members.values(), default)


def check_room(decision: Decision, group: ConsumerGroup, member_id: str, instance_id: str | None) -> None:
    """Raises `CoordinatorError`. A static member that is back needs no more room."""
    if group.static_member(instance_id) is not None:
        return
    if len(group.members) >= decision.rules.max_size and member_id not in group.members:
        raise CoordinatorError(
            ErrorCode.GROUP_MAX_SIZE_REACHED,
            f"The consumer group has reached its maximum capacity of {decision.rules.max_size} members.",
        )


def _updated(member: ConsumerMember, request: ConsumerHeartbeat) -> ConsumerMember:
    """The member with what the heartbeat says of it."""
    return replace(
        member,
        instance_id=_or(request.instance_id, member.instance_id),
        rack=_or(request.rack, member.rack),
        rebalance_timeout=member.rebalance_timeout if request.rebalance_timeout == -1 else request.rebalance_timeout,
        topics=member.topics if request.topics is None else request.topics,
        expression=_or(request.expression, member.expression),
        assignor=_or(request.assignor, member.assignor),
        client_id=request.client_id,
        client_host=request.client_host,
        classic=None,
    )


def _or(new: str | None, old: str | None) -> str | None:
    return old if new is None else new


# Finding the member


def _find_member(
    decision: Decision, group: ConsumerGroup, request: ConsumerHeartbeat, member_id: str
) -> ConsumerMember:
    if request.instance_id is None:
        member = _joining(decision, group, member_id) if request.epoch == JOINS else group.get(member_id)
        _check_epoch(member, request)
        return member
    existing = group.static_member(request.instance_id)
    if request.epoch != JOINS:
        existing = check_static(existing, request.instance_id, member_id)
        _check_epoch(existing, request)
        return existing
    if existing is None:
        return _joining(decision, group, member_id)
    if not existing.is_classic and existing.epoch != LEAVES_FOR_NOW:
        raise CoordinatorError(
            ErrorCode.UNRELEASED_INSTANCE_ID,
            f"Static member {member_id} with instance id {request.instance_id} cannot join the group because the "
            f"instance id is owned by {existing.member_id} member.",
        )
    return replace_static(decision, group, existing, member_id)


def _joining(decision: Decision, group: ConsumerGroup, member_id: str) -> ConsumerMember:
    decision.events.append(f"Member {member_id} joins the consumer group {group.group_id}.")
    return group.members.get(member_id) or ConsumerMember(member_id=member_id)


def check_static(existing: ConsumerMember | None, instance_id: str | None, member_id: str) -> ConsumerMember:
    """Check that this member has its instance id. Raises `CoordinatorError`."""
    if existing is None:
        raise CoordinatorError(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown.")
    if existing.member_id != member_id:
        raise CoordinatorError(
            ErrorCode.FENCED_INSTANCE_ID,
            f"Static member {member_id} with instance id {instance_id} was fenced by member {existing.member_id}.",
        )
    return existing


def _check_epoch(member: ConsumerMember, request: ConsumerHeartbeat) -> None:
    """A member may repeat a heartbeat whose answer was lost: then it is one epoch behind, and has at most what it had.
    Raises `CoordinatorError`."""
    if request.epoch in (JOINS, member.epoch):
        return
    repeats = request.epoch == member.previous_epoch and member.holds_only_assigned(request.owned)
    if request.epoch < member.epoch and repeats:
        return
    relation = "smaller" if request.epoch < member.epoch else "greater"
    raise CoordinatorError(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"The consumer group member has a {relation} member epoch ({request.epoch}) than the one known by the group "
        f"coordinator ({member.epoch}). {_MUST_REJOIN}",
    )


def replace_static(
    decision: Decision, group: ConsumerGroup, existing: ConsumerMember, member_id: str
) -> ConsumerMember:
    """A static member is back under a new id: it keeps its assignment, and no one else notices."""
    member = existing.back_as(member_id)
    _record_removal(decision, group, existing.member_id)
    decision.write(
        member.subscription_record(group.group_id),
        (MemberTargetKey(group.group_id, member_id), MemberTargetValue(group.target_of(existing))),
        member.assignment_record(group.group_id),
    )
    decision.set_timers(stopped(existing.member_id) if existing.member_id != member_id else ())
    decision.events.append(
        f"Static member {existing.instance_id} of group {group.group_id} is back: {member_id} replaces "
        f"{existing.member_id}."
    )
    return member


# Records of one member


def record_subscription(decision: Decision, group: ConsumerGroup, update: MemberUpdate) -> bool:
    """Write the member if it has changed. Return whether it names other topics."""
    if update.after != update.before:
        decision.write(update.after.subscription_record(group.group_id))
    return update.after.topics != update.before.topics


def record_reconciliation(
    decision: Decision,
    group: ConsumerGroup,
    member: ConsumerMember,
    target: Target,
    owned: Partitions | None,
    *,
    has_subscription_changed: bool,
) -> ConsumerMember:
    """Take the member a step towards the target, and write it if that changes it."""
    after = reconcile(
        member,
        target.epoch,
        target.partitions,
        subscribed_ids(group, member, decision.topics),
        group.is_held,
        owned,
        has_subscription_changed=has_subscription_changed,
    )
    if after != member:
        decision.write(after.assignment_record(group.group_id))
        if not after.is_classic:
            must_revoke = after.state is MemberState.UNREVOKED_PARTITIONS
            timeout = after.rebalance_timeout if must_revoke else None
            decision.set_timers([TimerChange(TimerKind.REBALANCE, after.member_id, timeout, after.epoch)])
    return after


def _record_removal(decision: Decision, group: ConsumerGroup, member_id: str) -> None:
    decision.write(
        (CurrentAssignmentKey(group.group_id, member_id), None),
        (MemberTargetKey(group.group_id, member_id), None),
        (MemberKey(group.group_id, member_id), None),
    )


# Leaving


def leave(decision: Decision, group: ConsumerGroup, request: ConsumerHeartbeat) -> ConsumerHeartbeatAnswer:
    """Handle the last heartbeat of a member."""
    if request.instance_id is None:
        member = group.get(request.member_id)
    else:
        member = check_static(group.static_member(request.instance_id), request.instance_id, request.member_id)
        if request.epoch == LEAVES_FOR_NOW:
            decision.write(member.away().assignment_record(group.group_id))
            decision.events.append(f"Static member {member.member_id} has left group {group.group_id} for now.")
            return ConsumerHeartbeatAnswer(member.member_id, LEAVES_FOR_NOW)
    decision.events.append(f"Member {member.member_id} has left the consumer group {group.group_id}.")
    remove(decision, group, [member])
    return ConsumerHeartbeatAnswer(request.member_id, request.epoch)


def remove(decision: Decision, group: ConsumerGroup, members: Collection[ConsumerMember]) -> None:
    """Remove members. The others get a new target by their next heartbeats; if all of these speak the classic protocol,
    the group becomes a classic one."""
    if not members:
        return
    leaving = {member.member_id for member in members}
    staying = [member for member in group.members.values() if member.member_id not in leaving]
    if may_downgrade(decision.rules, staying):
        reason = f"Downgrade group {group.group_id} from consumer to classic for member leaving."
        downgrade(decision, group, staying, reason)
        return
    for member in members:
        _record_removal(decision, group, member.member_id)
        decision.set_timers(stopped(member.member_id))
    expressions = {member.expression for member in staying}
    unused = {member.expression for member in members if member.expression} - expressions
    for expression in unused:
        decision.write((RegularExpressionKey(group.group_id, expression or ""), None))
    resolved = [value for expression, value in group.expressions.items() if expression not in unused]
    topics = subscriptions(staying, resolved).topics
    bump_epoch(decision, group, group.epoch + 1, decision.topics.hash_of(topics))
    if not staying:  # an empty group has its target, and none that the next member must wait for (Kafka 4.4)
        decision.write((TargetKey(group.group_id), TargetValue(group.epoch + 1, 0)))


def expire(decision: Decision, group: ConsumerGroup, expired: Expired) -> None:
    """The time of a member is up."""
    member = group.members.get(expired.member_id)
    if member is None or (expired.epoch is not None and member.epoch != expired.epoch):
        return
    decision.events.append(f"Member {member.member_id} of group {group.group_id} is removed: {expired.kind.value}.")
    remove(decision, group, [member])
