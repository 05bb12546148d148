"""The text of ``.index``, ``.timeindex``, ``.txnindex`` and ``.snapshot`` files as Kafka 4.4's DumpLogSegments does.

Entries are compared with the log beside them; mismatches go to stderr, in Kafka's words. Not all of them are damage:
up to Kafka 3.9 an index entry stands for a whole append, and a time index entry may point into a batch.
"""

from __future__ import annotations

import os.path
from bisect import bisect_left
from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple

from crc32c import crc32c

from seglog.cli.dump.lax_records import lax_messages, lax_records
from seglog.cli.dump.log_text import DumpOptions, base_offset
from seglog.cli.offline.files import open_file, read_file
from seglog.cli.output import Out
from seglog.core.errors import CorruptError, CorruptIndexError, CorruptSnapshotError
from seglog.core.fs import File, Fs
from seglog.core.types import MAX_INT32, NO_TIMESTAMP
from seglog.records.batch import LOG_OVERHEAD, MAGIC_POSITION, read_header
from seglog.records.java_text import int32, int64, optional_long
from seglog.storage.formats.paths import INDEX, LOG
from seglog.storage.log.index import OFFSET_ENTRY, TIME_ENTRY
from seglog.storage.offline.batch_reading import read_chunks

_WARM_BYTES: Final = 8192
"""The end of an index, which Kafka searches first (``AbstractIndex.java``)."""
_TXN_ENTRY: Final = Struct(">hqqqq")
_SNAPSHOT_HEADER: Final = Struct(">hIi")
_SNAPSHOT_ENTRY: Final = Struct(">qhiqiqiq")
_SNAPSHOT_CRC_START: Final = 6
assert (_TXN_ENTRY.size, _SNAPSHOT_HEADER.size, _SNAPSHOT_ENTRY.size) == (34, 10, 46)


class IndexFindings(NamedTuple):
    """Mismatches as lines for stderr, and how many of them are damage."""

    lines: list[str]
    damage: int


class _LogBatch(NamedTuple):
    """A batch of the log, with the fields that indexes refer to."""

    position: int
    size: int
    first_offset: int
    last_offset: int


def dump_offset_index(fs: Fs, path: str, shown: str, options: DumpOptions, out: Out) -> IndexFindings:
    """Print an ``.index``. ``shown``: the path in the text. Raises `CorruptIndexError` where Kafka's tool stops."""
    base = base_offset(os.path.basename(path))
    log = open_file(fs, _beside(path, LOG))
    data = read_file(fs, path)
    count = len(data) // OFFSET_ENTRY.size
    if count == 0:
        out.line(f"{shown} is empty.")
        return IndexFindings([], 0)
    if options.sanity_only:
        _check_sanity(path, data, OFFSET_ENTRY, base)
        out.line(f"{shown} passed sanity check.")
        return IndexFindings([], 0)
    mismatches: dict[int, int] = {}
    damage = 0
    for slot in range(count):
        relative, position = OFFSET_ENTRY.unpack_from(data, slot * OFFSET_ENTRY.size)
        if relative == 0 and slot:
            break
        offset = base + relative
        batch = _batch_at(log, position, options.max_message_bytes)
        if batch is None:
            raise CorruptIndexError(
                f"entry {slot} has offset {offset} at position {position}, but no whole batch begins there",
                position=slot * OFFSET_ENTRY.size,
                file=path,
                offset=offset,
            )
        if batch.last_offset != offset:
            mismatches[offset] = batch.last_offset
            damage += batch.first_offset > offset
        if not options.quiet:
            out.line(f"offset: {offset} position: {position}")
    lines = [
        f"  Index offset: {offset}, log offset: {found}" for offset, found in sorted(mismatches.items(), reverse=True)
    ]
    return IndexFindings([f"Mismatches in :{os.path.abspath(shown)}", *lines] if lines else [], damage)


