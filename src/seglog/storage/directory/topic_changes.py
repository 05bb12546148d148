"""Creating, deleting and configuring topics of a log directory, so that a crash in between is rolled forward.

``seglog.topics`` is written first when a topic is created or marked deleted, its directories follow; `finish` completes
what a crash has left, when the directory is opened. Called by `LogDir` under its lock.
"""

from __future__ import annotations

import logging
import os.path
from collections.abc import Callable, Mapping, Sequence, Set
from operator import index
from typing import TYPE_CHECKING, Final

from seglog.core.config import TOPIC_KEYS, LogConfig, LogDirConfig
from seglog.core.errors import (
    DamagedPartitionError,
    InvalidLogDirError,
    InvalidTopicError,
    SeglogError,
    TopicExistsError,
    UnknownTopicError,
)
from seglog.core.fs import NoSpaceError
from seglog.core.settings import unknown
from seglog.core.types import TopicPartition, validate_topic
from seglog.storage.directory import housekeeping
from seglog.storage.directory.contents import Entries, deleted_name, is_aside_of, remove_tree
from seglog.storage.directory.loading import PartitionLoaded
from seglog.storage.directory.strays import FoundStray, Stray, forget_stray, stray_name, write_stray
from seglog.storage.formats.checkpoints import (
    encode_id,
    is_torn,
    new_id,
    read_partition_metadata,
    write_partition_metadata,
)
from seglog.storage.formats.paths import PARTITION_METADATA
from seglog.storage.formats.topics_file import MAX_PARTITIONS, TopicEntry, write_topics
from seglog.storage.log.recovery import Known, load_log

if TYPE_CHECKING:
    from seglog.storage.directory.log_dir import LogDir

_logger: Final = logging.getLogger("seglog")
_KEEP_EVERYTHING: Final[Mapping[str, str]] = {"retention.ms": "-1", "retention.bytes": "-1"}
_COMPACTED: Final = {"cleanup.policy": "compact", "segment.bytes": str(100 << 20)}
_INTERNAL: Final[Mapping[str, Mapping[str, str]]] = {
    "__consumer_offsets": {**_COMPACTED, "compression.type": "producer"},
    "__transaction_state": {**_COMPACTED, "compression.type": "uncompressed"},
}
"""What Kafka makes them with (``GroupCoordinatorService.groupMetadataTopicConfigs``,
``TransactionStateManager.transactionStateTopicConfigs``): nobody sets it otherwise, and they grow without end."""


def config_of_found(topic: str) -> Mapping[str, str]:
    """Own configuration of a topic that is found and was not created here. Kafka keeps its topics' configuration
    elsewhere, and its default of seven days would delete what an operator wanted to keep."""
    return _INTERNAL.get(topic, _KEEP_EVERYTHING)


def config_of(directory: LogDir, topic: str) -> LogConfig:
    entry = directory.entries.get(topic)
    return directory.config.topics.with_overrides(config_of_found(topic) if entry is None else entry.config)


def create(directory: LogDir, name: str, partitions: int, config: Mapping[str, object]) -> None:
    """See `LogDir.create_topic`."""
    validate_topic(name)
    partitions = index(partitions)  # not 2.5, which would be written down
    if not 1 <= partitions <= MAX_PARTITIONS:
        raise ValueError(f"a topic has 1 to {MAX_PARTITIONS} partitions, not {partitions}")
    existing = directory.topic_names()
    if name in existing:
        raise TopicExistsError(f"topic {name!r} exists")
    flat = name.replace(".", "_")
    for other in existing:
        if other.replace(".", "_") == flat:
            raise InvalidTopicError(
                f"topic {name!r} differs from {other!r} in nothing but '.' and '_', which metrics mix up"
            )
    overrides = LogConfig.from_mapping(config).overrides()
    directory.config.topics.with_overrides(overrides)
    with directory.health.guard():
        entry = TopicEntry(new_id(directory.rng), partitions, overrides)
        write_entries(directory, {**directory.entries, name: entry})
        made = [TopicPartition(name, number) for number in range(partitions)]
        try:
            _make(directory, made)
        except NoSpaceError:
            unmake(directory, made)
            delete_all(directory, {name})
            raise


def _make(directory: LogDir, made: Sequence[TopicPartition]) -> None:
    make_directories(directory, made)
    for partition in made:
        directory.add(partition, load_partition(directory, partition, Known(clean=True)))


