"""The log directories of one broker: each on its own disk, which may fail alone (KIP-112).

A partition lies in one of them. Any thread may call any method; changes of partitions run one after the other.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from random import Random
from types import TracebackType
from typing import Self
from uuid import UUID

from seglog.core.config import LogDirConfig
from seglog.core.descriptors import room_for_logs
from seglog.core.errors import (
    CorruptCheckpointError,
    DamagedPartitionError,
    InvalidLogDirError,
    LogDirFullError,
    LogDirOfflineError,
    SeglogError,
    TooManyFilesError,
    UnknownTopicError,
)
from seglog.core.fs import Fs
from seglog.core.ground import Ground, Workers
from seglog.core.passes import for_each, raise_first
from seglog.core.types import TopicPartition
from seglog.storage.directory import loss_evidence
from seglog.storage.directory.catalog import ReplicaSpec, best_strays
from seglog.storage.directory.cluster_mark import ClusterMark, has_mark, read_marks, write_mark
from seglog.storage.directory.contents import resolve
from seglog.storage.directory.log_dir import LogDir
from seglog.storage.directory.loss_evidence import LogEvidence
from seglog.storage.directory.strays import StrayDirectory
from seglog.storage.formats.checkpoints import (
    MetaProperties,
    encode_id,
    new_cluster_id,
    new_id,
    read_meta_properties,
)
from seglog.storage.formats.life_file import PENDING, Life, read_life
from seglog.storage.log.log import Log

_logger = logging.getLogger("seglog")
Changed = Callable[[LogDir], None]


class LogDirs:
    """Made by `open`, a context manager.

    ``dirs`` are the directories that could be opened. ``offline`` has those whose disk failed, at the opening or later,
    by path and with the error.

    ``changed`` is called with a directory whose disk has failed, is full or has room again (`LogDir.health`), by the
    thread that notices; for a failure once.

    ``owns_topics``: the broker is alone, and its one directory decides which partitions there are
    (`LogDir.create_topic`). Then this class only finds them.
    """

    def __init__(
        self,
        dirs: Sequence[LogDir],
        offline: Mapping[str, SeglogError],
        *,
        changed: Changed | None = None,
        owns_topics: bool = False,
    ) -> None:
        """Use `open` or `alone`."""
        self.owns_topics = owns_topics
        self.dirs = list(dirs)
        self.offline = dict(offline)
        self._has_unseen = bool(self.offline)
        self._where: dict[TopicPartition, LogDir] = {}
        self._mark: ClusterMark | None = None  # guarded by _failing
        self._lives: dict[LogDir, Life] = {}  # guarded by _failing
        """The ``seglog.life`` of each healthy directory, once this broker is registered."""
        self._changed: Changed = changed or (lambda _: None)
        self._lock = threading.RLock()
        self._failing = threading.RLock()
        """For failures and lives. Lock order: `_lock`, a log's lock, this one."""
        for directory in self.dirs:
            for partition in (*directory.logs, *directory.refused):
                first = self._where.setdefault(partition, directory)
                if first is not directory:
                    reason = DamagedPartitionError(
                        f"{partition} is in {first.path} and in {directory.path}: remove one of the two"
                    )
                    for either in (first, directory):
                        either.refuse(partition, reason)
        self._past = loss_evidence.assess_losses(self.dirs, absent=len(self.offline))  # guarded by _failing
        for directory in self.dirs:
            directory.health.watch(
                failed=partial(self._has_failed, directory), room_changed=partial(self._changed, directory)
            )

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
        changed: Changed | None = None,
        ground: Ground | None = None,
    ) -> Self:
        """Open all directories, with ``background`` at the same time; one whose disk fails is `offline`.

        All must belong to one cluster and node; new ones join it. Raises `InvalidLogDirError` or `LogDirInUseError` for
        a directory that must not be used, and `LogDirOfflineError` if all disks fail.
        """
        ground = ground or Ground()
        resolved = resolve_all(paths)
        meta = _common_meta(ground.fs, resolved, cluster_id=cluster_id, node_id=node_id, rng=ground.rng)

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
            opened.withhold_marker(is_withheld=has_past)  # until `kept_since` has recorded the loss
            return opened

        opened, offline = _open_all(open_one, resolved, ground.workers, threads=len(resolved) if background else 1)
        try:
            _identify(opened, ground.rng)
            directories = cls(opened, offline, changed=changed)
            if meta.cluster_id is not None and meta.node_id is not None:
                directories.mark(meta.cluster_id, meta.node_id)
            return directories
        except BaseException:
            _close_all(opened)
            raise

    @classmethod
    def alone(cls, directory: LogDir, changed: Changed | None = None) -> Self:
        """The directory of a broker that is alone."""
        return cls([directory], {}, changed=changed, owns_topics=True)

    # Failures

    @property
    def healthy(self) -> list[LogDir]:
        return [directory for directory in self.dirs if directory.health.failure is None]

    def _has_failed(self, directory: LogDir, error: OSError) -> None:
        with self._failing:
            reason = LogDirOfflineError(f"{directory.path} is out of use since: {error}")
            self.offline[directory.path] = reason
            if not self.owns_topics:
                _logger.error("%s. Its partitions are served by their other replicas; see docs/replication.md", reason)
                self._note_failure(directory)
        self._changed(directory)

    def _note_failure(self, directory: LogDir) -> None:
        written = self._lives or self._past_lives()
        others = {one: written[one] for one in self.healthy if one in written}
        noted = loss_evidence.note_failure(others, directory)
        if self._lives:
            self._lives = dict(noted)

    def _past_lives(self) -> Mapping[LogDir, Life]:
        """The files' contents before this broker is registered."""
        found = {directory: read_life(directory.fs, directory.path) for directory in self.healthy}
        return {directory: told for directory, told in found.items() if told is not None}

    def kept_since(self, epoch: int, last: int | None = None) -> int:
        """The broker epoch since which no record was lost, for a registration with ``epoch``; ``last`` is the epoch of
        the last registration, if known. See `seglog.storage.directory.loss_evidence`."""
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

    def kept(self, partition: TopicPartition) -> LogEvidence | None:
        """The evidence on a partition's log; None before the first registration, or if its disk has failed."""
        with self._failing:
            directory = self._where.get(partition)
            told = self._lives.get(directory) if directory is not None else None
            if directory is None or told is None or directory.health.failure is not None:
                return None
            return loss_evidence.kept_of(directory, partition, told)

    def _write(self, lives: Mapping[LogDir, Life]) -> None:
        """Write ``seglog.life`` files; the caller holds `_failing`."""
        self._lives = {**self._lives, **lives}
        loss_evidence.write_all(lives)
        self._lives = {one: told for one, told in self._lives.items() if one.health.failure is None}

    @contextmanager
    def _changing(self, directory: LogDir, topics: Set[str]) -> Iterator[None]:
        """Change partitions of these topics: withdraw the directory's claims about them before, renew them after."""
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
        changed = [one for name in sorted(topics) for one in directory.partitions_of(name)]
        flushed = loss_evidence.flush_synced(directory, changed)
        with self._failing:
            now = self._lives.get(directory)
            if now is not None and flushed:
                made, synced = dict(now.made), dict(ours)
                said = ((name, max(synced.get(name, before.epoch), made.get(name, 0))) for name in flushed)
                with suppress(LogDirFullError):  # without a claim the records only count as less safe
                    self._write({directory: now._replace(synced=now.synced.union(said))})

    def _note_made(self, directory: LogDir, partitions: Iterable[TopicPartition]) -> None:
        """Record, before they exist, that these partitions are made again in a directory that this broker has used."""
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

    # The mark of the cluster

    def mark(self, cluster_id: str, node_id: int) -> None:
        """Mark all directories as those of a node of a cluster, with the latest history that one of them has."""
        with self._failing:
            found = read_marks(self.dirs[0].fs, (one.path for one in self.dirs)).values()
            generation = max((one.generation for one in found), default=-1)
            epoch = max((one.broker_epoch for one in found), default=0)
            self._mark = ClusterMark(cluster_id, node_id, generation, epoch)
            self._write_mark()

    def note_history(self, *, generation: int = -1, broker_epoch: int = 0) -> None:
        """Record the generation of the metadata store and the broker epoch, if they are higher; durable.

        `LogDirFullError` if a disk is full; the next call tries again."""
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
                continue  # the directory reports it

    # Partitions

    @property
    def logs(self) -> dict[TopicPartition, Log]:
        """The open logs of all healthy directories."""
        return {partition: log for directory in self.healthy for partition, log in list(directory.logs.items())}

    def found(self) -> dict[TopicPartition, UUID | None]:
        """All partitions, also those that did not load, with the topic's id if it is known."""
        with self._lock:
            return {
                partition: directory.topic_ids.get(partition) or directory.topic_id(partition.topic)
                for partition, directory in self._where.items()
            }

    def dir_of(self, partition: TopicPartition) -> LogDir:
        """The directory of a partition, also a failed one. `UnknownTopicError`."""
        directory = self._where.get(partition)
        if directory is None:
            raise UnknownTopicError(f"there is no partition {partition} in {', '.join(one.path for one in self.dirs)}")
        return directory

    def place_of(self, partition: TopicPartition) -> str:
        """The path of a partition's directory, "" if there is none."""
        directory = self._where.get(partition)
        return "" if directory is None else directory.path_of(partition)

    def hold_many(self, wanted: Iterable[ReplicaSpec]) -> list[Log | SeglogError]:
        """`LogDir.hold_many`: each partition in its directory, a new one in that with the fewest partitions.

        `LogDirOfflineError` for a partition whose directory has failed. If a directory could not be opened at all, also
        for each partition that is not found and not new: it may lie there (``LogManager.scala``). `TooManyFilesError`
        for partitions beyond the limit of open files; a later call may succeed.
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
                except SeglogError as error:  # an error in one directory must not affect the others
                    held = [error] * len(group)
                for want, log in zip(group, held, strict=True):
                    answers[want.partition] = log
                    if isinstance(log, Log):
                        self._where[want.partition] = directory
            return [answers[one.partition] for one in asked]

    def found_log(self, partition: TopicPartition) -> Log | None:
        """A partition's log, if it is open; for `owns_topics`. Does not wait for a change that is under way."""
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
        """The directories with strays of partitions that are in no directory."""
        absent = [one for one in asked if one.partition not in self._where]
        if not absent:
            return {}
        strays = [(one, directory) for directory in self.healthy for one in directory.strays_of(absent)]
        best, where = best_strays(one for one, _ in strays), {one.path: directory for one, directory in strays}
        found = ((one.partition, best.get((one.topic_id, one.number))) for one in absent)
        return {partition: where[stray.path] for partition, stray in found if stray is not None}

    def _hold(self, directory: LogDir, group: Sequence[ReplicaSpec]) -> list[Log | SeglogError]:
        """An older partition that is not here was lost if its files are missing, or if a directory is gone. Otherwise
        this broker never had it, and an empty log loses nothing."""
        lost = {one.partition for one in group} & directory.missing
        if not self._past.has_all:
            there = (directory.logs, directory.refused)
            lost |= {one.partition for one in group if not one.is_new and not any(one.partition in x for x in there)}
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
                "or remove it from log.dirs to copy its partitions from the other replicas"
            )
        if room <= 0:
            return TooManyFilesError(f"the limit of open files leaves no room for {want.partition} (ulimit -n)")
        fewest = min(counts, key=counts.__getitem__)
        counts[fewest] += 1
        return fewest

    def _set_namesakes_aside(self, ids: Mapping[str, UUID]) -> None:
        """Set aside the partitions of earlier topics with the same name, in all directories."""
        for directory in self.healthy:
            entries = directory.entries
            names = [name for name in ids if name in entries and directory.topic_id(name) != ids[name]]
            stale = [one for name in names for one in directory.partitions_of(name)]
            if stale:
                self.set_aside(stale)

    def let_go(self, partitions: TopicPartition | Iterable[TopicPartition]) -> None:
        """`LogDir.let_go`. Partitions stay in a directory that has failed or fails now."""
        chosen = [partitions] if isinstance(partitions, TopicPartition) else list(partitions)
        self._take_out(chosen, LogDir.let_go)

    def set_aside(self, partitions: Iterable[TopicPartition]) -> None:
        """`LogDir.set_aside`. Partitions stay in a directory that has failed or fails now."""
        self._take_out(list(partitions), LogDir.set_aside)

    def _take_out(self, chosen: list[TopicPartition], act: Callable[[LogDir, list[TopicPartition]], None]) -> None:
        with self._lock:
            if self.owns_topics:  # the directory has done it, and may have new ones of these names
                for one in chosen:
                    if one not in self.dirs[0].logs:
                        self._where.pop(one, None)
                return
            failed: list[tuple[LogDir, SeglogError]] = []
            for directory in self.healthy:
                group = [one for one in chosen if self._where.get(one) is directory]
                if group:
                    failed += for_each([directory], partial(_on, act, group))
                    for one in group:
                        if one not in directory.logs and one not in directory.refused:
                            del self._where[one]
            raise_first(one for one in failed if not isinstance(one[1], LogDirOfflineError))  # the directory reports it

    def strays(self) -> list[StrayDirectory]:
        """`LogDir.strays` of all healthy directories."""
        return [found for directory in self.healthy for found in directory.strays()]

    @property
    def has_strays(self) -> bool:
        """Whether there may be strays of partitions that this process knew."""
        return any(directory.has_strays for directory in self.healthy)

    def delete_topics(self, topic_ids: Set[UUID]) -> bool:
        """Let go all partitions of these topics, and delete their strays; durable. False if a directory is offline,
        which may have more of them. `LogDirOfflineError` if a disk fails now."""
        with self._lock:
            self.let_go([one for directory in self.healthy for one in directory.partitions_of_ids(topic_ids)])
            for directory in self.healthy:
                directory.remove_strays(topic_ids)
            return not self.offline

    def set_config(self, name: str, config: Mapping[str, str]) -> None:
        """`LogDir.set_config` in each directory that has partitions of the topic."""
        with self._lock:

            def set_one(directory: LogDir) -> None:
                if name in directory.entries and not self.owns_topics:
                    with self._changing(directory, {name}):
                        directory.set_config(name, config)

            raise_first(for_each(self.healthy, set_one))

    # All of them

    def reconfigure(self, config: LogDirConfig) -> None:
        def reconfigure(directory: LogDir) -> None:
            with self._changing(directory, directory.topic_names()):
                directory.reconfigure(config)

        raise_first(for_each(self.healthy, reconfigure))

    def housekeeping(self) -> None:
        raise_first(for_each(self.healthy, LogDir.housekeeping))

    def close(self) -> None:
        """`LogDir.close` of all; `LogDirOfflineError` if a disk fails now."""
        _close_all(self.dirs)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _on(act: Callable[[LogDir, list[TopicPartition]], None], group: list[TopicPartition], directory: LogDir) -> None:
    act(directory, group)


