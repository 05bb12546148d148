"""One segment of a partition's log: a ``.log`` file and its indexes (``LogSegment.java``).

A segment is written by one thread at its end only. Readers hold positions below `size`, which grows after the bytes are
there, so that no reader waits for the writer.
"""

from __future__ import annotations

import os.path
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, Protocol

from crc32c import crc32c

from seglog.core.errors import CorruptBatchError, CorruptError, TooLargeError
from seglog.core.fs import File, Fs, NoSpaceError
from seglog.core.types import MAX_INT32, NO_TIMESTAMP, Buffer
from seglog.records import any_magic
from seglog.records.batch import BATCH_PREFIX, LOG_OVERHEAD, BatchHeader, Entry, read_header
from seglog.records.record import Record
from seglog.storage.formats.batch_walk import HEADERS, walk
from seglog.storage.formats.paths import SegmentPaths, segment_paths
from seglog.storage.log.index import OffsetIndex, TimeIndex, TimestampOffset
from seglog.storage.log.manifest import CHAINED, SealedSegment
from seglog.storage.log.segment_files import GoneFile, SealedFile
from seglog.storage.log.transaction_index import TxnIndex

_FIRST_STEP_BACK: Final = 64 << 10
_LAST_STEP_BACK: Final = 1 << 20
LOOKUP_LIMIT: Final = 64 << 20
"""Decompressed bytes of a batch in which a time is looked for: 8 KB may become 256 MB."""


class SegmentConfig(NamedTuple):
    """The part of a topic's configuration that a segment needs: sizes in bytes."""

    index_bytes: int
    index_interval: int


class BatchLocation(NamedTuple):
    """A batch found in a segment: where it starts, its size, and the last offset in it."""

    position: int
    size: int
    last_offset: int


class SegmentIndex(Protocol):
    """A file beside the log, which is renamed, moved, flushed and deleted with it."""

    def reset(self) -> None:
        """Forget everything: recovery notes every batch again."""

    def truncate_to(self, offset: int) -> None:
        """Drop the entries at or above ``offset``."""

    def flush(self) -> None:
        """fsync."""

    def rename(self, path: str) -> None:
        """Give the file another name."""

    def moved_to(self, path: str) -> None:
        """The partition's directory was renamed."""

    def unlink(self) -> None:
        """Remove the file, if there is one."""


