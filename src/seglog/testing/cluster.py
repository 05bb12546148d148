"""Several brokers of one cluster for tests, each of which can be killed, paused and restarted.

    with Cluster({"orders": 3}) as cluster:
        leader = cluster.leader("orders", 0)
        cluster[leader].kill()

They share a metadata store in a file, elect controllers and leaders, and replicate as any cluster of seglog does.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Final, Self

from seglog.core.clock import SystemClock
from seglog.testing.broker import Broker
from seglog.testing.injected_fault import BrokerError

if TYPE_CHECKING:
    from seglog.client.bootstrap import HostPort
    from seglog.cluster.health import PartitionStatus

_MOST_REPLICAS: Final = 3
_PATIENCE: Final = 60.0
_ASK_AGAIN_SECONDS: Final = 0.02


class Cluster:
    """``brokers`` are numbered from 1; each is a `Broker`, a process or, with ``process=False``, a thread, which cannot
    be killed. ``topics`` are names, or names with their numbers of partitions; they have up to three replicas.
    ``settings`` go over `TEST_SETTINGS` and those of a quick cluster. The clock of a broker in a cluster does not move.
    """

    def __init__(
        self,
        topics: Mapping[str, int] | Iterable[str] = (),
        *,
        brokers: int = 3,
        settings: Mapping[str, object] = MappingProxyType({}),
        process: bool = True,
    ) -> None:
        if brokers < 1:
            raise BrokerError(f"a cluster of {brokers} brokers")
        self.topics = dict(topics) if isinstance(topics, Mapping) else dict.fromkeys(topics, 1)
        self.replicas = min(brokers, _MOST_REPLICAS)
        self._settings = {
            "auto.create.topics.enable": "false",
            "broker.session.timeout.ms": "3000",
            "default.replication.factor": self.replicas,
            "min.insync.replicas": max(1, self.replicas - 1),
            "offsets.topic.replication.factor": self.replicas,
            "replica.lag.time.max.ms": "2000",
            "transaction.state.log.min.isr": max(1, self.replicas - 1),
            "transaction.state.log.num.partitions": "1",
            "transaction.state.log.replication.factor": self.replicas,
            **settings,
        }
        self._count = brokers
        self._is_process = process
        self._brokers: dict[int, Broker] = {}
        self._remove: weakref.finalize[..., Cluster] | None = None

    def __getitem__(self, node_id: int) -> Broker:
        """KeyError if there is no such broker."""
        return self._brokers[node_id]

    def __iter__(self) -> Iterator[Broker]:
        return iter(self._brokers.values())

    def __len__(self) -> int:
        return self._count

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def bootstrap(self) -> str:
        """The addresses of all brokers, for ``bootstrap.servers``."""
        return ",".join(broker.bootstrap for broker in self)

    def start(self) -> None:
        """Start all brokers that do not run. The first time, return when the topics can be used."""
        is_new = not self._brokers
        if is_new:
            path = tempfile.mkdtemp(prefix="seglog-cluster-")
            self._remove = weakref.finalize(self, shutil.rmtree, path, ignore_errors=True)
            store = {"cluster.store": f"sqlite:{os.path.join(path, 'metadata.sqlite')}"}
            for node_id in range(1, self._count + 1):
                settings = {**self._settings, **store, "node.id": node_id}
                self._brokers[node_id] = Broker(settings=settings, process=self._is_process)
        try:
            with ThreadPoolExecutor(self._count) as pool:
                for started in [pool.submit(broker.start) for broker in self]:
                    started.result()
            if is_new:
                self._wait(lambda: self._racks() == set(self._brokers), "all brokers to see each other")
                for name, partitions in self.topics.items():
                    self.create_topic(name, partitions)
        except BaseException:
            self.close()
            raise

    def heal(self) -> None:
        """Let all brokers run, without faults, and wait until the replicas of ``topics`` are in sync."""
        for broker in self:
            broker.resume()
        self.start()
        for broker in self:
            broker.faults.clear()
        for name in self.topics:
            self.wait_in_sync(name)

    def close(self) -> None:
        """End all brokers, and remove their data."""
        for broker in self:
            broker.close()
        self._brokers.clear()
        if self._remove is not None:
            self._remove()
            self._remove = None

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        config: Mapping[str, object] | None = None,
        *,
        replication: int | None = None,
    ) -> None:
        """Create a topic, and wait until all of its replicas are in sync. Errors of `LogDir.create_topic`."""
        self._running().create_replicated(name, partitions, config, replication or self.replicas)
        self.wait_in_sync(name)

    # Leaders

    def leader(self, topic: str, partition: int = 0) -> int | None:
        """The number of the broker that leads the partition; None if none does. `BrokerError` if there is no such."""
        return self._partition(topic, partition).leader

    def in_sync(self, topic: str, partition: int = 0) -> frozenset[int]:
        """The numbers of the brokers whose replicas are in sync."""
        return frozenset(self._partition(topic, partition).isr)

    def move_leader(self, topic: str, partition: int, to: int) -> None:
        """Let the broker ``to``, which has a replica, lead the partition, and wait for that. `BrokerError` if it has
        none or does not get in sync."""
        from seglog.client.cluster import ClusterAdmin
        from seglog.cluster.reassignment_plan import ReplicaMove

        before = self._partition(topic, partition).replicas
        if to not in before:
            raise BrokerError(f"broker {to} has no replica of {topic}-{partition}; {before} have one")
        after = (to, *(node for node in before if node != to))
        place = (topic, partition)
        with ClusterAdmin(self._addresses(), _PATIENCE) as admin:
            refused = admin.reassign([ReplicaMove(place, before, after)]) if after != before else {}
        if refused:
            raise BrokerError(f"{topic}-{partition} cannot move: {refused[place]}")
        self._wait(lambda: self._partition(topic, partition).replicas == after, f"{topic}-{partition} to move")
        self._wait(lambda: to in self.in_sync(topic, partition), f"broker {to} to be in sync")

        def is_moved() -> bool:
            if self.leader(topic, partition) != to:
                with ClusterAdmin(self._addresses(), _PATIENCE) as admin:
                    admin.elect_preferred([place])
            return self.leader(topic, partition) == to

        self._wait(is_moved, f"broker {to} to lead {topic}-{partition}")

    def wait_leader(self, topic: str, partition: int = 0, *, other_than: int | None = None) -> int:
        """Wait for a leader, after a kill for another one, and return its number."""
        self._wait(lambda: self.leader(topic, partition) not in (None, other_than), f"a leader of {topic}-{partition}")
        found = self.leader(topic, partition)
        assert found is not None
        return found

    def wait_in_sync(self, topic: str) -> None:
        """Wait until all replicas of all partitions are in sync and each has a leader."""

        def is_in_sync() -> bool:
            found = self._look(topic)
            return bool(found) and all(one.leader is not None and set(one.isr) == set(one.replicas) for one in found)

        self._wait(is_in_sync, f"all replicas of {topic} to be in sync")

    def _running(self) -> Broker:
        for broker in self:
            if broker.is_running and not broker.is_paused:
                return broker
        raise BrokerError("no broker of the cluster runs")

    def _addresses(self) -> list[HostPort]:
        from seglog.client.bootstrap import parse_bootstrap

        return parse_bootstrap(self._running().bootstrap)

    def _look(self, topic: str) -> list[PartitionStatus]:
        from seglog.client.cluster import ClusterAdmin

        with ClusterAdmin(self._addresses(), _PATIENCE) as admin:
            return list(admin.look([topic], closely=False).partitions)

    def _racks(self) -> set[int]:
        from seglog.client.bootstrap import parse_bootstrap
        from seglog.client.cluster import ClusterAdmin

        seen: list[set[int]] = []
        for broker in self:
            with ClusterAdmin(parse_bootstrap(broker.bootstrap), _PATIENCE) as admin:
                seen.append(set(admin.racks()))
        return set.intersection(*seen)

    def _partition(self, topic: str, partition: int) -> PartitionStatus:
        for one in self._look(topic):
            if one.number == partition:
                return one
        raise BrokerError(f"there is no {topic}-{partition}")

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        """Ask until it is true: other processes do not notify."""
        clock, pause = SystemClock(), Event()
        until = clock.monotonic() + _PATIENCE
        while not condition():
            if clock.monotonic() > until:
                raise BrokerError(f"waited {_PATIENCE:.0f} s for {what}")
            pause.wait(_ASK_AGAIN_SECONDS)
