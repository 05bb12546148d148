"""A file system whose changes stay in memory: the engine can be asked what it would do to a directory.

Reads come from the file system below until something is written. A changed file keeps the written parts, not a copy
of the file, so that a large log which is cut costs nothing.
"""

from __future__ import annotations

import errno
import os
import os.path
import threading
from typing import Final, NoReturn

from seglog.core.clock import Clock
from seglog.core.fs import File, FileStat, Fs, Lock, MappedFile, Space
from seglog.core.types import Buffer

_FILE_MODE: Final = 0o644
_DIRECTORY_MODE: Final = 0o755


class OverlayFs:
    """`Fs` over another one. Only reads reach it."""

    def __init__(self, below: Fs, clock: Clock) -> None:
        self._below = below
        self._clock = clock
        self._lock = threading.RLock()
        self._changed: dict[str, _Content | None] = {}  # guarded by _lock
        """Files that were written, renamed to here, or (None) removed, with everything below them."""
        self._made: set[str] = set()  # guarded by _lock
        """Directories that are only here."""

    # Files

    def open(self, path: str, *, create: bool = False, write: bool = True) -> File:
        with self._lock:
            if not write and not self._is_hidden(path) and path not in self._changed:
                return self._below.open(path, write=False)
            content = self._content(path, create=create)
            return _OverlayFile(path, content)

    def _content(self, path: str, *, create: bool = False) -> _Content:
        """The file at ``path`` as it is here. FileNotFoundError."""
        known = self._changed.get(path)
        if known is not None:
            return known
        if self._is_hidden(path) or not self._below.exists(path):
            if not create:
                _missing(path)
            self._check_parent(path)
            content = _Content(None, 0, self._clock.now_ms())
        else:
            stat = self._below.stat(path)
            content = _Content(self._below.open(path, write=False), stat.size, stat.mtime_ms)
        self._changed[path] = content
        return content

    def _check_parent(self, path: str) -> None:
        if not self.exists(os.path.dirname(path)):
            _missing(path)

    def _is_hidden(self, path: str) -> bool:
        """Whether the file system below does not count for ``path``: it was removed, or a directory above it was."""
        while True:
            if path in self._changed:
                return self._changed[path] is None
            if path in self._made:
                return True
            parent = os.path.dirname(path)
            if parent == path:
                return False
            path = parent

    def map(self, path: str, *, size: int | None = None, write: bool = True) -> MappedFile:
        del size, write
        raise OSError(errno.ENODEV, "a file of an overlay cannot be mapped", path)

    def read(self, path: str) -> bytes:
        with self._lock:
            if path not in self._changed and not self._is_hidden(path):
                return self._below.read(path)
            content = self._content(path)
            return content.pread(content.size, 0)

    def write(self, path: str, data: Buffer) -> None:
        with self._lock:
            self._check_parent(path)
            content = self._changed[path] = _Content(None, 0, self._clock.now_ms())
            content.pwrite(data, 0)

    def allocate(self, path: str, size: int) -> None:
        with self._lock:
            self._content(path, create=True).truncate(size)

    def space(self, path: str) -> Space:
        while not self._below.exists(path):
            path = os.path.dirname(path)
        return self._below.space(path)

    # Names

    def rename(self, source: str, target: str) -> None:
        with self._lock:
            if self.stat(source).is_dir:
                self.mkdir(target)
                for name in self.listdir(source):
                    self.rename(os.path.join(source, name), os.path.join(target, name))
                self.rmdir(source)
                return
            content = self._content(source)
            self._check_parent(target)
            self._changed[source] = None
            self._changed[target] = content

    def unlink(self, path: str) -> None:
        with self._lock:
            if not self.exists(path):
                _missing(path)
            self._changed[path] = None

    def mkdir(self, path: str) -> None:
        with self._lock:
            if self.exists(path):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
            self._check_parent(path)
            self._made.add(path)

    def rmdir(self, path: str) -> None:
        with self._lock:
            if self.listdir(path):
                raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), path)
            self._made.discard(path)
            self._changed[path] = None

    def listdir(self, path: str) -> list[str]:
        with self._lock:
            if not self.exists(path):
                _missing(path)
            names = set() if self._is_hidden(path) else set(self._below.listdir(path))
            for other in (*self._changed, *self._made):
                if os.path.dirname(other) == path:
                    names.add(os.path.basename(other))
            return sorted(name for name in names if self.exists(os.path.join(path, name)))

    def exists(self, path: str) -> bool:
        with self._lock:
            if path in self._made or self._changed.get(path) is not None:
                return True
            return not self._is_hidden(path) and self._below.exists(path)

    def stat(self, path: str) -> FileStat:
        with self._lock:
            content = self._changed.get(path)
            if content is not None:
                return _stat(content.size, content.mtime_ms, is_dir=False)
            if path in self._made:
                return _stat(0, self._clock.now_ms(), is_dir=True)
            if self._is_hidden(path):
                _missing(path)
            return self._below.stat(path)

    def set_mtime(self, path: str, mtime_ms: int) -> None:
        with self._lock:
            self._content(path).mtime_ms = mtime_ms

    def fsync_dir(self, path: str) -> None:
        """Nothing here outlives the process."""

    def lock(self, path: str) -> Lock:
        with self._lock:
            self._content(path, create=True)
        return _NoLock()


