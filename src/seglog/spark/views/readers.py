"""The readers of the views. Paths, selection and ranges work as for records."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from seglog.client.client_config import ClientConfig
from seglog.client.kept_connections import connections
from seglog.core.errors import InvalidConfigError
from seglog.core.fs import OsFs
from seglog.core.types import MAX_INT64
from seglog.sources.brokers.planning import FetchRange
from seglog.sources.directories.planning import DirectoryExtent, Piece, ReadRange
from seglog.sources.latest.source import latest_source
from seglog.sources.options.read_options import ReadOptions, Subscribe
from seglog.sources.ranges import OffsetRange
from seglog.sources.views.planned_ranges import planned_ranges, planned_rows
from seglog.sources.views.rows import BatchTask, FetchedBatchTask, SegmentTask, described_rows
from seglog.spark.read.batch_reader import SeglogReader
from seglog.spark.read.schema import COLUMNS
from seglog.spark.runtime.error_sentences import ErrorSentences
from seglog.spark.views.tables import columns_of
from seglog.values.reader_schema import ReadFormats

if TYPE_CHECKING:
    import pyarrow as pa

_CONSUMER_OFFSETS: Final = "__consumer_offsets"
_TRANSACTION_STATE: Final = "__transaction_state"
_DECODED: Final = StructType([COLUMNS[name] for name in ("key", "value", "topic", "partition", "offset", "timestamp")])
"""The columns of a record that the views of Kafka's own topics decode."""


def view_reader(schema: StructType, options: ReadOptions) -> DataSourceReader:
    """The reader of a view. Raises `InvalidConfigError` if a column of ``schema`` has another type than in the view."""
    chosen = columns_of(options.view, schema.fieldNames())
    for ours, theirs in zip(chosen.fields, schema.fields, strict=True):
        if ours.dataType != theirs.dataType:
            raise InvalidConfigError(
                f"schema: column {ours.name} of view {options.view} is {ours.dataType.simpleString()}, not "
                f"{theirs.dataType.simpleString()}: read it with its own type and cast it"
            )
    if options.view == "tasks":
        return _TaskReader(schema, options)
    options = _of_one_source(options)
    if options.view == "group-offsets":
        return _GroupReader(schema, options)
    if options.view == "transactions":
        return _TransactionReader(schema, options)
    return (
        _BytesReader(schema, options)
        if options.client is None
        else _FetchedBatchReader(schema, options.client, options)
    )


def latest_reader(schema: StructType, options: ReadOptions, formats: ReadFormats | None = None) -> SeglogReader:
    """The reader of the views ``latest`` and ``latest-parts``."""
    return SeglogReader(schema, options, formats, latest_source(options))


def _of_one_source(options: ReadOptions) -> ReadOptions:
    """With brokers and directories, ``segments`` shows the directories, and the views of records the brokers."""
    if options.client is None or not options.paths:
        return options
    return replace(options, client=None) if options.view == "segments" else replace(options, paths=())


