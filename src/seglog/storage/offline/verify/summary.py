"""What there is to know of a stretch of a segment's log once its bytes are gone: summaries, and how two become one.

A stretch is cut anywhere between batches, each part is looked at by itself (in a thread, a process, a Spark task), and
`combine` puts neighbours together: it is associative, and what can only be seen from both sides it sees. Pure.
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
from seglog.storage.offline.verify.indexes import NO_PROBES, Begun, Ended, Probes, Ranges, join_ranges, wrong_time

LEGACY: Final = -2
"""Stands for the leader epoch of messages of magic 0 and 1, which have none."""


class Facts(NamedTuple):
    """What is known of a segment before its log is read.

    ``epoch_starts``: offsets at which a leader epoch begins, that is: no batch may go across. ``cuts``: offsets, up to
    which the state of producers will be asked for. All offsets are from ``base_offset`` to below ``limit_offset``.
    ``limit``: most bytes that a batch may decompress to.
    """

    file: str
    probes: Probes = NO_PROBES
    epoch_starts: Sequence[int] = ()
    cuts: Sequence[int] = ()
    base_offset: int = 0
    limit_offset: int = MAX_INT64
    limit: int = DEFAULT_LIMIT


class EpochRun(NamedTuple):
    """Neighbouring batches of one leader epoch: base offsets of the first and the last, position of the first."""

    epoch: int
    first_offset: int
    last_offset: int
    position: int


class Step(NamedTuple):
    """A batch that changes what is known of its producer; of the others a later one says as much."""

    header: BatchHeader
    control: ControlRecord | None
    position: int


class Crossing(NamedTuple):
    """A batch that goes across an offset at which a leader epoch is said to begin."""

    start_offset: int
    base_offset: int
    last_offset: int
    position: int


class Summary(NamedTuple):
    """Of the bytes from ``start`` to ``end``. Offsets are -1 where there is no batch.

    ``good_end`` is where the last sound batch ends. ``hole_before``, ``hole_after``: bytes that are no sound batch
    stand before the first sound one, or after the last. ``gap`` is the first offset that is missing between sound
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
    max_timestamp: int = NO_TIMESTAMP
    max_timestamp_offset: int = -1
    hole_before: bool = False
    hole_after: bool = False
    holes: bool = False
    gap: int = -1
    epochs: tuple[EpochRun, ...] = ()
    steps: tuple[Step, ...] = ()
    crossings: tuple[Crossing, ...] = ()
    begun: tuple[Begun, ...] = ()
    ended: tuple[Ended, ...] = ()
    claimed: Ranges = ()
    last_records: tuple[int, ...] = ()
    inner_times: tuple[int, ...] = ()
    findings: tuple[Finding, ...] = ()


def hole(start: int, end: int, *findings: Finding) -> Summary:
    """Bytes without a sound batch."""
    return Summary(start, end, start, hole_before=True, hole_after=True, holes=True, findings=findings)


def combine(facts: Facts, a: Summary, b: Summary) -> Summary:
    """Of two neighbours, ``a`` first."""
    if a.end != b.start:
        raise ValueError(f"{facts.file}: bytes up to {a.end} and from {b.start} are not neighbours")
    if not a.batches or not b.batches:
        return _with_empty(a, b)
    excused = a.hole_after or b.hole_before
    findings = list(a.findings)
    if b.first_offset <= a.last_offset:
        findings.append(
            damage(
                facts.file,
                f"offset {b.first_offset} comes after {a.last_offset}",
                position=b.first_position,
                offset=b.first_offset,
            )
        )
    findings += _late_times(facts.probes, a, b)
    later_max = b.max_timestamp > a.max_timestamp
    return Summary(
        a.start,
        b.end,
        b.good_end,
        a.batches + b.batches,
        a.records + b.records,
        a.first_offset,
        a.first_position,
        b.last_offset,
        b.max_timestamp if later_max else a.max_timestamp,
        b.max_timestamp_offset if later_max else a.max_timestamp_offset,
        a.hole_before,
        b.hole_after,
        a.holes or b.holes,
        _first_gap(a, b, excused=excused),
        join_epochs(a.epochs, b.epochs),
        reduce_steps(a.steps + b.steps, facts.cuts) if a.steps and b.steps else a.steps + b.steps,
        a.crossings + b.crossings,
        a.begun + b.begun,
        a.ended + tuple(one._replace(peak=max(one.peak, a.max_timestamp)) for one in b.ended),
        join_ranges(a.claimed, b.claimed),
        a.last_records + b.last_records,
        a.inner_times + b.inner_times,
        (*findings, *b.findings),
    )


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


def _late_times(probes: Probes, a: Summary, b: Summary) -> Iterator[Finding]:
    """Time index entries of ``b`` with a timestamp that ``a`` has reached."""
    for start, end in b.claimed:
        for slot in range(start, end):
            if probes.timestamps[slot] > a.max_timestamp:
                return
            yield wrong_time(probes, slot, f"an earlier batch has timestamp {a.max_timestamp}")


def reduce_steps(steps: Sequence[Step], cuts: Sequence[int]) -> tuple[Step, ...]:
    """For each producer, between its markers and the cuts: the first batch of a transaction, and the last of all."""
    kept: dict[int, Step] = {}
    first: dict[int, Step] = {}
    last: dict[int, Step] = {}

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
    """Of neighbours in order; of none, the empty stretch at ``start``."""
    level = list(summaries)
    while len(level) > 1:
        pairs = [combine(facts, a, b) for a, b in zip(level[::2], level[1::2], strict=False)]
        level = pairs + level[2 * len(pairs) :]
    return level[0] if level else Summary(start, start, start)
