"""A member of a consumer group (``ConsumerGroupMember``): a value. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final
from uuid import UUID

from seglog.coordinators.consumer_records import (
    ClassicMemberMetadata,
    CurrentAssignmentKey,
    CurrentAssignmentValue,
    MemberKey,
    MemberState,
    MemberValue,
    PartitionEpochs,
    Partitions,
)

JOINS: Final = 0
LEAVES: Final = -1
LEAVES_FOR_NOW: Final = -2
"""The member epochs by which a member joins and leaves; a static member leaves with the last one and will be back."""
NO_NUMBERS: Final[Mapping[int, int]] = MappingProxyType({})
NO_PARTITIONS: Final[PartitionEpochs] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerMember:
    """``assigned`` are the partitions that the member may read, ``revoking`` those that it must give up first; both
    with the epoch in which it got each (KIP-1251). ``rebalance_timeout`` is in milliseconds.

    A member repeats its last request with ``previous_epoch`` if the answer was lost.
    """

    member_id: str
    epoch: int = 0
    previous_epoch: int = -1
    state: MemberState = MemberState.STABLE
    instance_id: str | None = None
    rack: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout: int = -1
    topics: frozenset[str] = frozenset()
    expression: str | None = ""
    assignor: str | None = None
    assigned: PartitionEpochs = field(default_factory=dict)
    revoking: PartitionEpochs = field(default_factory=dict)
    classic: ClassicMemberMetadata | None = None

    # Records

    def with_subscription(self, value: MemberValue) -> ConsumerMember:
        """The member as its record says (key 5)."""
        return replace(self, **value._asdict())

    def with_assignment(self, value: CurrentAssignmentValue) -> ConsumerMember:
        """The member as its record says (key 8)."""
        return replace(self, **value._asdict())

    def subscription_record(self, group_id: str) -> tuple[MemberKey, MemberValue]:
        value = MemberValue(
            self.instance_id,
            self.rack,
            self.client_id,
            self.client_host,
            self.topics,
            self.expression,
            self.rebalance_timeout,
            self.assignor,
            self.classic,
        )
        return MemberKey(group_id, self.member_id), value

    def assignment_record(self, group_id: str) -> tuple[CurrentAssignmentKey, CurrentAssignmentValue]:
        value = CurrentAssignmentValue(self.epoch, self.previous_epoch, self.state, self.assigned, self.revoking)
        return CurrentAssignmentKey(group_id, self.member_id), value

    # Changes

    def in_epoch(self, epoch: int) -> ConsumerMember:
        return replace(self, epoch=epoch, previous_epoch=self.epoch)

    def away(self) -> ConsumerMember:
        """A static member that has left and will be back: its partitions wait for it."""
        kept = {topic_id: dict.fromkeys(epochs, 0) for topic_id, epochs in self.assigned.items()}
        return replace(self, epoch=LEAVES_FOR_NOW, revoking=NO_PARTITIONS, assigned=kept)

    def back_as(self, member_id: str) -> ConsumerMember:
        """A static member that joins again, under a new id."""
        return replace(self, member_id=member_id, epoch=0, previous_epoch=0)

    def gone(self) -> ConsumerMember:
        """A member whose assignment is deleted. Its subscription is deleted next."""
        return replace(self, epoch=LEAVES, previous_epoch=LEAVES, assigned=NO_PARTITIONS, revoking=NO_PARTITIONS)

    # Queries

    @property
    def is_classic(self) -> bool:
        """Whether it speaks the classic protocol, in a group that is being migrated."""
        return self.classic is not None

    def is_reconciled_to(self, epoch: int) -> bool:
        return self.state is MemberState.STABLE and self.epoch == epoch

    def epoch_of(self, topic_id: UUID, number: int) -> int | None:
        """The epoch in which it got a partition that it has or is giving up; None for others."""
        found = self.assigned.get(topic_id, NO_NUMBERS).get(number)
        return self.revoking.get(topic_id, NO_NUMBERS).get(number) if found is None else found

    def partitions(self) -> dict[UUID, frozenset[int]]:
        """Those that it may read and those that it is giving up."""
        assigned, revoking = partitions_of(self.assigned), partitions_of(self.revoking)
        topics = assigned.keys() | revoking.keys()
        return {one: assigned.get(one, frozenset()) | revoking.get(one, frozenset()) for one in topics}

    def holds_only_assigned(self, owned: Partitions | None) -> bool:
        """Whether a client that has these partitions may be this member, one epoch ago."""
        return owned is not None and all(
            topic_id in self.assigned and numbers <= self.assigned[topic_id].keys()
            for topic_id, numbers in owned.items()
        )


def partitions_of(assignment: PartitionEpochs) -> dict[UUID, frozenset[int]]:
    """The partitions without their epochs."""
    return {topic_id: frozenset(epochs) for topic_id, epochs in assignment.items()}


def with_epoch(partitions: Partitions, epoch: int) -> dict[UUID, dict[int, int]]:
    """All partitions with one epoch."""
    return {topic_id: dict.fromkeys(numbers, epoch) for topic_id, numbers in partitions.items()}
