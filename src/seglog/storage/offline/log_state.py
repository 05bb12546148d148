"""The state of a partition by its files, as the engine has it after opening them. Opens no file for writing.

Retention and the cleaner decide by these facts (`seglog.storage.log.retention`, `seglog.storage.compaction.cleanable`),
so a tool that asks the same functions says what they will do. Only headers at the ends of segments, indexes and
checkpoints are read. A broker may have the directory open.
"""

from __future__ import annotations

import os.path
from collections.abc import Sequence
from contextlib import closing
from enum import Enum
from typing import NamedTuple
from uuid import UUID

from seglog.core.errors import CorruptBatchError, CorruptError
from seglog.core.fs import File, Fs
from seglog.core.types import NO_TIMESTAMP, TopicPartition
from seglog.records.batch import read_header
from seglog.storage.compaction.cleanable import CleaningFacts
from seglog.storage.formats.batch_walk import HEADERS, walk
from seglog.storage.formats.checkpoints import read_offsets, read_partition_metadata
from seglog.storage.formats.paths import (
    CLEANER_OFFSETS,
    DELETED,
    RECOVERY_POINTS,
    SegmentPaths,
    list_segments,
    parse_file_name,
    partition_at,
)
from seglog.storage.formats.watermarks import WATERMARKS
from seglog.storage.log.index import TIME_ENTRY, count_offset_entries, count_time_entries, find_offset
from seglog.storage.log.retention import SegmentFacts
from seglog.storage.offline.batch_boundaries import find_end
from seglog.storage.offline.batch_reading import iter_headers
from seglog.storage.offline.top_files import TopFiles
from seglog.storage.offline.transaction_state import OpenTransaction, open_transactions


class SegmentState(NamedTuple):
    """One segment. ``size`` are the bytes of whole batches; timestamps are ms since 1970.

    ``max_timestamp`` is that of the newest record and ``first_timestamp`` that of the first batch, -1 without any.
    """

    base_offset: int
    next_base_offset: int
    size: int
    max_timestamp: int
    first_timestamp: int
    mtime_ms: int
    is_active: bool

    @property
    def largest_timestamp(self) -> int:
        """The timestamp that ``retention.ms`` and ``min.compaction.lag.ms`` count from."""
        return self.max_timestamp if self.max_timestamp >= 0 else self.mtime_ms


class LogState(NamedTuple):
    """A partition. ``topic_partition`` is None if the directory's name is not a partition's.

    ``high_watermark_from`` names its file; None: no file has one, and it is the log's end. ``cleaned_to`` is the
    cleaner's checkpoint. ``deleted_bytes`` wait in ``.deleted`` files. ``damage`` ended the reading of the last
    segment.
    """

    path: str
    topic_partition: TopicPartition | None
    topic_id: UUID | None
    segments: tuple[SegmentState, ...]
    log_start_offset: int
    log_end_offset: int
    high_watermark: int
    high_watermark_from: str | None
    transactions: tuple[OpenTransaction, ...]
    cleaned_to: int | None
    in_use: bool
    deleted_bytes: int
    damage: CorruptError | None

    @property
    def last_stable_offset(self) -> int:
        """Where the first open transaction begins, if that is in the log."""
        first = min((one.first_offset for one in self.transactions), default=self.high_watermark)
        return max(first, self.log_start_offset)

    @property
    def size(self) -> int:
        return sum(segment.size for segment in self.segments)

    def for_retention(self) -> list[SegmentFacts]:
        return [
            SegmentFacts(one.base_offset, one.next_base_offset, one.size, one.largest_timestamp, one.is_active)
            for one in self.segments
        ]

    def for_cleaning(self) -> list[CleaningFacts]:
        return [_cleaning_facts(one) for one in self.segments]


def _cleaning_facts(segment: SegmentState) -> CleaningFacts:
    return CleaningFacts(
        segment.base_offset, segment.size, lambda: segment.largest_timestamp, lambda: segment.first_timestamp
    )


def read_log_state(fs: Fs, path: str, top: TopFiles | None = None) -> LogState:
    """The partition at ``path``. ``top`` are the files of its log directory, if the caller has them already.

    `CorruptCheckpointError` names a damaged file beside the partition. Damage in a log is `LogState.damage`.
    """
    top = top or TopFiles(fs, os.path.dirname(os.path.abspath(path)))
    parsed = partition_at(path)
    partition = parsed.topic_partition if parsed else None
    found = list_segments(fs, path)
    last_size, log_end, damage = _end(fs, found)
    unflushed_from = _unflushed_from(fs, top, partition)
    segments = []
    for at, paths in enumerate(found):
        is_active = at + 1 == len(found)
        following = log_end if is_active else found[at + 1].base_offset
        trust = _Trust.WHOLE
        if unflushed_from is not None:
            trust = _Trust.NONE if following > unflushed_from else _Trust.BEGINNING
        elif is_active:
            trust = _Trust.BEGINNING
        size = last_size if is_active else fs.stat(paths.log).size
        segments.append(_segment_state(fs, paths, following, size, trust, is_active=is_active))
    first = found[0].base_offset if found else 0
    log_start = min(max(first, top.log_starts.get(partition, first) if partition else first), max(log_end, first))
    high_watermark = _high_watermark(top, partition)
    bounded = log_end if high_watermark is None else max(log_start, min(high_watermark, log_end))
    cleaned = read_offsets(fs, os.path.join(top.path, CLEANER_OFFSETS))
    return LogState(
        path=path,
        topic_partition=partition,
        topic_id=read_partition_metadata(fs, path),
        segments=tuple(segments),
        log_start_offset=log_start,
        log_end_offset=log_end,
        high_watermark=bounded,
        high_watermark_from=None if high_watermark is None else top.source,
        transactions=tuple(open_transactions(fs, path, below=bounded)) if damage is None else (),
        cleaned_to=cleaned.get(partition) if partition else None,
        in_use=top.in_use,
        deleted_bytes=_deleted_bytes(fs, path),
        damage=damage,
    )


