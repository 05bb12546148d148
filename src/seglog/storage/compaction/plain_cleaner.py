"""Compaction in plain Python: the rules for one batch, and the loops that map keys and filter batches one by one.

The rules are those of ``Cleaner.java`` (which records stay), ``CleanedTransactionMetadata.java`` (markers) and
``MemoryRecords.filterTo`` (the new batch). `seglog.records.compact_kernels` has the same rules for the common kinds of
batches; a property test compares the two.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from seglog.core.types import NO_TIMESTAMP, Buffer
from seglog.records import any_magic, legacy
from seglog.records.batch import (
    CODEC_MASK,
    CONTROL_BIT,
    DELETE_HORIZON_BIT,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    BatchHeader,
    Entry,
    build_batch,
    entries,
)
from seglog.records.compression import compress
from seglog.records.record import ControlRecord, ControlType, Record, encode_records, parse_control
from seglog.storage.compaction.cleaned_segment import CleanedSegment
from seglog.storage.compaction.offset_map import Keys, LastKnown
from seglog.storage.compaction.round import Round
from seglog.storage.log.transaction_index import AbortedTxn

_KEPT_ATTRIBUTES = CODEC_MASK | TIMESTAMP_TYPE_BIT | TRANSACTIONAL_BIT | CONTROL_BIT


class SeenFlags(Protocol):
    """0 or 1 for each of something: a list, or a column of an array that kernels write to as well."""

    def __getitem__(self, at: int, /) -> int: ...
    def __setitem__(self, at: int, flag: int, /) -> None: ...


class CleanBatch(NamedTuple):
    """The bytes that stand in a batch's place, and what the indexes want to know of them."""

    data: Buffer
    max_timestamp: int
    last_offset: int


class Transactions:
    """Which batches and markers belong to what, as the cleaner walks over a log.

    ``retained`` collects the aborted transactions whose markers stay because records of theirs were seen: the entries
    of the cleaned segment's ``.txnindex``.
    """

    __slots__ = ("_keys", "aborted", "committed", "retained", "seen")

    def __init__(self, aborted: Sequence[AbortedTxn]) -> None:
        self.aborted = sorted(aborted, key=lambda txn: (txn.producer_id, txn.first_offset))
        self.seen: SeenFlags = [0] * len(self.aborted)
        self._keys = [(txn.producer_id, txn.first_offset) for txn in self.aborted]
        self.committed: set[int] = set()
        self.retained: list[AbortedTxn] = []

    def keep_seen_in(self, flags: SeenFlags) -> None:
        """Use this memory for ``seen`` from now on: a zero for each aborted transaction."""
        self.seen = flags

    def last_begun(self, header: BatchHeader) -> int:
        """Which of the producer's aborted transactions began last before the batch ends; -1: none did."""
        at = bisect_right(self._keys, (header.producer_id, header.last_offset)) - 1
        return at if at >= 0 and self._keys[at][0] == header.producer_id else -1

    def on_batch(self, header: BatchHeader) -> bool:
        """Take a data batch into account; whether it is of an aborted transaction."""
        if not header.is_transactional:
            return False
        at = self.last_begun(header)
        if at >= 0 and header.last_offset < self.aborted[at].last_offset:
            self.seen[at] = 1
            return True
        self.committed.add(header.producer_id)
        return False

    def on_control(self, header: BatchHeader, control: ControlRecord | None) -> bool:
        """Take a control batch into account; whether nothing is left for which it would have to stay."""
        if control is None:  # cleaned before
            return True
        if control.type is ControlType.COMMIT:
            if header.producer_id in self.committed:
                self.committed.remove(header.producer_id)
                return False
            return True
        if control.type is ControlType.ABORT:
            at = self.last_begun(header)
            if at >= 0 and self.seen[at]:
                self.seen[at] = 0
                self.retained.append(self.aborted[at])
                return False
            return True
        return False


