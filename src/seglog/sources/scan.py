"""`seglog.scan`: logs as Arrow, from the files, without Spark and without a broker."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Final, NamedTuple

import pyarrow as pa

from seglog.core.errors import InvalidConfigError, InvalidLogDirError, OffsetOutOfRangeError, UnknownTopicError
from seglog.core.fs import Fs, OsFs
from seglog.core.types import MAX_INT64, TopicPartition
from seglog.records.column_decoding import Selection
from seglog.records.columns import COLUMNS, SourcePartition, schema_of
from seglog.sources.directories.scan_start import offset_at_time, start_position
from seglog.sources.typed_scan import typed_columns
from seglog.storage.formats.checkpoints import read_offsets
from seglog.storage.formats.paths import (
    LOG,
    LOG_START_OFFSETS,
    META_PROPERTIES,
    SegmentPaths,
    list_partitions,
    list_segments,
    parse_file_name,
    partition_at,
    segment_paths,
)
from seglog.storage.offline.chunk_decoding import BatchExclusion
from seglog.storage.offline.null_timestamps import log_null_timestamps
from seglog.storage.offline.table_batches import FileRange, iter_table_batches
from seglog.storage.offline.transaction_state import read_transactions

Bound = int | datetime
"""A log offset, or a point in time that has a time zone."""
Bounds = Bound | Mapping[str, Mapping[int, Bound]]
"""One bound for all partitions, or one each: ``{topic: {partition: bound}}``."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_INTERNAL: Final = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state", "__cluster_metadata"})
_ISOLATION_LEVELS: Final = ("read_uncommitted", "read_committed")
_ATTEMPTS: Final = 5


class _Log(NamedTuple):
    """One partition's files, or one file (``directory`` is None then); ``end`` is the last segment's size at first."""

    directory: str | None
    origin: SourcePartition
    segments: tuple[SegmentPaths, ...]
    end: int
    is_open: bool = True


class _Task(NamedTuple):
    """The records to read of a log."""

    log: _Log
    wanted: Selection
    leave_out: BatchExclusion


def scan(
    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    columns: Sequence[str] | None = None,
    start: Bounds | None = None,
    end: Bounds | None = None,
    topics: str | Iterable[str] | None = None,
    isolation_level: str = "read_uncommitted",
    batch_rows: int = 65536,
    batch_bytes: int = 8 << 20,
    include_control: bool = False,
    value_format: str | None = None,
    key_format: str | None = None,
    format_options: Mapping[str, str] = MappingProxyType({}),
    permissive: bool = False,
    fs: Fs | None = None,
) -> pa.RecordBatchReader:
    """Stream the records of Kafka's log files as Arrow record batches, partition by partition, by offset.

    ``path``: a log directory, a partition's directory (``<topic>-<partition>``), a ``.log`` file, or several of them.
    Nothing is changed, and the directory may be in use by Kafka or seglog: the records are those that the files had
    when `scan` was called, up to the last whole batch. Internal topics of a log directory are read if ``topics`` names
    them.

    ``columns``: of key, value, topic, partition, offset, timestamp, timestampType, headers (the default, the schema of
    Spark's Kafka source); also isTombstone (the record has no value), isControl, isTransactional, producerId,
    producerEpoch, sequence, leaderEpoch. What is not asked for is not copied.

    ``start`` and ``end`` (exclusive): offsets, or times with a time zone: a time stands for the first offset whose
    record has that timestamp or a later one, found by the time index as a consumer's ``offsetsForTimes`` does. Records
    before it may be later, and behind it earlier, where timestamps do not rise. A bound is for all partitions, or
    ``{topic: {partition: bound}}``, where a partition that is not named has none; one outside of a log is not an error.

    ``isolation_level="read_committed"`` leaves out aborted transactions (``.txnindex``) and ends before the first open
    one; ``include_control`` gives transaction markers as rows too. A batch has at most ``batch_rows`` rows and about
    ``batch_bytes`` of records, more only if one of Kafka's record batches alone has more; that bounds memory as well.

    ``value_format`` and ``key_format``: ``json``, ``avro`` or ``protobuf``, by a schema that ``format_options`` name
    (``valueSchema``, ``schema.registry.url``, …: docs/values.md). The reader raises `UndecodableValueError` for the
    first value that cannot be decoded; ``permissive`` makes it null and adds its bytes as ``valueBytes``.

    Timestamps are microseconds in 64 bits. The first one that does not fit, because a producer counted in nanoseconds,
    raises `TimestampRangeError`; ``permissive`` makes such timestamps null, and logs their number.

    Raises what is wrong with the arguments at once: `InvalidConfigError`, `InvalidLogDirError`, `UnknownTopicError`,
    OSError. The reader raises `CorruptBatchError`, `CorruptRecordError` or `TooLargeError`, with file, position and
    offset, where it meets damage (a torn last batch of a log is none), and `OffsetOutOfRangeError` where retention
    deletes records before they are read.
    """
    if isolation_level not in _ISOLATION_LEVELS:
        raise InvalidConfigError(f"isolation_level is {' or '.join(_ISOLATION_LEVELS)}, not {isolation_level!r}")
    if batch_rows < 1 or batch_bytes < 1:
        raise InvalidConfigError(f"batch_rows and batch_bytes are at least 1, not {batch_rows} and {batch_bytes}")
    fs = fs or OsFs()
    chosen = {topics} if isinstance(topics, str) else None if topics is None else set(topics)
    logs = _find(fs, [path] if isinstance(path, str | os.PathLike) else path, chosen)
    for bounds in (start, end):
        _check_named(bounds, logs)
    formats = {"value": value_format, "key": key_format}
    named = {log.origin.topic for log in logs if log.origin.topic is not None}
    typed = typed_columns(columns, formats, format_options, lambda: named, fs, permissive=permissive)
    names = tuple(COLUMNS if columns is None else columns) if typed is None else tuple(typed.read)
    schema = schema_of(names)
    wanted = Selection(names, rows=batch_rows, bytes_=batch_bytes, null_timestamps=permissive)
    read_committed = isolation_level == _ISOLATION_LEVELS[1]
    tasks = [_task(fs, log, wanted, start, end, BatchExclusion(include_control), read_committed) for log in logs]
    records = log_null_timestamps(_read_all(fs, tasks))
    if typed is not None:
        return pa.RecordBatchReader.from_batches(typed.schema, typed.decode(records))
    return pa.RecordBatchReader.from_batches(schema, records)


