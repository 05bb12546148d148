"""Lines of files, whole or for ever, as `tail -F` reads them: through rotation by rename and by truncation.

A line is given out when its newline is there; what is left without one when the file was rotated away, or at the end of
a file that is not followed, is a line as well.
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
"""Bytes of a line; a file without newlines would fill the memory."""


class Place(NamedTuple):
    """How far a file was read: the file by its number, and the position behind the last line."""

    inode: int
    position: int


class Line(NamedTuple):
    """A line without its newline; ``end`` is where the next one begins."""

    data: bytes
    path: str
    end: Place


class FollowedFile:
    """A file by its path, and what follows it there."""

    def __init__(self, path: str, *, at: Place | None = None, from_end: bool = False) -> None:
        self._path = path
        self._fs: Fs = OsFs()
        self._file: File | None = None
        self._inode = 0
        self._position = 0
        self._rest = b""
        self._from_end = from_end
        self._at = at

    def lines(self) -> Iterator[Line]:
        """What is there now. To be called again for more."""
        while True:
            if self._file is None and not self._open():
                return
            yield from self._read()
            if not self._has_gone():
                return
            # Between the read and this look, whoever writes may have written to the old file.
            yield from self._read()
            yield from self.rest()
            self.close()

    def whole(self) -> Iterator[Line]:
        """All that is there, once. Raises FileNotFoundError."""
        if not self._open():
            raise FileNotFoundError(ENOENT, os.strerror(ENOENT), self._path)
        yield from self._read()
        yield from self.rest()
        self.close()

    def rest(self) -> Iterator[Line]:
        """What stands behind the last newline."""
        if self._rest:
            data, self._rest = self._rest, b""
            self._position += len(data)
            yield Line(data, self._path, Place(self._inode, self._position))

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
            self._from_end = False  # what comes later is new, all of it
            return False
        if before != self._inode:  # rotated in this moment: which of the two is open, nobody knows
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

    def _read(self) -> Iterator[Line]:
        assert self._file is not None
        while True:
            at = self._position + len(self._rest)
            if self._file.size() < at:  # cut, and written anew (copytruncate)
                self._position = at = 0
                self._rest = b""
            data = self._file.pread(_CHUNK, at)
            if not data:
                return
            *whole, self._rest = (self._rest + data).split(b"\n")
            for line in whole:
                self._position += len(line) + 1
                yield Line(line, self._path, Place(self._inode, self._position))
            if len(self._rest) > _LONGEST:
                raise RequestFailedError(f"{self._path}: no newline within {_LONGEST} bytes from {self._position} on")

    def _has_gone(self) -> bool:
        """Whether another file is at the path. None at all: it will come; the old one may still be written to."""
        try:
            return _inode(self._path) != self._inode
        except FileNotFoundError:
            return False


def _inode(path: str) -> int:
    return os.stat(path).st_ino


class Positions:
    """How far each file was delivered, in a file of JSON, which is replaced as a whole."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._fs: Fs = OsFs()
        self._places: dict[str, Place] = {}
        self._is_saved = True

    def load(self) -> None:
        try:
            document = json.loads(self._fs.read(self._path))
            self._places = {name: Place(int(inode), int(position)) for name, (inode, position) in document.items()}
        except FileNotFoundError:
            return
        except (ValueError, TypeError, AttributeError) as error:
            raise RequestFailedError(f"{self._path}: no positions of files: remove it to begin anew") from error

    def of(self, path: str) -> Place | None:
        return self._places.get(path)

    def delivered(self, path: str, place: Place) -> None:
        self._is_saved = False
        self._places[path] = place

    def save(self) -> None:
        if not self._is_saved:
            write_atomically(self._fs, self._path, json.dumps(self._places).encode())
            self._is_saved = True
