"""Files of segments that are open only while they are used, so that a log needs one descriptor, however long it is.

The log file of the active segment stays open. That of a sealed one (`SealedFile`) is opened when it is read, and stays
open while it is among the last that were used, in any log of the process: a small share of ``ulimit -n``. What is
derived from the log (`DerivedFile`: indexes, aborted transactions) is opened for each write, which are few.
"""

from __future__ import annotations

import errno
import itertools
import os.path
import threading
import weakref
from contextlib import closing, suppress
from typing import Final

from seglog.core.descriptors import most_sealed_files
from seglog.core.errors import LogClosedError, TooManyFilesError
from seglog.core.fs import File, Fs, NoSpaceError
from seglog.core.lru import Lru
from seglog.core.types import Buffer

_open_files: Final = Lru[File](most_sealed_files)
_keys: Final = itertools.count()


class GoneFile:
    """`seglog.core.fs.File` of a segment whose log file was removed, or lost its name to another.

    The segment refers to this from then on, so that only readers refer to the file: the last of them closes it, and
    without any it is closed at once. The garbage collector may come hours later; until then the file would take its
    room on the disk.
    """

    __slots__ = ("path",)

    def __init__(self, path: str) -> None:
        self.path = path

    def _refused(self, why: str) -> LogClosedError:
        return LogClosedError(f"{self.path} is gone, its segment was deleted or replaced: {why}")

    def pread(self, length: int, position: int) -> bytes:
        raise self._refused(f"{length} bytes at {position} cannot be read")

    def pwrite(self, data: Buffer, position: int) -> None:
        raise self._refused(f"{len(data)} bytes at {position} cannot be written")

    def size(self) -> int:
        raise self._refused("it has no size")

    def truncate(self, size: int) -> None:
        raise self._refused(f"it cannot be truncated to {size} bytes")

    def fsync(self) -> None:
        """Nothing of it needs to be on the disk."""

    def close(self) -> None:
        """It is closed when its readers are done."""


class _UnlinkedFiles:
    """Files that were unlinked, each open for as long as a reader refers to it.

    At most as many as sealed segments keep open; a reader of one more that is unlinked finds the oldest closed.
    """

    def __init__(self) -> None:
        self._files: weakref.WeakValueDictionary[int, SealedFile] = weakref.WeakValueDictionary()
        self._lock = threading.RLock()

    def add(self, key: int, file: SealedFile) -> None:
        with self._lock:
            while len(self._files) >= most_sealed_files() and (oldest := next(iter(self._files), None)) is not None:
                dropped = self._files.pop(oldest, None)
                if dropped is not None:
                    dropped.drop()
            self._files[key] = file


_unlinked: Final = _UnlinkedFiles()


class SealedFile:
    """`seglog.core.fs.File` of a sealed segment: closed when others are used more, opened again by its path.

    `rename` and `unlink` go through here: a reader that comes between finds the file under its new name, and one that
    has it still reads a file that is unlinked meanwhile. The references to this are the count of its users: those who
    refer to it are a segment, until it is removed (`GoneFile`), and readers.
    """

    __slots__ = ("__weakref__", "_fs", "_is_closed", "_is_shared", "_kept", "_key", "_lock", "path")

    def __init__(self, fs: Fs, path: str, opened: File | None = None) -> None:
        """``opened``: the file, if it is open already; it belongs to this from now on."""
        self._fs = fs
        self.path = path  # guarded by _lock
        self._key = next(_keys)
        self._lock = threading.Lock()
        self._kept: File | None = None  # guarded by _lock
        """Of a file that has no name any more, or whose segment has opened it again for itself."""
        self._is_closed = False  # guarded by _lock
        self._is_shared = True  # guarded by _lock
        """Whether the file may stay open after its last reader."""
        if opened is not None:
            _open_files.put(self._key, opened)

    def _file(self) -> File:
        return self._kept or _open_files.get(self._key) or self._open()

    def _open(self) -> File:
        with self._lock:
            found = self._kept or _open_files.get(self._key)
            if found is not None:
                return found
            if self._is_closed:
                raise LogClosedError(f"{self.path} is closed")
            try:
                opened = self._open_with_descriptors()
            except FileNotFoundError as error:
                raise LogClosedError(f"{self.path} is gone: its partition was deleted or moved") from error
            if self._is_shared:
                _open_files.put(self._key, opened)
            else:
                self._kept = opened
            return opened

    def _open_with_descriptors(self) -> File:
        try:
            return self._fs.open(self.path, write=False)
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
        _open_files.clear()
        try:
            return self._fs.open(self.path, write=False)
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            raise TooManyFilesError(f"{self.path} cannot be opened: {error}. Raise ulimit -n") from error

    def pread(self, length: int, position: int) -> bytes:
        return self._file().pread(length, position)

    def pwrite(self, data: Buffer, position: int) -> None:
        with self._lock, closing(self._fs.open(self.path)) as file:
            file.pwrite(data, position)

    def size(self) -> int:
        return self._file().size()

    def truncate(self, size: int) -> None:
        with self._lock, closing(self._fs.open(self.path)) as file:
            file.truncate(size)

    def fsync(self) -> None:
        self._file().fsync()

    def let_go(self) -> None:
        """No new reader gets this file from now on; a reader that has it goes on."""
        with self._lock:
            self._is_shared = False
            self._kept = self._kept or _open_files.pop(self._key)

    def rename(self, path: str) -> None:
        with self._lock:
            self._fs.rename(self.path, path)
            self.path = path

    def moved_to(self, path: str) -> None:
        """The directory was renamed."""
        with self._lock:
            self.path = path

    def unlink(self) -> None:
        """Remove the file, and keep it open for as long as anything refers to this, if there are descriptors."""
        if not self._fs.exists(self.path):
            return
        opened = None
        if not self._is_closed:
            with suppress(TooManyFilesError):  # a reader finds it gone
                opened = self._file()
        with self._lock:
            self._kept, self._is_shared = opened, False
            self._fs.unlink(self.path)
            _open_files.pop(self._key)
        if opened is not None:
            _unlinked.add(self._key, self)

    def drop(self) -> None:
        """Close the file that has no name any more: there are too many of them."""
        with self._lock:
            kept, self._kept = self._kept, None
        del kept  # with the lock free: the end of a file is a system call

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            kept, self._kept = self._kept, None
        opened = _open_files.pop(self._key) or kept
        if opened is not None:
            opened.close()


