"""The only door to the file system.

Code above asks an `Fs` for files, so that a test can provide a disk that forgets writes without fsync
(`tests.kit.memory_fs.MemoryFs`), or one that fails at the n-th call. Paths are plain strings.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import stat as stat_module
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final, NamedTuple, Protocol

from seglog.core.descriptors import with_descriptors
from seglog.core.errors import LogClosedError, LogDirInUseError
from seglog.core.types import Buffer

_READ_CHUNK: Final = 1 << 20
_STAT_BLOCK: Final = 512
"""The unit of st_blocks, whatever the file system's block size is."""
_NOFOLLOW: Final = getattr(os, "O_NOFOLLOW", 0)


class NotRegularFileError(OSError):
    """A directory, symbolic link, FIFO, socket or device where a file is expected."""


class NoSpaceError(OSError):
    """The disk or the quota is full (ENOSPC, EDQUOT). A later write may find room.

    Only operations that take room raise it: a write, a longer file, a new name. The same errno from fsync or close is a
    plain OSError: accepted data are lost, as on a broken disk.
    """


def write_error(error: OSError, path: str) -> OSError:
    """The error to raise for a failed system call that takes room on the disk."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return NoSpaceError(error.errno, os.strerror(error.errno), path)
    return error


class FileStat(NamedTuple):
    """Size in bytes, modification time in milliseconds, and the kind of entry.

    ``used`` are the bytes that take room; a pre-allocated file uses fewer than its size.
    """

    size: int
    used: int
    mtime_ms: int
    is_dir: bool
    is_file: bool
    is_symlink: bool
    mode: int


class Space(NamedTuple):
    """Free and total bytes of a directory's file system."""

    free: int
    total: int


class NewFile(Protocol):
    """A file that is written once, from its beginning to its end; positions and sizes are in bytes."""

    @property
    def path(self) -> str: ...
    def pwrite(self, data: Buffer, position: int) -> None:
        """Write all of ``data``. OSError if a part could not be written, `NoSpaceError` on a full disk."""

    def size(self) -> int: ...
    def fsync(self) -> None:
        """Return when data and size are on disk."""

    def close(self) -> None: ...


class File(NewFile, Protocol):
    """An open file, addressed by position."""

    def pread(self, length: int, position: int) -> bytes:
        """At most ``length`` bytes; fewer only at the end of the file."""

    def truncate(self, size: int) -> None: ...


class MappedFile(Protocol):
    """A file mapped into memory. `resize` may replace ``buffer``: do not keep it."""

    @property
    def path(self) -> str: ...
    @property
    def buffer(self) -> bytearray | mmap.mmap: ...
    @property
    def size(self) -> int: ...
    def resize(self, size: int) -> None:
        """Set the file's length: truncate it, or extend it with zeros."""

    def reserve(self, start: int, end: int) -> int:
        """Allocate disk space for the zeros from ``start`` to at least ``end``.

        Returns the end of the allocated part. Raises OSError on a full disk, where a write into ``buffer`` would kill
        the process.
        """

    def flush(self) -> None:
        """Return when all changes are on disk."""

    def close(self) -> None: ...


class Lock(Protocol):
    def release(self) -> None: ...


class FileStore(Protocol):
    """Whole files under their paths: all that an object store can do, too. All errors are OSError, as from ``os``."""

    def open(self, path: str, *, create: bool = False, write: bool = True) -> NewFile: ...
    def read(self, path: str) -> bytes: ...
    def write(self, path: str, data: Buffer) -> None:
        """Create or replace a file and fsync it. `write_atomically` makes a replacement that survives a crash."""

    def rename(self, source: str, target: str) -> None: ...
    def unlink(self, path: str) -> None: ...
    def listdir(self, path: str) -> list[str]:
        """The names of a directory's entries, sorted."""

    def exists(self, path: str) -> bool: ...
    def fsync_dir(self, path: str) -> None:
        """Return when creations, renames and deletions in this directory are on disk."""

    def lock(self, path: str) -> Lock:
        """Lock the file exclusively, as a Kafka broker does. `LogDirInUseError` if another process holds the lock."""


