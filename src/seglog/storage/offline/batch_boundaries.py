"""Finds batch boundaries in a segment's file: by its sparse index, checked against the log, or by walking headers.

Decodes and changes nothing. A broker may be writing in the directory: the last segment ends behind its last whole
batch, and an index may end in pre-allocated zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from typing import Final, NamedTuple, Protocol, overload

from seglog.core.errors import CorruptBatchError
from seglog.core.fs import File, Fs
from seglog.records.batch import BATCH_OVERHEAD, ENTRY_PREFIX, MAGIC_POSITION, last_offset_of
from seglog.storage.formats.batch_walk import walk
from seglog.storage.formats.paths import INDEX, LOG
from seglog.storage.log.index import OFFSET_ENTRY, OffsetPosition, last_true

_WINDOW: Final = 1 << 16


class HasBytes(Protocol):
    """A segment's first offset, its file, and how many bytes of it count."""

    @property
    def base_offset(self) -> int: ...
    @property
    def log(self) -> str: ...
    @property
    def size(self) -> int: ...


class SegmentBytes(NamedTuple):
    """The smallest `HasBytes`."""

    base_offset: int
    log: str
    size: int


def find_end(fs: Fs, segment: HasBytes, *, permissive: bool = False) -> tuple[int, int]:
    """The position behind the last whole batch of ``segment``, and the offset behind it.

    A torn batch or pre-allocated zeros end the log. Other bytes that are not a batch are damage: `CorruptBatchError`,
    or with ``permissive`` the end of the log.
    """
    position, end_offset = 0, segment.base_offset
    if segment.size <= MAGIC_POSITION:
        return position, end_offset
    if segment.size > _WINDOW:
        position = IndexBoundaries(fs, segment).last()
    with closing(fs.open(segment.log, write=False)) as file:
        try:
            for entry, at, data in walk(file, position, segment.size, window=_WINDOW, whole=False):
                position, end_offset = at + entry.size, last_offset_of(data, entry) + 1
        except CorruptBatchError as error:
            if not permissive and any(file.pread(ENTRY_PREFIX.size, error.position)):
                raise
        return position, end_offset


class IndexBoundaries:
    """Batch boundaries of one segment, by its ``.index``; without a usable one, by one walk over all headers.

    An entry is the last offset of a batch and the position where it starts; Kafka before 4.x wrote one for an append of
    several batches, with the position of the first and the offset of the last. An entry counts if a batch with offsets
    of this segment, up to the entry's, starts there.
    """

    def __init__(self, fs: Fs, segment: HasBytes) -> None:
        self._fs = fs
        self._segment = segment
        self._walked: Sequence[OffsetPosition] | None = None

    def last(self) -> int:
        """The last boundary of the index."""
        return self._find(lambda entries: len(entries) - 1)

    def start_of(self, offset: int) -> int:
        """A boundary at or shortly before the batch with ``offset``."""
        if offset <= self._segment.base_offset:
            return 0
        return self._find(lambda entries: last_true(len(entries), lambda slot: entries[slot].offset <= offset))

    def end_of(self, offset: int) -> int:
        """A boundary shortly behind the last batch that has an offset below ``offset``."""
        # The batch of the first entry at or above the offset may begin below it; that of the entry after it does not.
        return self._find(lambda entries: last_true(len(entries), lambda slot: entries[slot].offset < offset) + 2)

    def cut(self, low: int, wanted: int, high: int) -> int:
        """The last boundary in (low, wanted], else the first in (wanted, high), else ``high``."""

        def slot(entries: Sequence[OffsetPosition], position: int) -> int:
            return last_true(len(entries), lambda slot: entries[slot].position <= position)

        before = self._find(lambda entries: slot(entries, wanted))
        if before > low:
            return before
        return min(self._find(lambda entries: slot(entries, max(low, wanted)) + 1), high)

    def offset_at(self, position: int) -> int:
        """The first offset of the batch at the boundary ``position``, or the last of a compressed legacy message.

        All batches before it have lower offsets.
        """
        with closing(self._open_log()) as log:
            return int.from_bytes(log.pread(8, position), "big", signed=True)

    def _find(self, choose: Callable[[Sequence[OffsetPosition]], int]) -> int:
        """The position of the chosen entry; 0 before the first one, the segment's end behind the last one."""
        path = self._segment.log.removesuffix(LOG) + INDEX
        if self._walked is None and self._fs.exists(path):
            with closing(self._fs.open(path, write=False)) as index, closing(self._open_log()) as log:
                entries = _IndexEntries(index, self._segment.base_offset)
                slot = choose(entries)
                if not 0 <= slot < len(entries):
                    return 0 if slot < 0 else self._segment.size
                if self._is_believable(entries[slot], log):
                    return entries[slot].position
        if self._walked is None:
            with closing(self._open_log()) as log:
                self._walked = _walk_headers(log, self._segment)
        slot = choose(self._walked)
        if not 0 <= slot < len(self._walked):
            return 0 if slot < 0 else self._segment.size
        return self._walked[slot].position

    def _open_log(self) -> File:
        return self._fs.open(self._segment.log, write=False)

    def _is_believable(self, entry: OffsetPosition, log: File) -> bool:
        if not 0 < entry.position < self._segment.size:
            return False
        try:
            found = next(walk(log, entry.position, self._segment.size, window=BATCH_OVERHEAD, whole=False), None)
        except CorruptBatchError:
            return False
        if found is None:
            return False
        batch, _, data = found
        return self._segment.base_offset <= last_offset_of(data, batch) <= entry.offset


class _IndexEntries(Sequence[OffsetPosition]):
    """The entries of an ``.index``, read one by one: a search needs twenty of a quarter of a million."""

    def __init__(self, file: File, base_offset: int) -> None:
        self._file = file
        self._base_offset = base_offset
        # Pre-allocated space is zeros. No entry has position 0, as the first one belongs to a later batch.
        self._count = last_true(file.size() // OFFSET_ENTRY.size, lambda slot: self._unpack(slot)[1] != 0) + 1

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, slot: int) -> OffsetPosition: ...
    @overload
    def __getitem__(self, slot: slice) -> Sequence[OffsetPosition]: ...
    def __getitem__(self, slot: int | slice) -> OffsetPosition | Sequence[OffsetPosition]:
        if isinstance(slot, slice):
            return [self[each] for each in range(*slot.indices(self._count))]
        relative, position = self._unpack(slot)
        return OffsetPosition(self._base_offset + relative, position)

    def _unpack(self, slot: int) -> tuple[int, int]:
        data = self._file.pread(OFFSET_ENTRY.size, slot * OFFSET_ENTRY.size)
        relative, position = OFFSET_ENTRY.unpack(data.ljust(OFFSET_ENTRY.size, b"\0"))
        return relative, position


def _walk_headers(log: File, segment: HasBytes) -> list[OffsetPosition]:
    """The entries that an index with an interval of `_WINDOW` bytes would have."""
    found: list[OffsetPosition] = []
    with suppress(CorruptBatchError):  # a reader of that position reports it
        for entry, position, data in walk(log, 0, segment.size, window=_WINDOW, whole=False):
            if position >= (found[-1].position if found else 0) + _WINDOW:
                found.append(OffsetPosition(last_offset_of(data, entry), position))
    return found
