"""What a log directory does from time to time, at Kafka's intervals: checkpoints, retention, flushes, forgetting."""

from __future__ import annotations

import logging
import os.path
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from seglog.core.errors import LogClosedError, LogDirFullError
from seglog.core.types import MAX_INT64, TopicPartition
from seglog.storage.formats.checkpoints import write_offsets
from seglog.storage.formats.paths import CLEANER_OFFSETS, HIGH_WATERMARKS, LOG_START_OFFSETS, RECOVERY_POINTS
from seglog.storage.log.retention import Expired

if TYPE_CHECKING:
    from seglog.core.config import LogDirConfig
    from seglog.storage.compaction import CompactionStats
    from seglog.storage.directory.log_dir import LogDir
    from seglog.storage.log.log import Log

_logger = logging.getLogger("seglog")
_LOOK_FOR_ROOM_MS: Final = 1000
_OF_CLEANER: Final = (
    "log_cleaner_backoff_ms",
    "log_cleaner_dedupe_buffer_size",
    "log_cleaner_io_buffer_load_factor",
    "log_cleaner_io_buffer_size",
    "log_cleaner_io_max_bytes_per_second",
    "log_cleaner_threads",
)
"""What the cleaner is told by the broker's configuration (``LogCleaner.ReconfigurableConfigs``)."""


def begin(directory: LogDir) -> None:
    """Plan all tasks (``LogManager.startupWithConfigOverrides``; high watermarks: ``ReplicaManager``)."""
    config, every = directory.config, directory.worker.every

    def plan(delay_ms: int, period_ms: int, task: Callable[[LogDir], object]) -> None:
        every(delay_ms, lambda: max(period_ms, 1), lambda: _if_open(directory, task))

    first = config.log_initial_task_delay_ms
    plan(first, config.log_retention_check_interval_ms, run_retention)
    plan(first, config.log_flush_offset_checkpoint_interval_ms, write_recovery_points)
    plan(first, config.log_flush_start_offset_checkpoint_interval_ms, write_log_starts)
    high_watermarks = config.replica_high_watermark_checkpoint_interval_ms
    plan(high_watermarks, high_watermarks, write_high_watermarks)
    expiration = config.producer_id_expiration_check_interval_ms
    plan(expiration, expiration, expire_producers)
    plan(_LOOK_FOR_ROOM_MS, _LOOK_FOR_ROOM_MS, look_for_room)
    plan_flush(directory)
    _plan_cleaning(directory, first)


def look_for_room(directory: LogDir) -> None:
    """Whether a full disk takes records again: nobody may be appending who would find out."""
    directory.health.has_room(directory.clock.monotonic())


def _if_open(directory: LogDir, task: Callable[[LogDir], object]) -> None:
    if not directory.closed and directory.health.failure is None:
        task(directory)


# Checkpoints


def write_checkpoints(directory: LogDir) -> None:
    write_recovery_points(directory)
    write_log_starts(directory)
    write_high_watermarks(directory)


def write_recovery_points(directory: LogDir) -> None:
    """``recovery-point-offset-checkpoint``: up to where each log is flushed.

    What is known of refused partitions stays, so that they are refused again until they are repaired; if it is not
    known because the file cannot be read, the file stays too.
    """
    known = directory.checkpoints.recovery_points
    if known is None and directory.refused:
        return
    _write(directory, RECOVERY_POINTS, lambda log: log.recovery_point, known or {})


def write_log_starts(directory: LogDir) -> None:
    """``log-start-offset-checkpoint``: of the logs that do not begin where their first segment does."""

    def start(log: Log) -> int | None:
        return log.log_start_offset if log.log_start_offset > log.segments[0].base_offset else None

    _write(directory, LOG_START_OFFSETS, start, directory.checkpoints.log_starts)


def write_high_watermarks(directory: LogDir) -> None:
    """``replication-offset-checkpoint``.

    Damage below it is refused at the next start. So of a log without followers, whose high watermark is its end, it
    says what is flushed.
    """

    def mark(log: Log) -> int:
        return min(log.high_watermark, log.recovery_point) if log.hw_follows_end else log.high_watermark

    _write(directory, HIGH_WATERMARKS, mark, directory.checkpoints.high_watermarks)


def forget_cleaner_offsets(directory: LogDir, partitions: set[TopicPartition]) -> None:
    """Take deleted partitions out of ``cleaner-offset-checkpoint``."""
    offsets = directory.checkpoints.cleaner_offsets
    with directory.checkpoints.lock:
        if offsets.keys() & partitions:
            for partition in partitions:
                offsets.pop(partition, None)
            _write_cleaner_offsets(directory)


def lower_cleaner_offset(directory: LogDir, partition: TopicPartition, offset: int) -> None:
    """What comes after a truncation to ``offset`` is dirty."""
    offsets = directory.checkpoints.cleaner_offsets
    with directory.checkpoints.lock:
        if offsets.get(partition, 0) > offset:
            offsets[partition] = offset
            _write_cleaner_offsets(directory)


