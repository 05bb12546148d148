"""Fetch: slices of logs, as soon as there are enough bytes or the client's wait is over."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID

from seglog.broker.fetch.fetch_sessions import (
    FULL,
    NO_SESSION,
    ConsumerFetchSession,
    FetchPartition,
    FetchSessionCache,
    KnownOffsets,
    PartitionKey,
    fetched_partition,
)
from seglog.broker.offload import SLICE, Offload, drop, no_collections, slices
from seglog.broker.requests import FAILURES, RequestContext, code_of
from seglog.broker.security.permissions import NEEDS
from seglog.broker.topics.topics import Topics
from seglog.core.error_codes import ErrorCode
from seglog.core.errors import SeglogError
from seglog.core.types import NO_OFFSET
from seglog.protocol.apis import ApiKey
from seglog.protocol.fetch import ENDPOINTS, TOPIC_IDS, FetchAnswer, FetchedPartition, FetchedTopic, write_fetch
from seglog.protocol.messages import Message, read_request
from seglog.protocol.wire import NodeEndpoint
from seglog.replication.replica import Replica
from seglog.replication.waiters import GrowthWaiter
from seglog.storage.log.reads import UpTo

if TYPE_CHECKING:
    from seglog.broker.fetch.cluster_peers import ClusterPeers
    from seglog.broker.security.authorization import Authorization

FROM_FOLLOWERS: Final = 11
"""The first version in which a consumer may read from any replica (KIP-392)."""
_REPLICA_STATE: Final = 15
FOLLOWER_VERSION: Final = 17
"""The version that brokers send (`seglog.protocol.replica_fetch.VERSION`)."""
_ZERO: Final = UUID(int=0)


class NotABrokerError(SeglogError):
    """A client claims to be a broker on a listener for clients, or without the proof of a registered broker."""

    code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED


class _FetchRequest(NamedTuple):
    """A request with its session, if it has one. ``is_full``: the response has every partition. ``rack`` is the
    consumer's."""

    partitions: Sequence[tuple[PartitionKey, FetchPartition]]
    session: ConsumerFetchSession | None
    is_full: bool
    max_bytes: int
    min_bytes: int
    up_to: UpTo
    version: int
    rack: str
    context: RequestContext


class _FetchResult(NamedTuple):
    partitions: list[tuple[PartitionKey, FetchedPartition]]
    size: int
    is_urgent: bool


_NOTHING: Final = _FetchResult([], 0, is_urgent=False)


class _DecodedFetch(NamedTuple):
    """A decoded request and the partitions that it names."""

    message: Message
    wanted: list[tuple[PartitionKey, FetchPartition]]
    forgotten: list[PartitionKey]