# Opening and closing several directories


def resolve_all(paths: Sequence[str | os.PathLike[str]]) -> list[str]:
    """The real paths. `InvalidLogDirError` if there is none, or one twice."""
    resolved = [resolve(path) for path in paths]
    if not resolved:
        raise InvalidLogDirError("log.dirs has no directory")
    for path in resolved:
        if resolved.count(path) > 1:
            raise InvalidLogDirError(f"log.dirs has {path} twice")
    return resolved


def _common_meta(
    fs: Fs, paths: Sequence[str], *, cluster_id: str | None, node_id: int | None, rng: Random
) -> MetaProperties:
    """The cluster and node of all directories: as given, else as one of them has it, else new."""
    clusters, nodes = _owners(fs, paths)
    return MetaProperties(
        cluster_id=cluster_id or next(iter(clusters), None) or new_cluster_id(rng),
        node_id=node_id if node_id is not None else next(iter(nodes), 1),
    )


def cluster_of(fs: Fs, paths: Sequence[str | os.PathLike[str]]) -> tuple[str, str] | None:
    """The cluster of the directories, and the first of them that has it; None if all are new."""
    clusters, _ = _owners(fs, resolve_all(paths))
    return next(iter(clusters.items()), None)


def _owners(fs: Fs, paths: Sequence[str]) -> tuple[dict[str, str], dict[int, str]]:
    """The clusters and nodes of the directories, each with the first directory that has it.

    `InvalidLogDirError` names two directories that differ (``MetaPropertiesEnsemble.verify``).
    """
    clusters: dict[str, str] = {}
    nodes: dict[int, str] = {}
    for path in paths:
        try:
            meta = read_meta_properties(fs, path)
        except (OSError, CorruptCheckpointError):
            continue  # opening the directory reports it
        if meta is not None and meta.cluster_id is not None:
            clusters.setdefault(meta.cluster_id, path)
        if meta is not None and meta.node_id is not None:
            nodes.setdefault(meta.node_id, path)
    for key, found in (("cluster.id", clusters), ("node.id", nodes)):
        if len(found) > 1:
            (one, here), (other, there), *_ = found.items()
            raise InvalidLogDirError(f"{here} belongs to {key} {one}, {there} to {key} {other} (meta.properties)")
    return clusters, nodes


