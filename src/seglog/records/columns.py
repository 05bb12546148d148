"""Columns of records as Arrow arrays, copied from the bytes of batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from seglog.core.errors import InvalidConfigError
from seglog.core.suggestions import did_you_mean
from seglog.core.types import MAX_INT32
from seglog.core.utf8 import decode_utf8
from seglog.records import arrow_memory
from seglog.records.batch import CONTROL_BIT, TIMESTAMP_TYPE_BIT, TRANSACTIONAL_BIT
from seglog.records.batch_kernels import A_ROWS
from seglog.records.batch_tables import BatchTable
from seglog.records.column_kernels import (
    R_HEADER_COUNT,
    R_HEADERS,
    R_KEY,
    R_KEY_LENGTH,
    R_OFFSET,
    R_TIMESTAMP,
    R_VALUE,
    R_VALUE_LENGTH,
    gather,
    index_headers,
    lay_out,
)
from seglog.records.intrinsics import I64, U8
from seglog.records.timestamps import STORABLE, TimestampRange, timestamp_error

_HEADER: Final = pa.struct([("key", pa.string()), ("value", pa.binary())])
HEADERS: Final = pa.list_(pa.field("element", _HEADER))
SCHEMA: Final = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("timestampType", pa.int32()),
        ("headers", HEADERS),
    ]
)
"""The columns of Spark's Kafka source. ``headers`` is null where a record has none, ``timestamp`` only where the
caller asked for null in place of an error (`seglog.records.timestamps`)."""

EXTRA_SCHEMA: Final = pa.schema(
    [
        ("isTombstone", pa.bool_()),
        ("isControl", pa.bool_()),
        ("isTransactional", pa.bool_()),
        ("producerId", pa.int64()),
        ("producerEpoch", pa.int16()),
        ("sequence", pa.int32()),
        ("leaderEpoch", pa.int32()),
    ]
)
"""Columns that must be named to be read. A tombstone has no value. -1 stands for no producer and for no epoch."""

COLUMNS: Final = tuple(SCHEMA.names)
FIELDS: Final = {field.name: field for schema in (SCHEMA, EXTRA_SCHEMA) for field in schema}


class SourcePartition(NamedTuple):
    """The partition of the bytes, for the columns ``topic`` and ``partition``; None (null) if it is unknown."""

    topic: str | None = None
    partition: int | None = None


NOWHERE: Final = SourcePartition()


def schema_of(columns: Sequence[str]) -> pa.Schema:
    """The schema of these columns, in this order. Raises `InvalidConfigError` for an unknown column."""
    for name in columns:
        if name not in FIELDS:
            raise InvalidConfigError(f"no column {name!r}: there are {', '.join(FIELDS)}{did_you_mean(name, FIELDS)}")
    return pa.schema([FIELDS[name] for name in columns])


class RecordAreas(NamedTuple):
    """Bytes with the records of some batches. Row i of ``areas`` (`AREA_FIELDS`) locates those of ``table[i]``."""

    data: U8
    areas: I64
    table: BatchTable


def build(source: RecordAreas, rows: I64, columns: Sequence[str], origin: SourcePartition) -> pa.RecordBatch:
    """The ``columns`` of the records that `index_records` put into ``rows``."""
    arrays = [_COLUMN_BUILDERS[name](source, rows, origin) for name in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=schema_of(columns))


def _fixed(type_: pa.DataType, values: npt.NDArray[np.generic]) -> pa.Array:
    return pa.Array.from_buffers(type_, len(values), [None, arrow_memory.copy(values)], 0)


def gather_bytes(type_: pa.DataType, data: U8, positions: I64, lengths: I64) -> pa.Array:
    """An array of bytes, copied from where they lie in ``data``. Length -1 is null."""
    offsets, ends = arrow_memory.allocate(len(lengths) + 1, np.int32)
    validity = np.zeros((len(lengths) + 7) // 8, np.uint8)
    size, nulls = lay_out(lengths, offsets, validity)
    out, contents = arrow_memory.allocate(size, np.uint8)
    gather(data, positions, offsets, out)
    buffers = [arrow_memory.copy(validity) if nulls else None, ends, contents]
    return pa.Array.from_buffers(type_, len(lengths), buffers, nulls)


def check_timestamps(milliseconds: I64, offsets: I64, origin: SourcePartition) -> None:
    """Raise `TimestampRangeError` for the first record whose timestamp does not fit into Arrow's column."""
    misfits = misfits_of(milliseconds, STORABLE)
    if misfits is not None:
        row = int(misfits[0])
        raise timestamp_error(origin.topic, origin.partition, int(offsets[row]), int(milliseconds[row]))


def misfits_of(times: I64, range_: TimestampRange) -> npt.NDArray[np.intp] | None:
    """The rows whose times are out of range; None if all are within, which is found out without a copy."""
    if not len(times) or (int(times.min()) >= range_.first and int(times.max()) <= range_.last):
        return None
    return np.flatnonzero((times < range_.first) | (times > range_.last))


def timestamps(milliseconds: I64) -> pa.Array:
    """Milliseconds as Arrow's microseconds in UTC; null where they do not fit."""
    misfits = misfits_of(milliseconds, STORABLE)
    if misfits is None:
        return _fixed(FIELDS["timestamp"].type, milliseconds * 1000)
    fits = np.ones(len(milliseconds), np.bool_)
    fits[misfits] = False
    micros = np.where(fits, milliseconds, 0) * 1000
    validity = np.packbits(fits, bitorder="little")
    buffers = [arrow_memory.copy(validity), arrow_memory.copy(micros)]
    return pa.Array.from_buffers(FIELDS["timestamp"].type, len(micros), buffers, len(misfits))


