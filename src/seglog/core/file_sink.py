"""A new file of our file system, for libraries that write to a Python file: Parquet's writer, Iceberg's."""

from __future__ import annotations

from types import TracebackType

from seglog.core.fs import FileStore, NewFile
from seglog.core.types import Buffer


class FileSink:
    """Written from its beginning to its end; on the disk once it is closed. Its directory's entry is the caller's."""

    def __init__(self, fs: FileStore, path: str) -> None:
        self._file: NewFile = fs.open(path, create=True)
        self.size = 0
        self.closed = False

    def write(self, data: Buffer) -> int:
        self._file.pwrite(data, self.size)
        length = memoryview(data).nbytes
        self.size += length
        return length

    def tell(self) -> int:
        return self.size

    def flush(self) -> None:
        """Nothing is buffered here."""

    def readable(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False

    def close(self) -> None:
        """Sync the file to the disk and close it."""
        if not self.closed:
            self.closed = True
            self._file.fsync()
            self._file.close()

    def __enter__(self) -> FileSink:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
