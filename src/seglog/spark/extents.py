"""What lies in log directories, found with a few small reads: partitions, segments, their ends and batch boundaries.

Nothing is decoded here and nothing is changed. A directory may be one that a broker is writing at this moment: the last
segment ends behind its last whole batch, and an index may have the zeros of its pre-allocated rest.
"""

from __future__ import annotations

import os.path
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from fnmatch import fnmatchcase
from struct import Struct
from typing import Final, NamedTuple, overload

from seglog.core.errors import CorruptBatchError, InvalidConfigError
from seglog.core.fs import File, Fs
from seglog.core.types import TopicPartition
from seglog.records.batch import BATCH_OVERHEAD, LOG_OVERHEAD, MAGIC_POSITION, MIN_ENTRY
from seglog.spark.planning import PartitionExtent, SegmentExtent
from seglog.storage.index import OFFSET_ENTRY, OffsetPosition, last_true
from seglog.storage.layout import (
    INDEX,
    LOG,
    META_PROPERTIES,
    PartitionDir,
    list_partitions,
    list_segments,
    parse_file_name,
    partition_at,
)

_PREFIX: Final = Struct(">qiibIhi")
"""The first 27 bytes of a batch: offset, length, leader epoch, magic, CRC, attributes, last offset delta."""
_WINDOW: Final = 1 << 16
_WILD: Final = frozenset("*?[")


def find_partitions(fs: Fs, paths: Iterable[str]) -> list[PartitionDir]:
    """The partitions under ``paths``: log directories, partitions' directories, or globs of either.

    A partition that several log directories have (replicas) is found several times.
    """
    found: dict[str, PartitionDir] = {}
    for path in paths:
        for match in expand(fs, path):
            for partition in _partitions_at(fs, match):
                found.setdefault(os.path.realpath(partition.path), partition)
    return sorted(found.values(), key=lambda partition: (partition.topic_partition, partition.path))


def expand(fs: Fs, path: str) -> list[str]:
    """``path`` itself, or what matches it if it has ``*``, ``?`` or ``[…]`` in it; sorted, absolute."""
    if path.startswith("file:"):
        path = "/" + path.removeprefix("file:").lstrip("/")
    elif "://" in path:
        raise InvalidConfigError(f"path {path!r}: seglog reads files of this machine or of a mounted file system")
    absolute = os.path.abspath(os.path.expanduser(path))
    if not _WILD & set(absolute) or fs.exists(absolute):
        return [absolute]
    matches = ["/"]
    for part in absolute.strip("/").split("/"):
        if _WILD & set(part):
            matches = [
                os.path.join(parent, name)
                for parent in matches
                if _is_dir(fs, parent)
                for name in fs.listdir(parent)
                if fnmatchcase(name, part) and (part.startswith(".") or not name.startswith("."))
            ]
        else:
            matches = [joined for parent in matches if fs.exists(joined := os.path.join(parent, part))]
    matches = [match for match in matches if _is_dir(fs, match)]
    if not matches:
        raise InvalidConfigError(f"path {path!r}: no directory matches")
    return matches


def _is_dir(fs: Fs, path: str) -> bool:
    return fs.exists(path) and fs.stat(os.path.realpath(path)).is_dir


def _partitions_at(fs: Fs, path: str) -> list[PartitionDir]:
    if not fs.exists(path):
        raise InvalidConfigError(f"path {path!r}: there is no such directory")
    if not _is_dir(fs, path):
        raise InvalidConfigError(f"path {path!r} is a file: give its partition's directory or its log directory")
    names = fs.listdir(path)
    partition = partition_at(path)
    if partition is not None and any((file := parse_file_name(name)) and file.kind == LOG for name in names):
        return [partition]
    partitions = list_partitions(fs, path)
    if not partitions and META_PROPERTIES not in names:
        raise InvalidConfigError(
            f"path {path!r} is neither a log directory (there is no <topic>-<partition> in it) nor a "
            "partition's (there is no segment in it)"
        )
    return partitions


def read_extent(fs: Fs, path: str, topic_partition: TopicPartition, log_start: int) -> PartitionExtent:
    """A partition's segments and offsets. ``log_start`` is what the checkpoint beside it says, 0 if nothing.

    Reads the last segment's last index entry and hops from there over batch headers to the end.
    """
    listed = list_segments(fs, path)
    segments = [SegmentExtent(segment.base_offset, segment.log, fs.stat(segment.log).size) for segment in listed]
    first = segments[0].base_offset if segments else 0
    end = first
    if segments:
        last = segments[-1]
        size, end = find_end(fs, last)
        segments[-1] = last._replace(size=size)
    return PartitionExtent(
        topic_partition=topic_partition,
        log_start=min(max(log_start, first), end),
        log_end=end,
        segments=tuple(segments),
    )


def find_end(fs: Fs, segment: SegmentExtent) -> tuple[int, int]:
    """Where the last whole batch of ``segment`` ends, in bytes, and the offset behind it.

    A batch of which a part is missing is the end, as are pre-allocated zeros; anything else that is no batch is damage.
    """
    with closing(fs.open(segment.log, write=False)) as file:
        hops = _Hops(file, segment)
        position, end_offset = IndexBoundaries(fs, segment).last(), segment.base_offset
        while (batch := hops.at(position)) is not None:
            position += batch.size
            end_offset = batch.last_offset + 1
        return position, end_offset


