"""A machine of a simulated cluster, with its broker, and what becomes of its disks."""

from __future__ import annotations

import errno
import posixpath
from collections.abc import Iterator
from random import Random
from typing import TYPE_CHECKING, Final

from seglog.cluster.formats import FormatError
from seglog.cluster.model import Member
from seglog.cluster.store import StoreError
from seglog.core.errors import (
    InvalidLogDirError,
    LogDirFullError,
    LogDirOfflineError,
    SeglogError,
)
from seglog.replication.replica import Replica
from seglog.storage.directory.cluster_mark import ClusterMark, read_marks
from tests.kit.crash_fs import Call
from tests.kit.virtual_broker import PORT, Machine
from tests.kit.virtual_loop import VirtualLoop
from tests.kit.virtual_store import VirtualSession
from tests.simulation.principals import secured

if TYPE_CHECKING:
    from tests.simulation.cluster.cluster import Cluster
    from tests.simulation.cluster.scenario import Scenario

Contents = dict[str, bytes | None]
PATHS: Final = ("/a", "/b")
SESSION_MS: Final = 3_000
LAG_MS: Final = 2_000
RESTART_SECONDS: Final = 1.0
_SETTINGS: Final = {
    "log.dirs": ",".join(PATHS),
    "auto.create.topics.enable": "false",
    "broker.session.timeout.ms": str(SESSION_MS),
    "replica.lag.time.max.ms": str(LAG_MS),
    "replica.socket.timeout.ms": "1500",
    "replica.fetch.backoff.ms": "200",
    "leader.imbalance.check.interval.seconds": "2",
    "offsets.topic.num.partitions": "1",
    "log.cleaner.dedupe.buffer.size": str(2 << 20),
    "log.segment.bytes": str(1 << 20),
    "log.roll.ms": "2500",
    "log.index.interval.bytes": "256",
    "log.index.size.max.bytes": "4096",
    "log.retention.ms": "-1",
    "log.retention.check.interval.ms": "2000",
    "log.initial.task.delay.ms": "500",
    "log.flush.offset.checkpoint.interval.ms": "4000",
    "log.flush.start.offset.checkpoint.interval.ms": "4000",
    "replica.high.watermark.checkpoint.interval.ms": "2000",
    "log.segment.delete.delay.ms": "1000",
    "log.message.timestamp.before.max.ms": str(2**62),
    "log.message.timestamp.after.max.ms": str(2**62),
}
_COORDINATORS: Final = {
    "transaction.state.log.num.partitions": "2",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    "group.initial.rebalance.delay.ms": "100",
    "group.min.session.timeout.ms": "1000",
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.session.timeout.ms": "1500",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "200",
    "group.consumer.assignment.interval.ms": "300",
}
_OPERATIONS: Final = ("pwrite", "truncate", "fsync", "write", "rename", "fsync_dir", "unlink", "mkdir")