class Segment:
    """An open segment.

    Invariants: ``size`` is the length of the log file up to which batches are whole; every index entry points at the
    start of one of them; ``max_timestamp`` is -1 or the largest of any batch, ``max_timestamp_offset`` the last offset
    of the earliest batch that has it.
    """

    __slots__ = (
        "_chain",
        "_first_timestamp",
        "_fs",
        "_indexes",
        "_interval",
        "_preallocated",
        "_since_entry",
        "base_offset",
        "created_ms",
        "directory",
        "log",
        "max_timestamp",
        "max_timestamp_offset",
        "offset_index",
        "paths",
        "size",
        "suffix",
        "time_index",
        "txn_index",
    )  # fmt: skip

    def __init__(
        self,
        fs: Fs,
        directory: str,
        base_offset: int,
        config: SegmentConfig,
        *,
        now_ms: int,
        active: bool,
        suffix: str = "",
        is_new: bool = False,
    ) -> None:
        """Open or create the segment; an ``active`` one keeps its log file open, and its indexes have room to grow.
        ``is_new``: the directory is new and has none of the segment's files, so it is not searched for them."""
        # Until a segment has its place in a log, one thread has it.
        self._fs = fs
        self.directory = directory  # guarded by the log's lock
        self.base_offset = base_offset
        self.suffix = suffix  # guarded by the log's lock
        plain = segment_paths(directory, base_offset)
        self.paths = SegmentPaths(base_offset, *(path + suffix for path in plain[1:]))  # guarded by the log's lock
        self._interval = config.index_interval
        self._since_entry = 0  # guarded by the log's lock
        self._preallocated = 0  # guarded by the log's lock
        if active or not fs.exists(self.paths.log):
            self.log: File = fs.open(self.paths.log, create=True)  # guarded by the log's lock
            self.size = 0 if is_new else self.log.size()  # guarded by the log's lock
        else:
            self.log = SealedFile(fs, self.paths.log)
            self.size = fs.stat(self.paths.log).size
        self._chain: int | None = None if self.size else 0  # guarded by the log's lock
        room = config.index_bytes
        self.offset_index = OffsetIndex(fs, self.paths.offset_index, base_offset, room, active=active, is_new=is_new)
        self.time_index = TimeIndex(fs, self.paths.timeindex, base_offset, room, active=active, is_new=is_new)
        self.txn_index = TxnIndex(fs, self.paths.txnindex, base_offset, is_new=is_new)
        self._indexes: tuple[SegmentIndex, ...] = (self.offset_index, self.time_index, self.txn_index)
        """In the order of `SegmentPaths.derived`."""
        self.max_timestamp, self.max_timestamp_offset = self.time_index.last  # guarded by the log's lock
        self.created_ms = now_ms  # guarded by the log's lock
        self._first_timestamp: int | None = None  # guarded by the log's lock

    # Writing

    def append(self, data: Buffer, batches: Sequence[BatchHeader]) -> None:
        """Write whole batches at the end: one write, then one look per batch for an index entry (Kafka 4's rule).

        A batch for which an index has no room gets no entry: it is found from the one before, and the next append
        rolls. `NoSpaceError`: then nothing of them is in the file.
        """
        position = self.size
        try:
            self.log.pwrite(data, position)
        except NoSpaceError:
            self.log.truncate(position)
            self.log.truncate(max(self._preallocated, position))
            raise
        at, chain, since_entry = 0, self._chain, self._since_entry
        for base_offset, length, _, _, _, _, delta, _, max_timestamp, _, _, _, _ in batches:
            last_offset = base_offset + delta
            if max_timestamp > self.max_timestamp:
                self.max_timestamp = max_timestamp
                self.max_timestamp_offset = last_offset
            if position == 0:
                self._first_timestamp = max_timestamp
            if since_entry > self._interval:
                if not self.is_index_full:
                    self.offset_index.append(last_offset, position)
                    self.time_index.maybe_append(self.max_timestamp, self.max_timestamp_offset)
                since_entry = 0
            if chain is not None:
                chain = crc32c(data[at : at + CHAINED], chain)
            size = length + LOG_OVERHEAD
            since_entry += size
            position += size
            at += size
        self.size, self._chain, self._since_entry = position, chain, since_entry

    def reset_indexes(self) -> None:
        """Forget the indexes, the largest timestamp and the abort list: recovery is about to note every batch again."""
        for index in self._indexes:
            index.reset()
        self.max_timestamp, self.max_timestamp_offset = NO_TIMESTAMP, self.base_offset
        self._first_timestamp = None
        self._since_entry = 0

    def recovered_timestamp(self, timestamp: int, last_offset: int) -> None:
        """Recovery has found a batch that ends at ``last_offset`` and has the largest timestamp so far."""
        self.max_timestamp, self.max_timestamp_offset = timestamp, last_offset

    def become_inactive(self) -> None:
        """The last entry of the time index, and no room left to grow; the log file is open only while it is read.

        `NoSpaceError`: then it is active still.
        """
        self.time_index.maybe_append(self.max_timestamp, self.max_timestamp_offset)
        try:
            self.offset_index.trim()
            self.time_index.trim()
            self.txn_index.write()
        except NoSpaceError:
            self.offset_index.make_room()
            self.time_index.make_room()
            raise
        self.truncate_bytes(self.size)
        if not isinstance(self.log, SealedFile):
            self.log = SealedFile(self._fs, self.paths.log, self.log)

    def become_active(self) -> None:
        """It takes appends again, or for the first time since it was opened."""
        sealed = self.log
        if isinstance(sealed, SealedFile):
            self.log = self._fs.open(self.paths.log)
            sealed.let_go()
            if self._preallocated:
                self.preallocate(self._preallocated)
        self.offset_index.make_room()
        self.time_index.make_room()

    def preallocate(self, size: int) -> None:
        """Give the file its final length now (``preallocate``), in zeros that are cut off again on roll and close."""
        self._preallocated = size
        self.log.truncate(max(size, self.size))

    def truncate_to(self, offset: int, now_ms: int) -> int:
        """Drop the batch that holds ``offset`` and all after it; returns how many bytes went."""
        found = self.locate(offset)
        for index in self._indexes:
            index.truncate_to(offset)
        self.become_active()
        cut = 0 if found is None else self.truncate_bytes(found.position)
        if self.size == 0:
            self.created_ms = now_ms
            self._first_timestamp = None
        self._since_entry = 0
        if self.max_timestamp >= 0:
            self.read_largest_timestamp()
        return cut

    def truncate_bytes(self, size: int) -> int:
        """Cut the log file, and only it, to ``size`` bytes; returns how many went."""
        cut = self.log.size() - size
        if cut > 0:
            self.log.truncate(size)
        if size != self.size:
            self.size, self._chain = size, None if size else 0
        return max(cut, 0)

    def resume(self, chain: int | None) -> None:
        """Go on with the chain of the batches that are here, as it was when the segment was closed."""
        self._chain = chain

    def recovered(self, size: int, chain: int) -> None:
        """Recovery has checked all batches: the good ones are ``size`` bytes, and their chain is ``chain``."""
        self.size, self._chain = size, chain

    def read_largest_timestamp(self) -> None:
        """Find the largest timestamp again: the time index's last, or one of a batch after it."""
        self.max_timestamp, self.max_timestamp_offset = self.time_index.last
        start = self.offset_index.lookup(self.max_timestamp_offset).position
        for header, _, _ in self.headers(start):
            if header.max_timestamp > self.max_timestamp:
                self.max_timestamp, self.max_timestamp_offset = header.max_timestamp, header.last_offset

    def complete_time_index(self) -> None:
        """Give a segment of which the time index's end may be lost its last entry again.

        A crash can undo the entry that a roll wrote, also where the log itself was flushed before. Without it records
        would not be found by time, and retention would take the segment for older than it is (KAFKA-10207).

        The indexes are fsynced if they change: the segment counts as flushed, and nothing flushes it again.
        """
        self.read_largest_timestamp()
        indexes = self.offset_index, self.time_index
        if self.max_timestamp <= self.time_index.last.timestamp and all(one.file_size == one.size for one in indexes):
            return
        self.time_index.make_room()
        self.become_inactive()
        for index in indexes:
            index.flush()

    # Reading

    def locate(self, offset: int) -> BatchLocation | None:
        """The first batch whose last offset is ``offset`` or above; None: after the end."""
        # Its own loop: every fetch runs it, and `walk` takes twice the time of a look-up.
        position, end, unpack = self.offset_index.lookup(offset).position, self.size, BATCH_PREFIX.unpack_from
        while position < end:
            chunk = self.log.pread(min(HEADERS, end - position), position)
            at, last_at = 0, len(chunk) - BATCH_PREFIX.size
            while at <= last_at:
                base, length, _, magic, _, _, delta = unpack(chunk, at)
                last = base + delta if magic == 2 else base
                if length <= 0 or not 0 <= magic <= 2:
                    reason = f"size {length} and magic {magic} cannot be"
                    raise CorruptBatchError(reason, position=position + at, file=self.paths.log, offset=base)
                if last >= offset:
                    return BatchLocation(position + at, length + LOG_OVERHEAD, last)
                at += length + LOG_OVERHEAD
            if not at:
                return None
            position += at
        return None

    def headers(self, start: int = 0, end: int | None = None) -> Iterator[tuple[BatchHeader, int, Buffer]]:
        """Walk the batches from position ``start``: header, position, and the batch's bytes, whatever its format.

        Nothing is checked but sizes and magic. Ends at ``end`` (default `size`) or before a batch that is cut off.
        """
        for entry, position, chunk in walk(self.log, start, self.size if end is None else end):
            data = chunk[entry.position : entry.position + entry.size]
            try:
                header = read_header(data) if entry.magic == 2 else any_magic.describe(data, Entry(0, *entry[1:]))
            except CorruptError as error:
                raise error.at(file=self.paths.log, base=position, offset=entry.offset) from error
            yield header, position, data

    def headers_before(self, end: int, limit: int) -> Iterator[BatchHeader]:
        """The headers of batches of format 2 before position ``end``, the last one first, from ``limit`` bytes or a
        little more. Only headers are read."""
        step, lowest = _FIRST_STEP_BACK, max(end - limit, 0)
        while end > lowest:
            start = self.offset_index.start_before(max(end - step, lowest))
            if end - start > limit:
                return  # the index is too sparse
            found = [
                read_header(data, entry.position)
                for entry, _, data in walk(self.log, start, end, window=HEADERS, whole=False)
                if entry.magic == 2
            ]
            yield from reversed(found)
            end, step = start, min(2 * step, _LAST_STEP_BACK)

    def find_timestamp(
        self, timestamp: int, from_offset: int, *, check_crcs: bool = True
    ) -> tuple[TimestampOffset, int] | None:
        """The first record from ``from_offset`` on at ``timestamp`` or later, and its leader epoch, if it is here.

        The CRC of each batch that is decoded is checked, unless ``check_crcs`` is off.
        """
        near = max(self.time_index.lookup(timestamp).offset, from_offset)
        start = self.offset_index.lookup(near).position
        for header, position, data in self.headers(start):
            if header.max_timestamp < timestamp or header.last_offset < from_offset:
                continue
            if check_crcs:
                self._check_crc(data, header, position)
            try:
                for record in self._records(data, header, position):
                    if record.timestamp >= timestamp and record.offset >= from_offset:
                        return TimestampOffset(record.timestamp, record.offset), header.leader_epoch
            except TooLargeError:  # one of its records is too large: the next reader finds it
                return TimestampOffset(timestamp, max(header.base_offset, from_offset)), header.leader_epoch
        return None

    def _check_crc(self, data: Buffer, header: BatchHeader, position: int) -> None:
        try:
            any_magic.check(data, Entry(0, header.size, header.base_offset, header.magic))
        except CorruptError as error:
            raise error.at(file=self.paths.log, base=position, offset=header.base_offset) from error

    def _records(self, data: Buffer, header: BatchHeader, position: int) -> Iterator[Record]:
        """As `decode`, one at a time, and of no more than `LOOKUP_LIMIT` decompressed bytes."""
        try:
            yield from any_magic.iterate(
                data, Entry(0, header.size, header.base_offset, header.magic), limit=LOOKUP_LIMIT
            )
        except CorruptError as error:
            raise error.at(file=self.paths.log, base=position, offset=header.base_offset) from error

    def decode(self, data: Buffer, header: BatchHeader, position: int) -> list[Record]:
        """The records of one batch of any format; errors carry the file and the position."""
        entry = Entry(0, header.size, header.base_offset, header.magic)
        try:
            return any_magic.decode(data, entry)
        except CorruptError as error:
            raise error.at(file=self.paths.log, base=position, offset=header.base_offset) from error

    def next_offset(self) -> int:
        """The offset after the last batch, found from the last index entry on."""
        start = self.offset_index.lookup(self.offset_index.last_offset).position
        following = self.base_offset
        for header, _, _ in self.headers(start):
            following = header.next_offset
        return following

    def tail(self) -> tuple[int, int]:
        """The offset after the last batch, and that batch's CRC, found from the last index entry on."""
        start = self.offset_index.lookup(self.offset_index.last_offset).position
        following, crc = self.base_offset, 0
        for header, _, _ in self.headers(start):
            following, crc = header.next_offset, header.crc
        return following, crc

    def sealed(self) -> SealedSegment:
        """The manifest entry of this segment, which takes no more appends."""
        following, crc = self.tail()
        return SealedSegment(self.base_offset, following, self.size, crc, self._chain)

    # Facts for rolling and retention

    def holds(self, offset: int) -> bool:
        """Whether ``offset`` can be written relative to the base offset."""
        return 0 <= offset - self.base_offset <= MAX_INT32

    def rolling_timestamp(self) -> int:
        """The largest timestamp of the first batch, from which ``segment.ms`` counts; -1 in an empty segment."""
        if self._first_timestamp is None and self.size:
            for header, _, _ in self.headers(0, self.size):
                self._first_timestamp = header.max_timestamp
                break
        return NO_TIMESTAMP if self._first_timestamp is None else self._first_timestamp

    @property
    def is_index_full(self) -> bool:
        """Whether one of the indexes takes no more entries (but the one that a roll writes)."""
        offsets, times = self.offset_index, self.time_index
        return offsets.count >= offsets.max_count or times.count >= times.max_count - 1

    def largest_timestamp(self) -> int:
        """The largest record timestamp, else the file's time of change (``LogSegment.largestTimestamp``)."""
        return self.max_timestamp if self.max_timestamp >= 0 else self._fs.stat(self.paths.log).mtime_ms

    # Life

    def flush(self) -> None:
        """fsync the log and its indexes."""
        self.flush_records()
        for index in self._indexes:
            index.flush()

    def flush_records(self) -> None:
        """fsync the log alone, which takes no room."""
        self.log.fsync()

    def rename(self, suffix: str) -> None:
        """Give all files of the segment another suffix after their names ("" for none)."""
        plain = segment_paths(self.directory, self.base_offset)
        renamed = SegmentPaths(self.base_offset, *(path + suffix for path in plain[1:]))
        if isinstance(self.log, SealedFile):
            self.log.rename(renamed.log)
        else:
            self._fs.rename(self.paths.log, renamed.log)
        for index, path in zip(self._indexes, renamed.derived, strict=False):  # a snapshot is the log's
            index.rename(path)
        self.paths, self.suffix = renamed, suffix

    def moved_to(self, directory: str) -> None:
        """The partition's directory was renamed."""
        self.directory = directory
        self.paths = SegmentPaths(
            self.base_offset, *(os.path.join(directory, os.path.basename(path)) for path in self.paths[1:])
        )
        for index, path in zip(self._indexes, self.paths.derived, strict=False):
            index.moved_to(path)
        if isinstance(self.log, SealedFile):
            self.log.moved_to(self.paths.log)

    def close(self, *, write: bool = True) -> None:
        """Close the files, trimmed if ``write``. Nothing is fsynced: see `flush`."""
        if write and not isinstance(self.log, SealedFile):
            self.become_inactive()
        self.offset_index.close()
        self.time_index.close()
        self.log.close()

    def lose_name(self) -> None:
        """Another file was renamed to the log file's path. Readers keep this one until they are done."""
        self.log = GoneFile(self.paths.log)

    def delete(self) -> None:
        """Remove the files. Readers keep the log file until they are done."""
        log, self.log = self.log, GoneFile(self.paths.log)
        if isinstance(log, SealedFile):
            log.unlink()
        elif self._fs.exists(self.paths.log):
            self._fs.unlink(self.paths.log)
        for index in self._indexes:
            index.unlink()
