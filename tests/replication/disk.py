"""The log directories of one broker of a simulated world, and what becomes of them."""

from __future__ import annotations

import errno
import posixpath
import random
from typing import Any, Final

from seglog.core.ground import Ground
from seglog.storage.directory.cluster_mark import check_marks, read_marks
from seglog.storage.directory.log_dirs import LogDirs
from seglog.storage.formats.life_file import BOOT_ID
from seglog.testing.clock import ManualClock
from seglog.testing.memory_fs import MemoryFs
from tests.replication.scenario import Scenario

Contents = dict[str, bytes | None]
PATHS: Final = ("/a", "/b")
_CONFIG: Final = {
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


class Disk:
    """It outlives the lives of its broker. ``has_lost`` something since the broker last said what it has kept."""

    def __init__(self, clock: ManualClock, scenario: Scenario, node_id: int) -> None:
        self.clock = clock
        self.fs = MemoryFs(clock=clock)
        self._size: int | None = None
        self.has_lost = False
        self.was_closed = True
        self.failed: set[str] = set()
        self._boots = 0
        self.emptied_at = -1
        """The number of the store's counter when its contents were last taken away, or replaced by older ones."""
        self._config = dict(_CONFIG)
        self._owner: dict[str, Any] = {}
        if scenario.operators:
            self._owner = {"cluster_id": "c", "node_id": node_id}
        if scenario.flushed:
            self._config["log.flush.interval.messages"] = "1"
        if scenario.retention:
            self._config["log.retention.bytes"] = "2500"
        if scenario.flush_ms is not None:
            self._config["log.flush.interval.ms"] = str(scenario.flush_ms)

    def check_owner(self, cluster_id: str, node_id: int) -> None:
        """`InvalidLogDirError` if another node, or a node of another cluster, has used these directories."""
        check_marks(read_marks(self.fs, PATHS), cluster_id=cluster_id, node_id=node_id, store="store")

    @property
    def is_marked(self) -> bool:
        return bool(read_marks(self.fs, PATHS))

    def open_as(self, cluster_id: str, node_id: int, rng: random.Random) -> LogDirs:
        """As a broker does that was started with these flags."""
        self.check_owner(cluster_id, node_id)
        return LogDirs.open(
            PATHS, ground=Ground(fs=self.fs, clock=self.clock, rng=rng), cluster_id=cluster_id, node_id=node_id
        )

    def open(self, rng: random.Random) -> LogDirs:
        self._write_boot_id()
        if self._owner:
            self.check_owner(**self._owner)
        self.was_closed = False
        opened = LogDirs.open(
            PATHS,
            config=self._config,
            ground=Ground(fs=self.fs, clock=self.clock, rng=rng),
            hw_follows_end=False,
            **self._owner,
        )
        refused = {key: why for directory in opened.dirs for key, why in directory.refused.items()}
        assert not refused, f"B-21: damaged after a crash: {refused}"
        assert not opened.offline, f"P19: a disk that has not failed is not used: {opened.offline}"
        return opened

    def _write_boot_id(self) -> None:
        parts = BOOT_ID.split("/")[1:-1]
        for count in range(1, len(parts) + 1):
            directory = "/" + "/".join(parts[:count])
            if not self.fs.exists(directory):
                self.fs.mkdir(directory)
        capacity, self.fs.capacity = self.fs.capacity, None  # it is on no disk
        self.fs.write(BOOT_ID, b"boot-%d\n" % self._boots)
        self.fs.capacity = capacity

    @property
    def syncs(self) -> int:
        return self.fs.calls["fsync"] + self.fs.calls["fsync_dir"]

    def close(self, directories: LogDirs) -> None:
        """As a broker that stops does."""
        directories.close()
        self.was_closed = not directories.offline

    def cut_power(self, rng: random.Random) -> None:
        """What was not flushed is gone."""
        self._boots += 1
        self.has_lost = self.has_lost or not self.was_closed
        self.fs.crash(rng)

    def fill(self, room: int) -> None:
        """From now on it takes so many bytes more, until it is enlarged."""
        self.fs.capacity = self.fs.used + room

    def enlarge(self) -> None:
        self.fs.capacity = self._size

    def limit(self, size: int | None) -> None:
        """Have this size from now on. Room is kept only on a disk with a size (`seglog.storage.log.dir_health`)."""
        self.fs.capacity = self._size = size

    @property
    def is_filled(self) -> bool:
        return self.fs.capacity != self._size

    def fail(self, path: str) -> None:
        """From now on it takes no write; so what it was to keep is as good as lost."""
        self.failed.add(path)
        self.has_lost = True
        operations = ("pwrite", "truncate", "fsync", "write", "rename", "fsync_dir", "unlink", "mkdir")
        self.fs.fail_at(operations, 1, error=errno.EIO, path=f"{path}/", times=1 << 40)

    def replace_failed(self) -> None:
        """Put empty disks where the failed ones were."""
        self.fs.heal()
        for path in sorted(self.failed):
            if self.fs.exists(path):
                self._remove(path)
        self.failed.clear()

    # What operators do to it while its broker is down

    def copy(self) -> Contents:
        """All that is in the log directories: files with their bytes, directories with None."""
        found: Contents = {}
        waiting = [path for path in PATHS if self.fs.exists(path)]
        while waiting:
            path = waiting.pop()
            is_dir = self.fs.stat(path).is_dir
            found[path] = None if is_dir else self.fs.read(path)
            waiting += [posixpath.join(path, name) for name in self.fs.listdir(path)] if is_dir else []
        return found

    def put(self, contents: Contents, at: int) -> None:
        """Take away all that is there, and put this in its place; ``at`` is the number of the store's counter."""
        self.fs.heal()
        self.enlarge()
        self.failed.clear()
        self.emptied_at, self.has_lost = at, True
        for path in PATHS:
            if self.fs.exists(path):
                self._remove(path)
        for path, data in sorted(contents.items()):
            if data is None and not self.fs.exists(path):
                self.fs.mkdir(path)
            elif data is not None:
                file = self.fs.open(path, create=True)
                file.pwrite(data, 0)
                file.fsync()
                file.close()
        for path, data in contents.items():
            if data is None:
                self.fs.fsync_dir(path)

    def _remove(self, path: str) -> None:
        for name in self.fs.listdir(path):
            one = posixpath.join(path, name)
            if self.fs.stat(one).is_dir:
                self._remove(one)
                self.fs.rmdir(one)
            else:
                self.fs.unlink(one)
        self.fs.fsync_dir(path)
