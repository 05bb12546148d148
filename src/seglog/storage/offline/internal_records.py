"""The records of an internal topic's partitions in a log directory, as a coordinator loads them: without those of open
and aborted transactions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

from seglog.core.errors import CorruptError
from seglog.core.fs import Fs
from seglog.records import any_magic
from seglog.records.batch import Entry, read_header
from seglog.records.record import ControlType, Record, parse_control
from seglog.storage.formats.batch_walk import walk
from seglog.storage.formats.paths import list_partitions, list_segments


def partitions_of(fs: Fs, log_dir: str, topic: str) -> list[str]:
    """The directories of the topic's partitions."""
    return [one.path for one in list_partitions(fs, log_dir) if one.topic_partition.topic == topic]


def committed_records(fs: Fs, partition: str) -> Iterator[Record]:
    """The records of one partition in the order in which they count: those of a transaction at its marker.

    `CorruptError` names the file and position of a batch that cannot be read.
    """
    pending: dict[int, list[Record]] = {}
    for segment in list_segments(fs, partition):
        with closing(fs.open(segment.log, write=False)) as file:
            for entry, position, data in walk(file):
                try:
                    yield from _counted(data, entry, pending)
                except CorruptError as error:
                    base = position - entry.position
                    raise error.at(file=segment.log, base=base, offset=entry.offset) from error


def _counted(data: memoryview, entry: Entry, pending: dict[int, list[Record]]) -> list[Record]:
    any_magic.check(data, entry)
    records = any_magic.decode(data, entry)
    if entry.magic < 2:
        return records
    header = read_header(data, entry.position)
    if not header.is_transactional:
        return [] if header.is_control else records
    if not header.is_control:
        pending.setdefault(header.producer_id, []).extend(records)
        return []
    ended = pending.pop(header.producer_id, [])
    is_commit = bool(records) and parse_control(records[0]).type is ControlType.COMMIT
    return ended if is_commit else []
