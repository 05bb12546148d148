"""What a `MemoryFs` hands out: open files, maps and locks, of no use after a crash."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from seglog.core.types import Buffer
from seglog.testing.memory_disk import MemoryInode

if TYPE_CHECKING:
    from seglog.testing.memory_fs import MemoryFs


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
