"""The views' columns, and what their readers hand to a task."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

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
from seglog.spark.options.read_options import ReadOptions
from seglog.spark.read.planning import Piece, ReadRange

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


def table_schema(options: ReadOptions) -> StructType:
    """The columns of the view that ``options`` name: all, or those of the option ``columns``."""
    if options.columns is None:
        return _SCHEMAS[options.view]
    return columns_of(options.view, options.columns)


def columns_of(view: str, names: Sequence[str]) -> StructType:
    """The columns ``names`` of a view, in that order; `InvalidConfigError` names one that it does not have."""
    whole = _SCHEMAS[view]
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


Build = Callable[[str], "pa.Array"]
"""Makes the column of a name."""


def rows_of(arrow: pa.Schema, build: Build) -> pa.RecordBatch:
    """A batch of exactly ``arrow``, of whose columns only those are made."""
    import pyarrow as pa

    arrays = [build(field.name).cast(field.type) for field in arrow]
    return pa.RecordBatch.from_arrays(arrays, schema=arrow)
