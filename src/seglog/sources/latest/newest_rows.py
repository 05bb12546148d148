"""The newest row of each key, in bounded memory.

Rows arrive in the order of their offsets. Those that are held are thinned out to one for each key whenever as many have
arrived again, so each row is hashed about twice. If what is left is still too large, all of it is divided by the keys'
hashes into buckets, which go to a file; at the end each bucket is thinned out by itself, in the same way. So a task
reads its records once, and writes and reads a row that it spills once for each level of buckets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import numpy as np
import pyarrow as pa

from seglog.records.column_encoding import byte_column
from seglog.records.intrinsics import I64, U8
from seglog.records.newest_kernels import BUCKET_BITS, BUCKETS, assign_buckets, keep_newest
from seglog.records.partition_kernels import group_rows
from seglog.sources.latest.spill_file import SpilledRows, SpillFile

KEY: Final = "key"
_COPIES: Final = 3
"""Thinning out needs what is held, one batch of it, and what is left."""
_FLOOR: Final = 4 << 20
"""Bytes that are let arrive before they are thinned out, if that is a small part of the memory."""
_ROW_BYTES: Final = 48
"""Beside its columns, a row that is thinned out needs up to four slots and a place of its key."""
_LEVELS: Final = 64 // BUCKET_BITS
"""As often as there are bits of the hash left to divide by. Keys that share all of them are held in memory."""


class NewestRows:
    """Takes batches of one schema with a column `KEY` without nulls. For one task, in one thread.

    Invariant: of each key, the newest row so far is the last one in held rows, else in the last that its bucket has.
    """

    def __init__(self, memory: int, new_file: Callable[[], SpillFile], hash_key: tuple[int, int], level: int = 0):
        """About ``memory`` bytes are used, and twice the largest row. ``hash_key``: two random 64-bit numbers."""
        self._limit = memory // _COPIES
        self._memory = memory
        self._new_file = new_file
        self._hash_key = hash_key
        self._level = level
        self._thinned: pa.RecordBatch | None = None
        self._thinned_bytes = 0
        self._arrived: list[pa.RecordBatch] = []
        self._arrived_bytes = 0
        self._file: SpillFile | None = None
        self._buckets: list[list[SpilledRows]] = []
        self.spills = 0
        """How often what was held went to the file, with all levels."""

    def add(self, rows: pa.RecordBatch) -> None:
        """Take rows that are newer than all before."""
        if not rows.num_rows:
            return
        self._arrived.append(rows)
        self._arrived_bytes += _size(rows)
        enough = max(self._thinned_bytes, min(self._limit // 4, _FLOOR))
        if self._arrived_bytes >= enough or self._thinned_bytes + self._arrived_bytes >= self._limit:
            self._thin_out()
            if self._thinned_bytes > self._limit // 2 and self._level < _LEVELS:
                self._spill()

    def take(self) -> Iterator[pa.RecordBatch]:
        """The newest row of each key; each batch by offset, unless something was spilled. Nothing is held after it."""
        try:
            if self._file is None:
                self._thin_out()
                if self._thinned is not None:
                    yield self._thinned
                return
            self._thin_out()
            self._spill()
            for places in self._buckets:
                bucket = NewestRows(self._memory, self._new_file, self._hash_key, self._level + 1)
                for place in places:
                    bucket.add(self._file.read(place))
                yield from bucket.take()
                self.spills += bucket.spills
        finally:
            self.close()

    def close(self) -> None:
        """Drop the file and what is held."""
        self._thinned, self._arrived, self._buckets = None, [], []
        if self._file is not None:
            self._file.close()
            self._file = None

    def _thin_out(self) -> None:
        if not self._arrived:
            return
        held = self._arrived if self._thinned is None else [self._thinned, *self._arrived]
        self._thinned, self._arrived, self._arrived_bytes = None, [], 0
        whole = _one_batch(held)
        held.clear()
        keys = byte_column(KEY, whole.column(KEY), whole.num_rows)
        kept: U8 = np.empty(whole.num_rows, np.uint8)
        slots: I64 = np.full(1 << (2 * whole.num_rows - 1).bit_length(), -1, np.int64)
        keep_newest(keys.data, keys.spans, *self._hash_key, slots, kept)
        self._thinned = whole if kept.all() else whole.filter(pa.array(kept.view(np.bool_)))
        self._thinned_bytes = _size(self._thinned)

    def _spill(self) -> None:
        rows = self._thinned
        if rows is None:
            return
        if self._file is None:
            self._file = self._new_file()
            self._buckets = [[] for _ in range(BUCKETS)]
        keys = byte_column(KEY, rows.column(KEY), rows.num_rows)
        buckets: I64 = np.empty(rows.num_rows, np.int64)
        assign_buckets(keys.data, keys.spans, *self._hash_key, self._level * BUCKET_BITS, buckets)
        starts: I64 = np.zeros(BUCKETS + 1, np.int64)
        order: I64 = np.empty(rows.num_rows, np.int64)
        group_rows(buckets, starts, order)
        self._thinned, self._thinned_bytes = None, 0
        rows = rows.take(pa.array(order))
        for bucket in np.flatnonzero(np.diff(starts)).tolist():
            start, end = int(starts[bucket]), int(starts[bucket + 1])
            self._buckets[bucket].append(self._file.write(rows.slice(start, end - start)))
        self.spills += 1


def _size(rows: pa.RecordBatch) -> int:
    size: int = rows.nbytes
    return size + _ROW_BYTES * rows.num_rows


def _one_batch(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    (whole,) = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return whole
