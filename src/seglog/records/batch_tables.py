"""Segment bytes as tables with a row for each batch: the fields of its header, and a verdict on it.

Needs numpy and numba (the extra ``fast``). Rows are numpy records; all fields are int64 (`batch_kernels.BATCH_FIELDS`).
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from seglog.core.errors import CorruptError, UnsupportedFormatError
from seglog.core.types import Buffer
from seglog.records.batch import (
    BATCH_OVERHEAD,
    CODEC_MASK,
    LOG_OVERHEAD,
    BatchHeader,
)
from seglog.records.batch_kernels import A_END, A_START, AREA_FIELDS, BATCH_FIELDS, Stop, Verdict, check_areas, walk
from seglog.records.compression import DEFAULT_LIMIT, Codec, decompress
from seglog.records.intrinsics import I64, U8

BATCH_DTYPE: Final = np.dtype([(name, np.int64) for name in BATCH_FIELDS])
BatchTable = npt.NDArray[np.void]
"""One `BATCH_DTYPE` record for each batch, in file order; ``table["base_offset"]`` is a column."""

_ROWS: Final = 4096
"""Rows of one table: 640 KB stay in the CPU's cache between filling and looking."""


class Walk(NamedTuple):
    """A stretch of batches: their table, where the walk goes on, and why it stopped there.

    ``position`` counts as ``table["position"]`` does. Only the last stretch has a ``stop`` other than FULL.
    """

    table: BatchTable
    position: int
    stop: Stop


def byte_array(data: Buffer | mmap.mmap | U8) -> U8:
    """``data`` as a read-only array over the same memory, the one type that the kernels are compiled for."""
    array = np.frombuffer(data, np.uint8) if len(data) else np.frombuffer(b"", np.uint8)
    array = array.view()
    array.flags.writeable = False
    return array


def walk_batches(
    data: Buffer | mmap.mmap | U8,
    *,
    start: int = 0,
    end: int | None = None,
    base: int = 0,
    check_crc: bool = True,
    check_records: bool = False,
    rows: int = _ROWS,
) -> Iterator[Walk]:
    """Tables of the batches in ``data[start:end]``, at most ``rows`` batches each; any format, mixed too.

    ``base`` is the position of ``data[0]`` in the file; positions in the tables count from it. ``check_records`` checks
    every record of uncompressed batches of magic 2; `check_compressed` checks the others. Damage is a verdict, not an
    error: the walk continues after a wrong CRC or record, and stops at an impossible size or magic.
    """
    array = byte_array(data)
    position = start
    limit = len(array) if end is None else end
    stop = Stop.FULL
    while stop == Stop.FULL:
        cells: I64 = np.empty((rows, len(BATCH_FIELDS)), np.int64)
        count, position, reason = walk(array, position, limit, base, cells, check_crc, check_records)
        stop = Stop(reason)
        yield Walk(as_table(cells[:count]), base + position, stop)


def as_table(cells: I64) -> BatchTable:
    """[rows, BATCH_FIELDS] of int64 as records over the same memory."""
    return cells.view(BATCH_DTYPE).reshape(len(cells))


def as_cells(table: BatchTable) -> I64:
    """The other way round; ``table`` must be contiguous."""
    return table.view(np.int64).reshape(len(table), len(BATCH_FIELDS))


def is_compressed(table: BatchTable) -> npt.NDArray[np.bool_]:
    compressed: npt.NDArray[np.bool_] = (table["attributes"] & CODEC_MASK) != 0
    return compressed


def header_of(row: np.void) -> BatchHeader:
    """A table's row of magic 2 as the header that it was read from."""
    return BatchHeader(
        base_offset=int(row["base_offset"]),
        length=int(row["size"]) - LOG_OVERHEAD,
        leader_epoch=int(row["leader_epoch"]),
        magic=int(row["magic"]),
        crc=int(row["crc"]),
        attributes=int(row["attributes"]),
        last_offset_delta=int(row["last_offset_delta"]),
        base_timestamp=int(row["base_timestamp"]),
        max_timestamp=int(row["max_timestamp"]),
        producer_id=int(row["producer_id"]),
        producer_epoch=int(row["producer_epoch"]),
        base_sequence=int(row["base_sequence"]),
        records_count=int(row["count"]),
    )


def inflate(row: np.void, area: Buffer, limit: int) -> Buffer:
    """The records of a batch of magic 2, decompressed. ``area``: the bytes after its header. Raises as `decompress`.

    As in the plain decoder, a batch without records has no stream, but its codec must be valid.
    """
    codec = int(row["attributes"]) & CODEC_MASK
    return decompress(codec, area, limit=limit) if row["count"] or codec > Codec.ZSTD else area


def check_compressed(
    data: Buffer | mmap.mmap | U8, table: BatchTable, *, base: int = 0, limit: int = DEFAULT_LIMIT
) -> None:
    """Check every record of the compressed batches of magic 2 in ``table`` that have no damage so far.

    Fills the columns that `walk_batches` with ``check_records`` fills for the others. ``bad_position`` is the position
    of the batch, because positions in decompressed records mean nothing in the file.
    """
    view = byte_array(data).data
    cells = as_cells(table)
    area: I64 = np.zeros((1, len(AREA_FIELDS)), np.int64)
    for index in np.flatnonzero(is_compressed(table) & (table["magic"] == 2) & (table["verdict"] == Verdict.OK)):
        row = table[index]
        position = int(row["position"]) - base
        stream = view[position + BATCH_OVERHEAD : position + int(row["size"])]
        try:
            records = inflate(row, stream, limit)
        except (CorruptError, UnsupportedFormatError):
            table["verdict"][index] = Verdict.COMPRESSION
            continue
        area[0, A_START] = 0
        area[0, A_END] = len(records)
        if check_areas(byte_array(records), area, 0, cells[index : index + 1]) and row["bad_record"] >= 0:
            table["bad_position"][index] = row["position"]
