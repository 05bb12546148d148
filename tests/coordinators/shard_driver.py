"""Drives a shard by hand, as `GroupCoordinator` does: time is a number, the log a list, and clients are numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from struct import pack
from typing import Final

from seglog.coordinators.classic.group import ClassicGroup
from seglog.coordinators.classic.messages import (
    Answer,
    JoinGroupRequest,
    JoinGroupResult,
    LeavingMember,
    Protocols,
    SyncGroupRequest,
    SyncGroupResult,
)
from seglog.coordinators.classic.state import GroupLimits, GroupResult, Now, PendingWrite
from seglog.coordinators.coordinator_error import CoordinatorError
from seglog.coordinators.coordinator_shard import CoordinatorShard, OffsetCommit, OffsetCommitRequest
from seglog.coordinators.group_records import GroupRecord
from seglog.core.error_codes import ErrorCode

GROUP: Final = "g"
WALL: Final = 1_790_000_000_000
RETENTION: Final = 1_000_000
DELAY: Final = 3_000
SESSION: Final = 10_000
REBALANCE: Final = 60_000


def subscription(*topics: str) -> bytes:
    """A consumer's subscription, version 0."""
    names = b"".join(pack(">h", len(topic)) + topic.encode() for topic in topics)
    return pack(">hi", 0, len(topics)) + names + pack(">i", -1)


RANGE: Final[Protocols] = (("range", subscription("t")),)
BOTH: Final[Protocols] = (("range", subscription("t")), ("roundrobin", subscription("t")))


