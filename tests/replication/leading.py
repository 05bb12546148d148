"""A leader and a follower with real logs: the leader answers over real sockets as a broker does, or as a test wants."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Final
from uuid import UUID

from seglog.broker.cluster_peers import ClusterPeers, LeaderHints
from seglog.broker.fetch import Fetch
from seglog.broker.fetch_sessions import FetchSessionCache
from seglog.broker.follower_fetch import FollowerFetch
from seglog.broker.identity import Identity
from seglog.broker.offload import Offload
from seglog.broker.requests import RequestContext
from seglog.broker.topics import PartitionMetadata, Topic, Topics
from seglog.cluster.model import BrokerRegistration, Member, PartitionState, VersionedState
from seglog.core.addresses import Address
from seglog.core.clock import SystemClock
from seglog.core.error_codes import ErrorCode
from seglog.core.errors import SeglogError
from seglog.core.ground import THREADS, Ground
from seglog.core.types import MAX_INT32, Slice, TopicPartition
from seglog.net.connection import ClientConnection, IdleLimits, Reply
from seglog.net.connection_quotas import ConnectionQuotas
from seglog.net.listener import Listener
from seglog.protocol.apis import ApiKey
from seglog.protocol.fetch import FetchAnswer
from seglog.protocol.framing import RequestHeader, frame_response, read_header
from seglog.protocol.messages import Message, read_request, write_response
from seglog.records.record import NewRecord, encode_batch
from seglog.replication.fetcher import Fetcher, FetcherConfig
from seglog.replication.replica import Replica, ReplicaListener
from seglog.storage.directory.log_dir import LogDir
from tests.lone import view_of_nothing

LEADER, FOLLOWER = Member(1, 10), Member(2, 20)
BROKERS: Final = {
    member.node_id: BrokerRegistration(node_id=member.node_id, epoch=member.epoch, kept_since=member.epoch)
    for member in (LEADER, FOLLOWER)
}
LAG_MS: Final = 10_000
CONFIG: Final = {"log.retention.ms": "-1", "message.max.bytes": str(8 << 20)}
QUICK: Final = FetcherConfig(replica_fetch_wait_max_ms=30, replica_fetch_backoff_ms=40)


def topic_id(name: str) -> UUID:
    return UUID(int=int.from_bytes(name.encode(), "big"))


def batch(size: int = 100, records: int = 1) -> bytes:
    return bytes(encode_batch([NewRecord(value=b"x" * (size // records)) for _ in range(records)]))


class Disk:
    """A log directory and the replicas in it; everything is led by ``leads`` or followed."""

    def __init__(self, path: Path, me: Member, listener: ReplicaListener | None = None) -> None:
        self.me = me
        self._listener = listener
        self.directory = LogDir.open(str(path), config=CONFIG, hw_follows_end=False, create=True)
        self.replicas: dict[TopicPartition, Replica] = {}
        self._versions = 0

    def have(self, name: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> list[Replica]:
        if name not in self.directory.topic_names():
            self.directory.create_topic(name, partitions, config)
        found = []
        for number in range(partitions):
            key = TopicPartition(name, number)
            log = self.directory.log(*key)
            made = Replica(self.directory, key, topic_id(name), log, listener=self._listener)
            found.append(self.replicas.setdefault(key, made))
        return found

    def apply(
        self,
        replica: Replica,
        leader: Member,
        epoch: int,
        isr: Sequence[Member] = (LEADER, FOLLOWER),
        *,
        unclean_epoch: int = -1,
    ) -> None:
        self._versions += 1
        nodes = (LEADER.node_id, FOLLOWER.node_id)
        state = PartitionState(replicas=nodes, leader=leader.node_id, leader_epoch=epoch, isr=tuple(isr))
        state = replace(state, unclean_epoch=unclean_epoch)
        replica.apply(VersionedState(state, self._versions), self.me, BROKERS, 0, lag_max_ms=LAG_MS)

    def close(self) -> None:
        self.directory.close()


class _Topics(Topics):
    def __init__(self, disk: Disk) -> None:
        self._replicas: dict[tuple[UUID, int], Replica] = {}
        super().__init__(view_of_nothing(), self._replicas, lambda: (disk.directory,), node_id=LEADER.node_id)
        self._disk = disk

    def refresh(self) -> None:
        self.by_name.clear()
        self.by_id.clear()
        topics: dict[str, list[Replica]] = {}
        self._replicas.clear()
        for key, replica in sorted(self._disk.replicas.items()):
            self._replicas[replica.topic_id, key.partition] = replica
            topics.setdefault(key.topic, []).append(replica)
        for name, replicas in topics.items():
            self._put(Topic(name, topic_id(name), replicas))

    def metadata(self, topic: Topic, number: int) -> PartitionMetadata:
        del topic, number
        raise AssertionError("not asked here")

    def why_not(self, topic: str | UUID, number: int) -> ErrorCode:
        del topic, number
        return ErrorCode.UNKNOWN_TOPIC_ID

    def overrides(self, name: str) -> dict[str, str]:
        del name
        raise AssertionError("not asked here")

    def directories(self) -> list[LogDir]:
        return [self._disk.directory]


Answers = Callable[[RequestHeader], Reply | Awaitable[Reply]]


class Leader:
    """A broker's answers to Fetch and ListOffsets. ``instead`` may answer in its place: None lets it answer itself.
    ``requests`` are the Fetch requests, as they were read, ``offsets`` counts the ListOffsets."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.topics = _Topics(disk)
        self.sessions = FetchSessionCache(1000, now=lambda: 0.0, rng=Random(1))
        self.instead: Answers = lambda _: None
        self.requests: list[Message] = []
        self.offsets = 0
        self.brokers = dict(BROKERS)
        """Who is there."""
        self.now_ms: int | None = None
        """What its clock shows, if that is not the time."""
        self.port = 0
        self.listener: Listener | None = None
        self.fetch = self._new_fetch()

    def _new_fetch(self) -> Fetch:
        fetch = FollowerFetch(
            self.topics,
            lambda replica, asked: replica.serve_replica(asked, BROKERS, self.now_ms or 0),
            max_bytes=MAX_INT32,
            now_ms=lambda: int(SystemClock().monotonic() * 1000) if self.now_ms is None else self.now_ms,
            rng=Random(1),
            is_there=self.brokers.__contains__,
        )
        neighbours = ClusterPeers(
            fetch=fetch,
            hints=LeaderHints(self.topics, Identity(view_of_nothing(), node_id=1, cluster_id="", rack=None)),
            brokers=lambda: BROKERS,
            listener="BROKERS",
            rack_aware=False,
        )
        return Fetch(self.topics, self.sessions, Offload(THREADS), max_bytes=MAX_INT32, peers=neighbours)

    def forget(self) -> None:
        """All sessions."""
        self.fetch = self._new_fetch()

    def lead(
        self, name: str, partitions: int = 1, epoch: int = 0, config: Mapping[str, str] | None = None
    ) -> list[Replica]:
        found = self.disk.have(name, partitions, config)
        for replica in found:
            self.disk.apply(replica, LEADER, epoch)
        self.topics.refresh()
        return found

    @property
    def broker(self) -> BrokerRegistration:
        return replace(BROKERS[LEADER.node_id], listeners={"BROKERS": f"127.0.0.1:{self.port}"})

    async def start(self) -> None:
        """On the port that it had before."""
        shared = ConnectionQuotas(
            largest=lambda _head: 4 << 20,
            max_connections=100,
            max_connections_per_ip=100,
            in_flight_bytes=64 << 20,
            idle=IdleLimits(60),
        )
        self.shared = shared
        self.listener = Listener(Address("BROKERS", "127.0.0.1", self.port), self._answer, shared)
        self.port = (await self.listener.start()).port

    async def stop(self) -> None:
        """With all connections and sessions."""
        if self.listener is not None:
            listener, self.listener = self.listener, None
            await listener.stop()
        self.sessions = FetchSessionCache(1000, now=lambda: 0.0, rng=Random(len(self.requests)))
        self.fetch = self._new_fetch()

    def cut(self) -> None:
        for connection in list(self.shared.connections):
            connection.close()

    def _answer(self, connection: ClientConnection, frame: memoryview, /) -> Reply | Awaitable[Reply]:
        header = read_header(frame)
        if header.key == ApiKey.FETCH:
            self.requests.append(read_request(header.key, header.version, frame, header.body))
        instead = self.instead(header)
        return self.answer(connection, header, frame) if instead is None else instead

    def answer(
        self, connection: ClientConnection, header: RequestHeader, frame: memoryview
    ) -> Reply | Awaitable[Reply]:
        if header.key == ApiKey.LIST_OFFSETS:
            self.offsets += 1
            answer = self._list_offsets(read_request(header.key, header.version, frame, header.body))
            body = write_response(header.key, header.version, answer)
            return frame_response(header.key, header.version, header.correlation_id, len(body)) + body
        context = RequestContext(header.key, header.version, header.client_id or "", "", connection.listener)
        fetched = self.fetch(frame, header.body, context)
        return _framed(header, fetched) if isinstance(fetched, FetchAnswer) else _framed_later(header, fetched)

    def _list_offsets(self, request: Message) -> dict[str, object]:
        assert request.replica_id == FOLLOWER.node_id
        topics = []
        for topic in request.topics:
            partitions: list[dict[str, int]] = []
            for wanted in topic.partitions:
                replica = self.disk.replicas[TopicPartition(topic.name, wanted.partition_index)]
                answer = {"partition_index": wanted.partition_index}
                try:
                    replica.check_epoch(wanted.current_leader_epoch)
                except SeglogError as error:
                    partitions.append(answer | {"error_code": error.code})
                    continue
                log = replica.log
                offset = log.log_start_offset if wanted.timestamp == -2 else log.log_end_offset
                partitions.append(answer | {"offset": offset})
            topics.append({"name": topic.name, "partitions": partitions})
        return {"topics": topics}


