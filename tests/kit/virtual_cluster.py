"""Brokers of a cluster, as they ship, on virtual time. The test is the controller, and sees and answers requests.

Nothing waits for a real clock, disk or socket, and a seed gives the same run again. Between two calls of `run`, `until`
or `call` nothing happens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final, Self, TypeVar
from uuid import UUID

from seglog.broker.app import Node
from seglog.cluster.cluster_view import CONTROLLER, ControllerRegistration, encode_controller
from seglog.cluster.model import (
    BROKERS,
    NO_LEADER,
    BrokerRegistration,
    Member,
    PartitionState,
    TopicState,
    broker_name,
    decode_broker,
    decode_partition,
    encode,
    partition_name,
    topic_name,
)
from seglog.cluster.store import ANY_VERSION, MISSING, Change
from seglog.core.addresses import Address
from seglog.net.connection import ClientConnection, FrameHandler, Reply
from seglog.net.connection_quotas import ConnectionQuotas
from seglog.net.listener import Listener, ListenerSecurity
from seglog.net.peer_connection import PeerConnection
from seglog.protocol.apis import ApiKey
from seglog.protocol.framing import RequestHeader, read_header
from seglog.protocol.messages import Message, read_request
from seglog.replication.replica import Replica
from tests.kit.virtual_broker import PORT, Machine
from tests.kit.virtual_loop import VirtualLoop, World
from tests.kit.virtual_net import End, Network
from tests.kit.virtual_store import Fate, VirtualServer

T = TypeVar("T")
Answers = Callable[[RequestHeader], Reply | Awaitable[Reply]]
SESSION_MS: Final = 60_000
LAG_MS: Final = 10_000
CLIENT: Final = "test"
"""The client id of `VirtualCluster.ask`."""
_PATIENCE: Final = 60.0
_SETTINGS: Final = {
    "auto.create.topics.enable": "false",
    "broker.session.timeout.ms": str(SESSION_MS),
    "controlled.shutdown.enable": "false",  # it would wait for a controller
    "log.index.size.max.bytes": "4096",
    "log.retention.ms": "-1",
    "message.max.bytes": str(8 << 20),
    "replica.fetch.backoff.ms": "40",
    "replica.fetch.wait.max.ms": "30",
    "replica.lag.time.max.ms": str(LAG_MS),
}


class VirtualBroker(Machine):
    """Broker ``node_id``. ``requests`` are the Fetch requests that other brokers sent it. ``instead`` may answer a
    request in its place: None lets it answer itself."""

    _handle: FrameHandler

    def __init__(self, cluster: VirtualCluster, node_id: int, settings: Mapping[str, str]) -> None:
        self.node_id = node_id
        self.requests: list[Message] = []
        self._server = cluster.server
        self._connections: dict[str | None, ClientConnection] = {}
        self.instead: Answers = lambda _: None
        super().__init__(
            cluster.world,
            cluster.network,
            f"n{node_id}",
            settings={**_SETTINGS, **settings, "node.id": str(node_id)},
            thread_seconds=lambda: 0.0,
            server=cluster.server,
        )

    @property
    def running(self) -> Node:
        assert self.node is not None
        return self.node

    @property
    def process(self) -> VirtualLoop:
        assert self.loop is not None
        return self.loop

    @property
    def me(self) -> Member | None:
        return self.running.membership.me

    def replica(self, topic_id: UUID, number: int = 0) -> Replica:
        return self.running.replicas.by_key[topic_id, number]

    def has(self, topic_id: UUID, number: int = 0) -> bool:
        return (topic_id, number) in self.running.replicas.by_key

    def note(self, topic_id: UUID, number: int = 0) -> None:
        """See the state of a partition now, as the broker that wrote it does."""
        name = partition_name(topic_id, number)
        self.running.view.note(name, *self._server.values()[name])

    def call(self, act: Callable[[], T]) -> T:
        """Call ``act`` in the broker's process, and return its result or raise its error."""

        async def run() -> T:
            return act()

        task = self.process.create_task(run())
        assert self.world.run(task.done, _PATIENCE), f"{self.host} stands still"
        return task.result()

    def _make_listener(
        self,
        address: Address,
        handler: FrameHandler,
        shared: ConnectionQuotas,
        /,
        *,
        security: ListenerSecurity | None = None,
    ) -> Listener:
        self._handle = handler
        return super()._make_listener(address, self._answer, shared, security=security)

    def _answer(self, connection: ClientConnection, frame: memoryview, /) -> Reply | Awaitable[Reply]:
        header = read_header(frame)
        self._connections[header.client_id] = connection
        if header.key == ApiKey.FETCH and header.client_id != CLIENT:
            self.requests.append(read_request(header.key, header.version, frame, header.body))
        instead = self.instead(header)
        return self._handle(connection, frame) if instead is None else instead

    def handle(self, frame: bytes, after: Callable[[], object] = lambda: None) -> Reply | Awaitable[Reply]:
        """The answer to a frame that comes now, from `CLIENT`, which has asked something before; in the same turn of
        the loop ``after`` happens first."""

        def both() -> Reply | Awaitable[Reply]:
            after()
            return self._handle(self._connections[CLIENT], memoryview(frame))

        return self.call(both)