def unmake(directory: LogDir, partitions: Sequence[TopicPartition]) -> None:
    """Remove what a full disk has left of partitions that were to be made and are not served."""
    for partition in partitions:
        if partition not in directory.logs and directory.fs.exists(directory.path_of(partition)):
            remove_tree(directory.fs, directory.path_of(partition))


def add_partitions(directory: LogDir, name: str, count: int) -> None:
    """See `LogDir.add_partitions`; crash-safe as `create` is."""
    entry = _entry(directory, name)
    if not entry.partitions:  # of a cluster, which this directory is no longer in
        entry = entry._replace(partitions=_count(directory, name))
    count = index(count)
    if not entry.partitions < count <= MAX_PARTITIONS:
        raise ValueError(
            f"topic {name!r} has {entry.partitions} partitions: it can have more, up to {MAX_PARTITIONS}, not {count}"
        )
    with directory.health.guard():
        before = directory.entries
        write_entries(directory, {**before, name: entry._replace(partitions=count)})
        made = [TopicPartition(name, number) for number in range(entry.partitions, count)]
        try:
            _make(directory, made)
        except NoSpaceError:
            unmake(directory, made)
            set_aside(directory, [one for one in made if one in directory.logs])
            write_entries(directory, before)
            raise


def _entry(directory: LogDir, name: str) -> TopicEntry:
    """What is known of a topic, of Kafka's making too. `UnknownTopicError`."""
    entry = directory.entries.get(name)
    if entry is not None:
        return entry
    return TopicEntry(directory.topic_id(name), _count(directory, name), config_of_found(name))


def _count(directory: LogDir, name: str) -> int:
    partitions = directory.partitions_of(name)
    if not partitions:
        raise UnknownTopicError(f"there is no topic {name!r} in {directory.path}")
    return 1 + max(one.partition for one in partitions)


def make_directories(directory: LogDir, partitions: Sequence[TopicPartition]) -> None:
    """Directories of new partitions, and in each the topic's id, before anything is appended."""
    fs = directory.fs
    for partition in partitions:
        fs.mkdir(directory.path_of(partition))
    if partitions:
        fs.fsync_dir(directory.path)
    for partition in partitions:
        topic_id = directory.entries[partition.topic].topic_id
        if topic_id is not None:
            write_partition_metadata(fs, directory.path_of(partition), topic_id)


def load_partition(
    directory: LogDir,
    partition: TopicPartition,
    known: Known,
    progress: Callable[[int, int], None] | None = None,
) -> PartitionLoaded:
    """Load one partition; one without ``partition.metadata`` gets it, as after a crash in its creation."""
    path = directory.path_of(partition)
    entry = directory.entries.get(partition.topic)
    expected = entry.topic_id if entry is not None else None
    if expected is not None and is_torn(directory.fs, path, expected):
        found = None
    else:
        found = read_partition_metadata(directory.fs, path)
    if found is None and expected is not None:
        write_partition_metadata(directory.fs, path, expected)
    elif found is not None and expected is not None and found != expected:
        raise InvalidLogDirError(
            f"{os.path.join(path, PARTITION_METADATA)}: topic id {encode_id(found)} is not that of the topic, "
            f"{encode_id(expected)}"
        )
    config = config_of(directory, partition.topic)
    loaded = load_log(
        fs=directory.fs,
        clock=directory.clock,
        path=path,
        topic_partition=partition,
        config=config,
        health=directory.health,
        known=known._replace(has_followers=not directory.hw_follows_end),
        background=directory.worker,
        jitter=directory.rng.randrange,
        hw_follows_end=directory.hw_follows_end,
        has_gaps=entry is None or config.compact,
        producer_id_expiration_ms=directory.config.producer_id_expiration_ms,
        progress=progress,
    )
    return PartitionLoaded(found or expected, loaded)


def delete(directory: LogDir, name: str) -> None:
    """See `LogDir.delete_topic`."""
    if name not in directory.topic_names():
        raise UnknownTopicError(f"there is no topic {name!r} in {directory.path}")
    delete_all(directory, {name})


