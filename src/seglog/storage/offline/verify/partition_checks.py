"""The rules for a segment and a partition: summaries of logs against names, indexes, epochs, snapshots, checkpoints."""

from __future__ import annotations

import os.path
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from seglog.core.fs import Fs
from seglog.core.types import MAX_INT64
from seglog.storage.formats.paths import LEADER_EPOCHS, SegmentPaths
from seglog.storage.offline.findings import Finding, Severity, damage, note
from seglog.storage.offline.verify.index_entries import (
    INDEX_BYTES,
    TIME_BYTES,
    IndexEntries,
    match_appends,
    never_claimed,
    slots_at,
    wrong_place,
)
from seglog.storage.offline.verify.leader_epochs import check_epochs
from seglog.storage.offline.verify.manifests import chain_findings, sealed_findings
from seglog.storage.offline.verify.partition_files import PartitionFiles
from seglog.storage.offline.verify.producers import Replay, TxnIndexFile, check_producers
from seglog.storage.offline.verify.summary import Facts, Summary, check_range


def segment_findings(
    files: PartitionFiles, at: int, facts: Facts, summary: Summary, *, strict: bool = False
) -> list[Finding]:
    """Check segment ``at`` alone; ``summary`` covers its whole log.

    ``strict``: index entries that only Kafka up to 3.9 writes are damage.
    """
    paths = files.segments[at].paths
    summary = summary._replace(findings=(*summary.findings, *check_range(facts, summary)))
    findings = list(_log_findings(files, paths.log, summary, is_last=at + 1 == len(files.segments)))
    is_active = files.is_open and at + 1 == len(files.segments)
    findings += _check_ends(paths, facts.index_entries, summary, at_rest=files.is_at_rest, is_active=is_active)
    findings += _old_styles(facts.index_entries, summary, strict=strict)
    return findings


def manifest_findings(fs: Fs, files: PartitionFiles, at: int, facts: Facts, *, chain: bool = True) -> list[Finding]:
    """Compare segment ``at`` with the manifest; without ``chain`` only the end of its log is read."""
    paths, size, _ = files.segments[at]
    entry = files.sealed.get(paths.base_offset)
    if entry is None:
        return []
    findings = list(sealed_findings(fs, paths, size, entry, facts.index_entries))
    return findings if findings or not chain else list(chain_findings(fs, paths, entry))


def partition_findings(
    fs: Fs, files: PartitionFiles, summaries: Sequence[Summary], *, is_complete: bool = True
) -> list[Finding]:
    """Check all segments together. Unless it ``is_complete``, some were not read."""
    end = log_end(files, summaries)
    if not is_complete:
        return list(_check_end(files, summaries, end, gaps=False))
    findings = _check_epochs(files, summaries, end)
    if files.segments:
        findings += _check_end(files, summaries, end)
    return findings + check_producers(replay_of(fs, files, summaries), files.snapshots)


def _check_epochs(files: PartitionFiles, summaries: Sequence[Summary], end: int) -> list[Finding]:
    runs = [
        (segment.paths.log, run)
        for segment, summary in zip(files.segments, summaries, strict=True)
        for run in summary.epochs
    ]
    return list(
        check_epochs(
            os.path.join(files.path, LEADER_EPOCHS),
            files.epochs,
            runs,
            log_start=files.context.log_start if files.context.clean else None,
            log_end=end,
            at_rest=files.is_at_rest,
        )
    )


def in_order(findings: Iterable[Finding]) -> list[Finding]:
    """Sort by file and position; of several findings on one place keep the first."""
    seen: set[tuple[str, int, Severity]] = set()
    kept = []
    for finding in findings:
        place = (finding.file, finding.position, finding.severity)
        if finding.position < 0 or place not in seen:
            seen.add(place)
            kept.append(finding)
    return sorted(kept, key=lambda finding: (finding.file, finding.position, finding.reason))


def log_end(files: PartitionFiles, summaries: Sequence[Summary]) -> int:
    """The offset behind the last sound batch, and at least the base offset of the last segment."""
    if not files.segments:
        return 0
    return max(files.segments[-1].paths.base_offset, *(summary.last_offset + 1 for summary in summaries))


def _log_findings(files: PartitionFiles, file: str, summary: Summary, *, is_last: bool) -> Iterator[Finding]:
    """The findings of the walk. Where a crash may have torn the end of the log, they are notes."""
    flushed = files.context.recovery_point
    may_be_torn = is_last and files.is_open and (flushed is None or summary.last_offset + 1 >= flushed)
    for finding in summary.findings:
        if may_be_torn and finding.file == file and finding.position >= summary.good_end:
            yield note(file, f"torn tail: {finding.reason}", position=finding.position, offset=finding.offset)
        else:
            yield finding
    for crossing in summary.crossings:
        yield damage(
            file,
            f"one batch has offsets {crossing.base_offset} to {crossing.last_offset}, and by the checkpoint a leader "
            f"epoch begins at {crossing.start_offset}",
            position=crossing.position,
            offset=crossing.base_offset,
        )


