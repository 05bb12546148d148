"""The committed offsets of groups, and those of open transactions. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple
from uuid import UUID

from seglog.coordinators.group_records import NO_RETENTION, GroupRecord, OffsetAndMetadata, OffsetCommitKey

Place = tuple[str, int]
"""Topic and partition."""


class RecordedOffset(NamedTuple):
    """A committed offset and the offset of its record."""

    value: OffsetAndMetadata
    record: int


class FetchedOffset(NamedTuple):
    """``value`` is None if nothing is committed; ``is_unstable``: an open transaction may change that."""

    value: OffsetAndMetadata | None
    is_unstable: bool = False


class CommittedOffsets:
    """The committed offsets of the groups in one partition of ``__consumer_offsets`` (``OffsetMetadataManager``).

    The offsets of a transaction wait for its marker. Then they count if they are newer than what is there, since a
    plain commit may have come in between (``OffsetMetadataManager.replayEndTransactionMarker``).

    An offset whose record is not below the high watermark counts for all methods but `fetch` and `seen`: a client must
    not see an offset that is gone when another broker leads.
    """

    __slots__ = ("_groups", "_pending", "_replaced", "_uncommitted")

    def __init__(self) -> None:
        self._groups: dict[str, dict[Place, RecordedOffset]] = {}
        self._pending: dict[int, dict[str, dict[Place, RecordedOffset]]] = {}
        self._uncommitted: deque[tuple[int, tuple[str, Place]]] = deque()
        """Records in the order of the log."""
        self._replaced: dict[tuple[str, Place], deque[RecordedOffset | None]] = {}
        """The values that these records have replaced; the first one is committed."""

    def __len__(self) -> int:
        return sum(map(len, self._groups.values()))

    def groups(self) -> Iterator[str]:
        return iter(self._groups)

    def of(self, group: str) -> Mapping[Place, RecordedOffset]:
        return self._groups.get(group, {})

    def put(
        self,
        key: OffsetCommitKey,
        value: OffsetAndMetadata | None,
        record: int,
        producer_id: int = -1,
        *,
        is_committed: bool = True,
    ) -> None:
        """Apply a record of an offset or its deletion; ``producer_id`` is that of its transaction. If the record is not
        below the high watermark, `settle` follows."""
        place = key.topic, key.partition
        if not is_committed:
            of_group = key.group, place
            self._uncommitted.append((record, of_group))
            self._replaced.setdefault(of_group, deque()).append(self.of(key.group).get(place))
        if value is None:
            _drop(self._groups, key.group, place)
            for groups in self._pending.values():
                _drop(groups, key.group, place)
        else:
            groups = self._groups if producer_id < 0 else self._pending.setdefault(producer_id, {})
            groups.setdefault(key.group, {})[place] = RecordedOffset(value, record)

    def settle(self, high_watermark: int) -> None:
        """Records below ``high_watermark`` are committed."""
        uncommitted = self._uncommitted
        while uncommitted and uncommitted[0][0] < high_watermark:
            _, of_group = uncommitted.popleft()
            replaced = self._replaced[of_group]
            replaced.popleft()
            if not replaced:
                del self._replaced[of_group]

    def end_transaction(self, producer_id: int, marker: int, *, commit: bool) -> None:
        """Apply a marker at offset ``marker``. Offsets behind it are of the producer's next transaction."""
        left: dict[str, dict[Place, RecordedOffset]] = {}
        for group, offsets in self._pending.pop(producer_id, {}).items():
            for place, stored in offsets.items():
                if stored.record > marker:
                    left.setdefault(group, {})[place] = stored
                elif commit:
                    there = self._groups.setdefault(group, {})
                    if place not in there or there[place].record < stored.record:
                        there[place] = stored
        if left:
            self._pending[producer_id] = left

    def is_pending(self, group: str, place: Place) -> bool:
        return any(place in groups.get(group, ()) for groups in self._pending.values())

    def has_open_transactions(self, group: str) -> bool:
        return any(group in groups for groups in self._pending.values())

    def places(self, group: str) -> list[Place]:
        """The partitions with an offset, of a transaction or not."""
        places = dict.fromkeys(self.of(group))
        for groups in self._pending.values():
            places.update(dict.fromkeys(groups.get(group, ())))
        return list(places)

    def is_uncommitted(self, group: str) -> bool:
        """Whether the latest change of the group's offsets may still be lost."""
        return any(of_group == group for of_group, _ in self._replaced)

    def seen(self, group: str) -> list[Place]:
        """The partitions for which `fetch` may return an offset, including those about to be deleted."""
        places = dict.fromkeys(self.of(group))
        places.update((place, None) for of_group, place in self._replaced if of_group == group)
        return list(places)

    def fetch(self, group: str, place: Place, topic_id: UUID | None, *, require_stable: bool) -> FetchedOffset:
        """Return a committed offset; none of a deleted topic of the same name, if both topic ids are known."""
        if require_stable and self.is_pending(group, place):
            return FetchedOffset(None, is_unstable=True)
        replaced = self._replaced.get((group, place))
        stored = replaced[0] if replaced else self.of(group).get(place)
        if stored is None or is_of_other_topic(stored.value, topic_id):
            return FetchedOffset(None)
        return FetchedOffset(stored.value)

    def deletions(self, group: str, wanted: Callable[[Place, OffsetAndMetadata | None], bool]) -> list[GroupRecord]:
        """Return the records that delete the offsets that are ``wanted``; the value is None if only a transaction has
        one."""
        there = self.of(group)
        return [
            (OffsetCommitKey(group, *place), None)
            for place in self.places(group)
            if wanted(place, there[place].value if place in there else None)
        ]

    def expired(
        self, group: str, now_ms: int, retention_ms: int, since: int | None, is_subscribed: Callable[[str], bool]
    ) -> list[GroupRecord]:
        """Return the records that delete expired offsets. Their age counts from ``since``, or else from each commit
        (KIP-211).

        An offset stays while its topic is being read, or while a transaction is about to replace it. One with its own
        expiry expires by that.
        """

        def is_expired(place: Place, value: OffsetAndMetadata | None) -> bool:
            if value is None or is_subscribed(place[0]) or self.is_pending(group, place):
                return False
            if value.expire_timestamp != NO_RETENTION:
                return now_ms >= value.expire_timestamp
            return now_ms - (value.commit_timestamp if since is None else since) >= retention_ms

        return self.deletions(group, is_expired)


def is_of_other_topic(value: OffsetAndMetadata, topic_id: UUID | None) -> bool:
    return value.topic_id is not None and topic_id is not None and value.topic_id != topic_id


def _drop(groups: dict[str, dict[Place, RecordedOffset]], group: str, place: Place) -> None:
    offsets = groups.get(group)
    if offsets is not None:
        offsets.pop(place, None)
        if not offsets:
            del groups[group]