def delete_all(directory: LogDir, names: Set[str]) -> None:
    """Delete topics that are here."""
    partitions = [one for one in (*directory.logs, *directory.refused) if one.topic in names]
    gone = {name: directory.entries.get(name) or TopicEntry(None, 0, {}) for name in names}
    marked = {name: entry._replace(deleted=True) for name, entry in gone.items()}
    with directory.health.guard():
        write_entries(directory, {**directory.entries, **marked})
        set_aside(directory, partitions)
        write_entries(directory, {topic: kept for topic, kept in directory.entries.items() if topic not in names})


def set_aside(directory: LogDir, partitions: Sequence[TopicPartition]) -> None:
    """Take partitions away, and what the checkpoints say of them; readers may finish until the files go."""
    for partition in partitions:
        _set_aside(directory, partition)
    directory.fs.fsync_dir(directory.path)
    housekeeping.write_checkpoints(directory)
    housekeeping.forget_cleaner_offsets(directory, set(partitions))


def _set_aside(directory: LogDir, partition: TopicPartition) -> None:
    """Rename a partition's directory and let it go after ``file.delete.delay.ms``; readers may finish until then."""
    target = os.path.join(directory.path, deleted_name(partition, new_id(directory.rng)))
    log = directory.logs.get(partition)
    if not _move_away(directory, partition, target):
        return

    def remove() -> None:
        if log is not None:
            directory.close_deleted(log)
        remove_tree(directory.fs, target)

    delay_ms = 0 if directory.health.full is not None else config_of(directory, partition.topic).file_delete_delay_ms
    directory.worker.schedule(delay_ms, remove)


def _move_away(directory: LogDir, partition: TopicPartition, target: str) -> bool:
    """Rename a partition's directory and serve it no longer; False if it has none. `NoSpaceError`: all is as it was."""
    source, log = directory.path_of(partition), directory.logs.get(partition)
    exists = log is not None or directory.fs.exists(source)
    if log is not None:
        with log.lock:
            directory.fs.rename(source, target)
            log.moved_to(target)
        directory.deleted.add(log)
    elif exists:
        directory.fs.rename(source, target)
    directory.logs.pop(partition, None)
    directory.refused.pop(partition, None)
    directory.missing.discard(partition)
    directory.topic_ids.pop(partition, None)
    directory.reports.pop(partition, None)
    directory.uncleanable.pop(partition, None)
    return exists


def set_aside_as_strays(directory: LogDir, partitions: Sequence[TopicPartition]) -> None:
    """Serve partitions no longer, and keep all that they have: see `seglog.storage.directory.strays`."""
    for partition in partitions:
        _set_aside_as_stray(directory, partition)
    directory.fs.fsync_dir(directory.path)
    housekeeping.write_checkpoints(directory)
    housekeeping.forget_cleaner_offsets(directory, set(partitions))


def _set_aside_as_stray(directory: LogDir, partition: TopicPartition) -> None:
    """What was appended is flushed first: the recovery point of a stray is its log's end."""
    log, entry = directory.logs.get(partition), directory.entries.get(partition.topic)
    topic_id = directory.topic_ids.get(partition) or (entry.topic_id if entry is not None else None)
    source = directory.path_of(partition)
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
    elif directory.fs.exists(source):
        stray = stray._replace(
            log_start=directory.checkpoints.log_starts.get(partition, 0),
            high_watermark=directory.checkpoints.high_watermarks.get(partition, 0),
        )
    else:
        _move_away(directory, partition, source)
        return
    write_stray(directory.fs, source, stray)
    target = os.path.join(directory.path, stray_name(partition, new_id(directory.rng)))
    _move_away(directory, partition, target)
    _logger.warning("%s is not named by the cluster any more: it is kept as %s", partition, target)
    if log is not None:
        delay_ms = config_of(directory, partition.topic).file_delete_delay_ms
        directory.worker.schedule(delay_ms, lambda: directory.close_deleted(log))


def take_back(directory: LogDir, found: FoundStray) -> None:
    """Serve a stray again, as what it was. A log that cannot be opened is `LogDir.refused`, as at a start."""
    partition, stray = found.stray.partition, found.stray
    for log in [log for log in directory.deleted if log.path == found.path]:
        directory.close_deleted(log)
    target = directory.path_of(partition)
    directory.fs.rename(found.path, target)
    directory.fs.fsync_dir(directory.path)
    known = Known(recovery_point=stray.log_end, log_start_offset=stray.log_start, high_watermark=stray.high_watermark)
    try:
        directory.add(partition, load_partition(directory, partition, known))
    except SeglogError as error:
        directory.refused[partition] = error
        _logger.error("partition %s is not opened: %s", partition, error)
        return
    forget_stray(directory.fs, target)
    _logger.warning("%s is named by the cluster again: %s was taken back", partition, found.path)


