"""Loading a log directory that was just locked, until it can be used (``LogManager.loadLogs``). For `LogDir.open`."""

from __future__ import annotations

import os.path
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from seglog.core.clock import Clock
from seglog.core.errors import LogDirFullError
from seglog.storage import adopt
from seglog.storage.directory import closing as dir_closing
from seglog.storage.directory import housekeeping, topic_changes
from seglog.storage.directory import loss_evidence as life
from seglog.storage.directory.contents import Checkpoints, list_entries, read_or_make_meta
from seglog.storage.directory.loading import LoadProgress, load_partitions
from seglog.storage.directory.worker import Worker
from seglog.storage.formats.checkpoints import read_clean_shutdown, remove_clean_shutdown
from seglog.storage.formats.topics_file import read_topics
from seglog.storage.log.dir_health import DirHealth
from seglog.storage.log.reserve import Reserve

if TYPE_CHECKING:
    from seglog.storage.directory.log_dir import LogDir


def load(
    directory: LogDir,
    background: bool,
    progress: Callable[[LoadProgress], None] | None,
    cluster_id: str | None,
    node_id: int | None,
    make_worker: Callable[[Clock, DirHealth, str | None], Worker],
) -> None:
    """Errors as of `LogDir.open`; then no file of it stays open but the lock."""
    fs, path, clock = directory.fs, directory.path, directory.clock
    found = list_entries(fs, path)
    directory.entries = read_topics(fs, path)
    directory.checkpoints = Checkpoints(fs, path)
    directory.meta = read_or_make_meta(fs, path, clock=clock, rng=directory.rng, cluster_id=cluster_id, node_id=node_id)
    clean = directory.was_clean = read_clean_shutdown(fs, path) is not None
    if clean:
        life.carry_over(fs, path)
    remove_clean_shutdown(fs, path)
    partitions = topic_changes.finish(directory, found)
    directory.worker = make_worker(clock, directory.health, f"seglog {path}" if background else None)
    directory.cleaner = make_worker(clock, directory.health, f"seglog-cleaner {path}" if background else None)
    try:
        loaded, refused = load_partitions(
            partitions,
            lambda one, tell: topic_changes.load_partition(
                directory, one, directory.checkpoints.known(one, clean=clean), tell
            ),
            path=path,
            threads=directory.config.num_recovery_threads_per_data_dir,
            progress=progress,
        )
        directory.refused.update(refused)
        for partition, one in loaded.items():
            directory.add(partition, one)
        adopt.roll_forward(directory)
        with suppress(LogDirFullError):  # those that are there are right
            housekeeping.write_checkpoints(directory)
    except BaseException:
        dir_closing.stop_workers(directory)
        dir_closing.close_files(directory)
        raise
    for name in list_entries(fs, path).deleted:
        directory.remove_later(os.path.join(path, name), directory.config.topics.file_delete_delay_ms)
    directory.health.keep_back(Reserve(fs, path))
    housekeeping.begin(directory)
