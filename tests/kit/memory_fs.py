"""A file system in memory that forgets what was not fsynced, fills up, and fails on request."""

from __future__ import annotations

import errno
import os
import posixpath
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from seglog.core.clock import Clock, SystemClock
from seglog.core.errors import LogDirInUseError
from seglog.core.fs import File, FileStat, Lock, MappedFile, NoSpaceError, NotRegularFileError, Space, write_error
from seglog.core.types import MAX_INT64, Buffer
from tests.kit.memory_disk import MemoryDirectory, MemoryInode, NameChange, perform, tree_after_crash

_TAKE_ROOM: Final = frozenset({"pwrite", "truncate", "resize", "open", "map", "write", "allocate", "rename", "mkdir"})


@lru_cache(maxsize=4096)  # tests with a crash at every change of a disk name the same files again and again
def _parts(path: str) -> tuple[str, ...]:
    """The names on the way from the root."""
    return tuple(part for part in posixpath.normpath("/" + path).split("/") if part)


@dataclass(slots=True, kw_only=True, eq=False)
class _Fault:
    operations: frozenset[str]
    path: str
    remaining: int
    error: int
    times: int


class MemoryFs:
    """`seglog.core.fs.Fs` in memory. Paths are POSIX; a relative one counts from the root, which is always there.

    - `crash` forgets what was not fsynced, as far as a ``random.Random`` says.
    - ``capacity`` (bytes, None for no limit) is the size of the disk: what does not fit is ENOSPC after a short write.
    - ``read_only`` makes every change fail with EROFS.
    - `fail_at` makes the n-th call of an operation fail; after an fsync that failed it ``has_lost`` what programs see.
    """

    def __init__(self, *, clock: Clock | None = None, capacity: int | None = None) -> None:
        self._clock = clock or SystemClock()
        self.capacity = capacity
        self.read_only = self.has_lost = False
        self.mutex = threading.RLock()
        self.generation = 0
        self.locked: set[MemoryInode] = set()
        self.calls: Counter[str] = Counter()
        self._faults: list[_Fault] = []
        self._root = MemoryDirectory(self._clock.now_ms())

    # What tests ask for.

    def crash(self, rng: random.Random) -> None:
        """A power cut: open files and locks are gone, and so is what was not fsynced and finds no mercy in ``rng``."""
        with self.mutex:
            self._root = tree_after_crash(self._root, rng)
            self.generation += 1
            self.has_lost = False
            self.locked.clear()
            self.heal()

    def kill(self) -> None:
        """The process dies and the machine does not: open files and locks are gone, everything written is there."""
        with self.mutex:
            self.generation += 1
            self.locked.clear()
            self._faults.clear()

    def after_crash(self, rng: random.Random) -> MemoryFs:
        """The disk as `crash` would leave it, as another file system; this one goes on."""
        with self.mutex:
            survivor = MemoryFs(clock=self._clock, capacity=self.capacity)
            survivor._root = tree_after_crash(self._root, rng)
            return survivor

    def fail_at(
        self, operations: str | Iterable[str], nth: int, *, error: int = errno.EIO, path: str = "", times: int = 1
    ) -> Callable[[], None]:
        """From the ``nth`` (1: the next) call of ``operations`` on a path that contains ``path``, ``times`` calls fail.

        Operations are named as the methods: pread pwrite truncate fsync resize flush (of a map), open map read write
        rename unlink mkdir rmdir listdir set_mtime fsync_dir. What a failed fsync or flush should have written is lost.
        Returns a function that takes the plan back.
        """
        names = frozenset([operations] if isinstance(operations, str) else operations)
        fault = _Fault(operations=names, path=path, remaining=nth, error=error, times=times)
        self._faults.append(fault)

        def cancel() -> None:
            if fault in self._faults:
                self._faults.remove(fault)

        return cancel

    def heal(self) -> None:
        """Nothing that `fail_at` planned fails any more."""
        self._faults.clear()

    def files(self) -> dict[str, bytes]:
        """All files as programs see them, by path."""
        found: dict[str, bytes] = {}

        def walk(prefix: str, directory: MemoryDirectory) -> None:
            for name, node in sorted(directory.entries.items()):
                if isinstance(node, MemoryDirectory):
                    walk(f"{prefix}/{name}", node)
                else:
                    found[f"{prefix}/{name}"] = bytes(node.data)

        walk("", self._root)
        return found

    @property
    def used(self) -> int:
        """Bytes that all files take, without holes."""
        total = 0
        waiting: list[MemoryInode | MemoryDirectory] = [self._root]
        while waiting:
            node = waiting.pop()
            if isinstance(node, MemoryDirectory):
                waiting.extend(node.entries.values())
            else:
                total += node.allocated
        return total

    def before(self, operation: str, path: str, *, mutates: bool = False) -> None:
        """Count a call; raise the OSError that is due for it."""
        self.calls[operation] += 1
        for fault in self._faults:
            if operation in fault.operations and fault.path in path:
                fault.remaining -= 1
                if -fault.times < fault.remaining <= 0:
                    error = OSError(fault.error, os.strerror(fault.error), path)
                    raise write_error(error, path) if operation in _TAKE_ROOM else error
        if mutates and self.read_only:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)

    @contextmanager
    def unfailing(self) -> Iterator[None]:
        """Nothing that `fail_at` planned fails in here, and nothing counts."""
        faults, self._faults = self._faults, []
        try:
            yield
        finally:
            self._faults = faults

    @contextmanager
    def unlimited(self) -> Iterator[None]:
        """Writes in here find room, whatever the capacity."""
        capacity, self.capacity = self.capacity, None
        try:
            yield
        finally:
            self.capacity = capacity

    def write_within_capacity(self, inode: MemoryInode, data: Buffer, position: int, path: str) -> None:
        """Write what fits, then raise ENOSPC if that is not all."""
        room = self._room()
        fits = len(data) if room is None else max(0, min(len(data), inode.allocated + room - position))
        if fits:
            inode.write(memoryview(data)[:fits], position)
            inode.mtime_ms = self._clock.now_ms()
        if fits < len(data):
            raise NoSpaceError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    def grow_within_capacity(self, inode: MemoryInode, size: int, path: str) -> None:
        room = self._room()
        if room is not None and size > inode.allocated + room:
            raise NoSpaceError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    def _room(self) -> int | None:
        return None if self.capacity is None else max(0, self.capacity - self.used)

    def sync(self, inode: MemoryInode, check: Callable[[], object]) -> None:
        """Make a file durable, unless ``check`` raises: then its dirty pages are lost, as on Linux."""
        try:
            check()
        except OSError:
            inode.lose_pending()
            self.has_lost = True
            raise
        inode.sync()

    # The file system.

    def _find(self, path: str) -> MemoryInode | MemoryDirectory:
        return self._walk(_parts(path), path)

    def _walk(self, parts: tuple[str, ...], path: str) -> MemoryInode | MemoryDirectory:
        node: MemoryInode | MemoryDirectory = self._root
        for part in parts:
            if not isinstance(node, MemoryDirectory):
                raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
            if part not in node.entries:
                raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            node = node.entries[part]
        return node

    def _find_directory(self, path: str) -> MemoryDirectory:
        return self._directory(_parts(path), path)

    def _directory(self, parts: tuple[str, ...], path: str) -> MemoryDirectory:
        node = self._walk(parts, path)
        if not isinstance(node, MemoryDirectory):
            raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        return node

    def _find_file(self, path: str, *, create: bool) -> MemoryInode:
        directory, name = self._parent(path)
        node = directory.entries.get(name)
        if isinstance(node, MemoryDirectory):
            raise NotRegularFileError(errno.EINVAL, "not a regular file", path)
        if node is None:
            if not create:
                raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            if self.read_only:
                raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)
            node = MemoryInode(self._clock.now_ms())
            perform(NameChange(directory, name, node))
        return node

    def _parent(self, path: str) -> tuple[MemoryDirectory, str]:
        parts = _parts(path)
        if not parts:
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), path)
        return self._directory(parts[:-1], path), parts[-1]

    def open(self, path: str, *, create: bool = False, write: bool = True) -> File:
        with self.mutex:
            self.before("open", path, mutates=write)
            return MemoryFile(self, path, self._find_file(path, create=create), write=write)

    def map(self, path: str, *, size: int | None = None, write: bool = True) -> MappedFile:
        with self.mutex:
            self.before("map", path, mutates=write)
            inode = self._find_file(path, create=size is not None)
            mapped = MemoryMap(self, path, inode, write=write)
            if size is not None:
                self.grow_within_capacity(inode, size, path)
                inode.truncate(size)
                inode.allocated = size
            return mapped

    def read(self, path: str) -> bytes:
        with self.mutex:
            self.before("read", path)
            return bytes(self._find_file(path, create=False).data)

    def write(self, path: str, data: Buffer) -> None:
        with self.mutex:
            self.before("write", path, mutates=True)
            inode = self._find_file(path, create=True)
            inode.truncate(0)
            self.write_within_capacity(inode, data, 0, path)
            self.sync(inode, lambda: self.before("fsync", path))

    def allocate(self, path: str, size: int) -> None:
        """On a disk without limit nothing is kept back, and no file is made."""
        with self.mutex:
            if self.capacity is not None:
                self.before("allocate", path, mutates=True)
                inode = self._find_file(path, create=True)
                self.grow_within_capacity(inode, size, path)
                inode.truncate(size)
                inode.allocated = size

    def space(self, path: str) -> Space:
        del path
        with self.mutex:
            return Space(MAX_INT64, MAX_INT64) if self.capacity is None else Space(self._room() or 0, self.capacity)

    def rename(self, source: str, target: str) -> None:
        with self.mutex:
            self.before("rename", source, mutates=True)
            node = self._find(source)
            old_directory, old_name = self._parent(source)
            new_directory, new_name = self._parent(target)
            existing = new_directory.entries.get(new_name)
            if existing is node:
                return
            if isinstance(existing, MemoryDirectory) and (not isinstance(node, MemoryDirectory) or existing.entries):
                code = errno.ENOTEMPTY if isinstance(node, MemoryDirectory) else errno.EISDIR
                raise OSError(code, os.strerror(code), target)
            if isinstance(node, MemoryDirectory) and isinstance(existing, MemoryInode):
                raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), target)
            perform(NameChange(old_directory, old_name, None), NameChange(new_directory, new_name, node))

    def unlink(self, path: str) -> None:
        with self.mutex:
            self.before("unlink", path, mutates=True)
            self._find_file(path, create=False)
            directory, name = self._parent(path)
            perform(NameChange(directory, name, None))

    def mkdir(self, path: str) -> None:
        with self.mutex:
            self.before("mkdir", path, mutates=True)
            directory, name = self._parent(path)
            if name in directory.entries:
                raise OSError(errno.EEXIST, os.strerror(errno.EEXIST), path)
            perform(NameChange(directory, name, MemoryDirectory(self._clock.now_ms())))

    def rmdir(self, path: str) -> None:
        with self.mutex:
            self.before("rmdir", path, mutates=True)
            if self._find_directory(path).entries:
                raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), path)
            directory, name = self._parent(path)
            perform(NameChange(directory, name, None))

    def listdir(self, path: str) -> list[str]:
        with self.mutex:
            self.before("listdir", path)
            return sorted(self._find_directory(path).entries)

    def exists(self, path: str) -> bool:
        with self.mutex:
            try:
                self._find(path)
            except OSError:
                return False
            return True

    def stat(self, path: str) -> FileStat:
        with self.mutex:
            node = self._find(path)
            is_file = isinstance(node, MemoryInode)
            size = len(node.data) if isinstance(node, MemoryInode) else 0
            return FileStat(
                size=size,
                used=size,
                mtime_ms=node.mtime_ms,
                is_dir=not is_file,
                is_file=is_file,
                is_symlink=False,
                mode=node.mode,
            )

    def chmod(self, path: str, mode: int) -> None:
        """Set the permission bits that `stat` shows; nothing is enforced."""
        self._find(path).mode = mode

    def set_mtime(self, path: str, mtime_ms: int) -> None:
        with self.mutex:
            self.before("set_mtime", path, mutates=True)
            self._find(path).mtime_ms = mtime_ms

    def fsync_dir(self, path: str) -> None:
        with self.mutex:
            self.before("fsync_dir", path)
            self._find_directory(path).sync()

    def lock(self, path: str) -> Lock:
        with self.mutex:
            self.before("lock", path, mutates=True)
            inode = self._find_file(path, create=True)
            if inode in self.locked:
                raise LogDirInUseError(f"{path} is locked: another seglog or Kafka has this directory open")
            self.locked.add(inode)
            return MemoryLock(self, inode)


