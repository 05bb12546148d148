"""The entries of a segment's indexes, and the rules that compare them with the batches of its log. Pure.

An entry of an ``.index`` is the last offset of a batch and the position at which it starts. Kafka up to 3.9 writes one
entry for an append of several batches (by a follower), with the offset of the last batch and the position of the first.
Its cleaner may name the last record instead of the last offset. Both are legal and become notes. The time index tells
an append from a flipped bit: it has no entry in the middle of an append, and one at its end if time advanced in it.

An entry (T, O) of a ``.timeindex``: T is the largest timestamp up to offset O, and O is the last offset of the first
batch that has it. Some versions name the record that has it.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from seglog.core.types import NO_TIMESTAMP
from seglog.records.batch import BatchHeader
from seglog.records.record import Record
from seglog.storage.log.index import OFFSET_ENTRY, TIME_ENTRY
from seglog.storage.offline.findings import Finding, damage

INDEX_BYTES: Final = OFFSET_ENTRY.size
TIME_BYTES: Final = TIME_ENTRY.size


class IndexEntries(NamedTuple):
    """The entries of both index files that are in order: both columns of both files rise strictly.

    Offsets are absolute. ``slots`` and ``time_slots`` are the entries' places in their files. ``open_tail``: one of the
    files has zeros behind its entries, as in a segment that is being written.
    """

    index_file: str
    time_file: str
    offsets: Sequence[int] = ()
    positions: Sequence[int] = ()
    slots: Sequence[int] = ()
    timestamps: Sequence[int] = ()
    time_offsets: Sequence[int] = ()
    time_slots: Sequence[int] = ()
    open_tail: bool = False


NO_ENTRIES: Final = IndexEntries("", "")


Ranges = tuple[tuple[int, int], ...]
"""Ascending ranges of numbers, ends exclusive, that do not touch."""


class AppendStart(NamedTuple):
    """The batch at an entry's position begins with ``base_offset``."""

    slot: int
    base_offset: int


class AppendEnd(NamedTuple):
    """The batch that an entry's offset ends begins with ``base_offset``; ``peak`` is the largest timestamp up to it."""

    slot: int
    base_offset: int
    peak: int


class IndexEvidence(NamedTuple):
    """Index entries that a stretch of the log confirms, at least in part; entries are numbers in `IndexEntries`.

    ``starts``: entries whose position is that of a batch here and whose offset is that of a later batch. ``ends``:
    entries whose offset ends a batch here and whose position is lower. An append of several batches has both.
    ``claimed``: time index entries whose offset is in a batch here. ``last_records``: entries that name a batch's last
    record instead of its last offset. ``inner_times``: time index entries that name a record inside a batch.
    """

    starts: tuple[AppendStart, ...] = ()
    ends: tuple[AppendEnd, ...] = ()
    claimed: Ranges = ()
    last_records: tuple[int, ...] = ()
    inner_times: tuple[int, ...] = ()

    def join(self, behind: IndexEvidence, peak: int) -> IndexEvidence:
        """Join the evidence of the next stretch; ``peak`` is the largest timestamp of this one."""
        if not any(behind):
            return self
        return IndexEvidence(
            self.starts + behind.starts,
            self.ends + tuple(one._replace(peak=max(one.peak, peak)) for one in behind.ends),
            join_ranges(self.claimed, behind.claimed),
            self.last_records + behind.last_records,
            self.inner_times + behind.inner_times,
        )


NO_EVIDENCE: Final = IndexEvidence()


def join_ranges(a: Ranges, b: Ranges) -> Ranges:
    """The ranges of two neighbours; ``b`` begins where ``a`` ends, or later."""
    if a and b and a[-1][1] == b[0][0]:
        return (*a[:-1], (a[-1][0], b[0][1]), *b[1:])
    return a + b


# Reading

_NO_SLOTS: Final[Sequence[int]] = ()


def read_index_entries(
    index: bytes | None, times: bytes | None, base: int, files: tuple[str, str]
) -> tuple[IndexEntries, list[Finding]]:
    """The entries of both files (None: missing), and the findings that need no log."""
    findings: list[Finding] = []
    open_tail = False
    empty: array[int] = array("q")
    offsets, positions, slots = empty, empty, _NO_SLOTS
    timestamps, time_offsets, time_slots = empty, empty, _NO_SLOTS
    if index is not None:
        used = _used(index, INDEX_BYTES, files[0], findings)
        open_tail |= used < len(index) // INDEX_BYTES
        cells = _big_endian("i", index[: used * INDEX_BYTES])
        offsets, positions, slots = _in_order(
            array("q", [base + relative for relative in cells[::2]]),
            array("q", cells[1::2]),
            (base + 1, 1),
            INDEX_BYTES,
            files[0],
            findings,
        )
    if times is not None:
        used = _used(times, TIME_BYTES, files[1], findings)
        open_tail |= used < len(times) // TIME_BYTES
        data = times[: used * TIME_BYTES]
        relative = _big_endian("i", b"".join([data[at + 8 : at + 12] for at in range(0, len(data), TIME_BYTES)]))
        stamps = _big_endian("q", b"".join([data[at : at + 8] for at in range(0, len(data), TIME_BYTES)]))
        timestamps, time_offsets, time_slots = _in_order(
            stamps, array("q", [base + one for one in relative]), (0, base), TIME_BYTES, files[1], findings
        )
    return IndexEntries(*files, offsets, positions, slots, timestamps, time_offsets, time_slots, open_tail), findings


