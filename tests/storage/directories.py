"""A log directory in memory, of small segments, that can be opened again and again."""

from __future__ import annotations

import random
from collections.abc import Mapping

from seglog.core.fs import Fs
from seglog.core.ground import Ground
from seglog.core.types import TopicPartition
from seglog.storage.directory.log_dir import LogDir
from seglog.storage.log.log import Log
from tests.kit.manual_clock import ManualClock
from tests.kit.memory_fs import MemoryFs
from tests.storage.disk import fill

DIR = "/logs"
TINY: Mapping[str, object] = {
    "internal.segment.bytes": 2000,
    "segment.index.bytes": 1200,
    "index.interval.bytes": 200,
    "retention.ms": -1,
}


class Disk:
    """A disk in memory with a clock, and a log directory on it that can be opened again and again."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.fs = MemoryFs(clock=self.clock)
        self.seed = 0

    def open(self, config: Mapping[str, object] | None = None, *, background: bool = False) -> LogDir:
        self.seed += 1
        return LogDir.open(
            DIR,
            ground=Ground(fs=self.fs, clock=self.clock, rng=random.Random(self.seed)),
            config=config,
            background=background,
        )

    def names(self, path: str = DIR) -> list[str]:
        return self.fs.listdir(path)


T = TopicPartition("t", 0)


def open_dir(fs: Fs, *, background: bool = False) -> LogDir:
    config = {"num.recovery.threads.per.data.dir": 1}
    return LogDir.open(
        DIR, ground=Ground(fs=fs, clock=ManualClock(), rng=random.Random(1)), config=config, background=background
    )


def flushed_log(records: int = 30) -> tuple[MemoryFs, LogDir, Log]:
    fs = MemoryFs(clock=ManualClock())
    opened = open_dir(fs)
    opened.create_topic("t", 1, TINY)
    log = opened.log("t")
    fill(log, records)
    log.flush()
    return fs, opened, log
