"""Compares two logs: two replicas of a partition, or a source and its copy. Changes nothing.

Both logs are walked by offsets. Two batches with the same header and bytes are the same; of all other batches the
records are compared one by one. So the comparison tells a copy that was compressed again, or compacted, from a copy
with different records.

A result belongs to offsets and does not depend on what was compared before: a range of offsets may be cut anywhere,
compared in pieces, and joined again (`join`). A Spark job does that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from enum import StrEnum
from typing import Final, NamedTuple

from seglog.core.errors import CorruptError
from seglog.core.fs import Fs
from seglog.core.types import MAX_INT64
from seglog.records import any_magic
from seglog.records.batch import BatchHeader, Entry
from seglog.records.record import Record
from seglog.storage.offline.batch_boundaries import IndexBoundaries, SegmentBytes
from seglog.storage.offline.batch_reading import read_chunks

MOST_FINDINGS: Final = 10_000
"""Limit of findings with their own place; further differences are only counted."""
FIELDS: Final = ("value", "key", "headers", "timestamp", "epoch", "producer", "control")
_BEFORE_EPOCH: Final = 12
_BEHIND_EPOCH: Final = 16


class RangeKind(StrEnum):
    SAME = "same"
    LAYOUT = "layout"
    """The same records in different batches: other compression, other boundaries, or other header fields."""
    DIFFERS = "differs"
    MISSING = "missing"
    DAMAGED = "damaged"
    """One log could not be read there, so the records were not compared."""


class Comparison(NamedTuple):
    """The result for offsets from ``first`` to before ``end``. ``records`` is their number by the batches' headers.

    DIFFERS: ``fields`` are the `FIELDS` that differ. MISSING: ``side``, "left" or "right", is the log without the
    records. ``place`` is "start" if that log begins later, "end" if it ends earlier, otherwise "inside"; ``keyless`` is
    the number of data records without a key. Producers may not write these to a compacted topic; the cleaner removes
    those from before the topic was compacted. DAMAGED: ``side`` is the damaged log, and ``reason`` has file and
    position of the first damage.
    """

    kind: RangeKind
    first: int
    end: int
    records: int
    fields: tuple[str, ...] = ()
    side: str = ""
    place: str = ""
    keyless: int = 0
    reason: str = ""

    def is_like(self, other: Comparison) -> bool:
        return (self.kind, *self[4:7]) == (other.kind, *other[4:7])


class Side(NamedTuple):
    """One of the two logs: its segments in order, and the range of its offsets."""

    segments: tuple[SegmentBytes, ...]
    log_start: int
    log_end: int

    def within(self, first: int, end: int) -> Side:
        """The same log with only those segments that may have these offsets."""
        behind = [*(segment.base_offset for segment in self.segments[1:]), MAX_INT64][: len(self.segments)]
        kept = (
            one for one, next_ in zip(self.segments, behind, strict=True) if next_ > first and one.base_offset < end
        )
        return self._replace(segments=tuple(kept))


class CompareRules(NamedTuple):
    """Which differences count, beside records. Replicas have the same bytes; a copy need not.

    ``compaction``: count missing records with keys, and changes that compaction makes to batches.
    """

    epochs: bool = True
    producers: bool = True
    layout: bool = True
    compaction: bool = True
    topic_ids: bool = True


REPLICAS: Final = CompareRules()
COPY: Final = CompareRules(epochs=False, producers=False, layout=False, topic_ids=False)


class CompareVerdict(StrEnum):
    SAME = "same"
    LAYOUT = "same records in other batches"
    COMPACTED = "some records with keys are missing, as after compaction"
    DAMAGED = "damaged"
    DIFFERENT = "different"

    def is_fine(self, rules: CompareRules) -> bool:
        if self is CompareVerdict.LAYOUT:
            return not rules.layout or not rules.compaction
        return self is CompareVerdict.SAME or (self is CompareVerdict.COMPACTED and not rules.compaction)


def judge(findings: Iterable[Comparison]) -> CompareVerdict:
    """Summarise comparisons. This does not check whether compaction was entitled to remove a record."""
    verdict = CompareVerdict.SAME
    for one in findings:
        if one.kind is RangeKind.DIFFERS or (one.kind is RangeKind.MISSING and (one.place != "inside" or one.keyless)):
            return CompareVerdict.DIFFERENT
        if one.kind is RangeKind.DAMAGED:
            verdict = CompareVerdict.DAMAGED
        elif one.kind is RangeKind.MISSING and verdict is not CompareVerdict.DAMAGED:
            verdict = CompareVerdict.COMPACTED
        elif one.kind is RangeKind.LAYOUT and verdict is CompareVerdict.SAME:
            verdict = CompareVerdict.LAYOUT
    return verdict


def compare(fs: Fs, left: Side, right: Side, first: int, end: int, rules: CompareRules = REPLICAS) -> list[Comparison]:
    """Compare all offsets from ``first`` to before ``end``; neighbours in the result differ in kind.

    A batch that cannot be decoded is DAMAGED, and the comparison goes on behind it. If the size of a batch is damaged,
    the rest up to ``end`` is DAMAGED; a later piece starts at a position from the index. Raises FileNotFoundError if a
    broker deletes a segment meanwhile.
    """
    return join(_ComparisonWalk(fs, left, right, first, end, rules).findings())


def join(findings: Iterable[Comparison]) -> list[Comparison]:
    """`merge`, limited to about `MOST_FINDINGS`: behind them all alike become one, whatever lies between."""
    kept: list[Comparison] = []
    rest: dict[tuple[object, ...], Comparison] = {}
    for one in merge(findings):
        if len(kept) < MOST_FINDINGS:
            kept.append(one)
            continue
        key = (one.kind, *one[4:7])
        (rest[key],) = merge([rest[key], one]) if key in rest else (one,)
    return kept + sorted(rest.values(), key=lambda one: one.first)


def merge(findings: Iterable[Comparison]) -> Iterator[Comparison]:
    """Merge neighbours that are alike, also across gaps in the offsets."""
    last: Comparison | None = None
    for one in findings:
        if last is not None and last.is_like(one):
            last = last._replace(
                end=max(last.end, one.end), records=last.records + one.records, keyless=last.keyless + one.keyless
            )
        else:
            if last is not None:
                yield last
            last = one
    if last is not None:
        yield last


class _BatchBytes(NamedTuple):
    """A batch, and the chunk that it lies in, which begins at position ``start`` of the file."""

    header: BatchHeader
    entry: Entry
    data: bytes
    start: int
    file: str

    @property
    def bytes(self) -> bytes:
        return self.data[self.entry.position : self.entry.position + self.entry.size]

    def is_same(self, other: _BatchBytes, rules: CompareRules) -> bool:
        ours, theirs = self.header, other.header
        if ours == theirs:
            return self.bytes == other.bytes
        if rules.epochs or ours.magic < 2 or ours._replace(leader_epoch=theirs.leader_epoch) != theirs:
            return False
        mine, its = self.bytes, other.bytes
        return mine[:_BEFORE_EPOCH] == its[:_BEFORE_EPOCH] and mine[_BEHIND_EPOCH:] == its[_BEHIND_EPOCH:]


def _batches(fs: Fs, side: Side, first: int, end: int) -> Iterator[_BatchBytes]:
    """The batches of the log that have an offset from ``first`` to before ``end``."""
    low = max(first, side.log_start)
    bases = [*(segment.base_offset for segment in side.segments), MAX_INT64]
    for segment, behind in zip(side.segments, bases[1:], strict=True):
        if behind <= low or segment.base_offset >= end:
            continue
        start = IndexBoundaries(fs, segment).start_of(low) if low > segment.base_offset else 0
        with closing(fs.open(segment.log, write=False)) as file:
            for chunk in read_chunks(file, start, segment.size):
                for entry in chunk.entries:
                    try:
                        header = any_magic.describe(chunk.data, entry)
                    except CorruptError as error:
                        raise error.at(file=segment.log, base=chunk.position) from error
                    if header.base_offset >= min(end, side.log_end):
                        return
                    if header.next_offset > low:
                        yield _BatchBytes(header, entry, chunk.data, chunk.position, segment.log)


class _Cursor:
    """The position in one log: a batch, either closed, or open with the records that are not compared yet."""

    def __init__(self, fs: Fs, side: Side, name: str, first: int, end: int) -> None:
        self.side = side
        self.name = name
        self._batches = _batches(fs, side, first, end)
        self._low = self._reached = max(first, side.log_start)
        self._first = first
        self._end = end
        self.damage: list[Comparison] = []
        """In order of offsets. An entry stays until the other log is past it, whose records there are not compared."""
        self._records: Sequence[Record] = ()
        self._at = 0
        self.is_open = False
        self.batch: _BatchBytes | None = None
        self.position = MAX_INT64
        """The lowest offset that is not compared yet."""
        self.advance()

    def advance(self) -> None:
        """Go to the next batch; there is none behind bytes that are not a batch."""
        self.is_open = False
        try:
            self.batch = next(self._batches, None)
        except CorruptError as error:
            self.batch = None
            self.damage.append(self._damaged(self._reached, max(self._reached, self._end), 0, error))
        if self.batch is None:
            self.position = MAX_INT64
        else:
            self.position = max(self.batch.header.base_offset, self._low)
            self._reached = self.batch.header.next_offset

    def open(self) -> None:
        """Decode the batch, or go to the next one if it is damaged."""
        assert self.batch is not None
        batch = self.batch
        try:
            any_magic.check(batch.data, batch.entry)
            records = any_magic.decode(batch.data, batch.entry)
        except CorruptError as error:
            header, at = batch.header, len(self.damage)
            begin = max(header.base_offset, self.side.log_start)
            self.advance()
            # Its header may be damaged too: the next batch limits the range.
            behind = max(begin + 1, min(header.next_offset, self.position, self.side.log_end))
            known = error.at(file=batch.file, base=batch.start, offset=header.base_offset)
            self.damage.insert(at, self._damaged(begin, behind, max(header.records_count, 0), known))
            return
        self._records = [record for record in records if self._low <= record.offset < self._end]
        self._at, self.is_open = -1, True
        self.step()

    @property
    def record(self) -> Record:
        return self._records[self._at]

    def step(self) -> None:
        """Go to the next record, or to the next batch after the last one."""
        self._at += 1
        if self._at < len(self._records):
            self.position = self._records[self._at].offset
        else:
            self.advance()

    def _damaged(self, first: int, end: int, records: int, error: CorruptError) -> Comparison:
        return Comparison(RangeKind.DAMAGED, first, end, records, side=self.name, reason=str(error))

    def is_damaged(self, first: int, end: int) -> bool:
        """Whether all of these offsets could not be read."""
        return any(one.first <= first and min(end, self._end) <= one.end for one in self.damage)

    def damage_before(self, offset: int) -> Iterator[Comparison]:
        """Remove damage that ends at or before ``offset``; yield it if it begins in this piece."""
        while self.damage and self.damage[0].end <= offset:
            one = self.damage.pop(0)
            if self._first <= one.first < self._end:
                yield one


class _ComparisonWalk:
    """Walks both logs. A batch is opened only in its turn, so two batches of one base offset meet while closed."""

    def __init__(self, fs: Fs, left: Side, right: Side, first: int, end: int, rules: CompareRules) -> None:
        self._first = first
        self._end = end
        self._start = min(left.log_start, right.log_start)
        self._rules = rules
        self._left = _Cursor(fs, left, "left", first, end)
        self._right = _Cursor(fs, right, "right", first, end)

    def findings(self) -> Iterator[Comparison]:
        """Comparisons by offset. A whole batch belongs to the piece in which it, or its log, begins."""
        left, right = self._left, self._right
        while True:
            yield from left.damage_before(right.position)
            yield from right.damage_before(left.position)
            if left.batch is None and right.batch is None:
                return
            if left.batch is not None and right.batch is not None and not left.is_open and not right.is_open:
                header = left.batch.header
                same_base = header.base_offset == right.batch.header.base_offset
                if same_base and left.batch.is_same(right.batch, self._rules):
                    begin = max(header.base_offset, self._start)
                    if self._first <= begin < self._end:
                        yield Comparison(RangeKind.SAME, begin, header.next_offset, header.records_count)
                    left.advance()
                    right.advance()
                    continue
            if left.position == right.position and left.is_open and right.is_open:
                yield self._compare_records()
                left.step()
                right.step()
            elif (left.position, left.is_open) <= (right.position, right.is_open):
                yield from self._alone(left, right)
            else:
                yield from self._alone(right, left)

    def _alone(self, cursor: _Cursor, other: _Cursor) -> Iterator[Comparison]:
        """Handle the next batch or record of ``cursor``, which precedes all of the ``other`` log."""
        if cursor.is_open:
            if not other.is_damaged(cursor.record.offset, cursor.record.offset + 1):
                yield self._missing_record(cursor, other)
            cursor.step()
            return
        assert cursor.batch is not None
        header = cursor.batch.header
        begin = max(header.base_offset, cursor.side.log_start)
        behind, count = header.next_offset, header.records_count
        if other.is_damaged(begin, behind):
            cursor.open()  # it may be damaged too
            return
        if not count:
            found = Comparison(RangeKind.LAYOUT, begin, behind, 0)
        elif behind <= other.side.log_start:
            found = Comparison(RangeKind.MISSING, begin, behind, count, side=other.name, place="start")
        elif begin >= other.side.log_end:
            found = Comparison(RangeKind.MISSING, begin, behind, count, side=other.name, place="end")
        else:
            cursor.open()
            return
        if self._first <= begin < self._end:
            yield found
        cursor.advance()

    def _missing_record(self, cursor: _Cursor, other: _Cursor) -> Comparison:
        assert cursor.batch is not None
        record, side = cursor.record, other.side
        place = "start" if record.offset < side.log_start else "end" if record.offset >= side.log_end else "inside"
        is_keyless = place == "inside" and record.key is None and not cursor.batch.header.is_control
        return Comparison(
            RangeKind.MISSING,
            record.offset,
            record.offset + 1,
            1,
            side=other.name,
            place=place,
            keyless=int(is_keyless),
        )

    def _compare_records(self) -> Comparison:
        assert self._left.batch is not None
        assert self._right.batch is not None
        ours, theirs = self._left.record, self._right.record
        mine, its = self._left.batch.header, self._right.batch.header
        differs = {
            "value": ours.value != theirs.value,
            "key": ours.key != theirs.key,
            "headers": ours.headers != theirs.headers,
            "timestamp": (ours.timestamp, mine.timestamp_type) != (theirs.timestamp, its.timestamp_type),
            "epoch": self._rules.epochs and mine.leader_epoch != its.leader_epoch,
            "producer": self._rules.producers and _producer(mine, ours) != _producer(its, theirs),
            "control": mine.is_control != its.is_control,
        }
        fields = tuple(field for field in FIELDS if differs[field])
        kind = RangeKind.DIFFERS if fields else RangeKind.LAYOUT
        return Comparison(kind, ours.offset, ours.offset + 1, 1, fields)


def _producer(header: BatchHeader, record: Record) -> tuple[int, int, int, bool]:
    return header.producer_id, header.producer_epoch, record.sequence, header.is_transactional
