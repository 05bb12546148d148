"""Records whose key or value cannot be decoded, kept as Parquet files in a directory.

A file has the columns topic, partition, offset, timestamp, key, value (the bytes), ``column`` (key or value) and
``reason``. Files are complete when they appear, and have new names, so nothing is overwritten. A task that runs again
writes its records again: readers keep one for each (topic, partition, offset, column).
"""

from __future__ import annotations

import os.path
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final
from uuid import uuid4

import pyarrow as pa

from seglog.core.fs import Fs

SCHEMA: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("column", pa.string()),
        ("reason", pa.string()),
    ]
)
COPIED: Final = ("topic", "partition", "offset", "timestamp", "key", "value")
"""Columns of the record itself."""
_MOST_ROWS: Final = 10_000
_MOST_BYTES: Final = 16 << 20


class DeadLetters:
    """The dead letters of one task. `close` writes those that are left."""

    def __init__(self, fs: Fs, directory: str) -> None:
        self._fs = fs
        self._directory = directory
        self._held: list[pa.RecordBatch] = []
        self._rows = 0
        self._bytes = 0

    def add(self, batch: pa.RecordBatch, column: str, reasons: Mapping[int, str]) -> None:
        """Keep the rows that have a reason; ``batch`` has at least the columns `COPIED`, with the bytes."""
        rows = sorted(reasons)
        chosen = batch.select(list(COPIED)).take(pa.array(rows, pa.int64()))
        arrays: list[Any] = [
            *chosen.columns,
            pa.array([column] * len(rows), pa.string()),
            pa.array([reasons[row] for row in rows], pa.string()),
        ]
        self._held.append(pa.RecordBatch.from_arrays(arrays, schema=SCHEMA))
        self._rows += len(rows)
        self._bytes += self._held[-1].nbytes
        if self._rows >= _MOST_ROWS or self._bytes >= _MOST_BYTES:
            self.close()

    def close(self) -> None:
        """Write what is held as one more file."""
        if not self._held:
            return
        from pyarrow import parquet

        sink = pa.BufferOutputStream()
        parquet.write_table(pa.Table.from_batches(self._held, SCHEMA), sink)
        self._held, self._rows, self._bytes = [], 0, 0
        name = f"dead-letters-{uuid4().hex}.parquet"
        hidden = os.path.join(self._directory, f".{name}.tmp")
        _make(self._fs, self._directory)
        self._fs.write(hidden, sink.getvalue().to_pybytes())
        self._fs.rename(hidden, os.path.join(self._directory, name))


def _make(fs: Fs, directory: str) -> None:
    """Create a directory and its parents; other tasks do the same."""
    if not fs.exists(directory):
        _make(fs, os.path.dirname(directory))
        with suppress(FileExistsError):
            fs.mkdir(directory)
