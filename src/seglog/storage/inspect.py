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
from seglog.records.batch import LOG_OVERHEAD, Entry

CHUNK_BYTES: Final = 4 << 20
_HEADER_UP_TO_MAGIC: Final = 17
_SMALLEST: Final = 14
"""The smallest size a message of version 0 can have behind its first 12 bytes; Kafka stops at anything less."""
_PREFIX: Final = Struct(">qi")
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
            used = _size_at(data, position, file.path)
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


def _size_at(data: bytes, position: int, file: str) -> int:
    """Bytes of the whole entry at the start of ``data``, which lies at ``position`` in the file."""
    offset, length = _PREFIX.unpack_from(data, 0)
    if length < _SMALLEST:
        raise CorruptBatchError(
            f"size {length} is under {_SMALLEST}, the smallest there is", position=position, file=file, offset=offset
        )
    return LOG_OVERHEAD + int(length)
