"""The end of an open log directory, after which nothing of it is used (``LogManager.shutdown``). Called by `LogDir`."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from seglog.core.errors import LogDirFullError, LogDirOfflineError
from seglog.storage.directory import housekeeping
from seglog.storage.directory.loading import run_all
from seglog.storage.formats.checkpoints import write_clean_shutdown
from seglog.storage.log.log import Log

if TYPE_CHECKING:
    from seglog.storage.directory.log_dir import LogDir


_logger: Final = logging.getLogger("seglog")


def close(directory: LogDir) -> None:
    """See `LogDir.close`."""
    health = directory.health
    failed_before = health.failure is not None
    directory.stopping.set()
    try:
        stop_workers(directory)
        is_whole = _close_logs(directory)
        if health.failure is None:
            try:
                housekeeping.write_checkpoints(directory)
                if not directory.refused and is_whole and not directory.is_marker_withheld:
                    with health.guard():
                        health.make_room(lambda: write_clean_shutdown(directory.fs, directory.path))
            except LogDirFullError as error:
                _logger.warning("%s is closed without the marker of a clean shutdown: %s", directory.path, error)
    finally:
        close_files(directory)
        directory.file_lock.release()
    if not failed_before:
        health.check()


def stop_workers(directory: LogDir) -> None:
    try:
        directory.cleaner.stop()
    finally:
        directory.worker.stop()


def _close_logs(directory: LogDir) -> bool:
    """Whether all that belongs to a clean shutdown was written; on a full disk the next start makes it anew."""
    is_whole = True
    threads = directory.config.num_recovery_threads_per_data_dir
    for _, result in run_all(Log.close, list(directory.logs.values()), threads=threads, name="seglog-close"):
        try:
            result()
        except LogDirFullError as error:
            is_whole = False
            _logger.warning("a log is closed, and will be recovered at the next start: %s", error)
        except LogDirOfflineError:
            continue  # `close` says it when all files are closed
        except OSError as error:
            directory.health.failed(error)
    return is_whole


def close_files(directory: LogDir) -> None:
    """What is still open, without a last write."""
    for log in (*directory.logs.values(), *directory.deleted):
        if not log.closed:
            log.closed = True
            for segment in log.segments:
                segment.close(write=False)
