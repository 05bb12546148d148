"""The topics and partitions of a log directory: creates, configures, deletes, sets aside and loads them.

To create or delete a topic, ``seglog.topics`` is written first and its directories follow; after a crash
`finish_changes` completes the change when the directory is opened. For topics of a cluster the file has 0 partitions:
after a crash a partition exists with its topic id, or does not exist. Making a thousand of them takes a few fsyncs.
`LogDir` makes all calls, one change at a time.
"""

from __future__ import annotations

import logging
import os.path
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, closing, contextmanager
from itertools import chain
from operator import index
from typing import Final, NamedTuple
from uuid import UUID

from seglog.core.config import TOPIC_KEYS, LogConfig, LogDirConfig
from seglog.core.errors import (
    DamagedPartitionError,
    InvalidLogDirError,
    InvalidTopicError,
    LogClosedError,
    LogDirFullError,
    LogDirOfflineError,
    SeglogError,
    TopicExistsError,
    UnknownTopicError,
)
from seglog.core.fs import NoSpaceError, remove_tree
from seglog.core.ground import Ground
from seglog.core.passes import for_each, raise_first
from seglog.core.settings import unknown
from seglog.core.topic_names import OFFSETS_TOPIC, TRANSACTION_TOPIC, FlatNames, may_collide
from seglog.core.types import MAX_INT64, TopicPartition, validate_topic
from seglog.core.worker import Worker
from seglog.storage.directory.contents import DirectoryListing, deleted_name, is_aside_of
from seglog.storage.directory.loading import PartitionLoaded
from seglog.storage.directory.offset_checkpoints import OffsetCheckpoints
from seglog.storage.directory.partition_map import PartitionMap
from seglog.storage.directory.strays import Stray, StrayDirectory, find_strays, forget_stray, stray_name, write_stray
from seglog.storage.formats.checkpoints import (
    encode_id,
    encode_partition_metadata,
    is_torn,
    new_id,
    read_partition_metadata,
    write_partition_metadata,
)
from seglog.storage.formats.paths import PARTITION_METADATA
from seglog.storage.formats.topics_file import MAX_PARTITIONS, TopicEntry, TopicsFile
from seglog.storage.log.dir_health import DirHealth
from seglog.storage.log.log import Log
from seglog.storage.log.recovery import LoadResult, LogCheckpoint, RecoveryReport, load_log, make_log

_logger: Final = logging.getLogger("seglog")
_KEEP_EVERYTHING: Final[Mapping[str, str]] = {"retention.ms": "-1", "retention.bytes": "-1"}
_COMPACTED: Final = {"cleanup.policy": "compact", "segment.bytes": str(100 << 20)}
_INTERNAL: Final[Mapping[str, Mapping[str, str]]] = {
    OFFSETS_TOPIC: {**_COMPACTED, "compression.type": "producer"},
    TRANSACTION_TOPIC: {**_COMPACTED, "compression.type": "uncompressed"},
}
"""Kafka's configuration of its internal topics (``GroupCoordinatorService.groupMetadataTopicConfigs``,
``TransactionStateManager.transactionStateTopicConfigs``). Without it they would grow without end."""


def config_of_found(topic: str) -> Mapping[str, str]:
    """The configuration of a topic that Kafka has made. Kafka keeps the real one elsewhere, and its default of seven
    days could delete records that an operator wants to keep."""
    return _INTERNAL.get(topic, _KEEP_EVERYTHING)


class NewTopic(NamedTuple):
    """A topic to create, with its own configuration: Kafka's keys, values as text or Python types. Without ``topic_id``
    it gets a new id."""

    name: str
    partitions: int
    config: Mapping[str, object]
    topic_id: UUID | None = None


class ReplicaSpec(NamedTuple):
    """A partition that the cluster assigns to this broker; ``config`` is the topic's own configuration, as text.

    ``is_new``: this broker has only now become a replica, so it cannot have had the partition before.
    """

    topic: str
    topic_id: UUID
    number: int
    config: Mapping[str, str]
    is_new: bool = False

    @property
    def partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.number)


def best_strays(found: Iterable[StrayDirectory]) -> dict[tuple[UUID, int], StrayDirectory]:
    """The most advanced stray of each partition: by the epoch of its last batch, then by its end."""
    best: dict[tuple[UUID, int], StrayDirectory] = {}
    for one in sorted(found, key=lambda one: (one.stray.leader_epoch, one.stray.log_end)):
        if one.stray.topic_id is not None:
            best[one.stray.topic_id, one.stray.partition.partition] = one
    return best