class DerivedFile:
    """Bytes at the end of a file that can be made again from the log. Nothing stays open between two calls.

    What is appended is written when there are ``write_at`` bytes of it, and by `write`: until then it is in memory.
    A full disk does not refuse an append; `write` and `flush` say so. Invariant: the file has the first ``written``
    bytes; after them there may be zeros, as in a file that was pre-allocated.
    """

    __slots__ = (
        "_fs",
        "_has_new_name",
        "_is_flushed",
        "_is_gone",
        "_pending",
        "_write_at",
        "_zeros_to",
        "file_size",
        "lock",
        "path",
        "written",
    )

    def __init__(self, fs: Fs, path: str, file_size: int, written: int, *, write_at: int, is_new: bool = False) -> None:
        """``file_size`` is the file's size now; its first ``written`` bytes are in use. ``is_new``: the caller has just
        made the file, and what is not in use is zeros."""
        self._fs = fs
        self.path = path  # guarded by lock
        self.file_size = file_size  # guarded by lock
        self.written = written  # guarded by lock
        self._write_at = write_at
        self._pending = bytearray()
        self._zeros_to = file_size if is_new else 0  # guarded by lock
        """The end of the zeros after the bytes in use, as far as this process made them."""
        # A former owner of the file may have left it in the page cache.
        self._is_flushed = False  # guarded by lock
        self._has_new_name = False  # guarded by lock
        self._is_gone = False  # guarded by lock
        self.lock = threading.RLock()
        """Held over `rename`, too: a file that is opened by its path must have that name."""

    @property
    def size(self) -> int:
        return self.written + len(self._pending)

    def append(self, data: Buffer) -> None:
        """For one writer, which takes no lock: `write` removes only the bytes that it has written."""
        pending = self._pending
        pending += data
        if len(pending) >= self._write_at:
            with suppress(NoSpaceError):  # they stay in memory: the next append, or a flush, tries again
                self.write()

    def write(self) -> None:
        """Write what is in memory. `NoSpaceError`: then nothing of it is in the file."""
        with self.lock:
            if not self._pending or self._is_gone:
                return
            data = bytes(self._pending)
            self._is_flushed = False
            self._has_new_name = self._has_new_name or not self._fs.exists(self.path)
            with closing(self._fs.open(self.path, create=True)) as file:
                try:
                    file.pwrite(data, self.written)
                except NoSpaceError:
                    file.truncate(self.written)
                    file.truncate(self.file_size)
                    raise
            self.written += len(data)
            self.file_size = max(self.file_size, self.written)
            del self._pending[: len(data)]

    def read(self, start: int) -> bytes:
        """The bytes from ``start`` on; fewer if the file was cut, and none if it is gone."""
        with self.lock:
            if start >= self.written:
                return bytes(self._pending[start - self.written :])
            try:
                file = self._fs.open(self.path, write=False)
            except FileNotFoundError:
                return b""
            with closing(file):
                data = file.pread(self.written - start, start)
            return data + self._pending if start + len(data) == self.written else data

    def truncate(self, size: int) -> None:
        """Keep the first ``size`` bytes, and cut off what the file has after them."""
        with self.lock:
            if size >= self.written:
                del self._pending[size - self.written :]
            else:
                self._pending.clear()
                self.written = size
                self._zeros_to = 0
            self.set_size()

    def set_size(self, size: int = 0) -> None:
        """Let the file have ``size`` bytes, or as many as are in use if those are more; after them there are zeros."""
        with self.lock:
            size = max(size, self.written)
            if self._is_gone or self.file_size == size == max(self.written, self._zeros_to):
                return
            self._is_flushed = False
            with closing(self._fs.open(self.path)) as file:
                if self.file_size > self.written:
                    file.truncate(self.written)
                if size > self.written:
                    file.truncate(size)
            self.file_size = self._zeros_to = size

    def flush(self) -> None:
        """fsync it, and its name if it is new, unless nothing has changed since that was done."""
        with self.lock:
            self.write()
            if self._is_flushed or self._is_gone or not self._fs.exists(self.path):
                return
            file = self._fs.open(self.path, write=False)
            directory = os.path.dirname(self.path) if self._has_new_name else None
            self._is_flushed, self._has_new_name = True, False
        with closing(file):
            file.fsync()
        if directory is not None:
            self._fs.fsync_dir(directory)

    def rename(self, path: str) -> None:
        with self.lock:
            if self._fs.exists(self.path):
                self._fs.rename(self.path, path)
            self.path = path

    def moved_to(self, path: str) -> None:
        with self.lock:
            self.path = path

    def unlink(self) -> None:
        """Remove the file. Later appends are dropped."""
        with self.lock:
            self._is_gone = True
            if self._fs.exists(self.path):
                self._fs.unlink(self.path)
