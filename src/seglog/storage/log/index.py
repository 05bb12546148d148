"""The sparse indexes of a segment: offset -> position and timestamp -> offset.

Both are arrays of fixed entries, big-endian, without header or checksum (``OffsetIndex.java``, ``TimeIndex.java``)::

    .index      8 bytes:  relativeOffset int32 (offset - base offset) | position int32
    .timeindex 12 bytes:  timestamp int64 | relativeOffset int32

The index of the active segment is pre-allocated with zeros to ``segment.index.bytes`` and trimmed on roll and close. An
entry's offset is the *last* offset of a batch and its position that batch's *start*. In the time index an entry (T, O)
says: T is the largest timestamp up to O, and O is the last offset of the earliest batch that has it.

Indexes are derived from the log: where one is missing or wrong, recovery makes it again. They are not memory-mapped: a
touch of a page that has no place on a full disk, or that another program has cut off, ends the process (SIGBUS). They
are read whole when an offset is looked up, and stay in memory while they are among those that were used last.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import closing
from struct import Struct
from typing import Final, NamedTuple

from seglog.core.errors import CorruptIndexError
from seglog.core.fs import Fs
from seglog.core.lru import Lru
from seglog.core.types import NO_TIMESTAMP
from seglog.storage.log.segment_files import DerivedFile

OFFSET_ENTRY: Final = Struct(">ii")
TIME_ENTRY: Final = Struct(">qi")
assert (OFFSET_ENTRY.size, TIME_ENTRY.size) == (8, 12)

IndexBytes = bytes | bytearray | memoryview


_new: Final = tuple.__new__
"""Makes a named tuple in half the time that its own constructor takes."""


class OffsetPosition(NamedTuple):
    """A batch's last offset and where the batch starts, in bytes."""

    offset: int
    position: int


class TimestampOffset(NamedTuple):
    """A timestamp in ms and an offset that has to do with it."""

    timestamp: int
    offset: int


def last_true(count: int, holds: Callable[[int], bool]) -> int:
    """The last of ``range(count)`` for which ``holds``, -1 if none; true must not come after false."""
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            low = middle + 1
        else:
            high = middle
    return low - 1


