"""Record batches as Arrow columns: what `seglog.scan` and the Spark source are made of.

Needs the extra ``fast``. Batches of magic 2 are read by the compiled loops, which copy keys, values and headers
straight into Arrow's buffers; messages of magic 0 and 1 are decoded in plain Python. For damage the same error is
raised, with the same position, as by the plain decoder.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from seglog.core.errors import CorruptBatchError, CorruptError, CorruptRecordError, UnsupportedFormatError
from seglog.core.large_reads import LARGE_COMPRESSED_BYTES, await_turn
from seglog.core.types import MAX_INT64, Buffer, TimestampType
from seglog.records import any_magic
from seglog.records.batch import BATCH_OVERHEAD, TIMESTAMP_TYPE_BIT, Entry
from seglog.records.batch_kernels import (
    A_COUNT,
    A_END,
    A_FIXED,
    A_IS_FIXED,
    A_LAST_DELTA,
    A_OFFSET,
    A_ROWS,
    A_START,
    A_TIMESTAMP,
    AREA_FIELDS,
    MIN_RECORD,
    Verdict,
)
from seglog.records.batch_tables import BatchTable, byte_array, inflate, is_compressed
from seglog.records.column_kernels import R_OFFSET, R_TIMESTAMP, ROW_FIELDS, index_records
from seglog.records.columns import (
    COLUMNS,
    FIELDS,
    HEADERS,
    NOWHERE,
    RecordAreas,
    SourcePartition,
    build,
    check_timestamps,
    constant,
    misfits_of,
    schema_of,
    timestamps,
)
from seglog.records.compression import DEFAULT_LIMIT
from seglog.records.intrinsics import I64, U8
from seglog.records.key_kernels import keep_keys, key_set
from seglog.records.record import Record
from seglog.records.timestamps import TimestampRange


class Selection(NamedTuple):
    """The records and columns to read.

    ``columns`` are names of `SCHEMA` and `EXTRA_SCHEMA`; offsets from ``low`` to below ``high``. At most ``rows`` rows
    and ``bytes_`` bytes of records at a time, unless one batch has more. ``limit``: the largest decompressed size of a
    batch. ``keys``: only records with one of these keys; None stands for no key. ``times``: only records with a
    timestamp in this range. ``null_timestamps``: a timestamp that is out of range is null instead of an error.
    """

    columns: Sequence[str] = COLUMNS
    low: int = 0
    high: int = MAX_INT64
    rows: int = 65536
    bytes_: int = 8 << 20
    limit: int = DEFAULT_LIMIT
    keys: tuple[bytes | None, ...] | None = None
    null_timestamps: bool = False
    times: TimestampRange | None = None

    @property
    def checks_timestamps(self) -> bool:
        return "timestamp" in self.columns and not self.null_timestamps


class DecodedRows(NamedTuple):
    """Some records (None: no row is selected), and the offset after the last batch that they come from."""

    upto: int
    rows: pa.RecordBatch | None


def decode_parts(
    data: Buffer | mmap.mmap | U8,
    table: BatchTable,
    wanted: Selection,
    origin: SourcePartition = NOWHERE,
    *,
    base: int = 0,
) -> Iterator[DecodedRows]:
    """Records of the batches in ``table``, a part of what `walk_batches` made of ``data`` with that ``base``.

    From the offset after each part an interrupted reader can continue. A damaged batch raises `CorruptBatchError`,
    `CorruptRecordError`, `TooLargeError` or `UnsupportedFormatError`, as by the plain decoder. Positions count from
    ``base``. A timestamp out of range raises `TimestampRangeError`.
    """
    array = byte_array(data)
    for index in np.flatnonzero(table["verdict"] != Verdict.OK):
        raise plain_error(array, table[index], base=base, limit=wanted.limit)
    keys = None if wanted.keys is None else key_set(wanted.keys)
    for group in _by_format(table):
        if group["magic"][0] < 2:
            yield from _decode_messages(array, group, wanted, origin, base)
            continue
        sources = _decompressed if is_compressed(group).any() else _uncompressed
        for source in sources(array, group, wanted, base):
            rows, bad = _index(source, wanted)
            if bad >= 0:
                raise plain_error(array, source.table[bad], base=base, limit=wanted.limit)
            if keys is not None:
                rows = rows[:, : keep_keys(source.data, source.areas, rows, *keys)]
            if wanted.times is not None:
                rows = _within(source, rows, wanted.times)
            if rows.shape[1]:
                if wanted.checks_timestamps:
                    check_timestamps(rows[R_TIMESTAMP], rows[R_OFFSET], origin)
                last = source.table[-1]
                upto = int(last["base_offset"]) + int(last["last_offset_delta"]) + 1
                yield DecodedRows(upto, build(source, rows, wanted.columns, origin))


def plain_error(
    data: Buffer | mmap.mmap | U8, row: np.void, *, base: int = 0, limit: int = DEFAULT_LIMIT
) -> CorruptError | UnsupportedFormatError:
    """The error that the plain decoder raises for the batch of a table's ``row``."""
    entry = Entry(int(row["position"]) - base, int(row["size"]), int(row["base_offset"]), int(row["magic"]))
    view_of_data = byte_array(data).data
    try:
        any_magic.check(view_of_data, entry)
        any_magic.describe(view_of_data, entry, limit=limit)
        any_magic.decode(view_of_data, entry, limit=limit)
    except CorruptError as error:
        return error.at(base=base, offset=entry.offset)
    except UnsupportedFormatError as error:
        return error
    kind = CorruptBatchError if row["verdict"] == Verdict.HEADER else CorruptRecordError
    where = f", record {row['bad_record']}" if row["bad_record"] >= 0 else ""
    return kind(f"{Verdict(row['verdict']).name.lower()}{where}", position=int(row["position"]), offset=entry.offset)


