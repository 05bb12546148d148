"""Reading a partition's files without opening the log: for tools, on any directory, in use or not. Changes nothing.

Nothing here trusts the bytes: entries are found by their sizes alone, exactly as Kafka finds them in a file
(``FileLogInputStream.java``), and what a batch holds is for the caller to judge.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple

from seglog.core.errors import CorruptBatchError
from seglog.core.fs import File
from seglog.core.types import NO_TIMESTAMP
from seglog.records.batch import BATCH_OVERHEAD, CODEC_MASK, LOG_OVERHEAD, Entry, read_header

CHUNK_BYTES: Final = 4 << 20
_WINDOW_BYTES: Final = 4 << 10
"""Read at a time where only headers matter: one page, often with several small batches in it."""
_HEADER_UP_TO_MAGIC: Final = 17
_SMALLEST: Final = 14
"""The smallest size a message of version 0 can have behind its first 12 bytes; Kafka stops at anything less."""
_PREFIX: Final = Struct(">qi")
_LEGACY: Final = Struct(">q8xbb")
_INT64: Final = Struct(">q")
_UP_TO_MAGIC: Final = Struct(">q8xb")


class Chunk(NamedTuple):
    """Whole entries of a log file: ``data`` begins at file position ``position``; ``starts`` are positions in data.

    The last entry ends at ``end`` in data.
    """

    position: int
    data: bytes
    starts: list[int]
    end: int

    def entries(self) -> Iterator[Entry]:
        """Each entry with its position in ``data``, of whatever magic."""
        data = self.data
        for start, following in zip(self.starts, [*self.starts[1:], self.end], strict=True):
            offset, magic = _UP_TO_MAGIC.unpack_from(data, start)
            yield Entry(start, following - start, offset, magic)


def read_chunks(file: File, start: int = 0, end: int | None = None, *, size: int = CHUNK_BYTES) -> Iterator[Chunk]:
    """The entries of a log file from ``start`` on, some MiB at a time, up to the first that is not all there.

    ``end`` is where to stop in the file (its size). An entry larger than ``size`` comes alone in its chunk. Raises
    `CorruptBatchError` at an entry whose size cannot be, after all before it were handed out.
    """
    limit = file.size() if end is None else end
    position = start
    while position < limit - _HEADER_UP_TO_MAGIC:
        data = file.pread(min(size, limit - position), position)
        if len(data) <= _HEADER_UP_TO_MAGIC:  # the file has become shorter since we asked
            return
        starts, used = _whole_entries(data, limit - position)
        if not starts:
            used = _size_at(data, 0, position, file.path)
            if used > limit - position:
                return
            data = file.pread(used, position)
            starts = [0]
        if len(data) < used:
            return
        yield Chunk(position, data, starts, used)
        position += used


def _whole_entries(data: bytes, left: int) -> tuple[list[int], int]:
    """Where whole entries start in ``data``, and where the last one ends; ``left`` bytes of the file begin there."""
    unpack = _PREFIX.unpack_from
    starts: list[int] = []
    position, available = 0, len(data)
    while position < left - _HEADER_UP_TO_MAGIC and available - position >= LOG_OVERHEAD:
        length = unpack(data, position)[1]
        following = position + LOG_OVERHEAD + length
        if length < _SMALLEST or following > available:
            break
        starts.append(position)
        position = following
    return starts, position


def _size_at(data: bytes, at: int, position: int, file: str) -> int:
    """Bytes of the whole entry at ``at`` in data, which is at ``position`` in the file."""
    offset, length = _PREFIX.unpack_from(data, at)
    if length < _SMALLEST:
        raise CorruptBatchError(
            f"size {length} is under {_SMALLEST}, the smallest there is", position=position, file=file, offset=offset
        )
    return LOG_OVERHEAD + int(length)


class BatchFacts(NamedTuple):
    """A batch or message as its header tells it: where it lies, and what can be known without its records.

    ``first_offset`` and ``records`` are None for a compressed message of format 0 or 1: they are inside of it.
    """

    position: int
    size: int
    first_offset: int | None
    last_offset: int
    first_timestamp: int
    max_timestamp: int
    records: int | None
    magic: int
    codec: int
    is_control: bool

    @property
    def end(self) -> int:
        return self.position + self.size


def iter_headers(file: File, start: int = 0, end: int | None = None) -> Iterator[BatchFacts]:
    """The whole batches of a log file from ``start`` on, their headers read and nothing else of a large one.

    Ends where the next one is not all there. Raises `CorruptBatchError` at a size or format that cannot be.
    """
    limit = file.size() if end is None else end
    position, window, data = start, start, b""
    while position < limit - _HEADER_UP_TO_MAGIC:
        if position + BATCH_OVERHEAD > window + len(data):
            window, data = position, file.pread(min(_WINDOW_BYTES, limit - position), position)
            if len(data) <= _HEADER_UP_TO_MAGIC:
                return
        at = position - window
        size = _size_at(data, at, position, file.path)
        if size > limit - position:
            return
        yield _facts(data, at, position, size, file.path)
        position += size


def _facts(data: bytes, at: int, position: int, size: int, file: str) -> BatchFacts:
    offset, magic, attributes = _LEGACY.unpack_from(data, at)
    if magic == 2 and size >= BATCH_OVERHEAD:
        header = read_header(data, at)
        first_timestamp = header.base_timestamp if header.delete_horizon_ms is None else header.max_timestamp
        return BatchFacts(
            position=position,
            size=size,
            first_offset=header.base_offset,
            last_offset=header.last_offset,
            first_timestamp=first_timestamp,
            max_timestamp=header.max_timestamp,
            records=header.records_count,
            magic=magic,
            codec=header.codec,
            is_control=header.is_control,
        )
    if magic not in (0, 1) or size < 26 + 8 * magic:
        raise CorruptBatchError(f"{size} bytes of format {magic}", position=position, file=file, offset=offset)
    codec = attributes & CODEC_MASK
    timestamp = _INT64.unpack_from(data, at + 18)[0] if magic else NO_TIMESTAMP
    return BatchFacts(
        position=position,
        size=size,
        first_offset=None if codec else offset,
        last_offset=offset,
        first_timestamp=timestamp,
        max_timestamp=timestamp,
        records=None if codec else 1,
        magic=magic,
        codec=codec,
        is_control=False,
    )