# Finding logs


def _find(fs: Fs, paths: Iterable[str | os.PathLike[str]], topics: set[str] | None) -> list[_Log]:
    found: dict[str, _Log] = {}
    for path in paths:
        real = os.path.realpath(os.fspath(path))
        for log in _logs_at(fs, real, topics):
            found.setdefault(log.directory or log.segments[0].log, log)
    missing = sorted((topics or set()) - {log.origin.topic for log in found.values()})
    if missing:
        raise UnknownTopicError(f"there is no topic {missing[0]!r} in {', '.join(os.fspath(path) for path in paths)}")
    return list(found.values())


def _logs_at(fs: Fs, path: str, topics: set[str] | None) -> list[_Log]:
    if not fs.stat(path).is_dir:
        return [_file(fs, path)]
    names = fs.listdir(path)
    alone = partition_at(path)
    if alone is not None and any((file := parse_file_name(name)) and file.kind == LOG for name in names):
        partitions = [alone]
    else:
        partitions = list_partitions(fs, path)
        if not partitions and META_PROPERTIES not in names:
            raise InvalidLogDirError(
                f"{path} is neither a log directory nor a partition's: no partition or segment in it"
            )
        if topics is None:
            partitions = [found for found in partitions if found.topic_partition.topic not in _INTERNAL]
    return [
        _directory(fs, directory, topic_partition)
        for directory, topic_partition in partitions
        if topics is None or topic_partition.topic in topics
    ]


def _directory(fs: Fs, directory: str, topic_partition: TopicPartition) -> _Log:
    segments = tuple(list_segments(fs, directory))
    end = fs.stat(segments[-1].log).size if segments else 0
    return _Log(directory, SourcePartition(*topic_partition), segments, end)


def _file(fs: Fs, path: str) -> _Log:
    """One segment. Its end may be torn only if no segment follows it in its directory."""
    directory, name = os.path.split(path)
    parsed = parse_file_name(name)
    base_offset = parsed.base_offset if parsed else 0
    partition = partition_at(directory)
    segment = segment_paths(directory, base_offset)._replace(log=path)
    is_last = all(other.base_offset <= base_offset for other in list_segments(fs, directory))
    origin = SourcePartition(*partition.topic_partition) if partition else SourcePartition()
    return _Log(None, origin, (segment,), fs.stat(path).size, is_last)


