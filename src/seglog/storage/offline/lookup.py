"""Finds an offset or a timestamp in a partition as the log does, and records each step to explain it.

The rules are those of `seglog.storage.log.log` (``UnifiedLog.read``, ``LogSegment.findOffsetByTimestamp``). A step
names the choice and its reason, with the numbers that decided.
"""

from __future__ import annotations

import os.path
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from seglog.core.errors import CorruptError, OffsetOutOfRangeError
from seglog.core.fs import Fs
from seglog.core.types import NO_TIMESTAMP
from seglog.records import any_magic
from seglog.records.batch import Entry
from seglog.records.record import Record
from seglog.storage.formats.checkpoints import read_offsets
from seglog.storage.formats.paths import LOG_START_OFFSETS, SegmentPaths, list_segments, partition_at
from seglog.storage.log.index import OFFSET_ENTRY, TIME_ENTRY, count_offset_entries, count_time_entries, last_true
from seglog.storage.offline.batch_reading import BatchFacts, iter_headers

Fact = int | str | None
_MOST_VISITS = 1000


class LookupStep(NamedTuple):
    """One decision. ``what``: segment, timeindex, index, scan, batch or record; ``why``: the reason.

    ``visits``: the slots of an index that the binary search read, in this order, or the positions of the first
    thousand batches that a scan read.
    """

    what: str
    why: str
    facts: Mapping[str, Fact]
    visits: Sequence[int] = ()


class RecordLocation(NamedTuple):
    """A record, with its segment and batch."""

    segment: SegmentPaths
    batch: BatchFacts
    record: Record


class Lookup(NamedTuple):
    """The steps of a look-up, and the record that it found, or None."""

    steps: list[LookupStep]
    found: RecordLocation | None


class _Search:
    """The goal of a look-up, and its steps so far."""

    def __init__(
        self, fs: Fs, goal: str, is_batch: Callable[[BatchFacts], bool], is_record: Callable[[Record], bool]
    ) -> None:
        self._fs = fs
        self._goal = goal
        self._is_batch = is_batch
        self._is_record = is_record
        self.steps: list[LookupStep] = []

    def note(self, what: str, why: str, visits: Sequence[int] = (), /, **facts: Fact) -> None:
        self.steps.append(LookupStep(what, why, facts, visits))

    def in_segment(self, segment: SegmentPaths, near: int, log_start: int) -> RecordLocation | None:
        """Search a segment from the index entry for offset ``near``."""
        near = max(near, log_start)
        start = self._position(segment, near)
        scanned = end = 0
        visits: list[int] = []
        for batch in iter_headers(self._fs.open(segment.log, write=False), start):
            scanned += 1
            end = batch.end
            if scanned <= _MOST_VISITS:
                visits.append(batch.position)
            if batch.last_offset < log_start or not self._is_batch(batch):
                continue
            why = f"the first batch with {self._goal}"
            self.note("scan", why, visits[:], batches=scanned, bytes=end - start, position=batch.position)
            found = self._in_batch(segment, batch, log_start)
            if found is not None:
                return found
        walked = max(end - start, 0)
        self.note("scan", f"no more batches with {self._goal}", visits, batches=scanned, bytes=walked, position=None)
        return None

    def _position(self, segment: SegmentPaths, offset: int) -> int:
        """The position to start reading at, by the offset index."""
        data = self._fs.read(segment.offset_index) if self._fs.exists(segment.offset_index) else b""
        count = count_offset_entries(data)
        target = offset - segment.base_offset
        visits: list[int] = []

        def is_at_or_below(slot: int) -> bool:
            visits.append(slot)
            return bool(OFFSET_ENTRY.unpack_from(data, slot * OFFSET_ENTRY.size)[0] <= target)

        slot = last_true(count, is_at_or_below)
        following = None
        if slot + 1 < count:
            following = segment.base_offset + OFFSET_ENTRY.unpack_from(data, (slot + 1) * OFFSET_ENTRY.size)[0]
        if slot < 0:
            why = f"no entry at or below offset {offset}: read from the segment's start"
            self.note("index", why, visits, slot=None, entries=count, offset=None, position=0, nextOffset=following)
            return 0
        relative, position = OFFSET_ENTRY.unpack_from(data, slot * OFFSET_ENTRY.size)
        found = segment.base_offset + relative
        why = f"the last entry at or below offset {offset}"
        self.note("index", why, visits, slot=slot, entries=count, offset=found, position=position, nextOffset=following)
        return int(position)

    def _in_batch(self, segment: SegmentPaths, batch: BatchFacts, log_start: int) -> RecordLocation | None:
        data = self._fs.open(segment.log, write=False).pread(batch.size, batch.position)
        entry = Entry(0, batch.size, batch.last_offset, batch.magic)
        try:
            any_magic.check(data, entry)
            records = any_magic.decode(data, entry)
        except CorruptError as error:
            raise error.at(file=segment.log, base=batch.position, offset=batch.last_offset) from None
        first = records[0].offset if records else batch.first_offset
        self.note(
            "batch", "its CRC is right", position=batch.position, size=batch.size, firstOffset=first,
            lastOffset=batch.last_offset, records=len(records), maxTimestamp=batch.max_timestamp,
        )  # fmt: skip
        for number, record in enumerate(records):
            if record.offset >= log_start and self._is_record(record):
                why = f"the first with {self._goal}"
                self.note("record", why, number=number, offset=record.offset, timestamp=record.timestamp)
                return RecordLocation(segment, batch, record)
        self.note("record", f"none with {self._goal}: on to the next batch", number=None, offset=None, timestamp=None)
        return None


