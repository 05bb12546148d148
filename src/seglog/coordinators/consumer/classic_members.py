"""Members of a consumer group that still speak the classic protocol: join, sync, heartbeat, leave. Pure.

Their generation is their member epoch. A join never waits for others: it answers with the member's own step towards the
target. Where a new step is due, heartbeats answer REBALANCE_IN_PROGRESS, so that the member joins again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from seglog.coordinators.classic.messages import (
    JoinGroupRequest,
    JoinGroupResult,
    LeavingMember,
    SyncGroupRequest,
    SyncGroupResult,
)
from seglog.coordinators.consumer.decision import Decision
from seglog.coordinators.consumer.group import CONSUMER, ConsumerGroup
from seglog.coordinators.consumer.member import ConsumerMember, partitions_of
from seglog.coordinators.consumer.member_timers import TimerChange, TimerKind
from seglog.coordinators.consumer.membership import (
    check_room,
    check_static,
    record_reconciliation,
    record_subscription,
    remove,
    replace_static,
)
from seglog.coordinators.consumer.migration import by_id, by_name, downgrade, may_downgrade
from seglog.coordinators.consumer.regular_expressions import ExpressionChange, change_expression
from seglog.coordinators.consumer.settings import MigrationPolicy
from seglog.coordinators.consumer.target import MemberUpdate, Target, assign_target, compare_topics
from seglog.coordinators.consumer_protocol import (
    Subscription,
    decode_subscription,
    encode_assignment,
    version_of,
)
from seglog.coordinators.consumer_records import ClassicMemberMetadata, MemberState
from seglog.coordinators.coordinator_error import CoordinatorError
from seglog.core.error_codes import ErrorCode
from seglog.core.errors import InvalidRequestError

_ID_REQUIRED_FROM = 4


def join(decision: Decision, group: ConsumerGroup, request: JoinGroupRequest, new_id: str) -> JoinGroupResult:
    """Handle a JoinGroup. Raises `CoordinatorError`."""
    member_id = request.member_id or new_id
    if decision.rules.migration is MigrationPolicy.DISABLED:
        raise CoordinatorError(
            ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
            f"Cannot join the consumer group {group.group_id} with the classic protocol because the group migration is "
            "disabled.",
        )
    check_room(decision, group, member_id, request.instance_id)
    _check_protocols(group, request, member_id)
    if not request.member_id and request.instance_id is None and request.version >= _ID_REQUIRED_FROM:
        return JoinGroupResult(ErrorCode.MEMBER_ID_REQUIRED, member_id)
    existing = group.static_member(request.instance_id)
    member = _find_member(decision, group, request, member_id, existing)
    subscription = _subscription(request)
    update = MemberUpdate(member, _updated(member, request, subscription))
    names_changed = record_subscription(decision, group, update)
    changed = change_expression(decision, group, update) is not ExpressionChange.NONE or names_changed
    group_epoch = group.epoch
    if changed or group.topics_version != decision.topics.version:
        group_epoch = compare_topics(decision, group, update, bump=changed)
    owned = by_id(subscription.owned, decision.topics)
    after = update.after
    others = [one for one in group.members.values() if one is not existing]
    if existing is not None and not existing.is_classic and may_downgrade(decision.rules, [*others, after]):
        # Kafka rebalances only if the target is old, and leaves a member whose target is new with what it had.
        is_settled = all(one.is_reconciled_to(group.target.epoch) for one in others)
        is_stale = group.target.epoch < group_epoch or not is_settled
        if not is_stale:
            target = Target(group.target.epoch, group.target_of(after))
            after = record_reconciliation(decision, group, after, target, owned, has_subscription_changed=changed)
        reason = f"Downgrade group {group.group_id} from consumer to classic with stale assignment."
        renamed = {existing.member_id: after.member_id}
        downgrade(decision, group, [*others, after], reason if is_stale else None, renamed)
    else:
        target = assign_target(decision, group, group_epoch, update)
        after = record_reconciliation(decision, group, after, target, owned, has_subscription_changed=changed)
        decision.set_timers(
            [
                TimerChange(TimerKind.JOIN, after.member_id),
                TimerChange(TimerKind.SESSION, after.member_id, request.session_timeout),
                TimerChange(TimerKind.SYNC, after.member_id, request.rebalance_timeout),
            ]
        )
    return JoinGroupResult(ErrorCode.NONE, after.member_id, after.epoch, CONSUMER, request.protocols[0][0])


def _check_protocols(group: ConsumerGroup, request: JoinGroupRequest, member_id: str) -> None:
    """All classic members must have one protocol in common: they may be alone again."""
    classics = [member.classic for member in group.members.values() if member.classic is not None]
    is_common = any(
        all(name in [theirs for theirs, _ in classic.protocols] for classic in classics)
        for name, _ in request.protocols
    )
    if request.protocol_type != CONSUMER or not is_common:
        raise CoordinatorError(
            ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"Member {member_id}'s protocols are not supported."
        )


def _find_member(
    decision: Decision,
    group: ConsumerGroup,
    request: JoinGroupRequest,
    member_id: str,
    existing: ConsumerMember | None,
) -> ConsumerMember:
    if request.instance_id is not None and request.member_id:
        return check_static(existing, request.instance_id, member_id)
    if existing is not None:
        return replace_static(decision, group, existing, member_id)
    return group.members.get(member_id) or ConsumerMember(member_id=member_id)


def _subscription(request: JoinGroupRequest) -> Subscription:
    try:
        return decode_subscription(request.protocols[0][1])
    except InvalidRequestError as error:
        why = f"the subscription cannot be read: {error}"
        raise CoordinatorError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, why) from error


def _updated(member: ConsumerMember, request: JoinGroupRequest, subscription: Subscription) -> ConsumerMember:
    return replace(
        member,
        instance_id=member.instance_id if request.instance_id is None else request.instance_id,
        rack=subscription.rack or member.rack,
        rebalance_timeout=request.rebalance_timeout,
        topics=subscription.topics,
        expression="",
        client_id=request.client_id,
        client_host=request.client_host,
        classic=ClassicMemberMetadata(request.session_timeout, request.protocols),
    )


def sync(decision: Decision, group: ConsumerGroup, request: SyncGroupRequest) -> SyncGroupResult:
    """Handle a SyncGroup: the member asks for its assignment. Raises `CoordinatorError`."""
    member, classic = _classic_member(group, request.member_id, request.instance_id)
    _check_generation(member, request.generation)
    protocol, metadata = classic.protocols[0]
    is_other_type = request.protocol_type is not None and request.protocol_type != CONSUMER
    if is_other_type or (request.protocol is not None and request.protocol != protocol):
        raise CoordinatorError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"{request.protocol} is not {protocol}")
    if group.target.epoch > member.epoch and member.state is not MemberState.UNREVOKED_PARTITIONS:
        decision.set_timers([_join_timer(member)])
        return SyncGroupResult(ErrorCode.REBALANCE_IN_PROGRESS)
    decision.set_timers(
        [
            TimerChange(TimerKind.SYNC, member.member_id),
            TimerChange(TimerKind.SESSION, member.member_id, classic.session_timeout),
        ]
    )
    partitions = by_name(partitions_of(member.assigned), decision.topics)
    assignment = encode_assignment(partitions, version_of(metadata))
    return SyncGroupResult(ErrorCode.NONE, request.protocol_type, request.protocol, assignment)


def heartbeat(
    decision: Decision, group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int
) -> ErrorCode:
    """Handle a Heartbeat. Raises `CoordinatorError`."""
    member, classic = _classic_member(group, member_id, instance_id)
    _check_generation(member, generation)
    decision.set_timers([TimerChange(TimerKind.SESSION, member_id, classic.session_timeout)])
    is_free = member.state is MemberState.UNRELEASED_PARTITIONS and not group.waits_for_others(member)
    if member.epoch < group.target.epoch or member.state is MemberState.UNREVOKED_PARTITIONS or is_free:
        decision.set_timers([_join_timer(member)])
        return ErrorCode.REBALANCE_IN_PROGRESS
    return ErrorCode.NONE


def _join_timer(member: ConsumerMember) -> TimerChange:
    return TimerChange(TimerKind.JOIN, member.member_id, member.rebalance_timeout, if_absent=True)


def _classic_member(
    group: ConsumerGroup, member_id: str, instance_id: str | None
) -> tuple[ConsumerMember, ClassicMemberMetadata]:
    if instance_id is None:
        member = group.get(member_id)
    else:
        member = check_static(group.static_member(instance_id), instance_id, member_id)
    if member.classic is None:
        raise CoordinatorError(
            ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member.member_id} does not use the classic protocol."
        )
    return member, member.classic


def _check_generation(member: ConsumerMember, generation: int) -> None:
    if member.epoch != generation:
        raise CoordinatorError(
            ErrorCode.ILLEGAL_GENERATION, f"generation {generation} is not the member epoch {member.epoch}"
        )


def leave(decision: Decision, group: ConsumerGroup, leaving: Sequence[LeavingMember]) -> list[ErrorCode]:
    """Handle a LeaveGroup; each member has its own code. Administrators remove members of both protocols by it."""
    found: dict[str, ConsumerMember] = {}
    codes = []
    for one in leaving:
        try:
            member = _leaving_member(group, one)
        except CoordinatorError as error:
            codes.append(error.code)
        else:
            found[member.member_id] = member
            codes.append(ErrorCode.NONE)
    remove(decision, group, found.values())
    return codes


def _leaving_member(group: ConsumerGroup, leaving: LeavingMember) -> ConsumerMember:
    if leaving.instance_id is None:
        return group.get(leaving.member_id)
    existing = group.static_member(leaving.instance_id)
    member_id = leaving.member_id or (existing.member_id if existing is not None else "")
    return check_static(existing, leaving.instance_id, member_id)