# From tables to sources: some batches whose records lie in one buffer


def _by_format(table: BatchTable) -> Iterator[BatchTable]:
    """Runs of messages of magic 0 and 1, and of batches."""
    changes = np.flatnonzero(np.diff(table["magic"] < 2)) + 1
    bounds = [0, *changes.tolist(), len(table)]
    for start, end in pairwise(bounds):
        if end > start:
            yield table[start:end]


def _cut(counts: I64, sizes: I64, wanted: Selection) -> Iterator[slice]:
    """Runs of batches within the limits on rows and bytes, at least one batch each."""
    rows, bytes_ = np.cumsum(counts), np.cumsum(sizes)
    start = 0
    while start < len(counts):
        row = int(rows[start - 1]) if start else 0
        byte = int(bytes_[start - 1]) if start else 0
        by_rows = int(np.searchsorted(rows, row + wanted.rows, "right"))
        by_bytes = int(np.searchsorted(bytes_, byte + wanted.bytes_, "right"))
        end = max(start + 1, min(by_rows, by_bytes))
        yield slice(start, end)
        start = end


def _areas(table: BatchTable, starts: npt.ArrayLike, ends: npt.ArrayLike) -> I64:
    areas: I64 = np.empty((len(table), len(AREA_FIELDS)), np.int64)
    areas[:, A_START] = starts
    areas[:, A_END] = ends
    areas[:, A_COUNT] = table["count"]
    areas[:, A_OFFSET] = table["base_offset"]
    areas[:, A_LAST_DELTA] = table["last_offset_delta"]
    areas[:, A_TIMESTAMP] = table["base_timestamp"]
    areas[:, A_FIXED] = table["max_timestamp"]
    areas[:, A_IS_FIXED] = table["attributes"] & TIMESTAMP_TYPE_BIT
    return areas


