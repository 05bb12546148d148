"""Reads a range of a segment's file as Arrow, for scans, Spark tasks and exports.

A broker may write, compact or delete the file meanwhile. It is read by position in chunks of a few MiB and never
mapped: truncating a mapped file ends the process.
"""

from __future__ import annotations

import os.path
from collections.abc import Iterator
from contextlib import closing
from typing import Final, NamedTuple

import pyarrow as pa

from seglog.core.errors import CorruptBatchError, CorruptError, OffsetOutOfRangeError
from seglog.core.fs import File, Fs
from seglog.core.large_reads import LARGE_BYTES, await_turn
from seglog.records.batch import LOG_OVERHEAD, MAGIC_POSITION
from seglog.records.batch_kernels import Stop
from seglog.records.batch_tables import BatchTable, walk_batches
from seglog.records.column_decoding import DecodedRows, Selection
from seglog.records.columns import NOWHERE, SourcePartition
from seglog.storage.formats.paths import parse_file_name
from seglog.storage.offline.batch_boundaries import IndexBoundaries, SegmentBytes
from seglog.storage.offline.chunk_decoding import NOTHING, BatchExclusion, Chunk, OnDamage, decode_chunks

CHUNK_BYTES: Final = 4 << 20
_ALL: Final = Selection()
_BEFORE_MAGIC: Final = MAGIC_POSITION + 1
"""Bytes that hold a batch's size and format."""
_TABLE_ROWS: Final = 16384


class FileRange(NamedTuple):
    """Bytes ``start`` to ``end`` of a log file, from batch boundary to batch boundary; picklable.

    ``end`` None is the file's end. ``is_open``: the file is being written, and a torn batch or pre-allocated zeros end
    it; otherwise these are damage. ``to_end``: check batches up to the end even if their offsets are not wanted.
    ``is_checked``: raise `OffsetOutOfRangeError` if the batch at ``start`` lies behind the lowest wanted offset: the
    file was replaced.
    """

    path: str
    start: int = 0
    end: int | None = None
    is_open: bool = False
    to_end: bool = False
    is_checked: bool = False


def iter_table_batches(
    fs: Fs,
    stretch: FileRange,
    wanted: Selection = _ALL,
    origin: SourcePartition = NOWHERE,
    *,
    leave_out: BatchExclusion = NOTHING,
    chunk_bytes: int = CHUNK_BYTES,
) -> Iterator[pa.RecordBatch]:
    """The records of a range with ``wanted.low <= offset < wanted.high``, in the file's order.

    Holds one chunk at a time, or one batch that is larger, with its decoded records. Raises
    `CorruptBatchError`, `CorruptRecordError`, `TooLargeError` or `UnsupportedFormatError` with file, position and
    offset at the first damage to these offsets, `OffsetOutOfRangeError` if the file became shorter, and OSError.
    """
    for decoded in iter_decoded(fs, stretch, wanted, origin, leave_out=leave_out, chunk_bytes=chunk_bytes):
        if decoded.rows is not None:
            yield decoded.rows


def iter_decoded(
    fs: Fs,
    stretch: FileRange,
    wanted: Selection = _ALL,
    origin: SourcePartition = NOWHERE,
    *,
    leave_out: BatchExclusion = NOTHING,
    chunk_bytes: int = CHUNK_BYTES,
    on_damage: OnDamage | None = None,
) -> Iterator[DecodedRows]:
    """As `iter_table_batches`, with the end offset of each part. With ``on_damage`` damaged batches are left out.

    If bytes are not a batch, reading continues at the next batch in the index. Items without rows have the offset up to
    which everything was read.
    """
    if on_damage is not None:
        on_damage = _naming(stretch.path, on_damage)
    chunks = iter_chunks(fs, stretch, chunk_bytes, on_damage)
    if stretch.is_checked and stretch.start > 0:
        chunks = _not_replaced(chunks, stretch, wanted.low)
    try:
        yield from decode_chunks(
            chunks, wanted, origin, leave_out=leave_out, on_damage=on_damage, to_end=stretch.to_end
        )
    except CorruptError as error:
        raise error.at(file=stretch.path) from None


def _not_replaced(chunks: Iterator[Chunk], stretch: FileRange, low: int) -> Iterator[Chunk]:
    """Check that the first batch of a range is where it was when the range was planned."""
    is_checked = False
    for chunk in chunks:
        if not is_checked and len(chunk.table):
            is_checked = True
            if chunk.table["position"][0] == stretch.start and chunk.table["base_offset"][0] > low:
                raise OffsetOutOfRangeError(f"{stretch.path} was replaced before it was read")
        yield chunk