def _open_all(
    open_one: Callable[[str], LogDir], paths: Sequence[str], workers: Workers, *, threads: int
) -> tuple[list[LogDir], dict[str, SeglogError]]:
    """The opened directories, and the errors of failed disks. Any other error is raised after closing all."""

    def attempt(path: str) -> LogDir | SeglogError:
        try:
            return open_one(path)
        except SeglogError as error:
            return error

    results = {path: result() for path, result in workers.spread(attempt, paths, threads=threads, name="seglog-open")}
    opened = [one for one in results.values() if isinstance(one, LogDir)]
    errors = {path: one for path, one in results.items() if isinstance(one, SeglogError)}
    wrong = [error for error in errors.values() if not _is_of_the_disk(error)]
    if wrong or not opened:
        _close_all(opened)
        if wrong or len(errors) == 1:
            raise next(iter(wrong or errors.values()))
        raise LogDirOfflineError("; ".join(map(str, errors.values())))
    for path, error in errors.items():
        _logger.error("log directory %s is offline: %s", path, error)
    return opened, errors


def _is_of_the_disk(error: SeglogError) -> bool:
    """Whether the disk fails, so that the broker may start without it. Other errors are the operator's to correct."""
    if isinstance(error, InvalidLogDirError):
        return isinstance(error.__cause__, OSError)
    return isinstance(error, LogDirOfflineError | CorruptCheckpointError)


def _identify(directories: Sequence[LogDir], rng: Random) -> None:
    """Give each directory a ``directory.id`` (KIP-858). `InvalidLogDirError` if two have the same."""
    seen: dict[object, LogDir] = {}
    for directory in directories:
        meta = directory.meta
        if meta.directory_id is None and directory.health.failure is None:
            directory.identify(new_id(rng))
        elif meta.directory_id is not None:
            first = seen.setdefault(meta.directory_id, directory)
            if first is not directory:
                raise InvalidLogDirError(
                    f"{first.path} and {directory.path} have the same directory.id, {encode_id(meta.directory_id)} "
                    "(meta.properties): one is a copy of the other"
                )


def _close_all(directories: Sequence[LogDir]) -> None:
    """Close all, also if one raises."""
    with ExitStack() as closing:
        for directory in directories:
            closing.callback(directory.close)
