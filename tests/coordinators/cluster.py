"""Three brokers with real replicas of one partition of ``__consumer_offsets`` and their coordinators, on virtual time:
leadership moves, brokers learn of it late, followers are cut off, sessions are in doubt.

Store, controller and links are a few lines each; the code that decides is the real one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Final
from uuid import UUID

from seglog.cluster.model import BrokerRegistration, Member, PartitionState, VersionedState
from seglog.coordinators.group_coordinator import GroupCoordinator
from seglog.coordinators.settings import OFFSETS_TOPIC, GroupSettings
from seglog.core.errors import SeglogError
from seglog.core.ground import Ground
from seglog.core.types import TopicPartition
from seglog.replication.progress import FetchTimes
from seglog.replication.replica import Replica, ReplicaListener
from seglog.storage.directory.log_dir import LogDir
from seglog.testing.memory_fs import MemoryFs
from seglog.testing.virtual_loop import VirtualClock, VirtualLoop, World
from tests.coordinators.fixed_topics import FixedTopics

TOPIC: Final = UUID(int=5)
NODES: Final = (1, 2, 3)
LAG_MS: Final = 2_000
SETTINGS: Final = GroupSettings(
    group_initial_rebalance_delay_ms=100, offsets_topic_num_partitions=1, offsets_commit_timeout_ms=1_000
)
_LARGE: Final = 1 << 20


class Node(ReplicaListener):
    """A broker: its replica, its coordinator, and its view of the partition's state. An `OffsetsTopic`."""

    def __init__(self, cluster: Cluster, node_id: int) -> None:
        world = cluster.world
        self.cluster = cluster
        self.me = Member(node_id, node_id + 10)
        self.directory = LogDir.open(
            "/logs", ground=Ground(fs=MemoryFs(), clock=VirtualClock(world), rng=Random(node_id)), hw_follows_end=False
        )
        log = self.directory.hold(OFFSETS_TOPIC, TOPIC, 0, SETTINGS.topic_config())
        self.replica = Replica(self.directory, TopicPartition(OFFSETS_TOPIC, 0), TOPIC, log, listener=self)
        self.coordinator = GroupCoordinator(
            self, SETTINGS, FixedTopics(), ground=Ground(clock=VirtualClock(world), rng=Random(node_id))
        )
        self.state: VersionedState | None = None
        self.is_cut = False
        self.is_in_doubt = False
        self.was_paused = False
        """The session is not confirmed, and the timer that notices has not run yet."""

    def appended(self, replica: Replica) -> None:
        replica.advance(self.cluster.brokers, self.cluster.now_ms)

    def committed(self, replica: Replica) -> None:
        replica.advance(self.cluster.brokers, self.cluster.now_ms)

    def check_session(self) -> None:
        if self.was_paused:
            self.replica.doubt()

    # What the coordinator sees

    def partitions(self) -> Sequence[Replica | None]:
        return [self.replica]

    def leader(self, number: int) -> int:
        assert number == 0
        return -1 if self.state is None else self.state.state.leader

    def is_awaited(self, number: int) -> bool:
        del number
        return False

    async def create(self) -> None:
        raise AssertionError("it is there")

    # Roles

    def see(self, stored: VersionedState) -> None:
        """Take over a state of the store, unless it is older."""
        if self.state is None or stored.version > self.state.version:
            self.state = stored
        self.take_up()

    def take_up(self) -> None:
        if self.state is None or self.is_in_doubt:
            return
        brokers, now = self.cluster.brokers, self.cluster.now_ms
        if self.replica.apply(self.state, self.me, brokers, now, lag_max_ms=LAG_MS):
            self.coordinator.moved()

    async def doubt(self, seconds: float) -> None:
        """The session may be lost; then it turns out not to be."""
        self.is_in_doubt = True
        self.replica.resign()
        self.coordinator.moved()
        await asyncio.sleep(seconds)
        self.is_in_doubt = False
        self.take_up()

    async def follow(self) -> None:
        """Fetch from the leader that this broker knows, without an end."""
        rng, nodes = self.cluster.world.rng, self.cluster.nodes
        session: tuple[Node | None, FetchTimes, int] = (None, FetchTimes(0), -1)
        """Whom it asked last, and when that answered."""
        while True:
            await asyncio.sleep(rng.uniform(0.001, 0.03))
            leader = nodes.get(self.replica.leader)
            if self.is_cut or leader is None or leader is self:
                continue
            if session[0] is not leader:
                session = (leader, FetchTimes(self.cluster.now_ms), -1)
            _, heard, answered_ms = session
            heard.note(self.cluster.now_ms)
            heard.note_following(answered_ms)
            asked = self.replica.ask(self.me, _LARGE)._replace(heard=heard)
            session = (leader, heard, self.cluster.now_ms)
            try:
                answer = leader.replica.serve_replica(asked, self.cluster.brokers, self.cluster.now_ms)
            except SeglogError:  # one of the two does not know yet who leads
                continue
            records = b"" if answer.records is None else answer.records.read()
            await asyncio.sleep(rng.uniform(0.001, 0.01))
            self.replica.take(asked, answer, records)


