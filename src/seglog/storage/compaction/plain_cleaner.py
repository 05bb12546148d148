"""The two looks of a round of compaction at a log, in plain Python: batch by batch, record by record."""

from __future__ import annotations

from seglog.core.types import Buffer
from seglog.records import any_magic
from seglog.records.batch import Entry, entries
from seglog.records.record import parse_control
from seglog.storage.compaction.batch_filter import BatchFilter, Transactions
from seglog.storage.compaction.cleaned_segment import CleanedSegment
from seglog.storage.compaction.offset_map import Keys, LastKnown
from seglog.storage.compaction.round import Round


class PlainMapper:
    """`Mapper` in plain Python, one record after the other."""

    def __init__(self, round_: Round, offsets: Keys) -> None:
        self.offsets = offsets
        self.is_full = False
        self.mapped = 0
        self._start = round_.first_dirty
        self._transactions = Transactions(round_.aborted)

    def map_chunk(self, chunk: bytes) -> int:
        used = 0
        for entry in entries(chunk):
            any_magic.check(chunk, entry)
            looked_at, self.is_full = map_batch(chunk, entry, self._start, self.offsets, self._transactions)
            self.mapped += looked_at
            if self.is_full:
                break
            used = entry.position + entry.size
        return used


class PlainFilter(BatchFilter):
    """`Filter` in plain Python."""

    __slots__ = ()

    def __init__(self, round_: Round, offsets: LastKnown) -> None:
        super().__init__(round_, offsets, Transactions(round_.aborted))

    def filter_chunk(self, chunk: bytes, cleaned: CleanedSegment, *, legacy_tombstones_stay: bool) -> int:
        self.legacy_tombstones_stay = legacy_tombstones_stay
        used = 0
        for entry in entries(chunk):
            any_magic.check(chunk, entry)
            filter_batch(chunk, entry, self, cleaned)
            used = entry.position + entry.size
        return used


def map_batch(data: Buffer, entry: Entry, start: int, offsets: Keys, transactions: Transactions) -> tuple[int, bool]:
    """Put the keys of one batch into the map; (records looked at, whether the map was full before the last of them).

    Left out are records before ``start`` (the first dirty offset), without a key, or of an aborted transaction
    (``Cleaner.buildOffsetMapForSegment``).
    """
    header = any_magic.describe(data, entry, deep=False)
    looked_at = 0
    if header.is_control:
        records = any_magic.decode(data, entry)
        transactions.on_control(header, parse_control(records[0]) if records else None)
        looked_at = 1
    elif transactions.on_batch(header):
        looked_at = header.records_count
    else:
        for record in any_magic.decode(data, entry):
            if record.key is not None and record.offset >= start:
                if len(offsets) >= offsets.max_entries:
                    return looked_at, True
                offsets.put(record.key, record.offset)
            looked_at += 1
    if header.last_offset >= start:
        offsets.latest_offset = header.last_offset
    return looked_at, False


def filter_batch(data: Buffer, entry: Entry, batches: BatchFilter, cleaned: CleanedSegment) -> None:
    """Write what stays of the batch at ``entry``."""
    batch = bytes(memoryview(data)[entry.position : entry.position + entry.size])
    entry = entry._replace(position=0)
    left = batches.filter(batch, entry, any_magic.describe(batch, entry, deep=False))
    if left is not None:
        cleaned.add_batch(left.data, left.max_timestamp, left.last_offset)
