"""A log directory with its topics and partitions: opening, changes, housekeeping, closing (``LogManager.scala``).

Any thread may call any method; changes of topics run one after the other. Any number of threads may read a `Log` while
one writes. Only one process can open a directory: ``.lock``.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, contextmanager, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self
from uuid import UUID

from seglog.core.config import LogDirConfig
from seglog.core.errors import (
    InvalidLogDirError,
    LogClosedError,
    LogDirFullError,
    LogDirOfflineError,
    SeglogError,
    UnknownTopicError,
)
from seglog.core.fs import Lock, NoSpaceError
from seglog.core.ground import Ground
from seglog.core.passes import for_each, raise_first
from seglog.core.types import TopicPartition
from seglog.storage.directory.adoption import roll_forward
from seglog.storage.directory.catalog import Catalog, NewTopic, ReplicaSpec, config_of_found
from seglog.storage.directory.contents import (
    check_fresh,
    check_mode,
    list_entries,
    make_directory,
    read_or_make_meta,
    resolve,
)
from seglog.storage.directory.housekeeping import Housekeeping
from seglog.storage.directory.loading import LoadProgress, load_partitions
from seglog.storage.directory.log_changes import BeginEpoch, Cut, LogChange, MoveStart, StartAt
from seglog.storage.directory.strays import StrayDirectory
from seglog.storage.formats.checkpoints import (
    MetaProperties,
    read_clean_shutdown,
    remove_clean_shutdown,
    write_clean_shutdown,
    write_meta_properties,
)
from seglog.storage.formats.life_file import carry_over
from seglog.storage.formats.paths import LOCK
from seglog.storage.formats.topics_file import TopicEntry, TopicInfo, read_topics
from seglog.storage.log import quarantine
from seglog.storage.log.dir_health import DirHealth, Reserve, reserve_size
from seglog.storage.log.epoch_file import write_all
from seglog.storage.log.epochs import LeaderEpochs
from seglog.storage.log.log import Log
from seglog.storage.log.retention import ExpiredSegment
from seglog.storage.log.segments import segment_at

if TYPE_CHECKING:
    from seglog.storage.compaction.log_cleaner import CompactionStats

_logger = logging.getLogger("seglog")
_CUT_TOGETHER: Final = 128
"""Logs that are truncated together: their locks are held meanwhile."""
_CUT_THREADS: Final = 8


def _flush_cut(log: Log) -> SeglogError | None:
    """fsync a log that was cut. On a full disk an index may have no room; the cut is durable without it."""
    try:
        log.flush()
    except LogDirFullError:
        return None
    except SeglogError as error:
        return error
    return None


class LogDir:
    """An open log directory; made by `open`, a context manager.

    ``refused`` has the partitions that did not load, with the errors; ``missing`` those of them that had data and whose
    files are gone; ``reports`` the recovery reports of the others; ``uncleanable`` the partitions that compaction skips
    until the next start, with the errors. ``was_clean``: the directory was closed cleanly before this opening.
    """

    def __init__(
        self,
        catalog: Catalog,
        housekeeping: Housekeeping,
        *,
        meta: MetaProperties,
        lock: Lock,
        was_clean: bool,
    ) -> None:
        """Use `open`."""
        self.catalog = catalog
        self.path = catalog.path
        self.fs = catalog.fs
        self.clock = catalog.clock
        self.health = catalog.health
        self.checkpoints = catalog.checkpoints
        self.logs = catalog.logs
        self.topic_ids = catalog.topic_ids
        self.refused = catalog.refused
        self.missing = catalog.missing
        self.reports = catalog.reports
        self.uncleanable = catalog.uncleanable
        self.worker = catalog.worker
        self.compacting = housekeeping.compacting
        self.meta = meta  # set once more, before other threads have the directory
        self.was_clean = was_clean
        self.closed = False  # guarded by _lock
        self._housekeeping = housekeeping
        self._file_lock = lock
        self._is_marker_withheld = False  # set by whoever registers the broker, one thread at a time; read at the close
        self._workers = catalog.ground.workers
        self._lock = threading.RLock()

    @property
    def config(self) -> LogDirConfig:
        return self.catalog.config

    @property
    def entries(self) -> Mapping[str, TopicEntry]:
        """The entries of ``seglog.topics``."""
        return self.catalog.entries

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
        ground: Ground | None = None,
    ) -> Self:
        """Open the log directory at ``path``, also one of Kafka's, and recover logs that were not closed cleanly.

        With ``background``, threads flush, write checkpoints, delete expired segments and compact. Otherwise
        `housekeeping` does, and an append that begins a segment waits for the fsync of the last one. ``cluster_id`` and
        ``node_id`` go into a new directory's ``meta.properties``; an existing one must have the same.

        Raises `InvalidLogDirError` (not a log directory, or it must not be opened), `LogDirInUseError`,
        `CorruptCheckpointError` (``meta.properties``, ``seglog.topics``), `LogDirOfflineError` (the disk fails), and
        `LogDirFullError` (no room for the files of an opening). Damaged partitions do not raise: see `refused`.
        """
        if not isinstance(config, LogDirConfig):
            config = LogDirConfig.from_mapping(config or {})
        ground, path = ground or Ground(), resolve(path)
        fs = ground.fs
        try:
            make_directory(fs, path, create=create)
            check_mode(fs, path)
            check_fresh(fs, path)
            lock = fs.lock(os.path.join(path, LOCK))
        except OSError as error:
            raise InvalidLogDirError(f"{path} cannot be opened for writing: {error}") from error

        try:
            while True:
                try:
                    return cls._load(
                        ground,
                        path,
                        config,
                        lock,
                        hw_follows_end=hw_follows_end,
                        background=background,
                        progress=progress,
                        cluster_id=cluster_id,
                        node_id=node_id,
                    )
                except (NoSpaceError, LogDirOfflineError) as error:
                    is_full = isinstance(error, NoSpaceError) or isinstance(error.__cause__, NoSpaceError)
                    if not is_full:
                        raise
                    if not Reserve(fs, path).give_up():  # else retry with the reserved space
                        space = fs.space(path)
                        raise LogDirFullError(
                            f"{path} is too full to be opened: {error}. Nothing in it is lost. {space.free} bytes are "
                            f"free: remove {max(1, 2 * reserve_size(space.total))} bytes of other files or make the "
                            "disk larger, and start again"
                        ) from error
        except OSError as error:
            lock.release()
            raise LogDirOfflineError(f"{path} cannot be opened: {error}") from error
        except BaseException:
            lock.release()
            raise

    @classmethod
    def _load(
        cls,
        ground: Ground,
        path: str,
        config: LogDirConfig,
        lock: Lock,
        *,
        hw_follows_end: bool,
        background: bool,
        progress: Callable[[LoadProgress], None] | None,
        cluster_id: str | None,
        node_id: int | None,
    ) -> Self:
        """Load a directory that was just locked (``LogManager.loadLogs``).

        If this fails, no file stays open but the lock.
        """
        fs, clock = ground.fs, ground.clock
        found = list_entries(fs, path)
        entries = read_topics(fs, path)
        meta = read_or_make_meta(ground, path, cluster_id=cluster_id, node_id=node_id)
        was_clean = read_clean_shutdown(fs, path) is not None
        if was_clean:
            carry_over(fs, path)
        remove_clean_shutdown(fs, path)
        health = DirHealth(path)
        worker, cleaner = (
            ground.make_worker(clock, health.refusal, f"{name} {path}" if background else None)
            for name in ("seglog", "seglog-cleaner")
        )
        catalog = Catalog(
            ground=ground,
            path=path,
            config=config,
            hw_follows_end=hw_follows_end,
            health=health,
            worker=worker,
            entries=entries,
            strays=found.strays,
        )
        housekeeping = Housekeeping(catalog, cleaner)
        try:
            partitions = catalog.finish_changes(found)
            loaded, refused = load_partitions(
                partitions,
                lambda one, tell: catalog.load_partition(one, catalog.checkpoints.known(one, clean=was_clean), tell),
                path=path,
                workers=ground.workers,
                threads=config.num_recovery_threads_per_data_dir,
                progress=progress,
            )
            catalog.refused.put_all(refused)
            for partition, one in loaded.items():
                catalog.add(partition, one)
            roll_forward(catalog)
            with suppress(LogDirFullError):  # the existing ones are valid
                catalog.checkpoints.write()
        except BaseException:
            housekeeping.stop()
            catalog.close_files()
            raise
        for name in list_entries(fs, path).deleted:
            catalog.remove_later(os.path.join(path, name), config.topics.file_delete_delay_ms)
        health.keep_back(Reserve(fs, path))
        housekeeping.begin()
        return cls(catalog, housekeeping, meta=meta, lock=lock, was_clean=was_clean)

    def __repr__(self) -> str:
        refused = f", {len(self.refused)} refused" if self.refused else ""
        state = "closed" if self.closed else "out of use" if self.health.failure is not None else "open"
        return f"<LogDir {self.path}: {len(self.topic_names())} topics, {len(self.logs)} partitions{refused}, {state}>"

    # Topics and partitions

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        config: Mapping[str, object] | None = None,
        *,
        topic_id: UUID | None = None,
    ) -> TopicInfo:
        """Create a topic with its own ``config``: Kafka's keys, values as text or Python types. Without ``topic_id`` it
        gets a new id.

        Raises `InvalidTopicError`, `TopicExistsError`, `InvalidConfigError`, ValueError (number of partitions).
        """
        with self.changing():
            self.catalog.create_topics([NewTopic(name, partitions, config or {}, topic_id)])
            return self._info(name)

    def create_topics(self, wanted: Iterable[NewTopic]) -> None:
        """`create_topic` for several topics: all or none, with as many fsyncs as for one. Raises as that."""
        with self.changing():
            self.catalog.create_topics(list(wanted))

    def add_partitions(self, name: str, count: int) -> TopicInfo:
        """Raise a topic's number of partitions to ``count``. `UnknownTopicError`, ValueError (not more than now)."""
        with self.changing():
            self.catalog.add_partitions({name: count})
            return self._info(name)

    def add_partitions_to(self, counts: Mapping[str, int]) -> None:
        """`add_partitions` for several topics: all or none, with as many fsyncs as for one. Raises as that."""
        with self.changing():
            self.catalog.add_partitions(counts)

    def delete_topic(self, name: str) -> None:
        """Delete a topic; its files are removed after ``file.delete.delay.ms``. `UnknownTopicError`."""
        self.delete_topics({name})

    def delete_topics(self, names: Set[str]) -> None:
        """`delete_topic` for several topics: all or none, with as many fsyncs as for one. Raises as that."""
        with self.changing():
            self.catalog.delete_topics(names)

    def alter_config(self, name: str, changes: Mapping[str, object | None]) -> TopicInfo:
        """Change a topic's configuration; None resets a key to its default. Raises as `create_topic`.

        Retention deletes no records of a topic that Kafka has made, until its retention is set here.
        """
        with self.changing():
            self.catalog.alter_config(name, changes)
            return self._info(name)

    def reconfigure(self, config: LogDirConfig) -> None:
        """Replace the configuration of the directory, and with it the defaults of its topics."""
        with self.changing():
            before = self.config
            self.catalog.reconfigure(config)
            self._housekeeping.cleaner_reconfigured(before)

    # Partitions of replicated topics: see `Catalog.hold`

    def hold(self, name: str, topic_id: UUID, number: int, config: Mapping[str, str]) -> Log:
        """`hold_many` for one partition; raises its error."""
        (held,) = self.hold_many([ReplicaSpec(name, topic_id, number, config)])
        if isinstance(held, SeglogError):
            raise held
        return held

    def hold_many(self, wanted: Iterable[ReplicaSpec]) -> list[Log | SeglogError]:
        """Make missing partitions, and set the topics' configuration; durable when it returns.

        Returns each partition's log, or its error: from `refused`, or a wrong configuration. A stray of the partition
        is restored; a partition whose files are missing becomes empty. Partitions of a topic with another id are first
        set aside.
        """
        with self.changing():
            return self.catalog.hold(list(wanted))

    def let_go(self, partitions: TopicPartition | Iterable[TopicPartition]) -> None:
        """Delete partitions, also refused ones; their files are removed after ``file.delete.delay.ms``."""
        with self.changing():
            chosen = [partitions] if isinstance(partitions, TopicPartition) else list(partitions)
            self.catalog.let_go(chosen)

    def set_aside(self, partitions: Iterable[TopicPartition]) -> None:
        """Stop serving partitions, and keep their files as strays, which `hold_many` restores."""
        with self.changing():
            self.catalog.set_aside(list(partitions))

    def strays(self) -> list[StrayDirectory]:
        """The strays of the directory: see `seglog.storage.directory.strays`."""
        return self.catalog.strays()

    @property
    def has_strays(self) -> bool:
        """Whether there may be strays of partitions that this process knew."""
        return self.catalog.has_strays

    def strays_of(self, absent: Iterable[ReplicaSpec]) -> list[StrayDirectory]:
        """`strays`, if one may be of these partitions. The directory is not listed for new partitions."""
        return self.catalog.strays_of(absent)

    def remove_strays(self, topic_ids: Set[UUID]) -> list[StrayDirectory]:
        """Delete the strays of these topics, and return them; durable when it returns."""
        with self.changing():
            return self.catalog.remove_strays(topic_ids)

    def set_config(self, name: str, config: Mapping[str, str]) -> None:
        """Replace the whole configuration of a topic. `UnknownTopicError`."""
        with self.changing():
            self.catalog.set_config(name, config)

    def partitions_of_ids(self, topic_ids: Set[UUID]) -> list[TopicPartition]:
        """All partitions of the topics with these ids, also refused ones."""
        with self._lock:
            return self.catalog.partitions_of_ids(topic_ids)

    def topic(self, name: str) -> TopicInfo | None:
        """One of `topics`; None if there is none of that name."""
        with self._lock:
            return self._info(name) if self.catalog.has_topic(name) else None

    def topics(self) -> dict[str, TopicInfo]:
        """All topics by name, also those with refused partitions."""
        with self._lock:
            counts = Counter(partition.topic for partition in (*self.logs, *self.refused))
            return {name: self._info(name, counts[name]) for name in sorted(counts.keys() | self.entries.keys())}

    def _info(self, name: str, partitions: int | None = None) -> TopicInfo:
        return TopicInfo(
            name,
            self.topic_id(name),
            len(self.partitions_of(name)) if partitions is None else partitions,
            dict(self.entries[name].config) if name in self.entries else config_of_found(name),
        )

    def topic_names(self) -> Set[str]:
        with self._lock:
            return self.catalog.topic_names()

    def topic_id(self, name: str) -> UUID | None:
        return self.catalog.topic_id(name)

    def partitions(self) -> list[TopicPartition]:
        """The partitions with an open log."""
        with self._lock:
            return sorted(self.logs)

    def partitions_of(self, name: str) -> list[TopicPartition]:
        """All partitions of a topic, also refused ones."""
        with self._lock:
            return self.catalog.partitions_of(name)

    def log(self, topic: str, partition: int = 0) -> Log:
        """The log of a partition. `UnknownTopicError`, or the error with which it did not load."""
        self._check_open()
        key = TopicPartition(topic, partition)
        log = self.logs.get(key)
        if log is not None:
            return log
        reason = self.refused.get(key)
        if reason is not None:
            raise reason.with_traceback(None)
        raise UnknownTopicError(f"there is no partition {key} in {self.path}")

    def identify(self, directory_id: UUID) -> None:
        """Write the ``directory.id`` of a directory without one (KIP-858)."""
        meta = self.meta._replace(directory_id=directory_id)
        with self.health.guard():
            write_meta_properties(self.fs, self.path, meta, self.clock.now_ms())
        self.meta = meta

    def refuse(self, partition: TopicPartition, reason: SeglogError) -> None:
        """Stop serving a partition, and keep its files."""
        self.catalog.refuse(partition, reason)

    def path_of(self, partition: TopicPartition) -> str:
        return self.catalog.path_of(partition)

    # Truncation

    def delete_records(self, topic: str, partition: int, before: int) -> int:
        """`Log.delete_records`, and write the new start to its checkpoint: readers of the directory see it, and no
        crash restores the records. Kafka writes the checkpoint within a minute."""
        (moved,) = self._move_starts([MoveStart(TopicPartition(topic, partition), before)])
        if isinstance(moved, SeglogError):
            raise moved
        return moved

    def truncate_to(self, topic: str, partition: int, offset: int) -> bool:
        """`Log.truncate_to`, durable when it returns. If a full disk or a crash interrupts it, it can be repeated."""
        before = self.log(topic, partition).log_end_offset
        self._carry_out_one(Cut(TopicPartition(topic, partition), offset, offset, before, saves=False))
        return self.log(topic, partition).log_end_offset < before

    def truncate_fully_and_start_at(self, topic: str, partition: int, offset: int) -> None:
        """`Log.truncate_fully_and_start_at`, durable when it returns."""
        self._carry_out_one(StartAt(TopicPartition(topic, partition), offset))

    def _carry_out_one(self, change: LogChange) -> None:
        (outcome,) = self.carry_out([change])
        if isinstance(outcome, SeglogError):
            raise outcome

    def carry_out(self, changes: Sequence[LogChange]) -> list[str | SeglogError | None]:
        """Make changes of different logs, with few waits for the disk. They are durable when it returns.

        Returns for each change its error, the path of the copy that a `Cut` made, or None. Off the event loop, by one
        thread at a time.
        """
        outcomes: dict[TopicPartition, str | SeglogError | None] = {}
        outcomes |= self._begin_epochs([one for one in changes if isinstance(one, BeginEpoch)])
        cuts = [one for one in changes if isinstance(one, Cut | StartAt)]
        for at in range(0, len(cuts), _CUT_TOGETHER):
            outcomes |= self._cut(cuts[at : at + _CUT_TOGETHER])
        moves = [one for one in changes if isinstance(one, MoveStart)]
        for move, moved in zip(moves, self._move_starts(moves), strict=True):
            outcomes[move.partition] = moved if isinstance(moved, SeglogError) else None
        return [outcomes[one.partition] for one in changes]

    # Leader epochs

    def _begin_epochs(self, changes: Sequence[BeginEpoch]) -> dict[TopicPartition, SeglogError | None]:
        outcomes: dict[TopicPartition, SeglogError | None] = {one.partition: None for one in changes}
        begun: dict[Log, LeaderEpochs] = {}

        def begin(one: BeginEpoch) -> None:
            log = self.log(*one.partition)
            begun[log] = log.begin_epoch(one.epoch)

        for one, error in for_each(changes, begin):
            outcomes[one.partition] = error
        for log, error in self._write_epochs(begun).items():
            log.forget_epoch(begun[log])
            outcomes[log.topic_partition] = error
        return outcomes

    def _write_epochs(self, logs: Iterable[Log]) -> dict[Log, SeglogError]:
        """Write their ``leader-epoch-checkpoint``; returns the logs whose file was not written."""
        logs = list(logs)
        try:
            with self.health.guard():
                full = write_all([log.epoch_file for log in logs], self._workers, self.health.make_room)
        except SeglogError as error:
            return dict.fromkeys(logs, error)
        return {log: self.health.refusal(full[log.epoch_file]) for log in logs if log.epoch_file in full}

    # Truncation

    def _cut(self, changes: Sequence[Cut | StartAt]) -> dict[TopicPartition, str | SeglogError | None]:
        """Lower the checkpoints, cut the logs, fsync them (``LogManager.truncateTo``).

        Recovery treats a log that ends below its recovery point as damaged, so the checkpoints come first; Kafka lowers
        the recovery point afterwards. Until they are written, and the log is cut, no flush may raise it again.
        """
        outcomes: dict[TopicPartition, str | SeglogError | None] = {one.partition: None for one in changes}
        ends: dict[Log, int] = {}
        cut_logs: list[Log] = []
        with ExitStack() as still:

            def prepare(one: Cut | StartAt) -> None:
                log = self.log(*one.partition)
                still.enter_context(log.standing_still())
                if isinstance(one, Cut) and one.saves:
                    outcomes[one.partition] = self._save_from(log, one.offset)
                ends[log] = log.start_of_batch(one.offset) if isinstance(one, Cut) else 0

            def cut(one: Cut | StartAt) -> None:
                log = self.log(*one.partition)
                cut_logs.append(log)
                if isinstance(one, StartAt):
                    log.truncate_fully_and_start_at(one.offset)
                elif not log.truncate_to(one.offset):
                    cut_logs.pop()  # it had epochs to forget at the most

            failed = for_each(changes, prepare)
            try:
                self._lower_checkpoints(ends)
            except SeglogError as error:
                failed += [(one, error) for one in changes]
            outcomes.update((one.partition, error) for one, error in failed)
            done = [one for one in changes if not isinstance(outcomes[one.partition], SeglogError)]
            outcomes.update((one.partition, error) for one, error in for_each(done, cut))
        # Nothing appends to these logs: their replicas wait. A power cut must not restore a tail of a later epoch,
        # which would be a seemingly longer history, nor a log that ends below its start.
        for log, flushed in self._workers.spread(_flush_cut, cut_logs, threads=_CUT_THREADS, name="seglog-cut"):
            if (refused := flushed()) is not None:
                outcomes[log.topic_partition] = refused
        self._write_epochs(ends)  # if there is no room, a start forgets the rest
        try:
            if cut_logs:
                self.checkpoints.write_log_starts()
        except SeglogError as error:
            outcomes.update(dict.fromkeys((log.topic_partition for log in cut_logs), error))
        return outcomes

    def _lower_checkpoints(self, ends: Mapping[Log, int]) -> None:
        committed = {log: log.high_watermark for log, end in ends.items() if end < log.high_watermark}
        for log, end in ends.items():
            log.lower_recovery_point(end)
            log.lower_high_watermark(end)
        try:
            self.checkpoints.write_recovery_points()
            self.checkpoints.write_high_watermarks()
            self.checkpoints.lower_cleaned({log.topic_partition: end for log, end in ends.items()})
        except SeglogError:  # a disk that is full, or failed: the logs are not cut, so their high watermarks stay
            for log, high_watermark in committed.items():
                log.update_high_watermark(high_watermark)
            raise

    def _save_from(self, log: Log, offset: int) -> str:
        """Copy the bytes that a truncation would cut into the partition's ``.seglog``; return the path."""
        with self.health.guard():
            at = max(segment_at(log.segments, offset), 0)
            found = log.segments[at].locate(offset)
            position = log.segments[at].size if found is None else found.position
            return quarantine.save_from(self.fs, log.path, log.segments[at:], position, self.clock.now_ms())

    # The log's start

    def _move_starts(self, changes: Sequence[MoveStart]) -> list[int | SeglogError]:
        """`Log.delete_records` for each, and one checkpoint for all, which is written first. Returns the new starts."""
        outcomes: dict[TopicPartition, int | SeglogError] = {}
        targets: dict[Log, int] = {}

        def check(one: MoveStart) -> None:
            log = self.log(*one.partition)
            target = log.check_deletable(one.offset)
            outcomes[one.partition] = target
            if target > log.log_start_offset:
                targets[log] = target

        def move(log: Log) -> None:
            log.delete_records(targets[log])

        failed: list[tuple[TopicPartition, SeglogError]] = []
        failed += ((one.partition, error) for one, error in for_each(changes, check))
        if targets:
            try:
                with self.checkpoints.promised({log.topic_partition: start for log, start in targets.items()}):
                    failed += ((log.topic_partition, error) for log, error in for_each(targets, move))
            except SeglogError as error:
                failed += ((log.topic_partition, error) for log in targets)
        outcomes.update(failed)
        return [outcomes[one.partition] for one in changes]

    # Housekeeping

    def housekeeping(self) -> None:
        """Run the tasks that are due: checkpoints, retention, flushes, late deletions, compaction."""
        self._check_open()
        self._housekeeping.run_due()

    def flush(self) -> None:
        """fsync all logs and write the checkpoints: earlier appends survive a power cut. If one of them fails, the
        others are fsynced all the same; then its error is raised."""
        self._check_open()
        failed = for_each(list(self.logs.values()), Log.flush)
        self.checkpoints.write()
        raise_first(one for one in failed if not isinstance(one[1], LogClosedError))  # deleted meanwhile

    def checkpoint(self) -> None:
        """Write all checkpoints now."""
        self._check_open()
        self.checkpoints.write()

    def run_retention(self) -> dict[TopicPartition, list[ExpiredSegment]]:
        """Delete expired segments now; return them with the reasons."""
        self._check_open()
        return self._housekeeping.run_retention()

    def run_compaction(self) -> list[CompactionStats]:
        """Compact topics until none is dirty enough; return the statistics of each round. See also `uncleanable`."""
        self._check_open()
        return self._housekeeping.run_compaction()

    # Closing

    def withhold_marker(self, *, is_withheld: bool) -> None:
        """Set whether `close` omits the marker of a clean shutdown. A directory that may have lost records must not
        have the marker before the loss is recorded, or the next start would not find it."""
        self._is_marker_withheld = is_withheld

    def close(self) -> None:
        """Flush and close all logs, write snapshots and checkpoints, and last the marker of a clean shutdown.

        Writes no marker if a partition did not load, so that the next opening recovers it. After a disk failure only
        closes the files; `LogDirOfflineError` if the disk fails now.
        """
        with self._lock:
            if self.closed:
                return
            self.closed = True
        failed_before = self.health.failure is not None
        try:
            self._housekeeping.stop()
            is_whole = self._close_logs()
            if self.health.failure is None:
                try:
                    self.checkpoints.write()
                    if not self.refused and is_whole and not self._is_marker_withheld:
                        with self.health.guard():
                            self.health.make_room(lambda: write_clean_shutdown(self.fs, self.path))
                except LogDirFullError as error:
                    _logger.warning("%s is closed without the marker of a clean shutdown: %s", self.path, error)
        finally:
            self.catalog.close_files()
            self._file_lock.release()
        if not failed_before:
            self.health.check()

    def _close_logs(self) -> bool:
        """Close all logs; return False if a full disk kept one from a clean close. The next start recovers it."""
        is_whole = True
        threads = self.config.num_recovery_threads_per_data_dir
        for _, result in self._workers.spread(
            Log.close, list(self.logs.values()), threads=threads, name="seglog-close"
        ):
            try:
                result()
            except LogDirFullError as error:
                is_whole = False
                _logger.warning("a log is closed, and will be recovered at the next start: %s", error)
            except LogDirOfflineError:
                continue  # `close` raises it when all files are closed
            except SeglogError as error:  # damage, for instance: the next start checks this log, and the others close
                is_whole = False
                _logger.error("a log cannot be closed cleanly: %s", error)
            except OSError as error:
                self.health.failed(error)
        return is_whole

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Make changes of topics or whole partitions one at a time."""
        with self._lock:
            self._check_open()  # under the lock: `close` may have run first
            yield

    def _check_open(self) -> None:
        if self.closed:
            raise LogClosedError(f"{self.path} is closed")
        self.health.check()
