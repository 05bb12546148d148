"""The requests of a classic group's members: join, sync, heartbeat, leave, commit. Pure.

Each function takes a group and returns a code, or a `GroupResult` for the group's driver; `stored` continues when its
records are written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from seglog.coordinators.classic.group import ClassicGroup
from seglog.coordinators.classic.members import GroupMember
from seglog.coordinators.classic.messages import (
    JoinGroupRequest,
    JoinGroupResult,
    LeavingMember,
    SyncGroupRequest,
    SyncGroupResult,
    Ticket,
)
from seglog.coordinators.classic.state import (
    GroupResult,
    GroupState,
    Now,
    PendingAssignment,
    PendingEmptyGroup,
    PendingGroup,
    PendingStaticMember,
    PendingWrite,
    fenced,
)
from seglog.core.error_codes import ErrorCode

MAX_PENDING: Final = 10_000
"""Unused member ids of one group. So many are not starting consumers; the oldest ids go."""
_NEW_MEMBER_JOIN_TIMEOUT_MS: Final = 300_000
_ID_REQUIRED_FROM: Final = 4
_SKIPS_ASSIGNMENT_FROM: Final = 9

# Joining


def join(group: ClassicGroup, request: JoinGroupRequest, ticket: Ticket, new_id: str, now: Now) -> GroupResult:
    """Handle a JoinGroup; a member without an id gets ``new_id``."""
    result = GroupResult(now)
    if not _has_room_for(group, request.member_id):
        group.remove(request.member_id, result)
        result.reply(ticket, JoinGroupResult(ErrorCode.GROUP_MAX_SIZE_REACHED))
    elif group.state is GroupState.DEAD:
        result.reply(ticket, JoinGroupResult(ErrorCode.COORDINATOR_NOT_AVAILABLE, request.member_id))
    elif not _speaks(group, request):
        result.reply(ticket, JoinGroupResult(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, request.member_id))
    elif request.member_id:
        _join_again(group, request, ticket, result)
    elif request.instance_id is not None and request.instance_id in group.members.static:
        _join_as_static(group, request, request.instance_id, ticket, new_id, result)
    elif request.instance_id is None and request.version >= _ID_REQUIRED_FROM:
        _give_id(group, request, ticket, new_id, result)
    else:
        _add(group, request, ticket, new_id, result)
    return result


def _has_room_for(group: ClassicGroup, member_id: str) -> bool:
    """Check ``group.max.size``. While a rebalance is prepared only members that have joined count: the last ones of a
    group that is too large stay outside."""
    members = group.members
    if group.state is GroupState.PREPARING:
        joined = member_id in members and members[member_id].awaiting_join is not None
        return joined or members.joining < group.limits.max_size
    if group.state in (GroupState.COMPLETING, GroupState.STABLE):
        return member_id in members or len(members) < group.limits.max_size
    return True


def _speaks(group: ClassicGroup, request: JoinGroupRequest) -> bool:
    if group.state is GroupState.EMPTY:
        return bool(request.protocol_type and request.protocols)
    return group.protocol_type == request.protocol_type and group.members.supports(request.protocols)


def _give_id(group: ClassicGroup, request: JoinGroupRequest, ticket: Ticket, new_id: str, result: GroupResult) -> None:
    """A client that cannot use the id never becomes a member that the others wait for (KIP-394)."""
    pending = group.members.pending
    if len(pending) >= MAX_PENDING:
        group.remove(next(iter(pending)), result)
    pending[new_id] = None
    group.expect(new_id, request.session_timeout, result.now)
    result.events.append(
        f"A member without an id joins group {group.group_id} in state {group.state.value} (client id "
        f"{request.client_id}, {request.client_host}). It is to join again as {new_id}."
    )
    result.reply(ticket, JoinGroupResult(ErrorCode.MEMBER_ID_REQUIRED, new_id))


def _join_again(group: ClassicGroup, request: JoinGroupRequest, ticket: Ticket, result: GroupResult) -> None:
    member_id = request.member_id
    if member_id in group.members.pending:
        if request.instance_id is not None:  # a static member is never pending: no client of Kafka does this
            result.reply(ticket, JoinGroupResult(ErrorCode.UNKNOWN_SERVER_ERROR))
        else:
            _add(group, request, ticket, member_id, result)
        return
    code = group.members.check(member_id, request.instance_id)
    if code is not ErrorCode.NONE:
        _note_fenced(group, member_id, request.instance_id, code, result)
        result.reply(ticket, JoinGroupResult(code, member_id))
        return
    member = group.members[member_id]
    is_follower = member_id != group.members.leader
    is_same = member.protocols == request.protocols
    if is_same and (group.state is GroupState.COMPLETING or (group.state is GroupState.STABLE and is_follower)):
        # It missed the answer to its join: the generation continues.
        result.reply(ticket, group.joined(member))
        return
    _wait(group, member, request, ticket, result)
    group.prepare_or_complete(result, f"member {member_id} joins again")


def _add(group: ClassicGroup, request: JoinGroupRequest, ticket: Ticket, member_id: str, result: GroupResult) -> None:
    members = group.members
    member = GroupMember.joining(request, member_id)
    group.add(member, request.protocol_type)
    members.await_join(member, ticket)
    # Without an id it cannot send heartbeats, and its closed connection would not be noticed while it waits.
    group.expect(member_id, _NEW_MEMBER_JOIN_TIMEOUT_MS, result.now)
    result.events.append(
        f"Member {member_id} joins group {group.group_id} in state {group.state.value} (client id "
        f"{request.client_id}, {request.client_host}, group.instance.id {request.instance_id})."
    )
    group.prepare_or_complete(result, f"adding new member {member_id} with group.instance.id {request.instance_id}")


def _wait(
    group: ClassicGroup, member: GroupMember, request: JoinGroupRequest, ticket: Ticket, result: GroupResult
) -> None:
    group.members.update(member, request)
    before = group.members.await_join(member, ticket)
    if before is not ticket:  # the client repeated its request on a new connection
        result.reply(before, JoinGroupResult(ErrorCode.REBALANCE_IN_PROGRESS, member.member_id))


def _join_as_static(
    group: ClassicGroup, request: JoinGroupRequest, instance_id: str, ticket: Ticket, new_id: str, result: GroupResult
) -> None:
    """A static member restarted: it keeps its assignment, and usually the other members do not notice."""
    members = group.members
    leader_before = members.leader
    old = members[members.static[instance_id]]
    timeouts_before = old.rebalance_timeout, old.session_timeout
    result.reply(members.await_join(old, None), JoinGroupResult(ErrorCode.FENCED_INSTANCE_ID, old.member_id))
    result.reply(old.awaiting_sync, SyncGroupResult(ErrorCode.FENCED_INSTANCE_ID))
    group.sessions.pop(old.member_id, None)
    old_id = old.member_id
    member = members.replace_static(instance_id, new_id)
    members.update(member, request)
    group.renew(member, result.now)
    result.events.append(
        f"Static member with group.instance.id {instance_id} joins group {group.group_id} in state "
        f"{group.state.value}: {new_id} replaces {old_id}, which is fenced."
    )
    if group.state is GroupState.STABLE and members.select_protocol() == group.protocol:
        pending = PendingStaticMember(ticket, new_id, old_id, leader_before, request, old.protocols, timeouts_before)
        result.write(group.group_id, group.value(), pending)
        return
    members.await_join(member, ticket)
    # The leader may be assigning to the old id: rebalance also while assignments are made.
    group.prepare_or_complete(result, f"static member {instance_id} has a new member id, {new_id}")


def _note_fenced(
    group: ClassicGroup, member_id: str, instance_id: str | None, code: ErrorCode, result: GroupResult
) -> None:
    if code is ErrorCode.FENCED_INSTANCE_ID:
        result.events.append(fenced(group.group_id, member_id, instance_id))


_HEARTBEAT: Final[Mapping[GroupState, ErrorCode]] = {
    GroupState.EMPTY: ErrorCode.UNKNOWN_MEMBER_ID,
    GroupState.PREPARING: ErrorCode.REBALANCE_IN_PROGRESS,
    GroupState.COMPLETING: ErrorCode.NONE,
    GroupState.STABLE: ErrorCode.NONE,
    GroupState.DEAD: ErrorCode.COORDINATOR_NOT_AVAILABLE,
}
"""The answer to a member of the current generation."""


def sync(group: ClassicGroup, request: SyncGroupRequest, ticket: Ticket, now: Now) -> GroupResult:
    """Handle a SyncGroup: the leader brings the assignments, the others wait for theirs."""
    result = GroupResult(now)
    code = _check_sync(group, request)
    if code is not ErrorCode.NONE:
        _note_fenced(group, request.member_id, request.instance_id, code, result)
        result.reply(ticket, SyncGroupResult(code))
        return result
    member = group.members[request.member_id]
    group.has_synced(member)
    if group.state is GroupState.STABLE:
        result.reply(ticket, SyncGroupResult(ErrorCode.NONE, group.protocol_type, group.protocol, member.assignment))
        return result
    if member.awaiting_sync is not None and member.awaiting_sync is not ticket:
        result.reply(member.awaiting_sync, SyncGroupResult(ErrorCode.REBALANCE_IN_PROGRESS))
    member.await_sync(ticket)
    if group.members.leader == member.member_id:
        pending = PendingAssignment(group.generation, request.assignments)
        result.write(group.group_id, group.value(request.assignments), pending)
        result.events.append(
            f"Assignment received from leader {member.member_id} for group {group.group_id} for generation "
            f"{group.generation}. The group has {len(group.members)} members, {len(group.members.static)} of which are "
            "static."
        )
    return result


def _check_sync(group: ClassicGroup, request: SyncGroupRequest) -> ErrorCode:
    if group.state is GroupState.DEAD:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    code = group.members.check(request.member_id, request.instance_id)
    if code is not ErrorCode.NONE:
        return code
    if request.generation != group.generation:
        return ErrorCode.ILLEGAL_GENERATION
    if _differ(request.protocol_type, group.protocol_type) or _differ(request.protocol, group.protocol):
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    return ErrorCode.REBALANCE_IN_PROGRESS if group.state is GroupState.PREPARING else ErrorCode.NONE


def _differ(asked: str | None, has: str | None) -> bool:
    return asked is not None and has is not None and asked != has


def heartbeat(group: ClassicGroup, member_id: str, instance_id: str | None, generation: int, now: Now) -> ErrorCode:
    """Handle a Heartbeat."""
    if group.state is not GroupState.DEAD:
        code = group.members.check(member_id, instance_id)
        if code is not ErrorCode.NONE:
            return code
        if generation != group.generation:
            return ErrorCode.ILLEGAL_GENERATION
        group.renew(group.members[member_id], now)
    return _HEARTBEAT[group.state]


def leave(group: ClassicGroup, leaving: Sequence[LeavingMember], now: Now) -> tuple[GroupResult, list[ErrorCode]]:
    """Handle a LeaveGroup; each member has its own code."""
    result = GroupResult(now)
    codes = [_leave(group, one, result) for one in leaving]
    if ErrorCode.NONE in codes and not group.is_empty:
        group.prepare_or_complete(result, "members have left")
    return result, codes


def _leave(group: ClassicGroup, leaving: LeavingMember, result: GroupResult) -> ErrorCode:
    member_id: str | None = leaving.member_id
    if not member_id:
        member_id = None if leaving.instance_id is None else group.members.static.get(leaving.instance_id)
        if member_id is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
    elif member_id not in group.members.pending:
        code = group.members.check(member_id, leaving.instance_id)
        if code is not ErrorCode.NONE:
            _note_fenced(group, member_id, leaving.instance_id, code, result)
            return code
    group.remove(member_id, result)
    result.events.append(f"Member {member_id} has left group {group.group_id} by a LeaveGroup request.")
    return ErrorCode.NONE


def check_commit(
    group: ClassicGroup,
    member_id: str,
    instance_id: str | None,
    generation: int,
    now: Now,
    *,
    is_transactional: bool = False,
) -> ErrorCode:
    """Check whether this member, or a client outside of the group (generation -1), may commit. A commit is a heartbeat
    too."""
    if group.state is GroupState.DEAD:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if generation < 0 and group.state is GroupState.EMPTY:
        return ErrorCode.NONE
    if generation < 0 and not member_id and instance_id is None:
        return ErrorCode.NONE if is_transactional else ErrorCode.UNKNOWN_MEMBER_ID
    code = group.members.check(member_id, instance_id)
    if code is not ErrorCode.NONE:
        return code
    if generation != group.generation:
        return ErrorCode.ILLEGAL_GENERATION
    if group.state is GroupState.COMPLETING and not is_transactional:
        return ErrorCode.REBALANCE_IN_PROGRESS
    group.renew(group.members[member_id], now)
    return ErrorCode.NONE


def stored(group: ClassicGroup, pending: PendingWrite, code: ErrorCode, now: Now) -> GroupResult:
    """The records of a result are written, or could not be written."""
    result = GroupResult(now)
    if group.state is GroupState.DEAD and isinstance(pending, PendingStaticMember):
        # `ClassicGroup.die` does not know this ticket.
        result.reply(pending.ticket, JoinGroupResult(code or ErrorCode.NOT_COORDINATOR))
    if group.state is GroupState.DEAD or isinstance(pending, PendingEmptyGroup):
        return result  # if the write failed, a restart brings the last members back until their sessions expire
    if isinstance(pending, PendingGroup):
        if code is not ErrorCode.NONE:
            result = group.die(code, now)
    elif isinstance(pending, PendingAssignment):
        if group.state is GroupState.COMPLETING and pending.generation == group.generation:
            _assigned(group, pending.assignments, code, result)
    elif code is ErrorCode.NONE:
        result.reply(pending.ticket, _skipping(group, pending))
    else:
        _undo_static(group, pending, result)
        result.reply(pending.ticket, JoinGroupResult(code))
    return result


def _assigned(group: ClassicGroup, assignments: Mapping[str, bytes], code: ErrorCode, result: GroupResult) -> None:
    if code is ErrorCode.NONE:
        group.assign(assignments, code, result)
        group.go(GroupState.STABLE, result.now)
    else:
        group.assign({}, code, result)
        group.prepare_or_complete(result, f"the assignment could not be written: {code.name}")


def _skipping(group: ClassicGroup, replaced: PendingStaticMember) -> JoinGroupResult:
    """A leader that came back need not assign again. Before version 9 the only way is not to tell it that it leads."""
    if replaced.new_id not in group.members:
        return JoinGroupResult(ErrorCode.UNKNOWN_MEMBER_ID)
    answer = group.joined(group.members[replaced.new_id])
    if replaced.request.version >= _SKIPS_ASSIGNMENT_FROM:
        return answer._replace(skip_assignment=answer.leader == replaced.new_id)
    return answer._replace(leader=replaced.leader_before or "", members=())


def _undo_static(group: ClassicGroup, replaced: PendingStaticMember, result: GroupResult) -> None:
    member = group.members.by_id.get(replaced.new_id)
    if member is None or member.instance_id is None:
        return
    rebalance_timeout, session_timeout = replaced.timeouts_before
    group.members.update(
        member,
        replaced.request._replace(
            protocols=replaced.protocols_before, rebalance_timeout=rebalance_timeout, session_timeout=session_timeout
        ),
    )
    group.sessions.pop(replaced.new_id, None)
    group.renew(group.members.replace_static(member.instance_id, replaced.old_id), result.now)
