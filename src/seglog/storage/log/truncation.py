"""What makes a log shorter: truncation, deleted records, retention. Called by `Log` under its lock."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from seglog.core.errors import OffsetOutOfRangeError
from seglog.core.fs import NoSpaceError
from seglog.core.types import MAX_INT64
from seglog.storage.formats.paths import DELETED
from seglog.storage.log import producer_snapshots as snapshots
from seglog.storage.log import retention
from seglog.storage.log.producers import Producers
from seglog.storage.log.segment import Segment

if TYPE_CHECKING:
    from seglog.storage.log.log import Log


def truncate_to(log: Log, offset: int) -> bool:
    """See `Log.truncate_to`; ``UnifiedLog.truncateTo``."""
    if offset < 0:
        raise ValueError(f"cannot truncate {log.topic_partition} to offset {offset}")
    if offset >= log.log_end_offset:
        # The epochs may know of more than the log has (KAFKA-10706)
        _forget_epochs_from(log, log.log_end_offset)
        return False
    if log.segments[0].base_offset > offset:
        truncate_fully_and_start_at(log, offset)
        return True
    kept = [segment for segment in log.segments if segment.base_offset <= offset]
    gone = log.segments[len(kept) :]
    log.segments = tuple(kept)
    log.manifest.forget_from(log.active.base_offset)
    remove_segments(log, gone[::-1], later=False)  # from the end: a crash in between leaves no hole
    with _whole():
        log.active.truncate_to(offset, log.clock.now_ms())
    end = log.active.next_offset()  # the batch that holds the offset is gone whole: the log ends before it
    _end_at(log, end)
    log.log_start_offset = min(log.log_start_offset, end)
    _forget_epochs_from(log, end)
    log.producers = snapshots.after_truncation(log.fs, log.path, log.segments, log.producers, log.log_start_offset, end)
    log.refresh_stable_offset()
    return True


def truncate_fully_and_start_at(log: Log, offset: int) -> None:
    """See `Log.truncate_fully_and_start_at`."""
    if not 0 <= offset <= MAX_INT64:
        raise ValueError(f"{log.topic_partition} cannot start at offset {offset}")
    gone = log.segments
    stale = [segment for segment in gone if segment.base_offset != offset]
    log.manifest.forget_from(0)
    remove_segments(log, stale, later=False)
    reused = next((segment for segment in gone if segment.base_offset == offset), None)
    if reused is not None:
        reused.close(write=False)
    with _whole():
        log.segments = (log.new_segment(offset),)
    for snapshot in snapshots.list_snapshots(log.fs, log.path):
        log.fs.unlink(snapshots.snapshot_path(log.path, snapshot))
    log.producers = Producers()
    log.producers.map_end_offset = offset
    snapshots.take_if_room(log.fs, log.path, log.producers)
    _end_at(log, offset)
    log.log_start_offset = offset
    log.high_watermark = offset
    if log.epochs.clear():
        _write_epochs(log)
    log.refresh_stable_offset()


def _end_at(log: Log, offset: int) -> None:
    log.log_end_offset = offset
    log.lower_recovery_point(offset)
    log.high_watermark = min(log.high_watermark, offset)


def _forget_epochs_from(log: Log, offset: int) -> None:
    if log.epochs.truncate_from_end(offset):
        _write_epochs(log)


def _write_epochs(log: Log) -> None:
    """Fewer epochs than the file has. On a full disk it keeps them: a start forgets those beyond the log anyway."""
    with suppress(NoSpaceError):
        log.write_epochs()


@contextmanager
def _whole() -> Iterator[None]:
    """What cannot be undone: if there is no room even after files have gone, the directory is out of use."""
    try:
        yield
    except NoSpaceError as error:
        raise OSError(error.errno, error.strerror, error.filename) from error


def delete_records(log: Log, before: int, checkpoint: Callable[[], object] = lambda: None) -> int:
    """See `Log.delete_records`; KIP-107. ``checkpoint`` writes down where the log begins now."""
    target = log.high_watermark if before == -1 else before
    if not log.log_start_offset <= target <= log.high_watermark:
        raise OffsetOutOfRangeError(
            f"records of {log.topic_partition} can be deleted up to an offset from {log.log_start_offset} to the high "
            f"watermark {log.high_watermark}, not {target}"
        )
    _move_start(log, target, checkpoint)
    return target


def _move_start(log: Log, offset: int, checkpoint: Callable[[], object] = lambda: None) -> None:
    if offset > log.log_start_offset:
        before, log.log_start_offset = log.log_start_offset, offset
        try:
            checkpoint()  # before epochs are forgotten: a log that begins earlier after a crash would lack them
        except BaseException:
            log.log_start_offset = before
            raise
        if log.epochs.truncate_from_start(offset):
            _write_epochs(log)
        log.producers.on_log_start(offset)
        log.refresh_stable_offset()


def delete_old_segments(log: Log) -> list[retention.Expired]:
    """See `Log.delete_old_segments`; ``UnifiedLog.deleteOldSegments``."""
    expired = retention.expired_segments(
        _facts(log),
        config=log.config,
        log_start_offset=log.log_start_offset,
        high_watermark=log.high_watermark,
        now_ms=log.clock.now_ms(),
    )
    if not expired:
        return []
    bases = {segment.base_offset for segment in expired}
    if log.active.base_offset in bases:  # the last one goes too: what is appended next needs a place
        log.roll()
    gone = [segment for segment in log.segments if segment.base_offset in bases]
    log.segments = tuple(segment for segment in log.segments if segment.base_offset not in bases)
    _move_start(log, log.segments[0].base_offset)
    log.manifest.forget(bases)
    remove_segments(log, gone, later=True)
    return expired


def _facts(log: Log) -> list[retention.SegmentFacts]:
    segments = log.segments
    return [
        retention.SegmentFacts(
            base_offset=segment.base_offset,
            next_base_offset=segments[at + 1].base_offset if at + 1 < len(segments) else log.log_end_offset,
            size=segment.size,
            largest_timestamp=segment.largest_timestamp(),
            is_active=at + 1 == len(segments),
        )
        for at, segment in enumerate(segments)
    ]


def remove_segments(log: Log, segments: Sequence[Segment], *, later: bool) -> None:
    """Take away files that no reader finds any more: at once, or ``.deleted`` and after ``file.delete.delay.ms``.

    On a full disk nothing waits: whoever reads them keeps them open until the end.
    """
    log.names_changed()
    later = later and not log.is_full
    for segment in segments:
        snapshot = snapshots.snapshot_path(log.path, segment.base_offset)
        has_snapshot = log.fs.exists(snapshot) and segment.base_offset != log.active.base_offset
        if later:
            try:
                segment.rename(DELETED)
                if has_snapshot:
                    log.fs.rename(snapshot, snapshot + DELETED)
            except NoSpaceError:  # of the directory, for longer names
                segment.delete()
                if has_snapshot:
                    log.fs.unlink(snapshot)
                continue
            log.background.schedule(log.config.file_delete_delay_ms, _deletion(log, segment, snapshot + DELETED))
        else:
            segment.delete()
            if has_snapshot:
                log.fs.unlink(snapshot)


def _deletion(log: Log, segment: Segment, snapshot: str) -> Callable[[], None]:
    def delete() -> None:
        segment.delete()
        if log.fs.exists(snapshot):
            log.fs.unlink(snapshot)

    return delete
