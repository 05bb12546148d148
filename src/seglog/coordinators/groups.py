"""A classic group as a state machine: events in; answers, records and deadlines out. Pure.

The rules are Kafka 4.3's (``ClassicGroup.java``, ``GroupMetadataManager.java``). Each event returns a `Step`: whom to
answer now, which records to append, and what waits for these to be written. Deadlines are on the monotonic clock and
part of the state: whoever drives a group calls `Group.fire` when `Group.earliest` has come, as often as that gives a
step. The states are in `seglog.coordinators.steps`, the requests of members in `seglog.coordinators.joins`; here are
the phases of a rebalance that they bring about.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from seglog.coordinators.codec import GroupKey, GroupValue
from seglog.coordinators.members import CONSUMER, Member, Members, subscribed_topics
from seglog.coordinators.requests import JoinAnswer, SyncAnswer
from seglog.coordinators.steps import NEXT, Emptied, GroupLimits, Now, State, Step
from seglog.core.error_codes import ErrorCode

NEVER: Final = 1 << 62


class _Joining(NamedTuple):
    """When a rebalance ends. ``remaining`` is how long an initial one may go on after that, -1 for the others."""

    at: int
    delay: int = 0
    remaining: int = -1


class Group:
    """One group. Invariants, which `check` asserts: members are there just in the states that have some, and all who
    wait wait for what is to come; a leader is a member; deadlines are of members and pending ones."""

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
        self.state = State.EMPTY
        self.state_timestamp = state_timestamp
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        self.members = Members()
        self.subscribed: frozenset[str] | None = None
        self.sessions: dict[str, int] = {}
        self.earliest = NEVER
        self.limits = limits
        self.previous = State.DEAD
        self.new_member_added = False
        self._joining: _Joining | None = None
        self.sync_deadline: int | None = None

    @classmethod
    def restored(cls, group_id: str, value: GroupValue, limits: GroupLimits) -> Group:
        """The group as it was written down; `loaded` starts its members' sessions."""
        group = cls(group_id, limits, state_timestamp=value.state_timestamp)
        group.state = State.STABLE if value.members else State.EMPTY
        group.generation = value.generation
        group.protocol_type = value.protocol_type or None
        group.protocol = value.protocol
        group.members = Members.restored(value)
        group._know_topics()
        return group

    def loaded(self, now: Now) -> Step:
        """All records of its partition are read: members have one session's time to show up."""
        step = Step(now)
        for member in self.members:
            self.renew(member, now)
        if self.state is State.STABLE and len(self.members) > self.limits.max_size:
            self.prepare(step, f"the group has {len(self.members)} members, more than group.max.size")
        return step

    # Members

    def add(self, member: Member, protocol_type: str | None) -> None:
        """A new member joins; the first one brings the protocol type."""
        if self.state is State.PREPARING and self.previous is State.EMPTY:
            self.new_member_added = True
        if not self.members:
            self.protocol_type = protocol_type
        self.members.add(member)

    def has_synced(self, member: Member) -> None:
        """It has asked for its assignment; the last one to do so ends the wait for the others."""
        self.members.pending_sync.discard(member.member_id)
        if not self.members.pending_sync:
            self.sync_deadline = None

    # Questions

    @property
    def is_empty(self) -> bool:
        return self.state is State.EMPTY

    @property
    def is_simple(self) -> bool:
        """It only stores offsets."""
        return self.protocol_type is None and self.is_empty and not self.members.pending

    def is_subscribed(self, topic: str) -> bool:
        """Whether a member reads the topic, as far as we know; if we should and do not, it may."""
        if self.subscribed is not None:
            return topic in self.subscribed
        return self.protocol_type == CONSUMER

    def value(self, assignments: Mapping[str, bytes] | None = None) -> GroupValue:
        """The group as it is written down."""
        if assignments is None:
            assignments = {member.member_id: member.assignment for member in self.members}
        return GroupValue(
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
        if self.state in (State.EMPTY, State.DEAD):
            assert not members
        if self.state in (State.COMPLETING, State.STABLE):
            assert members
            assert self.protocol is not None
        assert members.leader in ({None} if not members else members.by_id)
        assert members.joining == sum(member.awaiting_join is not None for member in members)
        assert set(members.static) == {member.instance_id for member in members if member.instance_id is not None}
        assert members.pending_sync <= set(members.by_id)
        assert not set(members.pending) & set(members.by_id)
        assert set(self.sessions) <= {*members.by_id, *members.pending}
        if self.state is not State.PREPARING:
            assert not members.joining
            assert self._joining is None
        if self.state is not State.COMPLETING:
            assert all(member.awaiting_sync is None for member in members)

    # Deadlines

    def wake_at(self, at: int) -> None:
        self.earliest = min(self.earliest, at)

    def renew(self, member: Member, now: Now) -> None:
        """The member is there now; it is gone when nothing is heard of it for its session's time."""
        self.expect(member.member_id, member.session_timeout, now)

    def expect(self, member_id: str, timeout: int, now: Now) -> None:
        """A member or pending one is gone when nothing is heard of it for so long."""
        at = self.sessions[member_id] = now.monotonic + timeout
        self.wake_at(at)

    def _end_rebalance_at(self, joining: _Joining) -> None:
        self._joining = joining
        self.wake_at(joining.at)

    def fire(self, now: Now) -> Step | None:
        """Do one thing whose time has come; None, and `earliest` put right, when nothing is due."""
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

    def _rebalance_time_is_up(self, joining: _Joining, now: Now) -> Step:
        """Of an initial rebalance: give others more time if somebody came, as long as there is some."""
        step = Step(now)
        self._joining = None
        if joining.remaining > 0 and self.new_member_added:
            self.new_member_added = False
            delay = min(self.limits.initial_rebalance_delay_ms, joining.remaining)
            remaining = max(joining.remaining - joining.delay, 0)
            self._end_rebalance_at(_Joining(now.monotonic + delay, delay, remaining))
        else:
            self._complete_join(step)
        return step

    def _sync_time_is_up(self, now: Now) -> Step:
        """Members that do not ask for their assignment do not work on it either."""
        step = Step(now)
        self.sync_deadline = None
        missing = [member.member_id for member in self.members if member.member_id in self.members.pending_sync]
        for member_id in missing:
            self.remove(member_id, step)
        if missing:
            names = ", ".join(missing)
            step.events.append(f"Group {self.group_id} removed members that did not ask for their assignment: {names}.")
            self.prepare(step, "members did not ask for their assignment")
        return step

    def _session_ended(self, member_id: str, now: Now) -> Step:
        step = Step(now)
        del self.sessions[member_id]
        if member_id in self.members.pending:
            self.members.remove(member_id)
            step.events.append(f"Pending member {member_id} of group {self.group_id} was removed: it did not join.")
        elif self.members[member_id].is_waiting:
            return step
        else:
            self.remove(member_id, step)
            step.events.append(f"Member {member_id} of group {self.group_id} has failed: its session has expired.")
            if self.state in (State.STABLE, State.COMPLETING):
                self.prepare(step, f"the session of member {member_id} has expired")
                return step
        if self.state is State.PREPARING and self.members.all_joined:
            self._complete_join(step)
        return step

    def joined(self, member: Member) -> JoinAnswer:
        is_leader = member.member_id == self.members.leader
        return JoinAnswer(
            ErrorCode.NONE,
            member.member_id,
            self.generation,
            self.protocol_type,
            self.protocol,
            self.members.leader or "",
            self.members.described(self.protocol) if is_leader else (),
        )

    # Rebalancing

    def go(self, state: State, now: Now) -> None:
        assert state in NEXT[self.state], f"group {self.group_id} goes from {self.state} to {state}"
        self.previous = self.state
        self.state = state
        self.state_timestamp = now.wall

    def prepare_or_complete(self, step: Step, reason: str) -> None:
        if State.PREPARING in NEXT[self.state]:
            self.prepare(step, reason)
        else:
            self.maybe_complete_join(step)

    def prepare(self, step: Step, reason: str) -> None:
        """Begin a rebalance: all members join again, or are out."""
        step.events.append(
            f"Preparing to rebalance group {self.group_id} in state {self.state.value} with old generation "
            f"{self.generation} (reason: {reason})."
        )
        if self.state is State.COMPLETING:
            self.assign({}, ErrorCode.REBALANCE_IN_PROGRESS, step)
        self._stop_sync()
        is_initial = self.state is State.EMPTY
        self.go(State.PREPARING, step.now)
        if is_initial:
            delay = self.limits.initial_rebalance_delay_ms
            remaining = max(self.members.rebalance_timeout - delay, 0)
            self._end_rebalance_at(_Joining(step.now.monotonic + delay, delay, remaining))
        elif self.members.all_joined:
            self._complete_join(step)
        else:
            self._end_rebalance_at(_Joining(step.now.monotonic + self.members.rebalance_timeout))

    def maybe_complete_join(self, step: Step) -> None:
        if self.state is State.PREPARING and self.previous is not State.EMPTY and self.members.all_joined:
            self._complete_join(step)

    def _complete_join(self, step: Step) -> None:
        """Who has not joined by now is out, unless it is static; the others are the next generation."""
        members = self.members
        self._joining = None
        late = [member for member in members if member.awaiting_join is None and member.instance_id is None]
        for member in late:
            self.remove(member.member_id, step)
        if late:
            names = ", ".join(member.member_id for member in late)
            step.events.append(f"Group {self.group_id} removed members that have not joined: {names}.")
        if not members.elect() and members:
            # Only static members that are away: their sessions end, or one of them comes back.
            self._end_rebalance_at(_Joining(step.now.monotonic + members.rebalance_timeout))
            return
        self.generation += 1
        self.new_member_added = False
        members.pending_sync.clear()
        if not members:
            self.protocol = None
            self._know_topics()
            self.go(State.EMPTY, step.now)
            step.events.append(f"Group {self.group_id} with generation {self.generation} is now empty.")
            step.records.append((GroupKey(self.group_id), self.value()))
            step.pending = Emptied()
            return
        self.protocol = members.select_protocol()
        self._know_topics()
        self.go(State.COMPLETING, step.now)
        step.events.append(
            f"Stabilized group {self.group_id} generation {self.generation} with {len(members)} members."
        )
        for member in members:
            step.reply(members.await_join(member, None), self.joined(member))
            self.renew(member, step.now)
            member.is_new = False
            members.pending_sync.add(member.member_id)
        self.sync_deadline = step.now.monotonic + members.rebalance_timeout
        self.wake_at(self.sync_deadline)

    def _know_topics(self) -> None:
        self.subscribed = None
        if self.protocol_type == CONSUMER and (self.protocol is not None or not self.members):
            self.subscribed = subscribed_topics(member.metadata(self.protocol) for member in self.members)

    def _stop_sync(self) -> None:
        self.members.pending_sync.clear()
        self.sync_deadline = None

    def remove(self, member_id: str, step: Step) -> None:
        """Out, with an answer to what it waits for: if it is alive, it joins anew."""
        if member_id in self.members:
            member = self.members[member_id]
            step.reply(self.members.await_join(member, None), JoinAnswer(ErrorCode.UNKNOWN_MEMBER_ID))
            step.reply(member.awaiting_sync, SyncAnswer(ErrorCode.UNKNOWN_MEMBER_ID))
        self.members.remove(member_id)
        self.sessions.pop(member_id, None)

    def assign(self, assignments: Mapping[str, bytes], code: ErrorCode, step: Step) -> None:
        """Answer all who wait for their assignment; their sessions, which did not count meanwhile, begin anew."""
        protocol_type, protocol = (self.protocol_type, self.protocol) if code is ErrorCode.NONE else (None, None)
        for member in self.members:
            member.assignment = assignments.get(member.member_id, b"")
            if member.awaiting_sync is not None:
                step.reply(member.awaiting_sync, SyncAnswer(code, protocol_type, protocol, member.assignment))
                member.await_sync(None)
                self.renew(member, step.now)

    def die(self, code: ErrorCode, now: Now) -> Step:
        """The group goes, and whoever waits is told to ask elsewhere."""
        step = Step(now)
        for member in list(self.members):
            step.reply(self.members.await_join(member, None), JoinAnswer(code, member.member_id))
            step.reply(member.awaiting_sync, SyncAnswer(code))
        self.members = Members()
        self.sessions.clear()
        self._joining = self.sync_deadline = None
        self.earliest = NEVER
        self.go(State.DEAD, now)
        return step
