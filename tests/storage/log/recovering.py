"""A log of several segments that was closed or not, for tests of how it is loaded."""

from __future__ import annotations

from seglog.records.batch import LOG_OVERHEAD, read_header
from seglog.storage.log.manifest import discard
from seglog.storage.log.recovery import LogCheckpoint
from tests.kit.manual_clock import ManualClock
from tests.kit.memory_fs import MemoryFs
from tests.storage.disk import PATH, fill, load, name, new_disk

UNCLEAN = LogCheckpoint()
NOW_MS = ManualClock().now_ms()


def filled(count: int = 60) -> tuple[MemoryFs, list[int], LogCheckpoint]:
    """A log of several segments, closed cleanly; its base offsets; what is known of it after a crash."""
    fs = new_disk()
    log = load(fs).log
    fill(log, count)
    bases = [segment.base_offset for segment in log.segments]
    assert len(bases) > 3
    log.close()
    discard(fs, PATH)  # as of another writer: these tests do to files what nothing of ours does
    return fs, bases, LogCheckpoint(recovery_point=count, high_watermark=count)


def batch_position(fs: MemoryFs, base: int, offset: int) -> int:
    """Where the batch of ``offset`` begins in the segment of ``base``."""
    data = fs.read(name(base, ".log"))
    position = 0
    while (header := read_header(data, position)).last_offset < offset:
        position += header.length + LOG_OVERHEAD
    return position


def indexes(fs: MemoryFs) -> dict[str, bytes]:
    return {path: data for path, data in fs.files().items() if path.endswith(("index", ".snapshot"))}
