"""Truncation of a log in its directory, so that no crash makes it look like damage (``LogManager.truncateTo``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from seglog.core.types import TopicPartition
from seglog.storage.directory import housekeeping
from seglog.storage.log import quarantine as cut
from seglog.storage.log.log import Log
from seglog.storage.log.reads import segment_at

if TYPE_CHECKING:
    from seglog.storage.directory.log_dir import LogDir


def truncate_to(directory: LogDir, partition: TopicPartition, offset: int) -> bool:
    """See `LogDir.truncate_to`."""
    log = directory.log(*partition)
    with log.lock:
        _lower_checkpoints(directory, log, _start_of_batch(log, offset))
        changed = log.truncate_to(offset)
        if changed:
            log.flush()  # or a power cut brings back a tail of a later epoch, and it seems to be the longer history
        _make_durable(directory, log)
        return changed


def truncate_fully_and_start_at(directory: LogDir, partition: TopicPartition, offset: int) -> None:
    """See `LogDir.truncate_fully_and_start_at`."""
    log = directory.log(*partition)
    with log.lock:
        _lower_checkpoints(directory, log, 0)
        log.truncate_fully_and_start_at(offset)
        _make_durable(directory, log)


def save_from(directory: LogDir, partition: TopicPartition, offset: int) -> str:
    """See `LogDir.save_from`."""
    log = directory.log(*partition)
    with log.lock, directory.health.guard():
        at = max(segment_at(log.segments, offset), 0)
        found = log.segments[at].locate(offset)
        position = log.segments[at].size if found is None else found.position
        return cut.save_from(directory.fs, log.path, log.segments[at:], position, directory.clock.now_ms())


def _lower_checkpoints(directory: LogDir, log: Log, offset: int) -> None:
    """Kafka lowers the recovery point afterwards; then a log that was cut below it by a crash in between is no damage.

    Here it is (`seglog.storage.log.recovery`), and so the checkpoints go first.
    """
    log.lower_recovery_point(offset)
    if offset < log.high_watermark:
        log.update_high_watermark(offset)
    housekeeping.write_recovery_points(directory)
    housekeeping.write_high_watermarks(directory)
    housekeeping.lower_cleaner_offset(directory, log.topic_partition, offset)


def _make_durable(directory: LogDir, log: Log) -> None:
    """Before anything is appended: or a power cut may bring segments back behind what is new."""
    with directory.health.guard():
        directory.fs.fsync_dir(log.path)
    housekeeping.write_log_starts(directory)  # it may start lower now: a log must not end below its start


def _start_of_batch(log: Log, offset: int) -> int:
    """Where the log ends once ``offset`` is cut off: batches go whole."""
    at = segment_at(log.segments, offset)
    found = log.segments[at].locate(offset) if at >= 0 else None
    if found is None:
        return offset
    header, _, _ = next(log.segments[at].headers(found.position))
    return min(offset, header.base_offset)
