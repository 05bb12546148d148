"""A member of a cluster without the rest of the broker: store, view, membership and controller."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final
from uuid import UUID

from seglog.cluster.cluster_view import ClusterView
from seglog.cluster.controller import Controller
from seglog.cluster.controller_decisions import decide
from seglog.cluster.features import SUPPORTED
from seglog.cluster.formats import OURS, Formats
from seglog.cluster.membership import BrokerInfo, Membership
from seglog.cluster.model import (
    NO_LEADER,
    BrokerRegistration,
    Member,
    TopicRules,
    TopicState,
    VersionRange,
    broker_name,
    decode_broker,
    encode,
    topic_name,
)
from seglog.cluster.sqlite_file import SqliteFile
from seglog.cluster.sqlite_store import SqliteSession
from seglog.cluster.store import MISSING, Change, MetadataStore
from seglog.cluster.store_address import open_store
from seglog.core.errors import LogDirFullError
from seglog.core.ground import Ground
from tests.cluster.contract import SOON, TIMEOUT_MS
from tests.cluster.faulty import Faulty

GROUND: Final = Ground()


class ClusterMember:
    """``kept`` are the epochs that its disk has stored; ``heard`` the calls about its session."""

    def __init__(
        self,
        store: Faulty,
        node: int,
        *,
        directories: Sequence[str] = (),
        timeout_ms: int = TIMEOUT_MS,
        balance_seconds: float | None = None,
        unclean: bool = False,
        formats: Formats = OURS,
        features: Mapping[str, VersionRange] = SUPPORTED,
    ) -> None:
        self.store = store
        store.users.append(self.stop)
        self.node = node
        self.kept: list[int] = []
        self.full = 0
        """How many registrations find no room on the disk for what they write down."""
        self.heard: list[str] = []
        self.rules = TopicRules(1, unclean)
        self.view = ClusterView(store, lambda _: self.rules)
        listeners = {"PLAINTEXT": f"host{node}:9092"}
        disks = tuple(directories) or (f"disk-of-{node}",)
        registration = BrokerInfo(node, listeners, f"rack{node}", disks, formats, features)
        self.membership = Membership(
            store, self.view, registration, session_timeout_ms=timeout_ms, kept_since=self._kept_since, ground=GROUND
        )
        self.controller = Controller(
            store, self.view, self.membership, ground=GROUND, imbalance=0.1, balance_seconds=balance_seconds
        )
        self._running: list[asyncio.Task[None]] = []

    def _kept_since(self, epoch: int, last: int | None) -> int:
        assert last is None or last < epoch
        if self.full > 0:
            self.full -= 1
            raise LogDirFullError("the disk is full")
        self.kept.append(epoch)
        return self.kept[0]

    def doubted(self) -> None:
        self.heard.append("doubted")
        self.controller.resign()

    def resigned(self) -> None:
        self.heard.append("resigned")
        self.controller.resign()

    def confirmed(self) -> None:
        self.heard.append("confirmed")

    async def join(self) -> None:
        await self.view.start()
        await self.membership.join(self)

    def run(self, *, controller: bool = False) -> None:
        self._running.append(asyncio.create_task(self.membership.run()))
        if controller:
            self._running.append(asyncio.create_task(self.controller.run()))

    async def ended(self) -> None:
        """Wait until it ends. Raises its error."""
        await asyncio.wait_for(asyncio.gather(*self._running), SOON)

    async def stop(self) -> None:
        """Stop like a killed process: the session lasts for its time to live."""
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        self._running.clear()
        await self.view.stop()

    async def sees(self, condition: Callable[[], bool]) -> None:
        assert await self.view.until(condition, SOON)

    async def controls(self, epoch: int | None) -> None:
        """Wait until it is the controller in this epoch; None: until it is not."""
        async with asyncio.timeout(SOON):
            while self.controller.epoch != epoch:
                await asyncio.sleep(0.005)

    async def hears(self, *what: str) -> None:
        async with asyncio.timeout(SOON):
            while tuple(self.heard) != what:
                assert len(self.heard) <= len(what), self.heard
                await asyncio.sleep(0.005)

    async def becomes(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(SOON):
            while not condition():
                await asyncio.sleep(0.005)

    def member(self) -> Member | None:
        return self.membership.me

    def is_certain(self) -> bool:
        return self.membership.is_certain

    def epoch(self) -> int | None:
        """The controller epoch, if this member is the controller."""
        return self.controller.epoch

    async def registered(self) -> BrokerRegistration | None:
        """Return its registration in the store."""
        found = await self.store.store.get(broker_name(self.node))
        return None if found is None else decode_broker(broker_name(self.node), found.value)

    def led(self) -> set[int]:
        """Return the leaders of the partitions in its view."""
        return {stored.state.leader for stored in self.view.partitions.values()}

    def is_settled(self, partitions: int, *leaders: int) -> bool:
        """Whether its view has this number of partitions, all led by ``leaders``."""
        return len(self.view.partitions) == partitions and NO_LEADER not in self.led() and self.led() <= set(leaders)

    def is_quiet(self, brokers: int) -> bool:
        """Whether its view has this number of brokers, a controller, and nothing to decide."""
        seen = self.view.view()
        return self.view.controller is not None and len(seen.brokers) == brokers and not list(decide(seen))


@asynccontextmanager
async def stores(address: str, number: int, timeout_ms: int = TIMEOUT_MS) -> AsyncIterator[list[Faulty]]:
    """Open ``number`` clients of one store."""
    async with AsyncExitStack() as stack:
        made = []
        for _ in range(number):
            store = Faulty(await open_store(address, clock=GROUND.clock, session_timeout_ms=timeout_ms))
            stack.push_async_callback(store.close)
            stack.push_async_callback(store.stop_users)
            made.append(store)
        yield made


def end_session(path: Path, store: Faulty) -> None:
    """End the last session of a client of SQLite, as if it had been silent for too long."""
    session = store.sessions[-1]
    assert isinstance(session, SqliteSession)
    file = SqliteFile(str(path))
    file.connect()
    file.disconnect([session.key])


async def make_topic(
    store: MetadataStore, name: str, assignment: Sequence[Sequence[int]], number: int = 1
) -> TopicState:
    topic = TopicState(name=name, topic_id=UUID(int=number), assignment=tuple(map(tuple, assignment)))
    await store.commit([Change(topic_name(name), encode(topic), MISSING)])
    return topic