def note_cleaned(directory: LogDir, log: Log, end_offset: int) -> None:
    """A round is done; a topic that was deleted meanwhile, and may have a namesake, is not noted."""
    with directory.checkpoints.lock:
        if directory.logs.get(log.topic_partition) is log:
            directory.checkpoints.cleaner_offsets[log.topic_partition] = end_offset
            _write_cleaner_offsets(directory)


def _write_cleaner_offsets(directory: LogDir) -> None:
    path = os.path.join(directory.path, CLEANER_OFFSETS)
    offsets = directory.checkpoints.cleaner_offsets
    there = {*list(directory.logs), *list(directory.refused)}
    given = {name: offset for name, offset in offsets.items() if name in there}
    with directory.health.guard():
        directory.health.make_room(lambda: write_offsets(directory.fs, path, given))


def _write(
    directory: LogDir, name: str, offset_of: Callable[[Log], int | None], known: dict[TopicPartition, int]
) -> None:
    """Write what ``offset_of`` says of each log, None for no line, and what is ``known`` of refused partitions."""
    with directory.checkpoints.lock, directory.health.guard():
        refused = {partition: known[partition] for partition in list(directory.refused) if partition in known}
        offsets = {partition: offset_of(log) for partition, log in list(directory.logs.items())}
        given = {partition: offset for partition, offset in offsets.items() if offset is not None}
        directory.health.make_room(lambda: directory.checkpoints.write(name, {**refused, **given}))


# Retention, compaction, flushes, producers


def run_retention(directory: LogDir) -> dict[TopicPartition, list[Expired]]:
    """Delete expired segments of all logs; what went, and why."""
    gone = {}
    for partition, log in list(directory.logs.items()):
        try:
            expired = log.delete_old_segments()
        except LogClosedError:  # deleted meanwhile
            continue
        except LogDirFullError:  # no room for a new active segment: others may have something to delete
            continue
        if expired:
            gone[partition] = expired
            for segment in expired:
                _logger.info("%s: deleted segment %d, %s", partition, segment.base_offset, segment.reason.value)
    return gone


def _plan_cleaning(directory: LogDir, delay_ms: int) -> None:
    """Clean then, and again after each backoff, until this is called again."""
    if not (directory.config.log_cleaner_enable and directory.config.log_cleaner_threads):
        return
    plan = directory.cleaning_plan = object()

    def clean() -> None:
        if directory.cleaning_plan is plan:
            try:
                _if_open(directory, run_compaction)
            finally:
                directory.cleaner.schedule(max(directory.config.log_cleaner_backoff_ms, 1), clean)

    directory.cleaner.schedule(delay_ms, clean)


def cleaner_reconfigured(directory: LogDir, before: LogDirConfig) -> None:
    """As Kafka's: a round that goes on is given up, and the cleaner begins anew (``LogCleaner.reconfigure``)."""
    if _cleans_otherwise(before, directory.config):
        _plan_cleaning(directory, 0)


def _cleans_otherwise(one: LogDirConfig, other: LogDirConfig) -> bool:
    return any(getattr(one, name) != getattr(other, name) for name in _OF_CLEANER)


def run_compaction(directory: LogDir) -> list[CompactionStats]:
    """Clean the logs that are dirty enough, one round after the other, until close."""
    from seglog.storage import compaction  # when it is wanted first: a server is up sooner without it

    def is_over() -> bool:
        return directory.stopping.is_set() or directory.health.failure is not None

    with directory.compacting:
        before = set(directory.uncleanable)
        done: list[CompactionStats] = []
        while not is_over():
            config = directory.config

            def should_stop(config: LogDirConfig = config) -> bool:
                return is_over() or _cleans_otherwise(config, directory.config)

            done += compaction.run(
                dict(directory.logs),
                directory.checkpoints.cleaner_offsets,
                config,
                note=lambda log, end_offset: note_cleaned(directory, log, end_offset),
                uncleanable=directory.uncleanable,
                should_stop=should_stop,
            )
            if not should_stop():
                break
        for partition in directory.uncleanable.keys() - before:
            _logger.error("%s cannot be compacted: %s", partition, directory.uncleanable[partition])
        return done


def plan_flush(directory: LogDir) -> None:
    """See to it that logs with ``flush.ms`` are flushed in time."""
    soonest = min((log.config.flush_ms for log in list(directory.logs.values())), default=MAX_INT64)
    if soonest < MAX_INT64 and not directory.flush_planned:
        directory.flush_planned = True
        directory.worker.schedule(max(soonest, 1), lambda: _if_open(directory, _flush_due))


def _flush_due(directory: LogDir) -> None:
    directory.flush_planned = False
    now_ms = directory.clock.now_ms()
    try:
        for log in list(directory.logs.values()):
            is_due = now_ms - log.last_flush_ms >= log.config.flush_ms
            if is_due and log.recovery_point < log.log_end_offset and not log.closed and not log.deleted:
                log.flush()
    finally:
        plan_flush(directory)


def expire_producers(directory: LogDir) -> None:
    """Forget producers that have been idle for ``producer.id.expiration.ms``."""
    now_ms, expiration_ms = directory.clock.now_ms(), directory.config.producer_id_expiration_ms
    for log in list(directory.logs.values()):
        with log.lock:
            log.producers.expire(now_ms, expiration_ms)
