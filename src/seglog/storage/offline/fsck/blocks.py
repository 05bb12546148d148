"""Digests of a log in blocks of some batches. Two replicas are compared by them, without reading each other's records.

A digest is the chain of `seglog.storage.log.manifest`, over the first 21 bytes of each batch: offset, size, leader
epoch, magic and CRC. The CRC covers the rest; `verify` checks it. Blocks end by the offsets alone, so blocks of two
replicas end at the same offsets, wherever their segments begin.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from typing import Final, NamedTuple

from crc32c import crc32c

from seglog.core.errors import CorruptBatchError, CorruptError
from seglog.core.fs import Fs, NotRegularFileError
from seglog.core.types import MAX_INT64, NO_EPOCH
from seglog.records.batch import ENTRY_PREFIX, last_offset_of
from seglog.storage.formats.batch_walk import HEADERS, walk
from seglog.storage.formats.paths import SegmentPaths, list_segments
from seglog.storage.log.manifest import CHAINED, SealedSegment, difference
from seglog.storage.offline.batch_boundaries import IndexBoundaries, SegmentBytes

_MIX: Final = 0x9E3779B97F4A7C15
_BATCHES_BITS: Final = 6
"""A block ends after one batch in 64: 1 TB in batches of 16 KiB is a million blocks."""


class OffsetRange(NamedTuple):
    """Offsets from ``first`` to before ``end``."""

    first: int
    end: int


class Block(NamedTuple):
    """Batches in a row, up to before offset ``end``; the first one begins where the block before ends, or later.

    ``epoch``: the latest leader epoch of the batches. ``is_readable``: their sizes led from one to the next.
    """

    end: int
    digest: int
    epoch: int = NO_EPOCH
    is_readable: bool = True


def read_blocks(
    fs: Fs, path: str, wanted: OffsetRange, sealed: Mapping[int, SealedSegment] | None = None
) -> list[Block]:
    """The blocks of the batches of a partition that end after ``wanted.first`` and begin before ``wanted.end``.

    ``sealed``: the entries of a manifest whose segments are not read. FileNotFoundError if a broker deletes a segment
    meanwhile.
    """
    blocks: list[Block] = []
    digest, epoch, reached = 0, NO_EPOCH, -1

    def close(end: int, *, is_readable: bool = True) -> None:
        nonlocal digest, epoch, reached
        blocks.append(Block(end, digest, epoch, is_readable))
        digest, epoch, reached = 0, NO_EPOCH, -1

    segments = list_segments(fs, path)
    limits = [*(one.base_offset for one in segments[1:]), MAX_INT64]
    for paths, limit in zip(segments, limits, strict=False):
        if limit <= wanted.first or paths.base_offset >= wanted.end:
            continue
        entry = (sealed or {}).get(paths.base_offset)
        if entry is not None and _is_whole(fs, path, paths, entry, wanted):
            if reached >= 0:
                close(reached)
            digest = entry.chain or 0
            close(entry.end_offset)
            continue
        if sealed and reached >= 0:
            close(reached)
        try:
            for head, after in _headers(fs, paths, wanted):
                digest, reached = crc32c(head, digest), after
                epoch = max(epoch, _epoch_of(head))
                if (after * _MIX) >> (64 - _BATCHES_BITS) & ((1 << _BATCHES_BITS) - 1) == 0:
                    close(after)
        except (CorruptError, NotRegularFileError):
            close(min(limit, wanted.end), is_readable=False)
    if reached >= 0:
        close(reached)
    return blocks


def _is_whole(fs: Fs, path: str, paths: SegmentPaths, entry: SealedSegment, wanted: OffsetRange) -> bool:
    """Whether all of a segment is wanted, and it has the size of its entry in the manifest, which knows its chain."""
    if entry.chain is None or paths.base_offset < wanted.first or entry.end_offset > wanted.end:
        return False
    return difference(path, entry, fs.stat(paths.log).size) is None


def _headers(fs: Fs, paths: SegmentPaths, wanted: OffsetRange) -> Iterator[tuple[bytes, int]]:
    """The start of each batch, and the offset after its last record. `CorruptBatchError` at bytes that are none."""
    with closing(fs.open(paths.log, write=False)) as file:
        size = file.size()
        end = _start_of(fs, paths, size, wanted.first)
        for entry, position, data in walk(file, end, size, window=HEADERS, whole=False):
            after, end = last_offset_of(data, entry) + 1, position + entry.size
            if entry.offset >= wanted.end:
                return
            if after > wanted.first:
                yield bytes(data[entry.position : entry.position + CHAINED]), after
            if after >= wanted.end:  # zeros may follow
                return
        if end < size:
            raise CorruptBatchError("the batch is not whole", position=end, file=paths.log)


def _epoch_of(head: bytes) -> int:
    _, _, epoch, magic = ENTRY_PREFIX.unpack_from(head)
    return int(epoch) if magic == 2 else NO_EPOCH


def differing(left: Sequence[Block], right: Sequence[Block], within: OffsetRange) -> list[OffsetRange]:
    """The offsets at which two replicas may differ, from one common end of blocks to the next.

    >>> differing([Block(10, 1), Block(20, 2), Block(30, 3)], [Block(10, 1), Block(20, 9), Block(30, 3)],
    ...           OffsetRange(0, 30))
    [OffsetRange(first=10, end=20)]
    >>> differing([Block(10, 1), Block(20, 2), Block(30, 3)], [Block(10, 1), Block(30, 4)], OffsetRange(0, 40))
    [OffsetRange(first=10, end=30)]
    """
    found: list[OffsetRange] = []
    start, at, other = within.first, 0, 0
    is_same = True

    def add(end: int) -> None:
        nonlocal start
        end = min(end, within.end)
        if end > start:
            if found and found[-1].end == start:
                found[-1] = OffsetRange(found[-1].first, end)
            else:
                found.append(OffsetRange(start, end))

    while at < len(left) and other < len(right) and start < within.end:
        mine, its = left[at], right[other]
        at += mine.end <= its.end
        other += its.end <= mine.end
        if mine.end != its.end:
            is_same = False
            continue
        if not is_same or mine != its or not mine.is_readable:
            add(mine.end)
        start, is_same = max(start, mine.end), True
    if at < len(left) or other < len(right) or not is_same:
        add(within.end)
    return found


def excerpt(fs: Fs, path: str, wanted: OffsetRange, most: int) -> tuple[bytes, int]:
    """The batches that have an offset of ``wanted``, at least one, and then up to ``most`` bytes; and the offset up
    to which they are complete. Bytes that are not a batch end their segment's part."""
    parts: list[bytes] = []
    taken, reached = 0, wanted.first
    segments = list_segments(fs, path)
    limits = [*(one.base_offset for one in segments[1:]), MAX_INT64]
    for paths, limit in zip(segments, limits, strict=False):
        if limit <= wanted.first or paths.base_offset >= wanted.end:
            continue
        with closing(fs.open(paths.log, write=False)) as file, suppress(CorruptError):
            for entry, _, data in walk(file, _start_of(fs, paths, file.size(), wanted.first)):
                after = last_offset_of(data, entry) + 1
                if after <= wanted.first:
                    continue
                if entry.offset >= wanted.end:
                    break
                if taken >= most:
                    return b"".join(parts), reached
                parts.append(bytes(data[entry.position : entry.position + entry.size]))
                taken, reached = taken + entry.size, after
    return b"".join(parts), wanted.end


def _start_of(fs: Fs, paths: SegmentPaths, size: int, offset: int) -> int:
    """The position of a batch at or before ``offset``."""
    return IndexBoundaries(fs, SegmentBytes(paths.base_offset, paths.log, size)).start_of(offset)
