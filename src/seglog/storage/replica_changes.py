"""Partitions of replicated topics in a log directory: held, let go, configured as the cluster says.

Which topics there are is decided elsewhere; a directory has some of their partitions. Its ``seglog.topics`` has them
with 0 partitions: those that are there. Like a creation (`seglog.storage.topic_changes`), holding writes that file
first and makes directories then, so that after a crash a partition is there with its topic id, or not there. A thousand
partitions are held with a handful of fsyncs. Called by `LogDir` under its lock.
"""

from __future__ import annotations

import os.path
from collections.abc import Mapping, Sequence, Set
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from seglog.core.errors import SeglogError, UnknownTopicError
from seglog.core.topic_config import LogConfig
from seglog.core.types import TopicPartition, validate_topic
from seglog.storage import housekeeping
from seglog.storage.checkpoint import encode_partition_metadata
from seglog.storage.layout import PARTITION_METADATA
from seglog.storage.recovery import Known
from seglog.storage.topic_changes import apply_config, delete_all, load_partition, set_aside, write_entries
from seglog.storage.topics_file import TopicEntry

if TYPE_CHECKING:
    from seglog.storage.log import Log
    from seglog.storage.log_dir import LogDir


class Wanted(NamedTuple):
    """A partition that is to be here; ``config`` is the topic's own configuration as Kafka's texts.

    ``is_new``: this broker cannot have had it before, as it has only now become one of its replicas.
    """

    topic: str
    topic_id: UUID
    number: int
    config: Mapping[str, str]
    is_new: bool = False

    @property
    def partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.number)


def hold(directory: LogDir, wanted: Sequence[Wanted]) -> list[Log | SeglogError]:
    """See `LogDir.hold_many`."""
    entries, wrong = _entries(directory, wanted)
    right = {one.partition: one.topic_id for one in wanted if one.topic not in wrong}
    with directory.health.guard():
        _clear(directory, right, entries)
        changed = {name for name, entry in entries.items() if directory.entries.get(name) != entry}
        if changed:
            write_entries(directory, {**directory.entries, **entries})
            apply_config(directory, changed)
        _make(directory, [one for one in right if one not in directory.logs and one not in directory.refused])
    return [
        wrong[one.topic]
        if one.topic in wrong
        else directory.logs.get(one.partition) or directory.refused[one.partition]
        for one in wanted
    ]


def _entries(directory: LogDir, wanted: Sequence[Wanted]) -> tuple[dict[str, TopicEntry], dict[str, SeglogError]]:
    """What will be known of each topic, and what is wrong with the others."""
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
            entries[one.topic] = TopicEntry(one.topic_id, 0, _overrides(directory, one.config))
        except SeglogError as error:
            wrong[one.topic] = error
    return entries, wrong


def _overrides(directory: LogDir, config: Mapping[str, str]) -> Mapping[str, str]:
    overrides = LogConfig.from_mapping(config).overrides()
    directory.config.topics.with_overrides(overrides)
    return overrides


def _clear(directory: LogDir, wanted: Mapping[TopicPartition, UUID], entries: Mapping[str, TopicEntry]) -> None:
    """Set aside what belongs to a topic of another id, and forget what checkpoints say of partitions without files."""
    known = {name: entry.topic_id for name, entry in directory.entries.items() if name in entries}
    other = {name for name, topic_id in known.items() if topic_id not in (None, entries[name].topic_id)}
    if other:
        delete_all(directory, other)
    found = [one for one, topic_id in wanted.items() if directory.topic_ids.get(one) not in (None, topic_id)]
    stale = [one for one in found if one in directory.logs]
    if stale:  # Kafka has made them: they are in no entry
        set_aside(directory, stale)
    gone = directory.missing & wanted.keys()
    for partition in gone:
        directory.refused.pop(partition)
        directory.missing.discard(partition)
    if gone:  # else a new log would end below its recovery point
        housekeeping.write_checkpoints(directory)
        housekeeping.forget_cleaner_offsets(directory, gone)


def _make(directory: LogDir, partitions: Sequence[TopicPartition]) -> None:
    """``partition.metadata`` is not fsynced: what a power cut leaves of it is mended when the partition is loaded."""
    fs = directory.fs
    for partition in partitions:
        path = directory.path_of(partition)
        topic_id = directory.entries[partition.topic].topic_id
        assert topic_id is not None
        fs.mkdir(path)
        file = fs.open(os.path.join(path, PARTITION_METADATA), create=True)
        try:
            file.pwrite(encode_partition_metadata(topic_id), 0)
        finally:
            file.close()
    if partitions:
        fs.fsync_dir(directory.path)
    for partition in partitions:
        directory.add(partition, load_partition(directory, partition, Known(clean=True)))


def let_go(directory: LogDir, partitions: Sequence[TopicPartition]) -> None:
    """See `LogDir.let_go`."""
    there = {one for one in partitions if one in directory.logs or one in directory.refused}
    if not there:
        return
    topics = {one.topic for one in there}
    with directory.health.guard():
        held = {name: entry._replace(partitions=0) for name, entry in directory.entries.items() if name in topics}
        if any(directory.entries[name] != entry for name, entry in held.items()):
            write_entries(directory, {**directory.entries, **held})  # or the next start would make them anew
        set_aside(directory, sorted(there))
        left = {one.topic for one in (*directory.logs, *directory.refused)}
        _forget(directory, held.keys() - left)


def _forget(directory: LogDir, topics: Set[str]) -> None:
    if topics:
        write_entries(directory, {name: entry for name, entry in directory.entries.items() if name not in topics})


def refuse(directory: LogDir, partition: TopicPartition, reason: SeglogError) -> None:
    """Serve a partition no longer, and leave its files as they are."""
    log = directory.logs.pop(partition, None)
    directory.reports.pop(partition, None)
    directory.refused[partition] = reason
    if log is not None:
        log.close()


def set_config(directory: LogDir, name: str, config: Mapping[str, str]) -> None:
    """See `LogDir.set_config`."""
    entry = directory.entries.get(name)
    if entry is None:
        raise UnknownTopicError(f"there is no topic {name!r} in {directory.path}")
    changed = entry._replace(config=_overrides(directory, config))
    if changed != entry:
        with directory.health.guard():
            write_entries(directory, {**directory.entries, name: changed})
        apply_config(directory, {name})
