"""A log directory: its topics and partitions, opened, looked after and closed as a whole (``LogManager.scala``).

Threads: every method may be called from any thread; those that change topics run one after the other. Of a `Log`, any
number of threads may read while one writes (appends wait for each other). One process has a directory open: ``.lock``.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from contextlib import contextmanager
from random import Random, SystemRandom
from types import TracebackType
from typing import TYPE_CHECKING, Self
from uuid import UUID

from seglog.core.clock import Clock, SystemClock
from seglog.core.config import LogDirConfig
from seglog.core.errors import (
    InvalidLogDirError,
    LogClosedError,
    LogDirFullError,
    LogDirOfflineError,
    SeglogError,
    UnknownTopicError,
)
from seglog.core.fs import Fs, Lock, NoSpaceError, OsFs
from seglog.core.types import MAX_INT64, TopicPartition
from seglog.storage.directory import closing as dir_closing
from seglog.storage.directory import housekeeping, replica_changes, topic_changes
from seglog.storage.directory import opening as dir_opening
from seglog.storage.directory import truncation as dir_truncation
from seglog.storage.directory.contents import Checkpoints, check_fresh, check_mode, make_directory, remove_tree, resolve
from seglog.storage.directory.loading import LoadProgress, PartitionLoaded
from seglog.storage.directory.replica_changes import Wanted
from seglog.storage.directory.strays import FoundStray, find_strays
from seglog.storage.directory.worker import Worker, make_worker
from seglog.storage.formats.checkpoints import MetaProperties
from seglog.storage.formats.paths import LOCK
from seglog.storage.formats.topics_file import TopicEntry, TopicInfo
from seglog.storage.log.dir_health import DirHealth
from seglog.storage.log.log import Log
from seglog.storage.log.recovery import RecoveryReport
from seglog.storage.log.reserve import Reserve
from seglog.storage.log.retention import Expired

if TYPE_CHECKING:
    from seglog.storage.compaction import CompactionStats


class LogDir:
    """An open log directory; made by `open`, a context manager.

    ``refused`` has the partitions that are not served, and why; ``missing``, those of them that had data and whose
    files are gone; ``reports``, what recovery did with the others; ``uncleanable``, those that compaction leaves alone
    until the next start, and why. ``was_clean``: the marker of a clean shutdown was there at this opening.
    """

    def __init__(
        self, *, path: str, fs: Fs, clock: Clock, config: LogDirConfig, rng: Random, hw_follows_end: bool, lock: Lock
    ) -> None:
        """For `open`, which makes it whole."""
        self.path = path
        self.fs = fs
        self.clock = clock
        self.config = config
        self.rng = rng
        self.hw_follows_end = hw_follows_end
        self.health = DirHealth(path)
        self.file_lock = lock
        self.meta = MetaProperties()
        self.entries: dict[str, TopicEntry] = {}
        self.logs: dict[TopicPartition, Log] = {}
        self.topic_ids: dict[TopicPartition, UUID | None] = {}
        self.deleted: set[Log] = set()
        self.refused: dict[TopicPartition, SeglogError] = {}
        self.missing: set[TopicPartition] = set()
        self.reports: dict[TopicPartition, RecoveryReport] = {}
        self.uncleanable: dict[TopicPartition, Exception] = {}
        self.was_clean = False
        self.is_marker_withheld = False
        self.closed = False
        self.flush_planned = False
        self.cleaning_plan = object()
        self.stopping = threading.Event()
        self.compacting = threading.Lock()
        self.checkpoints: Checkpoints
        self.worker: Worker
        self.cleaner: Worker
        self._lock = threading.RLock()

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        config: LogDirConfig | Mapping[str, object] | None = None,
        create: bool = True,
        background: bool = False,
        progress: Callable[[LoadProgress], None] | None = None,
        cluster_id: str | None = None,
        node_id: int | None = None,
        hw_follows_end: bool = True,
        fs: Fs | None = None,
        clock: Clock | None = None,
        rng: Random | None = None,
        make_worker: Callable[[Clock, DirHealth, str | None], Worker] = make_worker,
    ) -> Self:
        """Open the log directory at ``path``, one of Kafka's too, and recover what was not closed properly.

        With ``background``, threads flush, write checkpoints, delete expired segments and compact. Without it
        `housekeeping` does when it is called, and an append that begins a new segment waits until the old is fsynced.
        ``make_worker`` makes what stands for a thread, given its name or None: a simulator has its own.
        ``cluster_id`` and ``node_id`` go into a new directory's ``meta.properties``; an existing one must have them.

        Raises `InvalidLogDirError` (not a log directory, or not to be opened), `LogDirInUseError`,
        `CorruptCheckpointError` (``meta.properties``, ``seglog.topics``), `LogDirOfflineError` (the disk fails),
        `LogDirFullError` (it has no room for what an opening writes). A damaged partition is no error here: see
        `refused`.
        """
        if not isinstance(config, LogDirConfig):
            config = LogDirConfig.from_mapping(config or {})
        fs, path = fs or OsFs(), resolve(path)
        try:
            make_directory(fs, path, create=create)
            check_mode(fs, path)
            check_fresh(fs, path)
            lock = fs.lock(os.path.join(path, LOCK))
        except OSError as error:
            raise InvalidLogDirError(f"{path} cannot be opened for writing: {error}") from error

        try:
            while True:
                opened = cls(
                    path=path,
                    fs=fs,
                    clock=clock or SystemClock(),
                    config=config,
                    rng=rng or SystemRandom(),
                    hw_follows_end=hw_follows_end,
                    lock=lock,
                )
                try:
                    dir_opening.load(opened, background, progress, cluster_id, node_id, make_worker)
                    return opened
                except (NoSpaceError, LogDirOfflineError) as error:
                    is_full = isinstance(error, NoSpaceError) or isinstance(error.__cause__, NoSpaceError)
                    if not is_full:
                        raise
                    if not Reserve(fs, path).give_up():  # else once more, in the room that was kept back
                        raise LogDirFullError(
                            f"{path} is too full to be opened: {error}. Nothing in it is lost: free some room or make "
                            "the disk larger, and start again"
                        ) from error
        except OSError as error:
            lock.release()
            raise LogDirOfflineError(f"{path} cannot be opened: {error}") from error
        except BaseException:
            lock.release()
            raise

    def __repr__(self) -> str:
        refused = f", {len(self.refused)} refused" if self.refused else ""
        state = "closed" if self.closed else "out of use" if self.health.failure is not None else "open"
        return f"<LogDir {self.path}: {len(self.topic_names())} topics, {len(self.logs)} partitions{refused}, {state}>"

    # Topics and partitions

    def create_topic(self, name: str, partitions: int = 1, config: Mapping[str, object] | None = None) -> TopicInfo:
        """Create a topic with its own ``config``: Kafka's keys; texts or Python's own types.

        Raises `InvalidTopicError`, `TopicExistsError`, `InvalidConfigError`, ValueError (number of partitions).
        """
        with self.changing():
            topic_changes.create(self, name, partitions, config or {})
            return self._info(name)

    def add_partitions(self, name: str, count: int) -> TopicInfo:
        """Give a topic more partitions, until it has ``count``. `UnknownTopicError`, ValueError (no more than now)."""
        with self.changing():
            topic_changes.add_partitions(self, name, count)
            return self._info(name)

    def delete_topic(self, name: str) -> None:
        """Delete a topic, refused partitions too; its files go after ``file.delete.delay.ms``. `UnknownTopicError`."""
        with self.changing():
            topic_changes.delete(self, name)

    def alter_config(self, name: str, changes: Mapping[str, object | None]) -> TopicInfo:
        """Change a topic's configuration; None for a key gives it back its default. Errors as of `create_topic`.

        A topic that was found here, of Kafka's making, has nothing deleted unless its retention is set in this way.
        """
        with self.changing():
            topic_changes.alter(self, name, changes)
            return self._info(name)

    def reconfigure(self, config: LogDirConfig) -> None:
        """Another configuration of the directory, and so other defaults of its topics, from now on."""
        with self.changing():
            topic_changes.reconfigure(self, config)

    # Partitions of replicated topics, of which a directory has some: see `seglog.storage.directory.replica_changes`

    def hold(self, name: str, topic_id: UUID, number: int, config: Mapping[str, str]) -> Log:
        """Make or find one partition; what `hold_many` gives for it, or raises."""
        (held,) = self.hold_many([Wanted(name, topic_id, number, config)])
        if isinstance(held, SeglogError):
            raise held
        return held

    def hold_many(self, wanted: Iterable[Wanted | tuple[str, UUID, int, Mapping[str, str]]]) -> list[Log | SeglogError]:
        """Make those that are not there, and set the topics' configuration; durable when it returns.

        For each its log, or why it is not served: `refused`, or a wrong configuration. A stray of it is taken back; one
        whose files were missing is made anew and empty. Of a topic with another id, what is here is set aside first.
        """
        with self.changing():
            return replica_changes.hold(self, [Wanted(*one) for one in wanted])

    def let_go(self, partitions: TopicPartition | Iterable[TopicPartition]) -> None:
        """These are here no longer, refused ones too; their files go after ``file.delete.delay.ms``."""
        with self.changing():
            chosen = [partitions] if isinstance(partitions, TopicPartition) else list(partitions)
            replica_changes.let_go(self, chosen)

    def set_aside(self, partitions: Iterable[TopicPartition]) -> None:
        """These are here no longer, and all that they have is kept as strays, which `hold_many` takes back."""
        with self.changing():
            replica_changes.set_aside(self, list(partitions))

    def strays(self) -> list[FoundStray]:
        """What was set aside and is kept: see `seglog.storage.directory.strays`."""
        return list(find_strays(self.fs, self.path))

    def remove_strays(self, topic_ids: Set[UUID]) -> list[FoundStray]:
        """Delete the strays of these topics, which is durable when it returns; which they were."""
        with self.changing():
            return replica_changes.remove_strays(self, topic_ids)

    def set_config(self, name: str, config: Mapping[str, str]) -> None:
        """The whole of a topic's own configuration, in place of what it was. `UnknownTopicError`."""
        with self.changing():
            replica_changes.set_config(self, name, config)

    def topics(self) -> dict[str, TopicInfo]:
        """All topics by name, those with refused partitions too."""
        with self._lock:
            counts = Counter(partition.topic for partition in (*self.logs, *self.refused))
            return {name: self._info(name, counts[name]) for name in sorted(counts.keys() | self.entries.keys())}

    def _info(self, name: str, partitions: int | None = None) -> TopicInfo:
        return TopicInfo(
            name,
            self.topic_id(name),
            len(self.partitions_of(name)) if partitions is None else partitions,
            dict(self.entries[name].config) if name in self.entries else topic_changes.config_of_found(name),
        )

    def topic_names(self) -> Set[str]:
        with self._lock:
            return {partition.topic for partition in (*self.logs, *self.refused)} | self.entries.keys()

    def topic_id(self, name: str) -> UUID | None:
        entry = self.entries.get(name)
        if entry is not None and entry.topic_id is not None:
            return entry.topic_id
        return next((found for one, found in list(self.topic_ids.items()) if one.topic == name and found), None)

    def partitions(self) -> list[TopicPartition]:
        """The partitions that are served."""
        with self._lock:
            return sorted(self.logs)

    def partitions_of(self, name: str) -> list[TopicPartition]:
        """All partitions of a topic, refused ones too."""
        with self._lock:
            return sorted(one for one in (*self.logs, *self.refused) if one.topic == name)

    def log(self, topic: str, partition: int = 0) -> Log:
        """An open partition. `UnknownTopicError`; or what it was refused for, `DamagedPartitionError` say."""
        self._check_open()
        key = TopicPartition(topic, partition)
        log = self.logs.get(key)
        if log is not None:
            return log
        reason = self.refused.get(key)
        if reason is not None:
            raise reason.with_traceback(None)
        raise UnknownTopicError(f"there is no partition {key} in {self.path}")

    def path_of(self, partition: TopicPartition) -> str:
        return os.path.join(self.path, str(partition))

    def add(self, partition: TopicPartition, one: PartitionLoaded) -> None:
        """Serve a partition that was loaded."""
        self.logs[partition] = one.loaded.log
        self.reports[partition] = one.loaded.report
        self.topic_ids[partition] = one.topic_id
        if one.loaded.log.config.flush_ms < MAX_INT64:
            housekeeping.plan_flush(self)

    # Making logs shorter

    def delete_records(self, topic: str, partition: int, before: int) -> int:
        """`Log.delete_records`, with the new start in its checkpoint when this returns: whoever reads the directory
        sees it, and no crash brings the records back. Kafka writes it within a minute."""
        return self.log(topic, partition).delete_records(before, lambda: housekeeping.write_log_starts(self))

    def truncate_to(self, topic: str, partition: int, offset: int) -> bool:
        """`Log.truncate_to`, with the checkpoints lowered before.

        A log that ends below its checkpointed recovery point is refused as damaged when it is opened next.
        """
        return dir_truncation.truncate_to(self, TopicPartition(topic, partition), offset)

    def truncate_fully_and_start_at(self, topic: str, partition: int, offset: int) -> None:
        """`Log.truncate_fully_and_start_at`, with the checkpoints lowered before."""
        dir_truncation.truncate_fully_and_start_at(self, TopicPartition(topic, partition), offset)

    def save_from(self, topic: str, partition: int, offset: int) -> str:
        """Copy what `truncate_to` would cut into the partition's ``.seglog``; where it is now."""
        return dir_truncation.save_from(self, TopicPartition(topic, partition), offset)

    # Looking after

    def housekeeping(self) -> None:
        """Do what is due by the clock: checkpoints, retention, flushes, late deletions, compaction."""
        self._check_open()
        self.worker.run_due()
        self.cleaner.run_due()

    def flush(self) -> None:
        """fsync all logs and write the checkpoints: what was appended before survives a power cut."""
        self._check_open()
        for log in list(self.logs.values()):
            log.flush()
        housekeeping.write_checkpoints(self)

    def checkpoint(self) -> None:
        """Write all checkpoints now."""
        self._check_open()
        housekeeping.write_checkpoints(self)

    def run_retention(self) -> dict[TopicPartition, list[Expired]]:
        """Delete expired segments now; what went, and why."""
        self._check_open()
        return housekeeping.run_retention(self)

    def run_compaction(self) -> list[CompactionStats]:
        """Clean compacted topics until none is dirty enough; one item a round. See `uncleanable` for the others."""
        self._check_open()
        return housekeeping.run_compaction(self)

    def close_deleted(self, log: Log) -> None:
        """Close the files of a log whose directory was renamed; who still reads it is cut off."""
        if log in self.deleted:
            for segment in log.segments:
                segment.close(write=False)
            self.deleted.discard(log)

    def remove_later(self, path: str, delay_ms: int) -> None:
        """Delete a directory that no log uses any more."""
        self.worker.schedule(delay_ms, lambda: remove_tree(self.fs, path))

    # Closing

    def withhold_marker(self, *, is_withheld: bool) -> None:
        """Whether `close` writes no marker of a clean shutdown. A directory that may have lost something must not have
        one before that is written down, or the next start would take it for whole."""
        self.is_marker_withheld = is_withheld

    def close(self) -> None:
        """Flush and close all logs, write snapshots and checkpoints, and last the marker of a clean shutdown.

        There is no marker where a partition was refused, so that it is looked at again. After a failure of the disk
        only the files are closed; `LogDirOfflineError` if it fails here.
        """
        with self._lock:
            if self.closed:
                return
            self.closed = True
        dir_closing.close(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @contextmanager
    def changing(self) -> Iterator[None]:
        """What changes topics, or whole partitions, one at a time."""
        with self._lock:
            self._check_open()  # with the lock: `close` may have come first
            yield

    def _check_open(self) -> None:
        if self.closed:
            raise LogClosedError(f"{self.path} is closed")
        self.health.check()
