"""A file system of this machine that counts its fsyncs by thread."""

from __future__ import annotations

import os
import threading

from seglog.core.fs import File, OsFile, OsFs
from seglog.core.types import Buffer


class Fsyncs:
    """``on_this_thread`` are the fsyncs of the thread that made this, with their paths; ``elsewhere`` is the number of
    the others. For tests, and for `bench`."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self.on_this_thread: list[str] = []
        self.elsewhere = 0

    def begin(self) -> None:
        self.on_this_thread.clear()
        self.elsewhere = 0

    def note(self, operation: str, path: str) -> None:
        if threading.get_ident() == self._thread:
            self.on_this_thread.append(f"{operation} {path}")
        else:
            self.elsewhere += 1


class CountedFile(OsFile):
    __slots__ = ("_fsyncs",)

    def __init__(self, path: str, fd: int, fsyncs: Fsyncs) -> None:
        super().__init__(path, fd)
        self._fsyncs = fsyncs

    def fsync(self) -> None:
        self._fsyncs.note("fsync", self.path)
        super().fsync()


class CountedFs(OsFs):
    """Memory maps are not counted: indexes and checkpoints are files."""

    __slots__ = ("_fsyncs",)

    def __init__(self, fsyncs: Fsyncs) -> None:
        self._fsyncs = fsyncs

    def open(self, path: str, *, create: bool = False, write: bool = True) -> File:
        opened = super().open(path, create=create, write=write)
        assert isinstance(opened, OsFile)
        fd = os.dup(opened.fileno())
        opened.close()
        return CountedFile(path, fd, self._fsyncs)

    def write(self, path: str, data: Buffer) -> None:
        self._fsyncs.note("write", path)
        super().write(path, data)

    def fsync_dir(self, path: str) -> None:
        self._fsyncs.note("fsync_dir", path)
        super().fsync_dir(path)