class Fetch:
    """Answers Fetch requests."""

    def __init__(
        self,
        topics: Topics,
        sessions: FetchSessionCache,
        offload: Offload,
        *,
        max_bytes: int,
        peers: ClusterPeers | None = None,
        authorization: Authorization | None = None,
    ) -> None:
        """``peers`` are None without a cluster: then there are no followers."""
        self._authorization = authorization
        self._topics = topics
        self._sessions = sessions
        self._offload = offload
        self._max_bytes = max_bytes
        self._neighbours = peers

    def __call__(self, frame: memoryview, body: int, context: RequestContext) -> FetchAnswer | Awaitable[FetchAnswer]:
        """The response's body, or a wait for it."""
        peers = self._neighbours
        if peers is not None and context.version == FOLLOWER_VERSION:
            answer = peers.follower(peers.read_request(frame, body), context)
            if answer is not None:
                if context.charge is not None:
                    context.charge.exempt()
                return answer
        return self._start(_parse(context.version, frame, body), context)

    async def large(self, frame: memoryview, body: int, context: RequestContext) -> FetchAnswer:
        """The same for a request that takes long to decode."""
        peers = self._neighbours
        with no_collections:
            answer: FetchAnswer | Awaitable[FetchAnswer] | None = None
            if peers is not None and context.version == FOLLOWER_VERSION:
                asked = await self._offload.run(partial(peers.read_request, frame, body))
                answer = peers.follower(asked, context)
            if answer is None:
                answer = self._start(await self._offload.run(lambda: _parse(context.version, frame, body)), context)
            elif context.charge is not None:
                context.charge.exempt()
        return answer if isinstance(answer, FetchAnswer) else await answer

    def _start(self, parsed: _DecodedFetch, context: RequestContext) -> FetchAnswer | Awaitable[FetchAnswer]:
        message = parsed.message
        try:
            self._check_consumer(message, context)
            request = self._resolve(parsed, context)
        except SeglogError as error:
            return write_fetch(context.version, [], error=error.code)
        if len(request.partitions) > SLICE:
            return self._read_many(request, message.max_wait / 1000)
        result = self._read(request, request.partitions, _NOTHING)
        if result.is_urgent or result.size >= request.min_bytes or message.max_wait <= 0:
            return self._answer(request, result)
        return self._wait(request, result, message.max_wait / 1000)

    def _resolve(self, parsed: _DecodedFetch, context: RequestContext) -> _FetchRequest:
        version = context.version
        message, wanted, forgotten = parsed
        session: ConsumerFetchSession | None = None
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
        charge = context.charge
        # More would be certain to hold the client, however long it has waited.
        most = self._max_bytes if charge is None else min(self._max_bytes, charge.largest_fetch)
        max_bytes = min(message.max_bytes, most)
        return _FetchRequest(
            # A copy: serving records reorders the session's own.
            partitions=wanted if session is None else list(session.partitions.items()),
            session=session,
            is_full=is_full,
            max_bytes=max_bytes,
            min_bytes=min(message.min_bytes, max_bytes),
            up_to=UpTo.LAST_STABLE if message.isolation_level else UpTo.HIGH_WATERMARK,
            version=version,
            rack=message.rack_id if version >= FROM_FOLLOWERS else "",
            context=context,
        )

    def _check_consumer(self, message: Message, context: RequestContext) -> None:
        """`NotABrokerError` for a client that claims to be a broker but does not ask as brokers do."""
        if self._neighbours is None and self._authorization is None:
            return
        state = message.replica_state if context.version >= _REPLICA_STATE else None
        node_id = message.replica_id if state is None else state.replica_id
        if node_id >= 0:
            raise NotABrokerError(f"{context.client_host} claims to be broker {node_id} on listener {context.listener}")

    async def _read_many(self, request: _FetchRequest, seconds: float) -> FetchAnswer:
        """Read a slice of the partitions at a time, and wait if there are too few bytes."""
        result = await self._read_in_slices(request)
        if not (result.is_urgent or result.size >= request.min_bytes or seconds <= 0):
            waiter = GrowthWaiter(request.min_bytes - result.size, seconds)
            added: list[Replica] = []
            try:
                if await self._is_unchanged(result, waiter, added):
                    result = _NOTHING  # a file that is deleted meanwhile must not stay open
                    await waiter.wait()
            finally:
                waiter.end()
                for partition in added:
                    partition.waiters.pop(waiter, None)
            result = await self._read_in_slices(request)
        return await self._answer_many(request, result)

    async def _read_in_slices(self, request: _FetchRequest) -> _FetchResult:
        result = _NOTHING
        with no_collections:
            async for some in slices(request.partitions):
                result = self._read(request, some, result)
        return result

    async def _is_unchanged(self, result: _FetchResult, waiter: GrowthWaiter, added: list[Replica]) -> bool:
        """Add the waiter to the partitions. False if one of them has changed since it was read."""
        async for some in slices(result.partitions):
            for key, fetched in some:
                partition = self._topics.partition(*key)
                if partition is None:
                    return False
                partition.waiters[waiter] = None
                added.append(partition)
                if partition.log.high_watermark != fetched.high_watermark:
                    return False
        return True

    async def _answer_many(self, request: _FetchRequest, result: _FetchResult) -> FetchAnswer:
        if request.context.charge is not None:
            size = await self._offload.run(lambda: _size(request, result))
            if request.context.charge.fetched(size):
                return self._throttled(request)
        leaders: list[tuple[int, int]] = []
        places = range(len(result.partitions))
        with no_collections:
            async for some in slices(places):
                leaders += self._note(request, result, some)
            endpoints = self._endpoints(request, leaders)
            answer = await self._offload.run(lambda: _answer(request, result, endpoints))
            await self._offload.run(lambda: drop(result.partitions))
        return answer

    def _read(
        self, request: _FetchRequest, partitions: Sequence[tuple[PartitionKey, FetchPartition]], before: _FetchResult
    ) -> _FetchResult:
        """Read ``partitions``, and add them to the result ``before``."""
        found = list(before.partitions) if before is _NOTHING else before.partitions
        size = before.size
        is_urgent = before.is_urgent
        for key, wanted in partitions:
            left = max(request.max_bytes - size, 0)
            fetched = self._read_one(key, wanted, request, left, is_first=size == 0)
            found.append((key, fetched))
            if fetched.records is not None:
                size += fetched.records.size
            is_urgent = is_urgent or fetched.is_urgent
        return _FetchResult(found, size, is_urgent)

    def _read_one(
        self, key: PartitionKey, wanted: FetchPartition, request: _FetchRequest, left: int, *, is_first: bool
    ) -> FetchedPartition:
        topic, number = key
        up_to = request.up_to
        if self._authorization is not None and (code := self._denial(self._authorization, topic, request.context)):
            return FetchedPartition(number, code, aborted=())
        partition = self._topics.partition(topic, number)
        if partition is None:
            return FetchedPartition(number, self._topics.why_not(topic, number), aborted=())
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
        except FAILURES as error:
            return FetchedPartition(number, code_of(error))
        return fetched_partition(number, partition, slice_, up_to)

    def _denial(self, authorization: Authorization, topic: str | UUID, context: RequestContext) -> int:
        """The code for a topic that the client may not read; 0 if it may, and for an id that is not known."""
        _, of_topic = NEEDS[ApiKey.FETCH]
        found = self._topics.by_id.get(topic) if isinstance(topic, UUID) else None
        name = found.name if found is not None else topic
        return 0 if isinstance(name, UUID) or authorization.permits(context, of_topic, name) else int(of_topic.code)

    async def _wait(self, request: _FetchRequest, result: _FetchResult, seconds: float) -> FetchAnswer:
        partitions = self._unchanged(result)
        if partitions is None:
            return self._answer(request, self._read(request, request.partitions, _NOTHING))
        waiter = GrowthWaiter(request.min_bytes - result.size, seconds)
        del result  # a file that is deleted meanwhile must not stay open
        for partition in partitions:
            partition.waiters[waiter] = None
        try:
            await waiter.wait()
        finally:
            for partition in partitions:
                partition.waiters.pop(waiter, None)
        return self._answer(request, self._read(request, request.partitions, _NOTHING))

    def _unchanged(self, result: _FetchResult) -> list[Replica] | None:
        """The partitions; None if one of them has changed since it was read."""
        partitions = []
        for key, fetched in result.partitions:
            partition = self._topics.partition(*key)
            if partition is None or partition.log.high_watermark != fetched.high_watermark:
                return None
            partitions.append(partition)
        return partitions

    def _answer(self, request: _FetchRequest, result: _FetchResult) -> FetchAnswer:
        if request.context.charge is not None and request.context.charge.fetched(_size(request, result)):
            return self._throttled(request)
        leaders = self._note(request, result, range(len(result.partitions)))
        return _answer(request, result, self._endpoints(request, leaders))

    def _throttled(self, request: _FetchRequest) -> FetchAnswer:
        """An empty response. A new session does not begin: its client does not know yet what it would leave out."""
        session = request.session
        if session is not None and request.is_full:
            self._sessions.close(session.session_id)
            session = None
        return write_fetch(request.version, [], session_id=0 if session is None else session.session_id)

    def _note(self, request: _FetchRequest, result: _FetchResult, places: Sequence[int]) -> list[tuple[int, int]]:
        """Count the bytes sent of the partitions at these places, and name other leaders; returns those leaders."""
        leaders = []
        hints = None if self._neighbours is None or request.version < ENDPOINTS else self._neighbours.hints
        for place in places:
            key, fetched = result.partitions[place]
            if fetched.records is not None and (partition := self._topics.partition(*key)) is not None:
                partition.sent(fetched.records.size)
            if hints is not None and fetched.error and (leader := hints.leader(*key, fetched.error)) is not None:
                result.partitions[place] = key, fetched._replace(leader=leader)
                leaders.append(leader)
        return leaders

    def _endpoints(self, request: _FetchRequest, leaders: Sequence[tuple[int, int]]) -> Sequence[NodeEndpoint]:
        if self._neighbours is None or not leaders:
            return ()
        return self._neighbours.hints.endpoints(leaders, request.context.listener)


