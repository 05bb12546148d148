"""Replaces files of a partition. A crash at any step leaves each of them old or new, and all old ones saved.

::

    .seglog/backup-<ms since 1970>/00000000000000000000.log             the file before, byte for byte
    .seglog/backup-<ms since 1970>/00000000000000000000.log.from-4711   or, if only its end was cut, that end
    .seglog/staging/00000000000000000000.log                            the new file until it is whole; then renamed

A log loses its ``.index`` before it changes and gets a new one after. A Kafka or seglog that opens the partition in
between sees a log without an index, and rebuilds all its indexes.
"""

from __future__ import annotations

import os.path
from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import Final

from seglog.core.clock import Clock
from seglog.core.fs import File, Fs
from seglog.core.types import Buffer

_CHUNK: Final = 4 << 20
BACKUP: Final = "backup-"
STAGING: Final = "staging"


class FileReplacement:
    """Replaces files of one directory; copies go to ``own``, a partition's ``.seglog``."""

    def __init__(self, fs: Fs, directory: str, own: str, clock: Clock) -> None:
        self._fs = fs
        self._directory = directory
        self._own = own
        self._clock = clock
        self._saved: set[str] = set()
        self.backup: str | None = None

    def save(self, path: str, start: int = 0) -> None:
        """Back up the bytes of a file from ``start`` on, once."""
        fs, name = self._fs, os.path.basename(path)
        if name in self._saved or not fs.exists(path):
            return
        target = os.path.join(self._backup(), f"{name}.from-{start}" if start else name)
        with closing(fs.open(path, write=False)) as file:
            self._write(target, read_pieces(file, [(start, file.size())]))
        fs.fsync_dir(self._backup())
        self._saved.add(name)

    def replace(self, path: str, content: Iterable[Buffer]) -> None:
        """Back up ``path``, and put a new file in its place."""
        self.install(path, self.stage(path, content))

    def stage(self, path: str, content: Iterable[Buffer]) -> str:
        """Write the new content of ``path`` beside it; return where it is."""
        staging = self._make(os.path.join(self._make(self._own), STAGING))
        target = os.path.join(staging, os.path.basename(path))
        self._write(target, content)
        return target

    def install(self, path: str, staged: str) -> None:
        self.save(path)
        self._fs.rename(staged, path)
        self._fs.fsync_dir(self._directory)

    def remove(self, path: str) -> None:
        """Back up a file and delete it."""
        if self._fs.exists(path):
            self.save(path)
            self._fs.unlink(path)
            self._fs.fsync_dir(self._directory)

    def cut(self, path: str, size: int) -> None:
        """End a file at ``size``; the caller has backed up the rest."""
        with closing(self._fs.open(path)) as file:
            file.truncate(size)
            file.fsync()

    def finish(self) -> None:
        """Remove staged files that are left; the directories there belong to jobs (`seglog.storage.adopt`)."""
        staging = os.path.join(self._own, STAGING)
        if self._fs.exists(staging):
            for name in self._fs.listdir(staging):
                if not self._fs.stat(os.path.join(staging, name)).is_dir:
                    self._fs.unlink(os.path.join(staging, name))
            if not self._fs.listdir(staging):
                self._fs.rmdir(staging)

    def _write(self, path: str, content: Iterable[Buffer]) -> None:
        with closing(self._fs.open(path, create=True)) as file:
            file.truncate(0)
            position = 0
            for data in content:
                file.pwrite(data, position)
                position += len(data)
            file.fsync()

    def _backup(self) -> str:
        if self.backup is None:
            own, now_ms = self._make(self._own), self._clock.now_ms()
            while self._fs.exists(os.path.join(own, f"{BACKUP}{now_ms}")):
                now_ms += 1
            self.backup = self._make(os.path.join(own, f"{BACKUP}{now_ms}"))
        return self.backup

    def _make(self, path: str) -> str:
        if not self._fs.exists(path):
            self._fs.mkdir(path)
            self._fs.fsync_dir(os.path.dirname(path))
        return path


def read_pieces(file: File, pieces: Iterable[tuple[int, int]]) -> Iterator[bytes]:
    """The bytes of a file from start to end of each piece, some MiB at a time."""
    for start, end in pieces:
        position = start
        while position < end:
            data = file.pread(min(_CHUNK, end - position), position)
            if not data:
                break
            yield data
            position += len(data)
