"""The columns of the views."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

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
from seglog.sources.options.read_options import ReadOptions

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
    """Parse ``name type, …``; Spark's own parser needs a session."""
    pairs = (part.split() for part in text.split(","))
    return StructType([StructField(name, _TYPES[type_]) for name, type_ in pairs])


BATCHES: Final = _struct(
    "topic string, partition int, file string, position bigint, size bigint, baseOffset bigint, lastOffset bigint, "
    "recordsCount int, magic int, codec string, timestampType int, baseTimestamp bigint, maxTimestamp bigint, "
    "deleteHorizonMs bigint, partitionLeaderEpoch int, producerId bigint, producerEpoch int, baseSequence int, "
    "lastSequence int, isTransactional boolean, isControl boolean, attributes int, lastOffsetDelta int, "
    "crc bigint, computedCrc bigint, verdict string, reason string"
)
"""One row for each batch, or message of format 0 and 1. Timestamps are the milliseconds of the header.

``verdict`` is ``ok``, ``crc``, ``header``, or ``hole`` for bytes that are not a batch, with null in the columns of the
header. ``reason`` explains a verdict other than ``ok``. An incomplete batch at the end of the log is not a hole.
"""

SEGMENTS: Final = _struct(
    "topic string, partition int, file string, baseOffset bigint, lastOffset bigint, isLast boolean, size bigint, "
    "indexSize bigint, timeIndexSize bigint, txnIndexSize bigint, batches bigint, records bigint, "
    "firstTimestamp timestamp, maxTimestamp timestamp, formats array<int>, codecs array<string>, "
    "minLeaderEpoch int, maxLeaderEpoch int, holeBytes bigint"
)
"""One row for each segment. ``records`` is null if there are compressed messages of format 0 or 1: they have no count.

The size of a missing index is null. CRCs are not checked.
"""

GROUP_OFFSETS: Final = _struct(
    "type string, group string, topic string, partition int, offset bigint, leaderEpoch int, metadata string, "
    "commitTimestamp timestamp, expireTimestamp timestamp, isDeleted boolean, json string, "
    "logPartition int, logOffset bigint, timestamp timestamp"
)
"""One row for each record of ``__consumer_offsets``. ``type`` is the name of Kafka's message without Key or Value.

An ``OffsetCommit`` fills the columns up to ``expireTimestamp``. Other messages fill ``group``, and ``json`` with the
value. A tombstone has ``isDeleted``. If a record cannot be read, ``type`` is null and ``metadata`` has the reason.
"""

TRANSACTIONS: Final = _struct(
    "transactionalId string, producerId bigint, producerEpoch int, state string, timeoutMs int, "
    "partitions array<string>, startTimestamp timestamp, updateTimestamp timestamp, previousProducerId bigint, "
    "nextProducerId bigint, transactionVersion int, reason string, logPartition int, logOffset bigint, "
    "timestamp timestamp"
)
"""One row for each transactional id of ``__transaction_state``: its newest record. ``state`` has Kafka's names.

``partitions`` are those of a transaction that is open or being completed. If a record cannot be read, only ``reason``
and the columns of the log have a value.
"""

TASKS: Final = _struct(
    "task int, topic string, partition int, startOffset bigint, endOffset bigint, size bigint, directory string"
)
"""One row for each range of offsets that a query with the same options would read now, by its tasks.

``directory`` is the partition's directory whose files are read, null if the offsets are fetched from brokers. ``size``
is in bytes; through brokers it is an estimate.
"""

_SCHEMAS: Final[Mapping[str, StructType]] = {
    "batches": BATCHES,
    "segments": SEGMENTS,
    "group-offsets": GROUP_OFFSETS,
    "transactions": TRANSACTIONS,
    "tasks": TASKS,
}


def table_schema(options: ReadOptions) -> StructType:
    """The schema of the view that ``options`` name: all columns, or those of the option ``columns``."""
    if options.columns is None:
        return _SCHEMAS[options.view]
    return columns_of(options.view, options.columns)


def columns_of(view: str, names: Sequence[str]) -> StructType:
    """The columns ``names`` of a view, in that order. Raises `InvalidConfigError` if the view does not have one."""
    whole = _SCHEMAS[view]
    ours = {field.name.lower(): field for field in whole.fields}
    for name in names:
        if name.lower() not in ours:
            raise InvalidConfigError(f"view {view} has no column {name!r}; it has {', '.join(whole.fieldNames())}")
    return StructType([ours[name.lower()] for name in names])