class _FetchedBatchReader(ErrorSentences, DataSourceReader):
    """The view ``batches`` through brokers."""

    def __init__(self, schema: StructType, client: ClientConfig, options: ReadOptions) -> None:
        self._schema = schema
        self._client = client
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        reader = _records(self._options)
        extents, resolved = reader.extents_and(reader.resolve)
        ranges: list[FetchRange] = list(reader.plan(extents, resolved.ranges))
        before = [None, *(one.topic_partition for one in ranges)]
        return [
            InputPartition(FetchedBatchTask(one, first=one.topic_partition != last))
            for one, last in zip(ranges, before, strict=False)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from pyspark.sql.pandas.types import to_arrow_schema

        from seglog.sources.views.fetched_batches import fetched_batch_rows

        if partition.value is not None:
            arrow = to_arrow_schema(self._schema, timezone="UTC")
            yield from fetched_batch_rows(connections(self._client), partition.value, arrow, self._options)


class _BytesReader(ErrorSentences, DataSourceReader):
    """The views ``batches`` and ``segments``, which decode no record."""

    def __init__(self, schema: StructType, options: ReadOptions) -> None:
        self._schema = schema
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        tasks: Sequence[object] = self._segments() if self._options.view == "segments" else self._batches()
        return [InputPartition(task) for task in tasks]

    def _batches(self) -> list[BatchTask]:
        """Ranges of bytes that cover every batch.

        Tasks are divided at batch boundaries only: ``minPartitions`` is met by dividing bytes, and
        ``maxRecordsPerPartition`` has no effect.
        """
        wanted = self._options.min_partitions
        options = replace(self._options, min_partitions=None, max_records=None)
        tasks, tails = _plan(options)
        if wanted is not None and len(tasks) < wanted:
            total = sum(task.size for task in tasks)
            tasks, tails = _plan(replace(options, max_bytes=max(total // wanted, 1)))
        partitions = [None, *(task.topic_partition for task in tasks), None]
        return [
            BatchTask(task, before != task.topic_partition, after != task.topic_partition)
            for before, task, after in zip(partitions, tasks, partitions[2:], strict=False)
        ] + [BatchTask(tail, first=False, last=False) for tail in tails]

    def _segments(self) -> list[SegmentTask]:
        """All segments of a partition that is read whole, otherwise those that may contain a requested offset."""
        reader = _records(self._options)
        extents: list[DirectoryExtent] = reader.extents()
        ranges = reader.resolve(extents).ranges
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

        from seglog.sources.views.batch_rows import batch_rows, segment_row

        task = partition.value
        arrow = to_arrow_schema(self._schema, timezone="UTC")
        if isinstance(task, SegmentTask):
            yield segment_row(task, arrow, null_timestamps=self._options.null_timestamps)
        elif task is not None:
            yield from batch_rows(task, arrow)


class _TaskReader(ErrorSentences, DataSourceReader):
    """The view ``tasks``: plans a query for records, and reads none."""

    def __init__(self, schema: StructType, options: ReadOptions) -> None:
        self._schema = schema
        self._records = SeglogReader(COLUMNS, replace(options, view="records", columns=None))

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(tuple(planned_ranges([task.value for task in self._records.partitions()])))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from pyspark.sql.pandas.types import to_arrow_schema

        yield planned_rows(partition.value, to_arrow_schema(self._schema, timezone="UTC"))


class _OwnTopicReader(ErrorSentences, DataSourceReader, ABC):
    """A view of one of Kafka's own topics, of which `_describe` knows the records."""

    def __init__(self, schema: StructType, records: SeglogReader, *, null_timestamps: bool) -> None:
        self._schema = schema
        self._records = records
        self._null_timestamps = null_timestamps

    @abstractmethod
    def _describe(self) -> Callable[[bytes, bytes], Mapping[str, Any]]:
        """From a record's key and value to columns; imported in the worker."""

    def partitions(self) -> Sequence[InputPartition]:
        return self._records.partitions()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from pyspark.sql.pandas.types import to_arrow_schema

        arrow = to_arrow_schema(self._schema, timezone="UTC")
        for batch in self._records.read(partition):
            yield described_rows(batch, arrow, self._describe(), null_timestamps=self._null_timestamps)


class _GroupReader(_OwnTopicReader):
    """The view ``group-offsets``: decodes the records of ``__consumer_offsets``, without uncommitted transactions."""

    def __init__(self, schema: StructType, options: ReadOptions) -> None:
        chosen = replace(_of_topic(options, _CONSUMER_OFFSETS), view="records", columns=None, read_committed=True)
        super().__init__(schema, SeglogReader(_DECODED, chosen), null_timestamps=options.null_timestamps)

    def _describe(self) -> Callable[[bytes, bytes], Mapping[str, Any]]:
        from seglog.sources.views.group_rows import describe

        return describe


class _TransactionReader(_OwnTopicReader):
    """The view ``transactions``: decodes the newest record of each transactional id."""

    def __init__(self, schema: StructType, options: ReadOptions) -> None:
        chosen = replace(_of_topic(options, _TRANSACTION_STATE), view="latest", columns=None)
        super().__init__(schema, latest_reader(_DECODED, chosen), null_timestamps=options.null_timestamps)

    def _describe(self) -> Callable[[bytes, bytes], Mapping[str, Any]]:
        from seglog.sources.views.transaction_rows import describe

        return describe


def _of_topic(options: ReadOptions, topic: str) -> ReadOptions:
    """With this topic, unless the options choose others."""
    return options if options.selection is not None else replace(options, selection=Subscribe(topics=(topic,)))


def _plan(options: ReadOptions) -> tuple[list[ReadRange], list[ReadRange]]:
    """The tasks of a query for records, and the bytes after the last batch of each log that is read to its end.

    These bytes are an incomplete batch, or damage with more batches after it.
    """
    reader, fs = _records(options), OsFs()
    extents = reader.extents()
    ranges = reader.resolve(extents).ranges
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
    return list(reader.plan(extents, ranges)), tails


def _records(options: ReadOptions) -> SeglogReader:
    """A reader that plans as for records. It ignores damage at the end of a log, because the view shows it."""
    return SeglogReader(COLUMNS, replace(options, view="records", columns=None, permissive=True))
