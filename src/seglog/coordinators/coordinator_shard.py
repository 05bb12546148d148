"""The groups of one partition of ``__consumer_offsets`` and their committed offsets (``GroupCoordinatorShard``). Pure.

A change returns records. The caller appends them and then calls `CoordinatorShard.apply`, which runs the same code as
the replay after a start. Only classic groups change their state before their records are written.

A group id has one group, classic or consumer. The requests of both kinds of members come here, and go to the kind that
the group has: a classic group becomes a consumer group by the first heartbeat of a consumer member, an empty consumer
group a classic one by a JoinGroup.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, cast
from uuid import UUID

from seglog.coordinators.classic import membership as classic_membership
from seglog.coordinators.classic.group import ClassicGroup
from seglog.coordinators.classic.members import CONSUMER
from seglog.coordinators.classic.messages import (
    JoinGroupRequest,
    JoinGroupResult,
    LeavingMember,
    SyncGroupRequest,
    SyncGroupResult,
    Ticket,
)
from seglog.coordinators.classic.state import GroupLimits, GroupResult, GroupState, Now, PendingGroup, PendingWrite
from seglog.coordinators.committed_offsets import CommittedOffsets, FetchedOffset, Place, is_of_other_topic
from seglog.coordinators.consumer import membership
from seglog.coordinators.consumer.decision import Decision
from seglog.coordinators.consumer.group import ConsumerGroup
from seglog.coordinators.consumer.member import JOINS, LEAVES, LEAVES_FOR_NOW
from seglog.coordinators.consumer.member_timers import TimerChange, TimerKind
from seglog.coordinators.consumer.messages import ConsumerHeartbeat, ConsumerHeartbeatAnswer
from seglog.coordinators.consumer.migration import upgrade
from seglog.coordinators.consumer.offset_checks import CommitCheck, check_commit, check_fetch
from seglog.coordinators.consumer_records import CONSUMER_KEYS, ConsumerGroupKey, ConsumerRecord, MemberState
from seglog.coordinators.coordinator_error import CoordinatorError
from seglog.coordinators.group_records import (
    GroupMetadataKey,
    GroupMetadataValue,
    GroupRecord,
    OffsetAndMetadata,
    OffsetCommitKey,
)
from seglog.core.error_codes import ErrorCode
from seglog.core.types import MAX_INT64, NO_PRODUCER_ID

_SAYS_NOT_FOUND_FROM = 9
_SAYS_NOT_FOUND_IN_TRANSACTIONS_FROM = 6
"""The first versions of OffsetCommit and TxnOffsetCommit whose clients know GROUP_ID_NOT_FOUND."""


class OffsetCommit(NamedTuple):
    """One partition of an OffsetCommit."""

    place: Place
    topic_id: UUID | None
    offset: int
    leader_epoch: int
    metadata: str | None


class OffsetCommitRequest(NamedTuple):
    """An OffsetCommit of any version. ``retention_ms`` is -1 unless an old client sets it."""

    group_id: str
    generation: int
    member_id: str
    instance_id: str | None
    commits: Sequence[OffsetCommit]
    version: int
    retention_ms: int = -1


class ChangeResult(NamedTuple):
    """Codes in the order of the request, and the records to append."""

    codes: list[ErrorCode]
    records: list[GroupRecord]


Group = ClassicGroup | ConsumerGroup


class CoordinatorShard:
    """The groups of one partition."""

    __slots__ = ("groups", "limits", "max_metadata", "offsets")

    def __init__(self, limits: GroupLimits, max_metadata: int) -> None:
        self.limits = limits
        self.max_metadata = max_metadata
        self.groups: dict[str, Group] = {}
        self.offsets = CommittedOffsets()

    def classic(self, group_id: str) -> ClassicGroup | None:
        group = self.groups.get(group_id)
        return group if isinstance(group, ClassicGroup) else None

    def consumer(self, group_id: str) -> ConsumerGroup | None:
        group = self.groups.get(group_id)
        return group if isinstance(group, ConsumerGroup) else None

    # Records

    def replay(self, entry: GroupRecord, record: int, producer_id: int = -1) -> None:
        """Apply a record of the log, in order, after a start."""
        key, value = entry
        if isinstance(value, GroupMetadataValue):
            self.groups[key.group] = ClassicGroup.restored(key.group, value, self.limits)
        else:
            self._apply(entry, record, producer_id)

    def apply(
        self,
        entries: Iterable[GroupRecord],
        first_record: int,
        *,
        committed: int = MAX_INT64,
        producer_id: int = NO_PRODUCER_ID,
    ) -> None:
        """Apply records that were just written; those below ``committed`` are committed too. A group has the state of
        its record already."""
        for record, entry in enumerate(entries, first_record):
            if not isinstance(entry[1], GroupMetadataValue):
                self._apply(entry, record, producer_id, is_committed=record < committed)

    def _apply(self, entry: GroupRecord, record: int, producer_id: int, *, is_committed: bool = True) -> None:
        key, value = entry
        if isinstance(key, GroupMetadataKey):
            self.groups.pop(key.group, None)
            return
        if isinstance(key, CONSUMER_KEYS):
            self._apply_to_consumer(cast("ConsumerRecord", entry))  # its key says that it is one
            return
        assert isinstance(key, OffsetCommitKey)
        assert value is None or isinstance(value, OffsetAndMetadata)
        if value is not None and key.group not in self.groups:
            self.groups[key.group] = ClassicGroup(key.group, self.limits)  # a group that only stores offsets
        self.offsets.put(key, value, record, producer_id, is_committed=is_committed)

    def _apply_to_consumer(self, record: ConsumerRecord) -> None:
        key, value = record
        group = self.consumer(key.group)
        if group is None:
            if value is None:
                return
            group = self.groups[key.group] = ConsumerGroup(key.group)
        group.apply(record)
        if isinstance(key, ConsumerGroupKey) and value is None:
            del self.groups[key.group]

    def loaded(self, now: Now) -> list[tuple[str, GroupResult]]:
        """Everything is replayed: start the sessions of all classic members."""
        classics = [group for group in self.groups.values() if isinstance(group, ClassicGroup)]
        return [(group.group_id, group.loaded(now)) for group in classics]

    def start_timers(self, group: ConsumerGroup, session_timeout: int, now: Now) -> None:
        """Everything is replayed: start the sessions of the members of a consumer group."""
        for member in group.members.values():
            changes = [TimerChange(TimerKind.SESSION, member.member_id, session_timeout)]
            if member.state is MemberState.UNREVOKED_PARTITIONS:
                timeout = member.rebalance_timeout
                changes.append(TimerChange(TimerKind.REBALANCE, member.member_id, timeout, member.epoch))
            group.timers.change(changes, now.monotonic)

    # Members

    def join(self, request: JoinGroupRequest, ticket: Ticket, new_id: str, now: Now) -> GroupResult:
        """Handle the JoinGroup of a group that has no consumer members."""
        group = self.groups.get(request.group_id)
        if isinstance(group, ClassicGroup):
            return classic_membership.join(group, request, ticket, new_id, now)
        if request.member_id:
            result = GroupResult(now)
            result.reply(ticket, JoinGroupResult(ErrorCode.UNKNOWN_MEMBER_ID, request.member_id))
            return result
        before = [] if group is None else list(group.deletion())
        group = self.groups[request.group_id] = ClassicGroup(request.group_id, self.limits, state_timestamp=now.wall)
        result = classic_membership.join(group, request, ticket, new_id, now)
        result.records[:0] = before
        if len(result.records) == len(before):
            empty = GroupMetadataValue("", 0, None, None, now.wall, ())
            result.write(request.group_id, empty, PendingGroup())
        return result

    def sync(self, request: SyncGroupRequest, ticket: Ticket, now: Now) -> GroupResult:
        group = self.classic(request.group_id)
        if group is not None and not group.is_empty:
            return classic_membership.sync(group, request, ticket, now)
        result = GroupResult(now)
        result.reply(ticket, SyncGroupResult(ErrorCode.UNKNOWN_MEMBER_ID))
        return result

    def heartbeat(self, group_id: str, member_id: str, instance_id: str | None, generation: int, now: Now) -> ErrorCode:
        group = self.classic(group_id)
        if group is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return classic_membership.heartbeat(group, member_id, instance_id, generation, now)

    def leave(self, group_id: str, leaving: Sequence[LeavingMember], now: Now) -> tuple[GroupResult, list[ErrorCode]]:
        group = self.classic(group_id)
        if group is None:
            return GroupResult(now), [ErrorCode.UNKNOWN_MEMBER_ID for _ in leaving]
        return classic_membership.leave(group, leaving, now)

    def stored(self, group: ClassicGroup, pending: PendingWrite, code: ErrorCode, now: Now) -> GroupResult:
        """The records of a result are written, or could not be written: then a new group is removed."""
        result = classic_membership.stored(group, pending, code, now)
        if group.state is GroupState.DEAD and self.groups.get(group.group_id) is group:
            del self.groups[group.group_id]
        return result

    # Members of consumer groups

    def consumer_heartbeat(
        self, decision: Decision, request: ConsumerHeartbeat, new_id: str
    ) -> ConsumerHeartbeatAnswer:
        """Handle a ConsumerGroupHeartbeat. Raises `CoordinatorError`."""
        if request.epoch in (LEAVES, LEAVES_FOR_NOW):
            return membership.leave(decision, self.consumer_group(request.group_id), request)
        group = self._group_for(decision, request)
        return membership.heartbeat(decision, group, request, new_id)

    def consumer_group(self, group_id: str) -> ConsumerGroup:
        """Raises `CoordinatorError` (GROUP_ID_NOT_FOUND)."""
        group = self.groups.get(group_id)
        if isinstance(group, ConsumerGroup):
            return group
        why = "not found" if group is None else "is not a consumer group"
        raise CoordinatorError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} {why}.")

    def _group_for(self, decision: Decision, request: ConsumerHeartbeat) -> ConsumerGroup:
        """The group of a member that stays, or joins: then a classic group becomes a consumer group."""
        group = self.groups.get(request.group_id)
        if request.epoch != JOINS:
            if group is None:
                raise CoordinatorError(ErrorCode.GROUP_ID_NOT_FOUND, f"Consumer group {request.group_id} not found.")
            return self.consumer_group(request.group_id)
        if isinstance(group, ConsumerGroup):
            return group
        if group is None:
            return ConsumerGroup(request.group_id)
        if group.is_empty:
            decision.upgrade(group, [(GroupMetadataKey(request.group_id), None)])
            return ConsumerGroup(request.group_id)
        return upgrade(decision, group)

    def settle(self, decision: Decision, group_id: str) -> None:
        """The records of a decision are applied: do what follows from it."""
        group = self.consumer(group_id)
        if group is not None:
            group.timers.change(decision.timers, decision.now.monotonic)
            if decision.topics_version is not None:
                group.knows_topics(decision.topics_version)
        if decision.downgrade is not None:
            self.groups[group_id] = decision.downgrade.group

    # Offsets

    def commit(self, request: OffsetCommitRequest, now: Now, *, is_transactional: bool = False) -> ChangeResult:
        """Commit offsets. Raises `CoordinatorError` for the whole request; otherwise each offset has its own code."""
        check = self._check_commit(request, now, is_transactional=is_transactional)
        changed = ChangeResult([], [])
        expires = -1 if request.retention_ms == -1 else min(now.wall + request.retention_ms, MAX_INT64)
        for place, topic_id, offset, leader_epoch, metadata in request.commits:
            if self._is_too_long(metadata):
                changed.codes.append(ErrorCode.OFFSET_METADATA_TOO_LARGE)
                continue
            if check is not None:
                check.partition(place, topic_id)
            value = OffsetAndMetadata(offset, leader_epoch, metadata or "", now.wall, expires, topic_id)
            changed.codes.append(ErrorCode.NONE)
            changed.records.append((OffsetCommitKey(request.group_id, *place), value))
        return changed

    def _check_commit(self, request: OffsetCommitRequest, now: Now, *, is_transactional: bool) -> CommitCheck | None:
        """Raises `CoordinatorError`. None if all partitions may be committed."""
        group = self.groups.get(request.group_id)
        client = request.member_id, request.instance_id, request.generation
        if isinstance(group, ConsumerGroup):
            return check_commit(group, *client, request.version, is_transactional=is_transactional)
        if group is not None:
            code = classic_membership.check_commit(group, *client, now, is_transactional=is_transactional)
        elif request.generation < 0:
            code = ErrorCode.NONE
        else:
            since = _SAYS_NOT_FOUND_IN_TRANSACTIONS_FROM if is_transactional else _SAYS_NOT_FOUND_FROM
            knows_not_found = request.version >= since
            code = ErrorCode.GROUP_ID_NOT_FOUND if knows_not_found else ErrorCode.ILLEGAL_GENERATION
        if code is not ErrorCode.NONE:
            raise CoordinatorError(code, f"group {request.group_id} refuses a commit of {request.member_id!r}")
        return None

    def _is_too_long(self, metadata: str | None) -> bool:
        """Compare UTF-16 units, as Java does, although the key's name says bytes."""
        if metadata is None or 2 * len(metadata) <= self.max_metadata:
            return False
        return len(metadata.encode("utf-16-le", "surrogatepass")) > 2 * self.max_metadata

    def check_fetch(self, group_id: str, member_id: str | None, epoch: int) -> None:
        """Check whether a client may fetch offsets as this member. Raises `CoordinatorError`."""
        group = self.consumer(group_id)
        if group is not None:
            check_fetch(group, member_id, epoch)

    def fetch(self, group_id: str, place: Place, topic_id: UUID | None, *, require_stable: bool) -> FetchedOffset:
        """Return a committed offset; changes that are not committed yet do not show."""
        if not self._is_there(group_id):
            return FetchedOffset(None)
        return self.offsets.fetch(group_id, place, topic_id, require_stable=require_stable)

    def places(self, group_id: str) -> list[Place]:
        return self.offsets.seen(group_id) if self._is_there(group_id) else []

    def _is_there(self, group_id: str) -> bool:
        return group_id in self.groups or self.offsets.is_uncommitted(group_id)

    def delete_offsets(self, group_id: str, places: Sequence[Place]) -> ChangeResult:
        """Delete offsets. Raises `CoordinatorError` for the whole request."""
        group = self.groups.get(group_id)
        if group is None or group.state is GroupState.DEAD:
            raise CoordinatorError(ErrorCode.GROUP_ID_NOT_FOUND, f"group {group_id} does not exist")
        if isinstance(group, ClassicGroup) and not group.is_empty and group.protocol_type != CONSUMER:
            raise CoordinatorError(ErrorCode.NON_EMPTY_GROUP, f"group {group_id} has members")
        there = set(self.offsets.places(group_id))
        changed = ChangeResult([], [])
        for place in places:
            is_read = group.is_subscribed(place[0])
            changed.codes.append(ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if is_read else ErrorCode.NONE)
            if place in there and not is_read:
                changed.records.append((OffsetCommitKey(group_id, *place), None))
        return changed

    # Groups

    def delete_groups(self, group_ids: Sequence[str]) -> ChangeResult:
        changed = ChangeResult([], [])
        for group_id in group_ids:
            group = self.groups.get(group_id)
            if group is None or group.state is GroupState.DEAD:
                changed.codes.append(ErrorCode.GROUP_ID_NOT_FOUND)
            elif not group.is_empty:
                changed.codes.append(ErrorCode.NON_EMPTY_GROUP)
            else:
                changed.codes.append(ErrorCode.NONE)
                changed.records.extend(self.offsets.deletions(group_id, lambda _place, _value: True))
                changed.records.extend(_deletion(group))
        return changed

    def expire(self, now: Now, retention_ms: int) -> list[GroupRecord]:
        """Return the records that delete expired offsets, and empty groups with their last offset."""
        records: list[GroupRecord] = []
        for group_id, group in self.groups.items():
            offsets = self.offsets.of(group_id)
            expired: list[GroupRecord] = []
            if offsets and _may_expire(group):
                since = _empty_since(group)
                expired = self.offsets.expired(group_id, now.wall, retention_ms, since, group.is_subscribed)
            records += expired
            is_over = len(expired) == len(offsets) and not self.offsets.has_open_transactions(group_id)
            is_free = isinstance(group, ConsumerGroup) or not group.members.pending
            if is_over and group.is_empty and is_free:
                records += _deletion(group)
        return records

    def topics_deleted(self, topics: Iterable[tuple[str, UUID | None]]) -> list[GroupRecord]:
        """Return the records that delete the offsets of deleted topics, but not those of new topics with the same
        name."""
        ids = dict(topics)

        def is_gone(place: Place, value: OffsetAndMetadata | None) -> bool:
            return place[0] in ids and not (value is not None and is_of_other_topic(value, ids[place[0]]))

        return [record for group in list(self.groups) for record in self.offsets.deletions(group, is_gone)]


def _deletion(group: Group) -> list[GroupRecord]:
    """The records that delete the group itself."""
    return [*group.deletion()] if isinstance(group, ConsumerGroup) else [(GroupMetadataKey(group.group_id), None)]


def _empty_since(group: Group) -> int | None:
    """When a classic group became empty, by which the age of its offsets counts; None if that is not known."""
    if isinstance(group, ConsumerGroup) or not group.is_empty or group.protocol_type is None:
        return None
    return None if group.state_timestamp == -1 else group.state_timestamp


def _may_expire(group: Group) -> bool:
    """Offsets of a classic group do not expire during a rebalance, nor while members may read topics that the
    coordinator does not know (KIP-211)."""
    if isinstance(group, ConsumerGroup) or group.protocol_type is None or group.is_empty:
        return True
    return group.protocol_type == CONSUMER and group.subscribed is not None and group.state is GroupState.STABLE
