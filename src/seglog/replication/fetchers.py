"""The leaders that this broker follows: one `Fetcher` for each leader with followed partitions
(``ReplicaFetcherManager``)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final, Protocol
from uuid import UUID

from seglog.cluster.model import NO_LEADER, BrokerRegistration
from seglog.replication.replica import Replica

Key = tuple[UUID, int]
_log: Final = logging.getLogger("seglog.replication")
_AGAIN_SECONDS: Final = 1.0


class LeaderReader(Protocol):
    """Fetches from one leader (`seglog.replication.fetcher.Fetcher`). A broker that is alone does not import the
    fetcher."""

    def follow(self, replica: Replica, /) -> None: ...

    def unfollow(self, key: Key, /) -> None: ...

    def run(self) -> Coroutine[Any, Any, None]: ...


class Fetchers:
    """``make`` makes the fetcher for one epoch of a leader."""

    def __init__(
        self,
        brokers: Callable[[], Mapping[int, BrokerRegistration]],
        make: Callable[[BrokerRegistration], LeaderReader],
    ) -> None:
        self._brokers = brokers
        self._make = make
        self._leaders: dict[Key, int] = {}
        self._replicas: dict[Key, Replica] = {}
        self._readers: dict[int, tuple[int, LeaderReader, asyncio.Task[None]]] = {}

    def follow(self, key: Key, replica: Replica) -> None:
        """Follow the replica's current leader in its current epoch."""
        leader = replica.leader
        if self._leaders.get(key, NO_LEADER) not in (NO_LEADER, leader):
            self.unfollow(key)
        if leader == NO_LEADER:
            self.unfollow(key)
            return
        self._leaders[key] = leader
        self._replicas[key] = replica
        before = self._readers.get(leader)
        reader = self._reader(leader)
        if reader is None:
            return
        if before is not None and reader is before[1]:
            reader.follow(replica)
        else:  # it is new: the others that follow this leader, perhaps since before it was registered, need it too
            self._again(leader)

    def unfollow(self, key: Key) -> None:
        leader = self._leaders.pop(key, None)
        self._replicas.pop(key, None)
        if leader is not None and leader in self._readers:
            self._readers[leader][1].unfollow(key)

    def _reader(self, leader: int) -> LeaderReader | None:
        """Return the fetcher; None while the broker is not registered: `brokers_changed` starts it then."""
        broker = self._brokers().get(leader)
        if broker is None:
            return None
        found = self._readers.get(leader)
        if found is not None and found[0] == broker.epoch:
            return found[1]
        if found is not None:
            found[2].cancel()
        reader = self._make(broker)
        task = asyncio.get_running_loop().create_task(reader.run(), name=f"seglog-fetcher-{leader}")
        task.add_done_callback(lambda task: self._ended(leader, task))
        self._readers[leader] = (broker.epoch, reader, task)
        return reader

    def _ended(self, leader: int, task: asyncio.Task[None]) -> None:
        """An unexpected error ended the fetcher: start another one, or all would miss these replicas."""
        if task.cancelled() or (error := task.exception()) is None:
            return
        _log.critical("%s has ended: %s", task.get_name(), error, exc_info=error)
        asyncio.get_running_loop().call_later(_AGAIN_SECONDS, self._begin_anew, leader, task)

    def _begin_anew(self, leader: int, task: asyncio.Task[None]) -> None:
        if leader in self._readers and self._readers[leader][2] is task:
            del self._readers[leader]
            self._again(leader)

    def brokers_changed(self) -> None:
        """Start new fetchers for leaders with a new epoch: they have another address and no session."""
        brokers = self._brokers()
        for leader, (epoch, _, task) in list(self._readers.items()):
            broker = brokers.get(leader)
            if broker is None:
                task.cancel()
                del self._readers[leader]
            elif broker.epoch != epoch:
                self._again(leader)
        for leader in set(self._leaders.values()) - self._readers.keys():
            self._again(leader)

    def _again(self, leader: int) -> None:
        reader = self._reader(leader)
        for key, of in self._leaders.items():
            if of == leader and reader is not None:
                reader.follow(self._replicas[key])

    async def close(self) -> None:
        tasks = [task for _, _, task in self._readers.values()]
        self._readers.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
