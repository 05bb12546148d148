"""Partitions of replicated topics in a log directory: held, let go, configured as the cluster says.

Which topics there are is decided elsewhere; a directory has some of their partitions. Its ``seglog.topics`` has them
with 0 partitions: those that are there. Like a creation (`seglog.storage.directory.topic_changes`), holding writes that
file first and makes directories then, so that after a crash a partition is there with its topic id, or not there. A
thousand partitions are held with a handful of fsyncs. Called by `LogDir` under its lock.
"""

from __future__ import annotations

import os.path
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from seglog.core.errors import SeglogError, UnknownTopicError
from seglog.core.fs import NoSpaceError
from seglog.core.topic_config import LogConfig
from seglog.core.types import TopicPartition, validate_topic
from seglog.storage.directory import housekeeping
from seglog.storage.directory.contents import deleted_name
from seglog.storage.directory.strays import FoundStray
from seglog.storage.directory.topic_changes import (
    apply_config,
    load_partition,
    set_aside_as_strays,
    take_back,
    unmake,
    write_entries,
)
from seglog.storage.directory.topic_changes import set_aside as set_aside_as_deleted
from seglog.storage.formats.checkpoints import encode_partition_metadata, new_id
from seglog.storage.formats.paths import PARTITION_METADATA
from seglog.storage.formats.topics_file import TopicEntry
from seglog.storage.log.recovery import Known

if TYPE_CHECKING:
    from seglog.storage.directory.log_dir import LogDir
    from seglog.storage.log.log import Log


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
    unmade: dict[TopicPartition, SeglogError] = {}
    right = {one.partition: one.topic_id for one in wanted if one.topic not in wrong}
    with directory.health.guard():
        _clear(directory, right, entries)
        changed = {name for name, entry in entries.items() if directory.entries.get(name) != entry}
        if changed:
            write_entries(directory, {**directory.entries, **entries})
            apply_config(directory, changed)
        _take_back(directory, {one: right[one] for one in _absent(directory, right)})
        new = _absent(directory, right)
        try:
            _make(directory, new)
        except NoSpaceError as error:
            unmake(directory, new)
            left = directory.health.refusal(error)
            unmade.update((one, left) for one in new if one not in directory.logs)
    return [
        wrong[one.topic]
        if one.topic in wrong
        else directory.logs.get(one.partition) or unmade.get(one.partition) or directory.refused[one.partition]
        for one in wanted
    ]


def _absent(directory: LogDir, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
    return [one for one in partitions if one not in directory.logs and one not in directory.refused]


def best_strays(found: Iterable[FoundStray]) -> dict[tuple[UUID, int], FoundStray]:
    """Of each partition the stray that goes furthest: by the epoch of its last batch, then by its end."""
    best: dict[tuple[UUID, int], FoundStray] = {}
    for one in sorted(found, key=lambda one: (one.stray.leader_epoch, one.stray.log_end)):
        if one.stray.topic_id is not None:
            best[one.stray.topic_id, one.stray.partition.partition] = one
    return best


def _take_back(directory: LogDir, absent: Mapping[TopicPartition, UUID]) -> None:
    strays = best_strays(directory.strays()) if absent else {}
    for partition, topic_id in absent.items():
        found = strays.get((topic_id, partition.partition))
        if found is not None and found.stray.partition == partition:
            take_back(directory, found)


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
    stale = [one for one in (*directory.logs, *directory.refused) if one.topic in other]
    # Kafka has made the others: they are in no entry.
    stale += [
        one
        for one, topic_id in wanted.items()
        if one in directory.logs and one.topic not in other and directory.topic_ids.get(one) not in (None, topic_id)
    ]
    if stale:
        _make_none_anew(directory, other)
        set_aside_as_strays(directory, stale)
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
    _take_out(directory, partitions, set_aside_as_deleted)


def set_aside(directory: LogDir, partitions: Sequence[TopicPartition]) -> None:
    """See `LogDir.set_aside`."""
    _take_out(directory, partitions, set_aside_as_strays)


def _take_out(
    directory: LogDir, partitions: Sequence[TopicPartition], rename: Callable[[LogDir, list[TopicPartition]], object]
) -> None:
    """``rename`` those that are here, and forget topics without partitions."""
    there = {one for one in partitions if one in directory.logs or one in directory.refused}
    if not there:
        return
    topics = {one.topic for one in there}
    with directory.health.guard():
        _make_none_anew(directory, topics)
        rename(directory, sorted(there))
        _forget(directory, topics)


def remove_strays(directory: LogDir, topic_ids: Set[UUID]) -> list[FoundStray]:
    """See `LogDir.remove_strays`."""
    gone = [one for one in directory.strays() if one.stray.topic_id in topic_ids]
    with directory.health.guard():
        for one in gone:
            for log in [log for log in directory.deleted if log.path == one.path]:
                directory.close_deleted(log)
            target = os.path.join(directory.path, deleted_name(one.stray.partition, new_id(directory.rng)))
            directory.fs.rename(one.path, target)
            directory.remove_later(target, directory.config.topics.file_delete_delay_ms)
        if gone:
            directory.fs.fsync_dir(directory.path)
    return gone


def _make_none_anew(directory: LogDir, topics: Set[str]) -> None:
    """Have the next start make none of their partitions, as it does for a node that was alone."""
    held = {name: entry._replace(partitions=0) for name, entry in directory.entries.items() if name in topics}
    if any(directory.entries[name] != entry for name, entry in held.items()):
        write_entries(directory, {**directory.entries, **held})


def _forget(directory: LogDir, topics: Set[str]) -> None:
    """Those of the topics of which nothing is left."""
    gone = topics & directory.entries.keys() - {one.topic for one in (*directory.logs, *directory.refused)}
    if gone:
        write_entries(directory, {name: entry for name, entry in directory.entries.items() if name not in gone})


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
