"""Surveys a partition for `seglog ls` by names, sizes and batch headers alone. Opens no file for writing."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple
from uuid import UUID

from seglog.core.errors import CorruptError
from seglog.core.fs import Fs, NotRegularFileError
from seglog.core.types import NO_TIMESTAMP, TopicPartition
from seglog.storage.formats.checkpoints import read_partition_metadata
from seglog.storage.formats.paths import SegmentPaths, list_segments
from seglog.storage.log.quarantine import only_zeros
from seglog.storage.offline.batch_reading import iter_headers

Advance = Callable[[int], None]


class SegmentSurvey(NamedTuple):
    """One segment. Offsets from ``base_offset`` to ``next_offset`` (exclusive); sizes in bytes, of the log alone.

    ``records`` includes control records, and is None if the number inside a compressed message of format 0 or 1 is not
    known. Timestamps are -1 if there are none. ``trailing``: bytes behind the last whole batch; ``error``: why reading
    stopped before the end of the file.
    """

    base_offset: int
    next_offset: int
    size: int = 0
    index_size: int = 0
    batches: int = 0
    records: int | None = None
    first_timestamp: int = NO_TIMESTAMP
    max_timestamp: int = NO_TIMESTAMP
    formats: tuple[int, ...] = ()
    codecs: tuple[int, ...] = ()
    trailing: int = 0
    error: CorruptError | None = None


class PartitionSurvey(NamedTuple):
    """A partition and its segments by offset; the topic id is None without ``partition.metadata``."""

    path: str
    topic_partition: TopicPartition | None
    topic_id: UUID | None
    segments: tuple[SegmentSurvey, ...]

    @property
    def total(self) -> SegmentSurvey:
        """The sum of all segments."""
        segments = self.segments
        counts = [segment.records for segment in segments if segment.records is not None]
        first = [segment.first_timestamp for segment in segments if segment.first_timestamp != NO_TIMESTAMP]
        return SegmentSurvey(
            base_offset=segments[0].base_offset if segments else 0,
            next_offset=segments[-1].next_offset if segments else 0,
            size=sum(segment.size for segment in segments),
            index_size=sum(segment.index_size for segment in segments),
            batches=sum(segment.batches for segment in segments),
            records=sum(counts) if len(counts) == len(segments) else None,
            first_timestamp=first[0] if first else NO_TIMESTAMP,
            max_timestamp=max((segment.max_timestamp for segment in segments), default=NO_TIMESTAMP),
            formats=_union(*(segment.formats for segment in segments)),
            codecs=_union(*(segment.codecs for segment in segments)),
            trailing=sum(segment.trailing for segment in segments),
            error=next((segment.error for segment in segments if segment.error is not None), None),
        )


def survey_partition(
    fs: Fs, path: str, topic_partition: TopicPartition | None, advance: Advance | None = None
) -> PartitionSurvey:
    """Read the headers of all batches of a partition; ``advance`` receives the bytes of each segment."""
    segments = []
    found = list_segments(fs, path)
    for paths in found:
        facts = survey_segment(fs, paths, is_last=paths is found[-1])
        segments.append(facts)
        if advance is not None:
            advance(facts.size)
    return PartitionSurvey(path, topic_partition, read_partition_metadata(fs, path), tuple(segments))


def survey_segment(fs: Fs, paths: SegmentPaths, *, is_last: bool = False) -> SegmentSurvey:
    """Read the headers of a segment's batches, up to the first that cannot be read.

    Zeros at the end of the last segment (``preallocate``) are not counted.
    """
    try:
        file = fs.open(paths.log, write=False)
    except NotRegularFileError as problem:
        error = CorruptError(str(problem.strerror), file=paths.log)
        return SegmentSurvey(paths.base_offset, paths.base_offset, error=error)
    size = file.size()
    formats, codecs = set[int](), set[int]()
    position = batches = 0
    records: int | None = 0
    next_offset = paths.base_offset
    first_timestamp = max_timestamp = NO_TIMESTAMP
    damage = None
    try:
        for facts in iter_headers(file, 0, size):
            if first_timestamp == NO_TIMESTAMP:
                first_timestamp = facts.first_timestamp
            max_timestamp = max(max_timestamp, facts.max_timestamp)
            records = None if records is None or facts.records is None else records + facts.records
            next_offset = facts.last_offset + 1
            formats.add(facts.magic)
            codecs.add(facts.codec)
            batches += 1
            position = facts.end
    except CorruptError as problem:
        if is_last and only_zeros(file, position, size):
            size = position
        else:
            damage = problem
    return SegmentSurvey(
        base_offset=paths.base_offset,
        next_offset=next_offset,
        size=size,
        index_size=sum(fs.stat(path).size for path in paths[2:] if fs.exists(path)),
        batches=batches,
        records=records,
        first_timestamp=first_timestamp,
        max_timestamp=max_timestamp,
        formats=tuple(sorted(formats)),
        codecs=tuple(sorted(codecs)),
        trailing=size - position,
        error=damage,
    )


def _union(*sets: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(sorted(set().union(*sets)))
