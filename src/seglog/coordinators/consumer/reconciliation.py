"""The next assignment of a member on its way to the target (``CurrentAssignmentBuilder``). Pure.

A member first gives up what the target does not have. When its heartbeat shows that it has done so, it takes over what
the target has and no other member holds any more, and goes to the target's epoch.

==================== =================================== ==============================================================
from                 if                                  to
==================== =================================== ==============================================================
STABLE               the target has another epoch        UNREVOKED_PARTITIONS if it must give up partitions; otherwise
                                                         UNRELEASED_PARTITIONS if others hold some; otherwise STABLE
UNREVOKED_PARTITIONS its heartbeat still has, or omits,  the same
                     what it must give up
UNREVOKED_PARTITIONS it has given everything up          as from STABLE
UNRELEASED_…         always                              as from STABLE
UNKNOWN              its heartbeat has no partitions     as from STABLE; otherwise it is fenced
==================== =================================== ==============================================================
"""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import replace
from uuid import UUID

from seglog.coordinators.consumer.member import NO_NUMBERS, NO_PARTITIONS, ConsumerMember
from seglog.coordinators.consumer_records import MemberState, PartitionEpochs, Partitions
from seglog.coordinators.coordinator_error import CoordinatorError
from seglog.core.error_codes import ErrorCode


def reconcile(
    member: ConsumerMember,
    target_epoch: int,
    target: Partitions,
    subscribed: Set[UUID],
    is_held: Callable[[UUID, int], bool],
    owned: Partitions | None,
    *,
    has_subscription_changed: bool,
) -> ConsumerMember:
    """Return the member after one step, itself if there is none.

    ``subscribed`` are the ids of its topics, ``owned`` the partitions of its heartbeat, None if that has none.
    ``is_held`` tells of a partition whether any member has it or is still giving it up. Raises `CoordinatorError`
    (FENCED_MEMBER_EPOCH) for a member in an unknown state.
    """
    if not has_subscription_changed and member.is_reconciled_to(target_epoch):
        return member
    keeps_epoch = (member.state is MemberState.STABLE and member.epoch == target_epoch) or (
        member.state is MemberState.UNREVOKED_PARTITIONS and _owns_any(owned, member.revoking)
    )
    if keeps_epoch:
        return _without_unsubscribed(member, subscribed, owned) if has_subscription_changed else member
    epoch = member.epoch
    if member.state is MemberState.UNKNOWN:
        if owned is None or owned:
            raise CoordinatorError(
                ErrorCode.FENCED_MEMBER_EPOCH,
                "The consumer group member is in a unknown state. The member must abandon all its partitions and "
                "rejoin.",
            )
        epoch = target_epoch
    return _next(member, epoch, target_epoch, target, subscribed, is_held, owned)


def _owns_any(owned: Partitions | None, revoking: PartitionEpochs) -> bool:
    """Whether the member may still read a partition that it must give up; a heartbeat without partitions says nothing
    new."""
    if owned is None:
        return True
    return any(not numbers.isdisjoint(revoking.get(topic_id, NO_NUMBERS)) for topic_id, numbers in owned.items())


def _without_unsubscribed(member: ConsumerMember, subscribed: Set[UUID], owned: Partitions | None) -> ConsumerMember:
    """Revoke the partitions of topics that it no longer subscribes to, before a new target is there."""
    assigned = {topic_id: epochs for topic_id, epochs in member.assigned.items() if topic_id in subscribed}
    reads_nothing = not subscribed and not member.revoking  # Kafka then forgets the previous epoch
    if len(assigned) == len(member.assigned) and not reads_nothing:
        return member
    revoking = {topic_id: dict(epochs) for topic_id, epochs in member.revoking.items()}
    for topic_id, epochs in member.assigned.items():
        if topic_id not in subscribed:
            revoking.setdefault(topic_id, {}).update(epochs)
    kept = replace(member.in_epoch(member.epoch), assigned=assigned)
    if _owns_any(owned, revoking):
        return replace(kept, state=MemberState.UNREVOKED_PARTITIONS, revoking=revoking)
    return kept


def _next(
    member: ConsumerMember,
    epoch: int,
    target_epoch: int,
    target: Partitions,
    subscribed: Set[UUID],
    is_held: Callable[[UUID, int], bool],
    owned: Partitions | None,
) -> ConsumerMember:
    assigned: dict[UUID, dict[int, int]] = {}
    revoking: dict[UUID, dict[int, int]] = {}
    free: dict[UUID, list[int]] = {}
    has_unreleased = False
    for topic_id in dict.fromkeys((*target, *member.assigned)):
        wanted = target.get(topic_id, frozenset()) if topic_id in subscribed else frozenset()
        current = member.assigned.get(topic_id, NO_NUMBERS)
        given_up = member.revoking.get(topic_id, NO_NUMBERS)
        if kept := {number: at for number, at in current.items() if number in wanted}:
            assigned[topic_id] = kept
        if lost := {number: at for number, at in current.items() if number not in wanted}:
            revoking[topic_id] = lost
        for number in wanted - kept.keys():
            if number in given_up or not is_held(topic_id, number):
                free.setdefault(topic_id, []).append(number)
            else:
                has_unreleased = True
    if revoking and _owns_any(owned, revoking):
        moved = replace(member.in_epoch(epoch), assigned=assigned, revoking=revoking)
        return replace(moved, state=MemberState.UNREVOKED_PARTITIONS)
    for topic_id, numbers in free.items():
        assigned.setdefault(topic_id, {}).update(dict.fromkeys(numbers, target_epoch))
    state = MemberState.UNRELEASED_PARTITIONS if has_unreleased else MemberState.STABLE
    return replace(member.in_epoch(target_epoch), state=state, assigned=assigned, revoking=NO_PARTITIONS)