class BatchCleaner:
    """Filters batches one by one, in the order of the log. Counts what it reads, keeps, and drops for want of a key."""

    __slots__ = ("_last_of", "_legacy_tombstones_stay", "_offsets", "_round", "kept", "keyless", "read", "transactions")

    def __init__(self, round_: Round, offsets: LastKnown, transactions: Transactions) -> None:
        self._round = round_
        self._offsets = offsets
        self._last_of = {record.producer_id: record for record in round_.producers}
        self.transactions = transactions
        self._legacy_tombstones_stay = True
        self.read = 0
        self.kept = 0
        self.keyless = 0

    def keep_legacy_tombstones(self, *, legacy_tombstones_stay: bool) -> None:
        """Whether tombstones of formats 0 and 1 stay in the batches that follow."""
        self._legacy_tombstones_stay = legacy_tombstones_stay

    def filter(self, data: Buffer, entry: Entry, header: BatchHeader) -> CleanBatch | None:
        """The rest of the batch ``data``, whose CRC is right; None: nothing stays, not even an empty batch."""
        if entry.magic < 2:
            return self._filter_legacy(data, entry, header)
        control = header.is_control
        records: list[Record] | None = None
        if control:
            records = any_magic.decode(data, entry)
            first = parse_control(records[0]) if records else None
            unneeded = self.transactions.on_control(header, first)
            horizon = header.delete_horizon_ms
            discard = unneeded and horizon is not None and horizon <= self._round.now_ms
        else:
            unneeded = False
            discard = self.transactions.on_batch(header)
        must_stay = self._must_stay(header)
        if discard and not must_stay:
            return None
        if records is None:
            records = any_magic.decode(data, entry)
        self.read += len(records)
        if discard:
            kept = list[Record]()
        elif control:
            kept = records
        else:
            kept = [record for record in records if self._stays(record, header)]
        if not kept:
            return _emptied(header) if must_stay else None
        self.kept += len(kept)
        marks = unneeded or any(record.value is None for record in kept)
        needs_horizon = marks and header.delete_horizon_ms is None
        if len(kept) == len(records) and not needs_horizon:
            return CleanBatch(data, header.max_timestamp, header.last_offset)
        return _rewritten(header, kept, self._new_horizon if needs_horizon else header.delete_horizon_ms)

    @property
    def _new_horizon(self) -> int:
        """From when on tombstones that are found now may go."""
        return self._round.now_ms + self._round.delete_retention_ms

    def _must_stay(self, header: BatchHeader) -> bool:
        """Whether the batch stays even if it is empty."""
        if header.next_offset == self._round.first_uncleanable:
            return True  # it tells how far the log goes
        last = self._last_of.get(header.producer_id)
        if header.producer_id < 0 or last is None:
            return False
        if last.last_data_offset >= 0:
            return header.last_offset == last.last_data_offset  # it has the producer's last sequence
        return header.is_control and header.producer_epoch == last.epoch  # it has its last epoch

    def _stays(self, record: Record, header: BatchHeader) -> bool:
        if record.offset > self._offsets.latest_offset:
            return True
        if record.key is None:
            self.keyless += 1
            return False
        if record.value is None:
            if header.magic < 2:
                if not self._legacy_tombstones_stay:
                    return False
            elif header.delete_horizon_ms is not None and self._round.now_ms >= header.delete_horizon_ms:
                return False
        return self._offsets.is_last(record.key, record.offset)

    def _filter_legacy(self, data: Buffer, entry: Entry, header: BatchHeader) -> CleanBatch | None:
        """A message, or a compressed one with others inside, becomes a batch of the new format, as by Kafka 4."""
        records = legacy.decode(data, entry)
        self.read += len(records)
        kept = [record for record in records if self._stays(record, header)]
        self.kept += len(kept)
        if kept:
            new = header._replace(
                magic=2, base_offset=kept[0].offset, last_offset_delta=kept[-1].offset - kept[0].offset
            )
            has_tombstones = any(record.value is None for record in kept)
            return _rewritten(new, kept, self._new_horizon if has_tombstones else None)
        if header.next_offset == self._round.first_uncleanable:
            return _emptied(header._replace(magic=2))  # Kafka gives up here: it makes no empty batch of an old message
        return None


def _emptied(header: BatchHeader) -> CleanBatch:
    """The batch without its records (``DefaultRecordBatch.writeEmptyHeader``)."""
    attributes = header.attributes & (TIMESTAMP_TYPE_BIT | TRANSACTIONAL_BIT | CONTROL_BIT)
    empty = header._replace(attributes=attributes, base_timestamp=NO_TIMESTAMP, records_count=0)
    return CleanBatch(build_batch(empty, b""), header.max_timestamp, header.last_offset)


def _rewritten(header: BatchHeader, kept: Sequence[Record], horizon: int | None) -> CleanBatch:
    """A batch of some of its records: at their offsets, with the producer, sequence and last offset of the old one.

    Timestamps count from the delete horizon, if there is one, else from the first record's.
    """
    has_horizon = horizon is not None and horizon >= 0
    base_timestamp = horizon if horizon is not None and has_horizon else kept[0].timestamp
    area: Buffer = encode_records(kept, base_offset=header.base_offset, base_timestamp=base_timestamp)
    if header.codec:
        area = compress(header.codec, area)
    max_timestamp = header.max_timestamp
    if not header.attributes & TIMESTAMP_TYPE_BIT:
        max_timestamp = max(NO_TIMESTAMP, *(record.timestamp for record in kept))
    new = header._replace(
        attributes=header.attributes & _KEPT_ATTRIBUTES | (DELETE_HORIZON_BIT if has_horizon else 0),
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        records_count=len(kept),
    )
    return CleanBatch(build_batch(new, area), max_timestamp, header.last_offset)


class PlainMapper:
    """`ChunkMapper` in plain Python, one record after the other."""

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


class PlainFilter(BatchCleaner):
    """`ChunkFilter` in plain Python."""

    __slots__ = ()

    def __init__(self, round_: Round, offsets: LastKnown) -> None:
        super().__init__(round_, offsets, Transactions(round_.aborted))

    def filter_chunk(self, chunk: bytes, cleaned: CleanedSegment, *, legacy_tombstones_stay: bool) -> int:
        self.keep_legacy_tombstones(legacy_tombstones_stay=legacy_tombstones_stay)
        used = 0
        for entry in entries(chunk):
            any_magic.check(chunk, entry)
            filter_batch(chunk, entry, self, cleaned)
            used = entry.position + entry.size
        return used


def map_batch(data: Buffer, entry: Entry, start: int, offsets: Keys, transactions: Transactions) -> tuple[int, bool]:
    """Put the keys of one batch into the map; (records read, whether the map was full before the last of them).

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
        offsets.read_up_to(header.last_offset)
    return looked_at, False


def filter_batch(data: Buffer, entry: Entry, batches: BatchCleaner, cleaned: CleanedSegment) -> None:
    """Write what stays of the batch at ``entry``."""
    batch = bytes(memoryview(data)[entry.position : entry.position + entry.size])
    entry = entry._replace(position=0)
    left = batches.filter(batch, entry, any_magic.describe(batch, entry, deep=False))
    if left is not None:
        cleaned.add_batch(left.data, left.max_timestamp, left.last_offset)
