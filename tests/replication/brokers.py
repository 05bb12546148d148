"""Brokers of a cluster in one process, as far as replicas go: a real store, view, membership, log directories, and the
real handlers of Fetch and ListOffsets on real sockets. The test is the controller."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Final, Self
from uuid import UUID

from seglog.broker.apis.offsets import OffsetApis
from seglog.broker.cluster_peers import ClusterPeers, LeaderHints
from seglog.broker.dispatch import Dispatch
from seglog.broker.fetch import Fetch
from seglog.broker.fetch_sessions import FetchSessionCache
from seglog.broker.follower_fetch import FollowerFetch
from seglog.broker.identity import Identity
from seglog.broker.offload import Offload
from seglog.broker.produce import Produce
from seglog.broker.topic_changes import TopicChanges
from seglog.broker.topics import Topics
from seglog.cluster.cluster_view import ClusterView
from seglog.cluster.controller_decisions import decide
from seglog.cluster.membership import BrokerInfo, Membership
from seglog.cluster.model import (
    NO_LEADER,
    Member,
    PartitionState,
    TopicRules,
    TopicState,
    decode_partition,
    encode,
    partition_name,
    tombstone_name,
    topic_name,
)
from seglog.cluster.sqlite_store import SqliteStore
from seglog.cluster.store import ANY_VERSION, MISSING, Change
from seglog.core.addresses import Address
from seglog.core.ground import THREADS, Ground
from seglog.net.connection import IdleLimits
from seglog.net.connection_quotas import ConnectionQuotas
from seglog.net.listener import Listener
from seglog.replication.fetcher import Fetcher, FetcherConfig
from seglog.replication.fetchers import Fetchers
from seglog.replication.replica import Replica
from seglog.replication.replicas import Replicas
from seglog.storage.directory.log_dir import LogDir
from seglog.storage.directory.log_dirs import LogDirs
from seglog.storage.formats.checkpoints import encode_id
from tests.cluster.faulty import Faulty

LISTENER: Final = "BROKERS"
SOON: Final = 60.0
LAG_MS: Final = 60_000
GROUND: Final = Ground()
CLOCK: Final = GROUND.clock
_QUICK: Final = FetcherConfig(replica_fetch_wait_max_ms=100, replica_fetch_backoff_ms=40)


class Node:
    """Broker ``node_id``; ``stop`` ends it, whether it has come to its end or not."""

    def __init__(self, path: Path, node_id: int, *, min_insync: int = 1, lag_max_ms: int = LAG_MS) -> None:
        self.path = path / str(node_id)
        self.node_id = node_id
        self.told: list[tuple[str, int, bool]] = []
        """What was told of replicas: topic, number, whether it leads."""
        self.strays: list[int] = []
        self._store_path = path / "store.db"
        self.faulty: Faulty
        self._rules = TopicRules(min_insync, unclean=False)
        self._lag_max_ms = lag_max_ms
        self._parts = AsyncExitStack()
        self._running: asyncio.Task[None] | None = None

    async def open(self) -> Self:
        """Everything but the replicas themselves."""
        self._loop = asyncio.get_running_loop()
        self.store = await SqliteStore.open(self._store_path)
        self._parts.push_async_callback(self.store.close)
        self.directories = LogDirs.open([self.path], cluster_id="c", node_id=self.node_id, changed=self._disk_changed)
        self._parts.callback(self.directories.close)
        self.faulty = Faulty(self.store)
        """What its replicas write to."""
        self.view = ClusterView(self.store, lambda _: self._rules)
        await self.view.start()
        self._parts.push_async_callback(self.view.stop)
        ids = [encode_id(one.meta.directory_id) for one in self.directories.dirs if one.meta.directory_id is not None]
        registration = BrokerInfo(self.node_id, {}, None, tuple(ids))
        self.membership = Membership(
            self.store,
            self.view,
            registration,
            session_timeout_ms=60_000,
            kept_since=self.directories.kept_since,
            ground=GROUND,
        )
        self.replicas = Replicas(
            self.directories,
            self.view,
            self.membership,
            self.faulty,
            Fetchers(
                lambda: self.view.brokers,
                lambda broker: Fetcher(broker, LISTENER, self.membership, _QUICK, ground=GROUND),
            ),
            self,
            node_id=self.node_id,
            ground=GROUND,
            lag_max_ms=self._lag_max_ms,
        )
        self.replicas.changed.append(
            lambda replica: self.told.append((*replica.topic_partition, replica.leads))  # as it is at that moment
        )
        return self

    def _disk_changed(self, directory: LogDir) -> None:
        self._loop.call_soon_threadsafe(self.replicas.directory_failed, directory)

    def doubted(self) -> None:
        self.replicas.doubted()

    def resigned(self) -> None:
        self.replicas.resign()

    def confirmed(self) -> None:
        self.replicas.confirmed()

    def shown(self, replica: Replica) -> None: ...
    def hidden(self, replica: Replica) -> None: ...
    def strays_changed(self) -> None:
        self.strays.append(len(self.directories.strays()))

    async def before_changes(self) -> None: ...

    async def start(self) -> Self:
        """With all that the cluster says, from here on."""
        port = await self._listen()
        self._parts.push_async_callback(self.replicas.close)
        await self.replicas.start()
        await self.membership.update(listeners={LISTENER: f"127.0.0.1:{port}"})
        await self.membership.join(self)
        self._parts.push_async_callback(self.membership.leave)
        self.run()
        return self

    def run(self) -> None:
        """Make and remove logs from now on."""
        self._running = asyncio.create_task(self.replicas.run())

    async def pause(self) -> None:
        """Make and remove none."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)

    async def _listen(self) -> int:
        identity = Identity(self.view, node_id=self.node_id, cluster_id="c", rack=None)
        topics = Topics(self.view, self.replicas.by_key, lambda: self.directories.dirs, node_id=self.node_id)
        changes = TopicChanges(self.store, self.view, topics, identity, ground=Ground(rng=Random(self.node_id)))
        self._parts.push_async_callback(changes.close)
        fetch = FollowerFetch(
            topics,
            self.replicas.serve,
            max_bytes=1 << 26,
            now_ms=lambda: self.replicas.now_ms,
            rng=Random(1),
            is_there=lambda node: node in self.view.brokers,
        )
        hints = LeaderHints(topics, identity)
        neighbours = ClusterPeers(fetch, hints, lambda: self.view.brokers, LISTENER, rack_aware=False)
        sessions = FetchSessionCache(10, now=CLOCK.monotonic, rng=Random(1))
        offload = Offload(THREADS)
        self._parts.push_async_callback(offload.close)
        handler = Dispatch(
            Produce(topics, hints),
            Fetch(topics, sessions, offload, max_bytes=1 << 26, peers=neighbours),
            OffsetApis(topics, changes, offload).handlers(),
            offload,
        )
        shared = ConnectionQuotas(
            largest=lambda _: 4 << 20,
            max_connections=100,
            max_connections_per_ip=100,
            in_flight_bytes=64 << 20,
            idle=IdleLimits(60),
        )
        listener = Listener(Address(LISTENER, "127.0.0.1", 0), handler, shared)
        endpoint = await listener.start()
        self._parts.push_async_callback(listener.stop)
        return endpoint.port

    async def stop(self) -> None:
        await self.pause()
        await self._parts.aclose()

    # What there is

    @property
    def me(self) -> Member:
        assert self.membership.me is not None
        return self.membership.me

    def replica(self, topic_id: UUID, number: int = 0) -> Replica:
        return self.replicas.by_key[topic_id, number]

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Look again and again; what `Replicas.run` fails with is raised."""
        async with asyncio.timeout(SOON):
            while not is_so():
                await asyncio.sleep(0.002)
                if self._running is not None and self._running.done() and not self._running.cancelled():
                    self._running.result()

    # What the test does to the cluster

    async def create(
        self, name: str, assignment: Sequence[Sequence[int]], config: Mapping[str, str] | None = None
    ) -> UUID:
        """A topic, and whoever is there leads it."""
        topic_id = UUID(int=Random(f"{name} {len(self.told)} {self.node_id}").getrandbits(128))
        state = TopicState(
            name=name, topic_id=topic_id, assignment=tuple(map(tuple, assignment)), config=dict(config or {})
        )
        version = await self.store.create(topic_name(name), encode(state))
        self.view.note(topic_name(name), encode(state), version)
        await self.decide()
        return topic_id

    async def delete(self, name: str, *, tombstones: Sequence[int] = ()) -> None:
        """``tombstones``: brokers that are told that it was deleted."""
        topic_id = self.view.topics[name].topic_id
        left = [Change(tombstone_name(topic_id, node), name.encode(), MISSING) for node in tombstones]
        await self.store.commit([Change(topic_name(name), None, ANY_VERSION), *left])
        await self.until(lambda: name not in self.view.topics)
        await self.decide()

    async def decide(self) -> None:
        """Be the controller, once, and leave nothing for leaders to write."""
        for one in list(decide(self.view.view())):
            name = partition_name(one.topic_id, one.number)
            if one.state is None:
                await self.store.delete(name, ANY_VERSION)
                assert await self.view.until(partial(_is_gone, self, (one.topic_id, one.number)), SOON)
                continue
            version = MISSING if one.version is None else one.version
            value = encode(replace(one.state, is_new=False))
            written = await (
                self.store.create(name, value) if version == MISSING else self.store.cas(name, value, version)
            )
            self.view.note(name, value, written)

    async def put(self, topic_id: UUID, change: Callable[[PartitionState], PartitionState], number: int = 0) -> None:
        """Another state of a partition, in its next epoch if it has another leader."""
        name = partition_name(topic_id, number)
        found = await self.store.get(name)
        assert found is not None
        value = encode(change(decode_partition(name, found.value)))
        self.view.note(name, value, await self.store.cas(name, value, found.version))


def is_whole(nodes: Sequence[Node], topic_id: UUID, number: int = 0) -> bool:
    """Whether all have what the leader has, know that it is committed, and are in sync."""
    found = [node.replicas.by_key.get((topic_id, number)) for node in nodes]
    leader = next((one for one in found if one is not None and one.progress is not None), None)
    if leader is None or leader.progress is None or leader.leader == NO_LEADER:
        return False
    end = leader.log.log_end_offset
    return {node.node_id for node in nodes} == set(leader.progress.state.isr_nodes) and all(
        one is not None and (one.log.log_end_offset, one.log.high_watermark) == (end, end) for one in found
    )


@asynccontextmanager
async def cluster(path: Path, nodes: int = 3, *, min_insync: int = 1) -> AsyncIterator[list[Node]]:
    async with AsyncExitStack() as stack:
        started = []
        for node_id in range(1, nodes + 1):
            node = Node(path, node_id, min_insync=min_insync)
            stack.push_async_callback(node.stop)
            started.append(await (await node.open()).start())
        for node in started:
            assert await node.view.until(partial(_sees, node, nodes), SOON)
        yield started


def _sees(node: Node, nodes: int) -> bool:
    return len(node.view.brokers) == nodes


def _is_gone(node: Node, key: tuple[UUID, int]) -> bool:
    return key not in node.view.partitions