class _Content:
    """A changed file: up to ``_from_base`` bytes of the one below, and what was written over them."""

    __slots__ = ("_base", "_from_base", "_written", "mtime_ms", "size")

    def __init__(self, base: File | None, size: int, mtime_ms: int) -> None:
        self._base = base
        self._from_base = size if base is not None else 0
        self._written: list[tuple[int, bytes]] = []
        self.size = size
        self.mtime_ms = mtime_ms

    def pread(self, length: int, position: int) -> bytes:
        end = min(position + length, self.size)
        if position >= end:
            return b""
        data = bytearray(end - position)
        if self._base is not None and position < self._from_base:
            below = self._base.pread(min(end, self._from_base) - position, position)
            data[: len(below)] = below
        for start, written in self._written:
            first, last = max(start, position), min(start + len(written), end)
            if first < last:
                data[first - position : last - position] = written[first - start : last - start]
        return bytes(data)

    def pwrite(self, data: Buffer, position: int) -> None:
        if not len(data):
            return
        last = self._written[-1] if self._written else None
        if last is not None and last[0] + len(last[1]) == position:
            self._written[-1] = (last[0], last[1] + bytes(data))
        else:
            self._written.append((position, bytes(data)))
        self.size = max(self.size, position + len(data))

    def truncate(self, size: int) -> None:
        self._from_base = min(self._from_base, size)
        self._written = [(start, data[: max(size - start, 0)]) for start, data in self._written if start < size]
        self.size = size


class _OverlayFile:
    """`File` of an overlay; several share what was written."""

    __slots__ = ("_content", "path")

    def __init__(self, path: str, content: _Content) -> None:
        self.path = path
        self._content = content

    def pread(self, length: int, position: int) -> bytes:
        return self._content.pread(length, position)

    def pwrite(self, data: Buffer, position: int) -> None:
        self._content.pwrite(data, position)

    def size(self) -> int:
        return self._content.size

    def truncate(self, size: int) -> None:
        self._content.truncate(size)

    def fsync(self) -> None:
        """Nothing here outlives the process."""

    def close(self) -> None:
        """The content stays for the next one that opens the file."""


class _NoLock:
    def release(self) -> None:
        """It locked nothing."""


def _stat(size: int, mtime_ms: int, *, is_dir: bool) -> FileStat:
    return FileStat(
        size=size,
        used=size,
        mtime_ms=mtime_ms,
        is_dir=is_dir,
        is_file=not is_dir,
        is_symlink=False,
        mode=_DIRECTORY_MODE if is_dir else _FILE_MODE,
    )


def _missing(path: str) -> NoReturn:
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
