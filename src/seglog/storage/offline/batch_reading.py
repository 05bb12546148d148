"""Reads the batches of a log file that may be in use or damaged, for tools. Changes nothing.

Batches are found by their sizes alone, as Kafka finds them in a file (``FileLogInputStream.java``). The caller checks
their contents.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple

from seglog.core.errors import CorruptBatchError
from seglog.core.fs import File
from seglog.core.types import NO_TIMESTAMP, Buffer
from seglog.records.batch import CODEC_MASK, LOG_OVERHEAD, MAGIC_POSITION, MIN_ENTRY, Entry, entries, read_header
from seglog.storage.formats.batch_walk import walk

CHUNK_BYTES: Final = 4 << 20
_WINDOW_BYTES: Final = 4 << 10
"""Bytes of a read for headers: one page, often with several small batches in it."""
_INT64: Final = Struct(">q")


class Chunk(NamedTuple):
    """Whole entries of a log file, of whatever magic. ``data`` begins at file position ``position``."""

    position: int
    data: bytes
    entries: list[Entry]

    @property
    def end(self) -> int:
        """The end of the last entry in ``data``."""
        last = self.entries[-1]
        return last.position + last.size


def read_chunks(file: File, start: int = 0, end: int | None = None, *, size: int = CHUNK_BYTES) -> Iterator[Chunk]:
    """The entries of a log file from ``start`` on, some MiB at a time, up to the first that is not whole.

    ``end`` is where to stop in the file (its size). An entry larger than ``size`` comes alone in its chunk. Raises
    `CorruptBatchError` at an entry with an impossible size, after all entries before it.
    """
    limit = file.size() if end is None else end
    position, wanted = start, size
    while position < limit:
        data = file.pread(min(wanted, limit - position), position)
        whole: list[Entry] = []
        try:
            whole.extend(entries(data, lax=True))
        except CorruptBatchError as error:
            if not whole:
                raise error.at(file=file.path, base=position) from error
        if whole:
            chunk = Chunk(position, data, whole)
            yield chunk
            position, wanted = position + chunk.end, size
        elif len(data) < wanted or len(data) == limit - position:
            return
        else:  # an entry that is larger than a chunk
            wanted = int.from_bytes(data[8:12]) + LOG_OVERHEAD
            if wanted > limit - position:
                return


class BatchFacts(NamedTuple):
    """The facts about a batch or message that its header tells.

    ``first_offset`` and ``records`` are None for a compressed message of format 0 or 1: they are inside it.
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
    """The whole batches of a log file from ``start`` on. Of large batches only the headers are read.

    Ends before a batch that is not whole. Raises `CorruptBatchError` at an impossible size or format.
    """
    for entry, position, data in walk(file, start, end, window=_WINDOW_BYTES, whole=False):
        yield _facts(data, entry, position, file.path)


def _facts(data: Buffer, entry: Entry, position: int, file: str) -> BatchFacts:
    at, size, offset, magic = entry
    if magic == 2:
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
    if size < MIN_ENTRY + 8 * magic:
        raise CorruptBatchError(f"{size} bytes of format {magic}", position=position, file=file, offset=offset)
    codec = data[at + MAGIC_POSITION + 1] & CODEC_MASK
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
