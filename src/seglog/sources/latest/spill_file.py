"""Rows that a task puts aside on a local disk."""

from __future__ import annotations

import os.path
import tempfile
from collections.abc import Mapping
from typing import NamedTuple

import pyarrow as pa
from pyarrow import ipc

from seglog.core.fs import Fs


class SpilledRows(NamedTuple):
    """Bytes of a `SpillFile`."""

    position: int
    size: int


def spill_directory(environment: Mapping[str, str]) -> str:
    """Where Spark's own workers spill: the first of ``SPARK_LOCAL_DIRS``, else the directory for temporary files."""
    first = environment.get("SPARK_LOCAL_DIRS", "").split(",")[0].strip()
    return first or tempfile.gettempdir()


class SpillFile:
    """A file without a name: it is gone when it is closed, or when its process dies."""

    def __init__(self, fs: Fs, directory: str) -> None:
        """Raises OSError if the directory cannot be written."""
        inside = tempfile.mkdtemp(prefix="seglog-latest-", dir=directory)
        path = os.path.join(inside, "rows")
        self._file = fs.open(path, create=True)
        fs.unlink(path)
        fs.rmdir(inside)
        self._size = 0

    def write(self, rows: pa.RecordBatch) -> SpilledRows:
        """Append ``rows``. `NoSpaceError` on a full disk."""
        sink = pa.BufferOutputStream()
        with ipc.new_stream(sink, rows.schema, options=ipc.IpcWriteOptions(compression="lz4")) as writer:
            writer.write_batch(rows)
        data = memoryview(sink.getvalue())
        place = SpilledRows(self._size, len(data))
        self._file.pwrite(data, place.position)
        self._size += place.size
        return place

    def read(self, place: SpilledRows) -> pa.RecordBatch:
        """The rows that `write` put there."""
        with ipc.open_stream(self._file.pread(place.size, place.position)) as reader:
            return reader.read_next_batch()

    def close(self) -> None:
        self._file.close()
