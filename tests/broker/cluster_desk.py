"""A broker of a cluster without its sockets and its fetchers: a real store, a real view, the real handlers; who leads
which partition is written by the test."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, Final, Self
from uuid import UUID

from seglog.broker.apis.config_rules import check_threads
from seglog.broker.apis.configs import ConfigApis
from seglog.broker.apis.elections import ElectionApis
from seglog.broker.apis.group_configs import GroupConfigs
from seglog.broker.apis.metadata import MetadataApis
from seglog.broker.apis.offsets import OffsetApis
from seglog.broker.apis.partition_states import PartitionStates
from seglog.broker.apis.producers import ProducerApis
from seglog.broker.apis.reassignments import ReassignmentApis
from seglog.broker.apis.topics import TopicApis
from seglog.broker.configuration import Configuration, topic_rules
from seglog.broker.identity import Identity
from seglog.broker.offload import Offload
from seglog.broker.requests import RequestContext
from seglog.broker.topics.topic_changes import TopicChanges
from seglog.broker.topics.topics import Topics
from seglog.cluster.cluster_view import ClusterView
from seglog.cluster.controller_decisions import decide
from seglog.cluster.model import BrokerRegistration, PartitionState, broker_name, encode, partition_name
from seglog.cluster.sqlite_store import SqliteStore
from seglog.cluster.store import ANY_VERSION, MISSING
from seglog.core.broker_config import BrokerConfig
from seglog.core.ground import THREADS, Ground
from seglog.protocol.apis import APIS, ApiKey
from seglog.protocol.message_reader import Message, read_message
from seglog.protocol.message_writer import write_message
from seglog.protocol.messages import read_request, write_response
from seglog.protocol.schema import request_class, response_class
from seglog.replication.replica import Replica
from seglog.storage.directory.log_dir import LogDir

LISTENER: Final = "PLAINTEXT"
SOON: Final = 60.0
Key = tuple[UUID, int]


def broker(node_id: int, rack: str | None = None, **more: Any) -> BrokerRegistration:
    """Registered, in epoch 10 and its own number more."""
    listeners = {LISTENER: f"10.0.0.{node_id}:9092"}
    plain = BrokerRegistration(node_id=node_id, epoch=10 + node_id, kept_since=0, listeners=listeners, rack=rack)
    return replace(plain, **more)


class Desk:
    """The request handlers of broker ``node_id``, without its sockets."""

    def __init__(
        self, store: SqliteStore, node_id: int, directories: Sequence[LogDir], config: Mapping[str, str]
    ) -> None:
        self.store = store
        self.node_id = node_id
        self.replicas: dict[Key, Replica] = {}
        static = BrokerConfig.from_mapping({"node.id": str(node_id), "log.dirs": "/nowhere", **config})
        self.configuration = Configuration(static, store, node_id)
        self.view = ClusterView(store, lambda topic: topic_rules(topic, self.configuration.current))
        self.directories = list(directories)
        self.took_effect: list[BrokerConfig] = []
        self.deleted: list[str] = []
        self.lost: list[str] = []
        self.topics: Topics
        self.changes: TopicChanges
        self._offload = Offload(THREADS)
        self._handlers: dict[int, Any]

    async def start(self) -> Self:
        await self.configuration.load()
        await self.view.start()
        self.identity = Identity(self.view, node_id=self.node_id, cluster_id="cluster", rack=None)
        self.topics = Topics(
            self.view, self.replicas, lambda: self.directories, node_id=self.node_id, lost=lambda: self.lost
        )
        self.changes = TopicChanges(
            self.store, self.view, self.topics, self.identity, ground=Ground(rng=Random(self.node_id))
        )
        self.topics.removed.append(lambda gone: self.deleted.extend(topic.name for topic in gone))
        offload = self._offload
        states = PartitionStates(self.store, self.view)
        apis = (
            MetadataApis(self.topics, self.changes, self.identity, self.configuration, THREADS, offload),
            TopicApis(self.topics, self.changes, self.identity, self.configuration),
            OffsetApis(self.topics, self.changes, offload),
            ConfigApis(
                self.topics,
                self.changes,
                self.configuration,
                self.took_effect.append,
                lambda before, after: check_threads(before.directory, after.directory),
                self.identity,
                GroupConfigs(self.store, self.view, self.configuration),
                dict,
            ),
            ProducerApis(self.topics),
            ElectionApis(states, self.topics),
            ReassignmentApis(states, self.topics, self.identity),
        )
        self._handlers = {key: handler for api in apis for key, handler in api.handlers().items()}
        return self

    async def stop(self) -> None:
        await self.changes.close()
        await self._offload.close()
        await self.view.stop()

    async def ask(
        self, key: ApiKey, version: int | None = None, /, *, listener: str = LISTENER, **contents: Any
    ) -> Message:
        """An answer as it goes over the wire; the request as it comes."""
        version = APIS[key].high if version is None else version
        request = read_request(key, version, write_message(request_class(key, version), contents))
        answer = self._handlers[key](request, RequestContext(key, version, "test", "127.0.0.1", listener))
        if isinstance(answer, Awaitable):
            answer = await answer
        response = response_class(key, version)
        return read_message(response, response, write_response(key, version, answer), 0)

    # The rest of the cluster

    async def register(self, *brokers: BrokerRegistration) -> None:
        for one in brokers:
            name, value = broker_name(one.node_id), encode(one)
            found = await self.store.get(name)
            version = await (
                self.store.create(name, value) if found is None else self.store.cas(name, value, ANY_VERSION)
            )
            self.view.note(name, value, version)
        await self.sees(brokers)

    async def sees(self, brokers: Sequence[BrokerRegistration]) -> None:
        assert await self.view.until(lambda: all(self.view.brokers.get(one.node_id) == one for one in brokers), SOON)

    async def dies(self, node_id: int) -> None:
        await self.store.delete(broker_name(node_id))
        assert await self.view.until(lambda: node_id not in self.view.brokers, SOON)

    async def put(self, topic: str, number: int, state: PartitionState) -> None:
        """Write a partition's state, as the controller would."""
        topic_id = self.topics.by_name[topic].topic_id
        name, value = partition_name(topic_id, number), encode(state)
        found = await self.store.get(name)
        version = await (
            self.store.create(name, value) if found is None else self.store.cas(name, value, found.version)
        )
        self.view.note(name, value, version)

    async def decide(self) -> None:
        """Be the controller, once, and the leaders that open their logs for new partitions."""
        for decision in list(decide(self.view.view())):
            name = partition_name(decision.topic_id, decision.number)
            if decision.state is None:
                await self.store.delete(name, ANY_VERSION)
                continue
            value = encode(replace(decision.state, is_new=False))
            version = MISSING if decision.version is None else decision.version
            written = await (
                self.store.create(name, value) if version == MISSING else self.store.cas(name, value, version)
            )
            self.view.note(name, value, written)

    def state(self, topic: str, number: int = 0) -> PartitionState:
        return self.view.partitions[self.topics.by_name[topic].topic_id, number].state

    # Often asked

    async def create(self, *names: str, partitions: int = 1, factor: int = 3, **more: Any) -> None:
        """Topics that have leaders."""
        topics = [{"name": name, "num_partitions": partitions, "replication_factor": factor, **more} for name in names]
        answer = await self.ask(ApiKey.CREATE_TOPICS, topics=topics, timeout=0)
        assert [topic.error_code for topic in answer.topics] == [0] * len(names), answer
        await self.decide()

    async def metadata(self, topic: str, version: int = 13, *, listener: str = LISTENER) -> Message:
        fields = {"allow_auto_topic_creation": False} if version >= 4 else {}
        answer = await self.ask(ApiKey.METADATA, version, listener=listener, topics=[{"name": topic}], **fields)
        found: Message = answer.topics[0]
        return found


Work = Callable[..., Coroutine[Any, Any, None]]


def run(
    path: Path,
    work: Work,
    *,
    desks: int = 1,
    brokers: Sequence[BrokerRegistration] = (),
    config: Mapping[str, str] | None = None,
    kind: type[SqliteStore] = SqliteStore,
) -> None:
    """``work`` with as many desks, each with a log directory and a store of its own on the same file; ``brokers``, or
    1, 2 and 3, are there."""

    async def main() -> None:
        there = brokers or [broker(number) for number in (1, 2, 3)]
        async with AsyncExitStack() as stack:
            opened = []
            for number in range(1, desks + 1):
                store = await kind.open(path / "store.db")
                stack.push_async_callback(store.close)
                directory = stack.enter_context(LogDir.open(path / str(number), hw_follows_end=False))
                desk = await Desk(store, number, [directory], config or {}).start()
                stack.push_async_callback(desk.stop)
                opened.append(desk)
            await opened[0].register(*there)
            for desk in opened:
                await desk.sees(there)
            await work(*opened)

    asyncio.run(main())
