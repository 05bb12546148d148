"""From the page cache to the disk: what a log has flushed, its recovery point tells. Called by `Log` in its guard."""

from __future__ import annotations

from contextlib import suppress
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from seglog.core.errors import LogClosedError, LogDirFullError
from seglog.storage.log import producer_snapshots as snapshots
from seglog.storage.log import reads
from seglog.storage.log.manifest import Sealed
from seglog.storage.log.segment import Segment

_AGAIN_MS: Final = 1000

if TYPE_CHECKING:
    from seglog.storage.log.log import Log


def flush(log: Log, up_to: int | None) -> None:
    """See `Log.flush`."""
    target = log.log_end_offset if up_to is None else up_to
    start = log.recovery_point
    if target < start or (target == start and up_to is not None):
        return
    for segment in reads.segments_between(log.segments, start, target):
        segment.flush()
        if segment.base_offset >= start:  # at the start, too: the roll may have come after the last flush
            _flush_snapshot(log, segment.base_offset)
    log.fs.fsync_dir(log.path)
    with log.lock:
        log.recovery_point = max(log.recovery_point, min(target, log.log_end_offset))
        log.last_flush_ms = log.clock.now_ms()


def flush_rolled(log: Log, segment: Segment, end_offset: int) -> None:
    """fsync a segment that was just rolled, also when its records were flushed before.

    Its indexes were not, nor was the snapshot that the roll has taken: torn, it would look like damage.
    """
    try:
        if not log.closed and end_offset <= log.recovery_point:
            with log._guard():
                segment.flush()
                _flush_snapshot(log, end_offset)
        log.flush(end_offset)
        if not log.closed:
            with log._guard():
                note_sealed(log)
    except LogDirFullError:  # an index that has not found its place: it is tried again until it has
        log.background.schedule(_AGAIN_MS, lambda: flush_rolled(log, segment, end_offset))


def note_sealed(log: Log) -> None:
    """Write sealed segments that are flushed and not in the manifest into it."""
    segments = log.segments
    if len(segments) - 1 <= len(log.manifest.entries):
        return
    known = log.manifest.entries
    new: dict[int, tuple[Segment, Sealed]] = {}
    for segment, following in pairwise(segments):
        if segment.base_offset not in known and following.base_offset <= log.recovery_point:
            with suppress(LogClosedError, FileNotFoundError):  # retention or compaction has taken it away meanwhile
                new[segment.base_offset] = segment, segment.sealed()
    log.manifest.add([entry for _, entry in new.values()], lambda entry: new[entry.base_offset][0] in log.segments[:-1])


def _flush_snapshot(log: Log, offset: int) -> None:
    path = snapshots.snapshot_path(log.path, offset)
    if log.fs.exists(path):
        file = log.fs.open(path)
        try:
            file.fsync()
        finally:
            file.close()
