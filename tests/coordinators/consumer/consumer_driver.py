"""Drives the consumer groups of a shard by hand, as `GroupCoordinator` does: time is a number, the log a list."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar
from uuid import UUID

from seglog.coordinators.classic.messages import (
    JoinGroupRequest,
    JoinGroupResult,
    LeavingMember,
    SyncGroupRequest,
    SyncGroupResult,
)
from seglog.coordinators.classic.state import GroupLimits, GroupResult, Now
from seglog.coordinators.consumer import classic_members, membership, regular_expressions
from seglog.coordinators.consumer.decision import Decision
from seglog.coordinators.consumer.group import ConsumerGroup
from seglog.coordinators.consumer.member import JOINS, LEAVES, ConsumerMember
from seglog.coordinators.consumer.messages import ConsumerHeartbeat, ConsumerHeartbeatAnswer
from seglog.coordinators.consumer.patterns import resolve_patterns
from seglog.coordinators.consumer.settings import ConsumerRules
from seglog.coordinators.consumer_records import ConsumerRecord, Partitions
from seglog.coordinators.coordinator_error import CoordinatorError
from seglog.coordinators.coordinator_shard import CoordinatorShard, OffsetCommit, OffsetCommitRequest
from seglog.coordinators.group_records import GroupRecord, decode, encode
from seglog.core.error_codes import ErrorCode
from tests.coordinators.fixed_topics import FixedTopics

GROUP: Final = "g"
WALL: Final = 1_790_000_000_000
SESSION: Final = 45_000
REBALANCE: Final = 60_000
T = TypeVar("T")


class ConsumerDriver:
    """``log`` has all records; each is encoded and decoded on its way to it."""

    def __init__(self, topics: Mapping[str, int], rules: ConsumerRules | None = None) -> None:
        self.topics = FixedTopics(topics)
        # Targets follow at once: the interval between two is tested on its own.
        self.rules = rules or ConsumerRules(assignment_interval=0)
        self.shard = CoordinatorShard(GroupLimits(0), 4096)
        self.now = Now(0, WALL)
        self.log: list[GroupRecord] = []
        self.batches: list[list[GroupRecord]] = []
        self.results: list[GroupResult] = []
        self._ids = 0

    @property
    def group(self) -> ConsumerGroup:
        return self.shard.consumer_group(GROUP)

    def member(self, member_id: str) -> ConsumerMember:
        return self.group.get(member_id)

    def decision(self) -> Decision:
        return Decision(self.now, self.topics, self.rules)

    # Requests

    def heartbeat(
        self,
        member_id: str,
        epoch: int,
        owned: Partitions | None = None,
        *,
        topics: Sequence[str] | None = None,
        expression: str | None = None,
        instance: str | None = None,
        timeout: int = -1,
        assignor: str | None = None,
    ) -> ConsumerHeartbeatAnswer:
        """Raises `CoordinatorError`."""
        request = ConsumerHeartbeat(
            GROUP,
            member_id,
            epoch,
            instance,
            None,
            timeout,
            None if topics is None else frozenset(topics),
            expression,
            assignor,
            owned,
            "client",
            "/host",
        )
        self._ids += 1
        new_id = f"member-{self._ids}"
        return self._carry_out(lambda decision: self.shard.consumer_heartbeat(decision, request, new_id))

    def join(
        self,
        member_id: str,
        *topics: str,
        expression: str | None = None,
        instance: str | None = None,
        assignor: str | None = None,
    ) -> ConsumerHeartbeatAnswer:
        return self.heartbeat(
            member_id,
            JOINS,
            {},
            topics=topics,
            expression=expression,
            instance=instance,
            timeout=REBALANCE,
            assignor=assignor,
        )

    def leave(self, member_id: str, epoch: int = LEAVES, instance: str | None = None) -> ConsumerHeartbeatAnswer:
        return self.heartbeat(member_id, epoch, instance=instance)

    def classic_join(self, request: JoinGroupRequest) -> JoinGroupResult:
        self._ids += 1
        new_id = f"member-{self._ids}"
        return self._carry_out(lambda decision: classic_members.join(decision, self.group, request, new_id))

    def classic_sync(self, request: SyncGroupRequest) -> SyncGroupResult:
        return self._carry_out(lambda decision: classic_members.sync(decision, self.group, request))

    def classic_heartbeat(self, member_id: str, generation: int) -> ErrorCode:
        return self._carry_out(
            lambda decision: classic_members.heartbeat(decision, self.group, member_id, None, generation)
        )

    def classic_leave(self, *leaving: LeavingMember) -> list[ErrorCode]:
        return self._carry_out(lambda decision: classic_members.leave(decision, self.group, leaving))

    def commit(self, member_id: str, epoch: int, topic: str, number: int, *, version: int = 9) -> ErrorCode:
        commits = [OffsetCommit((topic, number), self.topics.id_of(topic), 5, -1, "")]
        request = OffsetCommitRequest(GROUP, epoch, member_id, None, commits, version)
        try:
            changed = self.shard.commit(request, self.now)
        except CoordinatorError as error:
            return error.code
        self.append(changed.records)
        return changed.codes[0]

    # Time and the log

    def advance(self, milliseconds: int) -> None:
        """Let time pass, and remove the members whose time is up."""
        end = self.now.monotonic + milliseconds
        while (group := self.shard.consumer(GROUP)) is not None and group.earliest <= end:
            self._move_to(max(group.earliest, self.now.monotonic))
            expired = group.timers.take_expired(self.now.monotonic)
            if expired is not None:
                self._carry_out(lambda decision: membership.expire(decision, group, expired))  # noqa: B023
        self._move_to(end)

    def _move_to(self, monotonic: int) -> None:
        self.now = Now(monotonic, WALL + monotonic)

    def _carry_out(self, decide: Callable[[Decision], T]) -> T:
        decision = self.decision()
        answered = decide(decision)
        if decision.records:
            self.batches.append(decision.records)
            self.append(decision.records)
        self.shard.settle(decision, GROUP)
        if decision.upgraded is not None:
            self.results.append(decision.upgraded.die(ErrorCode.REBALANCE_IN_PROGRESS, self.now))
        if decision.expressions:
            found = resolve_patterns(decision.expressions, self.topics.names)
            self._carry_out(lambda later: regular_expressions.resolved(later, self.group, found))
        if (group := self.shard.consumer(GROUP)) is not None:
            group.check()
        return answered

    def append(self, records: Sequence[GroupRecord]) -> None:
        first = len(self.log)
        for record in records:
            again = decode(*encode(record))
            assert again == record
        self.log += records
        self.shard.apply(records, first)

    def replayed(self) -> CoordinatorShard:
        shard = CoordinatorShard(GroupLimits(0), 4096)
        for number, record in enumerate(self.log):
            shard.replay(record, number)
        return shard

    def restart(self) -> None:
        """Another coordinator replays the log."""
        self.shard = self.replayed()
        group = self.shard.consumer(GROUP)
        if group is not None:
            self.shard.start_timers(group, self.rules.session_timeout, self.now)


def owned(assigned: Mapping[UUID, Mapping[int, int]] | None) -> dict[UUID, frozenset[int]]:
    """The partitions that a client has after an answer."""
    assert assigned is not None
    return {topic_id: frozenset(numbers) for topic_id, numbers in assigned.items()}


def kinds(records: Sequence[GroupRecord | ConsumerRecord]) -> list[str]:
    """The key types of records; those of tombstones with a minus."""
    return [("-" if value is None else "") + type(key).__name__ for key, value in records]