def _high_watermark(top: TopFiles, partition: TopicPartition | None) -> int | None:
    """A partition that is not in the checkpoint has been closed before its first one: its leader begins at the end."""
    if partition is None:
        return None
    if top.source == WATERMARKS:
        return top.high_watermark(partition)
    return (top.checkpoint or {}).get(partition)


def _end(fs: Fs, found: Sequence[SegmentPaths]) -> tuple[int, int, CorruptError | None]:
    """The bytes of the last segment, the log's end, and what is wrong there."""
    if not found:
        return 0, 0, None
    last = _Sized(found[-1].base_offset, found[-1].log, fs.stat(found[-1].log).size)
    try:
        return *find_end(fs, last), None
    except CorruptBatchError as error:
        return *find_end(fs, last, permissive=True), error


class _Sized(NamedTuple):
    """A segment as `find_end` takes it."""

    base_offset: int
    log: str
    size: int


class _Trust(Enum):
    """How much of a time index counts: recovery makes it anew, or reads on after its last entry."""

    NONE = "none"
    BEGINNING = "beginning"
    WHOLE = "whole"


def _unflushed_from(fs: Fs, top: TopFiles, partition: TopicPartition | None) -> int | None:
    """From where on recovery would make indexes anew; None if the directory is open, or was closed cleanly."""
    if top.is_recovered or partition is None:
        return None
    return read_offsets(fs, os.path.join(top.path, RECOVERY_POINTS)).get(partition, 0)


def _segment_state(
    fs: Fs, paths: SegmentPaths, following: int, size: int, trust: _Trust, *, is_active: bool
) -> SegmentState:
    with closing(fs.open(paths.log, write=False)) as file:
        first = _first_timestamp(file, size)
        newest, position = (NO_TIMESTAMP, 0) if trust is _Trust.NONE else _newest_entry(fs, paths, following)
        if newest == NO_TIMESTAMP or trust is not _Trust.WHOLE:
            newest = _newest_after(file, position, size, newest)
    mtime_ms = fs.stat(paths.log).mtime_ms
    return SegmentState(paths.base_offset, following, size, newest, first, mtime_ms, is_active)


def _first_timestamp(file: File, size: int) -> int:
    try:
        first = next(iter_headers(file, 0, size), None)
    except CorruptBatchError:
        return NO_TIMESTAMP
    return NO_TIMESTAMP if first is None else first.max_timestamp


def _newest_entry(fs: Fs, paths: SegmentPaths, following: int) -> tuple[int, int]:
    """The last entry of the time index, and where to read on: -1 and 0 if there is no usable one."""
    if not fs.exists(paths.timeindex):
        return NO_TIMESTAMP, 0
    data = fs.read(paths.timeindex)
    count = count_time_entries(data)
    if count == 0 or len(data) % TIME_ENTRY.size:
        return NO_TIMESTAMP, 0
    timestamp, relative = TIME_ENTRY.unpack_from(data, (count - 1) * TIME_ENTRY.size)
    if not 0 <= relative < max(following - paths.base_offset, 1):
        return NO_TIMESTAMP, 0
    index = fs.read(paths.offset_index) if fs.exists(paths.offset_index) else b""
    entries = count_offset_entries(index)
    return timestamp, find_offset(index, entries, paths.base_offset, paths.base_offset + relative).position


def _newest_after(file: File, position: int, size: int, newest: int) -> int:
    """The larger of ``newest`` and the timestamps of batches from ``position`` on, up to the first that is damaged."""
    try:
        for batch in iter_headers(file, position, size):
            newest = max(newest, batch.max_timestamp)
    except CorruptBatchError:
        if position:  # an index that leads astray
            return _newest_after(file, 0, size, newest)
    return newest


def _deleted_bytes(fs: Fs, path: str) -> int:
    total = 0
    for name in fs.listdir(path):
        file = parse_file_name(name)
        if file is not None and file.state == DELETED:
            total += fs.stat(os.path.join(path, name)).size
    return total


class DeleteHorizons(NamedTuple):
    """The batches whose tombstones or markers compaction has dated. The first round after ``first_ms`` drops some of
    them, and the first one after ``last_ms`` the rest."""

    batches: int
    first_ms: int
    last_ms: int


def read_delete_horizons(fs: Fs, path: str, *, below: int) -> DeleteHorizons | None:
    """Read the headers of all batches in segments before offset ``below``; None if no batch has a horizon."""
    found: list[int] = []
    for paths in list_segments(fs, path):
        if paths.base_offset >= below:
            break
        with closing(fs.open(paths.log, write=False)) as file:
            for entry, _, data in walk(file, window=HEADERS, whole=False, lax=True):
                if entry.magic == 2 and (horizon := read_header(data, entry.position).delete_horizon_ms) is not None:
                    found.append(horizon)
    return DeleteHorizons(len(found), min(found), max(found)) if found else None