def _headers(source: RecordAreas, rows: I64, _origin: SourcePartition) -> pa.Array:
    counts = rows[R_HEADER_COUNT]
    total = int(counts.sum())
    if not total:
        return pa.nulls(len(counts), HEADERS)
    spans: I64 = np.empty((4, total), np.int64)
    index_headers(source.data, rows[R_HEADERS], counts, spans)
    keys = _utf8(gather_bytes(pa.binary(), source.data, spans[0], spans[1]))
    values = gather_bytes(pa.binary(), source.data, spans[2], spans[3])
    pairs = pa.Array.from_buffers(_HEADER, total, [None], 0, children=[keys, values])
    offsets, ends = arrow_memory.allocate(len(counts) + 1, np.int32)
    validity = np.zeros((len(counts) + 7) // 8, np.uint8)
    _, nulls = lay_out(np.where(counts == 0, -1, counts), offsets, validity)
    buffers = [arrow_memory.copy(validity) if nulls else None, ends]
    return pa.Array.from_buffers(HEADERS, len(counts), buffers, nulls, children=[pairs])


def _utf8(keys: pa.Array) -> pa.Array:
    """Header keys as strings. Malformed UTF-8 is replaced as Java does."""
    text = keys.view(pa.string())
    try:
        text.validate(full=True)
    except pa.ArrowInvalid:
        return pa.array([decode_utf8(key) for key in keys.to_pylist()], pa.string())
    return text


def _per_batch(type_: pa.DataType, dtype: npt.DTypeLike, of: Callable[[BatchTable], npt.NDArray[np.int64]]) -> _Builder:
    """A column with one value for all records of a batch."""

    def build(source: RecordAreas, _rows: I64, _origin: SourcePartition) -> pa.Array:
        return _fixed(type_, np.repeat(of(source.table).astype(dtype), source.areas[:, A_ROWS]))

    return build


def _booleans(values: npt.NDArray[np.bool_]) -> pa.Array:
    bits = np.packbits(values, bitorder="little")
    return pa.Array.from_buffers(pa.bool_(), len(values), [None, arrow_memory.copy(bits)], 0)


def _flag(bit: int) -> _Builder:
    def build(source: RecordAreas, _rows: I64, _origin: SourcePartition) -> pa.Array:
        return _booleans(np.repeat((source.table["attributes"] & bit) != 0, source.areas[:, A_ROWS]))

    return build


def _sequences(source: RecordAreas, rows: I64, _origin: SourcePartition) -> pa.Array:
    counts = source.areas[:, A_ROWS]
    first = np.repeat(source.table["base_sequence"], counts)
    delta = rows[R_OFFSET] - np.repeat(source.table["base_offset"], counts)
    return _fixed(pa.int32(), np.where(first < 0, -1, (first + delta) & MAX_INT32).astype(np.int32))


def constant(value: str | int | None, type_: pa.DataType, size: int) -> pa.Array:
    """The same value ``size`` times. Without ``pa.scalar``, which imports pandas."""
    if value is None:
        return pa.nulls(size, type_)
    if isinstance(value, int):
        return _fixed(type_, np.full(size, value, str(type_)))
    data = value.encode()
    offsets = np.arange(size + 1, dtype=np.int32) * np.int32(len(data))
    contents = np.frombuffer(data * size, np.uint8)
    return pa.Array.from_buffers(type_, size, [None, arrow_memory.copy(offsets), arrow_memory.copy(contents)], 0)


_Builder = Callable[[RecordAreas, I64, SourcePartition], pa.Array]
_COLUMN_BUILDERS: Final[dict[str, _Builder]] = {
    "key": lambda source, rows, _: gather_bytes(pa.binary(), source.data, rows[R_KEY], rows[R_KEY_LENGTH]),
    "value": lambda source, rows, _: gather_bytes(pa.binary(), source.data, rows[R_VALUE], rows[R_VALUE_LENGTH]),
    "topic": lambda _, rows, origin: constant(origin.topic, pa.string(), rows.shape[1]),
    "partition": lambda _, rows, origin: constant(origin.partition, pa.int32(), rows.shape[1]),
    "offset": lambda _, rows, __: _fixed(pa.int64(), rows[R_OFFSET]),
    "timestamp": lambda _, rows, __: timestamps(rows[R_TIMESTAMP]),
    "timestampType": _per_batch(pa.int32(), np.int32, lambda table: (table["attributes"] & TIMESTAMP_TYPE_BIT) >> 3),
    "headers": _headers,
    "isTombstone": lambda _, rows, __: _booleans(rows[R_VALUE_LENGTH] < 0),
    "isControl": _flag(CONTROL_BIT),
    "isTransactional": _flag(TRANSACTIONAL_BIT),
    "producerId": _per_batch(pa.int64(), np.int64, lambda table: table["producer_id"]),
    "producerEpoch": _per_batch(pa.int16(), np.int16, lambda table: table["producer_epoch"]),
    "sequence": _sequences,
    "leaderEpoch": _per_batch(pa.int32(), np.int32, lambda table: table["leader_epoch"]),
}