def _used(data: bytes, size: int, file: str, findings: list[Finding]) -> int:
    """The number of entries before the zeros at the end of an index that is being written."""
    if len(data) % size:
        findings.append(damage(file, f"size {len(data)} is not a multiple of {size}", position=len(data)))
    whole = len(data) // size
    if len(data) == size:
        return 1 if size == TIME_BYTES else int(any(data))
    return min(-(-len(data.rstrip(b"\0")) // size), whole)


def _big_endian(code: str, data: bytes) -> array[int]:
    cells = array(code, data)
    if sys.byteorder == "little":
        cells.byteswap()
    return cells


def _in_order(
    first: array[int], second: array[int], lowest: tuple[int, int], size: int, file: str, findings: list[Finding]
) -> tuple[array[int], array[int], Sequence[int]]:
    """Both columns without the entries that do not rise, which become findings; and the slots of the others."""
    if _rises(first, lowest[0]) and _rises(second, lowest[1]):
        return first, second, range(len(first))
    names = ("offset", "position") if size == INDEX_BYTES else ("time", "offset")
    kept: list[int] = []
    previous = (lowest[0] - 1, lowest[1] - 1)
    for slot, here in enumerate(zip(first, second, strict=True)):
        following = (first[slot + 1], second[slot + 1]) if slot + 1 < len(first) else None
        if not _above(here, previous) or (
            following is not None and not _above(following, here) and _above(following, previous)
        ):
            findings.append(
                damage(
                    file,
                    f"entry {slot} says {names[0]} {here[0]}, {names[1]} {here[1]}, between "
                    f"{_pair(names, previous) if kept else 'the start'} and {_pair(names, following)}",
                    position=slot * size,
                )
            )
            continue
        kept.append(slot)
        previous = here
    return array("q", [first[slot] for slot in kept]), array("q", [second[slot] for slot in kept]), kept


def _pair(names: tuple[str, str], entry: tuple[int, int] | None) -> str:
    return f"{names[0]} {entry[0]}, {names[1]} {entry[1]}" if entry is not None else "the end"


def _rises(column: array[int], lowest: int) -> bool:
    if column and column[0] < lowest:
        return False
    return all(map(int.__lt__, column, column[1:]))


def _above(entry: tuple[int, int], other: tuple[int, int]) -> bool:
    return entry[0] > other[0] and entry[1] > other[1]


# Against the log


def slots_at(index: IndexEntries, start: int, end: int) -> range:
    """Index entries whose positions are in ``start`` to ``end`` (exclusive)."""
    return range(bisect_left(index.positions, start), bisect_left(index.positions, end))


def slots_of(index: IndexEntries, first: int, last: int) -> range:
    """Index entries whose offsets are in ``first`` to ``last``."""
    return range(bisect_left(index.offsets, first), bisect_right(index.offsets, last))


def time_slots_of(index: IndexEntries, first: int, last: int) -> range:
    """Time index entries whose offsets are in ``first`` to ``last``."""
    return range(bisect_left(index.time_offsets, first), bisect_right(index.time_offsets, last))


def check_entries(
    index: IndexEntries, position: int, end: int, header: BatchHeader, records: Sequence[Record]
) -> tuple[IndexEvidence, list[Finding]]:
    """Check all entries about the batch from ``position`` to ``end``; no ``records`` if they cannot be decoded."""
    at, of = slots_at(index, position, end), slots_of(index, header.base_offset, header.last_offset)
    times = time_slots_of(index, header.base_offset, header.last_offset)
    findings: list[Finding] = []
    if not at and not of and not times:
        return NO_EVIDENCE, findings
    base, last = header.base_offset, header.last_offset
    batch = f"the batch at position {position} has offsets {base} to {last}"
    last_record = records[-1].offset if records else last
    starts: list[AppendStart] = []
    ends: list[AppendEnd] = []
    last_records: list[int] = []
    inner_times: list[int] = []
    for slot in at:
        offset = index.offsets[slot]
        if index.positions[slot] != position:
            findings.append(wrong_place(index, slot, "no batch starts there"))
        elif offset > last:
            starts.append(AppendStart(slot, base))
        elif base <= offset < last and offset == last_record:
            last_records.append(slot)
        elif offset != last:
            findings.append(wrong_place(index, slot, batch))
    for slot in of:
        if index.offsets[slot] not in (last, last_record) or index.positions[slot] >= position:
            continue
        if slot + 1 == len(index.positions) or index.positions[slot + 1] > position:
            ends.append(AppendEnd(slot, base, max(header.max_timestamp, NO_TIMESTAMP)))
    for slot in times:
        timestamp, offset = index.timestamps[slot], index.time_offsets[slot]
        if timestamp != header.max_timestamp:
            reason = f"the largest timestamp of its batch is {header.max_timestamp}"
            findings.append(wrong_time(index, slot, reason))
        elif offset != last:
            if next((one.offset for one in records if one.timestamp == timestamp), None) == offset:
                inner_times.append(slot)
            else:
                findings.append(wrong_time(index, slot, batch))
    claimed = ((times.start, times.stop),) if times else ()
    return IndexEvidence(tuple(starts), tuple(ends), claimed, tuple(last_records), tuple(inner_times)), findings


def late_entries(
    index: IndexEntries, reached: int, evidence: IndexEvidence, findings: Sequence[Finding]
) -> Iterator[Finding]:
    """Time index entries of a stretch with a time that the log before it has ``reached``.

    ``findings`` are those of the stretch: an entry that is wrong by its own batch is not found again.
    """
    known = {one.position for one in findings if one.file == index.time_file}
    for start, end in evidence.claimed:
        for slot in range(start, end):
            if index.timestamps[slot] > reached:
                return
            if index.time_slots[slot] * TIME_BYTES not in known:
                yield wrong_time(index, slot, "an earlier batch has reached that time")


def wrong_time(index: IndexEntries, slot: int, reason: str) -> Finding:
    timestamp, offset = index.timestamps[slot], index.time_offsets[slot]
    return damage(
        index.time_file,
        f"entry {index.time_slots[slot]} says time {timestamp} at offset {offset}; {reason}",
        position=index.time_slots[slot] * TIME_BYTES,
        offset=offset,
    )


def wrong_place(index: IndexEntries, slot: int, reason: str) -> Finding:
    offset, position = index.offsets[slot], index.positions[slot]
    return damage(
        index.index_file,
        f"entry {index.slots[slot]} says offset {offset} at position {position}; {reason}",
        position=index.slots[slot] * INDEX_BYTES,
        offset=offset,
    )


class AppendMatches(NamedTuple):
    """Entries of appends of several batches, and findings on those that cannot be one."""

    legal: tuple[int, ...]
    findings: tuple[Finding, ...]


def match_appends(index: IndexEntries, evidence: IndexEvidence) -> AppendMatches:
    """Match starts and ends of appends, and compare them with the time index.

    Kafka adds a time index entry with an index entry: at the end of an append, never in its middle.
    """
    ends = {one.slot: one for one in evidence.ends}
    legal: list[int] = []
    findings: list[Finding] = []
    for slot, base_offset in sorted(evidence.starts):
        end = ends.get(slot)
        reason = None
        if end is None:
            reason = "the batch there has other offsets, and no append from there on ends with that one"
        else:
            inside = time_slots_of(index, base_offset, end.base_offset - 1)
            early = next((one for one in inside if index.timestamps[one] < end.peak), None)
            if early is not None:
                reason = f"time index entry {index.time_slots[early]} is of a batch between the two"
            elif _lacks(index, end.peak, index.offsets[slot]):
                reason = f"the time index lacks time {end.peak}, with which such an append would end"
        if reason is None:
            legal.append(slot)
        else:
            findings.append(wrong_place(index, slot, reason))
    return AppendMatches(tuple(legal), tuple(findings))


def _lacks(index: IndexEntries, timestamp: int, offset: int) -> bool:
    """Whether a time index that has entries up to ``offset`` lacks this time."""
    if timestamp < 0 or not index.time_offsets or index.time_offsets[0] > offset:
        return False
    at = bisect_left(index.timestamps, timestamp)
    return at == len(index.timestamps) or index.timestamps[at] != timestamp


def never_claimed(index: IndexEntries, claimed: Ranges) -> Iterator[Finding]:
    """Time index entries whose offset is in no batch of the log."""
    at = 0
    for start, end in (*claimed, (len(index.timestamps), 0)):
        for slot in range(at, start):
            yield wrong_time(index, slot, "no batch has that offset")
        at = max(at, end)
