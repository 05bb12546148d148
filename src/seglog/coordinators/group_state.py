"""The states of a classic group, and what an event in one comes to. Pure.

============ ============================== ====================================================================
from         to                             when
============ ============================== ====================================================================
Empty        PreparingRebalance             a member joins; waits ``group.initial.rebalance.delay.ms`` for others
Preparing    CompletingRebalance            all members have joined, or their rebalance timeout has passed
Preparing    Empty                          as before, and nobody is left
Completing   Stable                         the leader's assignment is written
Completing   PreparingRebalance             a member joins, leaves, is gone or does not ask for its assignment
Stable       PreparingRebalance             as before, or the leader joins again, or a member with other protocols
any          Dead                           the group is deleted, or no longer this coordinator's
============ ============================== ====================================================================
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final, NamedTuple

from seglog.coordinators.group_messages import Answer, JoinGroupRequest, Protocols, Ticket
from seglog.coordinators.group_records import GroupMetadataKey, GroupMetadataValue, GroupRecord


class GroupState(Enum):
    """The values are what DescribeGroups says."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


NEXT: Final[Mapping[GroupState, frozenset[GroupState]]] = {
    GroupState.EMPTY: frozenset({GroupState.PREPARING, GroupState.DEAD}),
    GroupState.PREPARING: frozenset({GroupState.COMPLETING, GroupState.EMPTY, GroupState.DEAD}),
    GroupState.COMPLETING: frozenset({GroupState.STABLE, GroupState.PREPARING, GroupState.DEAD}),
    GroupState.STABLE: frozenset({GroupState.PREPARING, GroupState.DEAD}),
    GroupState.DEAD: frozenset(),
}
"""Where a group may go; all else is a mistake of ours."""


class Now(NamedTuple):
    """Monotonic milliseconds for deadlines, and those since 1970 for what is written down."""

    monotonic: int
    wall: int


class PendingGroup(NamedTuple):
    """The group's first record is written."""


class PendingAssignment(NamedTuple):
    """The leader's assignment is written."""

    generation: int
    assignments: Mapping[str, bytes]


class PendingStaticMember(NamedTuple):
    """A static member has a new id in a stable group; with what to undo it."""

    ticket: Ticket
    new_id: str
    old_id: str
    leader_before: str | None
    request: JoinGroupRequest
    protocols_before: Protocols
    timeouts_before: tuple[int, int]


class PendingEmptyGroup(NamedTuple):
    """That the group is empty is written."""


PendingWrite = PendingGroup | PendingAssignment | PendingStaticMember | PendingEmptyGroup


class GroupResult:
    """What an event came to."""

    __slots__ = ("events", "now", "pending", "records", "replies")

    def __init__(self, now: Now) -> None:
        self.now = now
        self.replies: list[tuple[Ticket, Answer]] = []
        self.records: list[GroupRecord] = []
        self.pending: PendingWrite | None = None
        self.events: list[str] = []
        """What happened, as Kafka's coordinator logs it."""

    def reply(self, ticket: Ticket | None, answer: Answer) -> None:
        if ticket is not None:
            self.replies.append((ticket, answer))

    def write(self, group_id: str, value: GroupMetadataValue, pending: PendingWrite) -> None:
        """Append the group's record; ``pending`` continues when it is written."""
        self.records.append((GroupMetadataKey(group_id), value))
        self.pending = pending


class GroupLimits(NamedTuple):
    """Kafka's ``group.*`` settings that a group itself needs."""

    initial_rebalance_delay_ms: int = 3_000
    max_size: int = 2**31 - 1


def fenced(group_id: str, member_id: str, instance_id: str | None) -> str:
    """The event that a static member is refused because another has taken its place."""
    return f"Member {member_id} of group {group_id} is fenced: another member has its group.instance.id {instance_id}."
