"""What the indexes of a segment claim, and whether the batches of its log bear it out. Pure.

An entry of an ``.index`` says: this is the last offset of a batch, and there the batch starts. Kafka up to 3.9 writes
one entry for an append of several batches (a follower's): the offset is then that of the last batch and the position
that of the first; its cleaner may name the last record instead of the last offset. Both are legal and only noted; what
can tell them from a flipped bit is used: an append has no time index entry in its middle, and one at its end if time
went on in it.

An entry (T, O) of a ``.timeindex`` says: the largest timestamp up to O is T, and O is the last offset of the first
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


class Probes(NamedTuple):
    """The entries of a segment's indexes that are in order: both columns of both rise strictly.

    Offsets are absolute; ``slots`` and ``time_slots`` say where in its file an entry stands. ``open_tail``: behind the
    entries of one of the files are zeros, as in a segment that is being written.
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


NO_PROBES: Final = Probes("", "")


Ranges = tuple[tuple[int, int], ...]
"""Ascending ranges of numbers, ends exclusive, that do not touch."""


class Begun(NamedTuple):
    """The batch at an entry's position begins with ``base_offset``."""

    slot: int
    base_offset: int


class Ended(NamedTuple):
    """The batch that an entry's offset ends begins with ``base_offset``; ``peak`` is the largest timestamp up to it."""

    slot: int
    base_offset: int
    peak: int


class IndexEvidence(NamedTuple):
    """Index entries that a stretch of the log bears out, or bears out in part; entries are numbers in `Probes`.

    ``begun``: entries whose position is that of a batch here and whose offset is of a later one. ``ended``: entries
    whose offset ends a batch here, and whose position is before that. Together they are an append of several.
    ``claimed``: time index entries whose offset is in a batch here. ``last_records``: entries that name a batch's last
    record instead of its last offset. ``inner_times``: time index entries that name a record inside a batch.
    """

    begun: tuple[Begun, ...] = ()
    ended: tuple[Ended, ...] = ()
    claimed: Ranges = ()
    last_records: tuple[int, ...] = ()
    inner_times: tuple[int, ...] = ()

    def join(self, behind: IndexEvidence, peak: int) -> IndexEvidence:
        """This and that of the next stretch; ``peak`` is the largest timestamp of this one."""
        if not any(behind):
            return self
        return IndexEvidence(
            self.begun + behind.begun,
            self.ended + tuple(one._replace(peak=max(one.peak, peak)) for one in behind.ended),
            join_ranges(self.claimed, behind.claimed),
            self.last_records + behind.last_records,
            self.inner_times + behind.inner_times,
        )


NO_EVIDENCE: Final = IndexEvidence()


def join_ranges(a: Ranges, b: Ranges) -> Ranges:
    """Of neighbours; ``b`` begins where ``a`` ends, or later."""
    if a and b and a[-1][1] == b[0][0]:
        return (*a[:-1], (a[-1][0], b[0][1]), *b[1:])
    return a + b


# Reading

_NO_SLOTS: Final[Sequence[int]] = ()


def read_probes(
    index: bytes | None, times: bytes | None, base: int, files: tuple[str, str]
) -> tuple[Probes, list[Finding]]:
    """The entries of both files (None: missing), and what is wrong with them before any log is looked at."""
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
    return Probes(*files, offsets, positions, slots, timestamps, time_offsets, time_slots, open_tail), findings


def _used(data: bytes, size: int, file: str, findings: list[Finding]) -> int:
    """Entries before the zeros that an index has at its end while it is being written."""
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
    """Both columns without entries that do not rise, which become findings; and the slots of those that are left."""
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


def slots_at(probes: Probes, start: int, end: int) -> range:
    """Index entries whose positions are in ``start`` to ``end`` (exclusive)."""
    return range(bisect_left(probes.positions, start), bisect_left(probes.positions, end))


def slots_of(probes: Probes, first: int, last: int) -> range:
    """Index entries whose offsets are in ``first`` to ``last``."""
    return range(bisect_left(probes.offsets, first), bisect_right(probes.offsets, last))


def time_slots_of(probes: Probes, first: int, last: int) -> range:
    """Time index entries whose offsets are in ``first`` to ``last``."""
    return range(bisect_left(probes.time_offsets, first), bisect_right(probes.time_offsets, last))