class _Batch(NamedTuple):
    """A batch or legacy message, known from its first bytes."""

    size: int
    last_offset: int


class _Hops:
    """Batch headers of one segment, read through a window."""

    def __init__(self, file: File, segment: SegmentExtent) -> None:
        self._file = file
        self._segment = segment
        self._start = 0
        self._window = b""

    def at(self, position: int) -> _Batch | None:
        """The batch at ``position``, None where no whole one is; `CorruptBatchError` where none can be."""
        left = self._segment.size - position
        if left <= MAGIC_POSITION:
            return None
        here = position - self._start
        if here < 0 or here + _PREFIX.size > len(self._window):
            self._start, here = position, 0
            self._window = self._file.pread(min(_WINDOW, left), position).ljust(_PREFIX.size, b"\0")
        offset, length, _, magic, _, _, last_delta = _PREFIX.unpack_from(self._window, here)
        if (offset, length, magic) == (0, 0, 0):
            return None
        smallest = BATCH_OVERHEAD if magic == 2 else MIN_ENTRY
        if not 0 <= magic <= 2 or length < smallest - LOG_OVERHEAD:
            reason = f"no batch starts here: magic {magic}, size {length}"
            raise CorruptBatchError(reason, position=position, file=self._segment.log)
        if length + LOG_OVERHEAD > left:
            return None
        return _Batch(length + LOG_OVERHEAD, offset + (last_delta if magic == 2 else 0))


class IndexBoundaries:
    """Batch boundaries of one segment, by its ``.index``; without a usable one, by hopping over all headers once.

    An entry is the last offset of a batch and the position where it starts; Kafka before 4.x wrote one for an append of
    several batches, with the position of the first and the offset of the last. It is believed if a batch with offsets
    of this segment, up to the entry's, starts there.
    """

    def __init__(self, fs: Fs, segment: SegmentExtent) -> None:
        self._fs = fs
        self._segment = segment
        self._hopped: Sequence[OffsetPosition] | None = None

    def last(self) -> int:
        """The last boundary that is known without a search."""
        return self._find(lambda entries: len(entries) - 1)

    def start_of(self, offset: int) -> int:
        return self._find(lambda entries: last_true(len(entries), lambda slot: entries[slot].offset <= offset))

    def end_of(self, offset: int) -> int:
        # The batch of the first entry at or above the offset may begin below it; that of the entry after it does not.
        return self._find(lambda entries: last_true(len(entries), lambda slot: entries[slot].offset < offset) + 2)

    def cut(self, low: int, wanted: int, high: int) -> int:
        def slot(entries: Sequence[OffsetPosition], position: int) -> int:
            return last_true(len(entries), lambda slot: entries[slot].position <= position)

        before = self._find(lambda entries: slot(entries, wanted))
        if before > low:
            return before
        return min(self._find(lambda entries: slot(entries, max(low, wanted)) + 1), high)

    def _find(self, choose: Callable[[Sequence[OffsetPosition]], int]) -> int:
        """The position of the chosen entry; before the first it is 0, behind the last the segment's end."""
        path = self._segment.log.removesuffix(LOG) + INDEX
        if self._hopped is None and self._fs.exists(path):
            with closing(self._fs.open(path, write=False)) as index, closing(self._open_log()) as log:
                entries = _IndexEntries(index, self._segment.base_offset)
                slot = choose(entries)
                if not 0 <= slot < len(entries):
                    return 0 if slot < 0 else self._segment.size
                if self._is_believable(entries[slot], log):
                    return entries[slot].position
        if self._hopped is None:
            with closing(self._open_log()) as log:
                self._hopped = _hop(log, self._segment)
        slot = choose(self._hopped)
        if not 0 <= slot < len(self._hopped):
            return 0 if slot < 0 else self._segment.size
        return self._hopped[slot].position

    def _open_log(self) -> File:
        return self._fs.open(self._segment.log, write=False)

    def _is_believable(self, entry: OffsetPosition, log: File) -> bool:
        if not 0 < entry.position < self._segment.size:
            return False
        try:
            batch = _Hops(log, self._segment).at(entry.position)
        except CorruptBatchError:
            return False
        return batch is not None and self._segment.base_offset <= batch.last_offset <= entry.offset


class _IndexEntries(Sequence[OffsetPosition]):
    """The entries of an ``.index``, read one by one: a search looks at twenty of a quarter of a million."""

    def __init__(self, file: File, base_offset: int) -> None:
        self._file = file
        self._base_offset = base_offset
        # A pre-allocated rest is zeros; no entry has position 0, for the first is of a batch behind another one.
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


def _hop(log: File, segment: SegmentExtent) -> list[OffsetPosition]:
    """What a whole index would say, an entry for each `_WINDOW` bytes."""
    hops, position = _Hops(log, segment), 0
    entries: list[OffsetPosition] = []
    while (batch := hops.at(position)) is not None:
        if position >= (entries[-1].position if entries else 0) + _WINDOW:
            entries.append(OffsetPosition(batch.last_offset, position))
        position += batch.size
    return entries
