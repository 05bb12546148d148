"""The periodic tasks of a log directory, at Kafka's intervals: checkpoints, retention, compaction, expiry."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from seglog.core.config import LogDirConfig
from seglog.core.errors import LogClosedError, LogDirFullError, LogDirOfflineError
from seglog.core.passes import for_each
from seglog.core.types import TopicPartition
from seglog.core.worker import Worker
from seglog.storage.directory.catalog import Catalog
from seglog.storage.log.log import Log
from seglog.storage.log.retention import ExpiredSegment

if TYPE_CHECKING:
    from seglog.storage.compaction.log_cleaner import CompactionStats

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
"""The keys that the cleaner follows while it runs (``LogCleaner.ReconfigurableConfigs``)."""


class Housekeeping:
    """The periodic tasks of one directory. ``worker`` runs them; ``cleaner`` compacts, and holds ``compacting``."""

    def __init__(self, catalog: Catalog, cleaner: Worker) -> None:
        self.worker = catalog.worker
        self.cleaner = cleaner
        self.compacting = threading.Lock()
        self._catalog = catalog
        self._health = catalog.health
        self._stopping = threading.Event()
        self._cleaning_plan = object()

    def begin(self) -> None:
        """Schedule all tasks (``LogManager.startupWithConfigOverrides``; high watermarks: ``ReplicaManager``)."""
        config, checkpoints = self._catalog.config, self._catalog.checkpoints

        def plan(delay_ms: int, period_ms: int, task: Callable[[], object]) -> None:
            self.worker.every(delay_ms, lambda: max(period_ms, 1), lambda: self._if_open(task))

        first = config.log_initial_task_delay_ms
        plan(first, config.log_retention_check_interval_ms, self.run_retention)
        plan(first, config.log_flush_offset_checkpoint_interval_ms, checkpoints.write_recovery_points)
        plan(first, config.log_flush_start_offset_checkpoint_interval_ms, checkpoints.write_log_starts)
        high_watermarks = config.replica_high_watermark_checkpoint_interval_ms
        plan(high_watermarks, high_watermarks, checkpoints.write_high_watermarks)
        expiration = config.producer_id_expiration_check_interval_ms
        plan(expiration, expiration, self._expire_producers)
        plan(_LOOK_FOR_ROOM_MS, _LOOK_FOR_ROOM_MS, self._look_for_room)
        self._catalog.plan_flush()
        self._plan_cleaning(first)

    def stop(self) -> None:
        """Start no more tasks, and wait for the running one."""
        self._stopping.set()
        try:
            self.cleaner.stop()
        finally:
            self.worker.stop()

    def run_due(self) -> None:
        self.worker.run_due()
        self.cleaner.run_due()

    def _if_open(self, task: Callable[[], object]) -> None:
        if not self._is_over():
            task()

    def _is_over(self) -> bool:
        return self._stopping.is_set() or self._health.failure is not None

    def _look_for_room(self) -> None:
        """Check whether a full disk has room again, also if no client appends."""
        self._health.has_room(self._catalog.clock.monotonic())

    def _expire_producers(self) -> None:
        """Forget producers that have been idle for ``producer.id.expiration.ms``."""
        now_ms, expiration_ms = self._catalog.clock.now_ms(), self._catalog.config.producer_id_expiration_ms
        for log in list(self._catalog.logs.values()):
            with log.lock:
                log.producers.expire(now_ms, expiration_ms)

    def run_retention(self) -> dict[TopicPartition, list[ExpiredSegment]]:
        """Delete expired segments of all logs; return them with the reasons."""
        gone = {}

        def delete(log: Log) -> None:
            expired = log.delete_old_segments()
            if expired:
                gone[log.topic_partition] = expired
            for segment in expired:
                _logger.info(
                    "%s: deleted segment %d, %s", log.topic_partition, segment.base_offset, segment.reason.value
                )

        for log, error in for_each(list(self._catalog.logs.values()), delete):
            # A closed log was deleted meanwhile. Without room for a new active segment others may free some.
            if not isinstance(error, LogClosedError | LogDirFullError | LogDirOfflineError):
                _logger.error("%s: expired segments are not deleted: %s", log.topic_partition, error)
        return gone

    # Compaction

    def _plan_cleaning(self, delay_ms: int) -> None:
        """Clean after ``delay_ms``, and again after each backoff, until this is called again."""
        config = self._catalog.config
        if not (config.log_cleaner_enable and config.log_cleaner_threads):
            return
        plan = self._cleaning_plan = object()

        def clean() -> None:
            if self._cleaning_plan is plan:
                try:
                    self._if_open(self.run_compaction)
                finally:
                    self.cleaner.schedule(max(self._catalog.config.log_cleaner_backoff_ms, 1), clean)

        self.cleaner.schedule(delay_ms, clean)

    def cleaner_reconfigured(self, before: LogDirConfig) -> None:
        """Stop a running round and start the cleaner again, as Kafka does (``LogCleaner.reconfigure``)."""
        if _cleans_otherwise(before, self._catalog.config):
            self._plan_cleaning(0)

    def run_compaction(self) -> list[CompactionStats]:
        """Clean the logs that are dirty enough, one round after the other, until close."""
        from seglog.storage.compaction import log_cleaner  # loaded at first use: a server starts sooner without it

        catalog = self._catalog
        with self.compacting:
            before = set(catalog.uncleanable)
            done: list[CompactionStats] = []
            while not self._is_over():
                config = catalog.config

                def should_stop(config: LogDirConfig = config) -> bool:
                    return self._is_over() or _cleans_otherwise(config, catalog.config)

                done += log_cleaner.run(
                    dict(catalog.logs),
                    catalog.checkpoints.cleaner_offsets,
                    config,
                    note=catalog.checkpoints.note_cleaned,
                    uncleanable=catalog.uncleanable,
                    should_stop=should_stop,
                )
                if not should_stop():
                    break
            for partition in catalog.uncleanable.keys() - before:
                _logger.error("%s cannot be compacted: %s", partition, catalog.uncleanable[partition])
            return done


def _cleans_otherwise(one: LogDirConfig, other: LogDirConfig) -> bool:
    return any(getattr(one, name) != getattr(other, name) for name in _OF_CLEANER)