class ShardDriver:
    """``fails`` is the code with which appends fail; with ``holds`` they wait for `commit_all`."""

    def __init__(self, limits: GroupLimits | None = None, max_metadata: int = 4096) -> None:
        self.shard = CoordinatorShard(limits or GroupLimits(DELAY), max_metadata)
        self.now = Now(0, WALL)
        self.log: list[GroupRecord] = []
        self.answers: dict[object, Answer] = {}
        self.events: list[str] = []
        self.fails = ErrorCode.NONE
        self.holds = False
        self._held: list[tuple[ClassicGroup, PendingWrite | None]] = []
        self._tickets = 0
        self._ids = 0

    @property
    def group(self) -> ClassicGroup:
        group = self.shard.classic(GROUP)
        assert group is not None
        return group

    # Requests

    def start_join(
        self,
        member_id: str = "",
        *,
        instance: str | None = None,
        protocols: Protocols = RANGE,
        protocol_type: str = "consumer",
        version: int = 5,
        session: int = SESSION,
        rebalance: int = REBALANCE,
    ) -> int:
        """Join; `answers` has the answer under the returned ticket when there is one."""
        self._tickets += 1
        self._ids += 1
        request = JoinGroupRequest(
            GROUP, member_id, instance, "c", "/h", rebalance, session, protocol_type, protocols, version
        )
        self._do(self.shard.join(request, self._tickets, f"{instance or 'c'}-{self._ids}", self.now))
        return self._tickets

    def start_sync(
        self,
        member_id: str,
        generation: int,
        assignments: Mapping[str, bytes] | None = None,
        *,
        instance: str | None = None,
        protocol_type: str | None = None,
        protocol: str | None = None,
    ) -> int:
        self._tickets += 1
        request = SyncGroupRequest(
            GROUP, member_id, instance, generation, protocol_type, protocol, dict(assignments or {})
        )
        self._do(self.shard.sync(request, self._tickets, self.now))
        return self._tickets

    def heartbeat(self, member_id: str, generation: int, instance: str | None = None) -> ErrorCode:
        return self.shard.heartbeat(GROUP, member_id, instance, generation, self.now)

    def leave(self, *leaving: str | LeavingMember) -> list[ErrorCode]:
        result, codes = self.shard.leave(
            GROUP, [LeavingMember(one) if isinstance(one, str) else one for one in leaving], self.now
        )
        self._do(result)
        return codes

    def commit(
        self,
        member_id: str = "",
        generation: int = -1,
        *,
        offset: int = 1,
        partition: int = 0,
        topic: str = "t",
        metadata: str | None = "",
        instance: str | None = None,
        version: int = 9,
        retention_ms: int = -1,
        group: str = GROUP,
    ) -> ErrorCode:
        commits = [OffsetCommit((topic, partition), None, offset, -1, metadata)]
        request = OffsetCommitRequest(group, generation, member_id, instance, commits, version, retention_ms)
        try:
            changed = self.shard.commit(request, self.now)
        except CoordinatorError as error:
            return error.code
        self.append(changed.records)
        return changed.codes[0]

    def committed(self, partition: int = 0, topic: str = "t", group: str = GROUP) -> int | None:
        found = self.shard.fetch(group, (topic, partition), None, require_stable=False)
        return None if found.value is None else found.value.offset

    # Answers

    def joined(self, ticket: int) -> JoinGroupResult:
        answer = self.answers[ticket]
        assert isinstance(answer, JoinGroupResult)
        return answer

    def synced(self, ticket: int) -> SyncGroupResult:
        answer = self.answers[ticket]
        assert isinstance(answer, SyncGroupResult)
        return answer

    def join_twice(self, *, version: int = 5, protocols: Protocols = RANGE) -> int:
        """Join like a client: for an id, and then with it."""
        first = self.joined(self.start_join(version=version, protocols=protocols))
        assert first.code is ErrorCode.MEMBER_ID_REQUIRED
        return self.start_join(first.member_id, version=version, protocols=protocols)

    def stable(self, count: int = 1, *, protocols: Protocols = RANGE, instances: Sequence[str] = ()) -> list[str]:
        """Make a stable group; each member's assignment is its own name. The first one leads."""
        tickets = [self.join_twice(protocols=protocols) for _ in range(count)]
        tickets += [self.start_join(instance=instance, protocols=protocols) for instance in instances]
        self.advance(DELAY * (count + len(instances) + 1))
        answers = [self.joined(ticket) for ticket in tickets]
        assert {answer.code for answer in answers} == {ErrorCode.NONE}
        members = [answer.member_id for answer in answers]
        generation = answers[0].generation
        assert answers[0].leader == members[0]
        for member in members[1:]:
            self.start_sync(member, generation)
        self.start_sync(members[0], generation, {member: member.encode() for member in members})
        assert self.group.state.value == "Stable"
        return members

    # Time and the log

    def advance(self, milliseconds: int) -> None:
        """Advance the time; each deadline fires at its time."""
        end = self.now.monotonic + milliseconds
        while True:
            due = min((group.earliest for group in self.shard.groups.values()), default=end + 1)
            if due > end:
                break
            self._move_to(max(due, self.now.monotonic))
            for group in self._classics():
                while (result := group.fire(self.now)) is not None:
                    self._do(result, group)
        self._move_to(end)

    def _classics(self) -> list[ClassicGroup]:
        return [group for group in self.shard.groups.values() if isinstance(group, ClassicGroup)]

    def _move_to(self, monotonic: int) -> None:
        self.now = Now(monotonic, WALL + monotonic)

    def append(self, records: Sequence[GroupRecord]) -> None:
        first = len(self.log)
        self.log += records
        self.shard.apply(records, first)

    def commit_all(self) -> None:
        """Everything that was appended with ``holds`` is now below the high watermark."""
        held, self._held = self._held, []
        for group, pending in held:
            self._stored(group, pending, ErrorCode.NONE)

    def _do(self, result: GroupResult, group: ClassicGroup | None = None) -> None:
        group = group or self.shard.classic(GROUP)
        self.events += result.events
        for ticket, answer in result.replies:
            assert ticket not in self.answers, "answered twice"
            self.answers[ticket] = answer
        if result.records:
            assert group is not None
            if self.fails is not ErrorCode.NONE:
                self._stored(group, result.pending, self.fails)
            else:
                self.append(result.records)
                if self.holds:
                    self._held.append((group, result.pending))
                else:
                    self._stored(group, result.pending, ErrorCode.NONE)
        for one in self.shard.groups.values():
            one.check()

    def _stored(self, group: ClassicGroup, pending: PendingWrite | None, code: ErrorCode) -> None:
        if pending is not None:
            self._do(self.shard.stored(group, pending, code, self.now), group)

    def restart(self) -> None:
        """The coordinator dies and another one replays the log: waiting clients get no answer."""
        self._held.clear()
        self.shard = self.replayed()
        for group_id, result in self.shard.loaded(self.now):
            self._do(result, self.shard.classic(group_id))

    def expire(self, retention_ms: int = RETENTION) -> None:
        """Expire offsets, and groups that have nothing else."""
        self.append(self.shard.expire(self.now, retention_ms))

    def replayed(self) -> CoordinatorShard:
        """Return the shard that a start would replay."""
        shard = CoordinatorShard(self.shard.limits, self.shard.max_metadata)
        for record, entry in enumerate(self.log):
            shard.replay(entry, record)
        return shard
