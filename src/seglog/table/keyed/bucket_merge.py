"""A bucket of a keyed table: its old rows and the log's news as its new rows, in bounded memory.

Latest is per partition and key, as compaction is. So a row's key has its partition in front while rows are merged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from seglog.records import arrow_memory
from seglog.records.column_encoding import byte_column
from seglog.records.columns import SCHEMA
from seglog.records.intrinsics import I64
from seglog.records.key_bucket_kernels import hash_keys
from seglog.sources.latest.newest_rows import NewestRows
from seglog.sources.latest.spill_file import SpillFile

_KEY, _PARTITION = SCHEMA.get_field_index("key"), SCHEMA.get_field_index("partition")
_PREFIX_BYTES: Final = 4
_END: Final = 1 << 31
"""Behind all bytes of a column. Without a number, pyarrow 26 computes with a negative size."""


class BucketMerge:
    """Merges one bucket once; then it knows how many keys several partitions had, and have."""

    def __init__(self, memory: int, new_file: Callable[[], SpillFile], hash_key: tuple[int, int]) -> None:
        """See `NewestRows`."""
        self._newest = NewestRows(memory, new_file, hash_key)
        self._before = SplitKeys(hash_key)
        self._after = SplitKeys(hash_key)

    def rows(self, old: Iterable[pa.RecordBatch], new: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The newest row of each partition and key, without tombstones. Batches have the columns `SCHEMA`."""
        try:
            for batch in old:
                self._before.add(batch)
                self._newest.add(_with_partition(batch))
            for batch in new:
                self._newest.add(_with_partition(batch))
            for batch in self._newest.take():
                living = _without_partition(batch.filter(pc.is_valid(batch.column("value"))))
                self._after.add(living)
                yield living
        finally:
            self._newest.close()

    @property
    def more_split_keys(self) -> int:
        """How many keys more than before are in several partitions."""
        return self._after.count() - self._before.count()


class SplitKeys:
    """Counts the keys that several partitions have, in rows that have each partition and key once."""

    def __init__(self, hash_key: tuple[int, int]) -> None:
        """``hash_key``: two random numbers. Two keys that have the same 64 bits of hash count as one."""
        self._hash_key = hash_key
        self._hashes: list[I64] = []
        self._partitions: set[int] = set()

    def add(self, rows: pa.RecordBatch) -> None:
        if not rows.num_rows:
            return
        self._partitions.update(pc.unique(rows.column(_PARTITION)).to_pylist())
        keys = byte_column("key", rows.column(_KEY), rows.num_rows)
        hashes: I64 = np.empty(rows.num_rows, np.int64)
        hash_keys(keys.data, keys.spans, *self._hash_key, hashes)
        self._hashes.append(hashes)

    def count(self) -> int:
        if len(self._partitions) < 2:
            return 0
        _, counts = np.unique(np.concatenate(self._hashes), return_counts=True)
        return int((counts > 1).sum())


def _with_partition(rows: pa.RecordBatch) -> pa.RecordBatch:
    numbers: npt.NDArray[np.int32] = rows.column(_PARTITION).to_numpy().astype(">i4")
    prefixes = pa.Array.from_buffers(pa.binary(_PREFIX_BYTES), rows.num_rows, [None, arrow_memory.copy(numbers)])
    keys = pc.binary_join_element_wise(prefixes.cast(pa.binary()), rows.column(_KEY), b"")
    return _with_keys(rows, keys)


def _without_partition(rows: pa.RecordBatch) -> pa.RecordBatch:
    return _with_keys(rows, pc.binary_slice(rows.column(_KEY), _PREFIX_BYTES, _END))


def _with_keys(rows: pa.RecordBatch, keys: pa.Array) -> pa.RecordBatch:
    columns = [keys if number == _KEY else rows.column(number) for number in range(rows.num_columns)]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
