"""Files of a table in an object store, through the file systems of pyarrow. Paths are URIs: ``s3://bucket/prefix/…``.

An object appears as a whole when its upload is complete, and is durable then, so nothing needs a sync. A lock is none:
of two jobs, the catalog lets one commit. An upload that died leaves parts that nobody sees; the bucket's lifecycle rule
for incomplete uploads deletes them.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from pyarrow.fs import FileSelector, FileType

from seglog.core.types import Buffer

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow.fs import FileSystem
    from pyiceberg.io.pyarrow import PyArrowFileIO


class ObjectStore:
    """`FileStore` over the object stores that ``file_io`` knows, with its credentials."""

    def __init__(self, file_io: PyArrowFileIO) -> None:
        self._io = file_io

    def _locate(self, path: str) -> tuple[FileSystem, str]:
        scheme, host, below = self._io.parse_location(path, self._io.properties)
        return self._io.fs_by_scheme(scheme, host), below

    def open(self, path: str, *, create: bool = False, write: bool = True) -> NewObject:
        """A new object."""
        if not (create and write):
            raise io.UnsupportedOperation(f"{path}: an object is written as a whole")
        store, below = self._locate(path)
        return NewObject(path, store.open_output_stream(below))

    def read(self, path: str) -> bytes:
        store, below = self._locate(path)
        with store.open_input_stream(below) as stream:
            return stream.read()

    def write(self, path: str, data: Buffer) -> None:
        store, below = self._locate(path)
        with store.open_output_stream(below) as stream:
            stream.write(data)

    def rename(self, source: str, target: str) -> None:
        store, below = self._locate(source)
        store.move(below, self._locate(target)[1])

    def unlink(self, path: str) -> None:
        store, below = self._locate(path)
        store.delete_file(below)

    def listdir(self, path: str) -> list[str]:
        store, below = self._locate(path)
        return sorted(one.base_name for one in store.get_file_info(FileSelector(below, allow_not_found=True)))

    def exists(self, path: str) -> bool:
        store, below = self._locate(path)
        return store.get_file_info(below).type != FileType.NotFound

    def fsync_dir(self, path: str) -> None:
        """An object is listed when it is complete."""

    def lock(self, path: str) -> NoLock:
        return NoLock(path)


class NewObject:
    """`NewFile` that becomes an object when it is synced."""

    def __init__(self, path: str, stream: pa.NativeFile) -> None:
        self.path = path
        self._stream = stream
        self._size = 0

    def pwrite(self, data: Buffer, position: int) -> None:
        if position != self._size:
            raise io.UnsupportedOperation(f"{self.path}: an object is written from its beginning to its end")
        self._stream.write(data)
        self._size += memoryview(data).nbytes

    def size(self) -> int:
        return self._size

    def fsync(self) -> None:
        """Complete the upload."""
        self._stream.close()

    def close(self) -> None:
        self._stream.close()


class NoLock:
    """What stands for a lock where the catalog decides between two jobs."""

    def __init__(self, path: str) -> None:
        self.path = path

    def release(self) -> None: ...