# Bounds


def _check_named(bounds: Bounds | None, logs: Sequence[_Log]) -> None:
    if not isinstance(bounds, Mapping):
        return
    there = {(log.origin.topic, log.origin.partition) for log in logs}
    for topic, partitions in bounds.items():
        for partition in partitions:
            if (topic, partition) not in there:
                raise UnknownTopicError(f"there is no partition {partition} of topic {topic!r} among those to scan")


def _task(
    fs: Fs,
    log: _Log,
    wanted: Selection,
    start: Bounds | None,
    end: Bounds | None,
    leave_out: BatchExclusion,
    read_committed: bool,
) -> _Task:
    low, high = _log_start(fs, log), MAX_INT64
    if read_committed and log.directory is not None:
        aborted, stable = read_transactions(fs, log.directory)
        leave_out = leave_out._replace(aborted=aborted)
        high = high if stable is None else stable
    first = _offset(fs, log, _of(start, log.origin), low, nothing=low, late=high)
    last = _offset(fs, log, _of(end, log.origin), low, nothing=high, late=high)
    return _Task(log, wanted._replace(low=max(low, first), high=min(high, last)), leave_out)


def _log_start(fs: Fs, log: _Log) -> int:
    """The log start: a client has deleted the records below it, which a segment may still have."""
    if log.directory is None or log.origin.topic is None or log.origin.partition is None:
        return 0
    starts = read_offsets(fs, os.path.join(os.path.dirname(log.directory), LOG_START_OFFSETS))
    return starts.get(TopicPartition(log.origin.topic, log.origin.partition), 0)


def _of(bounds: Bounds | None, origin: SourcePartition) -> Bound | None:
    if not isinstance(bounds, Mapping):
        return bounds
    if origin.topic is None or origin.partition is None:
        return None
    return bounds.get(origin.topic, {}).get(origin.partition)


def _offset(fs: Fs, log: _Log, bound: Bound | None, low: int, *, nothing: int, late: int) -> int:
    """A bound as an offset: ``nothing`` without a bound, ``late`` if all records are earlier."""
    if bound is None:
        return nothing
    if isinstance(bound, int):
        return bound
    if bound.tzinfo is None:
        raise InvalidConfigError(f"{bound!r} has no time zone: set one, for instance tzinfo=datetime.UTC")
    milliseconds = -((_EPOCH - bound) // timedelta(milliseconds=1))
    found = offset_at_time(fs, log.segments, milliseconds, low)
    return late if found is None else found


# Reading


def _read_all(fs: Fs, tasks: Iterable[_Task]) -> Iterator[pa.RecordBatch]:
    for task in tasks:
        yield from _read(fs, task)


def _read(fs: Fs, task: _Task) -> Iterator[pa.RecordBatch]:
    """Read a log segment by segment. If a broker deletes a segment meanwhile, list the segments again."""
    log, wanted, leave_out = task
    attempt = 0
    while wanted.low < wanted.high:
        for segment, following in zip(log.segments, [*log.segments[1:], None], strict=True):
            if following is not None and following.base_offset <= wanted.low:
                continue
            if segment.base_offset >= wanted.high:
                return
            high = wanted.high if following is None else min(wanted.high, following.base_offset)
            try:
                stretch = FileRange(segment.log, start_position(fs, segment, wanted.low), to_end=high < wanted.high)
                if following is None:
                    stretch = stretch._replace(end=log.end, is_open=log.is_open)
                yield from iter_table_batches(fs, stretch, wanted._replace(high=high), log.origin, leave_out=leave_out)
            except FileNotFoundError:
                attempt += 1
                if log.directory is None or attempt == _ATTEMPTS:
                    raise
                wanted = wanted._replace(low=max(wanted.low, segment.base_offset))
                log = _again(fs, log.directory, log.origin, wanted.low)
                break
            wanted = wanted._replace(low=max(wanted.low, high))
        else:
            return


def _again(fs: Fs, directory: str, origin: SourcePartition, offset: int) -> _Log:
    """List the log's segments again: compaction may have moved records to an earlier segment."""
    log = _directory(fs, directory, TopicPartition(origin.topic or "", origin.partition or 0))
    first = log.segments[0].base_offset if log.segments else None
    if first is None or first > offset:
        raise OffsetOutOfRangeError(
            f"{directory}: the records from offset {offset} on were deleted before they were read"
        )
    return log
