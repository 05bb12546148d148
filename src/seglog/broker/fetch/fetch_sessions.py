"""Fetch sessions (KIP-227): a client names its partitions once, and later only what changes.

A session has its partitions in the order in which they are served, and the offsets that its client knows. The cache
holds ``max.incremental.fetch.session.cache.slots`` sessions. A full cache replaces a session that was not used for
`EVICTION_SECONDS`, or answers a new client without a session, which is legal and only costs bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random
from typing import Final, NamedTuple
from uuid import UUID

from seglog.core.error_codes import ErrorCode
from seglog.core.errors import SeglogError
from seglog.core.fs import File
from seglog.core.types import MAX_INT32
from seglog.protocol.fetch import FetchedPartition
from seglog.replication.replica import Replica
from seglog.storage.log.reads import LogSlice, UpTo

EVICTION_SECONDS: Final = 120.0
MAX_PARTITIONS: Final = 200_000
"""In all sessions together, some 300 bytes each. Kafka limits the number of sessions only."""
FULL: Final = 0
"""The epoch of a request for a new session."""
NO_SESSION: Final = -1
"""The epoch of a request without a session."""

PartitionKey = tuple[str | UUID, int]


class FetchSessionIdNotFoundError(SeglogError):
    """An evicted or unknown session. The client sends a full request."""

    code = ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    retriable = True


class InvalidFetchSessionEpochError(SeglogError):
    """A request of the session is missing, or came twice."""

    code = ErrorCode.INVALID_FETCH_SESSION_EPOCH
    retriable = True


class FetchSessionTopicIdError(SeglogError):
    """A session changes from topic names to ids, or back."""

    code = ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
    retriable = True


class FetchPartition(NamedTuple):
    """A client's request for one partition. ``log_start_offset`` is that of a follower's own log."""

    fetch_offset: int
    max_bytes: int
    current_leader_epoch: int = -1
    last_fetched_epoch: int = -1
    log_start_offset: int = -1


class KnownOffsets(NamedTuple):
    """Offsets of a partition that the client knows. While they stay the same, responses leave the partition out."""

    high_watermark: int
    log_start_offset: int


class ConsumerFetchSession:
    """One client's partitions: by topic id if it ``has_ids``, else by name."""

    __slots__ = ("epoch", "has_ids", "known", "last_used", "partitions", "session_id")

    def __init__(self, session_id: int, now: float, *, has_ids: bool) -> None:
        self.session_id = session_id
        self.has_ids = has_ids
        self.epoch = 1
        self.last_used = now
        self.partitions: dict[PartitionKey, FetchPartition] = {}
        self.known: dict[PartitionKey, KnownOffsets] = {}

    def advance(self, now: float) -> None:
        """An incremental request has come."""
        self.epoch = 1 if self.epoch == MAX_INT32 else self.epoch + 1
        self.last_used = now

    def update(self, wanted: Iterable[tuple[PartitionKey, FetchPartition]], forgotten: Iterable[PartitionKey]) -> None:
        for key, one in wanted:
            self.partitions[key] = one
        for key in forgotten:
            self.partitions.pop(key, None)
            self.known.pop(key, None)

    def served(self, key: PartitionKey) -> None:
        """Move a partition whose records were sent to the end: the others have their turn first."""
        wanted = self.partitions.pop(key, None)
        if wanted is not None:
            self.partitions[key] = wanted


class FetchSessionCache:
    """All fetch sessions of a broker."""

    def __init__(self, slots: int, *, now: Callable[[], float], rng: Random) -> None:
        self._slots = slots
        self._now = now
        self._rng = rng
        self._sessions: dict[int, ConsumerFetchSession] = {}
        self._partitions = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self, *, has_ids: bool, size: int = 0) -> ConsumerFetchSession | None:
        """A new session, or None without room for ``size`` more partitions."""
        now = self._now()
        if self._partitions + size > MAX_PARTITIONS:
            return None
        if len(self._sessions) >= self._slots:
            oldest = min(self._sessions.values(), key=lambda session: session.last_used, default=None)
            if oldest is None or now - oldest.last_used < EVICTION_SECONDS:
                return None
            self.close(oldest.session_id)
        session_id = 0
        while session_id == 0 or session_id in self._sessions:
            session_id = self._rng.randrange(1, MAX_INT32)
        session = self._sessions[session_id] = ConsumerFetchSession(session_id, now, has_ids=has_ids)
        return session

    def find(self, session_id: int, epoch: int, *, has_ids: bool) -> ConsumerFetchSession:
        """The session of an incremental request. Its epoch advances."""
        session = self._sessions.get(session_id)
        if session is None:
            raise FetchSessionIdNotFoundError(f"there is no fetch session {session_id}")
        if epoch != session.epoch:
            raise InvalidFetchSessionEpochError(f"fetch session {session_id} is at epoch {session.epoch}, not {epoch}")
        if has_ids != session.has_ids:
            raise FetchSessionTopicIdError(f"fetch session {session_id} has {'ids' if session.has_ids else 'names'}")
        session.advance(self._now())
        return session

    def update(
        self,
        session: ConsumerFetchSession,
        wanted: Iterable[tuple[PartitionKey, FetchPartition]],
        forgotten: Iterable[PartitionKey],
    ) -> None:
        """Apply a request's changes. A session that becomes too large ends."""
        self._partitions -= len(session.partitions)
        session.update(wanted, forgotten)
        self._partitions += len(session.partitions)
        if self._partitions > MAX_PARTITIONS:
            self.close(session.session_id)
            raise FetchSessionIdNotFoundError(f"there is no room for fetch session {session.session_id}")

    def close(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self._partitions -= len(session.partitions)


class FileSlice(NamedTuple):
    """A range of a segment's file."""

    file: File
    position: int
    size: int

    def read_part(self, start: int, size: int) -> bytes:
        return self.file.pread(size, self.position + start)


def fetched_partition(number: int, partition: Replica, slice_: LogSlice | None, up_to: UpTo) -> FetchedPartition:
    log = partition.log
    committed = up_to is UpTo.LAST_STABLE
    aborted = None
    records = None
    if slice_ is not None:
        if committed and not slice_.is_cut:
            aborted = [(txn.producer_id, txn.first_offset) for txn in slice_.aborted]
        if slice_.file is not None and slice_.size:
            records = FileSlice(slice_.file, slice_.position, slice_.size)
    return FetchedPartition(
        number,
        0,
        log.high_watermark,
        log.last_stable_offset,
        log.log_start_offset,
        aborted,
        -1,
        records,
    )
