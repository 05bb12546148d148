"""The logs of a scan, with the offsets that were chosen when the scan was made: of a query, or of files alone."""

from __future__ import annotations

import os.path
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple, Protocol

import pyarrow as pa

from seglog.client.cluster_connections import ClusterConnections
from seglog.core.errors import InvalidConfigError, UnknownTopicError
from seglog.core.fs import Fs
from seglog.core.types import MAX_INT64, TopicPartition
from seglog.records.columns import SourcePartition
from seglog.sources.directories.scan_start import offset_at_time, start_position
from seglog.sources.narrowing import EVERYTHING, Narrowing
from seglog.sources.options.read_options import ReadOptions
from seglog.sources.ordered_reading import ReadPart
from seglog.sources.output_batches import output_batches, selection_of
from seglog.sources.query import RecordQuery, source_of
from seglog.sources.ranges import OffsetRange, PartitionExtent
from seglog.storage.formats.paths import (
    SegmentPaths,
    list_segments,
    parse_file_name,
    partition_at,
    segment_paths,
)
from seglog.storage.offline.chunk_decoding import BatchExclusion
from seglog.storage.offline.table_batches import FileRange, iter_table_batches

Bound = int | datetime
"""A log offset, or a point in time that has a time zone."""
Bounds = Bound | Mapping[str, Mapping[int, Bound]]
"""One bound for all partitions, or one each: ``{topic: {partition: bound}}``."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class ScannedLogs(Protocol):
    """Logs whose offsets to read are fixed. Reading them twice gives the same records, unless these are deleted."""

    @property
    def topics(self) -> frozenset[str]:
        """The topics of all partitions, as far as they are known."""

    def parts(self, narrowing: Narrowing) -> Sequence[Any]:
        """The parts to read, by topic, partition and offset. Each is small where that costs little."""

    def size_of(self, part: Any) -> int:
        """About how many bytes a part has."""

    def reader(self, schema: pa.Schema, narrowing: Narrowing) -> AbstractContextManager[ReadPart[Any]]:
        """Reads parts in one thread, as batches of exactly ``schema``; records outside of ``narrowing`` may be left
        out."""


def milliseconds_of(bound: datetime) -> int:
    """The first millisecond that is not before ``bound``."""
    if bound.tzinfo is None:
        raise InvalidConfigError(f"{bound!r} has no time zone: set one, for instance tzinfo=datetime.UTC")
    return -((_EPOCH - bound) // timedelta(milliseconds=1))


def _bound_of(bounds: Bounds | None, partition: SourcePartition | TopicPartition) -> Bound | None:
    if not isinstance(bounds, Mapping):
        return bounds
    if partition.topic is None or partition.partition is None:
        return None
    return bounds.get(partition.topic, {}).get(partition.partition)


# Logs of a query


class QueriedLogs:
    """The partitions that ``options`` name, in directories or of brokers, with their ends as they are now.

    ``start`` and ``end`` narrow the offsets that the options choose. A bound outside of a log is not an error.
    """

    def __init__(self, options: ReadOptions, start: Bounds | None, end: Bounds | None, fs: Fs) -> None:
        self._options = options
        self._fs = fs
        with self._query() as query:
            self._extents, self._ranges = query.extents_and(lambda extents: self._choose(query, extents, start, end))

    @property
    def topics(self) -> frozenset[str]:
        return frozenset(one.topic for one in self._ranges)

    @contextmanager
    def _query(self) -> Iterator[RecordQuery]:
        """A query with connections of its own."""
        options = self._options
        with nullcontext() if options.client is None else ClusterConnections(options.client) as cluster:
            yield RecordQuery(options, source_of(options, cluster, self._fs))

    def _choose(
        self, query: RecordQuery, extents: Sequence[Any], start: Bounds | None, end: Bounds | None
    ) -> dict[TopicPartition, OffsetRange]:
        self._check_named(extents, start, end)
        resolved, losses = query.resolve(extents)
        for loss in losses:
            warnings.warn(f"seglog: data was lost: {loss}", stacklevel=2)
        starts, ends = (_offsets(query, extents, bounds) for bounds in (start, end))
        found = {}
        for extent in extents:
            partition = extent.topic_partition
            low, high = resolved[partition]
            low = max(low, starts.get(partition, low))
            found[partition] = OffsetRange(low, max(low, min(high, ends.get(partition, high))))
        return found

    def _check_named(self, extents: Sequence[PartitionExtent], *several: Bounds | None) -> None:
        there = {extent.topic_partition for extent in extents}
        for bounds in several:
            for topic, partitions in bounds.items() if isinstance(bounds, Mapping) else ():
                for partition in partitions:
                    if TopicPartition(topic, partition) not in there:
                        raise UnknownTopicError(
                            f"there is no partition {partition} of topic {topic!r} among those to scan"
                        )

    def parts(self, narrowing: Narrowing) -> Sequence[Any]:
        with self._query() as query:
            extents = [one for one in self._extents if narrowing.has(*one.topic_partition)]
            extents = [one for one in extents if self._ranges[one.topic_partition].size]
            ranges = {one.topic_partition: self._ranges[one.topic_partition] for one in extents}
            starts = {}
            if narrowing.times.first > 0 and extents:  # no record before the first of that time passes the filter
                found = query.source.find_by_time([(one, narrowing.times.first) for one in extents])
                ends = (ranges[one.topic_partition].end for one in extents)
                starts = {
                    one.topic_partition: end if first is None else first
                    for one, first, end in zip(extents, found, ends, strict=True)
                }
            for partition, (start, end) in ranges.items():
                low = max(start, narrowing.low, starts.get(partition, start))
                ranges[partition] = OffsetRange(low, max(low, min(end, narrowing.high)))
            return query.plan(extents, ranges)

    def size_of(self, part: Any) -> int:
        size: int = part.size
        return size

    @contextmanager
    def reader(self, schema: pa.Schema, narrowing: Narrowing) -> Iterator[ReadPart[Any]]:
        options = self._options
        if narrowing.times != EVERYTHING.times:
            options = replace(options, times=narrowing.times)
        if narrowing.keys is not None and options.keys is None:
            options = replace(options, keys=tuple(narrowing.keys))
        with nullcontext() if options.client is None else ClusterConnections(options.client) as cluster:
            source = source_of(options, cluster, self._fs)
            yield lambda part: source.read([part], schema)


def _offsets(query: RecordQuery, extents: Sequence[Any], bounds: Bounds | None) -> dict[TopicPartition, int]:
    """The bound of each partition that has one. A time after all records is the end."""
    given = {
        one.topic_partition: bound for one in extents if (bound := _bound_of(bounds, one.topic_partition)) is not None
    }
    found = {one: bound for one, bound in given.items() if isinstance(bound, int)}
    timed = [
        (one, milliseconds_of(bound))
        for one in extents
        if isinstance(bound := given.get(one.topic_partition), datetime)
    ]
    if timed:
        offsets = query.source.find_by_time(timed)
        found |= {
            one.topic_partition: one.until if offset is None else offset
            for (one, _), offset in zip(timed, offsets, strict=True)
        }
    return found


# Files alone


class LogFile(NamedTuple):
    """A ``.log`` file, of which ``size`` bytes are read. Only the last one of its log may end within a batch."""

    segment: SegmentPaths
    origin: SourcePartition
    size: int
    is_last: bool


class _Stretch(NamedTuple):
    file: LogFile
    offsets: OffsetRange


class LogFiles:
    """Segments alone, as they are when the scan is made. What only their directory says, such as the log start offset
    and transactions, does not count."""

    def __init__(
        self, fs: Fs, paths: Sequence[str], options: ReadOptions, start: Bounds | None, end: Bounds | None
    ) -> None:
        self._fs = fs
        self._options = options
        found = {path: _log_file(fs, path) for path in dict.fromkeys(map(os.path.realpath, paths))}
        self._stretches = [
            _Stretch(
                file,
                OffsetRange(
                    max(0, self._offset(file, _bound_of(start, file.origin), 0)),
                    self._offset(file, _bound_of(end, file.origin), MAX_INT64),
                ),
            )
            for file in found.values()
        ]

    @property
    def topics(self) -> frozenset[str]:
        return frozenset(one.file.origin.topic for one in self._stretches if one.file.origin.topic is not None)

    def _offset(self, file: LogFile, bound: Bound | None, nothing: int) -> int:
        if bound is None or isinstance(bound, int):
            return nothing if bound is None else bound
        found = offset_at_time(self._fs, [file.segment], milliseconds_of(bound), 0)
        return MAX_INT64 if found is None else found

    def parts(self, narrowing: Narrowing) -> Sequence[_Stretch]:
        bounded = [
            one._replace(
                offsets=OffsetRange(max(one.offsets.start, narrowing.low), min(one.offsets.end, narrowing.high))
            )
            for one in self._stretches
            if narrowing.has(*one.file.origin)
        ]
        return [one for one in bounded if one.offsets.size > 0]

    def size_of(self, part: _Stretch) -> int:
        return part.file.size

    def reader(self, schema: pa.Schema, narrowing: Narrowing) -> AbstractContextManager[ReadPart[_Stretch]]:
        options = replace(self._options, times=narrowing.times)
        wanted = selection_of(options, schema.names)
        leave_out = BatchExclusion(options.include_control)

        def read(part: _Stretch) -> Iterator[pa.RecordBatch]:
            file, (low, high) = part
            position = start_position(self._fs, file.segment, low)
            stretch = FileRange(file.segment.log, position, file.size, is_open=file.is_last)
            bounded = wanted._replace(low=low, high=high)
            for batch in iter_table_batches(self._fs, stretch, bounded, file.origin, leave_out=leave_out):
                yield from output_batches(batch, schema, options)

        return nullcontext(read)


def _log_file(fs: Fs, path: str) -> LogFile:
    directory, name = os.path.split(path)
    parsed = parse_file_name(name)
    base_offset = parsed.base_offset if parsed else 0
    partition = partition_at(directory)
    segment = segment_paths(directory, base_offset)._replace(log=path)
    is_last = all(other.base_offset <= base_offset for other in list_segments(fs, directory))
    origin = SourcePartition(*partition.topic_partition) if partition else SourcePartition()
    return LogFile(segment, origin, fs.stat(path).size, is_last)


# Several


@dataclass(frozen=True, slots=True)
class SeveralLogs:
    """One after the other."""

    several: Sequence[ScannedLogs]

    @property
    def topics(self) -> frozenset[str]:
        return frozenset().union(*(one.topics for one in self.several))

    def parts(self, narrowing: Narrowing) -> Sequence[tuple[int, Any]]:
        return [(number, part) for number, one in enumerate(self.several) for part in one.parts(narrowing)]

    def size_of(self, part: tuple[int, Any]) -> int:
        return self.several[part[0]].size_of(part[1])

    @contextmanager
    def reader(self, schema: pa.Schema, narrowing: Narrowing) -> Iterator[ReadPart[tuple[int, Any]]]:
        with ExitStack() as stack:
            readers = [stack.enter_context(one.reader(schema, narrowing)) for one in self.several]
            yield lambda part: readers[part[0]](part[1])
