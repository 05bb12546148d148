"""Finds the start of a scan: a position near an offset by the sparse index, an offset by the time index.

Indexes are hints: entries are checked against the log, and without an index a search begins at the segment's start.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

import numpy as np

from seglog.core.errors import CorruptBatchError
from seglog.core.fs import Fs
from seglog.records import any_magic
from seglog.records.batch import Entry
from seglog.records.batch_tables import BatchTable
from seglog.storage.formats.paths import SegmentPaths
from seglog.storage.log.index import TIME_ENTRY, last_true
from seglog.storage.offline.batch_boundaries import IndexBoundaries, SegmentBytes
from seglog.storage.offline.table_batches import FileRange, iter_tables


def start_position(fs: Fs, segment: SegmentPaths, offset: int) -> int:
    """The start of a batch at or before ``offset``, as near to it as the index allows."""
    if offset <= segment.base_offset:
        return 0
    return IndexBoundaries(fs, SegmentBytes(segment.base_offset, segment.log, fs.stat(segment.log).size)).start_of(
        offset
    )


def _look_up_time(fs: Fs, segment: SegmentPaths, timestamp: int) -> tuple[int | None, int]:
    """The last time of the ``.timeindex``, None if it has none; and an offset before which all records are earlier.

    Entries are read one by one: the index of an active segment may be 10 MiB of zeros.
    """
    try:
        file = fs.open(segment.timeindex, write=False)
    except FileNotFoundError:
        return None, segment.base_offset
    with closing(file):

        def entry(slot: int) -> tuple[int, int]:
            time, relative = TIME_ENTRY.unpack(file.pread(TIME_ENTRY.size, slot * TIME_ENTRY.size).ljust(12, b"\0"))
            return time, relative

        # Timestamps rise, so only the first entry can be of time 0; alone in its file, it is one.
        slots = file.size() // TIME_ENTRY.size
        count = 1 if slots == 1 else last_true(slots, lambda slot: entry(slot) != (0, 0)) + 1
        found = last_true(count, lambda slot: entry(slot)[0] <= timestamp)
        near = segment.base_offset + entry(found)[1] if found >= 0 else segment.base_offset
        return entry(count - 1)[0] if count else None, near


def offset_at_time(fs: Fs, segments: Sequence[SegmentPaths], timestamp: int, low: int) -> int | None:
    """The first offset from ``low`` on of a record whose timestamp (ms) is ``timestamp`` or later; None if none.

    Kafka's rule (``LogSegment.findOffsetByTimestamp``): skip segments whose last time index entry is earlier, except
    the last segment, whose time index is not complete.
    """
    for segment, following in zip(segments, [*segments[1:], None], strict=False):
        if following is not None and following.base_offset <= low:
            continue
        newest, near = _look_up_time(fs, segment, timestamp)
        if following is not None and newest is not None and newest < timestamp:
            continue
        position = start_position(fs, segment, max(near, low))
        found = _first_at(fs, FileRange(segment.log, position, is_open=following is None), timestamp, low)
        if found is not None:
            return found
    return None


def _first_at(fs: Fs, stretch: FileRange, timestamp: int, low: int) -> int | None:
    for table in iter_tables(fs, stretch):
        late = (table["max_timestamp"] >= timestamp) & (table["base_offset"] + table["last_offset_delta"] >= low)
        for index in np.flatnonzero(late):
            found = _first_in(fs, stretch.path, table[index : index + 1], timestamp, low)
            if found is not None:
                return found
    return None


def _first_in(fs: Fs, path: str, row: BatchTable, timestamp: int, low: int) -> int | None:
    """Search one batch: the header's largest timestamp may belong to a record that compaction removed."""
    position, size = int(row["position"][0]), int(row["size"][0])
    with closing(fs.open(path, write=False)) as file:
        data = file.pread(size, position)
    entry = Entry(0, size, int(row["base_offset"][0]), int(row["magic"][0]))
    try:
        any_magic.check(data, entry)
        records = any_magic.decode(data, entry)
    except CorruptBatchError as error:
        raise error.at(file=path, base=position) from None
    for record in records:
        if record.timestamp >= timestamp and record.offset >= low:
            return record.offset
    return None