def check_entries(
    probes: Probes, position: int, end: int, header: BatchHeader, records: Sequence[Record]
) -> tuple[IndexEvidence, list[Finding]]:
    """Check all entries about the batch from ``position`` to ``end``; no ``records`` if they cannot be decoded."""
    at, of = slots_at(probes, position, end), slots_of(probes, header.base_offset, header.last_offset)
    times = time_slots_of(probes, header.base_offset, header.last_offset)
    findings: list[Finding] = []
    if not at and not of and not times:
        return NO_EVIDENCE, findings
    base, last = header.base_offset, header.last_offset
    batch = f"the batch at position {position} has offsets {base} to {last}"
    last_record = records[-1].offset if records else last
    begun: list[Begun] = []
    ended: list[Ended] = []
    last_records: list[int] = []
    inner_times: list[int] = []
    for slot in at:
        offset = probes.offsets[slot]
        if probes.positions[slot] != position:
            findings.append(wrong_place(probes, slot, "no batch starts there"))
        elif offset > last:
            begun.append(Begun(slot, base))
        elif base <= offset < last and offset == last_record:
            last_records.append(slot)
        elif offset != last:
            findings.append(wrong_place(probes, slot, batch))
    for slot in of:
        if probes.offsets[slot] not in (last, last_record) or probes.positions[slot] >= position:
            continue
        if slot + 1 == len(probes.positions) or probes.positions[slot + 1] > position:
            ended.append(Ended(slot, base, max(header.max_timestamp, NO_TIMESTAMP)))
    for slot in times:
        timestamp, offset = probes.timestamps[slot], probes.time_offsets[slot]
        if timestamp != header.max_timestamp:
            reason = f"the largest timestamp of its batch is {header.max_timestamp}"
            findings.append(wrong_time(probes, slot, reason))
        elif offset != last:
            if next((one.offset for one in records if one.timestamp == timestamp), None) == offset:
                inner_times.append(slot)
            else:
                findings.append(wrong_time(probes, slot, batch))
    claimed = ((times.start, times.stop),) if times else ()
    return IndexEvidence(tuple(begun), tuple(ended), claimed, tuple(last_records), tuple(inner_times)), findings


def late_entries(
    probes: Probes, reached: int, evidence: IndexEvidence, findings: Sequence[Finding]
) -> Iterator[Finding]:
    """Time index entries of a stretch with a time that the log before it has ``reached``.

    ``findings`` are those of the stretch: an entry that is wrong by its own batch is not found again.
    """
    known = {one.position for one in findings if one.file == probes.time_file}
    for start, end in evidence.claimed:
        for slot in range(start, end):
            if probes.timestamps[slot] > reached:
                return
            if probes.time_slots[slot] * TIME_BYTES not in known:
                yield wrong_time(probes, slot, "an earlier batch has reached that time")


def wrong_time(probes: Probes, slot: int, reason: str) -> Finding:
    timestamp, offset = probes.timestamps[slot], probes.time_offsets[slot]
    return damage(
        probes.time_file,
        f"entry {probes.time_slots[slot]} says time {timestamp} at offset {offset}; {reason}",
        position=probes.time_slots[slot] * TIME_BYTES,
        offset=offset,
    )


def wrong_place(probes: Probes, slot: int, reason: str) -> Finding:
    offset, position = probes.offsets[slot], probes.positions[slot]
    return damage(
        probes.index_file,
        f"entry {probes.slots[slot]} says offset {offset} at position {position}; {reason}",
        position=probes.slots[slot] * INDEX_BYTES,
        offset=offset,
    )


class Appends(NamedTuple):
    """Entries that stand for appends of several batches, and those that cannot even be that."""

    legal: tuple[int, ...]
    findings: tuple[Finding, ...]


def match_appends(probes: Probes, evidence: IndexEvidence) -> Appends:
    """Put beginnings and ends together, and hold them to the time index.

    It got an entry when the append was indexed, at the append's end, and could not get one in its middle.
    """
    ends = {one.slot: one for one in evidence.ended}
    legal: list[int] = []
    findings: list[Finding] = []
    for slot, base_offset in sorted(evidence.begun):
        end = ends.get(slot)
        reason = None
        if end is None:
            reason = "the batch there has other offsets, and no append from there on ends with that one"
        else:
            inside = time_slots_of(probes, base_offset, end.base_offset - 1)
            early = next((one for one in inside if probes.timestamps[one] < end.peak), None)
            if early is not None:
                reason = f"time index entry {probes.time_slots[early]} is of a batch between the two"
            elif _lacks(probes, end.peak, probes.offsets[slot]):
                reason = f"the time index knows nothing of time {end.peak}, with which such an append would end"
        if reason is None:
            legal.append(slot)
        else:
            findings.append(wrong_place(probes, slot, reason))
    return Appends(tuple(legal), tuple(findings))


def _lacks(probes: Probes, timestamp: int, offset: int) -> bool:
    """Whether a time index that was kept at ``offset`` has no such time."""
    if timestamp < 0 or not probes.time_offsets or probes.time_offsets[0] > offset:
        return False
    at = bisect_left(probes.timestamps, timestamp)
    return at == len(probes.timestamps) or probes.timestamps[at] != timestamp


def never_claimed(probes: Probes, claimed: Ranges) -> Iterator[Finding]:
    at = 0
    for start, end in (*claimed, (len(probes.timestamps), 0)):
        for slot in range(at, start):
            yield wrong_time(probes, slot, "no batch has that offset")
        at = max(at, end)
