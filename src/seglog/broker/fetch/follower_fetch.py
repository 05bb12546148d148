"""Fetch by other brokers. Each has one session for all partitions that it follows here, and reads up to the log end.

A follower of a thousand partitions asks a thousand times a second. So a request reads only the partitions that it names
and those that an append, a commit or a leader change has touched since. The fetch itself counts for all partitions of
the follower (`FetchTimes`).

A follower cannot name a new partition while its request waits here. So a leader of a new partition answers the requests
of its followers at once, and lets them wait only `_SETTLING_MS` until they have had time to name it.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from random import Random
from typing import Final
from uuid import UUID

from seglog.broker.fetch.fetch_sessions import (
    FULL,
    NO_SESSION,
    FetchPartition,
    FetchSessionIdNotFoundError,
    InvalidFetchSessionEpochError,
    KnownOffsets,
    PartitionKey,
    fetched_partition,
)
from seglog.broker.requests import FAILURES, code_of
from seglog.broker.topics.topics import Topics
from seglog.cluster.model import Member
from seglog.core.error_codes import ErrorCode
from seglog.core.errors import SeglogError
from seglog.core.types import MAX_INT32, NO_OFFSET
from seglog.protocol.fetch import FetchAnswer, FetchedPartition, FetchedTopic, write_fetch
from seglog.protocol.replica_fetch import VERSION, FollowerRequest, RequestHead
from seglog.replication.progress import UNKNOWN, FetchTimes
from seglog.replication.replica import Replica, ReplicaAnswer, ReplicaFetch
from seglog.replication.throttles import ReplicationThrottle
from seglog.replication.waiters import GrowthWaiter
from seglog.storage.log.reads import UpTo

Serve = Callable[[Replica, ReplicaFetch], ReplicaAnswer]
_logger: Final = logging.getLogger("seglog.broker")
SWEEP_MS: Final = 500
_SETTLING_MS: Final = 50
_NOT_KEPT: Final = 0
"""The session id of a follower without a session."""


class _SessionPartition:
    """A partition of a session; it is among the followers of its replica."""

    __slots__ = ("key", "replica", "session")

    def __init__(self, session: _FollowerSession, key: PartitionKey, replica: Replica) -> None:
        self.session = session
        self.key = key
        self.replica = replica

    def grown(self, size: int) -> None:
        self.session.grown(self.key, size)


class _FollowerSession:
    """The partitions that one broker follows here. Its next request reads the ``touched`` partitions, in this order;
    they have grown by ``unread`` bytes since they were read."""

    __slots__ = (
        "_waiter",
        "answered_ms",
        "epoch",
        "heard",
        "held",
        "known",
        "session_id",
        "settles_until_ms",
        "swept_ms",
        "touched",
        "unread",
        "wanted",
        "watched",
    )  # fmt: skip

    def __init__(self, session_id: int, now_ms: int) -> None:
        self.session_id = session_id
        self.epoch = 1
        self.answered_ms = UNKNOWN
        """When the last response was written."""
        self.heard = FetchTimes(now_ms)
        self.swept_ms = now_ms
        self.settles_until_ms = now_ms
        """Until then the follower is about to name more partitions."""
        self.wanted: dict[PartitionKey, FetchPartition] = {}
        self.known: dict[PartitionKey, KnownOffsets] = {}
        self.touched: dict[PartitionKey, None] = {}
        self.held: dict[PartitionKey, None] = {}
        """Partitions that the throttle has kept back: the next read has its turn again."""
        self.unread = 0
        self.watched: dict[PartitionKey, _SessionPartition] = {}
        self._waiter: GrowthWaiter | None = None

    def update(
        self,
        topics: Topics,
        wanted: Iterable[tuple[PartitionKey, FetchPartition]],
        forgotten: Iterable[PartitionKey],
    ) -> None:
        for key, one in wanted:
            self.wanted[key] = one
            self.touched[key] = None
            self._watch(topics, key)
        for key in forgotten:
            self.wanted.pop(key, None)
            self.known.pop(key, None)
            self.touched.pop(key, None)
            self.held.pop(key, None)
            self._unwatch(key)

    def _watch(self, topics: Topics, key: PartitionKey) -> None:
        replica = topics.partition(*key)
        watched = self.watched.get(key)
        if watched is not None and watched.replica is replica:
            return
        self._unwatch(key)
        if isinstance(replica, Replica):
            watched = self.watched[key] = _SessionPartition(self, key, replica)
            replica.followers[watched] = None

    def _unwatch(self, key: PartitionKey) -> None:
        watched = self.watched.pop(key, None)
        if watched is not None:
            watched.replica.followers.pop(watched, None)
            watched.replica.unfollowed(self.heard)

    def advance(self) -> None:
        """The next request of the session has come."""
        self.epoch = 1 if self.epoch == MAX_INT32 else self.epoch + 1

    def grown(self, key: PartitionKey, size: int) -> None:
        if key in self.held:
            return
        self.touched[key] = None
        self.unread += size
        if size and self._waiter is not None:
            self._waiter.grown(size)

    def has(self, key: PartitionKey, replica: Replica) -> bool:
        """Whether the follower has named this replica."""
        watched = self.watched.get(key)
        return watched is not None and watched.replica is replica

    def is_settling(self, now_ms: int) -> bool:
        return now_ms < self.settles_until_ms

    def settles(self, now_ms: int) -> None:
        """The follower is about to name another partition: end the wait of its request."""
        self.settles_until_ms = now_ms + SWEEP_MS
        if self._waiter is not None:
            self._waiter.grown(MAX_INT32)

    def take_touched(self) -> dict[PartitionKey, None]:
        """The touched partitions, which are read now."""
        touched, self.touched, self.unread = self.touched, {}, 0
        if self.held:
            touched.update(self.held)
            self.held.clear()
        return touched

    async def wait(self, waiter: GrowthWaiter) -> None:
        """Wait for growth; a later request replaces this one as the one that waits."""
        self._waiter = waiter
        try:
            await waiter.wait()
        finally:
            if self._waiter is waiter:
                self._waiter = None

    def asked(self, now_ms: int) -> None:
        """Note a request. Twice a second, find logs whose start has moved: retention does not touch partitions."""
        self.heard.note(now_ms)
        if now_ms - self.swept_ms >= SWEEP_MS:
            self.swept_ms = now_ms
            for key, watched in self.watched.items():
                known = self.known.get(key)
                if known is not None and known.log_start_offset != watched.replica.log.log_start_offset:
                    self.touched[key] = None

    def answers(self, now_ms: int) -> None:
        """A response is being written."""
        self.answered_ms = now_ms

    def answered(self) -> None:
        """A session without an id ends with its request."""
        if self.session_id == _NOT_KEPT:
            self.close()

    def close(self) -> None:
        for key in list(self.watched):
            self._unwatch(key)
        self.wanted.clear()
        self.touched.clear()
        self.held.clear()


class FollowerFetch:
    """Answers Fetch requests of brokers; ``serve`` reads one replica. A broker that ``is_there`` has one session, any
    other has none: invented broker ids take no memory."""

    def __init__(
        self,
        topics: Topics,
        serve: Serve,
        *,
        max_bytes: int,
        now_ms: Callable[[], int],
        rng: Random,
        throttle: ReplicationThrottle,
        is_there: Callable[[int], bool] = lambda _: True,
    ) -> None:
        self._topics = topics
        self._serve = serve
        self._max_bytes = max_bytes
        self.now_ms = now_ms
        self._rng = rng
        self._throttle = throttle
        self._is_there = is_there
        self._sessions: dict[int, _FollowerSession] = {}

    def __call__(self, request: FollowerRequest) -> FetchAnswer | Awaitable[FetchAnswer]:
        head = request.head
        follower = Member(head.replica_id, head.replica_epoch)
        is_full = head.session_epoch in (FULL, NO_SESSION)
        try:
            session = self._begin(follower) if is_full else self._find(head, follower)
        except SeglogError as error:
            return write_fetch(VERSION, [], error=error.code)
        session.asked(self.now_ms())
        wanted = [
            ((topic_id, number), FetchPartition(offset, max_bytes, leader_epoch, last_epoch, log_start))
            for topic_id, (number, leader_epoch, offset, last_epoch, log_start, max_bytes) in request.wanted
        ]
        session.update(self._topics, wanted, request.forgotten)
        session.heard.note_following(session.answered_ms)  # not for those that it has just dropped
        pass_ = _Pass(self, session, follower, min(head.max_bytes, self._max_bytes), is_full=is_full)
        pass_.read()
        if pass_.is_urgent or pass_.size >= head.min_bytes or head.max_wait_ms <= 0:
            answer = pass_.answer()
            session.answered()
            return answer
        wait_ms = min(head.max_wait_ms, _SETTLING_MS) if session.is_settling(self.now_ms()) else head.max_wait_ms
        return pass_.wait(head.min_bytes, wait_ms / 1000)

    def role_changed(self, replica: Replica) -> None:
        """If this broker leads the replica now, its followers are about to name it: see `_FollowerSession.settles`."""
        if replica.progress is None:
            return
        key = (replica.topic_id, replica.topic_partition.partition)
        for node in replica.progress.followers:
            session = self._sessions.get(node)
            if session is not None and not session.has(key, replica):
                session.settles(self.now_ms())

    def _begin(self, follower: Member) -> _FollowerSession:
        gone = [node for node in self._sessions if node == follower.node_id or not self._is_there(node)]
        for node in gone:
            self._sessions.pop(node).close()
        if not self._is_there(follower.node_id):  # its registration may still be on the way
            return _FollowerSession(_NOT_KEPT, self.now_ms())
        session_id = self._rng.randrange(1, MAX_INT32)
        session = self._sessions[follower.node_id] = _FollowerSession(session_id, self.now_ms())
        return session

    def _find(self, head: RequestHead, follower: Member) -> _FollowerSession:
        session = self._sessions.get(follower.node_id)
        if session is None or session.session_id != head.session_id:
            raise FetchSessionIdNotFoundError(f"broker {follower.node_id} has no fetch session {head.session_id}")
        if head.session_epoch != session.epoch:
            raise InvalidFetchSessionEpochError(
                f"the fetch session of broker {follower.node_id} is at epoch {session.epoch}, not {head.session_epoch}"
            )
        session.advance()
        return session

    def read(
        self, session: _FollowerSession, follower: Member, key: PartitionKey, left: int, *, is_first: bool
    ) -> FetchedPartition:
        """A slice of one partition, or the point where the logs diverge."""
        topic, number = key
        replica, wanted = self._topics.partition(topic, number), session.wanted[key]
        if not isinstance(replica, Replica):
            return FetchedPartition(number, self._topics.why_not(topic, number), aborted=())
        asked = ReplicaFetch(
            *follower,
            wanted.current_leader_epoch,
            wanted.fetch_offset,
            wanted.last_fetched_epoch,
            wanted.log_start_offset,
            min(wanted.max_bytes, left),
            is_first,
            session.heard,
        )
        try:
            answer = self._serve(replica, asked)
        except FAILURES as error:
            return FetchedPartition(number, code_of(error))
        except Exception:  # the other partitions must get their records
            _logger.exception("%s cannot be read by broker %d", replica.topic_partition, follower.node_id)
            return FetchedPartition(number, ErrorCode.KAFKA_STORAGE_ERROR)
        if answer.records is not None and self._throttle.has(replica.topic_partition):
            if self._is_held(replica, follower):
                session.held[key] = None
                return fetched_partition(number, replica, None, UpTo.LOG_END)
            self._throttle.record(replica.topic_partition, answer.records.size)
        fetched = fetched_partition(number, replica, answer.records, UpTo.LOG_END)
        if fetched.records is None and answer.diverging is None and wanted.fetch_offset < replica.log.log_end_offset:
            session.touched[key] = None  # there was no room: it is first in the next response
        if answer.diverging is None:
            return fetched
        return fetched._replace(diverging=(answer.diverging.epoch, answer.diverging.end_offset))

    def _is_held(self, replica: Replica, follower: Member) -> bool:
        progress = replica.progress
        in_sync = progress is not None and follower.node_id in progress.state.isr_nodes
        return not in_sync and self._throttle.hold_ms() > 0


class _Pass:
    """One request, and its results so far."""

    def __init__(
        self, fetch: FollowerFetch, session: _FollowerSession, follower: Member, max_bytes: int, *, is_full: bool
    ) -> None:
        self._fetch = fetch
        self._session = session
        self._follower = follower
        self._max_bytes = max_bytes
        self._is_full = is_full
        self._news: dict[PartitionKey, FetchedPartition] = {}
        self.size = 0
        self.is_urgent = False

    def read(self) -> None:
        """Read the touched partitions."""
        session = self._session
        for key in session.take_touched():
            before = self._news.get(key)
            if before is not None and before.records is not None:
                session.touched[key] = None  # it has its share of this response
                continue
            left = max(self._max_bytes - self.size, 0)
            fetched = self._fetch.read(session, self._follower, key, left, is_first=self.size == 0)
            known = KnownOffsets(NO_OFFSET if fetched.error else fetched.high_watermark, fetched.log_start_offset)
            if fetched.records is not None:
                self.size += fetched.records.size
            if fetched.records is not None or fetched.is_urgent or self._is_full or session.known.get(key) != known:
                session.known[key] = known
                self._news[key] = fetched
            self.is_urgent = self.is_urgent or fetched.is_urgent

    async def wait(self, min_bytes: int, seconds: float) -> FetchAnswer:
        """The response, once there is something to read or the time is over."""
        session = self._session
        waiter = GrowthWaiter(min_bytes - self.size, seconds)
        # Records may have come between the read and the wait.
        waiter.grown(MAX_INT32 if any(key not in self._news for key in session.touched) else session.unread)
        try:
            await session.wait(waiter)
            self.read()
            return self.answer()
        finally:
            session.answered()

    def answer(self) -> FetchAnswer:
        self._session.answers(self._fetch.now_ms())
        topics: dict[UUID, list[FetchedPartition]] = {}
        for (topic, _), fetched in self._news.items():
            assert isinstance(topic, UUID)
            topics.setdefault(topic, []).append(fetched)
        return write_fetch(
            VERSION,
            [FetchedTopic(topic, partitions) for topic, partitions in topics.items()],
            session_id=self._session.session_id,
        )
