"""One batch or message after the other in plain Python: all checks that need its bytes, and a summary of many. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

from seglog.core.errors import CorruptError, CorruptRecordError, UnsupportedFormatError
from seglog.core.types import NO_EPOCH, Buffer, TimestampType
from seglog.records import view
from seglog.records.batch import BatchHeader, Entry, check_crc, check_header, read_header
from seglog.records.record import ControlRecord, ControlType, Record, decode_records, parse_control
from seglog.storage.offline.findings import Finding, damage, note
from seglog.storage.offline.verify.indexes import Columns, IndexTally, PieceCheck, slots_at, slots_of, time_slots_of
from seglog.storage.offline.verify.summary import (
    LEGACY,
    Crossing,
    EpochRun,
    Facts,
    Step,
    Summary,
    combine_all,
    reduce_steps,
)


class Row(NamedTuple):
    """A batch or message whose CRC and header are right, and where it lies in its file."""

    position: int
    size: int
    header: BatchHeader
    control: ControlRecord | None


class Looked(NamedTuple):
    """``row`` is None if the CRC is wrong, or a header that it does not cover cannot be."""

    row: Row | None
    findings: tuple[Finding, ...]


def look(facts: Facts, data: Buffer, entry: Entry, position: int) -> Looked:
    """Check everything in the batch at ``entry`` of ``data``, which lies at ``position`` of the file."""
    base = position - entry.position
    try:
        if entry.magic == 2:
            header = read_header(data, entry.position)
            check_crc(data, header, entry.position)
            check_header(header, entry.position)
        else:
            view.check(data, entry)
            header = view.describe(data, entry, limit=facts.limit)
    except (CorruptError, UnsupportedFormatError) as error:
        return Looked(None, (_finding(facts, error, base, position, entry.offset),))
    findings: list[Finding] = []
    control = None
    try:
        if entry.magic == 2:
            records = decode_records(data, header, entry.position, limit=facts.limit)
            reason = _times_reason(header, records)
        else:
            records = view.decode(data, entry, limit=facts.limit)
            reason = _offsets_reason(header, records)
        if reason is not None:
            make = damage if entry.magic < 2 else note
            findings.append(make(facts.file, reason, position=position, offset=header.base_offset))
        if entry.magic == 2 and header.is_control:
            control = _control(header, records)
    except (CorruptError, UnsupportedFormatError) as error:
        findings.append(_finding(facts, error, base, position, entry.offset))
    return Looked(Row(position, entry.size, header, control), tuple(findings))


def _finding(facts: Facts, error: Exception, base: int, position: int, offset: int) -> Finding:
    if isinstance(error, CorruptError):
        place = error.position + base if error.position >= 0 else position
        return damage(facts.file, error.reason, position=place, offset=offset if error.offset is None else error.offset)
    return damage(facts.file, str(error), position=position, offset=offset)


def _times_reason(header: BatchHeader, records: Sequence[Record]) -> str | None:
    """Kafka sets the largest timestamp of what it takes in; another writer may not, and look-ups by time follow it."""
    if not records or header.timestamp_type is not TimestampType.CREATE_TIME:
        return None
    largest = max(record.timestamp for record in records)
    if largest == header.max_timestamp:
        return None
    return f"the header says {header.max_timestamp} is the largest timestamp, the largest of a record is {largest}"


def _offsets_reason(header: BatchHeader, records: Sequence[Record]) -> str | None:
    """In a wrapper of magic 0 or 1: offsets rise, up to the wrapper's own, which the CRC does not cover."""
    offsets = [record.offset for record in records]
    if offsets[-1] != header.last_offset:
        return f"the message says offset {header.last_offset}, the last one in it {offsets[-1]}"
    if any(later <= earlier for earlier, later in pairwise(offsets)):
        return f"offsets {offsets[:20]} of the messages in it do not rise"
    return None


def _control(header: BatchHeader, records: Sequence[Record]) -> ControlRecord | None:
    """The marker of a control batch; None if compaction has emptied it. KRaft's may have several records."""
    parsed = [parse_control(record) for record in records]
    marks = [control for control in parsed if control.type in (ControlType.ABORT, ControlType.COMMIT)]
    if not marks:
        return parsed[0] if parsed else None
    if len(parsed) > 1:
        raise CorruptRecordError(
            f"{len(parsed)} records in the batch of a transaction marker", offset=header.base_offset
        )
    if header.producer_id < 0 or not header.is_transactional:
        raise CorruptRecordError("a transaction marker of no producer", offset=header.base_offset)
    return marks[0]


# Summaries


def summarise(
    facts: Facts, rows: Sequence[Row], start: int, end: int, records: Callable[[Row], Sequence[Record]]
) -> Summary:
    """Of neighbouring rows, which lie from ``start`` to ``end``; ``records`` decodes one of them."""
    if not rows:
        return Summary(start, end, start)
    return combine_all(facts, [_of_piece(facts, piece, records) for piece in _pieces(rows)], start)