def _parse(version: int, frame: memoryview, body: int) -> _DecodedFetch:
    message = read_request(ApiKey.FETCH, version, frame, body)
    named: str = "topic_id" if version >= TOPIC_IDS else "topic"
    none: str | UUID = _ZERO if version >= TOPIC_IDS else ""
    wanted = [
        (
            (getattr(topic, named) or none, partition.partition),
            FetchPartition(
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
    for topic in message.topics:
        partitions, topic.partitions = list(topic.partitions), ()
        drop(partitions)
    return _DecodedFetch(message, wanted, forgotten)


def _answer(request: _FetchRequest, result: _FetchResult, endpoints: Sequence[NodeEndpoint] = ()) -> FetchAnswer:
    """Leave out what the session's client knows already, and group the rest by topic."""
    session = request.session
    topics: dict[str | UUID, list[FetchedPartition]] = {}
    for key, fetched in _news(request, result):
        if session is not None:
            session.known[key] = _known(fetched)
            if fetched.records is not None and not request.is_full:
                session.served(key)
        topics.setdefault(key[0], []).append(fetched)
    return write_fetch(
        request.version,
        [FetchedTopic(topic, partitions) for topic, partitions in topics.items()],
        session_id=session.session_id if session is not None else 0,
        endpoints=endpoints,
    )


def _news(request: _FetchRequest, result: _FetchResult) -> Sequence[tuple[PartitionKey, FetchedPartition]]:
    """The partitions that the client must hear of. An error is in each response, and its end in one more
    (``CachedPartition``)."""
    if request.session is None or request.is_full:
        return result.partitions
    before = request.session.known
    return [
        (key, fetched)
        for key, fetched in result.partitions
        if fetched.records is not None or fetched.is_urgent or before.get(key) != _known(fetched)
    ]


def _known(fetched: FetchedPartition) -> KnownOffsets:
    return KnownOffsets(NO_OFFSET if fetched.error else fetched.high_watermark, fetched.log_start_offset)


def _size(request: _FetchRequest, result: _FetchResult) -> int:
    """The bytes of the response, with its size (``FetchResponse.sizeOf``)."""
    topics: dict[str | UUID, list[FetchedPartition]] = {}
    for key, fetched in _news(request, result):
        topics.setdefault(key[0], []).append(fetched)
    return 4 + write_fetch(request.version, [FetchedTopic(*one) for one in topics.items()]).size