def _check_ends(
    paths: SegmentPaths, index: IndexEntries, summary: Summary, *, at_rest: bool, is_active: bool
) -> Iterator[Finding]:
    """Index entries behind the last batch, entries that no batch confirms, and the last entry of the time index."""
    if not summary.hole_after:
        for slot in slots_at(index, summary.good_end, 1 << 62):
            yield wrong_place(index, slot, f"the log ends at position {summary.good_end}")
    if not summary.holes:
        yield from match_appends(index, summary.evidence).findings
        yield from never_claimed(index, summary.evidence.claimed)
    if summary.holes or summary.max_timestamp < 0 or is_active:
        return
    if not index.timestamps:
        yield note(paths.timeindex, f"no entry, and the log has timestamps up to {summary.max_timestamp}")
    elif at_rest and index.timestamps[-1] < summary.max_timestamp:
        reason = f"the last time is {index.timestamps[-1]}, the largest in the log {summary.max_timestamp}"
        yield damage(
            paths.timeindex, reason, position=index.time_slots[-1] * TIME_BYTES, offset=summary.max_timestamp_offset
        )


def _old_styles(index: IndexEntries, summary: Summary, *, strict: bool) -> Iterator[Finding]:
    appends = sorted((*match_appends(index, summary.evidence).legal, *summary.evidence.last_records))
    for file, places, reason in (
        (
            index.index_file,
            [index.slots[slot] * INDEX_BYTES for slot in appends],
            "stand for appends of several batches",
        ),
        (
            index.time_file,
            [index.time_slots[slot] * TIME_BYTES for slot in summary.evidence.inner_times],
            "name a record inside of a batch",
        ),
    ):
        if strict:
            for place in places:
                yield damage(file, "the entry is as only Kafka up to 3.9 writes it", position=place)
        elif places:
            yield note(file, f"{len(places)} entries {reason}, as Kafka up to 3.9 writes them", position=places[0])


def _check_end(
    files: PartitionFiles, summaries: Sequence[Summary], end: int, *, gaps: bool = True
) -> Iterator[Finding]:
    """Compare the end of the log with snapshots and checkpoints; with ``gaps`` also search for missing offsets."""
    last, context = files.segments[-1].paths, files.context
    at_rest = files.is_at_rest
    newest = files.snapshots[-1] if files.snapshots else None
    make = damage if at_rest else note
    if newest is not None and newest.offset > end:
        yield make(
            last.log, f"the log ends at offset {end}, and {os.path.basename(newest.file)} lies behind it", offset=end
        )
    has_batches = any(summary.batches for summary in summaries)
    if at_rest and newest is not None and newest.offset < end and has_batches and end > last.base_offset:
        reason = f"the log ends at offset {end}, and has no snapshot there; the last is at {newest.offset}"
        yield damage(last.log, reason, offset=end)
    gap = _first_gap(files, summaries) if gaps else None
    if gap is not None and context.was_cleaned is False:
        yield note(
            gap[0],
            f"offset {gap[1]} is missing, and by the checkpoints the partition was never compacted",
            offset=gap[1],
        )
    if context.recovery_point is not None and context.recovery_point > end:
        yield damage(
            last.log, f"the log ends at offset {end}, and was flushed up to {context.recovery_point}", offset=end
        )
    if context.high_watermark is not None and context.high_watermark > end:
        yield make(
            last.log, f"the log ends at offset {end}, below its high watermark {context.high_watermark}", offset=end
        )
    if context.log_start is not None and context.log_start > end:
        yield make(last.log, f"the log ends at offset {end}, below its start {context.log_start}", offset=end)
    if context.clean and context.recovery_point is not None and context.recovery_point < end:
        reason = (
            f"the log ends at offset {end}, and the recovery point is {context.recovery_point} after a clean shutdown"
        )
        yield damage(last.log, reason, offset=end)


def replay_of(fs: Fs, files: PartitionFiles, summaries: Sequence[Summary]) -> Replay:
    """The log as producer snapshots and abort indexes must match it."""
    segments = []
    holes = False
    for segment, summary in zip(files.segments, summaries, strict=True):
        paths = segment.paths
        data = fs.read(paths.txnindex) if fs.exists(paths.txnindex) else None
        segments.append((TxnIndexFile(paths.log, paths.base_offset, paths.txnindex, data), summary.steps))
        holes |= summary.holes
    order = [step.header.base_offset for _, steps in segments for step in steps]
    holes |= any(later <= earlier for earlier, later in pairwise(order))  # damage: a replay would prove nothing
    start = files.segments[0].paths.base_offset if files.segments else 0
    return Replay(start, segments, _first_gap(files, summaries) is not None, holes)


def _first_gap(files: PartitionFiles, summaries: Sequence[Summary]) -> tuple[str, int] | None:
    """The first missing offset in the middle of the log, and the file in or before which it is missing."""
    following = files.segments[0].paths.base_offset if files.segments else 0
    for segment, summary in zip(files.segments, summaries, strict=True):
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


def single_segment_findings(fs: Fs, files: PartitionFiles, at: int, summary: Summary) -> list[Finding]:
    """Check leader epochs and abort index of segment ``at`` by its own log, as earlier segments are not known."""
    alone = files._replace(segments=files.segments[at : at + 1])
    findings = _check_epochs(alone, [summary], max(files.segments[-1].paths.base_offset, summary.last_offset + 1))
    return findings + check_producers(replay_of(fs, alone, [summary])._replace(gaps=True), [])
