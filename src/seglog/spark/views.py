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
from seglog.spark.options import ReadOptions, Subscribe
from seglog.spark.planning import Piece, ReadRange

if TYPE_CHECKING:
    import pyarrow as pa

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


class SegmentTask(NamedTuple):
    """One segment, and the bytes of whole batches in it."""

    topic: str
    partition: int
    piece: Piece
    is_last: bool


class _BytesReader(DataSourceReader):
    """Views of what is seen without decoding a record: batches and segments."""

    def __init__(self, schema: StructType, options: ReadOptions) -> None:
        self._schema = schema
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        tasks: Sequence[object] = self.tasks()
        if self._options.view == "segments":
            tasks = self._segments()
        return [InputPartition(task) for task in tasks]

    def tasks(self) -> list[ReadRange]:
        """The stretches of bytes to look at; every batch is in one of them.

        They are cut between batches only, so ``minPartitions`` is met by bytes, and ``maxRecordsPerPartition`` says
        nothing.
        """
        wanted = self._options.min_partitions
        options = replace(self._options, min_partitions=None, max_records=None)
        tasks = _plan(options)
        if wanted is not None and len(tasks) < wanted:
            total = sum(piece.end - piece.start for task in tasks for piece in task.pieces)
            tasks = _plan(replace(options, max_bytes=max(total // wanted, 1)))
        return tasks

    def _segments(self) -> list[SegmentTask]:
        found: dict[str, SegmentTask] = {}
        for task in _plan(replace(self._options, min_partitions=None, max_records=None, max_bytes=1 << 62)):
            for piece in task.pieces:
                one = SegmentTask(*task.topic_partition, piece._replace(start=0), piece.next_base is None)
                earlier = found.get(piece.log)
                if earlier is None or earlier.piece.end < piece.end:
                    found[piece.log] = one
        return list(found.values())

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from pyspark.sql.pandas.types import to_arrow_schema

        from seglog.spark import views_bytes

        task = partition.value
        arrow = to_arrow_schema(self._schema, timezone="UTC")
        if isinstance(task, SegmentTask):
            yield views_bytes.segment_row(task, arrow)
        elif task is not None:
            yield from views_bytes.batch_rows(task, arrow)


class _GroupReader(DataSourceReader):
    """The records of ``__consumer_offsets``, those of transactions once they are committed, and what they say."""

    def __init__(self, schema: StructType, options: ReadOptions) -> None:
        from seglog.spark.schema import COLUMNS
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

        from seglog.spark.views_groups import group_rows

        arrow = to_arrow_schema(self._schema, timezone="UTC")
        for batch in self._records.read(partition):
            yield group_rows(batch, arrow)


def _plan(options: ReadOptions) -> list[ReadRange]:
    from seglog.spark.schema import COLUMNS
    from seglog.spark.source import SeglogReader

    return SeglogReader(COLUMNS, replace(options, view="records", columns=None)).tasks()


Build = Callable[[str], "pa.Array"]
"""Makes the column of a name."""


def rows_of(arrow: pa.Schema, build: Build) -> pa.RecordBatch:
    """A batch of exactly ``arrow``, of whose columns only those are made."""
    import pyarrow as pa

    arrays = [build(field.name).cast(field.type) for field in arrow]
    return pa.RecordBatch.from_arrays(arrays, schema=arrow)
