"""The segments of a partition's directory, their ends and batch boundaries, found with a few small reads.

This module decodes no record and changes no file. A broker may be writing to the directory: the last segment then ends
after its last whole batch, and an index may end in pre-allocated zeros.
"""

from __future__ import annotations

import os.path
from collections.abc import Callable
from contextlib import closing
from functools import lru_cache
from typing import Final
from uuid import UUID

from seglog.core.errors import CorruptError
from seglog.core.fs import Fs
from seglog.core.types import MAX_INT64, TopicPartition
from seglog.records.batch import read_header
from seglog.sources.directories.planning import Boundaries, DirectoryExtent, SegmentExtent
from seglog.storage.formats.checkpoints import EpochEntry, read_partition_metadata
from seglog.storage.formats.paths import LOG, SWAP, parse_file_name, segment_paths
from seglog.storage.offline.batch_boundaries import IndexBoundaries, find_end
from seglog.storage.offline.batch_reading import read_chunks

_ATTEMPTS: Final = 5


def read_extent(
    fs: Fs, path: str, topic_partition: TopicPartition, log_start: int, *, permissive: bool = False
) -> DirectoryExtent:
    """A partition's segments and offsets. ``log_start`` comes from the checkpoint beside it, or is 0.

    Reads the last index entry of the last segment and walks the batch headers from there to the end. Damage there
    raises `CorruptBatchError`, or is taken for the end if ``permissive``.
    """
    topic_id = _topic_id(fs, path)  # first: of a topic that is created again now, files must not pass as the old one's
    segments = read_segments(fs, path)
    first = segments[0].base_offset if segments else 0
    end = first
    if segments:
        size, end = find_end(fs, segments[-1], permissive=permissive)
        segments[-1] = segments[-1]._replace(size=size)
    return DirectoryExtent(
        topic_partition=topic_partition,
        directory=path,
        log_start=min(max(log_start, first), end),
        log_end=end,
        until=end,
        segments=tuple(segments),
        topic_id=topic_id,
    )


def _topic_id(fs: Fs, path: str) -> UUID | None:
    try:
        return read_partition_metadata(fs, path)
    except CorruptError:
        return None


def is_of_topic(fs: Fs, path: str, topic_id: UUID | None) -> bool:
    """Whether a partition's directory still is of the topic with this id (None: not known). It had the id before.

    FileNotFoundError if the directory does not exist.
    """
    if topic_id is None:
        return True
    found = read_partition_metadata(fs, path)
    if found is None and not fs.exists(path):
        raise FileNotFoundError(f"{path} does not exist any more")
    return found == topic_id


def read_segments(fs: Fs, path: str) -> list[SegmentExtent]:
    """The segments of a partition's directory, with the sizes of their files; FileNotFoundError if it does not exist.

    While a compaction replaces segments, there is a moment when the old ones are gone and the new one is complete but
    still has the suffix ``.swap``.
    """
    for attempt in range(_ATTEMPTS):
        files: dict[int, str] = {}
        for name in fs.listdir(path):
            file = parse_file_name(name)
            if file is None or file.kind != LOG or file.state not in ("", SWAP):
                continue
            if not file.state or file.base_offset not in files:
                files[file.base_offset] = os.path.join(path, name)
        try:
            return [SegmentExtent(base, files[base], fs.stat(files[base]).size) for base in sorted(files)]
        except FileNotFoundError:
            if attempt == _ATTEMPTS - 1:
                raise
    return []


def plan_index(fs: Fs, kept: int) -> Callable[[SegmentExtent], Boundaries]:
    """The boundaries of segments, of which the last ``kept`` are remembered.

    A segment may be deleted while a query is planned. Then the whole of it is planned, and the task that does not find
    it decides whether records are lost: it may have been compacted, or there may be another replica.
    """
    return lru_cache(kept)(lambda segment: _PlannedBoundaries(IndexBoundaries(fs, segment), segment))


class _PlannedBoundaries:
    """Boundaries as far as there are any."""

    def __init__(self, found: Boundaries, segment: SegmentExtent) -> None:
        self._found = found
        self._size = segment.size

    def start_of(self, offset: int) -> int:
        return self._try(lambda: self._found.start_of(offset), 0)

    def end_of(self, offset: int) -> int:
        return self._try(lambda: self._found.end_of(offset), self._size)

    def cut(self, low: int, wanted: int, high: int) -> int:
        return self._try(lambda: self._found.cut(low, wanted, high), high)

    def offset_at(self, position: int) -> int:
        """Beyond all offsets if it cannot be known, so that nothing is divided there."""
        return self._try(lambda: self._found.offset_at(position), MAX_INT64)

    @staticmethod
    def _try(find: Callable[[], int], otherwise: int) -> int:
        try:
            return find()
        except FileNotFoundError:
            return otherwise


def find_by_time(fs: Fs, extent: DirectoryExtent, timestamp: int) -> int | None:
    """The first offset, not below the log start, of a record with ``timestamp`` (ms) or a later one; None if none."""
    from seglog.sources.directories.scan_start import offset_at_time

    paths = [
        segment_paths(extent.directory, segment.base_offset)._replace(log=segment.log) for segment in extent.segments
    ]
    return offset_at_time(fs, paths, timestamp, extent.log_start)


def epoch_before(fs: Fs, extent: DirectoryExtent, offset: int) -> EpochEntry | None:
    """The leader epoch of the last batch that begins before ``offset``, with the base offset of that batch.

    None if compaction has left no batch nearby, or if its format has no epochs.
    """
    segment = next((one for one in reversed(extent.segments) if one.base_offset < offset), None)
    if segment is None:
        return None
    found = None
    with closing(fs.open(segment.log, write=False)) as file:
        for chunk in read_chunks(file, IndexBoundaries(fs, segment).start_of(offset - 1), segment.size, size=1 << 16):
            for entry in chunk.entries:
                if entry.offset >= offset:
                    return found
                found = (
                    EpochEntry(read_header(chunk.data, entry.position).leader_epoch, entry.offset)
                    if entry.magic == 2
                    else None
                )
    return found
