"""Readers of the views; paths, selection and ranges are those of records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from seglog.core.errors import InvalidConfigError
from seglog.core.fs import OsFs
from seglog.core.types import MAX_INT64
from seglog.spark.options.read_options import ReadOptions, Subscribe
from seglog.spark.read.batch_reader import SeglogReader
from seglog.spark.read.planning import Piece, ReadRange
from seglog.spark.read.ranges import OffsetRange
from seglog.spark.read.schema import COLUMNS
from seglog.spark.views.tables import BatchTask, SegmentTask, columns_of

if TYPE_CHECKING:
    import pyarrow as pa

_CONSUMER_OFFSETS: Final = "__consumer_offsets"


def view_reader(schema: StructType, options: ReadOptions) -> DataSourceReader:
    """Reads a view; ``schema`` is some of its columns, as they are. `InvalidConfigError` names one that is not."""
    chosen = columns_of(options.view, schema.fieldNames())
    for ours, theirs in zip(chosen.fields, schema.fields, strict=True):
        if ours.dataType != theirs.dataType:
            raise InvalidConfigError(
                f"schema: column {ours.name} of view {options.view} is {ours.dataType.simpleString()}, not "
                f"{theirs.dataType.simpleString()}: read it as it is and cast it"
            )
    if options.view == "group-offsets":
        return _GroupReader(schema, options)
    return _BytesReader(schema, options)


class _BytesReader(DataSourceReader):
    """Views of what is seen without decoding a record: batches and segments."""

    def __init__(self, schema: StructType, options: ReadOptions) -> None:
        self._schema = schema
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        tasks: Sequence[object] = self._segments() if self._options.view == "segments" else self._batches()
        return [InputPartition(task) for task in tasks]

    def _batches(self) -> list[BatchTask]:
        """Stretches of bytes; every batch is in one of them.

        They are cut between batches only, so ``minPartitions`` is met by bytes, and ``maxRecordsPerPartition`` says
        nothing.
        """
        wanted = self._options.min_partitions
        options = replace(self._options, min_partitions=None, max_records=None)
        tasks, tails = _plan(options)
        if wanted is not None and len(tasks) < wanted:
            total = sum(piece.end - piece.start for task in tasks for piece in task.pieces)
            tasks, tails = _plan(replace(options, max_bytes=max(total // wanted, 1)))
        partitions = [None, *(task.topic_partition for task in tasks), None]
        return [
            BatchTask(task, before != task.topic_partition, after != task.topic_partition)
            for before, task, after in zip(partitions, tasks, partitions[2:], strict=False)
        ] + [BatchTask(tail, first=False, last=False) for tail in tails]

    def _segments(self) -> list[SegmentTask]:
        """All segments of a partition that is read whole, else those that may have offsets that are asked for."""
        reader, fs = _records(self._options), OsFs()
        extents = reader.extents(fs)
        ranges = reader.resolve(fs, extents).ranges
        found = []
        for extent in extents:
            wanted = ranges[extent.topic_partition]
            is_whole = wanted == OffsetRange(extent.log_start, extent.until)
            nexts = [*(segment.base_offset for segment in extent.segments[1:]), None]
            for segment, behind in zip(extent.segments, nexts, strict=True):
                is_within = segment.base_offset < wanted.end and (behind is None or behind > wanted.start)
                if is_whole or (wanted.size and is_within):
                    piece = Piece(segment.log, segment.base_offset, 0, segment.size, behind)
                    found.append(SegmentTask(*extent.topic_partition, piece))
        return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from pyspark.sql.pandas.types import to_arrow_schema

        from seglog.spark.views.batch_rows import batch_rows, segment_row

        task = partition.value
        arrow = to_arrow_schema(self._schema, timezone="UTC")
        if isinstance(task, SegmentTask):
            yield segment_row(task, arrow)
        elif task is not None:
            yield from batch_rows(task, arrow)


class _GroupReader(DataSourceReader):
    """The records of ``__consumer_offsets``, those of transactions once they are committed, and what they say."""

    def __init__(self, schema: StructType, options: ReadOptions) -> None:
        if options.selection is None:
            options = replace(options, selection=Subscribe(topics=(_CONSUMER_OFFSETS,)))
        self._schema = schema
        names = ("key", "value", "partition", "offset", "timestamp")
        records = StructType([COLUMNS[name] for name in names])
        self._records = SeglogReader(records, replace(options, view="records", columns=None, read_committed=True))

    def partitions(self) -> Sequence[InputPartition]:
        return self._records.partitions()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from pyspark.sql.pandas.types import to_arrow_schema

        from seglog.spark.views.group_rows import group_rows

        arrow = to_arrow_schema(self._schema, timezone="UTC")
        for batch in self._records.read(partition):
            yield group_rows(batch, arrow)


def _plan(options: ReadOptions) -> tuple[list[ReadRange], list[ReadRange]]:
    """The tasks of a query for records; and what lies behind the last batch of logs that are read to their end.

    That is a batch of which a part is missing, or damage: then there may be more behind it.
    """
    reader, fs = _records(options), OsFs()
    extents = reader.extents(fs)
    ranges = reader.resolve(fs, extents).ranges
    tails = []
    for extent in extents:
        if ranges[extent.topic_partition].end < extent.log_end or not extent.segments:
            continue
        last = extent.segments[-1]
        size = fs.stat(last.log).size
        if size > last.size:
            tails.append(
                ReadRange(
                    topic_partition=extent.topic_partition,
                    directory=extent.directory,
                    offsets=OffsetRange(extent.log_end, MAX_INT64),
                    pieces=(Piece(last.log, last.base_offset, last.size, size),),
                )
            )
    return reader.plan(fs, extents, ranges), tails


def _records(options: ReadOptions) -> SeglogReader:
    """Plans as for records; damage at the end of a log is for the view to show."""
    return SeglogReader(COLUMNS, replace(options, view="records", columns=None, permissive=True))