def find_offset(fs: Fs, partition: str, offset: int) -> Lookup:
    """Find the record at ``offset``, or the next one if compaction removed it. Raises `OffsetOutOfRangeError`."""
    segments = list_segments(fs, partition)
    bases = [segment.base_offset for segment in segments]
    chosen = bisect_right(bases, offset) - 1
    log_start = _log_start(fs, partition, bases)
    if chosen < 0 or offset < log_start:
        where = f"it starts at {log_start}" if bases else "it has no segments"
        raise OffsetOutOfRangeError(f"offset {offset} is not in the log: {where}")
    search = _Search(
        fs,
        f"offset {offset} or later",
        lambda batch: batch.last_offset >= offset,
        lambda record: record.offset >= offset,
    )
    following = bases[chosen + 1] if chosen + 1 < len(bases) else None
    why = f"the last that starts at or below {offset}"
    for segment in segments[chosen:]:
        next_base = following if segment is segments[chosen] else None
        name = os.path.basename(segment.log)
        search.note("segment", why, file=name, baseOffset=segment.base_offset, nextBaseOffset=next_base)
        found = search.in_segment(segment, offset, log_start)
        if found is not None:
            return Lookup(search.steps, found)
        why = "the next one, since the one before has no such batch"
    ends = [batch.last_offset + 1 for batch in iter_headers(fs.open(segments[-1].log, write=False))]
    raise OffsetOutOfRangeError(f"offset {offset} is not in the log: its end is {ends[-1] if ends else bases[-1]}")


def find_timestamp(fs: Fs, partition: str, timestamp: int) -> Lookup:
    """Find the first record, in offset order, that is not earlier than ``timestamp`` (ms)."""
    search = _Search(
        fs,
        f"timestamp {timestamp} or later",
        lambda batch: batch.max_timestamp >= timestamp,
        lambda record: record.timestamp >= timestamp,
    )
    segments = list_segments(fs, partition)
    log_start = _log_start(fs, partition, [segment.base_offset for segment in segments])
    for segment in segments:
        data = fs.read(segment.timeindex) if fs.exists(segment.timeindex) else b""
        largest = largest_timestamp(fs, segment)
        chosen = largest >= timestamp
        why = f"its largest timestamp is {'not ' if chosen else ''}earlier than {timestamp}"
        name = os.path.basename(segment.log)
        search.note("segment", why, file=name, maxTimestamp=largest, chosen=str(chosen).lower())
        if chosen:
            found = search.in_segment(segment, _time_entry(search, segment, data, timestamp), log_start)
            if found is not None:
                return Lookup(search.steps, found)
    return Lookup(search.steps, None)


def _log_start(fs: Fs, partition: str, bases: list[int]) -> int:
    """The log start: the first segment's offset, or a later one after DeleteRecords."""
    parsed = partition_at(partition)
    first = bases[0] if bases else 0
    checkpoint = os.path.join(os.path.dirname(os.path.abspath(partition)), LOG_START_OFFSETS)
    if parsed is None or not fs.exists(checkpoint):
        return first
    return max(first, read_offsets(fs, checkpoint).get(parsed.topic_partition, first))


def _time_entry(search: _Search, segment: SegmentPaths, data: bytes, timestamp: int) -> int:
    """The offset to search the timestamp from, by the time index."""
    count = count_time_entries(data)
    visits: list[int] = []

    def is_at_or_before(slot: int) -> bool:
        visits.append(slot)
        return bool(TIME_ENTRY.unpack_from(data, slot * TIME_ENTRY.size)[0] <= timestamp)

    slot = last_true(count, is_at_or_before)
    following = TIME_ENTRY.unpack_from(data, (slot + 1) * TIME_ENTRY.size)[0] if slot + 1 < count else None
    if slot < 0:
        why = f"no entry at or before {timestamp}: look from the segment's first offset"
        facts: dict[str, Fact] = {"slot": None, "timestamp": None, "offset": segment.base_offset}
    else:
        found, relative = TIME_ENTRY.unpack_from(data, slot * TIME_ENTRY.size)
        why = f"the last entry at or before {timestamp}"
        facts = {"slot": slot, "timestamp": found, "offset": segment.base_offset + relative}
    search.note("timeindex", why, visits, entries=count, nextTimestamp=following, **facts)
    return int(str(facts["offset"]))


def largest_timestamp(fs: Fs, segment: SegmentPaths) -> int:
    """The largest timestamp of a segment: of the time index, or of a batch behind the last index entry."""
    data = fs.read(segment.timeindex) if fs.exists(segment.timeindex) else b""
    count = count_time_entries(data)
    largest = TIME_ENTRY.unpack_from(data, (count - 1) * TIME_ENTRY.size)[0] if count else NO_TIMESTAMP
    index = fs.read(segment.offset_index) if fs.exists(segment.offset_index) else b""
    entries = count_offset_entries(index)
    start = OFFSET_ENTRY.unpack_from(index, (entries - 1) * OFFSET_ENTRY.size)[1] if entries and count else 0
    for batch in iter_headers(fs.open(segment.log, write=False), start):
        largest = max(largest, batch.max_timestamp)
    return int(largest)