def dump_time_index(fs: Fs, path: str, shown: str, options: DumpOptions, out: Out) -> IndexFindings:
    """Print a ``.timeindex``; needs the ``.log`` and the ``.index`` beside it."""
    base = base_offset(os.path.basename(path))
    log = open_file(fs, _beside(path, LOG))
    index = read_file(fs, _beside(path, INDEX))
    data = read_file(fs, path)
    if options.sanity_only:
        _check_sanity(path, data, TIME_ENTRY, base)
        out.line(f"{shown} passed sanity check.")
        return IndexFindings([], 0)
    problems = _TimeProblems()
    batches = _Batches(log)
    previous = NO_TIMESTAMP
    for slot in range(len(data) // TIME_ENTRY.size):
        timestamp, relative = TIME_ENTRY.unpack_from(data, slot * TIME_ENTRY.size)
        if relative == 0 and slot:
            break
        offset = base + relative
        batch = batches.first_reaching(offset, _lookup(index, relative))
        if batch is None or batch.last_offset != offset:
            is_damage = batch is None or batch.first_offset > offset
            problems.not_in_log(offset, -1 if batch is None else batch.last_offset, is_damage=is_damage)
        else:
            timestamps = _timestamps(log, batch)
            largest = max(timestamps, default=NO_TIMESTAMP)
            if largest != timestamp:
                # The cleaner keeps the entries of batches that it emptied.
                problems.mismatch(timestamp, largest, is_damage=bool(timestamps))
            if previous >= timestamp:
                problems.disorder(timestamp, previous)
        if not options.quiet:
            out.line(f"timestamp: {timestamp} offset: {offset}")
        previous = timestamp
    return problems.findings(os.path.abspath(shown))


def dump_txn_index(fs: Fs, path: str, out: Out) -> None:
    """Print a ``.txnindex``. Like Kafka, ignore bytes after the last whole entry."""
    data = read_file(fs, path)
    entries = list(_TXN_ENTRY.iter_unpack(data[: len(data) // _TXN_ENTRY.size * _TXN_ENTRY.size]))
    for slot, (version, *_) in enumerate(entries):
        if version:
            raise CorruptIndexError(f"unknown version {version}", position=slot * _TXN_ENTRY.size, file=path)
    for _, producer_id, first, last, stable in entries:
        out.line(
            f"version: 0 producerId: {producer_id} firstOffset: {first} lastOffset: {last} lastStableOffset: {stable}"
        )


def dump_snapshot(fs: Fs, path: str, out: Out) -> None:
    """Print a line for each producer, in file order. Raises `CorruptSnapshotError` before the first line.

    As in ``ProducerStateManager.readSnapshot``, bytes after the last entry are ignored if the CRC covers them;
    `seglog.storage.log.producers` refuses them.
    """
    for fields in _snapshot_entries(read_file(fs, path), path):
        producer_id, epoch, last_sequence, last_offset, delta, timestamp, coordinator_epoch, txn = fields
        text = (
            f"producerId: {producer_id} producerEpoch: {epoch} coordinatorEpoch: {coordinator_epoch} "
            f"currentTxnFirstOffset: {optional_long(txn if txn >= 0 else None)} lastTimestamp: {timestamp}"
        )
        if last_offset >= 0:
            text += (
                f" firstSequence: {_decrement_sequence(last_sequence, delta)} lastSequence: {last_sequence} "
                f"lastOffset: {last_offset} offsetDelta: {delta} timestamp: {timestamp}"
            )
        out.line(text)


class _TimeProblems:
    """Entries of a time index that the log contradicts, each with the log's value."""

    def __init__(self) -> None:
        self.mismatched: list[tuple[int, int]] = []
        self.disordered: list[tuple[int, int]] = []
        self.not_found: list[tuple[int, int]] = []
        self.damage = 0

    def not_in_log(self, offset: int, found: int, *, is_damage: bool) -> None:
        self.not_found.append((offset, found))
        self.damage += is_damage

    def mismatch(self, timestamp: int, largest: int, *, is_damage: bool) -> None:
        self.mismatched.append((timestamp, largest))
        self.damage += is_damage

    def disorder(self, timestamp: int, previous: int) -> None:
        self.disordered.append((timestamp, previous))
        self.damage += 1

    def findings(self, path: str) -> IndexFindings:
        lines: list[str] = []
        if self.mismatched:
            lines.append(f"Found timestamp mismatch in :{path}")
            lines += [f"  Index timestamp: {entry}, log timestamp: {found}" for entry, found in self.mismatched]
        if self.disordered:
            lines.append(f"Found out of order timestamp in :{path}")
            lines += [f"  Index timestamp: {entry}, Previously indexed timestamp: {p}" for entry, p in self.disordered]
        if self.not_found:
            lines.append(f"The following indexed offsets are not found in :{path}")
            lines += [f"Indexed offset: {entry}, found log offset: {found}" for entry, found in self.not_found]
        return IndexFindings(lines, self.damage)


class _Batches:
    """The batches of a log in file order, read once."""

    def __init__(self, log: File) -> None:
        self._log = log
        self._batches: list[_LogBatch] = []
        self._error: CorruptError | None = None
        try:
            self._batches += _walk(log, 0)
        except CorruptError as error:
            self._error = error
        self._rises = all(a.last_offset < b.last_offset for a, b in zip(self._batches, self._batches[1:], strict=False))

    def first_reaching(self, offset: int, position: int) -> _LogBatch | None:
        """The first batch from ``position`` on whose last offset is at or above ``offset``."""
        if not 0 <= position <= self._log.size():
            raise CorruptIndexError(f"the index has position {position} for offset {offset}", file=self._log.path)
        slot = bisect_left(self._batches, position, key=lambda batch: batch.position)
        following = self._batches[slot:] if slot else self._batches
        if not following or following[0].position != position:
            following = list(_walk(self._log, position))
        elif self._error is not None:  # Kafka reads to the end of the log before it compares
            raise self._error
        if self._rises:
            slot = bisect_left(following, offset, key=lambda batch: batch.last_offset)
            return following[slot] if slot < len(following) else None
        return next((batch for batch in following if batch.last_offset >= offset), None)


def _walk(log: File, start: int) -> Iterator[_LogBatch]:
    for chunk in read_chunks(log, start):
        for entry in chunk.entries:
            yield _describe(log, chunk.data, entry.position, chunk.position + entry.position, entry.size)


def _describe(log: File, data: bytes, at: int, position: int, size: int) -> _LogBatch:
    offset = int.from_bytes(data[at : at + 8], signed=True)
    if data[at + MAGIC_POSITION] in (0, 1):
        return _LogBatch(position, size, offset, offset)
    delta = int.from_bytes(data[at + 23 : at + 27] if size >= 27 else log.pread(4, position + 23), signed=True)
    return _LogBatch(position, size, offset, int64(offset + delta))


def _batch_at(log: File, position: int, limit: int) -> _LogBatch | None:
    """The batch at a position, if it is whole and no larger than ``limit`` bytes."""
    size = log.size()
    if not 0 <= position <= size:
        return None
    prefix = log.pread(MAGIC_POSITION + 1 + 10, position)
    end = min(size, position + limit)
    if position >= end - MAGIC_POSITION - 1:
        return None
    length = int.from_bytes(prefix[8:12], signed=True)
    if length < 14 or position > end - LOG_OVERHEAD - length:
        return None
    return _describe(log, prefix, 0, position, length + LOG_OVERHEAD)


def _timestamps(log: File, batch: _LogBatch) -> list[int]:
    data = log.pread(batch.size, batch.position)
    if data[MAGIC_POSITION] in (0, 1):
        return [message.timestamp for message in lax_messages(data, 0, len(data))]
    return [timestamp for _, timestamp, *_ in lax_records(data, 0, len(data), read_header(data))]


def _lookup(index: bytes, target: int) -> int:
    """The position from which Kafka searches for a relative offset (``AbstractIndex.indexSlotRangeFor``).

    Unlike ours, its search includes the zeros of a pre-allocated index.
    """
    count = len(index) // OFFSET_ENTRY.size
    if count == 0:
        return 0

    def entry(slot: int) -> tuple[int, int]:
        relative, position = OFFSET_ENTRY.unpack_from(index, slot * OFFSET_ENTRY.size)
        return relative, position

    low, high = 0, max(0, count - 1 - _WARM_BYTES // OFFSET_ENTRY.size)
    if entry(high)[0] < target:
        low, high = high, count - 1
    elif entry(0)[0] > target:
        return 0
    while low < high:
        middle = (low + high + 1) // 2
        relative, position = entry(middle)
        if relative == target:
            return position
        if relative > target:
            high = middle - 1
        else:
            low = middle
    return entry(low)[1]


def _check_sanity(path: str, data: bytes, entry: Struct, base: int) -> None:
    """Check what a broker checks at its start (``OffsetIndex.sanityCheck``, ``TimeIndex.sanityCheck``)."""
    reason = None
    count = len(data) // entry.size
    if count:
        first, last = entry.unpack_from(data, 0), entry.unpack_from(data, (count - 1) * entry.size)
        relative = last[0] if entry is OFFSET_ENTRY else last[1]
        if entry is TIME_ENTRY and last[0] < first[0]:
            reason = f"its last timestamp {last[0]} is before its first, {first[0]}"
        elif relative < 0:
            reason = f"its last offset {base + relative} is below the base offset {base}"
    if reason is None and len(data) % entry.size:
        reason = f"its {len(data)} bytes are not a multiple of {entry.size}"
    if reason is not None:
        raise CorruptIndexError(reason, file=path)


def _beside(path: str, kind: str) -> str:
    return os.path.join(os.path.dirname(path), os.path.basename(path).split(".")[0] + kind)


def _snapshot_entries(data: bytes, path: str) -> list[tuple[int, ...]]:
    if len(data) < _SNAPSHOT_HEADER.size:
        raise CorruptSnapshotError(f"{len(data)} bytes are too few for a snapshot", file=path)
    version, crc, count = _SNAPSHOT_HEADER.unpack_from(data)
    if version != 1:
        raise CorruptSnapshotError(f"unknown version {version}", position=0, file=path)
    if not 0 <= count <= (len(data) - _SNAPSHOT_HEADER.size) // _SNAPSHOT_ENTRY.size:
        raise CorruptSnapshotError(f"{count} entries in {len(data)} bytes", position=_SNAPSHOT_CRC_START, file=path)
    computed = crc32c(memoryview(data)[_SNAPSHOT_CRC_START:])
    if crc != computed:
        raise CorruptSnapshotError(f"the stored CRC {crc} differs from the computed {computed}", position=2, file=path)
    return [
        _SNAPSHOT_ENTRY.unpack_from(data, _SNAPSHOT_HEADER.size + slot * _SNAPSHOT_ENTRY.size) for slot in range(count)
    ]


def _decrement_sequence(sequence: int, decrement: int) -> int:
    """``DefaultRecordBatch.decrementSequence``: wraps from 0 to 2^31-1."""
    if sequence < decrement:
        return int32(MAX_INT32 - (decrement - sequence) + 1)
    return int32(sequence - decrement)
