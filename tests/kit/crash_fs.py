"""A file system that stops at the n-th change, so that a test can crash a program at each of its system calls."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple

from seglog.core.fs import File, FileStat, Fs, Lock, MappedFile, Space
from seglog.core.types import Buffer


class SimulatedCrash(BaseException):
    """The process died here. Not an Exception, so that no handler of the program under test takes it for an error."""


class Call(NamedTuple):
    """A call that changes the disk or makes a change durable; numbered from 1."""

    number: int
    operation: str
    path: str


class _CrashFile:
    __slots__ = ("_file", "_fs", "path")

    def __init__(self, fs: CrashFs, file: File) -> None:
        self._fs = fs
        self._file = file
        self.path = file.path

    def pread(self, length: int, position: int) -> bytes:
        self._fs.check_alive()
        return self._file.pread(length, position)

    def pwrite(self, data: Buffer, position: int) -> None:
        self._fs.count("pwrite", self.path, lambda: self._fs.tear(self._file, data, position))
        self._file.pwrite(data, position)

    def size(self) -> int:
        self._fs.check_alive()
        return self._file.size()

    def truncate(self, size: int) -> None:
        self._fs.count("truncate", self.path)
        self._file.truncate(size)

    def fsync(self) -> None:
        self._fs.count("fsync", self.path)
        self._file.fsync()

    def close(self) -> None:
        self._file.close()


class _CrashMap:
    __slots__ = ("_fs", "_map", "path")

    def __init__(self, fs: CrashFs, mapped: MappedFile) -> None:
        self._fs = fs
        self._map = mapped
        self.path = mapped.path

    @property
    def buffer(self) -> bytearray:
        self._fs.check_alive()
        found = self._map.buffer
        assert isinstance(found, bytearray), "CrashFs maps files of a MemoryFs only"
        return found

    @property
    def size(self) -> int:
        return self._map.size

    def resize(self, size: int) -> None:
        if size != self._map.size:
            self._fs.count("resize", self.path)
            self._map.resize(size)

    def reserve(self, start: int, end: int) -> int:
        self._fs.check_alive()
        return self._map.reserve(start, end)

    def flush(self) -> None:
        self._fs.count("flush", self.path)
        self._map.flush()

    def close(self) -> None:
        self._map.close()


class CrashFs:
    """Passes every call on to ``inner`` and raises `SimulatedCrash` in place of change number ``crash_at`` (from 1).

    From then on every call raises it, also from other threads: the process is dead. With ``crash_at=None`` nothing
    crashes and `changes` tells how many there are to choose from. ``torn`` (0 to 1) is the share of a write that
    still reaches the file when the crash falls on it. ``before_change`` is called before each change: with a `MemoryFs`
    inside it can read what a power cut would leave there (`MemoryFs.after_crash`), without the program's death.
    """

    def __init__(
        self,
        inner: Fs,
        *,
        crash_at: int | None = None,
        torn: float = 0.0,
        before_change: Callable[[Call], None] | None = None,
    ) -> None:
        self._inner = inner
        self._before_change = before_change
        self._mutex = threading.Lock()
        self.crash_at = crash_at
        self.torn = torn
        self.crashed = False
        self.trace: list[Call] = []

    def crash_after(self, changes: int, torn: float) -> None:
        """Crash at this change, counted from now."""
        self.crash_at, self.torn = self.changes + changes, torn

    def disarm(self) -> None:
        self.crash_at = None

    @property
    def changes(self) -> int:
        return len(self.trace)

    def check_alive(self) -> None:
        if self.crashed:
            raise SimulatedCrash(f"crashed at {self.trace[-1]}" if self.trace else "crashed")

    def die(self) -> None:
        """The process is dead, as of now."""
        self.crashed = True

    def count(self, operation: str, path: str, last_act: Callable[[], None] | None = None) -> None:
        with self._mutex:
            self.check_alive()
            call = Call(len(self.trace) + 1, operation, path)
            self.trace.append(call)
            if self._before_change is not None:
                self._before_change(call)
            if len(self.trace) == self.crash_at:
                self.crashed = True
                if last_act is not None:
                    last_act()
                self.check_alive()

    def tear(self, file: File, data: Buffer, position: int) -> None:
        share = int(len(data) * self.torn)
        if share:
            file.pwrite(memoryview(data)[:share], position)

    def open(self, path: str, *, create: bool = False, write: bool = True) -> File:
        if create and not self._inner.exists(path):
            self.count("open", path)
        self.check_alive()
        return _CrashFile(self, self._inner.open(path, create=create, write=write))

    def map(self, path: str, *, size: int | None = None, write: bool = True) -> MappedFile:
        if size is not None and (not self._inner.exists(path) or self._inner.stat(path).size != size):
            self.count("map", path)
        self.check_alive()
        return _CrashMap(self, self._inner.map(path, size=size, write=write))

    def read(self, path: str) -> bytes:
        self.check_alive()
        return self._inner.read(path)

    def write(self, path: str, data: Buffer) -> None:
        self.count("write", path, lambda: self._tear_whole(path, data))
        self._inner.write(path, data)

    def _tear_whole(self, path: str, data: Buffer) -> None:
        if self.torn:
            file = self._inner.open(path, create=True)
            file.truncate(0)
            self.tear(file, data, 0)
            file.close()

    def allocate(self, path: str, size: int) -> None:
        self.check_alive()
        self._inner.allocate(path, size)

    def space(self, path: str) -> Space:
        self.check_alive()
        return self._inner.space(path)

    def rename(self, source: str, target: str) -> None:
        self.count("rename", source)
        self._inner.rename(source, target)

    def unlink(self, path: str) -> None:
        self.count("unlink", path)
        self._inner.unlink(path)

    def mkdir(self, path: str) -> None:
        self.count("mkdir", path)
        self._inner.mkdir(path)

    def rmdir(self, path: str) -> None:
        self.count("rmdir", path)
        self._inner.rmdir(path)

    def listdir(self, path: str) -> list[str]:
        self.check_alive()
        return self._inner.listdir(path)

    def exists(self, path: str) -> bool:
        self.check_alive()
        return self._inner.exists(path)

    def stat(self, path: str) -> FileStat:
        self.check_alive()
        return self._inner.stat(path)

    def set_mtime(self, path: str, mtime_ms: int) -> None:
        self.count("set_mtime", path)
        self._inner.set_mtime(path, mtime_ms)

    def fsync_dir(self, path: str) -> None:
        self.count("fsync_dir", path)
        self._inner.fsync_dir(path)

    def lock(self, path: str) -> Lock:
        self.check_alive()
        return self._inner.lock(path)