# What a `MemoryFs` hands out; of no use after a crash.


class MemoryFile:
    """`seglog.core.fs.File`. Keeps to its file through renames and deletion."""

    __slots__ = ("_fs", "_generation", "_inode", "_write", "path")

    def __init__(self, fs: MemoryFs, path: str, inode: MemoryInode, *, write: bool) -> None:
        self.path = path
        self._fs = fs
        self._inode: MemoryInode | None = inode
        self._write = write
        self._generation = fs.generation

    def _open_inode(self, operation: str, *, write: bool = False) -> MemoryInode:
        if self._inode is None or self._generation != self._fs.generation or (write and not self._write):
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), self.path)
        self._fs.before(operation, self.path, mutates=write)
        return self._inode

    def pread(self, length: int, position: int) -> bytes:
        return bytes(self._open_inode("pread").data[position : position + length])

    def pwrite(self, data: Buffer, position: int) -> None:
        with self._fs.mutex:
            inode = self._open_inode("pwrite", write=True)
            self._fs.write_within_capacity(inode, data, position, self.path)

    def size(self) -> int:
        return len(self._open_inode("size").data)

    def truncate(self, size: int) -> None:
        with self._fs.mutex:
            self._open_inode("truncate", write=True).truncate(size)

    def fsync(self) -> None:
        with self._fs.mutex:
            assert self._inode is not None
            self._fs.sync(self._inode, lambda: self._open_inode("fsync"))

    def close(self) -> None:
        self._inode = None


