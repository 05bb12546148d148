"""Summaries of stretches of a segment's log, and how two of them become one. Pure.

A stretch is cut anywhere between batches. Each part is checked by itself, in a thread, a process or a Spark task, and
its bytes are forgotten. `combine` joins neighbours: it is associative, and checks what only both sides together show.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from seglog.core.types import MAX_INT64, NO_TIMESTAMP
from seglog.records.batch import BatchHeader
from seglog.records.compression import DEFAULT_LIMIT
from seglog.records.record import ControlRecord
from seglog.storage.offline.findings import Finding, damage
from seglog.storage.offline.verify.index_entries import (
    NO_ENTRIES,
    NO_EVIDENCE,
    IndexEntries,
    IndexEvidence,
    late_entries,
)

LEGACY: Final = -2
"""The leader epoch of messages of magic 0 and 1, which have none."""


class Facts(NamedTuple):
    """The facts about a segment that other files tell before its log is read.

    ``epoch_starts``: offsets at which a leader epoch begins; no batch may cross one. ``cuts``: offsets of snapshots,
    for which the producers' state is needed. Offsets are from ``base_offset`` to below ``limit_offset``.
    ``limit``: most bytes that a batch may decompress to.
    """

    file: str
    index_entries: IndexEntries = NO_ENTRIES
    epoch_starts: Sequence[int] = ()
    cuts: Sequence[int] = ()
    base_offset: int = 0
    limit_offset: int = MAX_INT64
    limit: int = DEFAULT_LIMIT


class EpochRun(NamedTuple):
    """Neighbouring batches of one leader epoch: base offsets of the first and last one, position of the first."""

    epoch: int
    first_offset: int
    last_offset: int
    position: int


class ProducerStep(NamedTuple):
    """A batch that changes the state of its producer; of batches in a row only some are kept (`reduce_steps`)."""

    header: BatchHeader
    control: ControlRecord | None
    position: int


class Crossing(NamedTuple):
    """A batch that crosses an offset at which a leader epoch begins, by the checkpoint."""

    start_offset: int
    base_offset: int
    last_offset: int
    position: int


class Summary(NamedTuple):
    """A summary of the bytes from ``start`` to ``end``. Offsets and positions are -1 if there is no batch.

    ``good_end`` is the end of the last sound batch. ``hole_before`` and ``hole_after``: bytes that are not a sound
    batch lie before the first sound one, or after the last. ``gap`` is the first offset that is missing between sound
    neighbours, as after compaction.
    """

    start: int
    end: int
    good_end: int
    batches: int = 0
    records: int = 0
    first_offset: int = -1
    first_position: int = -1
    last_offset: int = -1
    last_position: int = -1
    max_timestamp: int = NO_TIMESTAMP
    max_timestamp_offset: int = -1
    hole_before: bool = False
    hole_after: bool = False
    holes: bool = False
    gap: int = -1
    epochs: tuple[EpochRun, ...] = ()
    steps: tuple[ProducerStep, ...] = ()
    crossings: tuple[Crossing, ...] = ()
    evidence: IndexEvidence = NO_EVIDENCE
    findings: tuple[Finding, ...] = ()


def hole(start: int, end: int, *findings: Finding) -> Summary:
    """Bytes without a sound batch."""
    return Summary(start, end, start, hole_before=True, hole_after=True, holes=True, findings=findings)


def combine(facts: Facts, a: Summary, b: Summary) -> Summary:
    """The summary of two neighbours, ``a`` first."""
    if a.end != b.start:
        raise ValueError(f"{facts.file}: bytes up to {a.end} and from {b.start} are not neighbours")
    if not a.batches or not b.batches:
        return _with_empty(a, b)
    findings = a.findings
    if b.first_offset <= a.last_offset:
        reason = f"offset {b.first_offset} comes after {a.last_offset}"
        findings += (damage(facts.file, reason, position=b.first_position, offset=b.first_offset),)
        findings += (*_above_limit(facts, a), *_below_base(facts, b))
    findings += (*late_entries(facts.index_entries, a.max_timestamp, b.evidence, b.findings), *b.findings)
    later_max = b.max_timestamp > a.max_timestamp
    return Summary(
        a.start,
        b.end,
        b.good_end,
        batches=a.batches + b.batches,
        records=a.records + b.records,
        first_offset=a.first_offset,
        first_position=a.first_position,
        last_offset=b.last_offset,
        last_position=b.last_position,
        max_timestamp=b.max_timestamp if later_max else a.max_timestamp,
        max_timestamp_offset=b.max_timestamp_offset if later_max else a.max_timestamp_offset,
        hole_before=a.hole_before,
        hole_after=b.hole_after,
        holes=a.holes or b.holes,
        gap=_first_gap(a, b, excused=a.hole_after or b.hole_before),
        epochs=join_epochs(a.epochs, b.epochs),
        steps=a.steps + b.steps,
        crossings=a.crossings + b.crossings,
        evidence=a.evidence.join(b.evidence, a.max_timestamp),
        findings=findings,
    )


def check_range(facts: Facts, log: Summary) -> Iterator[Finding]:
    """Offsets of a whole log that the names of its segment and of the next one rule out.

    Of neighbours whose offsets rise only the first and the last is a finding; `combine` has those at falling offsets.
    """
    if log.batches:
        yield from _below_base(facts, log)
        yield from _above_limit(facts, log)


def _below_base(facts: Facts, part: Summary) -> Iterator[Finding]:
    first = part.first_offset
    if first < facts.base_offset:
        reason = f"offset {first} in a segment from {facts.base_offset} on"
        yield damage(facts.file, reason, position=part.first_position, offset=first)


def _above_limit(facts: Facts, part: Summary) -> Iterator[Finding]:
    last = part.last_offset
    if last >= facts.limit_offset:
        reason = f"offset {last} in a segment that ends before {facts.limit_offset}"
        yield damage(facts.file, reason, position=part.last_position, offset=last)


def _first_gap(a: Summary, b: Summary, *, excused: bool) -> int:
    if a.gap < 0 and not excused and b.first_offset > a.last_offset + 1:
        return a.last_offset + 1
    return a.gap if a.gap >= 0 else b.gap


def _with_empty(a: Summary, b: Summary) -> Summary:
    """One of the two has no sound batch."""
    whole = a if a.batches else b
    return whole._replace(
        start=a.start,
        end=b.end,
        hole_before=a.hole_before or (not a.batches and b.hole_before),
        hole_after=b.hole_after or (not b.batches and a.hole_after),
        holes=a.holes or b.holes,
        good_end=whole.good_end if whole.batches else a.start,
        findings=a.findings + b.findings,
    )


def reduce_steps(steps: Sequence[ProducerStep], cuts: Sequence[int]) -> tuple[ProducerStep, ...]:
    """Keep for each producer, between its markers and the cuts, the first transactional batch and the last batch."""
    kept: dict[int, ProducerStep] = {}
    first: dict[int, ProducerStep] = {}
    last: dict[int, ProducerStep] = {}

    def close(producer_id: int) -> None:
        for step in (first.pop(producer_id, None), last.pop(producer_id, None)):
            if step is not None:
                kept[step.position] = step

    before = 0
    for step in steps:
        header = step.header
        producer_id = header.producer_id
        if producer_id < 0:
            continue
        cut = bisect_right(cuts, header.base_offset)
        if cut != before:
            for other in list(last):
                close(other)
            before = cut
        if header.is_control:
            close(producer_id)
            kept[step.position] = step
            continue
        if header.is_transactional:
            first.setdefault(producer_id, step)
        last[producer_id] = step
    for other in list(last):
        close(other)
    return tuple(kept[at] for at in sorted(kept))


def join_epochs(a: tuple[EpochRun, ...], b: tuple[EpochRun, ...]) -> tuple[EpochRun, ...]:
    if a and b and a[-1].epoch == b[0].epoch:
        return (*a[:-1], a[-1]._replace(last_offset=b[0].last_offset), *b[1:])
    return a + b


def combine_all(facts: Facts, summaries: Sequence[Summary], start: int = 0) -> Summary:
    """The summary of neighbours in order; of none, the empty stretch at ``start``."""
    level = list(summaries)
    while len(level) > 1:
        pairs = [combine(facts, a, b) for a, b in zip(level[::2], level[1::2], strict=False)]
        level = pairs + level[2 * len(pairs) :]
    if not level:
        return Summary(start, start, start)
    return level[0]._replace(steps=reduce_steps(level[0].steps, facts.cuts)) if level[0].steps else level[0]
