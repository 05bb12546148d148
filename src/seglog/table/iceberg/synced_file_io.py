"""Iceberg's files through our file system: what the catalog will name is on the disk before it names it.

pyiceberg's own FileIO does not sync. It makes an object of this class by its name, in the property ``py-io-impl``.
Objects of an object store are durable when they are closed, and are written as pyiceberg does.
"""

from __future__ import annotations

import os

from pyarrow.fs import FileSystem
from pyiceberg.io import OutputStream
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO
from pyiceberg.typedef import EMPTY_DICT, Properties

from seglog.core.file_sink import FileSink
from seglog.core.fs import Fs, OsFs, make_directories
from seglog.table.iceberg.layout import local_path


class SyncedFileIO(PyArrowFileIO):
    """Reads as pyiceberg does. A new file and its directory's entry are on the disk when the file is closed."""

    def __init__(self, properties: Properties = EMPTY_DICT) -> None:
        super().__init__(properties)
        self._disk: Fs = OsFs()

    def new_output(self, location: str) -> PyArrowFile:
        scheme, host, path = self.parse_location(location, self.properties)
        if scheme != "file":
            return super().new_output(location)
        return _SyncedFile(self._disk, location, path, self.fs_by_scheme(scheme, host))


class _SyncedFile(PyArrowFile):
    """A file that Iceberg writes once."""

    def __init__(self, disk: Fs, location: str, path: str, file_system: FileSystem) -> None:
        super().__init__(location, path, file_system)
        self._disk = disk

    def create(self, overwrite: bool = False) -> OutputStream:
        path = local_path(self.location)
        if not overwrite and self._disk.exists(path):
            raise FileExistsError(path)
        make_directories(self._disk, os.path.dirname(path))
        return _SyncedStream(self._disk, path)


class _SyncedStream(FileSink):
    def __init__(self, disk: Fs, path: str) -> None:
        super().__init__(disk, path)
        self._disk = disk
        self._directory = os.path.dirname(path)

    def __enter__(self) -> _SyncedStream:
        return self

    def close(self) -> None:
        was_open = not self.closed
        super().close()
        if was_open:
            self._disk.fsync_dir(self._directory)
