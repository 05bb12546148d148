"""The broker's side of ``seglog.watermarks``: who reads its directory sees here, at once, up to where.

The file is mapped, and each partition has the place of its two numbers in it (`Replica.mark`): an append stores them,
in a tenth of a microsecond, and no timer, no write and no change of a directory is needed. On the event loop; what
touches the file's system, to make it and when it grows twice as large, takes a fraction of a millisecond.
"""

from __future__ import annotations

import logging
import os.path
from typing import Final

from seglog.core.fs import Fs, Lock, MappedFile
from seglog.replication.replica import NOT_PUBLISHED, Replica
from seglog.storage.formats.watermarks import (
    END_AT,
    GONE,
    HEAD_SIZE,
    WATERMARKS,
    Watermark,
    encode_entry,
    encode_head,
)

_log: Final = logging.getLogger("seglog.broker")
_LEAST: Final = 4096
_WORD: Final = 8


class Watermarks:
    """The file of one directory; `add` and `remove` with its replicas.

    Where it cannot be written, on a full disk, there is none: readers then go by Kafka's checkpoint, seconds behind.
    """

    def __init__(self, fs: Fs, directory: str) -> None:
        self._fs = fs
        self._path = os.path.join(directory, WATERMARKS)
        self._partitions: set[Replica] = set()
        self._file: MappedFile | None = None
        self._lock: Lock | None = None
        self._words = memoryview(b"")
        self._end = 0
        """Behind the last entry, counted in words of 8 bytes, as everything in ``_words`` is."""

    def open(self) -> None:
        """Make the file, in place of what an earlier broker has left."""
        self._make_anew()

    def add(self, partition: Replica) -> None:
        """A replica is here; nothing if it was already."""
        if partition not in self._partitions:
            self._partitions.add(partition)
            self._put(partition)

    def remove(self, partition: Replica) -> None:
        """It is served no more. Whoever still appends to it is no longer told of."""
        if partition in self._partitions:
            self._partitions.discard(partition)
            partition.mark[0] = GONE
            partition.mark = NOT_PUBLISHED

    def close(self) -> None:
        """From here on nobody says how far readers may go."""
        self._let_go()
        try:
            self._fs.unlink(self._path)
        except OSError as error:
            _log.debug("%s is left behind: %s", self._path, error)

    def _put(self, partition: Replica) -> None:
        if self._file is None:
            return
        entry = memoryview(_entry(partition)).cast("q")
        first, self._end = self._end, self._end + len(entry)
        if self._end > len(self._words):
            self._make_anew()
            return
        self._words[first : self._end] = entry
        partition.mark = self._words[first : first + 2]
        self._words[END_AT] = self._end * _WORD

    def _make_anew(self) -> None:
        """A file with twice the room that is needed, locked before anybody sees it."""
        entries = [_entry(partition) for partition in self._partitions]
        end = HEAD_SIZE + sum(map(len, entries))
        try:
            file, lock = self._put_in_place(encode_head(end) + b"".join(entries))
        except OSError as error:
            _log.warning("%s cannot be written, so readers of the directory are seconds behind: %s", self._path, error)
            self._let_go()
            return
        words = memoryview(file.buffer).cast("q")
        at = HEAD_SIZE // _WORD
        for partition, entry in zip(self._partitions, entries, strict=True):
            partition.mark = words[at : at + 2]
            at += len(entry) // _WORD
        self._close_file()
        self._file, self._lock, self._words, self._end = file, lock, words, at

    def _put_in_place(self, data: bytes) -> tuple[MappedFile, Lock]:
        temporary = self._path + ".tmp"
        file = self._fs.map(temporary, size=max(_LEAST, 2 * len(data)))
        try:
            file.reserve(0, file.size)  # or a store would kill us on a full disk
            file.buffer[: len(data)] = data
            lock = self._fs.lock(temporary)
            try:
                self._fs.rename(temporary, self._path)
            except BaseException:
                lock.release()
                raise
        except BaseException:
            file.close()
            raise
        return file, lock

    def _let_go(self) -> None:
        for partition in self._partitions:
            partition.mark = NOT_PUBLISHED
        self._close_file()

    def _close_file(self) -> None:
        self._words = memoryview(b"")
        if self._file is not None:
            self._file.close()
            self._file = None
        if self._lock is not None:
            self._lock.release()
            self._lock = None


def _entry(partition: Replica) -> bytes:
    log = partition.log
    return encode_entry(partition.topic_partition, Watermark(log.high_watermark, log.last_stable_offset))
