"""How far compaction has come in directories: their cleaner's point when a query is planned, and after each task."""

from __future__ import annotations

import os.path
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from seglog.core.errors import OffsetOutOfRangeError
from seglog.core.fs import Fs, OsFs
from seglog.core.types import TopicPartition
from seglog.sources.directories.partition_files import read_segments
from seglog.sources.directories.planning import DirectoryExtent, ReadRange
from seglog.sources.directories.source import DirectorySource
from seglog.sources.latest.cleaner_bounds import CleanerBounds
from seglog.sources.latest.ranges import LatestRange, deleted_meanwhile
from seglog.sources.options.read_options import ReadOptions, option_name
from seglog.sources.ranges import OffsetRange
from seglog.storage.formats.checkpoints import read_offsets
from seglog.storage.formats.paths import CLEANED, CLEANER_OFFSETS, DELETED, LOG, SWAP, is_log_dir, parse_file_name

if TYPE_CHECKING:
    import pyarrow as pa


class DirectoryHistory:
    """`History` of log directories."""

    def __init__(self, source: DirectorySource, options: ReadOptions) -> None:
        self._source = source
        self._option = option_name("ending", options.ending)
        self._fails = options.fail_on_data_loss

    def check(
        self, extents: Sequence[DirectoryExtent], ranges: Mapping[TopicPartition, OffsetRange]
    ) -> frozenset[TopicPartition]:
        """None: each task finds out whether its own range was compacted too far while it was read, or deleted."""
        fs = OsFs()
        for extent in extents:
            until = ranges[extent.topic_partition].end
            objection = objection_to(fs, extent.topic_partition, (extent.directory, *extent.others), until)
            if objection is not None and not _is_gone(fs, extent):
                raise OffsetOutOfRangeError(
                    f"option {self._option}: the newest values of {extent.topic_partition} as of offset {until} may be "
                    f"gone: {objection}"
                )

        return frozenset()

    def range_of(self, one: ReadRange, extent: DirectoryExtent, until: int, *, follows: bool) -> LatestRange:
        sizes = {segment.log: segment.size for segment in extent.segments[:-1]}
        sealed = {piece.log: sizes[piece.log] for piece in one.pieces if piece.log in sizes}
        return LatestRange(range=one, until=until, sealed=sealed, follows=follows)

    def read(self, task: LatestRange, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        one: ReadRange = task.range
        yield from self._source.read([one], schema)
        fs = OsFs()
        objection = objection_to(fs, one.topic_partition, (one.directory, *one.others), task.until, task.sealed)
        if objection is not None and _is_gone(fs, one):
            deleted_meanwhile(one.topic_partition, one.offsets.end, fail=self._fails)
        elif objection is not None:
            raise OffsetOutOfRangeError(
                f"the newest values of {one.topic_partition} as of offset {task.until} may be gone since the query was "
                f"planned: {objection}; call load() again"
            )


def _is_gone(fs: Fs, one: DirectoryExtent | ReadRange) -> bool:
    return not all(map(fs.exists, (one.directory, *one.others)))


def objection_to(
    fs: Fs,
    partition: TopicPartition,
    directories: Sequence[str],
    until: int,
    sealed: Mapping[str, int] | None = None,
) -> str | None:
    """Why the newest values as of ``until`` may be gone from one of a partition's replicas; None if they are there.

    ``sealed`` are sizes of files that were read. If one has changed, a round has replaced it, and its end may not be in
    the checkpoint yet.
    """
    for directory in directories:
        try:
            bounds = _bounds(fs, partition, directory)
        except FileNotFoundError:
            return f"{directory} is gone"
        objection = bounds.objection(until)
        if objection is not None:
            return objection
        if sealed and until < bounds.active:
            changed = next((path for path, size in sealed.items() if _size(fs, path) != size), None)
            if changed is not None:
                return f"{changed} was compacted while it was read"
    return None


def _bounds(fs: Fs, partition: TopicPartition, directory: str) -> CleanerBounds:
    parent = os.path.dirname(directory)
    # The segments come first: a round writes the checkpoint after it has replaced them.
    segments = read_segments(fs, directory)
    point = (
        read_offsets(fs, os.path.join(parent, CLEANER_OFFSETS)).get(partition, 0) if is_log_dir(fs, parent) else None
    )
    files = [file for name in fs.listdir(directory) if (file := parse_file_name(name)) and file.kind == LOG]
    return CleanerBounds(
        directory=directory,
        active=segments[-1].base_offset if segments else 0,
        point=point,
        is_moving=any(file.state in (CLEANED, SWAP, DELETED) for file in files),
    )


def _size(fs: Fs, path: str) -> int | None:
    try:
        return fs.stat(path).size
    except FileNotFoundError:
        return None