class Cluster:
    """``state`` is the one in the store. `elect` elects another leader, or the same one in a new epoch."""

    def __init__(self, seed: int, *, min_insync: int = 1) -> None:
        self.world = World(seed)
        self.loop = VirtualLoop(self.world, "brokers")
        self.brokers = {node: BrokerRegistration(node_id=node, epoch=node + 10, kept_since=node + 10) for node in NODES}
        isr = tuple(Member(node, node + 10) for node in NODES)
        first = PartitionState(replicas=NODES, leader=-1, leader_epoch=0, isr=isr, min_insync=min_insync)
        self.state = VersionedState(first, 0)
        self.nodes: dict[int, Node] = {}
        self.nodes.update({node: Node(self, node) for node in NODES})
        self._tasks = [
            self.loop.create_task(work)
            for node in self.nodes.values()
            for work in (node.coordinator.run(), node.follow())
        ]
        self._tasks.append(self.loop.create_task(self._keep_isr()))

    @property
    def now_ms(self) -> int:
        return int(self.world.now * 1000)

    @property
    def leader(self) -> Node:
        return self.nodes[self.state.state.leader]

    def write(self, state: PartitionState, *, latest: float = 0.0) -> None:
        """Write a state; each broker sees it now, or up to ``latest`` seconds later."""
        state.check()
        self.state = stored = VersionedState(state, self.state.version + 1)
        for node in self.nodes.values():
            self.loop.call_later(self.world.rng.uniform(0.0, latest), node.see, stored)

    def elect(self, leader: int, *, latest: float = 0.0) -> None:
        state = self.state.state
        assert leader in state.isr_nodes
        self.write(replace(state, leader=leader, leader_epoch=state.leader_epoch + 1), latest=latest)

    async def _keep_isr(self) -> None:
        """Write the leader's proposal if the leader has seen the state that it replaces."""
        while True:
            await asyncio.sleep(LAG_MS / 4000)
            for node in self.nodes.values():
                progress = node.replica.progress
                proposed = node.replica.propose_isr(self.brokers, self.now_ms)
                if progress is None or proposed is None:
                    continue
                if progress.version == self.state.version:
                    self.write(proposed)
                else:
                    progress.refused()

    def run(self, seconds: float) -> None:
        self.world.run(lambda: False, seconds)

    def wait(self, task: asyncio.Task[object], seconds: float = 60.0) -> None:
        """Run until the task is done. Raises its error."""
        assert self.world.run(task.done, seconds), f"still waits after {seconds} s: {task}"
        task.result()

    def close(self) -> None:
        self.loop.kill()
        for node in self.nodes.values():
            node.directory.close()
