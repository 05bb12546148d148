"""Lines of files, read once or followed as by `tail -F`, through rotation by rename and by truncation.

A line is complete when its newline is written. The rest after the last newline is a line once the file has been
rotated, or at the end of a file that is not followed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from errno import ENOENT
from typing import Final, NamedTuple

from seglog.core.errors import RequestFailedError
from seglog.core.fs import File, Fs, OsFs, write_atomically

_CHUNK: Final = 1 << 20
_LONGEST: Final = 64 << 20
"""Bytes of a line, so that a file without newlines does not fill the memory."""


class FilePosition(NamedTuple):
    """The inode of a file, and the position after the last line that was read."""

    inode: int
    position: int


class FileLine(NamedTuple):
    """A line without its newline; ``end`` is where the next one begins."""

    data: bytes
    path: str
    end: FilePosition


class FollowedFile:
    """A file, and the files that replace it at its path."""

    def __init__(self, path: str, *, at: FilePosition | None = None, from_end: bool = False) -> None:
        self._path = path
        self._fs: Fs = OsFs()
        self._file: File | None = None
        self._inode = 0
        self._position = 0
        self._rest = b""
        self._from_end = from_end
        self._at = at

    def lines(self) -> Iterator[FileLine]:
        """The lines written since the last call."""
        while True:
            if self._file is None and not self._open():
                return
            yield from self._read()
            if not self._has_gone():
                return
            # The writer may have appended to the old file between the read and this check.
            yield from self._read()
            yield from self.rest()
            self.close()

    def whole(self) -> Iterator[FileLine]:
        """All lines of the file, once. Raises FileNotFoundError."""
        if not self._open():
            raise FileNotFoundError(ENOENT, os.strerror(ENOENT), self._path)
        yield from self._read()
        yield from self.rest()
        self.close()

    def rest(self) -> Iterator[FileLine]:
        """The rest after the last newline, as a line."""
        if self._rest:
            data, self._rest = self._rest, b""
            self._position += len(data)
            yield FileLine(data, self._path, FilePosition(self._inode, self._position))

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self) -> bool:
        try:
            before = _inode(self._path)
            file = self._fs.open(self._path, write=False)
            self._inode = _inode(self._path)
        except FileNotFoundError:
            self._from_end = False  # a file created later is read from its start
            return False
        if before != self._inode:  # rotated between the two calls: either file may be open
            file.close()
            return False
        self._file, size = file, file.size()
        self._position = 0
        self._rest = b""
        if self._at is not None and self._at.inode == self._inode and self._at.position <= size:
            self._position = self._at.position
        elif self._from_end:
            self._position = size
        self._at, self._from_end = None, False
        return True

    def _read(self) -> Iterator[FileLine]:
        assert self._file is not None
        while True:
            at = self._position + len(self._rest)
            if self._file.size() < at:  # truncated and rewritten (copytruncate)
                self._position = at = 0
                self._rest = b""
            data = self._file.pread(_CHUNK, at)
            if not data:
                return
            *whole, self._rest = (self._rest + data).split(b"\n")
            for line in whole:
                self._position += len(line) + 1
                yield FileLine(line, self._path, FilePosition(self._inode, self._position))
            if len(self._rest) > _LONGEST:
                raise RequestFailedError(f"{self._path}: no newline within {_LONGEST} bytes from {self._position} on")

    def _has_gone(self) -> bool:
        """Whether the path has another file. If it has none, the writer may still use the old file."""
        try:
            return _inode(self._path) != self._inode
        except FileNotFoundError:
            return False


def _inode(path: str) -> int:
    return os.stat(path).st_ino


class PositionFile:
    """A JSON file with the position up to which each followed file was sent. It is replaced atomically."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._fs: Fs = OsFs()
        self._places: dict[str, FilePosition] = {}
        self._is_saved = True

    def load(self) -> None:
        try:
            document = json.loads(self._fs.read(self._path))
            self._places = {
                name: FilePosition(int(inode), int(position)) for name, (inode, position) in document.items()
            }
        except FileNotFoundError:
            return
        except (ValueError, TypeError, AttributeError) as error:
            raise RequestFailedError(f"{self._path} is not a file of positions: remove it to start again") from error

    def of(self, path: str) -> FilePosition | None:
        return self._places.get(path)

    def delivered(self, path: str, place: FilePosition) -> None:
        self._is_saved = False
        self._places[path] = place

    def save(self) -> None:
        if not self._is_saved:
            write_atomically(self._fs, self._path, json.dumps(self._places).encode())
            self._is_saved = True
