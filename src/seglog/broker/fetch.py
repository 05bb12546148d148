"""Fetch: slices of logs, now if there is enough of them, else when there is or when the client has waited enough."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID

from seglog.broker.requests import Context
from seglog.broker.sessions import FULL, NO_SESSION, PartitionKey, Session, SessionCache, Told, Wanted
from seglog.broker.slices import fetched_partition
from seglog.broker.topics import Topics
from seglog.core.errors import SeglogError
from seglog.core.types import NO_OFFSET
from seglog.protocol.apis import ApiKey
from seglog.protocol.endpoints import NodeEndpoint
from seglog.protocol.fetch import ENDPOINTS, TOPIC_IDS, FetchAnswer, FetchedPartition, FetchedTopic, write_fetch
from seglog.protocol.messages import Message, read_request
from seglog.replication.waiters import Waiter
from seglog.storage.reads import UpTo

if TYPE_CHECKING:
    from seglog.broker.neighbours import Neighbours

UNKNOWN_TOPIC_OR_PARTITION: Final = 3
NOT_LEADER_OR_FOLLOWER: Final = 6
INCONSISTENT_TOPIC_ID: Final = 103
UNKNOWN_TOPIC_ID: Final = 100
FROM_FOLLOWERS: Final = 11
"""The version from which on a consumer may read from any replica (KIP-392)."""
_REPLICA_STATE: Final = 15
FOLLOWER_VERSION: Final = 17
"""In which brokers ask (`seglog.protocol.replica_fetch.VERSION`)."""
_ZERO: Final = UUID(int=0)


class NotABrokerError(SeglogError):
    """A client that says that it is a broker, and comes by a listener for clients."""

    code = 31


class _Request(NamedTuple):
    """A request, its session found, if it has one. ``is_full``: every partition is answered. The consumer may stand
    in a ``rack``."""

    partitions: Iterable[tuple[PartitionKey, Wanted]]
    session: Session | None
    is_full: bool
    max_bytes: int
    min_bytes: int
    up_to: UpTo
    version: int
    rack: str
    listener: str


class _Result(NamedTuple):
    partitions: list[tuple[PartitionKey, FetchedPartition]]
    size: int
    is_urgent: bool


class Fetch:
    """Answers Fetch requests."""

    def __init__(
        self, topics: Topics, sessions: SessionCache, *, max_bytes: int, neighbours: Neighbours | None = None
    ) -> None:
        """``neighbours`` are those of a cluster; without them nobody is a follower."""
        self._topics = topics
        self._sessions = sessions
        self._max_bytes = max_bytes
        self._neighbours = neighbours

    def __call__(self, frame: memoryview, body: int, context: Context) -> FetchAnswer | Awaitable[FetchAnswer]:
        """The response's body, or a wait for it."""
        neighbours = self._neighbours
        if neighbours is not None and context.version == FOLLOWER_VERSION:
            answer = neighbours.follower(frame, body, context.listener)
            if answer is not None:
                return answer
        message = read_request(ApiKey.FETCH, context.version, frame, body)
        try:
            self._check_consumer(message, context)
            request = self._resolve(message, context)
        except SeglogError as error:
            return write_fetch(context.version, [], error=error.code)
        result = self._read(request)
        if result.is_urgent or result.size >= request.min_bytes or message.max_wait <= 0:
            return self._answer(request, result)
        return self._wait(request, result, message.max_wait / 1000)

    def _resolve(self, message: Message, context: Context) -> _Request:
        version = context.version
        named: str = "topic_id" if version >= TOPIC_IDS else "topic"
        none: str | UUID = _ZERO if version >= TOPIC_IDS else ""
        wanted = [
            (
                (getattr(topic, named) or none, partition.partition),
                Wanted(
                    partition.fetch_offset,
                    partition.partition_max_bytes,
                    partition.current_leader_epoch,
                    partition.last_fetched_epoch,
                ),
            )
            for topic in message.topics
            for partition in topic.partitions
        ]
        forgotten = [
            (getattr(topic, named) or none, number)
            for topic in message.forgotten_topics_data
            for number in topic.partitions
        ]
        session: Session | None = None
        is_full = message.session_epoch in (FULL, NO_SESSION)
        if is_full:
            if message.session_id:
                self._sessions.close(message.session_id)
            if message.session_epoch == FULL and version >= 7:
                session = self._sessions.open(has_ids=version >= TOPIC_IDS, size=len(wanted))
        else:
            session = self._sessions.find(message.session_id, message.session_epoch, has_ids=version >= TOPIC_IDS)
        if session is not None:
            self._sessions.update(session, wanted, forgotten)
            if not session.partitions and not is_full:
                self._sessions.close(session.session_id)
                session = None
        return _Request(
            partitions=wanted if session is None else session.partitions.items(),
            session=session,
            is_full=is_full,
            max_bytes=min(message.max_bytes, self._max_bytes),
            min_bytes=message.min_bytes,
            up_to=UpTo.LAST_STABLE if message.isolation_level else UpTo.HIGH_WATERMARK,
            version=version,
            rack=message.rack_id if version >= FROM_FOLLOWERS else "",
            listener=context.listener,
        )

    def _check_consumer(self, message: Message, context: Context) -> None:
        """Who says that it is a broker, and does not ask as brokers do and by their listener, gets nothing."""
        if self._neighbours is None:
            return
        state = message.replica_state if context.version >= _REPLICA_STATE else None
        node_id = message.replica_id if state is None else state.replica_id
        if node_id >= 0:
            raise NotABrokerError(f"{context.client_host} says that it is broker {node_id}, by {context.listener}")

    def _read(self, request: _Request) -> _Result:
        found = []
        size = 0
        is_urgent = False
        for key, wanted in list(request.partitions):
            left = max(request.max_bytes - size, 0)
            fetched = self._read_one(key, wanted, request, left, is_first=size == 0)
            found.append((key, fetched))
            if fetched.records is not None:
                size += fetched.records.size
            is_urgent = is_urgent or fetched.is_urgent
        return _Result(found, size, is_urgent)

    def _read_one(
        self, key: PartitionKey, wanted: Wanted, request: _Request, left: int, *, is_first: bool
    ) -> FetchedPartition:
        topic, number = key
        up_to = request.up_to
        partition = self._topics.partition(topic, number)
        if partition is None:
            return FetchedPartition(number, self._why_not(topic, number), aborted=())
        try:
            if request.version < FROM_FOLLOWERS or not partition.is_placed:
                partition.check_leads()
            partition.check_epoch(wanted.current_leader_epoch)
            if request.rack and self._neighbours is not None:
                preferred = self._neighbours.preferred(partition, request.rack, wanted.fetch_offset)
                if preferred >= 0:
                    return fetched_partition(number, partition, None, up_to)._replace(preferred_read_replica=preferred)
            diverging = partition.diverging_epoch(wanted.last_fetched_epoch, wanted.fetch_offset)
            if diverging is not None:
                return fetched_partition(number, partition, None, up_to)._replace(
                    diverging=(diverging.epoch, diverging.end_offset)
                )
            limit = min(wanted.max_bytes, left)
            slice_ = partition.read(wanted.fetch_offset, limit, up_to, min_one=is_first)
        except SeglogError as error:
            return FetchedPartition(number, error.code)
        return fetched_partition(number, partition, slice_, up_to)

    def _why_not(self, topic: str | UUID, number: int) -> int:
        found = self._topics.find(topic)
        if found is not None and 0 <= number < len(found.partitions):
            return NOT_LEADER_OR_FOLLOWER
        return UNKNOWN_TOPIC_ID if isinstance(topic, UUID) and found is None else UNKNOWN_TOPIC_OR_PARTITION

    async def _wait(self, request: _Request, result: _Result, seconds: float) -> FetchAnswer:
        partitions = []
        for key, fetched in result.partitions:
            partition = self._topics.partition(*key)
            if partition is None or partition.log.high_watermark != fetched.high_watermark:
                # It changed after it was read, before this began to wait.
                return self._answer(request, self._read(request))
            partitions.append(partition)
        waiter = Waiter(request.min_bytes - result.size, seconds)
        for partition in partitions:
            partition.waiters[waiter] = None
        try:
            await waiter.wait()
        finally:
            for partition in partitions:
                partition.waiters.pop(waiter, None)
        return self._answer(request, self._read(request))

    def _answer(self, request: _Request, result: _Result) -> FetchAnswer:
        for key, fetched in result.partitions:
            if fetched.records is not None and (partition := self._topics.partition(*key)) is not None:
                partition.bytes_out += fetched.records.size
        if self._neighbours is None or request.version < ENDPOINTS:
            return _answer(request, result)
        hints, leaders = self._neighbours.hints, []
        for place, (key, fetched) in enumerate(result.partitions):
            if fetched.error and (leader := hints.leader(*key, fetched.error)) is not None:
                result.partitions[place] = key, fetched._replace(leader=leader)
                leaders.append(leader)
        return _answer(request, result, hints.endpoints(leaders, request.listener) if leaders else ())


def _answer(request: _Request, result: _Result, endpoints: Sequence[NodeEndpoint] = ()) -> FetchAnswer:
    """Leave out what the client of a session knows already, and put what is left together by topics."""
    session = request.session
    topics: dict[str | UUID, list[FetchedPartition]] = {}
    for key, fetched in result.partitions:
        if session is not None:
            # An error is told again and again, and once more when it is over (``CachedPartition``).
            is_urgent = fetched.is_urgent
            told = Told(NO_OFFSET if fetched.error else fetched.high_watermark, fetched.log_start_offset)
            has_news = fetched.records is not None or is_urgent or session.told.get(key) != told
            if not has_news and not request.is_full:
                continue
            session.told[key] = told
            if fetched.records is not None and not request.is_full:
                session.served(key)
        topics.setdefault(key[0], []).append(fetched)
    return write_fetch(
        request.version,
        [FetchedTopic(topic, partitions) for topic, partitions in topics.items()],
        session_id=session.session_id if session is not None else 0,
        endpoints=endpoints,
    )
