"""Splitting a segment whose offsets are too far apart for its indexes (KAFKA-6264).

Versions of Kafka before 1.1 could write such a segment: an index entry has 31 bits for offset - base offset.
"""

from __future__ import annotations

from seglog.core.clock import Clock
from seglog.core.errors import CorruptBatchError, CorruptError
from seglog.core.fs import Fs
from seglog.storage.formats.paths import CLEANED, DELETED, SWAP
from seglog.storage.log.segment import Segment, SegmentConfig


def split_overflowed(fs: Fs, clock: Clock, path: str, segment: Segment, config: SegmentConfig) -> list[int]:
    """Put segments whose offsets fit in the place of ``segment``, which is closed; returns their base offsets.

    A crash on the way leaves the old segment or the new ones (`seglog.storage.log.crash_cleanup`).
    """
    end = segment.log.size()
    mtime_ms = fs.stat(segment.paths.log).mtime_ms
    made: list[Segment] = []
    try:
        for header, position, data in segment.headers(0, end):
            if not made or not made[-1].holds(header.last_offset):
                made.append(
                    Segment(fs, path, header.base_offset, config, now_ms=clock.now_ms(), active=True, suffix=CLEANED)
                )
            if not made[-1].holds(header.last_offset):
                raise CorruptBatchError(
                    f"offsets {header.base_offset} to {header.last_offset} are too many for one batch",
                    position=position,
                    file=segment.paths.log,
                    offset=header.base_offset,
                )
            made[-1].append(data, [header])
        copied = sum(new.size for new in made)
        if copied != end:
            raise CorruptBatchError("the last batch is not all there", position=copied, file=segment.paths.log)
    except (CorruptError, OSError):
        for new in made:
            new.close(write=False)
            new.delete()
        raise
    for new in made:
        new.become_inactive()
        new.flush()
        fs.set_mtime(new.paths.log, mtime_ms)
    fs.fsync_dir(path)
    for new in reversed(made):
        new.rename(SWAP)
    fs.fsync_dir(path)
    segment.rename(DELETED)
    for new in made:
        new.rename("")
        new.close(write=False)
    fs.fsync_dir(path)
    segment.close(write=False)
    segment.delete()
    return [new.base_offset for new in made]