def alter(directory: LogDir, name: str, changes: Mapping[str, object | None]) -> None:
    """See `LogDir.alter_config`."""
    entry = _entry(directory, name)
    given = LogConfig.from_mapping({key: value for key, value in changes.items() if value is not None}).overrides()
    for key in changes:
        if key not in TOPIC_KEYS:
            raise unknown(key, TOPIC_KEYS, "topic configuration")
    kept = {key: value for key, value in entry.config.items() if key not in changes}
    changed = entry._replace(config={**kept, **given})
    directory.config.topics.with_overrides(changed.config)
    with directory.health.guard():
        write_entries(directory, {**directory.entries, name: changed})
    apply_config(directory, {name})


def apply_config(directory: LogDir, names: Set[str]) -> None:
    """Tell the logs of these topics their configuration."""
    configs = {name: config_of(directory, name) for name in names}
    for partition, log in list(directory.logs.items()):
        if partition.topic in names:
            with log.lock:
                log.config = configs[partition.topic]
    housekeeping.plan_flush(directory)


def reconfigure(directory: LogDir, config: LogDirConfig) -> None:
    """See `LogDir.reconfigure`."""
    entries = directory.entries
    configs = {
        name: config.topics.with_overrides(entries[name].config if name in entries else config_of_found(name))
        for name in directory.topic_names()
    }  # before anything changes: a topic's own configuration may not go with the new defaults
    before, directory.config = directory.config, config
    for partition, log in list(directory.logs.items()):
        with log.lock:
            log.config = configs[partition.topic]
    housekeeping.plan_flush(directory)
    housekeeping.cleaner_reconfigured(directory, before)


def write_entries(directory: LogDir, entries: Mapping[str, TopicEntry]) -> None:
    directory.health.make_room(lambda: write_topics(directory.fs, directory.path, entries))
    directory.entries = dict(entries)


# After a crash


def finish(directory: LogDir, found: Entries) -> list[TopicPartition]:
    """Complete what was begun: deletions, and creations. Returns the partitions that are to be loaded.

    A directory that is missing although its log had data is refused, not made anew.
    """
    present = found.partitions
    gone = {topic for topic, entry in directory.entries.items() if entry.deleted}
    kept = [partition for partition in present if partition.topic not in gone]
    for partition in present:
        if partition.topic in gone:
            target = os.path.join(directory.path, deleted_name(partition, new_id(directory.rng)))
            directory.fs.rename(directory.path_of(partition), target)
    if gone:
        directory.fs.fsync_dir(directory.path)
        write_entries(directory, {topic: entry for topic, entry in directory.entries.items() if topic not in gone})
    made = []
    had_data = directory.checkpoints.partitions()
    for partition in _absent(directory, found, had_data):
        if partition in had_data:
            directory.missing.add(partition)
            directory.refused[partition] = DamagedPartitionError(
                f"{directory.path_of(partition)} is missing, and by its recovery point records were flushed to it. "
                "Bring it back, or delete the topic; a broker of a cluster copies it from the others"
            )
        else:
            made.append(partition)
    make_directories(directory, made)
    there = {partition.topic for partition in (*kept, *made, *directory.refused)}
    if directory.entries.keys() - there:  # of a cluster: all that was here was let go, or nothing was made yet
        write_entries(directory, {topic: entry for topic, entry in directory.entries.items() if topic in there})
    return sorted([*kept, *made])


def _absent(directory: LogDir, found: Entries, had_data: Set[TopicPartition]) -> list[TopicPartition]:
    """Partitions that should be there. Of a topic of a cluster those of which a checkpoint speaks, unless their files
    were just set aside."""
    local = {
        TopicPartition(topic, number)
        for topic, entry in directory.entries.items()
        for number in range(entry.partitions)
    }
    held = {
        partition
        for partition in had_data
        if (entry := directory.entries.get(partition.topic)) is not None
        and not entry.partitions
        and not any(is_aside_of(name, partition) for name in (*found.deleted, *found.strays))
    }
    return sorted((local | held).difference(found.partitions))