class VirtualCluster:
    """``with VirtualCluster(2) as cluster``: two brokers that are registered and know each other."""

    def __init__(self, nodes: int, settings: Mapping[str, str] | None = None, *, seed: int = 1) -> None:
        self.world = World(seed)
        self.network = Network(self.world)
        self.latest = 0.001
        """Brokers learn of a change in the store after at most this many seconds."""
        self.slow: dict[str, float] = {}
        """How many seconds calls of these hosts take to the store, and back."""
        self.server = VirtualServer(self.world, self._fate, lambda: self.world.between(0.0, self.latest))
        self.loop = VirtualLoop(self.world, "test")
        """For clients."""
        self.server.commit([Change(CONTROLLER, encode_controller(ControllerRegistration(0, 0, 1)), MISSING)])
        self.brokers = {number: VirtualBroker(self, number, settings or {}) for number in range(1, nodes + 1)}

    def _fate(self, host: str) -> Fate:
        return Fate(self.slow.get(host, 0.001))

    def __enter__(self) -> Self:
        for broker in self.brokers.values():
            broker.start()
        self.until(lambda: all(one.is_up for one in self.brokers.values()))
        self._until_seen()
        return self

    def __exit__(self, *_: object) -> None:
        self.loop.kill()
        for broker in self.brokers.values():
            if broker.loop is not None:
                broker.loop.kill()

    def __getitem__(self, node_id: int) -> VirtualBroker:
        return self.brokers[node_id]

    # Time

    @property
    def now_ms(self) -> int:
        return int(self.world.now * 1000)

    def run(self, seconds: float) -> None:
        self.world.run(lambda: False, seconds)

    def until(self, is_so: Callable[[], bool], seconds: float = _PATIENCE) -> None:
        """Run until it is so. Raises the error of a broker that has ended."""
        is_over = self.world.run(lambda: is_so() or any(one.failures for one in self.brokers.values()), seconds)
        for broker in self.brokers.values():
            if broker.failures:
                raise broker.failures[0]
        assert is_over, f"not in {seconds} s: {list(self.world.last)[-20:]}"

    def begin(self, broker: VirtualBroker, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start it in the process of a broker, and let it run for a moment."""
        task = broker.process.create_task(work)
        self.run(0.1)
        return task

    async def at(self, broker: VirtualBroker, work: Coroutine[Any, Any, T]) -> T:
        """For a client's coroutine: do the work in the process of a broker."""
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def pass_on(task: asyncio.Task[T]) -> None:
            error = task.exception()
            if error is None:
                done.set_result(task.result())
            else:
                done.set_exception(error)

        broker.process.create_task(work).add_done_callback(pass_on)
        return await done

    def wait(self, task: asyncio.Task[T], seconds: float = _PATIENCE) -> T:
        """Run the world until the task is done, and return its result or raise its error."""
        self.until(task.done, seconds)
        return task.result()

    def ask(self, broker: VirtualBroker, key: int, version: int, body: bytes, *, proof: str = "") -> memoryview:
        """The body of the broker's answer to a client, or to a broker with this ``proof``."""

        async def asked() -> memoryview:
            link = await PeerConnection.open(
                broker.host,
                PORT,
                client_id=CLIENT,
                timeout=_PATIENCE,
                largest=1 << 24,
                proof=proof,
                dial=self.network.dial(self.loop),
            )
            return await link.ask(key, version, body, timeout=_PATIENCE)

        return self.wait(self.loop.create_task(asked()))

    # What the test does as the controller

    @property
    def members(self) -> tuple[Member, ...]:
        """Brokers that are registered."""
        values = self.server.values().items()
        found = [decode_broker(name, value) for name, (value, _) in values if name.startswith(f"{BROKERS}/")]
        return tuple(sorted(Member(one.node_id, one.epoch) for one in found))

    def register(self, member: Member) -> None:
        """A broker that the test plays."""
        value = encode(BrokerRegistration(node_id=member.node_id, epoch=member.epoch, kept_since=member.epoch))
        self.server.commit([Change(broker_name(member.node_id), value, MISSING)])
        self._until_seen()

    def unregister(self, member: Member) -> None:
        self.server.commit([Change(broker_name(member.node_id), None, ANY_VERSION)])
        self._until_seen()

    def _until_seen(self) -> None:
        nodes = {member.node_id for member in self.members}
        self.until(lambda: all(one.running.view.brokers.keys() == nodes for one in self.brokers.values()))

    def create(
        self,
        name: str,
        partitions: int = 1,
        *,
        leader: int = NO_LEADER,
        epoch: int = 0,
        config: Mapping[str, str] | None = None,
        min_insync: int = 1,
        topic_id: UUID | None = None,
    ) -> UUID:
        """Create a topic with replicas on all brokers, which are all in sync, and wait until the replicas are there."""
        topic_id = topic_id or UUID(int=int.from_bytes(name.encode(), "big"))
        members = self.members
        nodes = tuple(member.node_id for member in members)
        topic = TopicState(name=name, topic_id=topic_id, assignment=(nodes,) * partitions, config=dict(config or {}))
        state = PartitionState(replicas=nodes, leader=leader, leader_epoch=epoch, isr=members, min_insync=min_insync)
        self.server.commit(
            [
                Change(topic_name(name), encode(topic), MISSING),
                *(Change(partition_name(topic_id, number), encode(state), MISSING) for number in range(partitions)),
            ]
        )
        keys = [(topic_id, number) for number in range(partitions)]
        self.until(lambda: all(one.has(*key) for one in self.brokers.values() for key in keys))
        return topic_id

    def state(self, topic_id: UUID, number: int = 0) -> PartitionState:
        name = partition_name(topic_id, number)
        return decode_partition(name, self.server.values()[name].value)

    def put(
        self, topic_id: UUID, change: Callable[[PartitionState], PartitionState], *numbers: int, latest: float = 0.001
    ) -> None:
        """Write other states of partitions, of which brokers learn in up to ``latest`` seconds."""
        steps = []
        for number in numbers or (0,):
            state = change(self.state(topic_id, number))
            state.check()
            steps.append(Change(partition_name(topic_id, number), encode(state), ANY_VERSION))
        before, self.latest = self.latest, latest
        self.server.commit(steps)
        self.latest = before

    def elect(
        self, topic_id: UUID, leader: int, *numbers: int, epoch: int | None = None, latest: float = 0.001
    ) -> None:
        def elected(state: PartitionState) -> PartitionState:
            later = state.leader_epoch + 1 if epoch is None else epoch
            return replace(state, leader=leader, leader_epoch=later, evidence=())

        self.put(topic_id, elected, *numbers, latest=latest)

    @contextmanager
    def unaware(self, *node_ids: int) -> Iterator[None]:
        """Inside the ``with``, these brokers cannot reach the store, and learn of no change in it. No session
        expires."""
        self.server.go_away([self.brokers[node].host for node in node_ids], for_all=True)
        try:
            yield
        finally:
            self.server.come_back()

    # Links

    def isolate(self, node_ids: Collection[int]) -> None:
        """Nothing gets from and to these brokers over the network, and everything between the others."""
        hosts = {self.brokers[node].host for node in node_ids}
        for one in self.brokers.values():
            for other in self.brokers.values():
                link = self.network.link(one.host, other.host)
                if hosts.isdisjoint((one.host, other.host)):
                    link.heal()
                else:
                    link.is_down = True

    def ends(self, source: int, target: int) -> list[End]:
        """The connections that ``source`` has to ``target``, on its side."""
        names = self.brokers[source].host, self.brokers[target].host
        return [end for end in self.network.ends if end.number > 0 and (end.loop.name, end.other.loop.name) == names]
