"""Brokers of a cluster in one event loop, as they ship, with their store in a file. The test is the controller."""

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

from seglog.broker import app
from seglog.broker.ground import BrokerGround
from seglog.cluster.cluster_view import CONTROLLER, ControllerRegistration, encode_controller
from seglog.cluster.controller_decisions import decide
from seglog.cluster.model import (
    NO_LEADER,
    Member,
    PartitionState,
    TopicState,
    decode_partition,
    encode,
    partition_name,
    tombstone_name,
    topic_name,
)
from seglog.cluster.sqlite_store import SqliteStore
from seglog.cluster.store import ANY_VERSION, MISSING, Change, MetadataStore
from seglog.core.broker_config import BrokerConfig
from seglog.core.fs import Fs, OsFs
from seglog.replication.replica import Replica
from tests.cluster.faulty import Faulty

SOON: Final = 60.0
_SESSION_MS: Final = 60_000
_SETTINGS: Final = {
    "listeners": "PLAINTEXT://127.0.0.1:0",
    "broker.session.timeout.ms": str(_SESSION_MS),
    "controlled.shutdown.enable": "false",  # it would wait for a controller
    "replica.fetch.wait.max.ms": "100",
    "replica.fetch.backoff.ms": "40",
    "replica.lag.time.max.ms": "60000",
}


class Node(app.Node):
    """Broker ``node_id`` of the cluster whose store is ``path / "store.db"``. ``faulty`` is that store, as the broker
    uses it; ``told`` are the changes of replicas since it started: topic, number, whether it leads."""

    faulty: Faulty

    def __init__(
        self, path: Path, node_id: int, settings: Mapping[str, str] | None = None, *, fs: Fs | None = None
    ) -> None:
        self.told: list[tuple[str, int, bool]] = []
        given = {
            **_SETTINGS,
            "node.id": str(node_id),
            "log.dirs": str(path / str(node_id)),
            "cluster.store": str(path / "store.db"),
            **(settings or {}),
        }
        super().__init__(
            BrokerConfig.from_mapping(given), ground=BrokerGround(open_store=self._open_store, fs=fs or OsFs())
        )

    async def _open_store(self, address: str, /, **_: object) -> MetadataStore:
        self.faulty = Faulty(await SqliteStore.open(address))
        return self.faulty

    async def started(self) -> Self:
        await self.start()
        self.replicas.changed.append(lambda replica: self.told.append((*replica.topic_partition, replica.leads)))
        return self

    # Its parts

    @property
    def me(self) -> Member:
        assert self.membership.me is not None
        return self.membership.me

    def replica(self, topic_id: UUID, number: int = 0) -> Replica:
        return self.replicas.by_key[topic_id, number]

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Wait until it is so; raises the error of the broker's task that has failed."""
        async with asyncio.timeout(SOON):
            while not is_so():
                await asyncio.sleep(0.002)
                if self.failure is not None:
                    raise self.failure

    # What the test does to the cluster, as its controller

    async def create(
        self, name: str, assignment: Sequence[Sequence[int]], config: Mapping[str, str] | None = None, *, life: int = 0
    ) -> UUID:
        """Create a topic that the registered brokers lead. Each ``life`` of a topic has a different id."""
        topic_id = UUID(int=Random(f"{name} {life}").getrandbits(128))
        state = TopicState(
            name=name, topic_id=topic_id, assignment=tuple(map(tuple, assignment)), config=dict(config or {})
        )
        version = await self.faulty.store.create(topic_name(name), encode(state))
        self.view.note(topic_name(name), encode(state), version)
        await self.decide()
        return topic_id

    async def delete(self, name: str, *, tombstones: Sequence[int] = ()) -> None:
        """``tombstones``: brokers that get a tombstone for the topic."""
        topic_id = self.view.topics[name].topic_id
        left = [Change(tombstone_name(topic_id, node), name.encode(), MISSING) for node in tombstones]
        await self.faulty.store.commit([Change(topic_name(name), None, ANY_VERSION), *left])
        await self.until(lambda: name not in self.view.topics)
        await self.decide()

    async def decide(self) -> None:
        """Decide once, and leave nothing for leaders to write."""
        store = self.faulty.store
        for one in list(decide(self.view.view())):
            key = one.topic_id, one.number
            name = partition_name(*key)
            if one.state is None:
                await store.delete(name)
                await self.until(partial(self._is_gone, key))
            else:
                value = encode(replace(one.state, is_new=False))
                change = Change(name, value, MISSING if one.version is None else one.version)
                self.view.note(name, value, *await store.commit([change]))

    def _is_gone(self, key: tuple[UUID, int]) -> bool:
        return key not in self.view.partitions

    async def put(self, topic_id: UUID, change: Callable[[PartitionState], PartitionState], number: int = 0) -> None:
        """Write another state of a partition."""
        name = partition_name(topic_id, number)
        found = await self.faulty.store.get(name)
        assert found is not None
        value = encode(change(decode_partition(name, found.value)))
        self.view.note(name, value, await self.faulty.store.cas(name, value, found.version))


def is_whole(nodes: Sequence[Node], topic_id: UUID, number: int = 0) -> bool:
    """Whether all have what the leader has, know that it is committed, and are in sync."""
    found = [node.replicas.by_key.get((topic_id, number)) for node in nodes]
    leader = next((one for one in found if one is not None and one.progress is not None), None)
    if leader is None or leader.progress is None or leader.leader == NO_LEADER:
        return False
    end = leader.log.log_end_offset
    return {node.identity.node_id for node in nodes} == set(leader.progress.state.isr_nodes) and all(
        one is not None and (one.log.log_end_offset, one.log.high_watermark) == (end, end) for one in found
    )


@asynccontextmanager
async def controlling(path: Path) -> AsyncIterator[None]:
    """Hold the role of the controller, so that brokers leave all decisions to the test."""
    store = await SqliteStore.open(path / "store.db")
    try:
        session = await store.session(_SESSION_MS, lambda: None)
        former = await store.get(CONTROLLER)  # in a copy of the store
        value = encode_controller(ControllerRegistration(0, 0, 1))
        gone = [] if former is None else [Change(CONTROLLER, None, former.version)]
        await store.commit([*gone, Change(CONTROLLER, value, MISSING, session)])
        yield
    finally:
        await store.close()


@asynccontextmanager
async def cluster(path: Path, nodes: int = 3, settings: Mapping[str, str] | None = None) -> AsyncIterator[list[Node]]:
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(controlling(path))
        made = [Node(path, node_id, settings) for node_id in range(1, nodes + 1)]
        for node in made:
            stack.push_async_callback(node.stop)
            await node.started()
        for node in made:
            assert await node.view.until(partial(_sees, node, nodes), SOON)
        yield made


def _sees(node: Node, nodes: int) -> bool:
    return len(node.view.brokers) == nodes
