"""What the summaries of a partition's logs come to: against names, neighbours, indexes, epochs and snapshots."""

from __future__ import annotations

import os.path
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from seglog.core.fs import Fs
from seglog.core.types import MAX_INT64
from seglog.storage.formats.paths import LEADER_EPOCHS, SegmentPaths
from seglog.storage.offline.findings import Finding, Severity, damage, note
from seglog.storage.offline.verify.indexes import (
    INDEX_BYTES,
    TIME_BYTES,
    Probes,
    match_appends,
    never_claimed,
    slots_at,
    wrong_place,
)
from seglog.storage.offline.verify.leader_epochs import check_epochs
from seglog.storage.offline.verify.manifests import chain_findings, sealed_findings
from seglog.storage.offline.verify.partition_files import Plan
from seglog.storage.offline.verify.producers import Replay, TxnFile, check_producers
from seglog.storage.offline.verify.summary import Facts, Summary, check_range


def segment_findings(plan: Plan, at: int, facts: Facts, summary: Summary, *, strict: bool = False) -> list[Finding]:
    """Of segment ``at`` alone; ``summary`` is of its log from the first byte to the last.

    ``strict``: what only Kafka up to 3.9 writes is damage.
    """
    paths = plan.segments[at].paths
    summary = summary._replace(findings=(*summary.findings, *check_range(facts, summary)))
    findings = list(_log_findings(plan, paths.log, summary, is_last=at + 1 == len(plan.segments)))
    is_active = plan.is_open and at + 1 == len(plan.segments)
    findings += _check_ends(paths, facts.probes, summary, at_rest=plan.is_at_rest, is_active=is_active)
    findings += _old_styles(facts.probes, summary, strict=strict)
    return findings


def manifest_findings(fs: Fs, plan: Plan, at: int, facts: Facts, *, chain: bool = True) -> list[Finding]:
    """Segment ``at`` against the manifest; without ``chain`` only what it ends with is read."""
    paths, size, _ = plan.segments[at]
    entry = plan.sealed.get(paths.base_offset)
    if entry is None:
        return []
    findings = list(sealed_findings(fs, paths, size, entry, facts.probes))
    return findings if findings or not chain else list(chain_findings(fs, paths, entry))


def partition_findings(fs: Fs, plan: Plan, summaries: Sequence[Summary], *, is_complete: bool = True) -> list[Finding]:
    """What is seen from all segments together. Unless it ``is_complete``, some were not read."""
    end = log_end(plan, summaries)
    if not is_complete:
        return list(_check_end(plan, summaries, end, gaps=False))
    findings = _check_epochs(plan, summaries, end)
    if plan.segments:
        findings += _check_end(plan, summaries, end)
    return findings + check_producers(replay_of(fs, plan, summaries), plan.snapshots)


def _check_epochs(plan: Plan, summaries: Sequence[Summary], end: int) -> list[Finding]:
    runs = [
        (segment.paths.log, run)
        for segment, summary in zip(plan.segments, summaries, strict=True)
        for run in summary.epochs
    ]
    return list(
        check_epochs(
            os.path.join(plan.path, LEADER_EPOCHS),
            plan.epochs,
            runs,
            log_start=plan.around.log_start if plan.around.clean else None,
            log_end=end,
            at_rest=plan.is_at_rest,
        )
    )


def in_order(findings: Iterable[Finding]) -> list[Finding]:
    """By file and position; of several about one place, of which the first said all, the rest goes."""
    seen: set[tuple[str, int, Severity]] = set()
    kept = []
    for finding in findings:
        place = (finding.file, finding.position, finding.severity)
        if finding.position < 0 or place not in seen:
            seen.add(place)
            kept.append(finding)
    return sorted(kept, key=lambda finding: (finding.file, finding.position, finding.reason))


def log_end(plan: Plan, summaries: Sequence[Summary]) -> int:
    """The offset behind the last sound batch, at least the base offset of the last segment."""
    if not plan.segments:
        return 0
    return max(plan.segments[-1].paths.base_offset, *(summary.last_offset + 1 for summary in summaries))


def _log_findings(plan: Plan, file: str, summary: Summary, *, is_last: bool) -> Iterator[Finding]:
    """What the walk found; where a crash may have torn the end of the log, that is a note."""
    flushed = plan.around.recovery_point
    may_be_torn = is_last and plan.is_open and (flushed is None or summary.last_offset + 1 >= flushed)
    for finding in summary.findings:
        if may_be_torn and finding.file == file and finding.position >= summary.good_end:
            yield note(file, f"torn tail: {finding.reason}", position=finding.position, offset=finding.offset)
        else:
            yield finding
    for crossing in summary.crossings:
        yield damage(
            file,
            f"offsets {crossing.base_offset} to {crossing.last_offset} in one batch, and by the checkpoint a leader "
            f"epoch begins at {crossing.start_offset}",
            position=crossing.position,
            offset=crossing.base_offset,
        )