class Fs(FileStore, Protocol):
    """The file system as the storage engine uses it."""

    def open(self, path: str, *, create: bool = False, write: bool = True) -> File: ...
    def map(self, path: str, *, size: int | None = None, write: bool = True) -> MappedFile:
        """Map ``path``. With ``size``, create it if need be and set that length."""

    def allocate(self, path: str, size: int) -> None:
        """Create a file if need be, and allocate ``size`` bytes for it. `NoSpaceError`."""

    def space(self, path: str) -> Space: ...
    def mkdir(self, path: str) -> None: ...
    def rmdir(self, path: str) -> None: ...
    def stat(self, path: str) -> FileStat:
        """Of the entry itself: a symbolic link is not followed."""

    def set_mtime(self, path: str, mtime_ms: int) -> None: ...


class OsFile:
    """`File` over a descriptor. Appends and reads run through here: a handful of instructions above the system call."""

    __slots__ = ("_fd", "path")

    def __init__(self, path: str, fd: int) -> None:
        self.path = path
        self._fd = fd

    def fileno(self) -> int:
        return self._fd

    def pread(self, length: int, position: int) -> bytes:
        try:
            data = os.pread(self._fd, length, position)
        except OSError as error:
            if self._fd < 0:  # closed meanwhile: readers take no lock
                raise LogClosedError(f"{self.path} is closed") from error
            raise
        if len(data) == length or not data:
            return data
        parts = [data]
        got = len(data)
        while got < length:
            more = os.pread(self._fd, length - got, position + got)
            if not more:
                break
            parts.append(more)
            got += len(more)
        return b"".join(parts)

    def pwrite(self, data: Buffer, position: int) -> None:
        try:
            written = os.pwrite(self._fd, data, position)
        except OSError as error:
            raise write_error(error, self.path) from None
        if written != len(data):
            _pwrite(self._fd, memoryview(data)[written:], position + written, self.path)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def truncate(self, size: int) -> None:
        try:
            os.ftruncate(self._fd, size)
        except OSError as error:
            raise write_error(error, self.path) from None

    def fsync(self) -> None:
        _fsync(self._fd)

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self.close()


