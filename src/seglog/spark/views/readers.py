"""Other tables over the same files: ``option("view", "batches" | "segments" | "group-offsets")``.

Paths, selection and ranges are those of records. `schema` and `reader` are what the data source gives back for a view.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from seglog.core.errors import InvalidConfigError
from seglog.core.fs import OsFs
from seglog.core.types import MAX_INT64
from seglog.spark.options.read_options import ReadOptions, Subscribe
from seglog.spark.read.planning import Piece, ReadRange
from seglog.spark.read.ranges import OffsetRange

if TYPE_CHECKING:
    import pyarrow as pa

    from seglog.core.fs import Fs
    from seglog.core.types import TopicPartition
    from seglog.spark.read.ranges import PartitionExtent
    from seglog.spark.source import SeglogReader

_TYPES: Final[Mapping[str, DataType]] = {
    "string": StringType(),
    "boolean": BooleanType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "timestamp": TimestampType(),
    "array<int>": ArrayType(IntegerType()),
    "array<string>": ArrayType(StringType()),
}


def _struct(text: str) -> StructType:
    """Of names and types between commas; Spark's own parser of these needs a session."""
    pairs = (part.split() for part in text.split(","))
    return StructType([StructField(name, _TYPES[type_]) for name, type_ in pairs])


_CONSUMER_OFFSETS: Final = "__consumer_offsets"

BATCHES: Final = _struct(
    "topic string, partition int, file string, position bigint, size bigint, baseOffset bigint, lastOffset bigint, "
    "recordsCount int, magic int, codec string, timestampType int, baseTimestamp bigint, maxTimestamp bigint, "
    "deleteHorizonMs bigint, partitionLeaderEpoch int, producerId bigint, producerEpoch int, baseSequence int, "
    "lastSequence int, isTransactional boolean, isControl boolean, attributes int, lastOffsetDelta int, "
    "crc bigint, computedCrc bigint, verdict string, reason string"
)
"""A row for each batch, or message of format 0 and 1; timestamps in milliseconds, as they stand in the header.

``verdict`` is ``ok``, ``crc``, ``header``, or ``hole`` for bytes that are no batch; then ``reason`` says more. A hole
has no header: its columns are null. The end of what is being written is no hole.
"""

SEGMENTS: Final = _struct(
    "topic string, partition int, file string, baseOffset bigint, lastOffset bigint, isLast boolean, size bigint, "
    "indexSize bigint, timeIndexSize bigint, txnIndexSize bigint, batches bigint, records bigint, "
    "firstTimestamp timestamp, maxTimestamp timestamp, formats array<int>, codecs array<string>, "
    "minLeaderEpoch int, maxLeaderEpoch int, holeBytes bigint"
)
"""A row for each segment. ``records`` is null if there are compressed messages of format 0 or 1, which do not say.

Sizes of indexes that are not there are null; CRCs are not looked at.
"""

GROUP_OFFSETS: Final = _struct(
    "type string, group string, topic string, partition int, offset bigint, leaderEpoch int, metadata string, "
    "commitTimestamp timestamp, expireTimestamp timestamp, isDeleted boolean, json string, "
    "logPartition int, logOffset bigint, timestamp timestamp"
)
"""A row for each record of ``__consumer_offsets``: ``type`` is the name of Kafka's message without Key or Value.

Of ``OffsetCommit`` the columns up to ``expireTimestamp`` are filled; of others ``group``, and ``json`` has the value. A
record that deletes its key ``isDeleted``. One that cannot be read has the reason in ``metadata``, and type null.
"""

_SCHEMAS: Final[Mapping[str, StructType]] = {
    "batches": BATCHES,
    "segments": SEGMENTS,
    "group-offsets": GROUP_OFFSETS,
}


def schema(options: ReadOptions) -> StructType:
    """The columns of the view that ``options`` name: all, or those of the option ``columns``."""
    whole = _SCHEMAS[options.view]
    if options.columns is None:
        return whole
    return _chosen(whole, options.columns, options.view)


def reader(schema: StructType, options: ReadOptions) -> DataSourceReader:
    """Reads a view; ``schema`` is some of its columns, as they are. `InvalidConfigError` names one that is not."""
    whole = _SCHEMAS[options.view]
    chosen = _chosen(whole, schema.fieldNames(), options.view)
    for ours, theirs in zip(chosen.fields, schema.fields, strict=True):
        if ours.dataType != theirs.dataType:
            raise InvalidConfigError(
                f"schema: column {ours.name} of view {options.view} is {ours.dataType.simpleString()}, not "
                f"{theirs.dataType.simpleString()}: select it as it is and cast"
            )
    if options.view == "group-offsets":
        return _GroupReader(schema, options)
    return _BytesReader(schema, options)


def _chosen(whole: StructType, names: Sequence[str], view: str) -> StructType:
    ours = {field.name.lower(): field for field in whole.fields}
    for name in names:
        if name.lower() not in ours:
            raise InvalidConfigError(f"view {view} has no column {name!r}; it has {', '.join(whole.fieldNames())}")
    return StructType([ours[name.lower()] for name in names])


class BatchTask(NamedTuple):
    """The batches of some bytes; only at a ``first`` or ``last`` task's outer edge are there others than asked for."""

    range: ReadRange
    first: bool
    last: bool


class SegmentTask(NamedTuple):
    """One segment; the file is read to its end, wherever the piece ends."""

    topic: str
    partition: int
    piece: Piece


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
        ranges = _ranges(fs, extents, self._options)
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

        from seglog.spark.views import batch_rows as views_bytes

        task = partition.value
        arrow = to_arrow_schema(self._schema, timezone="UTC")
        if isinstance(task, SegmentTask):
            yield views_bytes.segment_row(task, arrow)
        elif task is not None:
            yield from views_bytes.batch_rows(task, arrow)


class _GroupReader(DataSourceReader):
    """The records of ``__consumer_offsets``, those of transactions once they are committed, and what they say."""

    def __init__(self, schema: StructType, options: ReadOptions) -> None:
        from seglog.spark.read.schema import COLUMNS
        from seglog.spark.source import SeglogReader

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
    ranges = _ranges(fs, extents, options)
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
    from seglog.spark.read.schema import COLUMNS
    from seglog.spark.source import SeglogReader

    return SeglogReader(COLUMNS, replace(options, view="records", columns=None, permissive=True))


def _ranges(fs: Fs, extents: Sequence[PartitionExtent], options: ReadOptions) -> Mapping[TopicPartition, OffsetRange]:
    from seglog.spark.read.directories.partition_files import find_by_time
    from seglog.spark.read.offsets import resolve

    return resolve(
        extents,
        options.starting,
        options.ending,
        lambda extent, timestamp: find_by_time(fs, extent, timestamp),
        fail_on_data_loss=options.fail_on_data_loss,
    ).ranges


Build = Callable[[str], "pa.Array"]
"""Makes the column of a name."""


def rows_of(arrow: pa.Schema, build: Build) -> pa.RecordBatch:
    """A batch of exactly ``arrow``, of whose columns only those are made."""
    import pyarrow as pa

    arrays = [build(field.name).cast(field.type) for field in arrow]
    return pa.RecordBatch.from_arrays(arrays, schema=arrow)