class Host(Machine):
    """Broker ``node_id``. Its disks outlive its processes; when a process has ended by itself, another one is started.

    ``has_lost`` something since the broker last said what it has kept; it said so with ``kept_since``.
    """

    def __init__(self, cluster: Cluster, node_id: int) -> None:
        self.cluster = cluster
        self.node_id = node_id
        super().__init__(
            cluster.world,
            cluster.network,
            f"n{node_id}",
            settings=_settings(cluster.scenario, node_id, cluster.world.rng) | _security(cluster, node_id),
            thread_seconds=cluster.faults.thread_delay,
            server=cluster.server,
        )
        self.kept_since: int | None = None
        self.has_lost = False
        self.failed: set[str] = set()
        """Directories that take no write."""
        self.emptied_at = -1
        """The epoch of the latest broker when its contents were last taken away, or replaced by older ones."""
        self.woken_at = -1e9
        """When it was last paused until."""
        self.is_in_repair = False
        """The host is being repaired: no other fault strikes it."""
        self._size: int | None = None
        self._syncs = 0
        self.restart_seconds = RESTART_SECONDS
        """Until another process is started after one that ends by itself."""

    def on_step(self) -> None:
        self.cluster.rules.look(self)

    # What the broker is

    @property
    def me(self) -> Member | None:
        return self.node.membership.me if self.answers and self.node is not None else None

    @property
    def replicas(self) -> dict[int, Replica]:
        """Of the topic that clients use, by partition."""
        return dict(self.followed()) if self.answers else {}

    def followed(self) -> Iterator[tuple[int, Replica]]:
        assert self.node is not None
        topic_id = self.cluster.topic_id
        for (one, number), replica in self.node.replicas.by_key.items():
            if one == topic_id:
                yield number, replica

    @property
    def is_in_doubt(self) -> bool:
        return self.me is not None and self.node is not None and not self.node.membership.is_certain

    @property
    def registered_epoch(self) -> int:
        """That of its last registration; 0 before the first."""
        return max((one.epoch for one in self.cluster.history.registered if one.node_id == self.node_id), default=0)

    @property
    def seconds_unconfirmed(self) -> float:
        """How long ago the broker asked what the store has answered last about its session."""
        session = None if self.node is None else self.node.membership.session
        return 0.0 if not isinstance(session, VirtualSession) else self.world.now - session.renewed_at

    @property
    def is_paused(self) -> bool:
        return self.loop is not None and self.loop.is_paused

    @property
    def marks(self) -> dict[str, ClusterMark]:
        return dict(read_marks(self.disk, PATHS))

    # Its life

    def begin(self) -> None:
        """Start a process, if there is none. Empty disks are where failed ones were."""
        if self.is_running or self.is_in_repair:
            return
        self._replace_failed()
        self.start()

    def start(self) -> None:
        if self.cluster.permissions is not None:
            self.cluster.permissions.begins(self.host)
        super().start()

    def begin_later(self, seconds: float) -> None:
        self.world.after(seconds, self.begin)

    def crash(self, *, power: bool) -> None:
        """Killed; with ``power`` unflushed data is lost too, even if the process had been killed before."""
        if power:
            self.lose_power()
        elif self.is_running:
            self.kill()

    def lose_power(self) -> None:
        self.has_lost = self.has_lost or not self.was_closed
        super().lose_power()

    @property
    def was_closed(self) -> bool:
        return self.has_closed and not self.failed

    def _has_ended(self, loop: VirtualLoop) -> None:
        super()._has_ended(loop)
        self.begin_later(self.restart_seconds)
        self.restart_seconds = RESTART_SECONDS

    def pause(self, seconds: float) -> None:
        if self.loop is not None:
            self.woken_at = max(self.woken_at, self.world.now + seconds)
            self.loop.pause(seconds)

    def resume(self) -> None:
        if self.loop is not None and self.loop.is_paused:
            self.woken_at = self.world.now
            self.loop.resume()

    def _failed(self, error: SeglogError | OSError) -> None:
        is_known = isinstance(error, StoreError | FormatError | LogDirFullError | LogDirOfflineError)
        assert is_known or (self.is_in_repair and isinstance(error, InvalidLogDirError)), repr(error)
        super()._failed(error)

    def on_up(self) -> None:
        assert self.node is not None
        directories = self.node.directories
        refused = {key: why for directory in directories.dirs for key, why in directory.refused.items()}
        assert not refused, f"B-21: damaged after a crash: {refused}"
        assert not directories.offline or self.failed, f"P19: a disk that has not failed is not used: {self.host}"

    def _look(self) -> None:
        super()._look()
        if self.cluster.faults.disk_slow and self.loop is not None:
            calls = self.disk.calls
            syncs = calls["fsync"] + calls["fsync_dir"]
            if syncs > self._syncs and (seconds := self.cluster.faults.fsync_delay()):
                self.pause(seconds)
            self._syncs = syncs

    def on_change(self, call: Call) -> None:
        if call.operation == "unlink" and "-delete/" in call.path and call.path.endswith(".log"):
            self.cluster.history.removes(self, call.path)

    # Its disks

    def fill(self, room: int) -> None:
        """From now on the disks accept this many more bytes, until they are enlarged."""
        self.disk.capacity = self.disk.used + room

    def enlarge(self) -> None:
        self.disk.capacity = self._size

    def limit(self, size: int | None) -> None:
        """Have this size from now on. Room is kept only on a disk with a size (`seglog.storage.log.dir_health`)."""
        self.disk.capacity = self._size = size

    @property
    def is_filled(self) -> bool:
        return self.disk.capacity != self._size

    def fail(self, path: str) -> None:
        """From now on it takes no write; so what it was to keep is as good as lost."""
        self.failed.add(path)
        self.has_lost = True
        self.disk.fail_at(_OPERATIONS, 1, error=errno.EIO, path=f"{path}/", times=1 << 40)

    def _replace_failed(self) -> None:
        self.disk.heal()
        for path in sorted(self.failed):
            self._remove(path)
        self.failed.clear()

    def files(self) -> dict[str, bytes]:
        """All that is in its log directories."""
        return {
            path: data for path, data in self.disk.files().items() if path.startswith(tuple(f"{one}/" for one in PATHS))
        }

    def copy(self) -> Contents:
        """All that is in the log directories: files with their bytes, directories with None."""
        found: Contents = {}
        waiting = [path for path in PATHS if self.disk.exists(path)]
        while waiting:
            path = waiting.pop()
            is_dir = self.disk.stat(path).is_dir
            found[path] = None if is_dir else self.disk.read(path)
            waiting += [posixpath.join(path, name) for name in self.disk.listdir(path)] if is_dir else []
        return found

    def put(self, contents: Contents, at: int) -> None:
        """Take away all that is there, and put this in its place; ``at`` is the epoch of the latest broker."""
        assert not self.is_running
        self.disk.heal()
        self.enlarge()
        self.failed.clear()
        self.emptied_at, self.has_lost = at, True
        for path in PATHS:
            self._remove(path)
        for path, data in sorted(contents.items()):
            if data is None:
                if not self.disk.exists(path):
                    self.disk.mkdir(path)
            else:
                self.disk.write(path, data)
        for path, data in contents.items():
            if data is None:
                self.disk.fsync_dir(path)

    def _remove(self, path: str) -> None:
        if not self.disk.exists(path):
            return
        for name in self.disk.listdir(path):
            one = posixpath.join(path, name)
            if self.disk.stat(one).is_dir:
                self._remove(one)
                self.disk.rmdir(one)
            else:
                self.disk.unlink(one)
        self.disk.fsync_dir(path)


def _security(cluster: Cluster, node_id: int) -> dict[str, str]:
    if not cluster.scenario.principals:
        return {}
    return secured(f"n{node_id}", PORT, reauth_ms=cluster.faults.of_principals.choice(("0", "2000")))


def _settings(scenario: Scenario, node_id: int, rng: Random) -> dict[str, str]:
    found = {
        **_SETTINGS,
        "node.id": str(node_id),
        "offsets.topic.replication.factor": str(min(3, scenario.nodes)),
        "replica.fetch.wait.max.ms": rng.choice(("60", "200", "500")),
        "replica.fetch.max.bytes": rng.choice(("1", "300", "4000")),
    }
    if scenario.coordinators:
        found |= _COORDINATORS
        found["transaction.state.log.replication.factor"] = str(min(3, scenario.nodes))
        found["transaction.state.log.min.isr"] = found["min.insync.replicas"] = str(min(2, scenario.nodes))
    if scenario.flushed:
        found["log.flush.interval.messages"] = "1"
    if scenario.retention:
        found["log.retention.bytes"] = "2500"
    if scenario.flush_ms is not None:
        found["log.flush.interval.ms"] = str(scenario.flush_ms)
    return found
