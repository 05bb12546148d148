"""Clients of coordinators in a simulated cluster, and operators who move the coordinators' partitions."""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING, Any, Final

from seglog.protocol.apis import ApiKey
from seglog.protocol.message_reader import Message
from tests.simulation.cluster.clients import Client, Operators
from tests.simulation.wire import Channel, LostError, UnsentError

if TYPE_CHECKING:
    from tests.simulation.cluster.cluster import Cluster

_PATIENCE: Final = (0.3, 1.0, 4.0)


class CoordinatorClient(Client):
    """One process. ``has_ended``: it has ended what it did since it is not on any more."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        super().__init__(cluster, "client")
        self.name = name
        self.rng = Random(f"{cluster.seed} {name}")
        self.has_ended = False
        self.doing = "nothing"
        self._patience = self.rng.choice(_PATIENCE)
        self._coordinators: dict[tuple[int, str], int] = {}
        self.loop.create_task(self._run())

    async def _run(self) -> None:
        while self.is_on:
            try:
                await self.act()
            except LostError:
                await self.pause()
        self.has_ended = True

    async def act(self) -> None:
        """One round of what it does."""
        raise NotImplementedError

    async def pause(self) -> None:
        await asyncio.sleep(self.rng.choice((0.01, 0.05, 0.2)))

    def give_up(self, channel: Channel) -> None:
        """Drop a channel. Half of the time it stays open: messages on it arrive, however late."""
        if self.rng.random() < 0.5:
            channel.close()

    async def ask_coordinator(
        self, kind: int, key: str, api: ApiKey, /, *, version: int | None = None, more: float = 0.0, **contents: Any
    ) -> Message:
        """Of a group (0) or a transactional id (1). Raises `LostError`."""
        node = await self._find(kind, key)
        try:
            answer = await self.ask(node, api, version=version, patience=self._patience + more, **contents)
        except LostError:
            self._coordinators.pop((kind, key), None)
            raise
        if getattr(answer, "error_code", 0) or self.rng.random() < 0.02:
            self._coordinators.pop((kind, key), None)
        return answer

    async def _find(self, kind: int, key: str) -> int:
        """Raises `UnsentError`."""
        node = self._coordinators.get((kind, key))
        if node is None:
            try:
                found = await self.ask(
                    self.any_host().node_id,
                    ApiKey.FIND_COORDINATOR,
                    patience=self._patience + 2,
                    key_type=kind,
                    coordinator_keys=[key],
                )
            except LostError as error:
                raise UnsentError from error
            one = found.coordinators[0]
            if one.error_code:
                raise UnsentError
            node = self._coordinators[kind, key] = int(one.node_id)
        return node


class CoordinatorOperators(Operators):
    """Coordinators move, too: those of ``moved``, partitions of internal topics."""

    def __init__(self, cluster: Cluster, moved: tuple[tuple[str, int], ...]) -> None:
        super().__init__(cluster)
        self._moved = moved
        every = cluster.faults.coordinators_every
        if every:
            self.loop.call_later(1.0 + self.rng.random() * every / 1000, self.every, every / 1000, self._move)

    async def _move(self) -> None:
        """Replicas in another order, or elsewhere; then the first one is to lead."""
        topic, number = self.rng.choice(self._moved)
        host, nodes = self.any_host().node_id, sorted(self.cluster.hosts)
        if self.rng.random() < 0.6:
            replicas = self.rng.sample(nodes, min(3, len(nodes)))
            topics = [{"name": topic, "partitions": [{"partition_index": number, "replicas": replicas}]}]
            self.world.note("move", topic, number, replicas)
            await self.ask(host, ApiKey.ALTER_PARTITION_REASSIGNMENTS, timeout=2_000, topics=topics)
        wanted = [{"topic": topic, "partitions": [number]}]
        await self.ask(host, ApiKey.ELECT_LEADERS, election_type=0, topic_partitions=wanted, timeout=2_000)
        self.done["move coordinator"] += 1
