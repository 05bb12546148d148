"""The sparse indexes of a segment: offset -> position and timestamp -> offset, memory-mapped.

Both are arrays of fixed entries, big-endian, without header or checksum (``OffsetIndex.java``, ``TimeIndex.java``)::

    .index      8 bytes:  relativeOffset int32 (offset - base offset) | position int32
    .timeindex 12 bytes:  timestamp int64 | relativeOffset int32

The index of the active segment is pre-allocated with zeros to ``segment.index.bytes`` and trimmed on roll and close. An
entry's offset is the *last* offset of a batch and its position that batch's *start*. In the time index an entry (T, O)
says: T is the largest timestamp up to O, and O is the last offset of the earliest batch that has it.

Indexes are derived from the log: where one is missing or wrong, recovery makes it anew.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from mmap import mmap
from struct import Struct
from typing import Final, NamedTuple

from seglog.core.errors import CorruptIndexError
from seglog.core.fs import Fs, MappedFile
from seglog.core.types import MAX_INT32, NO_TIMESTAMP

OFFSET_ENTRY: Final = Struct(">ii")
TIME_ENTRY: Final = Struct(">qi")
assert (OFFSET_ENTRY.size, TIME_ENTRY.size) == (8, 12)

IndexBytes = bytes | bytearray | memoryview | mmap


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

    No entry has relative offset 0: the first one is of a batch behind another one.
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


class _Index(ABC):
    """What both kinds share: a mapped file, how many entries are in use, and room for how many.

    Invariant: 0 <= count <= max_count, and the bytes behind ``count`` entries are not looked at. The lock keeps a
    look-up from reading pages that `trim` has just cut off the file, which would end the process. So would an entry
    written to a page that has no place on a full disk: bytes up to ``reserved`` have theirs.
    """

    ENTRY: Struct

    __slots__ = ("_file", "_fs", "_lock", "base_offset", "count", "max_bytes", "max_count", "path", "reserved")

    def __init__(self, fs: Fs, path: str, base_offset: int, max_bytes: int, *, active: bool) -> None:
        size = self.ENTRY.size
        self._fs = fs
        self.path = path
        self.base_offset = base_offset
        self.max_bytes = max_bytes // size * size
        self._lock = threading.Lock()
        new = not fs.exists(path)
        self._file: MappedFile = fs.map(path, size=self.max_bytes if new else None)
        self.reserved = 0
        self.count = 0 if new else self._count_entries()
        self.max_count = self._file.size // size
        if active:
            self.make_room()
        elif new:
            self.trim()

    @abstractmethod
    def _count_entries(self) -> int:
        """Entries of the file as it is, without the zeros behind them."""

    @abstractmethod
    def _loaded(self) -> None:
        """Called when the entries in use were changed from outside."""

    @property
    def relative_limit(self) -> int:
        """The largest offset that this index can hold."""
        return self.base_offset + MAX_INT32

    @property
    def is_full(self) -> bool:
        return self.count >= self.max_count

    @property
    def size(self) -> int:
        """Bytes of the entries in use."""
        return self.count * self.ENTRY.size

    @property
    def file_size(self) -> int:
        return self._file.size

    def make_room(self) -> None:
        """Let the file be as long as an active segment's; bytes behind the entries in use are zeros."""
        with self._lock:
            used = self.count * self.ENTRY.size
            if self._file.size > used:
                self._file.resize(used)
            self._file.resize(max(self.max_bytes, used))
            self.reserved = 0
            self.max_count = self._file.size // self.ENTRY.size

    def trim(self) -> None:
        """Cut the file behind the entries in use."""
        with self._lock:
            self._file.resize(self.count * self.ENTRY.size)
            self.max_count = self.count
            self.reserved = 0

    def _reserve(self, end: int) -> None:
        """Called before an entry is written that ends at ``end``, behind what is reserved."""
        self.reserved = self._file.reserve(self.count * self.ENTRY.size, end)

    def truncate_to_entries(self, count: int) -> None:
        with self._lock:
            self.count = min(self.count, count)
            self._loaded()

    def reset(self) -> None:
        """Forget all entries and make room for new ones."""
        self.truncate_to_entries(0)
        self.make_room()

    def check(self, end_offset: int, log_size: int) -> None:
        """Raise `CorruptIndexError` where the index cannot belong to a log of that end and size."""
        if self._file.size % self.ENTRY.size:
            raise CorruptIndexError(
                f"size {self._file.size} is not a multiple of {self.ENTRY.size}",
                position=self._file.size,
                file=self.path,
            )
        self._check_last(end_offset, log_size)

    @abstractmethod
    def _check_last(self, end_offset: int, log_size: int) -> None:
        """Raise `CorruptIndexError` where the last entry points outside of the log."""

    def flush(self) -> None:
        self._file.flush()

    def rename(self, path: str) -> None:
        if self._fs.exists(self.path):
            self._fs.rename(self.path, path)
        self.path = path

    def close(self) -> None:
        self._file.close()