class OsMappedFile:
    """`MappedFile` over mmap. An old map is dropped, not closed: a reader that still holds it must not crash."""

    __slots__ = ("_fd", "_write", "buffer", "path", "size")

    def __init__(self, path: str, fd: int, size: int, *, write: bool) -> None:
        self.path = path
        self._fd = fd
        self._write = write
        self.size = size
        self.buffer: bytearray | mmap.mmap = bytearray()
        try:
            self.buffer = self._map()
        except BaseException:
            self.close()
            raise

    def _map(self) -> bytearray | mmap.mmap:
        if self.size == 0:
            return bytearray()
        access = mmap.ACCESS_WRITE if self._write else mmap.ACCESS_READ
        return with_descriptors(self.path, lambda: mmap.mmap(self._fd, self.size, access=access))

    def resize(self, size: int) -> None:
        if size == self.size:
            return
        if isinstance(self.buffer, mmap.mmap) and 0 < size < self.size:
            self.buffer.flush()
        try:
            os.ftruncate(self._fd, size)
        except OSError as error:
            raise write_error(error, self.path) from None
        self.size = size
        self.buffer = self._map()

    def reserve(self, start: int, end: int) -> int:
        reserved = min(-(-end // mmap.PAGESIZE) * mmap.PAGESIZE, self.size)
        _pwrite(self._fd, bytes(reserved - start), start, self.path)
        return reserved

    def flush(self) -> None:
        if isinstance(self.buffer, mmap.mmap):
            self.buffer.flush()
        _fsync(self._fd)

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            self.buffer = bytearray()
            os.close(fd)

    def __del__(self) -> None:
        self.close()


class OsLock:
    """An exclusive lock on a whole file that conflicts with that of Java's ``FileChannel.tryLock``.

    ``flock`` would succeed while Kafka holds its lock. On Linux it is an open-file-description lock, which survives the
    close of another descriptor; elsewhere a POSIX lock.
    """

    __slots__ = ("_fd",)

    def __init__(self, path: str) -> None:
        self._fd = _open(path, os.O_RDWR | os.O_CREAT)
        try:
            if sys.platform == "linux":
                # struct flock: l_type, l_whence, l_start, l_len (0: to the end), l_pid (0 for this kind of lock)
                fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
            else:
                fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._fd)
            if error.errno in (errno.EACCES, errno.EAGAIN):
                raise LogDirInUseError(f"{path} is locked: another seglog or Kafka has this directory open") from error
            raise

    def release(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class OsFs:
    """The file system of this machine."""

    __slots__ = ()

    def open(self, path: str, *, create: bool = False, write: bool = True) -> File:
        return OsFile(path, _open(path, (os.O_RDWR if write else os.O_RDONLY) | (os.O_CREAT if create else 0)))

    def map(self, path: str, *, size: int | None = None, write: bool = True) -> MappedFile:
        flags = (os.O_RDWR if write else os.O_RDONLY) | (os.O_CREAT if size is not None else 0)
        fd = _open(path, flags)
        try:
            if size is None:
                size = os.fstat(fd).st_size
            else:
                os.ftruncate(fd, size)
        except BaseException:
            os.close(fd)
            raise
        return OsMappedFile(path, fd, size, write=write)  # which closes the file if it cannot be mapped

    def read(self, path: str) -> bytes:
        fd = _open(path, os.O_RDONLY)
        try:
            parts = []
            while part := os.read(fd, _READ_CHUNK):
                parts.append(part)
            return b"".join(parts)
        finally:
            os.close(fd)

    def write(self, path: str, data: Buffer) -> None:
        fd = _open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            _pwrite(fd, data, 0, path)
            _fsync(fd)
        finally:
            os.close(fd)

    def allocate(self, path: str, size: int) -> None:
        fd = _open(path, os.O_RDWR | os.O_CREAT)
        try:
            os.ftruncate(fd, size)
            try:
                _allocate(fd, size)
            except OSError as error:
                if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                    raise write_error(error, path) from None
                for position in range(0, size, _READ_CHUNK):
                    _pwrite(fd, bytes(min(_READ_CHUNK, size - position)), position, path)
        finally:
            os.close(fd)

    def space(self, path: str) -> Space:
        found = os.statvfs(path)
        return Space(found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize)

    def rename(self, source: str, target: str) -> None:
        try:
            os.replace(source, target)
        except OSError as error:
            raise write_error(error, target) from None

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def mkdir(self, path: str) -> None:
        try:
            os.mkdir(path)
        except OSError as error:
            raise write_error(error, path) from None

    def rmdir(self, path: str) -> None:
        os.rmdir(path)

    def listdir(self, path: str) -> list[str]:
        return sorted(os.listdir(path))

    def exists(self, path: str) -> bool:
        return os.path.lexists(path)

    def stat(self, path: str) -> FileStat:
        found = os.lstat(path)
        mode = found.st_mode
        return FileStat(
            size=found.st_size,
            used=min(found.st_size, found.st_blocks * _STAT_BLOCK),
            mtime_ms=found.st_mtime_ns // 1_000_000,
            is_dir=stat_module.S_ISDIR(mode),
            is_file=stat_module.S_ISREG(mode),
            is_symlink=stat_module.S_ISLNK(mode),
            mode=stat_module.S_IMODE(mode),
        )

    def set_mtime(self, path: str, mtime_ms: int) -> None:
        os.utime(path, ns=(mtime_ms * 1_000_000, mtime_ms * 1_000_000))

    def fsync_dir(self, path: str) -> None:
        fd = with_descriptors(path, lambda: os.open(path, os.O_RDONLY))
        try:
            _fsync(fd)
        finally:
            os.close(fd)

    def lock(self, path: str) -> Lock:
        return OsLock(path)


def is_locked(path: str) -> bool:
    """Whether any process, this one included, holds the lock of `Fs.lock`. Takes no lock.

    An unreadable lock file counts as locked: it belongs to another user and may be in use.
    """
    try:
        fd = _open(path, os.O_RDONLY, directory=True)
    except FileNotFoundError:
        return False
    except PermissionError:
        return True
    try:
        if sys.platform != "linux":
            # A POSIX lock of this process would be lost by closing the file; only Kafka, or another process, is asked.
            asked = struct.pack("qqihh", 0, 0, 0, fcntl.F_WRLCK, 0)
            return struct.unpack("qqihh", fcntl.fcntl(fd, fcntl.F_GETLK, asked))[3] != fcntl.F_UNLCK
        asked = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        return bool(struct.unpack("hhqqi4x", fcntl.fcntl(fd, fcntl.F_OFD_GETLK, asked))[0] != fcntl.F_UNLCK)
    finally:
        os.close(fd)


def write_atomically(fs: FileStore, path: str, data: Buffer) -> None:
    """Replace a small file so that after a crash the old or the new one is whole (Kafka's ``CheckpointFile``)."""
    temporary = path + ".tmp"
    try:
        fs.write(temporary, data)
        fs.rename(temporary, path)
    except NoSpaceError:
        if fs.exists(temporary):
            fs.unlink(temporary)  # it takes room, and the next one may be a shorter file
        raise
    fs.fsync_dir(os.path.dirname(path))


def make_directories(fs: Fs, path: str) -> None:
    """Create ``path`` and its missing parents, and sync their entries."""
    if fs.exists(path):
        return
    parent = os.path.dirname(path)
    make_directories(fs, parent)
    with suppress(FileExistsError):
        fs.mkdir(path)
    fs.fsync_dir(parent)


def remove_tree(fs: Fs, path: str) -> None:
    """Delete a directory and its contents. Symbolic links are deleted; their targets are not."""
    for name in fs.listdir(path):
        child = os.path.join(path, name)
        if fs.stat(child).is_dir:
            remove_tree(fs, child)
        else:
            fs.unlink(child)
    fs.rmdir(path)


@contextmanager
def unnamed_file(data: bytes) -> Iterator[str]:
    """The path of a file that no other process finds, and that is gone afterwards: in memory if the system can, else on
    the disk. For a library that only takes paths."""
    if sys.platform == "linux":
        fd = os.memfd_create("seglog")
    else:
        import tempfile  # takes long to load

        fd, path = tempfile.mkstemp()
        os.unlink(path)
    try:
        _pwrite(fd, data, 0, "a file in memory")
        yield f"/dev/fd/{fd}"
    finally:
        os.close(fd)


def make_private_directory(path: str) -> None:
    """Make a directory, with its parents, that no other user can enter, unless it is there."""
    os.makedirs(path, mode=0o700, exist_ok=True)


def write_private(path: str, data: bytes) -> None:
    """Write a new file that no other user can read. FileExistsError if there is one."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NOFOLLOW, 0o600)
    try:
        _pwrite(fd, data, 0, path)
    finally:
        os.close(fd)


_NOT_REGULAR: Final = (errno.ENXIO, errno.EISDIR, errno.ELOOP)
"""A socket, or a FIFO that nothing reads; a directory, to be written; a symbolic link (O_NOFOLLOW)."""


def _open(path: str, flags: int, *, directory: bool = False) -> int:
    """Open a regular file, or also a directory if ``directory``. A FIFO would wait for its other end."""
    try:
        fd = with_descriptors(path, lambda: os.open(path, flags | _NOFOLLOW | os.O_NONBLOCK, 0o666))
    except OSError as error:
        if error.errno in _NOT_REGULAR:
            raise NotRegularFileError(errno.EINVAL, "not a regular file", path) from error
        raise write_error(error, path) from None
    mode = os.fstat(fd).st_mode
    if not stat_module.S_ISREG(mode) and not (directory and stat_module.S_ISDIR(mode)):
        os.close(fd)
        raise NotRegularFileError(errno.EINVAL, "not a regular file", path)
    return fd


def _pwrite(fd: int, data: Buffer, position: int, path: str) -> None:
    view = memoryview(data)
    while view:
        try:
            written = os.pwrite(fd, view, position)
        except OSError as error:
            raise write_error(error, path) from None
        if written == 0:
            raise OSError(errno.EIO, "the file takes no more bytes", path)
        view = view[written:]
        position += written


def _allocate(fd: int, size: int) -> None:
    if sys.platform == "darwin" or not size:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
    os.posix_fallocate(fd, 0, size)


def _fsync(fd: int) -> None:
    if sys.platform == "darwin":
        fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
    else:
        os.fsync(fd)