def _framed(header: RequestHeader, answer: FetchAnswer) -> list[bytes | Slice]:
    return [frame_response(header.key, header.version, header.correlation_id, answer.size), *answer.parts]


async def _framed_later(header: RequestHeader, answer: Awaitable[FetchAnswer]) -> Reply:
    return _framed(header, await answer)


def reply(header: RequestHeader, body: bytes) -> bytes:
    """An answer with any body."""
    return frame_response(header.key, header.version, header.correlation_id, len(body)) + body


class Both:
    """A leader, a follower, and the fetcher between them."""

    def __init__(self, path: Path, leader: Leader, config: FetcherConfig) -> None:
        self.leader = leader
        self.disk = Disk(path / "follower", FOLLOWER)
        self.me: Member | None = FOLLOWER
        self.fetcher = Fetcher(self.leader.broker, "BROKERS", self, config, ground=Ground())
        self.task: asyncio.Task[None] | None = None

    def follow(
        self, name: str, partitions: int = 1, epoch: int = 0, config: Mapping[str, str] | None = None
    ) -> list[Replica]:
        """Follow a topic, all of it, in that epoch."""
        found = self.disk.have(name, partitions, config)
        for replica in found:
            self.disk.apply(replica, LEADER, epoch)
            self.fetcher.follow(replica)
        return found

    def run(self) -> None:
        self.task = asyncio.get_running_loop().create_task(self.fetcher.run())

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Look again and again; what the fetcher fails with is raised."""
        async with asyncio.timeout(60):
            while not is_so():
                await asyncio.sleep(0)
                if self.task is not None and self.task.done():
                    self.task.result()

    async def until_asked(self) -> None:
        """Until the next request is there."""
        count = len(self.leader.requests)
        await self.until(lambda: len(self.leader.requests) > count)

    async def until_same(self) -> None:
        """Until every replica here is the leader's, up to the last byte, and both know that it is committed."""
        await self.until(lambda: all(map(self._is_caught_up, self.disk.replicas)))
        for key in self.disk.replicas:
            assert content(self.disk.replicas[key]) == content(self.leader.disk.replicas[key])

    def _is_caught_up(self, key: TopicPartition) -> bool:
        one, other = self.disk.replicas[key].log, self.leader.disk.replicas[key].log
        end = other.log_end_offset
        return (one.log_end_offset, one.high_watermark, other.high_watermark) == (end, end, end)


def content(replica: Replica) -> bytes:
    return b"".join(segment.log.pread(segment.size, 0) for segment in replica.log.segments)


@asynccontextmanager
async def replicating(path: Path, config: FetcherConfig = QUICK) -> AsyncIterator[Both]:
    leader = Leader(Disk(path / "leader", LEADER))
    await leader.start()
    both = Both(path, leader, config)
    try:
        yield both
    finally:
        if both.task is not None:
            both.task.cancel()
            await asyncio.gather(both.task, return_exceptions=True)
        await both.leader.stop()
        both.disk.close()
        both.leader.disk.close()
