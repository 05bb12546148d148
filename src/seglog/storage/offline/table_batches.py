"""Reads a range of a segment's file as Arrow, for scans, Spark tasks and exports.

A broker may write, compact or delete the file meanwhile. It is read by position in chunks of a few MiB and never
mapped: truncating a mapped file ends the process.
"""

from __future__ import annotations

import os.path
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from seglog.core.errors import CorruptBatchError, CorruptError, OffsetOutOfRangeError, UnsupportedFormatError
from seglog.core.fs import File, Fs
from seglog.records.batch import CONTROL_BIT, LOG_OVERHEAD, MAGIC_POSITION, TRANSACTIONAL_BIT
from seglog.records.batch_kernels import Stop, Verdict
from seglog.records.batch_tables import BatchTable, walk_batches
from seglog.records.column_decoding import DecodedRows, Selection, decode_parts, plain_error
from seglog.records.columns import NOWHERE, SourcePartition
from seglog.storage.formats.paths import parse_file_name
from seglog.storage.log.transaction_index import AbortedTxn
from seglog.storage.offline.batch_boundaries import IndexBoundaries, SegmentBytes

CHUNK_BYTES: Final = 4 << 20
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


class BatchExclusion(NamedTuple):
    """The batches to leave out: control batches, unless included, and those of ``aborted`` transactions."""

    include_control: bool = False
    aborted: Sequence[AbortedTxn] = ()


_NO_FILTER: Final = BatchExclusion()
_ALL: Final = Selection()


class _Chunk(NamedTuple):
    """The ``table`` of the batches that start in ``data``, which begins at file position ``position``."""

    data: bytes
    position: int
    table: BatchTable


OnDamage = Callable[[CorruptError, int], None]
"""Receives damage, with file and position, and the number of bytes that are left out for it."""


def iter_table_batches(
    fs: Fs,
    stretch: FileRange,
    wanted: Selection = _ALL,
    origin: SourcePartition = NOWHERE,
    *,
    leave_out: BatchExclusion = _NO_FILTER,
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
    leave_out: BatchExclusion = _NO_FILTER,
    chunk_bytes: int = CHUNK_BYTES,
    on_damage: OnDamage | None = None,
) -> Iterator[DecodedRows]:
    """As `iter_table_batches`, with the end offset of each part. With ``on_damage`` damaged batches are left out.

    If bytes are not a batch, reading continues at the next batch in the index. Items without rows have the offset up to
    which everything was read.
    """
    if on_damage is not None:
        on_damage = _naming(stretch.path, on_damage)
    try:
        for chunk in _sound(fs, stretch, wanted, chunk_bytes, on_damage):
            chosen = chunk.table[_selected(chunk.table, wanted, leave_out)]
            if on_damage is None:
                yield from decode_parts(chunk.data, chosen, wanted, origin, base=chunk.position)
            else:
                yield from _decode_what_can_be(chunk, chosen, wanted, origin, on_damage)
            if len(chunk.table):
                yield DecodedRows(int(_last_offsets(chunk.table)[-1]) + 1, None)
    except CorruptError as error:
        raise error.at(file=stretch.path) from None


def _naming(path: str, on_damage: OnDamage) -> OnDamage:
    return lambda error, size: on_damage(error.at(file=path), size)


def _decode_what_can_be(
    chunk: _Chunk, chosen: BatchTable, wanted: Selection, origin: SourcePartition, on_damage: OnDamage
) -> Iterator[DecodedRows]:
    """Decode around damaged records: the batches before them one by one."""
    rest = chosen
    while len(rest):
        try:
            for decoded in decode_parts(chunk.data, rest, wanted, origin, base=chunk.position):
                yield decoded
                rest = rest[int(np.searchsorted(_last_offsets(rest), decoded.upto)) :]
            return
        except CorruptError:
            pass
        is_found = False
        while not is_found and len(rest):
            one, rest = rest[:1], rest[1:]
            try:
                yield from decode_parts(chunk.data, one, wanted, origin, base=chunk.position)
            except CorruptError as error:
                is_found = True
                on_damage(error, int(one["size"][0]))


def iter_tables(fs: Fs, stretch: FileRange) -> Iterator[BatchTable]:
    """The headers of a range, with verdicts on CRCs; `CorruptBatchError` at bytes that are not a batch."""
    try:
        for _, _, table in _chunks(fs, stretch, CHUNK_BYTES):
            yield table
    except CorruptError as error:
        raise error.at(file=stretch.path) from None


def _last_offsets(table: BatchTable) -> npt.NDArray[np.int64]:
    last: npt.NDArray[np.int64] = table["base_offset"] + table["last_offset_delta"]
    return last


