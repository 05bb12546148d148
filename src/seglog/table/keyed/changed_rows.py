"""The rows of a run by the bucket of their key, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from threading import Lock
from typing import Final

import numpy as np
import pyarrow as pa

from seglog.records.column_encoding import byte_column
from seglog.records.intrinsics import I64
from seglog.records.key_bucket_kernels import assign_key_buckets
from seglog.records.partition_kernels import group_rows
from seglog.sources.latest.spill_file import SpilledRows, SpillFile

KEY: Final = "key"
_BATCH_BYTES: Final = 4096
"""A batch takes these beside its columns."""


class ChangedRows:
    """Takes batches of one schema with a column ``key`` without nulls, from any thread; then gives them by bucket.

    Rows that fill half of the memory are divided by bucket, and go to a file.
    """

    def __init__(self, buckets: int, memory: int, new_file: Callable[[], SpillFile]) -> None:
        self._limit = memory // 2
        self._new_file = new_file
        self._lock = Lock()
        self._arrived: list[pa.RecordBatch] = []
        self._arrived_bytes = 0
        self._held: list[list[pa.RecordBatch]] = [[] for _ in range(buckets)]
        self._spilled: list[list[SpilledRows]] = [[] for _ in range(buckets)]
        self._file: SpillFile | None = None
        self.rows = 0
        self.spills = 0

    def add(self, rows: pa.RecordBatch) -> None:
        """Take rows. Of one partition and key, they come by offset."""
        with self._lock:
            self.rows += rows.num_rows
            self._arrived.append(rows)
            self._arrived_bytes += rows.nbytes + _BATCH_BYTES
            if self._arrived_bytes >= self._limit:
                self._spill()

    def finish(self) -> Sequence[int]:
        """Take no more rows. The buckets that have some."""
        for bucket, rows in self._divided():
            self._held[bucket].append(rows)
        return [
            bucket for bucket, parts in enumerate(zip(self._spilled, self._held, strict=True)) if parts[0] or parts[1]
        ]

    def of_bucket(self, bucket: int) -> Iterator[pa.RecordBatch]:
        """The rows of a bucket, in their order. From any thread, once `finish` has been called."""
        for place in self._spilled[bucket]:
            assert self._file is not None
            yield self._file.read(place)
        yield from self._held[bucket]

    def close(self) -> None:
        """Drop all rows."""
        self._arrived, self._held, self._spilled = [], [], []
        if self._file is not None:
            self._file.close()
            self._file = None

    def _spill(self) -> None:
        if self._file is None:
            self._file = self._new_file()
        for bucket, rows in self._divided():
            self._spilled[bucket].append(self._file.write(rows))
        self.spills += 1

    def _divided(self) -> Iterator[tuple[int, pa.RecordBatch]]:
        """The rows that have arrived, by bucket; they are no longer held."""
        arrived, self._arrived, self._arrived_bytes = self._arrived, [], 0
        if not any(batch.num_rows for batch in arrived):
            return
        (whole,) = pa.Table.from_batches(arrived).combine_chunks().to_batches()
        arrived.clear()
        keys = byte_column(KEY, whole.column(KEY), whole.num_rows)
        buckets: I64 = np.empty(whole.num_rows, np.int64)
        assign_key_buckets(keys.data, keys.spans, len(self._held), buckets)
        starts: I64 = np.zeros(len(self._held) + 1, np.int64)
        order: I64 = np.empty(whole.num_rows, np.int64)
        group_rows(buckets, starts, order)
        whole = whole.take(pa.array(order))
        for bucket in np.flatnonzero(np.diff(starts)).tolist():
            start, end = int(starts[bucket]), int(starts[bucket + 1])
            yield bucket, whole.slice(start, end - start)
