"""Arrow columns as record batches of magic 2, byte for byte those of `seglog.records.record.encode_batch`."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from seglog.core.errors import InvalidConfigError, InvalidRecordError, InvalidTimestampError, RecordListTooLargeError
from seglog.core.types import MAX_INT32, NO_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE, NO_TIMESTAMP, TimestampType
from seglog.records.batch import BATCH_OVERHEAD, CODEC_MASK, BatchHeader, build_batch, read_header
from seglog.records.batch_tables import byte_array
from seglog.records.columns import HEADERS, misfits_of
from seglog.records.compression import compress
from seglog.records.encode_kernels import CUT_FIELDS, HEADER_FIELDS, cut_batches, write_batches
from seglog.records.intrinsics import I64, U8
from seglog.records.record import NewRecord, encode_batch
from seglog.records.timestamps import STORABLE

DEFAULT_BATCH_BYTES: Final = 16384
"""Kafka's ``batch.size``."""
_SPARE: Final = 16
_POSITION: Final = CUT_FIELDS.index("position")
_SIZE: Final = CUT_FIELDS.index("size")
_COLUMNS: Final = ("key", "value", "timestamp", "headers")
_PER_MS: Final = {"ms": 1, "us": 1000, "ns": 1_000_000}


class ByteColumn(NamedTuple):
    """A column of bytes. ``spans`` is [2 (position in ``data``, length or -1 for null), rows]."""

    data: U8
    spans: I64


def encode_columns(
    columns: pa.RecordBatch,
    *,
    batch_bytes: int = DEFAULT_BATCH_BYTES,
    default_timestamp: int = NO_TIMESTAMP,
    base_offset: int = 0,
    codec: int = 0,
    level: int | None = None,
    timestamp_type: TimestampType = TimestampType.CREATE_TIME,
    log_append_time: int = NO_TIMESTAMP,
    leader_epoch: int = NO_EPOCH,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    transactional: bool = False,
) -> memoryview:
    """The rows as batches, one after the other, at consecutive offsets (and sequences) from ``base_offset`` on.

    These columns are optional, and others are ignored: ``key`` and ``value`` (binary or string of any kind),
    ``timestamp`` (timestamp, or int64 milliseconds; null is ``default_timestamp``), ``headers`` (list of structs of key
    and value). A batch has at most ``batch_bytes`` bytes before compression, or one record. The other
    parameters, and the errors, are those of `encode_batch`. Raises `InvalidConfigError` for a column of another type,
    `InvalidRecordError` for a header without a key.
    """
    sample = encode_batch(
        [NewRecord(None)],
        base_offset=base_offset,
        codec=codec,
        level=level,
        timestamp_type=timestamp_type,
        log_append_time=log_append_time,
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        transactional=transactional,
    )
    common = read_header(sample)
    key, value, timestamp, headers = (
        columns.column(name) if name in columns.schema.names else None for name in _COLUMNS
    )
    times = _milliseconds(timestamp, columns.num_rows, default_timestamp)
    rows = _InputColumns(
        times,
        byte_column("key", key, len(times)),
        byte_column("value", value, len(times)),
        _headers(headers, len(times)),
    )
    written = _write(rows, common, batch_bytes)
    return _compressed(written, common, level) if codec else written.data


class _Headers(NamedTuple):
    """``lists`` is [2 (first header, number of headers), rows]; ``keys`` and ``values`` are those of all headers."""

    lists: I64
    keys: ByteColumn
    values: ByteColumn


class _InputColumns(NamedTuple):
    timestamps: I64
    keys: ByteColumn
    values: ByteColumn
    headers: _Headers


class _EncodedBatches(NamedTuple):
    """Uncompressed batches in ``data``, and the position of each."""

    data: memoryview
    positions: list[int]


def _write(rows: _InputColumns, common: BatchHeader, limit: int) -> _EncodedBatches:
    timestamps, keys, values, (lists, header_keys, header_values) = rows
    cuts: I64 = np.empty((len(timestamps), len(CUT_FIELDS)), np.int64)
    count = cut_batches(
        timestamps, keys.spans, values.spans, lists, header_keys.spans, header_values.spans, limit, cuts
    )
    cuts = cuts[:count]
    sizes = cuts[:, _SIZE] + BATCH_OVERHEAD
    if count and int(sizes.max()) > MAX_INT32:
        raise RecordListTooLargeError(f"{sizes.max()} bytes of records do not fit into a batch")
    ends = np.cumsum(sizes)
    cuts[:, _POSITION] = ends - sizes
    fields = common._asdict() | {"attributes": common.attributes & ~CODEC_MASK, "append_time": common.max_timestamp}
    shared: I64 = np.array([fields[name] for name in HEADER_FIELDS], np.int64)
    size = int(ends[-1]) if count else 0
    out = np.empty(size + _SPARE, np.uint8)
    write_batches(
        timestamps,
        keys.data,
        keys.spans,
        values.data,
        values.spans,
        lists,
        header_keys.data,
        header_keys.spans,
        header_values.data,
        header_values.spans,
        cuts,
        shared,
        out,
    )
    return _EncodedBatches(out[:size].data, cuts[:, _POSITION].tolist())