class OffsetIndex(_Index):
    """``.index``: where to start looking for an offset."""

    ENTRY = OFFSET_ENTRY
    __slots__ = ("last_offset",)

    def __init__(self, fs: Fs, path: str, base_offset: int, max_bytes: int, *, active: bool) -> None:
        self.last_offset = base_offset
        super().__init__(fs, path, base_offset, max_bytes, active=active)
        self._loaded()

    def _count_entries(self) -> int:
        return count_offset_entries(self._file.buffer)

    def _loaded(self) -> None:
        self.last_offset = self.entry(self.count - 1).offset if self.count else self.base_offset

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
        relative, position = OFFSET_ENTRY.unpack_from(self._file.buffer, slot * 8)
        return OffsetPosition(self.base_offset + relative, position)

    def append(self, offset: int, position: int) -> None:
        """Add an entry behind the last one; the segment rolls before the index is full."""
        start = self.count * 8
        if start >= self.reserved:
            self._reserve(start + 8)
        OFFSET_ENTRY.pack_into(self._file.buffer, start, offset - self.base_offset, position)
        self.count += 1
        self.last_offset = offset

    def lookup(self, offset: int) -> OffsetPosition:
        """The last entry at or below ``offset``, else the segment's start."""
        with self._lock:
            return find_offset(self._file.buffer, self.count, self.base_offset, offset)

    def last_offset_at(self, position: int) -> int | None:
        """The last offset of the first batch that is indexed and starts at ``position`` or behind it."""
        unpack = OFFSET_ENTRY.unpack_from
        with self._lock:
            buffer = self._file.buffer
            slot = last_true(self.count, lambda slot: unpack(buffer, slot * 8)[1] < position) + 1
            return self.base_offset + int(unpack(buffer, slot * 8)[0]) if slot < self.count else None

    def truncate_to(self, offset: int) -> None:
        """Drop the entries at or above ``offset``."""
        unpack, buffer, target = OFFSET_ENTRY.unpack_from, self._file.buffer, offset - self.base_offset
        self.truncate_to_entries(last_true(self.count, lambda slot: unpack(buffer, slot * 8)[0] < target) + 1)


class TimeIndex(_Index):
    """``.timeindex``: from where on a timestamp may be found."""

    ENTRY = TIME_ENTRY
    __slots__ = ("last",)

    def __init__(self, fs: Fs, path: str, base_offset: int, max_bytes: int, *, active: bool) -> None:
        self.last = TimestampOffset(NO_TIMESTAMP, base_offset)
        super().__init__(fs, path, base_offset, max_bytes, active=active)
        self._loaded()

    def _count_entries(self) -> int:
        return count_time_entries(self._file.buffer)

    def _loaded(self) -> None:
        self.last = self.entry(self.count - 1) if self.count else TimestampOffset(NO_TIMESTAMP, self.base_offset)

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
        timestamp, relative = TIME_ENTRY.unpack_from(self._file.buffer, slot * 12)
        return TimestampOffset(timestamp, self.base_offset + relative)

    def maybe_append(self, timestamp: int, offset: int) -> None:
        """Add an entry if ``timestamp`` is later than the last one's."""
        if timestamp > self.last.timestamp and offset >= self.last.offset:
            start = self.count * 12
            if start + 12 > self.reserved:
                self._reserve(start + 12)
            TIME_ENTRY.pack_into(self._file.buffer, start, timestamp, offset - self.base_offset)
            self.count += 1
            self.last = TimestampOffset(timestamp, offset)

    def lookup(self, timestamp: int) -> TimestampOffset:
        """The last entry at or before ``timestamp``, else (-1, base offset)."""
        with self._lock:
            return find_timestamp(self._file.buffer, self.count, self.base_offset, timestamp)

    def truncate_to(self, offset: int) -> None:
        """Drop the entries whose offset is at or above ``offset``."""
        unpack, buffer, target = TIME_ENTRY.unpack_from, self._file.buffer, offset - self.base_offset
        self.truncate_to_entries(last_true(self.count, lambda slot: unpack(buffer, slot * 12)[1] < target) + 1)
