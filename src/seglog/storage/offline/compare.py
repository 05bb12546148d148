"""Two logs beside each other: two replicas of a partition, or a source and its copy. Changes nothing.

Both are walked by offsets. Two batches of one base offset, with the same header and bytes, are the same and are not
looked into; of all others records are compared one by one. So a copy that was compressed anew, or from which compaction
took records, can be told from one that has other records.

What is found belongs to an offset, whatever was compared before it: a range of offsets that is cut anywhere, compared
in pieces and put together again (`join`) comes to the same. A Spark job does that.
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
from seglog.storage.offline.inspect import read_chunks

MOST_FINDINGS: Final = 10_000
"""Of one comparison: what differs more often than that is counted, and its places are no longer told one by one."""
FIELDS: Final = ("value", "key", "headers", "timestamp", "epoch", "producer", "control")
_BEFORE_EPOCH: Final = 12
_BEHIND_EPOCH: Final = 16


class Kind(StrEnum):
    SAME = "same"
    LAYOUT = "layout"
    """The same records in other batches: compressed otherwise, divided otherwise, or with other header fields."""
    DIFFERS = "differs"
    MISSING = "missing"
    DAMAGED = "damaged"
    """It could not be read, so nothing is known of what the other log has there."""


class Finding(NamedTuple):
    """Of the offsets from ``first`` to before ``end``. ``records`` are counted as far as headers say them.

    ``fields`` are what differs: of `FIELDS`. What is missing has a ``side`` that does not have it, "left" or "right",
    and a ``place``: "start" or "end", where that log has not begun yet or has ended, else "inside"; ``keyless`` of the
    latter are records of data without a key, of which compaction takes none. What is damaged has the ``side`` that is,
    and a ``reason`` with file and position: the first one's, of several.
    """

    kind: Kind
    first: int
    end: int
    records: int
    fields: tuple[str, ...] = ()
    side: str = ""
    place: str = ""
    keyless: int = 0
    reason: str = ""

    def is_like(self, other: Finding) -> bool:
        return (self.kind, *self[4:7]) == (other.kind, *other[4:7])


class Side(NamedTuple):
    """A log to be compared: its segments by offset, and the offsets that it has."""

    segments: tuple[SegmentBytes, ...]
    log_start: int
    log_end: int

    def within(self, first: int, end: int) -> Side:
        """The same log, with the segments only that may have these offsets."""
        behind = [*(segment.base_offset for segment in self.segments[1:]), MAX_INT64][: len(self.segments)]
        kept = (
            one for one, next_ in zip(self.segments, behind, strict=True) if next_ > first and one.base_offset < end
        )
        return self._replace(segments=tuple(kept))


class Rules(NamedTuple):
    """What counts as a difference, beside records themselves. Replicas have the same bytes; a copy need not.

    ``compaction``: also that records with keys are missing inside, and what compaction does to batches.
    """

    epochs: bool = True
    producers: bool = True
    layout: bool = True
    compaction: bool = True
    topic_ids: bool = True


REPLICAS: Final = Rules()
COPY: Final = Rules(epochs=False, producers=False, layout=False, topic_ids=False)


class Verdict(StrEnum):
    SAME = "same"
    LAYOUT = "same records in other batches"
    COMPACTED = "some records with keys are missing, as after compaction"
    DAMAGED = "damaged"
    DIFFERENT = "different"

    def is_fine(self, rules: Rules) -> bool:
        if self is Verdict.LAYOUT:
            return not rules.layout or not rules.compaction
        return self is Verdict.SAME or (self is Verdict.COMPACTED and not rules.compaction)


def judge(findings: Iterable[Finding]) -> Verdict:
    """What it comes to. Whether compaction had the right to take what it took is not looked at."""
    verdict = Verdict.SAME
    for one in findings:
        if one.kind is Kind.DIFFERS or (one.kind is Kind.MISSING and (one.place != "inside" or one.keyless)):
            return Verdict.DIFFERENT
        if one.kind is Kind.DAMAGED:
            verdict = Verdict.DAMAGED
        elif one.kind is Kind.MISSING and verdict is not Verdict.DAMAGED:
            verdict = Verdict.COMPACTED
        elif one.kind is Kind.LAYOUT and verdict is Verdict.SAME:
            verdict = Verdict.LAYOUT
    return verdict


def compare(fs: Fs, left: Side, right: Side, first: int, end: int, rules: Rules = REPLICAS) -> list[Finding]:
    """What there is to say of all offsets from ``first`` to before ``end``, by offset; neighbours are of other kinds.

    A batch that has to be decoded and cannot be is a finding; the comparison goes on behind it. Where even the sizes of
    batches are damaged, the rest up to ``end`` is; a piece that begins behind it reads from where the index says.
    Raises FileNotFoundError where a segment went away meanwhile.
    """
    return join(_Walk(fs, left, right, first, end, rules).findings())


def join(findings: Iterable[Finding]) -> list[Finding]:
    """`merge`, and at most about `MOST_FINDINGS`: of those behind, what says the same is one, gaps and all."""
    kept: list[Finding] = []
    rest: dict[tuple[object, ...], Finding] = {}
    for one in merge(findings):
        if len(kept) < MOST_FINDINGS:
            kept.append(one)
            continue
        key = (one.kind, *one[4:7])
        (rest[key],) = merge([rest[key], one]) if key in rest else (one,)
    return kept + sorted(rest.values(), key=lambda one: one.first)


def merge(findings: Iterable[Finding]) -> Iterator[Finding]:
    """Neighbours that say the same as one. What is the same has no gaps to tell."""
    last: Finding | None = None
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


class _Batch(NamedTuple):
    """A batch, and the bytes that it is somewhere in, which begin at ``start`` of the file."""

    header: BatchHeader
    entry: Entry
    data: bytes
    start: int
    file: str

    @property
    def bytes(self) -> bytes:
        return self.data[self.entry.position : self.entry.position + self.entry.size]

    def is_same(self, other: _Batch, rules: Rules) -> bool:
        ours, theirs = self.header, other.header
        if ours == theirs:
            return self.bytes == other.bytes
        if rules.epochs or ours.magic < 2 or ours._replace(leader_epoch=theirs.leader_epoch) != theirs:
            return False
        mine, its = self.bytes, other.bytes
        return mine[:_BEFORE_EPOCH] == its[:_BEFORE_EPOCH] and mine[_BEHIND_EPOCH:] == its[_BEHIND_EPOCH:]


def _batches(fs: Fs, side: Side, first: int, end: int) -> Iterator[_Batch]:
    """Those that have an offset from ``first`` to before ``end``, and lie in the log."""
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
                        yield _Batch(header, entry, chunk.data, chunk.position, segment.log)


class _Cursor:
    """One side: the batch that it has come to, closed, or open with the records that were not compared yet."""

    def __init__(self, fs: Fs, side: Side, name: str, first: int, end: int) -> None:
        self.side = side
        self.name = name
        self._batches = _batches(fs, side, first, end)
        self._low = self._reached = max(first, side.log_start)
        self._first = first
        self._end = end
        self.damage: list[Finding] = []
        """By offset: what the other log has there is not compared. It stays until that one is past it."""
        self._records: Sequence[Record] = ()
        self._at = 0
        self.is_open = False
        self.batch: _Batch | None = None
        self.position = MAX_INT64
        """No record that was not compared yet has a lower offset."""
        self.advance()

    def advance(self) -> None:
        """On to the next batch. Behind bytes that are none, no other can be found."""
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
        """Decode the batch; on to the next one if it is damaged."""
        assert self.batch is not None
        batch = self.batch
        try:
            any_magic.check(batch.data, batch.entry)
            records = any_magic.decode(batch.data, batch.entry)
        except CorruptError as error:
            header, at = batch.header, len(self.damage)
            begin = max(header.base_offset, self.side.log_start)
            self.advance()
            # What its header says is damaged, too, perhaps; the next batch knows better.
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
        """On to the next record, or to the next batch if there is none."""
        self._at += 1
        if self._at < len(self._records):
            self.position = self._records[self._at].offset
        else:
            self.advance()

    def _damaged(self, first: int, end: int, records: int, error: CorruptError) -> Finding:
        return Finding(Kind.DAMAGED, first, end, records, side=self.name, reason=str(error))

    def is_damaged(self, first: int, end: int) -> bool:
        """Whether nothing is known of all of these offsets."""
        return any(one.first <= first and min(end, self._end) <= one.end for one in self.damage)

    def damage_before(self, offset: int) -> Iterator[Finding]:
        """Take out what ends before or at ``offset``; the pieces in which it begins are told of it."""
        while self.damage and self.damage[0].end <= offset:
            one = self.damage.pop(0)
            if self._first <= one.first < self._end:
                yield one


class _Walk:
    """Two batches of one base offset are always met while both are closed: none is opened before it is its turn."""

    def __init__(self, fs: Fs, left: Side, right: Side, first: int, end: int, rules: Rules) -> None:
        self._first = first
        self._end = end
        self._start = min(left.log_start, right.log_start)
        self._rules = rules
        self._left = _Cursor(fs, left, "left", first, end)
        self._right = _Cursor(fs, right, "right", first, end)

    def findings(self) -> Iterator[Finding]:
        """By offset. What is said of a whole batch is said by the piece in which it, or the log, begins."""
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
                        yield Finding(Kind.SAME, begin, header.next_offset, header.records_count)
                    left.advance()
                    right.advance()
                    continue
            if left.position == right.position and left.is_open and right.is_open:
                yield self._compared()
                left.step()
                right.step()
            elif (left.position, left.is_open) <= (right.position, right.is_open):
                yield from self._alone(left, right)
            else:
                yield from self._alone(right, left)

    def _alone(self, cursor: _Cursor, other: _Cursor) -> Iterator[Finding]:
        """The next of ``cursor``, which is before all of the ``other`` one."""
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
            cursor.open()  # it may be damaged, too
            return
        if not count:
            found = Finding(Kind.LAYOUT, begin, behind, 0)
        elif behind <= other.side.log_start:
            found = Finding(Kind.MISSING, begin, behind, count, side=other.name, place="start")
        elif begin >= other.side.log_end:
            found = Finding(Kind.MISSING, begin, behind, count, side=other.name, place="end")
        else:
            cursor.open()
            return
        if self._first <= begin < self._end:
            yield found
        cursor.advance()

    def _missing_record(self, cursor: _Cursor, other: _Cursor) -> Finding:
        assert cursor.batch is not None
        record, side = cursor.record, other.side
        place = "start" if record.offset < side.log_start else "end" if record.offset >= side.log_end else "inside"
        is_keyless = place == "inside" and record.key is None and not cursor.batch.header.is_control
        return Finding(
            Kind.MISSING, record.offset, record.offset + 1, 1, side=other.name, place=place, keyless=int(is_keyless)
        )

    def _compared(self) -> Finding:
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
        kind = Kind.DIFFERS if fields else Kind.LAYOUT
        return Finding(kind, ours.offset, ours.offset + 1, 1, fields)


def _producer(header: BatchHeader, record: Record) -> tuple[int, int, int, bool]:
    return header.producer_id, header.producer_epoch, record.sequence, header.is_transactional
