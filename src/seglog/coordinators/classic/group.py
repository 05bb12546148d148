"""A classic group as a state machine: events in; answers, records and deadlines out. Pure.

The rules are Kafka 4.4's (``ClassicGroup.java``, ``GroupMetadataManager.java``). Each event returns a `GroupResult`:
the answers to send now, the records to append, and what waits until these are written. Deadlines are part of the state
and on the monotonic clock: at `ClassicGroup.earliest` the driver calls `ClassicGroup.fire` until it returns None.
`seglog.coordinators.classic.state` has the states, `seglog.coordinators.classic.membership` the requests of members;
this module has the phases of a rebalance.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from seglog.coordinators.classic.members import CONSUMER, GroupMember, GroupMembers, subscribed_topics
from seglog.coordinators.classic.messages import JoinGroupResult, SyncGroupResult
from seglog.coordinators.classic.state import NEXT, GroupLimits, GroupResult, GroupState, Now, PendingEmptyGroup
from seglog.coordinators.group_records import GroupMetadataValue
from seglog.core.error_codes import ErrorCode

NEVER: Final = 1 << 62


class _Joining(NamedTuple):
    """The deadline of a rebalance. ``remaining`` is how long an initial one may be extended after it; -1 for the
    others."""

    at: int
    delay: int = 0
    remaining: int = -1


class ClassicGroup:
    """One group. Invariants, which `check` asserts: only states that have members have some; a waiting member waits for
    something that will happen; the leader is a member; deadlines belong to members and pending ones."""

    __slots__ = (
        "_joining",
        "earliest",
        "generation",
        "group_id",
        "limits",
        "members",
        "new_member_added",
        "previous",
        "protocol",
        "protocol_type",
        "sessions",
        "state",
        "state_timestamp",
        "subscribed",
        "sync_deadline",
    )

    def __init__(self, group_id: str, limits: GroupLimits, *, state_timestamp: int = -1) -> None:
        self.group_id = group_id
        self.state = GroupState.EMPTY
        self.state_timestamp = state_timestamp
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        self.members = GroupMembers()
        self.subscribed: frozenset[str] | None = None
        self.sessions: dict[str, int] = {}
        self.earliest = NEVER
        self.limits = limits
        self.previous = GroupState.DEAD
        self.new_member_added = False
        self._joining: _Joining | None = None
        self.sync_deadline: int | None = None

    @classmethod
    def restored(cls, group_id: str, value: GroupMetadataValue, limits: GroupLimits) -> ClassicGroup:
        """Restore the group from its record; `loaded` starts the sessions of its members."""
        group = cls(group_id, limits, state_timestamp=value.state_timestamp)
        group.state = GroupState.STABLE if value.members else GroupState.EMPTY
        group.generation = value.generation
        group.protocol_type = value.protocol_type or None
        group.protocol = value.protocol
        group.members = GroupMembers.restored(value)
        group._know_topics()
        return group

    @classmethod
    def converted(
        cls,
        group_id: str,
        generation: int,
        members: GroupMembers,
        protocol: str | None,
        limits: GroupLimits,
        now: Now,
    ) -> ClassicGroup:
        """Return the group that takes the place of a consumer group, with the same members and assignments."""
        group = cls(group_id, limits, state_timestamp=now.wall)
        group.state = GroupState.STABLE
        group.generation = generation
        group.protocol_type = CONSUMER
        group.protocol = protocol
        group.members = members
        group._know_topics()
        for member in members:
            group.renew(member, now)
        return group

    def loaded(self, now: Now) -> GroupResult:
        """All records of the partition are replayed: each member has one session timeout to send a heartbeat."""
        result = GroupResult(now)
        for member in self.members:
            self.renew(member, now)
        if self.state is GroupState.STABLE and len(self.members) > self.limits.max_size:
            self.prepare(result, f"the group has {len(self.members)} members, more than group.max.size")
        return result

    # Members

    def add(self, member: GroupMember, protocol_type: str | None) -> None:
        """Add a new member; the first one sets the protocol type."""
        if self.state is GroupState.PREPARING and self.previous is GroupState.EMPTY:
            self.new_member_added = True
        if not self.members:
            self.protocol_type = protocol_type
        self.members.add(member)

    def has_synced(self, member: GroupMember) -> None:
        """The member has asked for its assignment; the last one to do so ends the wait for the others."""
        self.members.pending_sync.discard(member.member_id)
        if not self.members.pending_sync:
            self.sync_deadline = None

    # Queries

    @property
    def is_empty(self) -> bool:
        return self.state is GroupState.EMPTY

    def is_subscribed(self, topic: str) -> bool:
        """Whether a member reads the topic. If the subscriptions should be known and are not, assume so."""
        if self.subscribed is not None:
            return topic in self.subscribed
        return self.protocol_type == CONSUMER

    def value(self, assignments: Mapping[str, bytes] | None = None) -> GroupMetadataValue:
        """Return the stored form of the group."""
        if assignments is None:
            assignments = {member.member_id: member.assignment for member in self.members}
        return GroupMetadataValue(
            self.protocol_type or "",
            self.generation,
            self.protocol,
            self.members.leader,
            self.state_timestamp,
            self.members.values(self.protocol, assignments),
        )

    def check(self) -> None:
        """Assert the invariants."""
        members = self.members
        if self.state in (GroupState.EMPTY, GroupState.DEAD):
            assert not members
        if self.state in (GroupState.COMPLETING, GroupState.STABLE):
            assert members
            assert self.protocol is not None
        assert members.leader in ({None} if not members else members.by_id)
        assert members.joining == sum(member.awaiting_join is not None for member in members)
        assert set(members.static) == {member.instance_id for member in members if member.instance_id is not None}
        assert members.pending_sync <= set(members.by_id)
        assert not set(members.pending) & set(members.by_id)
        assert set(self.sessions) <= {*members.by_id, *members.pending}
        if self.state is not GroupState.PREPARING:
            assert not members.joining
            assert self._joining is None
        if self.state is not GroupState.COMPLETING:
            assert all(member.awaiting_sync is None for member in members)

    # Deadlines

    def wake_at(self, at: int) -> None:
        self.earliest = min(self.earliest, at)

    def renew(self, member: GroupMember, now: Now) -> None:
        """The member is alive; it fails when it is silent for its session timeout."""
        self.expect(member.member_id, member.session_timeout, now)

    def expect(self, member_id: str, timeout: int, now: Now) -> None:
        """The member, or pending member, fails when it is silent for ``timeout``."""
        at = self.sessions[member_id] = now.monotonic + timeout
        self.wake_at(at)

    def _end_rebalance_at(self, joining: _Joining) -> None:
        self._joining = joining
        self.wake_at(joining.at)

    def fire(self, now: Now) -> GroupResult | None:
        """Handle one deadline that has passed. None, and an exact `earliest`, when none has."""
        if now.monotonic < self.earliest:
            return None
        if self._joining is not None and self._joining.at <= now.monotonic:
            return self._rebalance_time_is_up(self._joining, now)
        if self.sync_deadline is not None and self.sync_deadline <= now.monotonic:
            return self._sync_time_is_up(now)
        for member_id, at in self.sessions.items():
            if at <= now.monotonic:
                return self._session_ended(member_id, now)
        others = [self._joining.at if self._joining else NEVER, self.sync_deadline or NEVER]
        self.earliest = min(others + list(self.sessions.values()))
        return None

    def _rebalance_time_is_up(self, joining: _Joining, now: Now) -> GroupResult:
        """Extend an initial rebalance if members joined meanwhile and time remains; otherwise complete the join."""
        result = GroupResult(now)
        self._joining = None
        if joining.remaining > 0 and self.new_member_added:
            self.new_member_added = False
            delay = min(self.limits.initial_rebalance_delay_ms, joining.remaining)
            remaining = max(joining.remaining - joining.delay, 0)
            self._end_rebalance_at(_Joining(now.monotonic + delay, delay, remaining))
        else:
            self._complete_join(result)
        return result

    def _sync_time_is_up(self, now: Now) -> GroupResult:
        """Remove members that have not asked for their assignment: they do not work on it either."""
        result = GroupResult(now)
        self.sync_deadline = None
        missing = [member.member_id for member in self.members if member.member_id in self.members.pending_sync]
        for member_id in missing:
            self.remove(member_id, result)
        if missing:
            names = ", ".join(missing)
            result.events.append(
                f"Group {self.group_id} removed members that did not ask for their assignment: {names}."
            )
            self.prepare(result, "members did not ask for their assignment")
        return result

    def _session_ended(self, member_id: str, now: Now) -> GroupResult:
        result = GroupResult(now)
        del self.sessions[member_id]
        if member_id in self.members.pending:
            self.members.remove(member_id)
            result.events.append(f"Pending member {member_id} of group {self.group_id} was removed: it did not join.")
        elif self.members[member_id].is_waiting:
            return result
        else:
            self.remove(member_id, result)
            result.events.append(f"Member {member_id} of group {self.group_id} has failed: its session has expired.")
            if self.state in (GroupState.STABLE, GroupState.COMPLETING):
                self.prepare(result, f"the session of member {member_id} has expired")
                return result
        if self.state is GroupState.PREPARING and self.members.all_joined:
            self._complete_join(result)
        return result

    def joined(self, member: GroupMember) -> JoinGroupResult:
        is_leader = member.member_id == self.members.leader
        return JoinGroupResult(
            ErrorCode.NONE,
            member.member_id,
            self.generation,
            self.protocol_type,
            self.protocol,
            self.members.leader or "",
            self.members.described(self.protocol) if is_leader else (),
        )

    # Rebalancing

    def go(self, state: GroupState, now: Now) -> None:
        assert state in NEXT[self.state], f"group {self.group_id} goes from {self.state} to {state}"
        self.previous = self.state
        self.state = state
        self.state_timestamp = now.wall

    def prepare_or_complete(self, result: GroupResult, reason: str) -> None:
        if GroupState.PREPARING in NEXT[self.state]:
            self.prepare(result, reason)
        elif self.state is GroupState.PREPARING and self.previous is not GroupState.EMPTY and self.members.all_joined:
            self._complete_join(result)

    def prepare(self, result: GroupResult, reason: str) -> None:
        """Begin a rebalance: all members must join again."""
        result.events.append(
            f"Preparing to rebalance group {self.group_id} in state {self.state.value} with old generation "
            f"{self.generation} (reason: {reason})."
        )
        if self.state is GroupState.COMPLETING:
            self.assign({}, ErrorCode.REBALANCE_IN_PROGRESS, result)
        self.members.pending_sync.clear()
        self.sync_deadline = None
        is_initial = self.state is GroupState.EMPTY
        self.go(GroupState.PREPARING, result.now)
        if is_initial:
            delay = self.limits.initial_rebalance_delay_ms
            remaining = max(self.members.rebalance_timeout - delay, 0)
            self._end_rebalance_at(_Joining(result.now.monotonic + delay, delay, remaining))
        elif self.members.all_joined:
            self._complete_join(result)
        else:
            self._end_rebalance_at(_Joining(result.now.monotonic + self.members.rebalance_timeout))

    def _complete_join(self, result: GroupResult) -> None:
        """Remove dynamic members that have not joined; the others form the next generation."""
        members = self.members
        self._joining = None
        late = [member for member in members if member.awaiting_join is None and member.instance_id is None]
        for member in late:
            self.remove(member.member_id, result)
        if late:
            names = ", ".join(member.member_id for member in late)
            result.events.append(f"Group {self.group_id} removed members that have not joined: {names}.")
        if not members.elect() and members:
            # Only absent static members are left: their sessions end, or one of them comes back.
            self._end_rebalance_at(_Joining(result.now.monotonic + members.rebalance_timeout))
            return
        self.generation += 1
        self.new_member_added = False
        members.pending_sync.clear()
        if not members:
            self.protocol = None
            self._know_topics()
            self.go(GroupState.EMPTY, result.now)
            result.events.append(f"Group {self.group_id} with generation {self.generation} is now empty.")
            result.write(self.group_id, self.value(), PendingEmptyGroup())
            return
        self.protocol = members.select_protocol()
        self._know_topics()
        self.go(GroupState.COMPLETING, result.now)
        result.events.append(
            f"Stabilized group {self.group_id} generation {self.generation} with {len(members)} members."
        )
        for member in members:
            result.reply(members.await_join(member, None), self.joined(member))
            self.renew(member, result.now)
            member.rebalanced()
            members.pending_sync.add(member.member_id)
        self.sync_deadline = result.now.monotonic + members.rebalance_timeout
        self.wake_at(self.sync_deadline)

    def _know_topics(self) -> None:
        self.subscribed = None
        if self.protocol_type == CONSUMER and (self.protocol is not None or not self.members):
            self.subscribed = subscribed_topics(member.metadata(self.protocol) for member in self.members)

    def remove(self, member_id: str, result: GroupResult) -> None:
        """Remove a member and answer what it waits for; if it is alive, it joins again."""
        if member_id in self.members:
            member = self.members[member_id]
            result.reply(self.members.await_join(member, None), JoinGroupResult(ErrorCode.UNKNOWN_MEMBER_ID))
            result.reply(member.awaiting_sync, SyncGroupResult(ErrorCode.UNKNOWN_MEMBER_ID))
        self.members.remove(member_id)
        self.sessions.pop(member_id, None)

    def assign(self, assignments: Mapping[str, bytes], code: ErrorCode, result: GroupResult) -> None:
        """Answer all members that wait for their assignment, and restart their sessions, which were suspended
        meanwhile."""
        protocol_type, protocol = (self.protocol_type, self.protocol) if code is ErrorCode.NONE else (None, None)
        for member in self.members:
            member.assign(assignments.get(member.member_id, b""))
            if member.awaiting_sync is not None:
                result.reply(member.awaiting_sync, SyncGroupResult(code, protocol_type, protocol, member.assignment))
                member.await_sync(None)
                self.renew(member, result.now)

    def die(self, code: ErrorCode, now: Now) -> GroupResult:
        """End the group; its waiting clients look for its coordinator again."""
        result = GroupResult(now)
        for member in list(self.members):
            result.reply(self.members.await_join(member, None), JoinGroupResult(code, member.member_id))
            result.reply(member.awaiting_sync, SyncGroupResult(code))
        self.members = GroupMembers()
        self.sessions.clear()
        self._joining = self.sync_deadline = None
        self.earliest = NEVER
        self.go(GroupState.DEAD, now)
        return result
