"""The log directories of one broker in a cluster: each on a disk of its own, which may fail alone (KIP-112).

A partition lies in one of them. Threads: as of `LogDir`; what makes and removes partitions runs one after the other.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from functools import partial
from types import TracebackType
from typing import Self
from uuid import UUID

from seglog.core.config import LogDirConfig
from seglog.core.descriptors import room_for_logs
from seglog.core.errors import (
    DamagedPartitionError,
    LogDirFullError,
    LogDirOfflineError,
    SeglogError,
    TooManyFilesError,
    UnknownTopicError,
)
from seglog.core.ground import Ground
from seglog.core.types import TopicPartition
from seglog.storage.directory import log_dirs_opening, loss_evidence
from seglog.storage.directory.catalog import ReplicaSpec, best_strays
from seglog.storage.directory.cluster_mark import ClusterMark, has_mark, read_marks, write_mark
from seglog.storage.directory.log_dir import LogDir
from seglog.storage.directory.loss_evidence import Kept
from seglog.storage.directory.strays import FoundStray
from seglog.storage.formats.life_file import PENDING, Life, read_life
from seglog.storage.log.log import Log

_logger = logging.getLogger("seglog")
Failed = Callable[[LogDir, OSError], None]


class LogDirs:
    """Made by `open`, a context manager.

    ``dirs`` are the directories that could be opened, ``offline`` those that cannot be used, by path and with the
    reason: their disk failed when they were opened, or later.

    With ``owns_topics`` it is the directory of a broker that is alone: which partitions there are is decided there, by
    `LogDir.create_topic` and the like, and here they are only found.
    """

    def __init__(
        self, dirs: Sequence[LogDir], offline: Mapping[str, SeglogError], *, owns_topics: bool = False
    ) -> None:
        """For `open` and `alone`, which make it whole."""
        self.owns_topics = owns_topics
        self.dirs = list(dirs)
        self.offline = dict(offline)
        self._has_unseen = bool(self.offline)
        self._where: dict[TopicPartition, LogDir] = {}
        self._mark: ClusterMark | None = None
        self._lives: dict[LogDir, Life] = {}
        """What the directories that are in order say, once this broker was registered."""
        self._failed: Failed | None = None
        self._untold: list[tuple[LogDir, OSError]] = []
        self._lock = threading.RLock()
        self._failing = threading.RLock()
        """Of failures and lives only: it is taken while a log's lock is held, `_lock` before one is."""
        for directory in self.dirs:
            for partition in (*directory.logs, *directory.refused):
                first = self._where.setdefault(partition, directory)
                if first is not directory:
                    reason = DamagedPartitionError(
                        f"{partition} is in {first.path} and in {directory.path}: take one of the two away"
                    )
                    for either in (first, directory):
                        either.refuse(partition, reason)
        self._past = loss_evidence.look_back(self.dirs, absent=len(self.offline))
        for directory in self.dirs:
            directory.health.on_failure = lambda error, directory=directory: self._has_failed(directory, error)
            if directory.health.failure is not None:
                self._has_failed(directory, directory.health.failure)

    @classmethod
    def open(
        cls,
        paths: Sequence[str | os.PathLike[str]],
        *,
        config: LogDirConfig | Mapping[str, object] | None = None,
        background: bool = False,
        cluster_id: str | None = None,
        node_id: int | None = None,
        hw_follows_end: bool = False,
        ground: Ground | None = None,
    ) -> Self:
        """Open them all, those with threads side by side; a disk that fails leaves its directory `offline`.

        All belong to one cluster and node, new ones too. Raises what `LogDir.open` does for one that must not be used
        (`InvalidLogDirError`, `LogDirInUseError`), and `LogDirOfflineError` if none is left.
        """
        ground = ground or Ground()
        resolved = log_dirs_opening.resolve_all(paths)
        meta = log_dirs_opening.common_meta(ground.fs, resolved, cluster_id=cluster_id, node_id=node_id, rng=ground.rng)

        def open_one(path: str) -> LogDir:
            opened = LogDir.open(
                path,
                config=config,
                background=background,
                cluster_id=meta.cluster_id,
                node_id=meta.node_id,
                hw_follows_end=hw_follows_end,
                ground=ground,
            )
            has_past = not opened.was_clean and read_life(opened.fs, opened.path) is not None
            opened.withhold_marker(is_withheld=has_past)  # until `kept_since` has said what was lost
            return opened

        opened, offline = log_dirs_opening.open_all(open_one, resolved, threads=len(resolved) if background else 1)
        try:
            log_dirs_opening.identify(opened, ground.rng)
            directories = cls(opened, offline)
            if meta.cluster_id is not None and meta.node_id is not None:
                directories.mark(meta.cluster_id, meta.node_id)
            return directories
        except BaseException:
            log_dirs_opening.close_all(opened)
            raise

    @classmethod
    def alone(cls, directory: LogDir) -> Self:
        """Those of a broker that is alone, which has one."""
        return cls([directory], {}, owns_topics=True)

    # Failures

    @property
    def healthy(self) -> list[LogDir]:
        return [directory for directory in self.dirs if directory.health.failure is None]

    @property
    def failed(self) -> Failed | None:
        """Told once of each directory whose disk fails, in the thread that found out; when it is set, of those that
        have failed by then."""
        return self._failed

    @failed.setter
    def failed(self, tell: Failed | None) -> None:
        with self._failing:
            self._failed = tell
            untold, self._untold = (self._untold, []) if tell is not None else ([], self._untold)
        if tell is not None:
            for directory, error in untold:
                tell(directory, error)

    def _has_failed(self, directory: LogDir, error: OSError) -> None:
        with self._failing:
            reason = LogDirOfflineError(f"{directory.path} is out of use since: {error}")
            self.offline[directory.path] = reason
            if not self.owns_topics:
                _logger.error("%s. Its partitions are served by their other replicas; see docs/replication.md", reason)
                self._note_failure(directory)
            tell = self._failed
            if tell is None:
                self._untold.append((directory, error))
        if tell is not None:
            tell(directory, error)

    def _note_failure(self, directory: LogDir) -> None:
        written = self._lives or self._past_lives()
        others = {one: written[one] for one in self.healthy if one in written}
        noted = loss_evidence.note_failure(others, directory)
        if self._lives:
            self._lives = dict(noted)

    def _past_lives(self) -> Mapping[LogDir, Life]:
        """What stands in the files before this broker is registered."""
        found = {directory: read_life(directory.fs, directory.path) for directory in self.healthy}
        return {directory: told for directory, told in found.items() if told is not None}

    def kept_since(self, epoch: int, last: int | None = None) -> int:
        """Since which broker epoch nothing was lost, for a registration with ``epoch``; ``last`` is the epoch of this
        broker's last one, if that is known. `seglog.storage.directory.loss_evidence`."""
        healthy = self.healthy
        flushed = {} if self._lives else {one: loss_evidence.flush_synced(one, list(one.logs)) for one in healthy}
        with self._failing:
            healthy = self.healthy
            if not healthy:
                raise LogDirOfflineError(f"no log directory can be used: {', '.join(self.offline)}")
            if self._lives:
                self._write({one: told._replace(epoch=epoch) for one, told in self._lives.items()})
            else:
                in_order = {one: flushed[one] for one in healthy if one in flushed}
                self._lives = dict(loss_evidence.keep(in_order, self._past, epoch, last))
                for directory in self._lives:
                    directory.withhold_marker(is_withheld=False)
            return next(iter(self._lives.values())).kept_since

    def kept(self, partition: TopicPartition) -> Kept | None:
        """What the log of a partition provably kept; None before the first registration, or if its disk has failed."""
        with self._failing:
            directory = self._where.get(partition)
            told = self._lives.get(directory) if directory is not None else None
            if directory is None or told is None or directory.health.failure is not None:
                return None
            return loss_evidence.kept_of(directory, partition, told)

    def _write(self, lives: Mapping[LogDir, Life]) -> None:
        """Under `_failing`."""
        self._lives = {**self._lives, **lives}
        loss_evidence.write_all(lives)
        self._lives = {one: told for one, told in self._lives.items() if one.health.failure is None}

    @contextmanager
    def _changing(self, directory: LogDir, topics: Set[str]) -> Iterator[None]:
        """While partitions of these topics are made, or have another configuration: what a directory says of them is
        taken back before it may be wrong, and said again when it is so."""
        ours: Set[tuple[str, int]] = frozenset()
        with self._failing:
            before = self._lives.get(directory)
            if before is not None:
                ours = {one for one in before.synced if one[0].rpartition("-")[0] in topics}
                if ours:
                    self._write({directory: before._replace(synced=before.synced - ours)})
        yield
        if before is None or before.epoch is None:
            return
        flushed = loss_evidence.flush_synced(directory, [one for one in list(directory.logs) if one.topic in topics])
        with self._failing:
            now = self._lives.get(directory)
            if now is not None and flushed:
                made, synced = dict(now.made), dict(ours)
                said = ((name, max(synced.get(name, before.epoch), made.get(name, 0))) for name in flushed)
                with suppress(LogDirFullError):  # what is not said is not believed
                    self._write({directory: now._replace(synced=now.synced.union(said))})

    def _note_made(self, directory: LogDir, partitions: Iterable[TopicPartition]) -> None:
        """These are made anew in a directory that had belonged to this broker before: durable before they are there."""
        names = {str(partition) for partition in partitions}
        with self._failing:
            told = self._lives.get(directory)
            at = PENDING if told is None or told.epoch is None else told.epoch
            if told is None:
                told = self._past.lives.get(directory)
            if names and told is not None:
                kept = frozenset(one for one in told.made if one[0] not in names)
                noted = told._replace(made=kept | {(name, at) for name in names})
                if self._lives:
                    self._write({directory: noted})
                else:
                    loss_evidence.write_all({directory: noted})
                    self._past = self._past._replace(lives={**self._past.lives, directory: noted})

    # Whose they are

    def mark(self, cluster_id: str, node_id: int) -> None:
        """Have all of them belong to a node of a cluster, each with what any of them has seen of its history."""
        with self._failing:
            found = read_marks(self.dirs[0].fs, (one.path for one in self.dirs)).values()
            generation = max((one.generation for one in found), default=-1)
            epoch = max((one.broker_epoch for one in found), default=0)
            self._mark = ClusterMark(cluster_id, node_id, generation, epoch)
            self._write_mark()

    def note_history(self, *, generation: int = -1, broker_epoch: int = 0) -> None:
        """Write down how far the metadata store has come, if that is further than what is written; durable.

        `LogDirFullError`: a disk has no room for it; the next call tries again."""
        with self._failing:
            mark = self._mark
            if mark is None or (generation <= mark.generation and broker_epoch <= mark.broker_epoch):
                return
            self._mark = mark._replace(
                generation=max(generation, mark.generation), broker_epoch=max(broker_epoch, mark.broker_epoch)
            )
            try:
                self._write_mark()
            except LogDirFullError:
                self._mark = mark
                raise

    def _write_mark(self) -> None:
        assert self._mark is not None
        for directory in self.healthy:
            try:
                with directory.health.guard():
                    if not has_mark(directory.fs, directory.path, self._mark):
                        write = partial(write_mark, directory.fs, directory.path, self._mark)
                        directory.health.make_room(write)
            except LogDirOfflineError:
                continue  # it tells so itself

    # Partitions

    @property
    def logs(self) -> dict[TopicPartition, Log]:
        """All that are served."""
        return {partition: log for directory in self.healthy for partition, log in list(directory.logs.items())}

    def found(self) -> dict[TopicPartition, UUID | None]:
        """All partitions that are here, those that are not served too, with the topic's id if it is known."""
        with self._lock:
            return {
                partition: directory.topic_ids.get(partition) or directory.topic_id(partition.topic)
                for partition, directory in self._where.items()
            }

    def dir_of(self, partition: TopicPartition) -> LogDir:
        """Where a partition lies, also if that has failed. `UnknownTopicError`."""
        directory = self._where.get(partition)
        if directory is None:
            raise UnknownTopicError(f"there is no partition {partition} in {', '.join(one.path for one in self.dirs)}")
        return directory

    def hold_many(self, wanted: Iterable[ReplicaSpec]) -> list[Log | SeglogError]:
        """`LogDir.hold_many`, each in the directory that has it, else in the one with the fewest partitions.

        `LogDirOfflineError` for one whose directory has failed. While a directory is offline that could not even be
        looked at, that is for each that is not found and not marked as new: it may be there (``LogManager.scala``).
        `TooManyFilesError` for those that are one too many: to ask again may help.
        """
        with self._lock:
            asked = list(wanted)
            if self.owns_topics:
                return [self._found(one.partition) for one in asked]
            self._set_namesakes_aside({one.topic: one.topic_id for one in asked})
            strays = self._dirs_of_strays(asked)
            groups: dict[LogDir, list[ReplicaSpec]] = {}
            answers: dict[TopicPartition, Log | SeglogError] = {}
            counts = {directory: len(directory.logs) + len(directory.refused) for directory in self.healthy}
            room = room_for_logs() if any(one.partition not in self._where for one in asked) else 0
            for want in {one.partition: one for one in asked}.values():
                place = strays.get(want.partition) or self._place(want, counts, room)
                if isinstance(place, SeglogError):
                    answers[want.partition] = place
                else:
                    room -= want.partition not in self._where
                    groups.setdefault(place, []).append(want)
            for directory, group in groups.items():
                try:
                    held = self._hold(directory, group)
                except SeglogError as error:  # nothing that is wrong in one directory is for the others
                    held = [error] * len(group)
                for want, log in zip(group, held, strict=True):
                    answers[want.partition] = log
                    if isinstance(log, Log):
                        self._where[want.partition] = directory
            return [answers[one.partition] for one in asked]

    def found_log(self, partition: TopicPartition) -> Log | None:
        """A partition's log, if it is open; with `owns_topics`. It waits for no change that is under way."""
        (directory,) = self.dirs
        log = directory.logs.get(partition)
        if log is not None:
            self._where[partition] = directory
        return log

    def _found(self, partition: TopicPartition) -> Log | SeglogError:
        (directory,) = self.dirs
        log = self.found_log(partition) or directory.refused.get(partition)
        return log or UnknownTopicError(f"there is no partition {partition} in {directory.path}")

    def _dirs_of_strays(self, asked: Sequence[ReplicaSpec]) -> dict[TopicPartition, LogDir]:
        """Where strays of those are that are nowhere else."""
        absent = [one for one in asked if one.partition not in self._where]
        if not absent:
            return {}
        strays = [(one, directory) for directory in self.healthy for one in directory.strays()]
        best, where = best_strays(one for one, _ in strays), {one.path: directory for one, directory in strays}
        found = ((one.partition, best.get((one.topic_id, one.number))) for one in absent)
        return {partition: where[stray.path] for partition, stray in found if stray is not None}

    def _hold(self, directory: LogDir, group: Sequence[ReplicaSpec]) -> list[Log | SeglogError]:
        """A partition of an earlier time that is not here was lost if its files are missing, or lay in a directory that
        has gone; else this broker never had it, and its new log has all that it had: nothing."""
        lost = {one.partition for one in group} & directory.missing
        if not self._past.has_all:
            lost |= {one.partition for one in group if not one.is_new} - {*directory.logs, *directory.refused}
        self._note_made(directory, lost)
        with self._changing(directory, {one.topic for one in group}):
            return directory.hold_many(group)

    def _place(self, want: ReplicaSpec, counts: dict[LogDir, int], room: int) -> LogDir | SeglogError:
        found = self._where.get(want.partition)
        if found is not None:
            return found if found in counts else self.offline[found.path]
        if not counts:
            return LogDirOfflineError(f"no log directory can be used: {', '.join(self.offline)}")
        if self._has_unseen and not want.is_new:
            return LogDirOfflineError(
                f"{want.partition} may be in a directory that is offline: {', '.join(self.offline)}. Bring that back, "
                "or take it out of log.dirs if what it had is to be copied from the other replicas"
            )
        if room <= 0:
            return TooManyFilesError(f"there are no files left for {want.partition} (ulimit -n)")
        fewest = min(counts, key=counts.__getitem__)
        counts[fewest] += 1
        return fewest

    def _set_namesakes_aside(self, ids: Mapping[str, UUID]) -> None:
        """Set aside what other directories than those of the wanted partitions have of earlier topics of that name."""
        for directory in self.healthy:
            names = {name for name in ids.keys() & directory.entries.keys() if directory.topic_id(name) != ids[name]}
            stale = [one for one in (*directory.logs, *directory.refused) if one.topic in names] if names else []
            if stale:
                self.set_aside(stale)

    def let_go(self, partitions: TopicPartition | Iterable[TopicPartition]) -> None:
        """`LogDir.let_go`. What lies in a directory that has failed, or fails at this, stays there."""
        chosen = [partitions] if isinstance(partitions, TopicPartition) else list(partitions)
        self._take_out(chosen, LogDir.let_go)

    def set_aside(self, partitions: Iterable[TopicPartition]) -> None:
        """`LogDir.set_aside`. What lies in a directory that has failed, or fails at this, stays there."""
        self._take_out(list(partitions), LogDir.set_aside)

    def _take_out(self, chosen: list[TopicPartition], act: Callable[[LogDir, list[TopicPartition]], None]) -> None:
        with self._lock:
            if self.owns_topics:  # the directory did that itself, and may have others of these names by now
                for one in chosen:
                    if one not in self.dirs[0].logs:
                        self._where.pop(one, None)
                return
            for directory in self.healthy:
                group = [one for one in chosen if self._where.get(one) is directory]
                if group:
                    try:
                        act(directory, group)
                    except LogDirOfflineError:
                        continue  # it tells so itself
                    for one in group:
                        del self._where[one]

    def strays(self) -> list[FoundStray]:
        """`LogDir.strays` of all that are in order."""
        return [found for directory in self.healthy for found in directory.strays()]

    def delete_topics(self, topic_ids: Set[UUID]) -> bool:
        """Let go all partitions of these topics, and delete their strays; durable. False while a directory is offline,
        which may have more of them. `LogDirOfflineError` if a disk fails at this."""
        with self._lock:
            self.let_go([partition for partition, topic_id in self.found().items() if topic_id in topic_ids])
            for directory in self.healthy:
                directory.remove_strays(topic_ids)
            return not self.offline

    def set_config(self, name: str, config: Mapping[str, str]) -> None:
        """`LogDir.set_config`, wherever there are partitions of the topic."""
        with self._lock:
            for directory in self.healthy:
                if name in directory.entries and not self.owns_topics:
                    with self._changing(directory, {name}):
                        directory.set_config(name, config)

    # All of them

    def reconfigure(self, config: LogDirConfig) -> None:
        for directory in self.healthy:
            with self._changing(directory, directory.topic_names()):
                directory.reconfigure(config)

    def housekeeping(self) -> None:
        for directory in self.healthy:
            directory.housekeeping()

    def close(self) -> None:
        """Close them all as `LogDir.close` does; `LogDirOfflineError` if a disk fails at that."""
        log_dirs_opening.close_all(self.dirs)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
