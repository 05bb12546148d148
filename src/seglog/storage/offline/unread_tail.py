"""The offsets at the end of a partition that no consumer gets a record from.

A consumer that commits "last record + 1" never reaches the log's end if markers, aborted records or gaps of compaction
are the last offsets; its lag is then not a backlog. Batch headers are read, and the records of two batches: that with
the committed offset, and the last one with a record that a consumer gets.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from enum import Enum
from typing import Final, NamedTuple

from seglog.core.errors import CorruptError
from seglog.core.fs import File, Fs
from seglog.records import any_magic
from seglog.records.batch import CODEC_MASK, MAGIC_POSITION, BatchHeader, Entry, read_header
from seglog.records.record import ControlType, parse_control
from seglog.storage.formats.batch_walk import HEADERS, walk
from seglog.storage.formats.paths import SegmentPaths, list_segments
from seglog.storage.log.index import OFFSET_ENTRY, count_offset_entries, find_offset
from seglog.storage.log.transaction_index import AbortedTxn


class Content(Enum):
    """What a batch has for a consumer."""

    RECORDS = "records"
    ABORTED = "records of an aborted transaction"
    COMMIT = "commit marker"
    ABORT = "abort marker"
    CONTROL = "control record"
    EMPTY = "offsets whose records compaction removed"


class TailBatch(NamedTuple):
    """A batch near the log's end. ``records`` is None if the header does not have the number (format 0 and 1)."""

    segment: str
    position: int
    size: int
    magic: int
    first_offset: int
    last_offset: int
    records: int | None
    content: Content
    producer_id: int


class UnreadTail(NamedTuple):
    """The end of a partition for a consumer that reads up to ``end``, or from ``start`` on.

    ``readable`` records lie from ``start`` to ``end``; None if it was not asked, or cannot be known without reading all
    of them. ``last_readable`` is the offset of the last record that a consumer gets; None if there is none from
    ``start`` on. ``rest`` are the batches after it, and ``gap`` the offsets between that record and its batch's end.
    """

    start: int | None
    end: int
    readable: int | None
    last_readable: int | None
    rest: tuple[TailBatch, ...]
    gap: int

    @property
    def unread_from(self) -> int:
        """The offset that a consumer commits after the last record that it gets."""
        if self.last_readable is not None:
            return self.last_readable + 1
        if self.start is not None:
            return min(self.start, self.end)
        return min(self.rest[0].first_offset, self.end) if self.rest else self.end


def read_tail(
    fs: Fs, partition: str, *, end: int, aborted: Sequence[AbortedTxn], committed_only: bool, start: int | None = None
) -> UnreadTail:
    """Look at the batches before ``end``: from ``start`` on, or else back to the last one with a record.

    ``aborted``: the aborted transactions, whose records count unless ``committed_only``. `CorruptError` names file and
    position.
    """
    skipped = _Aborted(aborted if committed_only else ())
    segments = list_segments(fs, partition)
    batches = _near_end(fs, segments, end, skipped) if start is None else _from(fs, segments, start, end, skipped)
    last = max((at for at, one in enumerate(batches) if one.content is Content.RECORDS), default=-1)
    offsets = [offset for offset in _offsets(fs, batches[last]) if (start or 0) <= offset < end] if last >= 0 else []
    readable = None if start is None else _count(fs, batches, start, end)
    last_readable = offsets[-1] if offsets else None
    gap = min(batches[last].last_offset + 1, end) - last_readable - 1 if last_readable is not None else 0
    return UnreadTail(start, end, readable, last_readable, tuple(batches[last + 1 :]), gap)


def _from(fs: Fs, segments: Sequence[SegmentPaths], start: int, end: int, aborted: _Aborted) -> list[TailBatch]:
    found: list[TailBatch] = []
    for at, segment in enumerate(segments):
        if segment.base_offset < end and (at + 1 == len(segments) or segments[at + 1].base_offset > start):
            index, count = _index(fs, segment)
            position = find_offset(index, count, segment.base_offset, start).position
            found += _batches(fs, segment, position, end, aborted)
    return [one for one in found if one.last_offset >= start]