def _sound(
    fs: Fs, stretch: FileRange, wanted: Selection, chunk_bytes: int, on_damage: OnDamage | None
) -> Iterator[_Chunk]:
    """Chunks of batches that may have wanted offsets, with right CRCs and rising offsets.

    The header of a damaged batch does not count: sound batches around it decide whether it may have wanted offsets.
    """
    highest = -1
    is_unchecked = stretch.is_checked and stretch.start > 0
    for data, position, table in _chunks(fs, stretch, chunk_bytes, on_damage):
        if not len(table):  # a chunk that holds only a part of a larger batch, which is read next
            continue
        sound = table["verdict"] == Verdict.OK
        if is_unchecked and table["position"][0] == stretch.start and table["base_offset"][0] > wanted.low:
            raise OffsetOutOfRangeError(f"{stretch.path} was replaced before it was read")
        is_unchecked = False
        begins = np.flatnonzero(sound & (table["base_offset"] <= wanted.low))
        ends = np.flatnonzero(sound & (_last_offsets(table) >= wanted.high - 1))
        is_last = len(ends) > 0 and not stretch.to_end
        chosen = slice(int(begins[-1]) if len(begins) else 0, int(ends[0]) + 1 if is_last else len(table))
        upto = np.maximum.accumulate(np.concatenate(([highest], np.where(sound, _last_offsets(table), -1))))
        if on_damage is not None:
            good = sound & (table["base_offset"] > upto[:-1])
            for index in np.flatnonzero(~good[chosen]) + chosen.start:
                on_damage(_damage(data, table, int(index), upto, position, wanted), int(table["size"][index]))
            yield _Chunk(data, position, table[chosen][good[chosen]])
        else:
            for index in np.flatnonzero((~sound)[chosen])[:1] + chosen.start:
                _check_order(table[:index], upto)
                raise plain_error(data, table[index], base=position, limit=wanted.limit)
            _check_order(table[: chosen.stop], upto)
            yield _Chunk(data, position, table[chosen])
        highest = int(upto[-1])
        if is_last:
            return


def _check_order(table: BatchTable, highest: npt.NDArray[np.int64]) -> None:
    """Raise for the first sound batch that begins at or below the ``highest`` offset of sound ones before it."""
    wrong = (table["verdict"] == Verdict.OK) & (table["base_offset"] <= highest[: len(table)])
    for index in np.flatnonzero(wrong):
        raise _out_of_order(table, int(index), highest)


def _out_of_order(table: BatchTable, index: int, highest: npt.NDArray[np.int64]) -> CorruptBatchError:
    offset, position = int(table["base_offset"][index]), int(table["position"][index])
    return CorruptBatchError(f"offset {offset} after {highest[index]}", position=position, offset=offset)


def _damage(
    data: bytes, table: BatchTable, index: int, highest: npt.NDArray[np.int64], position: int, wanted: Selection
) -> CorruptError:
    if table["verdict"][index] == Verdict.OK:
        return _out_of_order(table, index, highest)
    error = plain_error(data, table[index], base=position, limit=wanted.limit)
    if isinstance(error, UnsupportedFormatError):
        raise error
    return error


def _chunks(fs: Fs, stretch: FileRange, chunk_bytes: int, on_damage: OnDamage | None = None) -> Iterator[_Chunk]:
    with closing(fs.open(stretch.path, write=False)) as file:
        size = file.size()
        if stretch.end is not None and size < stretch.end:
            raise _cut(stretch.path, size)
        limit = size if stretch.end is None else stretch.end
        position = stretch.start
        wanted = chunk_bytes
        while position < limit:
            asked = min(wanted, limit - position)
            data = file.pread(asked, position)
            if len(data) < asked:
                raise _cut(stretch.path, file.size())
            walked = None
            for walked in walk_batches(data, base=position, rows=_TABLE_ROWS):
                yield _Chunk(data, position, walked.table)
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
    }.get(stop, f"the batch says {length + LOG_OVERHEAD} bytes, {left} are there")
    raise CorruptBatchError(reason, position=position, offset=offset)


def _is_zeros(file: File, position: int, limit: int) -> bool:
    while position < limit:
        data = file.pread(min(CHUNK_BYTES, limit - position), position)
        if data.count(0) != len(data) or not data:
            return not data
        position += len(data)
    return True


def _selected(table: BatchTable, wanted: Selection, leave_out: BatchExclusion) -> npt.NDArray[np.bool_]:
    """The batches that may have wanted records. The offset of a legacy message is the last one inside."""
    new = table["magic"] == 2
    selected: npt.NDArray[np.bool_] = _last_offsets(table) >= wanted.low
    selected &= ~new | (table["base_offset"] < wanted.high)
    control = new & (table["attributes"] & CONTROL_BIT != 0)
    if not leave_out.include_control:
        selected &= ~control
    if leave_out.aborted:
        transactional = new & ~control & (table["attributes"] & TRANSACTIONAL_BIT != 0)
        selected &= ~(transactional & _aborted(table, leave_out.aborted))
    return selected


def _aborted(table: BatchTable, transactions: Sequence[AbortedTxn]) -> npt.NDArray[np.bool_]:
    """The batches within an aborted transaction of their producer."""
    found = np.zeros(len(table), np.bool_)
    if not len(table):
        return found
    first, last = int(table["base_offset"][0]), int(table["base_offset"][-1])
    for txn in transactions:
        if txn.last_offset >= first and txn.first_offset <= last:
            within = (table["base_offset"] >= txn.first_offset) & (table["base_offset"] <= txn.last_offset)
            found |= within & (table["producer_id"] == txn.producer_id)
    return found
