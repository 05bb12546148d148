"""The rules for one batch or message: its CRC, its header, its records, and the index entries about it. Pure.

`check_batch` is the only place that says what is wrong with a batch. The compiled loops
(`seglog.storage.offline.verify.compiled_batches`) only pick out batches about which it has nothing to say.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise

from seglog.core.errors import CorruptError, CorruptRecordError, UnsupportedFormatError
from seglog.core.types import NO_TIMESTAMP, Buffer, TimestampType
from seglog.records import any_magic
from seglog.records.batch import BatchHeader, Entry, check_crc, check_header, read_header
from seglog.records.record import ControlRecord, ControlType, Record, decode_records, parse_control
from seglog.storage.offline.findings import Finding, damage, note
from seglog.storage.offline.verify.index_entries import check_entries
from seglog.storage.offline.verify.summary import LEGACY, Crossing, EpochRun, Facts, ProducerStep, Summary


def check_batch(facts: Facts, data: Buffer, entry: Entry, position: int) -> Summary | Finding:
    """Check the batch at ``entry`` of ``data``, which starts at ``position`` of the file.

    Returns its summary, with findings on its records and on index entries. If its CRC is wrong, or a header field that
    the CRC does not cover is impossible, returns only that finding.
    """
    base = position - entry.position
    try:
        if entry.magic == 2:
            header = read_header(data, entry.position)
            check_crc(data, header, entry.position)
            check_header(header, entry.position)
        else:
            any_magic.check(data, entry)
            header = any_magic.describe(data, entry, limit=facts.limit)
    except (CorruptError, UnsupportedFormatError) as error:
        return _finding(facts, error, base, position, entry.offset)
    findings: list[Finding] = []
    records: Sequence[Record] = ()
    control = None
    try:
        if entry.magic == 2:
            records = decode_records(data, header, entry.position, limit=facts.limit)
            reason = _times_reason(header, records)
        else:
            records = any_magic.decode(data, entry, limit=facts.limit)
            reason = _offsets_reason(header, records)
        if reason is not None:
            make = damage if entry.magic < 2 else note
            findings.append(make(facts.file, reason, position=position, offset=header.base_offset))
        if entry.magic == 2 and header.is_control:
            control = _control(header, records)
    except (CorruptError, UnsupportedFormatError) as error:
        findings.append(_finding(facts, error, base, position, entry.offset))
    end, first, last = position + entry.size, header.base_offset, header.last_offset
    evidence, wrong = check_entries(facts.index_entries, position, end, header, records)
    has_time = header.max_timestamp >= 0
    return Summary(
        position,
        end,
        end,
        batches=1,
        records=header.records_count,
        first_offset=first,
        first_position=position,
        last_offset=last,
        last_position=position,
        max_timestamp=header.max_timestamp if has_time else NO_TIMESTAMP,
        max_timestamp_offset=last if has_time else -1,
        epochs=(EpochRun(header.leader_epoch if entry.magic == 2 else LEGACY, first, first, position),),
        steps=(ProducerStep(header, control, position),) if header.producer_id >= 0 else (),
        crossings=tuple(_crossings(header, position, facts.epoch_starts)),
        evidence=evidence,
        findings=(*findings, *wrong),
    )


def _finding(facts: Facts, error: Exception, base: int, position: int, offset: int) -> Finding:
    if isinstance(error, CorruptError):
        place = error.position + base if error.position >= 0 else position
        return damage(facts.file, error.reason, position=place, offset=offset if error.offset is None else error.offset)
    return damage(facts.file, str(error), position=position, offset=offset)


def _times_reason(header: BatchHeader, records: Sequence[Record]) -> str | None:
    """Kafka sets the largest timestamp of every batch that it takes in. Look-ups by time rely on it."""
    if not records or header.timestamp_type is not TimestampType.CREATE_TIME:
        return None
    largest = max(record.timestamp for record in records)
    if largest == header.max_timestamp:
        return None
    return f"the header says {header.max_timestamp} is the largest timestamp, the largest of a record is {largest}"


def _offsets_reason(header: BatchHeader, records: Sequence[Record]) -> str | None:
    """In a wrapper of magic 0 or 1 offsets rise up to the wrapper's own, which the CRC does not cover."""
    offsets = [record.offset for record in records]
    if offsets[-1] != header.last_offset:
        return f"the message says offset {header.last_offset}, the last one in it {offsets[-1]}"
    if any(later <= earlier for earlier, later in pairwise(offsets)):
        return f"offsets {offsets[:20]} of the messages in it do not rise"
    return None


def _control(header: BatchHeader, records: Sequence[Record]) -> ControlRecord | None:
    """The marker of a control batch; None if compaction emptied it. A KRaft control batch may have several records."""
    parsed = [parse_control(record) for record in records]
    marks = [control for control in parsed if control.type in (ControlType.ABORT, ControlType.COMMIT)]
    if not marks:
        return parsed[0] if parsed else None
    if len(parsed) > 1:
        raise CorruptRecordError(
            f"{len(parsed)} records in the batch of a transaction marker", offset=header.base_offset
        )
    if header.producer_id < 0 or not header.is_transactional:
        raise CorruptRecordError("a transaction marker without a producer", offset=header.base_offset)
    return marks[0]


def _crossings(header: BatchHeader, position: int, starts: Sequence[int]) -> Iterator[Crossing]:
    first, last = header.base_offset, header.last_offset
    for start in starts[bisect_right(starts, first) : bisect_right(starts, last)]:
        yield Crossing(start, first, last, position)