class MemoryMap:
    """`seglog.core.fs.MappedFile`. Writes into ``buffer`` are seen by every reader of the file at once."""

    __slots__ = ("_fs", "_generation", "_inode", "_write", "path")

    def __init__(self, fs: MemoryFs, path: str, inode: MemoryInode, *, write: bool) -> None:
        self.path = path
        self._fs = fs
        self._inode: MemoryInode | None = inode
        self._write = write
        self._generation = fs.generation
        if write:
            inode.mapped = True

    def _open_inode(self) -> MemoryInode:
        if self._inode is None or self._generation != self._fs.generation:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), self.path)
        return self._inode

    @property
    def buffer(self) -> bytearray:
        return bytearray() if self._inode is None else self._inode.data

    @property
    def size(self) -> int:
        return len(self.buffer)

    def resize(self, size: int) -> None:
        with self._fs.mutex:
            inode = self._open_inode()
            if size == len(inode.data):
                return
            self._fs.before("resize", self.path, mutates=True)
            self._fs.grow_within_capacity(inode, size, self.path)
            inode.truncate(size)
            inode.allocated = size

    def reserve(self, start: int, end: int) -> int:
        del start
        with self._fs.mutex:
            self._open_inode()
            self._fs.before("reserve", self.path)
            return end

    def flush(self) -> None:
        with self._fs.mutex:
            inode = self._open_inode()
            self._fs.sync(inode, lambda: self._fs.before("flush", self.path))

    def close(self) -> None:
        self._inode = None


class MemoryLock:
    """Of a file, under whatever name it goes."""

    __slots__ = ("_fs", "_inode")

    def __init__(self, fs: MemoryFs, inode: MemoryInode) -> None:
        self._fs = fs
        self._inode = inode

    def release(self) -> None:
        self._fs.locked.discard(self._inode)