def _check_ends(
    paths: SegmentPaths, probes: Probes, summary: Summary, *, at_rest: bool, is_active: bool
) -> Iterator[Finding]:
    """Index entries about what is before the first batch or behind the last, and what the time index must end with."""
    if not summary.hole_after:
        for slot in slots_at(probes, summary.good_end, 1 << 62):
            yield wrong_place(probes, slot, f"the log ends at position {summary.good_end}")
    if not summary.holes:
        yield from match_appends(probes, summary.evidence).findings
        yield from never_claimed(probes, summary.evidence.claimed)
    if summary.holes or summary.max_timestamp < 0 or is_active:
        return
    if not probes.timestamps:
        yield note(paths.timeindex, f"no entry, and the log has timestamps up to {summary.max_timestamp}")
    elif at_rest and probes.timestamps[-1] < summary.max_timestamp:
        reason = f"the last time is {probes.timestamps[-1]}, the largest in the log {summary.max_timestamp}"
        yield damage(
            paths.timeindex, reason, position=probes.time_slots[-1] * TIME_BYTES, offset=summary.max_timestamp_offset
        )


def _old_styles(probes: Probes, summary: Summary, *, strict: bool) -> Iterator[Finding]:
    appends = sorted((*match_appends(probes, summary.evidence).legal, *summary.evidence.last_records))
    for file, places, reason in (
        (
            probes.index_file,
            [probes.slots[slot] * INDEX_BYTES for slot in appends],
            "stand for appends of several batches",
        ),
        (
            probes.time_file,
            [probes.time_slots[slot] * TIME_BYTES for slot in summary.evidence.inner_times],
            "name a record inside of a batch",
        ),
    ):
        if strict:
            for place in places:
                yield damage(file, "the entry is as only Kafka up to 3.9 writes it", position=place)
        elif places:
            yield note(file, f"{len(places)} entries {reason}, as Kafka up to 3.9 writes them", position=places[0])


def _check_end(plan: Plan, summaries: Sequence[Summary], end: int, *, gaps: bool = True) -> Iterator[Finding]:
    """The log's end against what else knows of it; and, unless segments were passed over, ``gaps`` before it."""
    last, around = plan.segments[-1].paths, plan.around
    at_rest = plan.is_at_rest
    newest = plan.snapshots[-1] if plan.snapshots else None
    make = damage if at_rest else note
    if newest is not None and newest.offset > end:
        yield make(
            last.log, f"the log ends at offset {end}, and {os.path.basename(newest.file)} was made behind", offset=end
        )
    has_batches = any(summary.batches for summary in summaries)
    if at_rest and newest is not None and newest.offset < end and has_batches and end > last.base_offset:
        reason = f"the log ends at offset {end}, and no snapshot was made there; the last is of {newest.offset}"
        yield damage(last.log, reason, offset=end)
    gap = _first_gap(plan, summaries) if gaps else None
    if gap is not None and around.was_cleaned is False:
        yield note(
            gap[0],
            f"offset {gap[1]} is missing, and by the checkpoints the partition was never compacted",
            offset=gap[1],
        )
    if around.recovery_point is not None and around.recovery_point > end:
        yield damage(
            last.log, f"the log ends at offset {end}, and was flushed up to {around.recovery_point}", offset=end
        )
    if around.high_watermark is not None and around.high_watermark > end:
        yield make(
            last.log, f"the log ends at offset {end}, below its high watermark {around.high_watermark}", offset=end
        )
    if around.log_start is not None and around.log_start > end:
        yield make(last.log, f"the log ends at offset {end}, below its start {around.log_start}", offset=end)
    if around.clean and around.recovery_point is not None and around.recovery_point < end:
        reason = (
            f"the log ends at offset {end}, and the recovery point is {around.recovery_point} after a clean shutdown"
        )
        yield damage(last.log, reason, offset=end)


def replay_of(fs: Fs, plan: Plan, summaries: Sequence[Summary]) -> Replay:
    """What producer snapshots and abort indexes are held to."""
    segments = []
    holes = False
    for segment, summary in zip(plan.segments, summaries, strict=True):
        paths = segment.paths
        data = fs.read(paths.txnindex) if fs.exists(paths.txnindex) else None
        segments.append((TxnFile(paths.log, paths.base_offset, paths.txnindex, data), summary.steps))
        holes |= summary.holes
    order = [step.header.base_offset for _, steps in segments for step in steps]
    holes |= any(later <= earlier for earlier, later in pairwise(order))  # damage; nothing can be said of what it means
    start = plan.segments[0].paths.base_offset if plan.segments else 0
    return Replay(start, segments, _first_gap(plan, summaries) is not None, holes)


def _first_gap(plan: Plan, summaries: Sequence[Summary]) -> tuple[str, int] | None:
    """The first offset that is missing in the middle of the log, and the file before or in which it is."""
    following = plan.segments[0].paths.base_offset if plan.segments else 0
    for segment, summary in zip(plan.segments, summaries, strict=True):
        paths = segment.paths
        if paths.base_offset > following:
            return paths.log, following
        if not summary.batches:
            continue
        if summary.first_offset > paths.base_offset and not summary.hole_before:
            return paths.log, paths.base_offset
        if summary.gap >= 0:
            return paths.log, summary.gap
        following = MAX_INT64 if summary.hole_after else summary.last_offset + 1
    return None


def single_segment_findings(fs: Fs, plan: Plan, at: int, summary: Summary) -> list[Finding]:
    """Leader epochs and abort index of segment ``at``, as far as its own log can say; what was before is not known."""
    alone = plan._replace(segments=plan.segments[at : at + 1])
    findings = _check_epochs(alone, [summary], max(plan.segments[-1].paths.base_offset, summary.last_offset + 1))
    return findings + check_producers(replay_of(fs, alone, [summary])._replace(gaps=True), [])
