"""Publishes high watermarks in the file ``seglog.watermarks``, so that readers of the directory follow without delay.

The file is mapped, and each partition has a view of its two numbers (`Replica.publish_in`). An append stores them in a
tenth of a microsecond: no timer, no write, no directory change. All methods run on the event loop. Creating the file,
and doubling it, take a fraction of a millisecond.
"""

from __future__ import annotations

import logging
import os.path
from collections.abc import Mapping
from typing import Final

from seglog.broker.stray_reports import StrayReports
from seglog.cluster.generation import SeenGenerations
from seglog.core.fs import Fs, Lock, MappedFile
from seglog.replication.replica import NOT_PUBLISHED, Replica
from seglog.storage.directory.log_dir import LogDir
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
    """The file of one directory; `add` and `remove` follow its replicas.

    If a full disk prevents the file, readers fall back on Kafka's checkpoint, which is seconds old.
    """

    def __init__(self, fs: Fs, directory: str) -> None:
        self._fs = fs
        self._path = os.path.join(directory, WATERMARKS)
        self._partitions: dict[Replica, memoryview] = {}
        """Each with the words where it stores its watermarks."""
        self._file: MappedFile | None = None
        self._lock: Lock | None = None
        self._words = memoryview(b"")
        self._end = 0
        """The end of the last entry. All positions count words of 8 bytes."""

    def open(self) -> None:
        """Create the file. It replaces that of an earlier broker."""
        self._make_anew()

    def add(self, partition: Replica) -> None:
        """Publish a replica, unless it is published already."""
        if partition not in self._partitions:
            self._partitions[partition] = NOT_PUBLISHED
            self._put(partition)

    def remove(self, partition: Replica) -> None:
        """Stop publishing a replica. Later appends to it are not published."""
        words = self._partitions.pop(partition, None)
        if words is not None:
            words[0] = GONE
            partition.publish_in(NOT_PUBLISHED)

    def close(self) -> None:
        """Remove the file: readers no longer trust its watermarks."""
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
        self._publish(partition, self._words[first : first + 2])
        self._words[END_AT] = self._end * _WORD

    def _make_anew(self) -> None:
        """A file with twice the room needed, locked before readers see it."""
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
            self._publish(partition, words[at : at + 2])
            at += len(entry) // _WORD
        self._close_file()
        self._file, self._lock, self._words, self._end = file, lock, words, at

    def _put_in_place(self, data: bytes) -> tuple[MappedFile, Lock]:
        temporary = self._path + ".tmp"
        file = self._fs.map(temporary, size=max(_LEAST, 2 * len(data)))
        try:
            file.reserve(0, file.size)  # on a full disk, a store into a hole would kill the process
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
            self._publish(partition, NOT_PUBLISHED)
        self._close_file()

    def _publish(self, partition: Replica, words: memoryview) -> None:
        self._partitions[partition] = words
        partition.publish_in(words)

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


class PublishedReplicas:
    """A `seglog.replication.replicas.ReplicaObserver`: it publishes the replicas' watermarks in each directory's file,
    has strays counted, and stores the generation before logs are created or removed."""

    def __init__(self, watermarks: Mapping[LogDir, Watermarks], strays: StrayReports, seen: SeenGenerations) -> None:
        self._watermarks = watermarks
        self._strays = strays
        self._seen = seen

    def shown(self, replica: Replica) -> None:
        self._watermarks[replica.directory].add(replica)

    def hidden(self, replica: Replica) -> None:
        self._watermarks[replica.directory].remove(replica)

    def strays_changed(self) -> None:
        self._strays.changed()

    async def before_changes(self) -> None:
        await self._seen.note()
