"""The groups of one partition of ``__consumer_offsets``, with what they have committed: replayed, asked, changed. Pure.

What changes something gives the records that say so. They are appended, and only then `Shard.apply` makes them true, by
the same code that replays them after a start; classic groups alone change as they go, and write down what they became.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple
from uuid import UUID

from seglog.coordinators import joins
from seglog.coordinators.codec import CommitKey, Committed, Entry, GroupKey, GroupValue
from seglog.coordinators.coordinator_error import CoordinatorError
from seglog.coordinators.groups import Group
from seglog.coordinators.members import CONSUMER
from seglog.coordinators.offsets import FetchedOffset, Offsets, Place, is_of_other_topic
from seglog.coordinators.requests import JoinAnswer, JoinRequest, Leaving, SyncAnswer, SyncRequest, Ticket
from seglog.coordinators.steps import GroupLimits, NewGroup, Now, Pending, State, Step
from seglog.core.error_codes import ErrorCode
from seglog.core.types import MAX_INT64

_SAYS_NOT_FOUND_FROM = 9


class Commit(NamedTuple):
    """One partition of an OffsetCommit."""

    place: Place
    topic_id: UUID | None
    offset: int
    leader_epoch: int
    metadata: str | None


class CommitRequest(NamedTuple):
    """An OffsetCommit of any version. ``retention_ms`` is -1 unless an old client gives its own."""

    group_id: str
    generation: int
    member_id: str
    instance_id: str | None
    commits: Sequence[Commit]
    version: int
    retention_ms: int = -1


class Changed(NamedTuple):
    """Codes in the order of the request, and the records that make it so."""

    codes: list[ErrorCode]
    records: list[Entry]


class Shard:
    """One partition's groups."""

    __slots__ = ("groups", "limits", "max_metadata", "offsets")

    def __init__(self, limits: GroupLimits, max_metadata: int) -> None:
        self.limits = limits
        self.max_metadata = max_metadata
        self.groups: dict[str, Group] = {}
        self.offsets = Offsets()

    # Records

    def replay(self, entry: Entry, record: int, producer_id: int = -1) -> None:
        """A record read after a start, in the order of the log."""
        key, value = entry
        if isinstance(value, GroupValue):
            self.groups[key.group] = Group.restored(key.group, value, self.limits)
        else:
            self._apply(entry, record, producer_id)

    def apply(self, entries: Iterable[Entry], first_record: int, *, committed: int = MAX_INT64) -> None:
        """Records that were just written, of which those below ``committed`` are so, too. Groups that were written down
        are what they say already."""
        for record, entry in enumerate(entries, first_record):
            if not isinstance(entry[1], GroupValue):
                self._apply(entry, record, -1, is_committed=record < committed)

    def _apply(self, entry: Entry, record: int, producer_id: int, *, is_committed: bool = True) -> None:
        key, value = entry
        if isinstance(key, GroupKey):
            self.groups.pop(key.group, None)
            return
        assert value is None or isinstance(value, Committed)
        if value is not None and key.group not in self.groups:
            self.groups[key.group] = Group(key.group, self.limits)  # a client that only stores its offsets here
        self.offsets.put(key, value, record, producer_id, is_committed=is_committed)

    def loaded(self, now: Now) -> list[tuple[str, Step]]:
        """Everything is replayed: sessions begin."""
        return [(group.group_id, group.loaded(now)) for group in self.groups.values()]

    # Members

    def join(self, request: JoinRequest, ticket: Ticket, new_id: str, now: Now) -> Step:
        group = self.groups.get(request.group_id)
        if group is not None:
            return joins.join(group, request, ticket, new_id, now)
        if request.member_id:
            step = Step(now)
            step.reply(ticket, JoinAnswer(ErrorCode.UNKNOWN_MEMBER_ID, request.member_id))
            return step
        group = self.groups[request.group_id] = Group(request.group_id, self.limits, state_timestamp=now.wall)
        step = joins.join(group, request, ticket, new_id, now)
        if not step.records:
            empty = GroupValue("", 0, None, None, now.wall, ())
            step.records.append((GroupKey(request.group_id), empty))
            step.pending = NewGroup()
        return step

    def sync(self, request: SyncRequest, ticket: Ticket, now: Now) -> Step:
        group = self.groups.get(request.group_id)
        if group is not None and not group.is_empty:
            return joins.sync(group, request, ticket, now)
        step = Step(now)
        step.reply(ticket, SyncAnswer(ErrorCode.UNKNOWN_MEMBER_ID))
        return step

    def heartbeat(self, group_id: str, member_id: str, instance_id: str | None, generation: int, now: Now) -> ErrorCode:
        group = self.groups.get(group_id)
        if group is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return joins.heartbeat(group, member_id, instance_id, generation, now)

    def leave(self, group_id: str, leaving: Sequence[Leaving], now: Now) -> tuple[Step, list[ErrorCode]]:
        group = self.groups.get(group_id)
        if group is None:
            return Step(now), [ErrorCode.UNKNOWN_MEMBER_ID for _ in leaving]
        return joins.leave(group, leaving, now)

    def stored(self, group: Group, pending: Pending, code: ErrorCode, now: Now) -> Step:
        """What a step of the group waited for is written, or could not be: then a new group is not there."""
        step = joins.stored(group, pending, code, now)
        if group.state is State.DEAD and self.groups.get(group.group_id) is group:
            del self.groups[group.group_id]
        return step

    # Offsets

    def commit(self, request: CommitRequest, now: Now) -> Changed:
        """Raises `CoordinatorError` for all of it; each commit has its own code else."""
        code = self._check_commit(request, now)
        if code is not ErrorCode.NONE:
            raise CoordinatorError(code, f"group {request.group_id} refuses a commit of {request.member_id!r}")
        changed = Changed([], [])
        expires = -1 if request.retention_ms == -1 else min(now.wall + request.retention_ms, MAX_INT64)
        for place, topic_id, offset, leader_epoch, metadata in request.commits:
            if self._is_too_long(metadata):
                changed.codes.append(ErrorCode.OFFSET_METADATA_TOO_LARGE)
                continue
            value = Committed(offset, leader_epoch, metadata or "", now.wall, expires, topic_id)
            changed.codes.append(ErrorCode.NONE)
            changed.records.append((CommitKey(request.group_id, *place), value))
        return changed

    def _check_commit(self, request: CommitRequest, now: Now) -> ErrorCode:
        group = self.groups.get(request.group_id)
        if group is not None:
            return joins.check_commit(group, request.member_id, request.instance_id, request.generation, now)
        if request.generation < 0:
            return ErrorCode.NONE
        return ErrorCode.GROUP_ID_NOT_FOUND if request.version >= _SAYS_NOT_FOUND_FROM else ErrorCode.ILLEGAL_GENERATION

    def _is_too_long(self, metadata: str | None) -> bool:
        """In UTF-16 units, as Java counts, whatever the key's name says of bytes."""
        if metadata is None or 2 * len(metadata) <= self.max_metadata:
            return False
        return len(metadata.encode("utf-16-le", "surrogatepass")) > 2 * self.max_metadata

    def fetch(self, group_id: str, place: Place, topic_id: UUID | None, *, require_stable: bool) -> FetchedOffset:
        """What is committed; of nothing else that was decided so far anybody is told."""
        if not self._is_there(group_id):
            return FetchedOffset(None)
        return self.offsets.fetch(group_id, place, topic_id, require_stable=require_stable)

    def places(self, group_id: str) -> list[Place]:
        return self.offsets.seen(group_id) if self._is_there(group_id) else []

    def _is_there(self, group_id: str) -> bool:
        return group_id in self.groups or self.offsets.is_uncommitted(group_id)

    def delete_offsets(self, group_id: str, places: Sequence[Place]) -> Changed:
        """Raises `CoordinatorError` for all of it."""
        group = self.groups.get(group_id)
        if group is None or group.state is State.DEAD:
            raise CoordinatorError(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no group {group_id}")
        if not group.is_empty and group.protocol_type != CONSUMER:
            raise CoordinatorError(ErrorCode.NON_EMPTY_GROUP, f"group {group_id} has members")
        there = set(self.offsets.places(group_id))
        changed = Changed([], [])
        for place in places:
            is_read = group.is_subscribed(place[0])
            changed.codes.append(ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if is_read else ErrorCode.NONE)
            if place in there and not is_read:
                changed.records.append((CommitKey(group_id, *place), None))
        return changed

    # Groups

    def delete_groups(self, group_ids: Sequence[str]) -> Changed:
        changed = Changed([], [])
        for group_id in group_ids:
            group = self.groups.get(group_id)
            if group is None or group.state is State.DEAD:
                changed.codes.append(ErrorCode.GROUP_ID_NOT_FOUND)
            elif not group.is_empty:
                changed.codes.append(ErrorCode.NON_EMPTY_GROUP)
            else:
                changed.codes.append(ErrorCode.NONE)
                changed.records.extend(self.offsets.deletions(group_id, lambda _place, _value: True))
                changed.records.append((GroupKey(group_id), None))
        return changed

    def expire(self, now: Now, retention_ms: int) -> list[Entry]:
        """Records that delete old commits, and with the last of them their group, if it is empty."""
        records: list[Entry] = []
        for group_id, group in self.groups.items():
            offsets = self.offsets.of(group_id)
            expired: list[Entry] = []
            if offsets and _may_expire(group):
                since = group.state_timestamp if group.is_empty and group.protocol_type is not None else None
                since = None if since == -1 else since
                expired = self.offsets.expired(group_id, now.wall, retention_ms, since, group.is_subscribed)
            records += expired
            is_over = len(expired) == len(offsets) and not self.offsets.has_open_transactions(group_id)
            if is_over and group.is_empty and not group.members.pending:
                records.append((GroupKey(group_id), None))
        return records

    def topics_deleted(self, topics: Iterable[tuple[str, UUID | None]]) -> list[Entry]:
        """Records that delete the commits of topics that are no more; not of other topics with the same names."""
        ids = dict(topics)

        def is_gone(place: Place, value: Committed | None) -> bool:
            return place[0] in ids and not (value is not None and is_of_other_topic(value, ids[place[0]]))

        return [record for group in list(self.groups) for record in self.offsets.deletions(group, is_gone)]


def _may_expire(group: Group) -> bool:
    """Not during a rebalance, nor where members may read topics that we do not know of (KIP-211)."""
    if group.protocol_type is None or group.is_empty:
        return True
    return group.protocol_type == CONSUMER and group.subscribed is not None and group.state is State.STABLE
