"""Where in its files a scan begins: near an offset by the sparse index, at a time by the time index.

Indexes are hints here: what they say is checked against the log, and without them a search begins at a segment's start.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

import numpy as np

from seglog.core.errors import CorruptBatchError
from seglog.core.fs import Fs
from seglog.core.types import MAX_INT64
from seglog.records import batch, view
from seglog.records.batch import MIN_ENTRY, Entry
from seglog.records.tables import BatchTable
from seglog.storage.index import count_offset_entries, count_time_entries, find_offset, find_timestamp
from seglog.storage.layout import SegmentPaths
from seglog.storage.table_batches import Stretch, iter_tables


def start_position(fs: Fs, segment: SegmentPaths, offset: int) -> int:
    """Where a batch starts that is not behind ``offset``, as near to it as the index tells."""
    if offset <= segment.base_offset:
        return 0
    entries = _read_index(fs, segment.offset_index)
    found = find_offset(entries, count_offset_entries(entries), segment.base_offset, offset)
    return found.position if found.position > 0 and _is_batch(fs, segment.log, found.position, found.offset) else 0


def _read_index(fs: Fs, path: str) -> bytes:
    try:
        return fs.read(path)
    except FileNotFoundError:
        return b""


def _is_batch(fs: Fs, path: str, position: int, last_offset: int) -> bool:
    """Whether a sound batch with offsets up to ``last_offset`` starts there."""
    with closing(fs.open(path, write=False)) as file:
        head = file.pread(batch.BATCH_OVERHEAD, position)
        if len(head) < MIN_ENTRY:
            return False
        offset, magic = int.from_bytes(head[:8], "big", signed=True), head[batch.MAGIC_POSITION]
        size = int.from_bytes(head[8:12], "big", signed=True) + batch.LOG_OVERHEAD
        if magic > 2 or not MIN_ENTRY <= size <= file.size() - position or not 0 <= offset <= last_offset:
            return False
        data = file.pread(size, position)
    try:
        view.check(data, Entry(0, size, offset, magic))
    except CorruptBatchError:
        return False
    return True


def offset_at_time(fs: Fs, segments: Sequence[SegmentPaths], timestamp: int, low: int) -> int | None:
    """The first offset, not under ``low``, of a record whose timestamp (ms) is ``timestamp`` or later; None if none.

    By Kafka's rule (``LogSegment.findOffsetByTimestamp``): segments whose last time-index entry is earlier are passed
    over, except the last one, whose time index is not complete.
    """
    for segment, following in zip(segments, [*segments[1:], None], strict=True):
        if following is not None and following.base_offset <= low:
            continue
        entries = _read_index(fs, segment.timeindex)
        count = count_time_entries(entries)
        if following is not None and count:
            newest = find_timestamp(entries, count, segment.base_offset, MAX_INT64).timestamp
            if newest < timestamp:
                continue
        near = find_timestamp(entries, count, segment.base_offset, timestamp).offset
        position = start_position(fs, segment, max(near, low))
        found = _first_at(fs, Stretch(segment.log, position, is_open=following is None), timestamp, low)
        if found is not None:
            return found
    return None


def _first_at(fs: Fs, stretch: Stretch, timestamp: int, low: int) -> int | None:
    for table in iter_tables(fs, stretch):
        late = (table["max_timestamp"] >= timestamp) & (table["base_offset"] + table["last_offset_delta"] >= low)
        for index in np.flatnonzero(late):
            found = _first_in(fs, stretch.path, table[index : index + 1], timestamp, low)
            if found is not None:
                return found
    return None


def _first_in(fs: Fs, path: str, row: BatchTable, timestamp: int, low: int) -> int | None:
    """The look into one batch; the header's largest timestamp may be that of a record which compaction removed."""
    position, size = int(row["position"][0]), int(row["size"][0])
    with closing(fs.open(path, write=False)) as file:
        data = file.pread(size, position)
    entry = Entry(0, size, int(row["base_offset"][0]), int(row["magic"][0]))
    try:
        view.check(data, entry)
        records = view.decode(data, entry)
    except CorruptBatchError as error:
        raise error.at(file=path, base=position) from None
    for record in records:
        if record.timestamp >= timestamp and record.offset >= low:
            return record.offset
    return None