def _naming(path: str, on_damage: OnDamage) -> OnDamage:
    return lambda error, size: on_damage(error.at(file=path), size)


def iter_tables(fs: Fs, stretch: FileRange) -> Iterator[BatchTable]:
    """The headers of a range, with verdicts on CRCs; `CorruptBatchError` at bytes that are not a batch."""
    try:
        for _, _, table in iter_chunks(fs, stretch, CHUNK_BYTES):
            yield table
    except CorruptError as error:
        raise error.at(file=stretch.path) from None


def iter_chunks(fs: Fs, stretch: FileRange, chunk_bytes: int, on_damage: OnDamage | None = None) -> Iterator[Chunk]:
    """The whole batches of a range, in parts of about ``chunk_bytes``, with verdicts on CRCs. Raises what
    `iter_table_batches` raises about the file and about bytes that are not a batch."""
    with closing(fs.open(stretch.path, write=False)) as file:
        size = file.size()
        if stretch.end is not None and size < stretch.end:
            raise _cut(stretch.path, size)
        limit = size if stretch.end is None else stretch.end
        position = stretch.start
        wanted = chunk_bytes
        while position < limit:
            asked = min(wanted, limit - position)
            if asked > LARGE_BYTES:
                await_turn()
            data = file.pread(asked, position)
            if len(data) < asked:
                raise _cut(stretch.path, file.size())
            walked = None
            for walked in walk_batches(data, base=position, rows=_TABLE_ROWS):
                yield Chunk(data, position, walked.table)
            following, stop = (walked.position, walked.stop) if walked else (position, Stop.TORN)
            is_cut = following == position and _size_at(data) > limit - position
            at_end = position + len(data) >= limit or is_cut
            if stop in (Stop.MAGIC, Stop.SIZE) or (stop == Stop.TORN and at_end):
                try:
                    _check_end(file, stretch, following, limit, stop)
                except CorruptBatchError as error:
                    if on_damage is None:
                        raise
                    position, wanted = _known_behind(fs, stretch.path, following, limit), chunk_bytes
                    on_damage(error, position - following)
                    continue
                return
            # A batch that is larger than a chunk is read alone, by the size that it says.
            wanted = chunk_bytes if following > position else max(chunk_bytes, _size_at(data))
            position = following


def _cut(path: str, size: int) -> OffsetOutOfRangeError:
    return OffsetOutOfRangeError(f"{path} was cut to {size} bytes before it was read")


def _known_behind(fs: Fs, path: str, position: int, limit: int) -> int:
    """The first boundary behind ``position`` in the segment's index, otherwise ``limit``."""
    name = parse_file_name(os.path.basename(path))
    boundaries = IndexBoundaries(fs, SegmentBytes(name.base_offset if name else 0, path, limit))
    return boundaries.cut(position, position, limit)


def _size_at(data: bytes) -> int:
    return int.from_bytes(data[8:12], "big") + LOG_OVERHEAD


def _check_end(file: File, stretch: FileRange, position: int, limit: int, stop: Stop) -> None:
    """Raise `CorruptBatchError` unless the bytes at ``position`` are a legal end of an open segment."""
    if stretch.is_open and (stop == Stop.TORN or _is_zeros(file, position, limit)):
        return
    head = file.pread(_BEFORE_MAGIC, position)
    left = limit - position
    if len(head) < _BEFORE_MAGIC:
        raise CorruptBatchError(f"{left} bytes are left, too few for a batch", position=position)
    offset = int.from_bytes(head[:8], "big", signed=True)
    length = int.from_bytes(head[8:12], "big", signed=True)
    magic = int.from_bytes(head[MAGIC_POSITION:], "big", signed=True)
    reason = {
        Stop.MAGIC: f"unknown magic {magic}",
        Stop.SIZE: f"size {length} is under the smallest possible for magic {magic}",
    }.get(stop, f"the batch claims {length + LOG_OVERHEAD} bytes, but only {left} are left")
    raise CorruptBatchError(reason, position=position, offset=offset)


def _is_zeros(file: File, position: int, limit: int) -> bool:
    while position < limit:
        data = file.pread(min(CHUNK_BYTES, limit - position), position)
        if data.count(0) != len(data) or not data:
            return not data
        position += len(data)
    return True