class Catalog:
    """The topics and partitions of one log directory. `LogDir` describes the fields."""

    def __init__(
        self,
        *,
        ground: Ground,
        path: str,
        config: LogDirConfig,
        hw_follows_end: bool,
        health: DirHealth,
        worker: Worker,
        entries: dict[str, TopicEntry],
        strays: Iterable[str] = (),
    ) -> None:
        """``entries`` is what ``seglog.topics`` has, and ``strays`` are the names of the strays' directories."""
        self.ground = ground
        self.fs = ground.fs
        self.clock = ground.clock
        self.path = path
        self.config = config  # guarded by the directory's lock
        self.hw_follows_end = hw_follows_end
        self.health = health
        self.worker = worker
        self.entries = entries  # guarded by the directory's lock
        self.logs: PartitionMap[Log] = PartitionMap()
        self.topic_ids: dict[TopicPartition, UUID | None] = {}
        self.deleted: set[Log] = set()
        self.refused: PartitionMap[SeglogError] = PartitionMap()
        self.missing: set[TopicPartition] = set()
        self.reports: dict[TopicPartition, RecoveryReport] = {}
        self.uncleanable: dict[TopicPartition, Exception] = {}
        self.checkpoints = OffsetCheckpoints(ground.fs, path, health, self.logs, self.refused)
        self._topics_file = TopicsFile(ground.fs, path, entries)
        self._stray_names = set(strays)  # guarded by the directory's lock
        """The directories of strays that were here at the opening, or that this process made; an operator may have
        removed some since."""
        self._flat_names: FlatNames | None = None  # guarded by the directory's lock
        """All topics since the first creation, and perhaps some that are gone."""
        self._names_by_id: dict[UUID, set[str]] = {}  # guarded by the directory's lock
        """The names that each topic's id had here; the topics may be gone."""
        for name, entry in entries.items():
            self._note_id(entry.topic_id, name)
        self._planning = threading.Lock()
        self._flush_planned = False  # guarded by _planning

    def path_of(self, partition: TopicPartition) -> str:
        return os.path.join(self.path, str(partition))

    def topic_names(self) -> Set[str]:
        return self.logs.topics() | self.refused.topics() | self.entries.keys()

    def has_topic(self, name: str) -> bool:
        return name in self.entries or self.logs.has(name) or self.refused.has(name)

    def topic_id(self, name: str) -> UUID | None:
        entry = self.entries.get(name)
        if entry is not None and entry.topic_id is not None:
            return entry.topic_id
        return next(filter(None, map(self.topic_ids.get, self.logs.of(name))), None)

    def partitions_of(self, name: str) -> list[TopicPartition]:
        """All partitions of a topic, also refused ones."""
        return sorted((*self.logs.of(name), *self.refused.of(name)))

    def partitions_of_ids(self, topic_ids: Set[UUID]) -> list[TopicPartition]:
        """All partitions of the topics with these ids, also refused ones."""
        names = {name for topic_id in topic_ids for name in self._names_by_id.get(topic_id, ())}
        return [
            partition
            for name in sorted(names)
            for partition in self.partitions_of(name)
            if (self.topic_ids.get(partition) or self.topic_id(name)) in topic_ids
        ]

    def _note_id(self, topic_id: UUID | None, name: str) -> None:
        if topic_id is not None:
            self._names_by_id.setdefault(topic_id, set()).add(name)

    def strays(self) -> list[StrayDirectory]:
        """The strays of the directory: see `seglog.storage.directory.strays`."""
        return list(find_strays(self.fs, self.path))

    @property
    def has_strays(self) -> bool:
        """Whether there may be strays of partitions that this process knew."""
        return bool(self._stray_names)

    def strays_of(self, absent: Iterable[ReplicaSpec]) -> list[StrayDirectory]:
        """The strays, if one may be of these partitions. The directory is not listed for new partitions."""
        if self._stray_names or not all(one.is_new for one in absent):
            return self.strays()
        return []

    # Topics

    def create_topics(self, wanted: Sequence[NewTopic]) -> None:
        """See `LogDir.create_topics`."""
        entries: dict[str, TopicEntry] = {}
        among = FlatNames()
        for one in wanted:
            entries[one.name] = self._entry_of_new(one, among)
            among.add(one.name)
        if len(entries) < len(wanted):
            raise ValueError("a topic is wanted twice")
        made = [TopicPartition(name, number) for name, entry in entries.items() for number in range(entry.partitions)]
        with self.health.guard():
            self._change_entries(entries)
            try:
                self._make(made)
            except (NoSpaceError, SeglogError):  # a full disk, or too many open files
                with self._undoing(
                    f"{_listed(entries)}: created in part. The next start completes that; delete them otherwise"
                ):
                    self._unmake(made)
                    self._delete_topics(entries.keys())
                raise

    def _entry_of_new(self, wanted: NewTopic, among: FlatNames) -> TopicEntry:
        """The entry of a topic that may be created together with those of ``among``."""
        name, partitions = validate_topic(wanted.name), index(wanted.partitions)  # refuse 2.5
        if not 1 <= partitions <= MAX_PARTITIONS:
            raise ValueError(f"a topic has 1 to {MAX_PARTITIONS} partitions, not {partitions}")
        if self.has_topic(name):
            raise TopicExistsError(f"topic {name!r} exists")
        if other := next(chain(among.others(name), self._colliding(name)), None):
            raise InvalidTopicError(
                f"topic {name!r} differs from {other!r} only in '.' and '_', which metrics do not distinguish"
            )
        overrides = LogConfig.from_mapping(wanted.config).overrides()
        self.config.topics.with_overrides(overrides)
        return TopicEntry(wanted.topic_id or new_id(self.ground.rng), partitions, overrides)

    def _colliding(self, name: str) -> Iterator[str]:
        """The topics whose names differ from this one only in ``.`` and ``_``."""
        if not may_collide(name):
            return
        if self._flat_names is None:
            self._flat_names = FlatNames(self.topic_names())
        for other in self._flat_names.others(name):
            if self.has_topic(other):
                yield other
            else:
                self._flat_names.discard(other)

    def add_partitions(self, counts: Mapping[str, int]) -> None:
        """See `LogDir.add_partitions`; crash-safe as `create_topics`."""
        grown: dict[str, TopicEntry] = {}
        made: list[TopicPartition] = []
        for name, wanted in counts.items():
            entry = self._entry(name)
            if not entry.partitions:  # of a cluster that this directory has left
                entry = entry._replace(partitions=self._count(name))
            count = index(wanted)
            if not entry.partitions < count <= MAX_PARTITIONS:
                raise ValueError(
                    f"topic {name!r} has {entry.partitions} partitions: it can have more, up to {MAX_PARTITIONS}, "
                    f"not {count}"
                )
            grown[name] = entry._replace(partitions=count)
            made += [TopicPartition(name, number) for number in range(entry.partitions, count)]
        before = {name: self.entries.get(name) for name in grown}
        with self.health.guard():
            self._change_entries(grown)
            try:
                self._make(made)
            except (NoSpaceError, SeglogError):
                with self._undoing(
                    f"{_listed(grown)}: some of the new partitions exist. The next start makes the others"
                ):
                    self._unmake(made)
                    self._delete_partitions([one for one in made if one in self.logs])
                    self._change_entries(before)
                raise

    @contextmanager
    def _undoing(self, left: str) -> Iterator[None]:
        """Undo a change that failed. If there is no room for that either, the error says what is ``left`` of it."""
        try:
            yield
        except (NoSpaceError, LogDirFullError) as error:
            raise LogDirFullError(f"{left}: {error}") from error

    def delete_topics(self, names: Set[str]) -> None:
        """See `LogDir.delete_topics`."""
        for name in sorted(names):
            if not self.has_topic(name):
                raise UnknownTopicError(f"there is no topic {name!r} in {self.path}")
        self._delete_topics(names)

    def _make(self, made: Sequence[TopicPartition]) -> None:
        self._make_directories(made)
        for partition in made:
            made_log = make_log(
                ground=self.ground,
                path=self.path_of(partition),
                topic_partition=partition,
                config=self.config_of(partition.topic),
                health=self.health,
                background=self.worker,
                hw_follows_end=self.hw_follows_end,
            )
            self.add(partition, PartitionLoaded(self.entries[partition.topic].topic_id, made_log))

    def _unmake(self, partitions: Sequence[TopicPartition]) -> None:
        """Remove the directories of new partitions that a full disk left incomplete."""
        for partition in partitions:
            if partition not in self.logs and self.fs.exists(self.path_of(partition)):
                remove_tree(self.fs, self.path_of(partition))

    def _make_directories(self, partitions: Sequence[TopicPartition]) -> None:
        """Make the directories of new partitions, and in each ``partition.metadata``. That file is not fsynced: if a
        power cut tears it, loading writes it again."""
        fs = self.fs
        for partition in partitions:
            path = self.path_of(partition)
            fs.mkdir(path)
            topic_id = self.entries[partition.topic].topic_id
            if topic_id is not None:
                with closing(fs.open(os.path.join(path, PARTITION_METADATA), create=True)) as file:
                    file.pwrite(encode_partition_metadata(topic_id), 0)
        if partitions:
            fs.fsync_dir(self.path)

    def _entry(self, name: str) -> TopicEntry:
        """The entry of a topic, also of one that Kafka has made. `UnknownTopicError`."""
        entry = self.entries.get(name)
        if entry is not None:
            return entry
        return TopicEntry(self.topic_id(name), self._count(name), config_of_found(name))

    def _count(self, name: str) -> int:
        partitions = self.partitions_of(name)
        if not partitions:
            raise UnknownTopicError(f"there is no topic {name!r} in {self.path}")
        return 1 + max(one.partition for one in partitions)

    def _delete_topics(self, names: Set[str]) -> None:
        """Delete topics that exist."""
        partitions = [one for name in sorted(names) for one in self.partitions_of(name)]
        with self.health.guard():
            self._change_entries(
                {name: (self.entries.get(name) or TopicEntry(None, 0, {}))._replace(deleted=True) for name in names}
            )
        left = f"{_listed(names)}: deleted, and listed until the deletion is repeated or the next start"
        with self._undoing(left), self.health.guard():
            self._delete_partitions(partitions)
            self._change_entries(dict.fromkeys(names))

    # Configuration

    def alter_config(self, name: str, changes: Mapping[str, object | None]) -> None:
        """See `LogDir.alter_config`."""
        entry = self._entry(name)
        given = LogConfig.from_mapping({key: value for key, value in changes.items() if value is not None}).overrides()
        for key in changes:
            if key not in TOPIC_KEYS:
                raise unknown(key, TOPIC_KEYS, "topic configuration")
        kept = {key: value for key, value in entry.config.items() if key not in changes}
        changed = entry._replace(config={**kept, **given})
        self.config.topics.with_overrides(changed.config)
        with self.health.guard():
            self._change_entries({name: changed})
        self._apply_config({name})

    def set_config(self, name: str, config: Mapping[str, str]) -> None:
        """See `LogDir.set_config`."""
        entry = self.entries.get(name)
        if entry is None:
            raise UnknownTopicError(f"there is no topic {name!r} in {self.path}")
        changed = entry._replace(config=self._overrides(config))
        if changed != entry:
            with self.health.guard():
                self._change_entries({name: changed})
            self._apply_config({name})

    def reconfigure(self, config: LogDirConfig) -> None:
        """See `LogDir.reconfigure`."""
        entries = self.entries
        configs = {
            name: config.topics.with_overrides(entries[name].config if name in entries else config_of_found(name))
            for name in self.topic_names()
        }  # before any change: a topic's own configuration may contradict the new defaults
        self.config = config
        for partition, log in list(self.logs.items()):
            log.reconfigure(configs[partition.topic])
        self.plan_flush()

    def config_of(self, topic: str) -> LogConfig:
        entry = self.entries.get(topic)
        return self.config.topics.with_overrides(config_of_found(topic) if entry is None else entry.config)

    def _overrides(self, config: Mapping[str, str]) -> Mapping[str, str]:
        overrides = LogConfig.from_mapping(config).overrides()
        self.config.topics.with_overrides(overrides)
        return overrides

    def _apply_config(self, names: Set[str]) -> None:
        """Apply the configuration of these topics to their logs."""
        configs = {name: self.config_of(name) for name in names}
        logs = {one: log for name in names for one in self.logs.of(name) if (log := self.logs.get(one)) is not None}
        for partition, log in logs.items():
            log.reconfigure(configs[partition.topic])
        self.plan_flush(logs.values())

    def _change_entries(self, changes: Mapping[str, TopicEntry | None]) -> None:
        """Write ``seglog.topics`` with these entries, None for one that goes, and replace `entries`."""
        self.health.make_room(lambda: self._topics_file.change(changes))
        after = {**self.entries, **changes}
        self.entries = {name: entry for name, entry in after.items() if entry is not None}
        for name, entry in changes.items():
            if entry is not None:
                self._note_id(entry.topic_id, name)
                if self._flat_names is not None:
                    self._flat_names.add(name)

    # flush.ms

    def plan_flush(self, logs: Iterable[Log] | None = None) -> None:
        """Schedule the next flush by ``flush.ms``, of all logs or of those that have changed."""
        found = list(self.logs.values()) if logs is None else logs
        soonest = min((log.config.flush_ms for log in found), default=MAX_INT64)
        with self._planning:
            is_new = soonest < MAX_INT64 and not self._flush_planned
            self._flush_planned = self._flush_planned or is_new
        if is_new:
            self.worker.schedule(max(soonest, 1), self._flush_due)

    def _flush_due(self) -> None:
        if self.health.failure is not None:
            return
        with self._planning:
            self._flush_planned = False
        now_ms = self.clock.now_ms()

        def flush(log: Log) -> None:
            is_due = now_ms - log.last_flush_ms >= log.config.flush_ms
            if is_due and log.recovery_point < log.log_end_offset and log.is_open:
                log.flush()

        try:
            for log, error in for_each(list(self.logs.values()), flush):
                if not isinstance(error, LogClosedError | LogDirOfflineError):
                    _logger.warning("%s is not flushed completely, and is tried again: %s", log.topic_partition, error)
        finally:
            self.plan_flush()

    # Replicas of a cluster, which decides the topics and assigns some of their partitions

    def hold(self, wanted: Sequence[ReplicaSpec]) -> list[Log | SeglogError]:
        """See `LogDir.hold_many`."""
        entries, wrong = self._entries_of(wanted)
        unmade: dict[TopicPartition, SeglogError] = {}
        right = {one.partition: one.topic_id for one in wanted if one.topic not in wrong}
        with self.health.guard():
            self._clear(right, entries)
            changed = {name for name, entry in entries.items() if self.entries.get(name) != entry}
            if changed:
                self._change_entries({name: entries[name] for name in changed})
                self._apply_config(changed)
            self._take_back_strays([one for one in wanted if one.partition in right and self._is_absent(one.partition)])
            new = self._absent(right)
            try:
                self._make(new)
            except NoSpaceError as error:
                self._unmake(new)
                left = self.health.refusal(error)
                unmade.update((one, left) for one in new if one not in self.logs)
        return [
            wrong[one.topic]
            if one.topic in wrong
            else self.logs.get(one.partition) or unmade.get(one.partition) or self.refused[one.partition]
            for one in wanted
        ]

    def _absent(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        return [one for one in partitions if self._is_absent(one)]

    def _is_absent(self, partition: TopicPartition) -> bool:
        return partition not in self.logs and partition not in self.refused

    def _entries_of(self, wanted: Sequence[ReplicaSpec]) -> tuple[dict[str, TopicEntry], dict[str, SeglogError]]:
        """The entries of valid topics, and the errors of the others."""
        entries: dict[str, TopicEntry] = {}
        wrong: dict[str, SeglogError] = {}
        for one in wanted:
            if one.topic in wrong:
                continue
            if one.topic in entries:
                if entries[one.topic].topic_id != one.topic_id:
                    raise ValueError(f"topic {one.topic!r} is wanted with two ids")
                continue
            try:
                validate_topic(one.topic)
                entries[one.topic] = TopicEntry(one.topic_id, 0, self._overrides(one.config))
            except SeglogError as error:
                wrong[one.topic] = error
        return entries, wrong

    def _clear(self, wanted: Mapping[TopicPartition, UUID], entries: Mapping[str, TopicEntry]) -> None:
        """Set aside partitions of topics with another id, and remove checkpoints of partitions without files."""
        known = {name: self.entries[name].topic_id for name in entries if name in self.entries}
        other = {name for name, topic_id in known.items() if topic_id not in (None, entries[name].topic_id)}
        stale = [one for name in sorted(other) for one in self.partitions_of(name)]
        # Topics that Kafka has made have no entry.
        stale += [
            one
            for one, topic_id in wanted.items()
            if one in self.logs and one.topic not in other and self.topic_ids.get(one) not in (None, topic_id)
        ]
        if stale:
            self._make_none_anew(other)
            self._keep_as_strays(stale)
        gone = self.missing & wanted.keys()
        for partition in gone:
            del self.refused[partition]
            self.missing.discard(partition)
        if gone:  # else a new log would end below its recovery point
            self.checkpoints.forget(gone)

    def let_go(self, partitions: Sequence[TopicPartition]) -> None:
        """See `LogDir.let_go`."""
        self._take_out(partitions, self._delete_partitions)

    def set_aside(self, partitions: Sequence[TopicPartition]) -> None:
        """See `LogDir.set_aside`."""
        self._take_out(partitions, self._keep_as_strays)

    def _take_out(self, partitions: Sequence[TopicPartition], take: Callable[[list[TopicPartition]], object]) -> None:
        """``take`` the existing partitions, and forget topics without partitions."""
        there = {one for one in partitions if one in self.logs or one in self.refused}
        if not there:
            return
        topics = {one.topic for one in there}
        with self.health.guard():
            self._make_none_anew(topics)
            take(sorted(there))
            self._forget(topics)

    def _make_none_anew(self, topics: Set[str]) -> None:
        """Record that the next start must not create partitions of these topics, as it does without a cluster."""
        held = {name: self.entries[name]._replace(partitions=0) for name in topics if name in self.entries}
        if any(self.entries[name] != entry for name, entry in held.items()):
            self._change_entries(held)

    def _forget(self, topics: Set[str]) -> None:
        """Remove entries of topics without partitions."""
        gone = {name for name in topics if name in self.entries and not self.partitions_of(name)}
        if gone:
            self._change_entries(dict.fromkeys(gone))

    def _take_back_strays(self, absent: Sequence[ReplicaSpec]) -> None:
        strays = best_strays(self.strays_of(absent))
        for one in absent:
            found = strays.get((one.topic_id, one.number))
            if found is not None and found.stray.partition == one.partition and self._is_absent(one.partition):
                self._take_back(found)

    def _take_back(self, found: StrayDirectory) -> None:
        """Serve a stray again, unchanged. A log that does not load is in `LogDir.refused`, as at a start."""
        partition, stray = found.stray.partition, found.stray
        for log in [log for log in self.deleted if log.path == found.path]:
            self.close_deleted(log)
        target = self.path_of(partition)
        self.fs.rename(found.path, target)
        self._stray_names.discard(found.name)
        self.fs.fsync_dir(self.path)
        known = LogCheckpoint(
            recovery_point=stray.log_end, log_start_offset=stray.log_start, high_watermark=stray.high_watermark
        )
        try:
            self.add(partition, self.load_partition(partition, known))
        except SeglogError as error:
            self.refused[partition] = error
            _logger.error("partition %s is not opened: %s", partition, error)
            return
        forget_stray(self.fs, target)
        _logger.warning("the cluster assigns %s to this broker again: %s was restored", partition, found.path)

    def remove_strays(self, topic_ids: Set[UUID]) -> list[StrayDirectory]:
        """See `LogDir.remove_strays`."""
        gone = [one for one in self.strays() if one.stray.topic_id in topic_ids] if self._stray_names else []
        with self.health.guard():
            for one in gone:
                for log in [log for log in self.deleted if log.path == one.path]:
                    self.close_deleted(log)
                target = os.path.join(self.path, deleted_name(one.stray.partition, new_id(self.ground.rng)))
                self.fs.rename(one.path, target)
                self._stray_names.discard(one.name)
                self.remove_later(target, self.config.topics.file_delete_delay_ms)
            if gone:
                self.fs.fsync_dir(self.path)
        return gone

    # Partitions

    def add(self, partition: TopicPartition, one: PartitionLoaded) -> None:
        """Serve a loaded partition."""
        self.logs[partition] = one.loaded.log
        self.reports[partition] = one.loaded.report
        self.topic_ids[partition] = one.topic_id
        self._note_id(one.topic_id, partition.topic)
        if one.loaded.log.config.flush_ms < MAX_INT64:
            self.plan_flush([one.loaded.log])

    def load_partition(
        self,
        partition: TopicPartition,
        known: LogCheckpoint,
        progress: Callable[[int, int], None] | None = None,
    ) -> PartitionLoaded:
        """Load one partition. Write ``partition.metadata`` if it is missing, as after a crash in its creation."""
        path = self.path_of(partition)
        entry = self.entries.get(partition.topic)
        expected = entry.topic_id if entry is not None else None
        torn = expected is not None and is_torn(self.fs, path, expected)
        found = None if torn else read_partition_metadata(self.fs, path)
        if found is None and expected is not None:
            try:
                write_partition_metadata(self.fs, path, expected)
            except NoSpaceError:  # ``seglog.topics`` has the id, and the next start tries again
                if torn:  # Kafka does not start with such a file; without one it writes its own
                    self.fs.unlink(os.path.join(path, PARTITION_METADATA))
        elif found is not None and expected is not None and found != expected:
            raise InvalidLogDirError(
                f"{os.path.join(path, PARTITION_METADATA)}: topic id {encode_id(found)} is not that of the topic, "
                f"{encode_id(expected)}"
            )
        return PartitionLoaded(found or expected, self._load(partition, known, progress))

    def _load(
        self,
        partition: TopicPartition,
        known: LogCheckpoint,
        progress: Callable[[int, int], None] | None = None,
    ) -> LoadResult:
        entry, config = self.entries.get(partition.topic), self.config_of(partition.topic)
        return load_log(
            ground=self.ground,
            path=self.path_of(partition),
            topic_partition=partition,
            config=config,
            health=self.health,
            known=known,
            background=self.worker,
            hw_follows_end=self.hw_follows_end,
            has_gaps=entry is None or config.compact,
            producer_id_expiration_ms=self.config.producer_id_expiration_ms,
            progress=progress,
        )

    def refuse(self, partition: TopicPartition, reason: SeglogError) -> None:
        """Stop serving a partition, and keep its files."""
        log = self.logs.take(partition)
        self.reports.pop(partition, None)
        self.refused[partition] = reason
        if log is not None:
            log.close()

    def _delete_partitions(self, partitions: Sequence[TopicPartition]) -> None:
        """Delete partitions and their checkpoints."""
        for partition in partitions:
            self._delete_partition(partition)
        self.fs.fsync_dir(self.path)
        self.checkpoints.forget(partitions)

    def _delete_partition(self, partition: TopicPartition) -> None:
        """Rename a partition's directory, and delete it after ``file.delete.delay.ms``: readers may finish."""
        target = os.path.join(self.path, deleted_name(partition, new_id(self.ground.rng)))
        log = self.logs.get(partition)

        def remove() -> None:
            if log is not None:
                self.close_deleted(log)
            remove_tree(self.fs, target)

        try:
            if not self._move_away(partition, target):
                return
        except NoSpaceError:  # the directory has no room for a longer name; readers keep the files that they have open
            target = self.path_of(partition)
            self._move_away(partition, target)
            remove()
            return
        delay_ms = 0 if self.health.full is not None else self.config_of(partition.topic).file_delete_delay_ms
        self.worker.schedule(delay_ms, remove)

    def _keep_as_strays(self, partitions: Sequence[TopicPartition]) -> None:
        """Stop serving partitions, and keep their files: see `seglog.storage.directory.strays`."""

        def keep(partition: TopicPartition) -> None:
            with self.health.guard():
                self._keep_as_stray(partition)

        failed = for_each(partitions, keep)
        self.fs.fsync_dir(self.path)
        self.checkpoints.forget([one for one in partitions if one not in self.logs])
        raise_first(failed)

    def _keep_as_stray(self, partition: TopicPartition) -> None:
        """Flush the log first: the recovery point of a stray is its log's end."""
        log, entry = self.logs.get(partition), self.entries.get(partition.topic)
        topic_id = self.topic_ids.get(partition) or (entry.topic_id if entry is not None else None)
        source = self.path_of(partition)
        stray = Stray(partition, topic_id, entry.config if entry is not None else config_of_found(partition.topic))
        if log is not None:
            log.take_snapshot()
            log.flush()
            stray = stray._replace(
                log_start=log.log_start_offset,
                high_watermark=log.high_watermark,
                log_end=log.log_end_offset,
                leader_epoch=log.epochs.latest,
            )
        elif self.fs.exists(source):
            stray = stray._replace(
                log_start=self.checkpoints.log_starts.get(partition, 0),
                high_watermark=self.checkpoints.high_watermarks.get(partition, 0),
            )
        else:
            self._move_away(partition, source)
            return
        write_stray(self.fs, source, stray)
        target = os.path.join(self.path, stray_name(partition, new_id(self.ground.rng)))
        self._move_away(partition, target)
        self._stray_names.add(os.path.basename(target))
        _logger.warning("the cluster no longer assigns %s to this broker: it is kept as %s", partition, target)
        if log is not None:
            delay_ms = self.config_of(partition.topic).file_delete_delay_ms
            self.worker.schedule(delay_ms, lambda: self.close_deleted(log))

    def _move_away(self, partition: TopicPartition, target: str) -> bool:
        """Rename a partition's directory and stop serving it; False if it has none. `NoSpaceError`: it stays."""
        source, log = self.path_of(partition), self.logs.get(partition)
        exists = log is not None or self.fs.exists(source)
        if log is not None:
            with log.lock, log.epoch_file.lock:
                if source != target:
                    self.fs.rename(source, target)
                log.moved_to(target)
            self.deleted.add(log)
        elif exists and source != target:
            self.fs.rename(source, target)
        self.logs.take(partition)
        self.refused.take(partition)
        self.missing.discard(partition)
        self.topic_ids.pop(partition, None)
        self.reports.pop(partition, None)
        self.uncleanable.pop(partition, None)
        return exists

    def close_deleted(self, log: Log) -> None:
        """Close the files of a log whose directory was renamed; its readers fail."""
        if log in self.deleted:
            for segment in log.segments:
                segment.close(write=False)
            self.deleted.discard(log)

    def close_files(self) -> None:
        """Close all open files without a last write."""
        with ExitStack() as closing_all:  # also if one raises
            for log in (*self.logs.values(), *self.deleted):
                closing_all.callback(log.close_files)

    def remove_later(self, path: str, delay_ms: int) -> None:
        """Delete a directory that no log uses."""
        self.worker.schedule(delay_ms, lambda: remove_tree(self.fs, path))

    # After a crash

    def finish_changes(self, found: DirectoryListing) -> list[TopicPartition]:
        """Complete deletions and creations that a crash interrupted. Returns the partitions to load.

        A partition is refused if its directory is missing although its log had data.
        """
        present = found.partitions
        gone = {topic for topic, entry in self.entries.items() if entry.deleted}
        kept = [partition for partition in present if partition.topic not in gone]
        for partition in present:
            if partition.topic in gone:
                target = os.path.join(self.path, deleted_name(partition, new_id(self.ground.rng)))
                self.fs.rename(self.path_of(partition), target)
        if gone:
            self.fs.fsync_dir(self.path)
            self._change_entries(dict.fromkeys(gone))
        made = []
        had_data = self.checkpoints.partitions()
        for partition in self._missing_from(found, had_data):
            if partition in had_data:
                self.missing.add(partition)
                self.refused[partition] = DamagedPartitionError(
                    f"{self.path_of(partition)} is missing, and by its recovery point records were flushed to it. "
                    "Restore it, or delete the topic; a broker of a cluster copies it from the others"
                )
            else:
                made.append(partition)
        self._make_directories(made)
        there = {partition.topic for partition in (*kept, *made, *self.refused)}
        if self.entries.keys() - there:  # topics of a cluster without partitions here
            self._change_entries(dict.fromkeys(self.entries.keys() - there))
        return sorted([*kept, *made])

    def _missing_from(self, found: DirectoryListing, had_data: Set[TopicPartition]) -> list[TopicPartition]:
        """Partitions that should exist: of a cluster's topic those in checkpoints, unless they were just set aside."""
        local = {
            TopicPartition(topic, number) for topic, entry in self.entries.items() for number in range(entry.partitions)
        }
        held = {
            partition
            for partition in had_data
            if (entry := self.entries.get(partition.topic)) is not None
            and not entry.partitions
            and not any(is_aside_of(name, partition) for name in (*found.deleted, *found.strays))
        }
        return sorted((local | held).difference(found.partitions))


def _listed(names: Iterable[str]) -> str:
    """Topics in an error message, at most ten."""
    found = sorted(names)
    more = f" and {len(found) - 10} others" if len(found) > 10 else ""
    return ", ".join(map(repr, found[:10])) + more
