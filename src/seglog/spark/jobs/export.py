"""Export topics to Parquet by topic and date. Each run adds the new records, and every record is there once.

Workers read like ``spark.read.format("seglog")``, with its options, and write Parquet themselves: no row passes through
the JVM. Files are finished in staging. Then one atomic replacement of the state in the output commits the run, and its
files get their names (`seglog.spark.jobs.export_state`). A job that dies before the commit has exported nothing; one
that dies after it is finished by the next. A reader of the output finds each record once or not yet. The log directory
is only read, and may be in use. All machines must see both paths.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from seglog.core.errors import InvalidConfigError, OffsetOutOfRangeError
from seglog.core.extras import require
from seglog.core.fs import Fs, OsFs, make_directories
from seglog.core.types import TopicPartition
from seglog.sources.directories.planning import DirectoryExtent, ReadRange
from seglog.sources.offsets import DATA_LOSS_HINT
from seglog.sources.options.read_options import ReadOptions, parse_options
from seglog.sources.ranges import OffsetRange
from seglog.spark.jobs import export_state
from seglog.spark.jobs.driver import Paths, Progress, listed, watched
from seglog.spark.jobs.export_state import ExportInUseError, ExportState, StagedFile

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

__all__ = ["COLUMNS", "ExportInUseError", "ExportRange", "ExportResult", "export"]

COLUMNS: Final = ("key", "value", "partition", "offset", "timestamp", "timestampType", "headers")
"""Columns of the files; ``topic`` and ``date`` are in their paths."""
FORMATS: Final = ("binary", "string", "json")
COMPRESSIONS: Final = ("none", "snappy", "gzip", "lz4", "zstd")
_OPTIONS: Final = {
    name.lower(): name
    for name in (
        "subscribe", "subscribePattern", "assign", "startingOffsets", "startingOffsetsByTimestamp", "startingTimestamp",
        "startingOffsetsByTimestampStrategy", "endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp", "until",
        "isolationLevel", "failOnDataLoss", "maxBytesPerPartition", "minPartitions", "replica", "mode",
    )
}  # fmt: skip
"""The source's options that change neither the form of a record nor which records of a range are read. ``mode`` counts
for timestamps only."""
DEFAULT_FILE_BYTES: Final = 256 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportRange:
    """Offsets ``start`` to before ``end`` of a partition, including gaps and records that are left out."""

    topic: str
    partition: int
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportResult:
    """The result of a run, which first renamed ``finished`` files of one that died. ``losses`` are missing records."""

    ranges: tuple[ExportRange, ...]
    records: int
    files: int
    bytes: int
    finished: int
    losses: tuple[str, ...]
    dry_run: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _FileForm:
    """The form of the files. It is the same in all runs, so that a reader finds one schema."""

    columns: tuple[str, ...]
    key: str
    value: str

    def as_document(self) -> dict[str, Any]:
        return {"columns": list(self.columns), "key": self.key, "value": self.value}


def export(
    spark: SparkSession,
    path: Paths,
    output: str | os.PathLike[str],
    *,
    options: Mapping[str, str] | None = None,
    columns: Collection[str] = COLUMNS,
    key: str = "binary",
    value: str = "binary",
    compression: str = "zstd",
    max_file_bytes: int = DEFAULT_FILE_BYTES,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> ExportResult:
    """Write the records of the log directory at ``path``, or of several, that ``output`` does not have yet.

    ``options`` are those of ``spark.read.format("seglog")``: topics; ``startingOffsets`` for the first run (later runs
    continue where the last one ended, and start new partitions at their log start); ``endingOffsets``; ``until``;
    ``isolationLevel``, here ``read_committed`` by default; ``failOnDataLoss`` for records that were deleted before they
    were exported. ``key`` and ``value`` are "binary", "string" (invalid UTF-8 is replaced) or "json" (validated, with
    Parquet's JSON type). A file ends after ``max_file_bytes``, give or take a row group of 16 MiB of records.

    Raises `InvalidConfigError`, `OffsetOutOfRangeError` for missing records, `ExportInUseError`, and errors of reading.
    """
    require("pyarrow", "spark", purpose="an export")
    shape = _checked(columns, key, value, compression, max_file_bytes)
    fs, output = OsFs(), os.path.abspath(os.path.expanduser(os.fspath(output)))
    for name in options or {}:
        if name.lower() not in _OPTIONS:
            raise InvalidConfigError(f"an export does not take option {name}; it takes {', '.join(_OPTIONS.values())}")
    settings = {"isolationLevel": "read_committed", **(options or {}), "paths": json.dumps(listed(path))}
    job = _ExportRun(spark, fs, output, settings, shape, progress)
    if dry_run:
        return job.planned(export_state.read_state(fs, output) or ExportState())
    with export_state.locked(fs, output):
        return job.run(compression, max_file_bytes)


def _checked(columns: Collection[str], key: str, value: str, compression: str, max_file_bytes: int) -> _FileForm:
    if not columns or len(set(columns)) != len(columns) or not set(columns) <= set(COLUMNS):
        raise InvalidConfigError(
            f"columns are {', '.join(columns) or 'none'}: they must be some of {', '.join(COLUMNS)}"
        )
    for name, chosen in (("key", key), ("value", value)):
        if chosen not in FORMATS:
            raise InvalidConfigError(f"{name} is {chosen!r}: it must be one of {', '.join(FORMATS)}")
    if compression not in COMPRESSIONS:
        raise InvalidConfigError(f"compression is {compression!r}: it must be one of {', '.join(COMPRESSIONS)}")
    if max_file_bytes < 1:
        raise InvalidConfigError(f"max_file_bytes is {max_file_bytes}: it must be above 0")
    return _FileForm(columns=tuple(name for name in COLUMNS if name in columns), key=key, value=value)


class _ExportRun:
    """One run of an export."""

    def __init__(
        self,
        spark: SparkSession,
        fs: Fs,
        output: str,
        settings: Mapping[str, str],
        shape: _FileForm,
        progress: Progress | None,
    ) -> None:
        from seglog.spark.read.batch_reader import SeglogReader

        self._spark = spark
        self._fs = fs
        self._output = output
        self._options: ReadOptions = replace(parse_options(settings), permissive=False)  # damage is never left out
        self._shape = shape
        self._progress = progress
        self._reader = SeglogReader(_read_schema(shape), self._options)

    def planned(self, state: ExportState) -> ExportResult:
        """The ranges that `run` would read. Does not finish a run that died."""
        self._check_shape(state)
        return _exported(self._plan(state), (), dry_run=True)

    def run(self, compression: str, max_file_bytes: int) -> ExportResult:
        """Export what is new. The caller holds the lock of the output."""
        fs, output = self._fs, self._output
        state = export_state.read_state(fs, output) or ExportState(shape=self._shape.as_document())
        self._check_shape(state)
        finished = len(state.pending)
        state = export_state.finish(fs, output, state)
        export_state.clear_staging(fs, output)
        plan = self._plan(state)
        files = self._write(plan, compression, max_file_bytes)
        after = replace(
            state,
            offsets={**state.offsets, **{name: offsets.end for name, offsets in plan.ranges.items()}},
            ids={**state.ids, **plan.ids},
            runs=state.runs + 1,
            records=state.records + sum(one.records for one in files),
        )
        if files or after.offsets != state.offsets:
            export_state.commit(fs, output, after, files)
        export_state.clear_staging(fs, output)
        return replace(_exported(plan, files, dry_run=False), finished=finished)

    def _check_shape(self, state: ExportState) -> None:
        wanted = self._shape.as_document()
        for name, had in state.shape.items():
            if wanted[name] != had:
                raise InvalidConfigError(
                    f"{self._output} was started with {name} = {had}, not {wanted[name]}: keep it, or export elsewhere"
                )

    def _plan(self, state: ExportState) -> _ExportPlan:
        """The range to read of each partition, and the records that are missing."""
        fs = OsFs()
        extents = self._reader.extents()
        ids = _topic_ids(fs, extents)
        starts = self._reader.starts(extents) if not state.offsets else {}
        ends = self._reader.ends(extents)
        ranges: dict[TopicPartition, OffsetRange] = {}
        losses = _gone(state, extents)
        for extent in extents:
            name = extent.topic_partition
            start = state.offsets.get(name)
            if start is None:
                start = extent.nearest(starts.get(name, extent.log_start))
            else:
                known = {state.ids.get(name.topic), ids.get(name.topic)} - {None}  # topics of an old Kafka have none
                start, loss = _start(extent, start, is_same=len(known) <= 1)
                losses += [loss] if loss else []
            ranges[name] = OffsetRange(start, max(start, extent.nearest(ends[name])))
        if losses and self._options.fail_on_data_loss:
            raise OffsetOutOfRangeError(f"{losses[0]}; {DATA_LOSS_HINT}")
        return _ExportPlan(extents, ranges, losses, ids)

    def _write(self, plan: _ExportPlan, compression: str, max_file_bytes: int) -> list[StagedFile]:
        fs = OsFs()
        tasks = self._reader.plan(plan.extents, plan.ranges)
        if not tasks:
            return []
        staging = export_state.staging_of(uuid.uuid4().hex)
        make_directories(fs, os.path.join(self._output, staging))
        work = _work(self._reader, self._output, staging, self._shape, compression, max_file_bytes)
        size = sum(task.size for task in tasks)
        with watched(self._spark, size, len(tasks), self._progress):
            files: list[StagedFile] = self._spark.sparkContext.parallelize(tasks, len(tasks)).flatMap(work).collect()
        return files


class _ExportPlan(NamedTuple):
    """The input of a run. ``ids`` has the ids of the topics that have one; ``losses`` describes missing records."""

    extents: Sequence[DirectoryExtent]
    ranges: Mapping[TopicPartition, OffsetRange]
    losses: Sequence[str]
    ids: Mapping[str, str]


def _topic_ids(fs: Fs, extents: Sequence[DirectoryExtent]) -> dict[str, str]:
    from seglog.storage.formats.checkpoints import encode_id, read_partition_metadata

    found = {}
    for extent in extents:
        topic_id = read_partition_metadata(fs, extent.directory)
        if topic_id is not None:
            found[extent.topic_partition.topic] = encode_id(topic_id)
    return found


def _gone(state: ExportState, extents: Sequence[DirectoryExtent]) -> list[str]:
    here = {extent.topic_partition for extent in extents}
    topics = {name.topic for name in here}
    return [
        f"{name} was exported to offset {offset} and no longer exists"
        for name, offset in sorted(state.offsets.items())
        if name not in here and name.topic in topics
    ]


def _start(extent: DirectoryExtent, start: int, *, is_same: bool) -> tuple[int, str | None]:
    """The offset to start from, and a description of the records that were lost before."""
    name = extent.topic_partition
    if not is_same:
        return extent.log_start, f"{name} was exported to offset {start} and its topic has been created again since"
    if start < extent.log_start:
        return extent.log_start, f"{name} was exported to offset {start} and begins at {extent.log_start} now"
    if start > extent.log_end:
        return extent.log_end, f"{name} was exported to offset {start} and ends at {extent.log_end} now"
    return start, None


def _exported(plan: _ExportPlan, files: Sequence[StagedFile], *, dry_run: bool) -> ExportResult:
    return ExportResult(
        ranges=tuple(
            ExportRange(topic=name.topic, partition=name.partition, start=offsets.start, end=offsets.end)
            for name, offsets in sorted(plan.ranges.items())
            if offsets.start < offsets.end
        ),
        records=sum(one.records for one in files),
        files=len(files),
        bytes=sum(one.size for one in files),
        finished=0,
        losses=tuple(plan.losses),
        dry_run=dry_run,
    )


def _read_schema(shape: _FileForm) -> StructType:
    """The columns to read: those of the files, the timestamp for the date, and the offset for errors."""
    from pyspark.sql.types import StructType

    from seglog.spark.read.schema import record_schema

    wanted = {*shape.columns, "timestamp", "offset"}
    return StructType([one for one in record_schema(include_headers=True).fields if one.name in wanted])


def _work(
    reader: Any, output: str, staging: str, shape: _FileForm, compression: str, max_file_bytes: int
) -> Callable[[ReadRange], Iterator[StagedFile]]:
    def work(task: ReadRange) -> Iterator[StagedFile]:
        from pyspark.sql.datasource import InputPartition

        from seglog.spark.jobs import export_files

        name, offsets = task.topic_partition, task.offsets
        writer = export_files.DayWriter(
            OsFs(),
            output,
            os.path.join(staging, uuid.uuid4().hex),  # not shared with another attempt, which may still be writing
            name.topic,
            f"{name.partition:05d}-{offsets.start:020d}-{offsets.end:020d}",
            compression=compression,
            max_file_bytes=max_file_bytes,
        )
        for batch in reader.read(InputPartition((task,))):
            days = export_files.days_of(batch.column("timestamp"))
            writer.write(export_files.shaped(batch, shape.columns, {"key": shape.key, "value": shape.value}), days)
        yield from writer.finish()

    return work