def _near_end(fs: Fs, segments: Sequence[SegmentPaths], end: int, aborted: _Aborted) -> list[TailBatch]:
    """Back to the last batch with a record: in each segment first what follows its last index entry."""
    later: list[TailBatch] = []
    for segment in reversed(segments):
        index, count = _index(fs, segment)
        here: list[TailBatch] = []
        for back in (1, 16, 256, count + 1):
            slot = count - min(back, count + 1)
            position = OFFSET_ENTRY.unpack_from(index, slot * OFFSET_ENTRY.size)[1] if slot >= 0 else 0
            here = list(_batches(fs, segment, position, end, aborted))
            if any(one.content is Content.RECORDS for one in here):
                return here + later
            if slot < 0:
                break
        later = here + later
    return later


def _index(fs: Fs, segment: SegmentPaths) -> tuple[bytes, int]:
    data = fs.read(segment.offset_index) if fs.exists(segment.offset_index) else b""
    return data, count_offset_entries(data)


class _Aborted:
    """The aborted transactions by producer."""

    def __init__(self, transactions: Sequence[AbortedTxn]) -> None:
        self._of: dict[int, list[AbortedTxn]] = {}
        for one in transactions:
            self._of.setdefault(one.producer_id, []).append(one)

    def has(self, producer_id: int, offset: int) -> bool:
        return any(one.first_offset <= offset <= one.last_offset for one in self._of.get(producer_id, ()))


def _batches(fs: Fs, segment: SegmentPaths, position: int, end: int, aborted: _Aborted) -> Iterator[TailBatch]:
    """The batches from ``position`` on that begin before offset ``end``."""
    with closing(fs.open(segment.log, write=False)) as file:
        for entry, at, data in walk(file, position, window=HEADERS, whole=False):
            if entry.magic < 2:
                records = None if data[entry.position + MAGIC_POSITION + 1] & CODEC_MASK else 1
                first, content, producer_id = entry.offset, Content.RECORDS, -1
                last = first
            else:
                header = read_header(data, entry.position)
                records, first, last, producer_id = (
                    header.records_count, header.base_offset, header.last_offset, header.producer_id,
                )  # fmt: skip
                content = _content(file, header, at, aborted)
            if first >= end:
                return
            yield TailBatch(segment.log, at, entry.size, entry.magic, first, last, records, content, producer_id)


def _content(file: File, header: BatchHeader, position: int, aborted: _Aborted) -> Content:
    if not header.records_count:
        return Content.EMPTY
    if not header.is_control:
        is_aborted = header.is_transactional and aborted.has(header.producer_id, header.base_offset)
        return Content.ABORTED if is_aborted else Content.RECORDS
    data = file.pread(header.size, position)
    try:
        records = any_magic.decode(data, Entry(0, header.size, header.base_offset, header.magic))
        return _CONTROLS.get(parse_control(records[0]).type, Content.CONTROL)
    except CorruptError as error:
        raise error.at(file=file.path, base=position, offset=header.base_offset) from error


_CONTROLS: Final = {ControlType.COMMIT: Content.COMMIT, ControlType.ABORT: Content.ABORT}


def _offsets(fs: Fs, batch: TailBatch) -> list[int]:
    """The offsets of a batch's records."""
    with closing(fs.open(batch.segment, write=False)) as file:
        data = file.pread(batch.size, batch.position)
    entry = Entry(0, batch.size, batch.last_offset, batch.magic)
    try:
        any_magic.check(data, entry)
        return [record.offset for record in any_magic.iterate(data, entry)]
    except CorruptError as error:
        raise error.at(file=batch.segment, base=batch.position, offset=batch.last_offset) from error


def _count(fs: Fs, batches: Sequence[TailBatch], start: int, end: int) -> int | None:
    """The records from ``start`` to ``end``; None if a compressed message of format 0 or 1 hides its number."""
    total = 0
    for one in batches:
        if one.content is not Content.RECORDS:
            continue
        if one.first_offset < start or one.last_offset >= end:
            total += sum(start <= offset < end for offset in _offsets(fs, one))
        elif one.records is None:
            return None
        else:
            total += one.records
    return total
