"""A partition on a disk in memory: small segments, and how to open, fill and read it."""

from __future__ import annotations

from collections.abc import Callable

from seglog.core.clock import Clock
from seglog.core.config import LogConfig
from seglog.core.fs import Fs
from seglog.core.ground import Ground
from seglog.core.types import TopicPartition
from seglog.records.record import NewRecord
from seglog.storage.log.dir_health import DirHealth, Inline
from seglog.storage.log.log import Log
from seglog.storage.log.reads import UpTo
from seglog.storage.log.recovery import LoadResult, LogCheckpoint, load_log
from tests.kit.manual_clock import ManualClock
from tests.kit.memory_fs import MemoryFs

PATH = "/logs/t-0"
PARTITION = TopicPartition("t", 0)
SMALL = LogConfig.from_mapping(
    {
        "internal.segment.bytes": "2000",
        "segment.index.bytes": "1200",
        "index.interval.bytes": "200",
        "retention.ms": "-1",
        "message.timestamp.after.max.ms": str(2**62),
    }
)
CLEAN = LogCheckpoint(clean=True, recovery_point=0)


def new_disk() -> MemoryFs:
    fs = MemoryFs(clock=ManualClock())
    fs.mkdir("/logs")
    fs.mkdir(PATH)
    fs.fsync_dir("/")
    fs.fsync_dir("/logs")
    return fs


def load(
    fs: Fs,
    known: LogCheckpoint = CLEAN,
    config: LogConfig = SMALL,
    *,
    path: str = PATH,
    clock: Clock | None = None,
    progress: Callable[[int, int], None] | None = None,
    hw_follows_end: bool = True,
) -> LoadResult:
    return load_log(
        ground=Ground(fs=fs, clock=clock or ManualClock()),
        path=path,
        topic_partition=PARTITION,
        config=config,
        health=DirHealth(path),
        known=known,
        background=Inline(),
        progress=progress,
        hw_follows_end=hw_follows_end,
    )


def fill(log: Log, count: int, *, size: int = 100, records: int = 1) -> None:
    """Append ``count`` batches; the values say their offsets."""
    for _ in range(count):
        start = log.log_end_offset
        log.append_records(
            [
                NewRecord(f"{start + at}:".encode().ljust(size, b"."), timestamp=1_000 + start + at)
                for at in range(records)
            ]
        )


def values(log: Log) -> dict[int, bytes]:
    """All records of the log, by offset."""
    found: dict[int, bytes] = {}
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        fetched = log.read(offset, up_to=UpTo.LOG_END)
        for record in fetched.records():
            found[record.offset] = record.value or b""
        ends = [header.next_offset for header, _ in fetched.batches()]
        offset = max([*ends, fetched.next_offset])
        assert ends or fetched.next_offset > offset - 1
    return found


def prefix(count: int, *, start: int = 0, size: int = 100) -> dict[int, bytes]:
    """The values that `fill` wrote from offset ``start`` up to ``count``."""
    return {offset: f"{offset}:".encode().ljust(size, b".") for offset in range(start, count)}


def name(base_offset: int, kind: str) -> str:
    return f"{PATH}/{base_offset:020d}{kind}"


def overwrite(fs: Fs, path: str, position: int, data: bytes) -> None:
    """Damage a file in place, durably."""
    file = fs.open(path)
    file.pwrite(data, position)
    file.fsync()
    file.close()