def _of_piece(facts: Facts, piece: Sequence[Row], records: Callable[[Row], Sequence[Record]]) -> Summary:
    columns = columns_of(piece)
    end = piece[-1].position + piece[-1].size
    return of_columns(
        facts,
        columns,
        end=end,
        records=sum(row.header.records_count for row in piece),
        gap=next(
            (last + 1 for base, last in zip(columns.bases[1:], columns.lasts, strict=False) if base != last + 1), -1
        ),
        epochs=_epoch_runs(piece),
        steps=reduce_steps([Step(row.header, row.control, row.position) for row in piece], facts.cuts),
        tally=check_indexes(facts, columns, end, lambda k: records(piece[k])),
    )


def of_columns(
    facts: Facts,
    columns: Columns,
    *,
    end: int,
    records: int,
    gap: int,
    epochs: tuple[EpochRun, ...],
    steps: tuple[Step, ...],
    tally: IndexTally,
) -> Summary:
    """The summary of one piece, in which offsets rise."""
    start = int(columns.positions[0])
    timestamp, timestamp_offset = _largest_time(columns)
    return Summary(
        start,
        end,
        end,
        len(columns.positions),
        records,
        int(columns.bases[0]),
        start,
        int(columns.lasts[-1]),
        timestamp,
        timestamp_offset,
        gap=gap,
        epochs=epochs,
        steps=steps,
        crossings=_crossings(columns, facts.epoch_starts),
        begun=tally.begun,
        ended=tally.ended,
        claimed=tally.claimed,
        last_records=tally.last_records,
        inner_times=tally.inner_times,
        findings=(*_out_of_range(facts, columns), *tally.findings),
    )


def _pieces(rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
    first = 0
    for at in range(1, len(rows)):
        if rows[at].header.base_offset <= rows[at - 1].header.last_offset:
            yield rows[first:at]
            first = at
    if rows:
        yield rows[first:]


def columns_of(rows: Sequence[Row]) -> Columns:
    timestamps = [row.header.max_timestamp for row in rows]
    return Columns(
        [row.position for row in rows],
        [row.header.base_offset for row in rows],
        [row.header.last_offset for row in rows],
        timestamps,
        list(accumulate(timestamps, max)),
    )


def _largest_time(columns: Columns) -> tuple[int, int]:
    """The largest timestamp and the last offset of the first batch that has it; -1 and -1 if there is none."""
    largest = int(columns.peaks[-1])
    if largest < 0:
        return -1, -1
    return largest, int(columns.lasts[bisect_left(columns.peaks, largest)])


def _out_of_range(facts: Facts, columns: Columns) -> Iterator[Finding]:
    """Offsets that cannot be in a segment of this name, or before the next one."""
    base, first = facts.base_offset, int(columns.bases[0])
    if first < base:
        yield damage(
            facts.file, f"offset {first} in a segment from {base} on", position=int(columns.positions[0]), offset=first
        )
    last = int(columns.lasts[-1])
    if last >= facts.limit_offset:
        position, offset = int(columns.positions[-1]), int(columns.bases[-1])
        reason = f"offset {last} in a segment that ends before {facts.limit_offset}"
        yield damage(facts.file, reason, position=position, offset=offset)


def _crossings(columns: Columns, starts: Sequence[int]) -> tuple[Crossing, ...]:
    found = []
    first, last = columns.bases[0], columns.lasts[-1]
    for start in starts[bisect_right(starts, first) : bisect_right(starts, last)]:
        k = bisect_left(columns.lasts, start)
        if columns.bases[k] < start:
            found.append(Crossing(start, int(columns.bases[k]), int(columns.lasts[k]), int(columns.positions[k])))
    return tuple(found)


def check_indexes(facts: Facts, columns: Columns, end: int, records: Callable[[int], Sequence[Record]]) -> IndexTally:
    """All index entries that are about these batches, which end at position ``end``."""
    check = PieceCheck(facts.probes, columns, records)
    first, last = columns.bases[0], columns.lasts[-1]
    for slot in slots_at(facts.probes, columns.positions[0], end):
        check.at_position(slot)
    for slot in slots_of(facts.probes, first, last):
        check.at_offset(slot)
    for slot in time_slots_of(facts.probes, first, last):
        check.at_time(slot)
    return check.tally()


def _epoch_runs(rows: Sequence[Row]) -> tuple[EpochRun, ...]:
    runs: list[EpochRun] = []
    first, epoch = rows[0], NO_EPOCH
    for before, row in zip([None, *rows], rows, strict=False):
        here = row.header.leader_epoch if row.header.magic == 2 else LEGACY
        if before is None:
            epoch = here
        elif here != epoch:
            runs.append(EpochRun(epoch, first.header.base_offset, before.header.base_offset, first.position))
            first, epoch = row, here
    runs.append(EpochRun(epoch, first.header.base_offset, rows[-1].header.base_offset, first.position))
    return tuple(runs)
