"""The states of a classic group, and the results of its events. Pure.

============ ============================== ====================================================================
from         to                             when
============ ============================== ====================================================================
Empty        PreparingRebalance             a member joins; wait ``group.initial.rebalance.delay.ms`` for others
Preparing    CompletingRebalance            all members have joined, or their rebalance timeout has passed
Preparing    Empty                          the same, and no member is left
Completing   Stable                         the leader's assignment is written
Completing   PreparingRebalance             a member joins, leaves, fails, or does not ask for its assignment
Stable       PreparingRebalance             the same, or the leader joins again, or a member with other protocols
any          Dead                           the group is deleted, or moves to another coordinator
============ ============================== ====================================================================
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final, NamedTuple

from seglog.coordinators.classic.messages import Answer, JoinGroupRequest, Protocols, Ticket
from seglog.coordinators.group_records import GroupMetadataKey, GroupMetadataValue, GroupRecord


class GroupState(Enum):
    """The values are those of DescribeGroups."""

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
"""The legal transitions; any other one is a bug."""


class Now(NamedTuple):
    """Monotonic milliseconds, for deadlines, and milliseconds since 1970, for records."""

    monotonic: int
    wall: int


class PendingGroup(NamedTuple):
    """Waits for the group's first record."""


class PendingAssignment(NamedTuple):
    """Waits for the record of the leader's assignment."""

    generation: int
    assignments: Mapping[str, bytes]


class PendingStaticMember(NamedTuple):
    """Waits for the record of a static member's new id in a stable group; has what undoes the change."""

    ticket: Ticket
    new_id: str
    old_id: str
    leader_before: str | None
    request: JoinGroupRequest
    protocols_before: Protocols
    timeouts_before: tuple[int, int]


class PendingEmptyGroup(NamedTuple):
    """Waits for the record of an empty group."""


PendingWrite = PendingGroup | PendingAssignment | PendingStaticMember | PendingEmptyGroup


class GroupResult:
    """The result of an event: answers to send, records to append, and what waits for these (``CoordinatorResult``)."""

    __slots__ = ("events", "now", "pending", "records", "replies")

    def __init__(self, now: Now) -> None:
        self.now = now
        self.replies: list[tuple[Ticket, Answer]] = []
        self.records: list[GroupRecord] = []
        self.pending: PendingWrite | None = None
        self.events: list[str] = []
        """Log messages, as Kafka's coordinator writes them."""

    def reply(self, ticket: Ticket | None, answer: Answer) -> None:
        if ticket is not None:
            self.replies.append((ticket, answer))

    def write(self, group_id: str, value: GroupMetadataValue, pending: PendingWrite) -> None:
        """Append the group's record; ``pending`` continues when it is written."""
        self.records.append((GroupMetadataKey(group_id), value))
        self.pending = pending


class GroupLimits(NamedTuple):
    """Kafka's ``group.*`` settings that a group needs."""

    initial_rebalance_delay_ms: int = 3_000
    max_size: int = 2**31 - 1


def fenced(group_id: str, member_id: str, instance_id: str | None) -> str:
    """Return the log message for a static member that is refused because another member has its instance id."""
    return f"Member {member_id} of group {group_id} is fenced: another member has its group.instance.id {instance_id}."