def _compressed(written: _EncodedBatches, common: BatchHeader, level: int | None) -> memoryview:
    data, positions = written
    parts = []
    for start in positions:
        header = read_header(data, start)
        area = compress(common.codec, data[start + BATCH_OVERHEAD : start + header.size], level)
        parts.append(build_batch(header._replace(attributes=common.attributes), area))
    return memoryview(b"".join(parts))


# Columns in the form of the kernels


def _missing(rows: int) -> ByteColumn:
    spans: I64 = np.zeros((2, rows), np.int64)
    spans[1] = -1
    return ByteColumn(byte_array(b""), spans)


def byte_column(name: str, column: pa.Array | None, rows: int) -> ByteColumn:
    """A column of bytes or text; None is a column of nulls. Raises `InvalidConfigError` for any other type."""
    if column is None or column.null_count == rows:
        return _missing(rows)
    wide = pa.types.is_large_binary(column.type) or pa.types.is_large_string(column.type)
    if not wide and not pa.types.is_binary(column.type) and not pa.types.is_string(column.type):
        column = _cast(name, column, pa.binary())
    _, offsets, data = column.buffers()
    ends = np.frombuffer(_memory(offsets), np.int64 if wide else np.int32)[column.offset : column.offset + rows + 1]
    spans: I64 = np.empty((2, rows), np.int64)
    spans[0] = ends[:-1]
    np.subtract(ends[1:], ends[:-1], out=spans[1])
    spans[1][_nulls(column)] = -1
    return ByteColumn(byte_array(_memory(data)), spans)


def _memory(buffer: pa.Buffer | None) -> memoryview:
    return memoryview(b"" if buffer is None else buffer)


def _nulls(column: pa.Array) -> npt.NDArray[np.bool_]:
    """Which rows are null."""
    validity = column.buffers()[0]
    if validity is None or not column.null_count:
        return np.zeros(len(column), np.bool_)
    bits = np.unpackbits(np.frombuffer(_memory(validity), np.uint8), bitorder="little")
    null: npt.NDArray[np.bool_] = bits[column.offset : column.offset + len(column)] == 0
    return null


def _cast(name: str, column: pa.Array, wanted: pa.DataType) -> pa.Array:
    try:
        return column.cast(wanted)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:  # a value that does not fit; no cast of these types
        raise InvalidConfigError(f"column {name} is {column.type}, not {wanted}") from error


def _milliseconds(column: pa.Array | None, rows: int, default: int) -> I64:
    if column is None or column.null_count == rows:
        times: I64 = np.full(rows, default, np.int64)
    elif pa.types.is_timestamp(column.type):
        raw: I64 = column.view(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
        unit = column.type.unit
        times = _of_seconds(raw) if unit == "s" else raw // _PER_MS[unit]
    elif pa.types.is_int64(column.type):
        times = column.fill_null(0).to_numpy(zero_copy_only=False).copy()
    else:
        raise InvalidConfigError(f"column timestamp is {column.type}, not a timestamp or int64 milliseconds")
    if column is not None and 0 < column.null_count < rows:
        times = np.where(_nulls(column), default, times)
    if rows and int(times.min()) < NO_TIMESTAMP:
        row = int(times.argmin())
        raise InvalidTimestampError(f"timestamp {times[row]} of record {row}: -1 or later")
    return np.ascontiguousarray(times)


def _of_seconds(seconds: I64) -> I64:
    misfits = misfits_of(seconds, STORABLE)
    if misfits is not None:
        row = int(misfits[0])
        raise InvalidTimestampError(f"timestamp {seconds[row]} s of record {row} does not fit into milliseconds")
    return seconds * 1000


def _headers(column: pa.Array | None, rows: int) -> _Headers:
    lists: I64 = np.zeros((2, rows), np.int64)
    if column is None or column.null_count == rows:
        return _Headers(lists, _missing(0), _missing(0))
    if not column.type.equals(HEADERS):
        column = _cast("headers", column, HEADERS)
    assert isinstance(column, pa.ListArray)
    ends = np.frombuffer(_memory(column.buffers()[1]), np.int32)[column.offset : column.offset + rows + 1]
    lists[0] = ends[:-1]
    np.subtract(ends[1:], ends[:-1], out=lists[1])
    lists[1][_nulls(column)] = 0
    pairs = column.values
    assert isinstance(pairs, pa.StructArray)
    keys, values = pairs.flatten()
    found = _Headers(lists, byte_column("headers", keys, len(pairs)), byte_column("headers", values, len(pairs)))
    if keys.null_count:
        _check_keys(found)
    return found


def _check_keys(headers: _Headers) -> None:
    """Raise `InvalidRecordError` for a null key, unless the list of headers is null itself."""
    without = headers.keys.spans[1] < 0
    before = np.concatenate(([0], np.cumsum(without)))
    first, count = headers.lists
    rows = np.flatnonzero(before[first + count] - before[first])
    if len(rows):
        raise InvalidRecordError(f"a header of record {rows[0]} has no key")