def count_offset_entries(data: IndexBytes) -> int:
    """Entries of an ``.index`` before the zeros of its pre-allocated rest.

    No entry has relative offset 0: the first one is of a batch after another one.
    """
    unpack = OFFSET_ENTRY.unpack_from
    return last_true(len(data) // 8, lambda slot: unpack(data, slot * 8)[0] != 0) + 1


def count_time_entries(data: IndexBytes) -> int:
    """Entries of a ``.timeindex`` before the zeros of its pre-allocated rest.

    Timestamps rise, so only the first entry can be of time 0; alone in its file, it is one.
    """
    unpack = TIME_ENTRY.unpack_from
    if len(data) == TIME_ENTRY.size:
        return 1
    return last_true(len(data) // 12, lambda slot: unpack(data, slot * 12) != (0, 0)) + 1


def find_offset(data: IndexBytes, count: int, base_offset: int, offset: int) -> OffsetPosition:
    """The last of ``count`` entries at or below ``offset``, else the segment's start."""
    unpack = OFFSET_ENTRY.unpack_from
    target = offset - base_offset
    slot = last_true(count, lambda slot: unpack(data, slot * 8)[0] <= target)
    if slot < 0:
        return OffsetPosition(base_offset, 0)
    relative, position = unpack(data, slot * 8)
    return OffsetPosition(base_offset + relative, position)


def find_timestamp(data: IndexBytes, count: int, base_offset: int, timestamp: int) -> TimestampOffset:
    """The last of ``count`` entries at or before ``timestamp``, else (-1, base offset)."""
    unpack = TIME_ENTRY.unpack_from
    slot = last_true(count, lambda slot: unpack(data, slot * 12)[0] <= timestamp)
    if slot < 0:
        return TimestampOffset(NO_TIMESTAMP, base_offset)
    found, relative = unpack(data, slot * 12)
    return TimestampOffset(found, base_offset + relative)


_WRITTEN_AT: Final = 256
"""Entries that are written at a time. A process that ends without notice loses fewer; recovery adds them again."""
_IN_MEMORY: Final = 64 << 20
"""Bytes of indexes that stay in memory, of all logs: those of some 30 GiB of segments."""
_loaded: Final = Lru[bytearray](lambda: _IN_MEMORY)
_keys: Final = itertools.count()


class _SegmentIndex(ABC):
    """Shared by both kinds: a file, the number of entries in use, and the number that it has room for.

    Invariant: 0 <= count <= max_count. One thread writes, any number look up; the file's lock is held by look-ups, and
    by a writer that removes entries.
    """

    ENTRY: Struct

    __slots__ = ("_file", "_key", "base_offset", "count", "max_bytes", "max_count")

    def __init__(
        self, fs: Fs, path: str, base_offset: int, max_bytes: int, *, active: bool, is_new: bool = False
    ) -> None:
        """``is_new``: there is no such file. It is made with room for an active segment."""
        entry = self.ENTRY.size
        self.base_offset = base_offset
        self.max_bytes = max_bytes // entry * entry
        self._key = next(_keys)
        file_size, self.count, last = (self._make(fs, path), 0, b"") if is_new else self._look_at(fs, path)
        self._file = DerivedFile(fs, path, file_size, self.count * entry, write_at=_WRITTEN_AT * entry, is_new=is_new)
        self._set_last(last)
        self.max_count = file_size // entry
        if active:
            self.make_room()

    def _make(self, fs: Fs, path: str) -> int:
        """Make the file, and return its size."""
        with closing(fs.open(path, create=True)) as file:
            file.truncate(self.max_bytes)
        return self.max_bytes

    def _look_at(self, fs: Fs, path: str) -> tuple[int, int, bytes]:
        """The file's size, how many entries it has before the zeros at its end, and the last of them."""
        entry = self.ENTRY.size
        if not fs.exists(path):
            fs.open(path, create=True).close()
            return 0, 0, b""
        with closing(fs.open(path, write=False)) as file:
            file_size = file.size()
            slots = file_size // entry
            last = file.pread(entry, (slots - 1) * entry) if slots else b""
            if self._is_entry(last):
                return file_size, slots, last
            count = self._count_entries(slots, lambda slot: file.pread(entry, slot * entry))
            return file_size, count, file.pread(entry, (count - 1) * entry) if count else b""

    @abstractmethod
    def _is_entry(self, slot: bytes) -> bool:
        """Whether these bytes are an entry, and not zeros after the last one."""

    def _count_entries(self, slots: int, read: Callable[[int], bytes]) -> int:
        """How many of a file's ``slots``, the last of which is zeros, are entries."""
        return last_true(slots, lambda slot: self._is_entry(read(slot))) + 1

    @abstractmethod
    def _set_last(self, entry: bytes) -> None:
        """Note the last entry, b"" if there is none."""

    @property
    def path(self) -> str:
        return self._file.path

    @property
    def is_full(self) -> bool:
        return self.count >= self.max_count

    @property
    def size(self) -> int:
        """Bytes of the entries in use."""
        return self.count * self.ENTRY.size

    def _data(self) -> bytearray:
        """All entries. It may be shorter, and is empty if the file is gone: then the log is read from its start.

        An append does not update the copy in memory; this method reads the entries that were added since.
        """
        with self._file.lock:
            found = _loaded.get(self._key)
            if found is None:
                found = bytearray()
            elif len(found) == self._file.size:
                return found
            found += self._file.read(len(found))
            _loaded.put(self._key, found, len(found) + 1)
            return found

    def _entries(self) -> tuple[bytearray, int]:
        data = self._data()
        return data, min(self.count, len(data) // self.ENTRY.size)

    def _entry(self, slot: int) -> bytes:
        entry = self.ENTRY.size
        return bytes(self._data()[slot * entry : (slot + 1) * entry])

    def make_room(self) -> None:
        """Let the file be as long as an active segment's; bytes after the entries in use are zeros."""
        self._file.set_size(self.max_bytes)
        self.max_count = max(self.max_bytes // self.ENTRY.size, self.count)

    def trim(self) -> None:
        """Take no more entries; the file has those that there are, and no byte more.

        `NoSpaceError`: it has fewer entries, and still no byte more; `flush` writes the rest when there is room.
        """
        self._file.set_size()
        _loaded.pop(self._key)
        self.max_count = self.count
        self._file.write()

    def truncate_to_entries(self, count: int) -> None:
        with self._file.lock:
            if count < self.count:
                last = self._entry(count - 1) if count else b""
                self.count = count
                self._file.truncate(count * self.ENTRY.size)
                _loaded.pop(self._key)
                self._set_last(last)

    def reset(self) -> None:
        """Forget all entries and make room for new ones."""
        self.truncate_to_entries(0)
        self.make_room()

    @property
    def file_size(self) -> int:
        return self._file.file_size

    def check(self, end_offset: int, log_size: int) -> None:
        """Raise `CorruptIndexError` where the index cannot belong to a log of that end and size."""
        if self._file.file_size % self.ENTRY.size:
            raise CorruptIndexError(
                f"size {self._file.file_size} is not a multiple of {self.ENTRY.size}",
                position=self._file.file_size,
                file=self.path,
            )
        self._check_last(end_offset, log_size)

    @abstractmethod
    def _check_last(self, end_offset: int, log_size: int) -> None:
        """Raise `CorruptIndexError` where the last entry points outside of the log."""

    def flush(self) -> None:
        self._file.flush()

    def rename(self, path: str) -> None:
        self._file.rename(path)

    def moved_to(self, path: str) -> None:
        self._file.moved_to(path)

    def unlink(self) -> None:
        self._file.unlink()
        self.close()

    def close(self) -> None:
        """Nothing is written: see `trim`."""
        _loaded.pop(self._key)


class OffsetIndex(_SegmentIndex):
    """``.index``: the position from which to search for an offset."""

    ENTRY = OFFSET_ENTRY
    __slots__ = ("last_offset",)

    def _is_entry(self, slot: bytes) -> bool:
        return any(slot[:4])

    def _set_last(self, entry: bytes) -> None:
        self.last_offset = self.base_offset + (int(OFFSET_ENTRY.unpack(entry)[0]) if entry else 0)

    def _check_last(self, end_offset: int, log_size: int) -> None:
        if not self.count:
            return
        offset, position = self.entry(self.count - 1)
        if not self.base_offset < offset < end_offset or not 0 <= position < log_size:
            raise CorruptIndexError(
                f"last entry says offset {offset} at position {position}, in a segment of offsets {self.base_offset} "
                f"to {end_offset - 1} and {log_size} bytes",
                position=(self.count - 1) * 8,
                file=self.path,
            )

    def entry(self, slot: int) -> OffsetPosition:
        relative, position = OFFSET_ENTRY.unpack_from(self._data(), slot * 8)
        return OffsetPosition(self.base_offset + relative, position)

    def append(self, offset: int, position: int) -> None:
        """Add an entry after the last one; it must not be full."""
        self._file.append(OFFSET_ENTRY.pack(offset - self.base_offset, position))
        self.count += 1
        self.last_offset = offset

    def lookup(self, offset: int) -> OffsetPosition:
        """The last entry at or below ``offset``, else the segment's start."""
        with self._file.lock:
            data, count = self._entries()
            return find_offset(data, count, self.base_offset, offset)

    def start_before(self, position: int) -> int:
        """The start of the last batch that is indexed and starts at or before ``position``; 0 if there is none."""
        unpack = OFFSET_ENTRY.unpack_from
        with self._file.lock:
            data, count = self._entries()
            slot = last_true(count, lambda slot: unpack(data, slot * 8)[1] <= position)
            return int(unpack(data, slot * 8)[1]) if slot >= 0 else 0

    def last_offset_at(self, position: int) -> int | None:
        """The last offset of the first batch that is indexed and starts at ``position`` or after it."""
        unpack = OFFSET_ENTRY.unpack_from
        with self._file.lock:
            data, count = self._entries()
            slot = last_true(count, lambda slot: unpack(data, slot * 8)[1] < position) + 1
            return self.base_offset + int(unpack(data, slot * 8)[0]) if slot < count else None

    def truncate_to(self, offset: int) -> None:
        """Drop the entries at or above ``offset``."""
        unpack, target = OFFSET_ENTRY.unpack_from, offset - self.base_offset
        with self._file.lock:
            data, count = self._entries()
            self.truncate_to_entries(last_true(count, lambda slot: unpack(data, slot * 8)[0] < target) + 1)


class TimeIndex(_SegmentIndex):
    """``.timeindex``: from where on a timestamp may be found."""

    ENTRY = TIME_ENTRY
    __slots__ = ("last",)

    def _is_entry(self, slot: bytes) -> bool:
        return any(slot)

    def _count_entries(self, slots: int, read: Callable[[int], bytes]) -> int:
        return 1 if slots == 1 else super()._count_entries(slots, read)

    def _set_last(self, entry: bytes) -> None:
        timestamp, relative = TIME_ENTRY.unpack(entry) if entry else (NO_TIMESTAMP, 0)
        self.last = TimestampOffset(timestamp, self.base_offset + relative)

    def _check_last(self, end_offset: int, log_size: int) -> None:
        timestamp, offset = self.last
        if self.count and (
            not log_size or not self.base_offset <= offset < end_offset or timestamp < self.entry(0).timestamp
        ):
            raise CorruptIndexError(
                f"last entry says time {timestamp} at offset {offset}, in a segment of offsets {self.base_offset} to "
                f"{end_offset - 1}",
                position=(self.count - 1) * 12,
                file=self.path,
            )

    @property
    def is_full(self) -> bool:
        """The last slot is kept for the entry that is written on roll."""
        return self.count >= self.max_count - 1

    def entry(self, slot: int) -> TimestampOffset:
        timestamp, relative = TIME_ENTRY.unpack_from(self._data(), slot * 12)
        return TimestampOffset(timestamp, self.base_offset + relative)

    def maybe_append(self, timestamp: int, offset: int) -> None:
        """Add an entry if ``timestamp`` is later than the last one's."""
        if timestamp > self.last.timestamp and offset >= self.last.offset:
            self._file.append(TIME_ENTRY.pack(timestamp, offset - self.base_offset))
            self.count += 1
            self.last = _new(TimestampOffset, (timestamp, offset))

    def lookup(self, timestamp: int) -> TimestampOffset:
        """The last entry at or before ``timestamp``, else (-1, base offset)."""
        with self._file.lock:
            data, count = self._entries()
            return find_timestamp(data, count, self.base_offset, timestamp)

    def truncate_to(self, offset: int) -> None:
        """Drop the entries whose offset is at or above ``offset``."""
        unpack, target = TIME_ENTRY.unpack_from, offset - self.base_offset
        with self._file.lock:
            data, count = self._entries()
            self.truncate_to_entries(last_true(count, lambda slot: unpack(data, slot * 12)[1] < target) + 1)