def _uncompressed(data: U8, table: BatchTable, wanted: Selection, base: int) -> Iterator[RecordAreas]:
    """The records in ``data`` itself."""
    counts = np.minimum(table["count"], table["size"] // MIN_RECORD)
    for part in _cut(counts, table["size"], wanted):
        some = table[part]
        starts = some["position"] - base
        yield RecordAreas(data, _areas(some, starts + BATCH_OVERHEAD, starts + some["size"]), some)


def _decompressed(data: U8, table: BatchTable, wanted: Selection, base: int) -> Iterator[RecordAreas]:
    """The records of the batches in one buffer, decompressed. The limits apply to the decompressed size."""
    parts: list[Buffer] = []
    ends: list[int] = []
    first = size = count = 0
    for index, row in enumerate(table):
        start = int(row["position"]) - base
        area: Buffer = data.data[start + BATCH_OVERHEAD : start + int(row["size"])]
        if len(area) > LARGE_COMPRESSED_BYTES:
            await_turn()
        try:
            area = inflate(row, area, wanted.limit)
        except (CorruptError, UnsupportedFormatError):
            raise plain_error(data, row, base=base, limit=wanted.limit) from None
        if parts and (size + len(area) > wanted.bytes_ or count + int(row["count"]) > wanted.rows):
            yield _joined(parts, ends, table[first:index])
            parts, ends = [], []
            first, size, count = index, 0, 0
        parts.append(area)
        size += len(area)
        count += int(row["count"])
        ends.append(size)
    yield _joined(parts, ends, table[first:])


def _joined(parts: list[Buffer], ends: list[int], table: BatchTable) -> RecordAreas:
    data = parts.pop(0)
    if parts:
        data = bytearray(data)
        while parts:  # each is freed once it is copied
            data += parts.pop(0)
    return RecordAreas(byte_array(data), _areas(table, [0, *ends[:-1]], ends), table)


def _index(source: RecordAreas, wanted: Selection) -> tuple[I64, int]:
    """[ROW_FIELDS, records within the offsets], and the index of the first bad batch or -1."""
    areas = source.areas
    room = np.minimum(areas[:, A_COUNT], (areas[:, A_END] - areas[:, A_START]) // MIN_RECORD)
    rows: I64 = np.empty((len(ROW_FIELDS), int(room.sum())), np.int64)
    filled, _, bad, _ = index_records(source.data, areas, wanted.low, wanted.high, rows)
    return rows[:, :filled], bad


def _within(source: RecordAreas, rows: I64, times: TimestampRange) -> I64:
    """The rows with these timestamps. The rows that each area has are counted again."""
    if misfits_of(rows[R_TIMESTAMP], times) is None:
        return rows
    kept = (rows[R_TIMESTAMP] >= times.first) & (rows[R_TIMESTAMP] <= times.last)
    before = np.concatenate(([0], np.cumsum(kept)))
    ends = np.cumsum(source.areas[:, A_ROWS])
    source.areas[:, A_ROWS] = before[ends] - before[ends - source.areas[:, A_ROWS]]
    return np.ascontiguousarray(rows[:, kept])


# Messages of magic 0 and 1


def _decode_messages(
    data: U8, table: BatchTable, wanted: Selection, origin: SourcePartition, base: int
) -> Iterator[DecodedRows]:
    """By the plain path, message by message; wrappers are looked into."""
    found: list[Record] = []
    types: list[int] = []
    size = upto = 0
    for row in table:
        entry = Entry(int(row["position"]) - base, int(row["size"]), int(row["base_offset"]), int(row["magic"]))
        try:
            records = any_magic.decode(data.data, entry, limit=wanted.limit)
        except (CorruptError, UnsupportedFormatError):
            raise plain_error(data, row, base=base, limit=wanted.limit) from None
        records = [record for record in records if wanted.low <= record.offset < wanted.high]
        if wanted.keys is not None:
            records = [record for record in records if record.key in wanted.keys]
        if wanted.times is not None:
            first, last = wanted.times
            records = [record for record in records if first <= record.timestamp <= last]
        bytes_ = sum(len(record.key or b"") + len(record.value or b"") for record in records)
        if found and (len(found) + len(records) > wanted.rows or size + bytes_ > wanted.bytes_):
            yield DecodedRows(upto, _of_records(found, types, wanted, origin))
            found, types, size = [], [], 0
        append_time = entry.magic == 1 and int(row["attributes"]) & TIMESTAMP_TYPE_BIT
        kind = TimestampType.NONE if entry.magic == 0 else TimestampType(1 if append_time else 0)
        found += records
        types += [int(kind)] * len(records)
        size += bytes_
        upto = entry.offset + 1
    if found:
        yield DecodedRows(upto, _of_records(found, types, wanted, origin))


def _of_records(records: list[Record], types: list[int], wanted: Selection, origin: SourcePartition) -> pa.RecordBatch:
    size, columns = len(records), wanted.columns
    times: I64 = np.array([record.timestamp for record in records], np.int64)
    if wanted.checks_timestamps:
        check_timestamps(times, np.array([record.offset for record in records], np.int64), origin)
    builders: dict[str, Callable[[], pa.Array]] = {
        "key": lambda: pa.array([record.key for record in records], pa.binary()),
        "value": lambda: pa.array([record.value for record in records], pa.binary()),
        "topic": lambda: constant(origin.topic, pa.string(), size),
        "partition": lambda: constant(origin.partition, pa.int32(), size),
        "offset": lambda: pa.array([record.offset for record in records], pa.int64()),
        "timestamp": lambda: timestamps(times),
        "timestampType": lambda: pa.array(types, pa.int32()),
        "headers": lambda: pa.nulls(size, HEADERS),
        "isTombstone": lambda: pa.array([record.value is None for record in records], pa.bool_()),
        "isControl": lambda: pa.array([False] * size, pa.bool_()),
        "isTransactional": lambda: pa.array([False] * size, pa.bool_()),
    }
    arrays = [
        builders[name]() if name in builders else pa.repeat(pa.scalar(-1, FIELDS[name].type), size) for name in columns
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema_of(columns))
