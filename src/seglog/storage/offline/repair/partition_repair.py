"""The repair of one partition: a plan, made without changing anything, and the work that carries it out.

`seglog.storage.offline.repair.file_replacement` describes the files that a crash leaves behind.
"""

from __future__ import annotations

import os.path
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import NamedTuple
from uuid import UUID

from seglog.core.clock import Clock
from seglog.core.fs import File, Fs
from seglog.storage.formats.checkpoints import encode_epochs, encode_partition_metadata
from seglog.storage.formats.paths import (
    HIGH_WATERMARKS,
    LEADER_EPOCHS,
    LOG_START_OFFSETS,
    MANIFEST,
    OWN_DIRECTORY,
    PARTITION_METADATA,
    RECOVERY_POINTS,
    SNAPSHOT,
    WITNESS,
    SegmentPaths,
)
from seglog.storage.log.manifest import Manifest, SealedSegment
from seglog.storage.log.producer_snapshots import snapshot_path
from seglog.storage.log.quarantine import forget_refused_start, save_log
from seglog.storage.offline.findings import Finding, Severity
from seglog.storage.offline.repair.derived_files import build_epochs, build_indexes, build_producer_files
from seglog.storage.offline.repair.file_replacement import FileReplacement, read_pieces
from seglog.storage.offline.repair.log_repair import LogRepair, PatchedFile, Removal, plan_log
from seglog.storage.offline.repair.replica_batches import BatchDonor
from seglog.storage.offline.verify.index_entries import NO_ENTRIES
from seglog.storage.offline.verify.manifests import chain_of, tail_of
from seglog.storage.offline.verify.partition_checks import (
    in_order,
    log_end,
    manifest_findings,
    partition_findings,
    replay_of,
    segment_findings,
)
from seglog.storage.offline.verify.partition_files import PartitionContext, PartitionFiles, read_facts, read_partition
from seglog.storage.offline.verify.stretch_walk import StretchWalk
from seglog.storage.offline.verify.summary import Facts, Summary


class RepairStep(NamedTuple):
    """One change of a file. ``loses``: the offsets that it loses, "" if none."""

    file: str
    what: str
    loses: str = ""

    def __str__(self) -> str:
        return f"{self.file}: {self.what}{f'; lost: {self.loses}' if self.loses else ''}"


class PartitionRepair(NamedTuple):
    """The plan for a partition. ``logs`` by number of the segment; ``indexes``: segments whose indexes are rebuilt.

    ``epochs``: the checkpoint of leader epochs is rebuilt. ``topic_id`` is written unless it is None.
    ``forgets_topic_id``: ``partition.metadata`` is removed: it cannot be read, and no other file has the id.
    ``forgotten``: base offsets of segments that leave the manifest. ``rebuilds_manifest``: all of it is rebuilt.
    ``empties``: why all segments are moved away, so that the log begins and ends at ``end_offset``; "" if they stay.

    ``refusals``: damage that cannot be repaired, or not without losing records. If there is any, the repair does not
    touch the partition.
    """

    files: PartitionFiles
    findings: Sequence[Finding]
    logs: Mapping[int, LogRepair]
    indexes: frozenset[int]
    epochs: bool
    topic_id: UUID | None
    forgets_topic_id: bool
    forgotten: frozenset[int]
    rebuilds_manifest: bool
    end_offset: int
    empties: str
    steps: Sequence[RepairStep]
    refusals: Sequence[str]

    @property
    def is_needed(self) -> bool:
        return bool(self.steps or self.refusals)


def check_partition(
    fs: Fs, path: str, context: PartitionContext
) -> tuple[PartitionFiles, list[Facts], list[Summary], list[Finding]]:
    """Check a partition; return its files, the facts and summary of each segment, and all findings."""
    files = read_partition(fs, path, context)
    facts: list[Facts] = []
    summaries: list[Summary] = []
    findings = list(files.findings)
    for at, segment in enumerate(files.segments):
        known, wrong = read_facts(fs, files, at)
        facts.append(known)
        with closing(fs.open(segment.paths.log, write=False)) as file:
            summaries.append(StretchWalk(file, known).run(0, segment.size))
        findings += wrong + segment_findings(files, at, known, summaries[-1], strict=context.recent)
        findings += manifest_findings(fs, files, at, known)
    findings += partition_findings(fs, files, summaries)
    return files, facts, summaries, in_order(findings)


def plan_partition(
    fs: Fs,
    path: str,
    context: PartitionContext,
    *,
    topic_id: UUID | None,
    wrong_id: bool,
    salvage: bool,
    keep_log_start: bool = False,
    replica: BatchDonor | None = None,
) -> PartitionRepair:
    """Plan the repair of one partition.

    ``topic_id``: the topic's id by the rest of the log directory; ``wrong_id``: the partition has another one.
    ``salvage``: batches may be lost. ``keep_log_start``: empty a log that ends below its checkpointed start.
    ``replica`` may have batches that are damaged here.
    """
    planner = _Planner(fs, path, context, topic_id, replica, salvage=salvage, keep_log_start=keep_log_start)
    if wrong_id:
        planner.damaged.add(os.path.join(path, PARTITION_METADATA))
    return planner.plan()


class _Planner:
    def __init__(
        self,
        fs: Fs,
        path: str,
        context: PartitionContext,
        topic_id: UUID | None,
        replica: BatchDonor | None,
        *,
        salvage: bool,
        keep_log_start: bool,
    ) -> None:
        self._replica = replica
        self._fs = fs
        self._path = path
        self._topic_id = topic_id
        self._salvage = salvage
        self._keep_log_start = keep_log_start
        self._files, self._facts, self._summaries, self._findings = check_partition(fs, path, context)
        self.damaged = {finding.file for finding in self._findings if finding.severity is Severity.DAMAGE}
        self._steps: list[RepairStep] = []
        self._refusals: list[str] = []
        self._logs: dict[int, LogRepair] = {}
        self._empties = ""
        self._forgotten: set[int] = set()
        self._end = log_end(self._files, self._summaries)

    def plan(self) -> PartitionRepair:
        files = self._files
        epochs_file, metadata = os.path.join(self._path, LEADER_EPOCHS), os.path.join(self._path, PARTITION_METADATA)
        trusts_epochs = epochs_file not in self.damaged and not self._epochs_contradict_batches()
        for at, segment in enumerate(files.segments):
            if segment.paths.log in self.damaged or self._summaries[at].holes:
                self._plan_log(at, trusts_epochs=trusts_epochs)
        self._end_of_log()
        indexes = frozenset(
            at
            for at, segment in enumerate(files.segments)
            if at in self._logs or {segment.paths.offset_index, segment.paths.timeindex} & self.damaged
        )
        for at in sorted(indexes):
            paths = files.segments[at].paths
            why = "its log changes" if at in self._logs else self._reason(paths.offset_index, paths.timeindex)
            self._steps.append(RepairStep(paths.offset_index, f"rebuild it and the time index ({why})"))
        self._plan_producers()
        self._plan_checkpoints()
        epochs = epochs_file in self.damaged or not trusts_epochs
        if not epochs and files.epochs is not None and any(start > self._end for _, start in files.epochs.entries):
            self._steps.append(RepairStep(epochs_file, f"remove epochs that begin behind offset {self._end}"))
        elif epochs:
            why = self._reason(epochs_file) or "it contradicts them"
            self._steps.append(RepairStep(epochs_file, f"rebuild it from the batches ({why})"))
        topic_id = None
        forgets_topic_id = False
        if metadata in self.damaged:
            is_unreadable = bool(self._reason(metadata))
            topic_id = self._topic_id or (files.topic_id if is_unreadable else None)
            forgets_topic_id = topic_id is None and is_unreadable
            if topic_id is None and not is_unreadable:
                self._refusals.append(f"{metadata}: no other file in the log directory has the topic's id")
            elif forgets_topic_id:
                what = "remove it: it cannot be read, and no other file has the topic's id; a broker writes it again"
                self._steps.append(RepairStep(metadata, what))
            else:
                self._steps.append(
                    RepairStep(metadata, "write the topic's id, which other files of the log directory have")
                )
        rebuilds_manifest = self._plan_manifest()
        self._refuse_the_rest(epochs=epochs)
        return PartitionRepair(
            files,
            self._findings,
            self._logs,
            indexes,
            epochs,
            topic_id,
            forgets_topic_id,
            frozenset(self._forgotten),
            rebuilds_manifest,
            self._end,
            self._empties,
            self._steps,
            self._refusals,
        )

    def _plan_manifest(self) -> bool:
        """Plan which segments leave the manifest; return whether all of it is rebuilt."""
        for file in (os.path.join(self._path, MANIFEST), os.path.join(self._path, WITNESS)):
            if file in self.damaged:
                self._steps.append(RepairStep(file, f"rebuild the manifest ({self._reason(file)})"))
                return True
        repaired = {self._files.segments[at].paths.base_offset: repair for at, repair in self._logs.items()}
        for entry in self._files.sealed.values():
            file = os.path.join(self._path, entry.log)
            reason = next((one.reason for one in self._findings if one.file == file and MANIFEST in one.reason), "")
            repair = repaired.get(entry.base_offset)
            if repair is not None and repair.gone:
                self._forgotten.add(entry.base_offset)
            elif reason and repair is None:
                lost = f"the missing part of offsets {entry.base_offset} to {entry.end_offset - 1}"
                if self._salvage:
                    self._forgotten.add(entry.base_offset)
                    self._steps.append(RepairStep(file, f"accept it with what is left ({reason})", lost))
                else:
                    self._refusals.append(
                        f"{file}: {reason}: restore the file, copy the records from a replica, or accept their "
                        "loss with --salvage"
                    )
        return False

    def _refuse_the_rest(self, *, epochs: bool) -> None:
        """Refuse if there is damage without a step."""
        files = {step.file for step in self._steps}
        logs = set()
        for segment in self._files.segments:
            logs.add(segment.paths.log)
            if segment.paths.offset_index in files:
                files.add(segment.paths.timeindex)
        for finding in self._findings:
            if finding.severity is not Severity.DAMAGE or finding.file in files or self._refusals:
                continue
            is_log = finding.file in logs
            about_end = is_log and finding.position < 0 and bool(files)  # snapshots and checkpoints follow the log
            if not about_end and not (is_log and epochs):
                self._refusals.append(f"{finding}; this cannot be repaired: copy the partition from a replica")

    def _reason(self, *files: str) -> str:
        damaged = (one for one in self._findings if one.file in files and one.severity is Severity.DAMAGE)
        return next((finding.reason for finding in damaged), "")

    def _epochs_contradict_batches(self) -> bool:
        """Whether the checkpoint is wrong, and not a batch: a flipped bit in a batch's epoch makes one batch differ.

        If a single batch differs, the checkpoint is wrong if both have an epoch begin there, and no other batch has
        the epoch of the checkpoint.
        """
        epochs = self._files.epochs
        if epochs is None or not epochs.entries:
            return False
        runs = [run for summary in self._summaries for run in summary.epochs if run.epoch >= 0]
        has_batches = {run.epoch for run in runs}
        starts = {start: epoch for epoch, start in epochs.entries}
        known_from = epochs.entries[0].start_offset
        log_start = self._files.context.log_start if self._files.context.clean else None
        for run in runs:
            if log_start is not None and log_start <= min(run.last_offset, known_from - 1):
                return True
            said = epochs.epoch_for_offset(run.first_offset), epochs.epoch_for_offset(run.last_offset)
            if run.first_offset < known_from or said == (run.epoch, run.epoch):
                continue
            if run.first_offset != run.last_offset or starts.get(run.first_offset, run.epoch) not in has_batches:
                return True
        return any(summary.crossings for summary in self._summaries) and not any(
            segment.paths.log in self.damaged and summary.holes
            for segment, summary in zip(self._files.segments, self._summaries, strict=True)
        )

    # Logs

    def _plan_log(self, at: int, *, trusts_epochs: bool) -> None:
        files = self._files
        segment = files.segments[at]
        is_last = at + 1 == len(files.segments)
        end = self._known_end() if is_last else None
        epochs = files.epochs if trusts_epochs else None
        is_read = os.path.join(self._path, LEADER_EPOCHS) not in {
            finding.file for finding in files.findings if finding.severity is Severity.DAMAGE
        }
        history = files.epochs if is_read and not self._epochs_contradict_batches() else None
        until = self._had_all_until() if is_last else None
        if not is_last and files.context.was_cleaned is False:
            until = segment.limit_offset
        with closing(self._fs.open(segment.paths.log, write=False)) as file:
            plan = partial(plan_log, is_last=is_last, until=until, history=history)
            repair = plan(file, self._facts[at], epochs, end, self._replica)
            if end is not None and end < self._end and repair.gone:  # it ends behind that: a snapshot is missing
                end = None
                repair = plan(file, self._facts[at], epochs, end, self._replica)
        if not repair.is_needed:
            return
        self._refusals += [f"{segment.paths.log}, {one}" for one in repair.disputes]
        if repair.disputes:
            return
        self._logs[at] = repair
        if is_last and repair.tail_end is not None:
            self._end = repair.tail_end
        self._steps += [RepairStep(segment.paths.log, f"set the {patch.what}") for patch in repair.patches]
        for gone in repair.gone:
            may_go = gone.is_tail and is_last and not self._is_damage(segment.paths.log, gone)
            what = "cut off" if gone.is_tail else "remove"
            text = f"{what} {gone.end - gone.start} bytes at position {gone.start} ({gone.reason})"
            if may_go or self._salvage:
                self._steps.append(RepairStep(segment.paths.log, text, gone.offsets))
            else:
                self._refusals.append(
                    f"{segment.paths.log}: would {text}, with {gone.offsets}: copy the records from a replica, or "
                    "accept their loss with --salvage"
                )
        if is_last and repair.gone and repair.gone[-1].is_tail:
            self._end = repair.gone[-1].first
        elif is_last and end is not None:
            self._end = end

    def _is_damage(self, file: str, gone: Removal) -> bool:
        """Whether the bytes are damage, and not a torn tail, which is a note."""
        return any(
            one.file == file and one.severity is Severity.DAMAGE and one.position >= gone.start
            for one in self._findings
        )

    def _known_end(self) -> int | None:
        """The end of the log when it was closed; None if no file has it."""
        if not self._files.is_at_rest:
            return None
        if self._files.context.clean and self._files.context.recovery_point is not None:
            return self._files.context.recovery_point
        return self._files.snapshots[-1].offset if self._files.snapshots else None

    def _had_all_until(self) -> int | None:
        """The log had all offsets before this one: they were committed, on the disk, or below a snapshot. A repair that
        was stopped has lowered the checkpoints, and not removed the snapshot."""
        context = self._files.context
        known = (context.recovery_point, context.high_watermark, *(one.offset for one in self._files.snapshots))
        return max((offset for offset in known if offset is not None), default=None)

    def _end_of_log(self) -> None:
        """Plan for a log that lost its tail; the rest of it may be sound."""
        known = max(self._known_end() or 0, self._files.context.recovery_point or 0)
        if known <= self._end or any(repair.gone for repair in self._logs.values()):
            return
        file = self._files.segments[-1].paths.log if self._files.segments else self._path
        lost = f"offsets {self._end} to {known - 1}"
        if self._salvage:
            self._steps.append(RepairStep(file, f"let the log end at offset {self._end}", lost))
        else:
            self._refusals.append(
                f"{file}: the log ends at offset {self._end}, and {lost} are gone: copy the records from a replica, "
                "or accept their loss with --salvage"
            )

    def _plan_checkpoints(self) -> None:
        """Plan the checkpoints that contradict the end of the log."""
        context, directory = self._files.context, os.path.dirname(self._path)
        point, mark = context.recovery_point, context.high_watermark
        if point is not None and (point > self._end or (context.clean and point < self._end)):
            what = f"recovery point of {os.path.basename(self._path)}: {self._end}, not {point}"
            self._steps.append(RepairStep(os.path.join(directory, RECOVERY_POINTS), what))
        if mark is not None and mark > self._end:
            what = f"high watermark of {os.path.basename(self._path)}: {self._end}, not {mark}"
            self._steps.append(RepairStep(os.path.join(directory, HIGH_WATERMARKS), what))
        if context.log_start is not None and context.log_start > self._end:
            self._plan_log_start(os.path.join(directory, LOG_START_OFFSETS), context.log_start)

    def _plan_log_start(self, file: str, start: int) -> None:
        """Either the checkpoint is wrong, or the log has lost its tail: only the operator can know which."""
        name, segments = os.path.basename(self._path), self._files.segments
        if self._keep_log_start:
            own = os.path.join(self._path, OWN_DIRECTORY)
            what = f"let {name} start at offset {start}, and move its {len(segments)} segments to {own}"
            first = segments[0].paths.base_offset if segments else 0
            self._steps.append(
                RepairStep(file, what, f"offsets {first} to {self._end - 1} (saved)" if segments else "")
            )
            self._empties = f"the log ends at offset {self._end}, below its start {start} in {file}"
            self._end = start
        else:
            what = f"start of {name}: that of its first segment, not {start}, which is above its end {self._end}"
            self._steps.append(RepairStep(file, f"{what}; with --log-start checkpoint it starts at {start} instead"))

    # Producers

    def _plan_producers(self) -> None:
        files = self._files
        loses = any(repair.gone for repair in self._logs.values())
        for snapshot in files.snapshots:
            if snapshot.offset > self._end:
                self._steps.append(RepairStep(snapshot.file, f"remove it (the log ends at offset {self._end})"))
            elif snapshot.file in self.damaged:
                self._steps.append(RepairStep(snapshot.file, f"rebuild it ({self._reason(snapshot.file)})"))
        missing = self._end not in {snapshot.offset for snapshot in files.snapshots}
        if missing and (loses or files.context.clean or files.is_at_rest) and self._needs_end_snapshot():
            name = f"{self._end:020d}{SNAPSHOT}"
            self._steps.append(RepairStep(os.path.join(self._path, name), "write it (the log ends there)"))
        for segment in files.segments:
            if segment.paths.txnindex in self.damaged:
                why = self._reason(segment.paths.txnindex)
                self._steps.append(RepairStep(segment.paths.txnindex, f"rebuild it ({why})"))

    def _needs_end_snapshot(self) -> bool:
        return bool(self._files.snapshots) and any(summary.batches for summary in self._summaries)


# The work


class RepairedPartition(NamedTuple):
    """A partition after its repair; ``backup`` is the directory of the files that were replaced.

    ``open_transactions``: producers by first offset, if batches were lost: their markers may be among these.
    """

    path: str
    end_offset: int
    backup: str | None
    open_transactions: Mapping[int, int]


def repair_partition(fs: Fs, clock: Clock, repair: PartitionRepair, *, index_interval: int) -> RepairedPartition:
    """Carry out a plan. After an OSError plan again: the changes made until then stay."""
    path = repair.files.path
    work = FileReplacement(fs, path, os.path.join(path, OWN_DIRECTORY), clock)
    work.finish()  # a repair that was stopped
    if repair.empties:
        Manifest.open(fs, path).forget_from(0)
        emptied = save_log(fs, path, repair.empties, clock.now_ms())
        forget_refused_start(fs, path)
        return RepairedPartition(path, repair.end_offset, emptied.saved, {})
    _forget_sealed(fs, work, path, repair)
    for at, log in repair.logs.items():
        _repair_log(fs, work, repair.files.segments[at].paths, log)
    for at in sorted(repair.indexes):
        _make_indexes(fs, work, repair.files.segments[at].paths, index_interval)
    end, ongoing = _write_derived_files(fs, work, path, repair.files.context, repair.topic_id, epochs=repair.epochs)
    if repair.forgets_topic_id:
        work.remove(os.path.join(path, PARTITION_METADATA))
    _check_sealed(fs, path, repair)
    work.finish()
    return RepairedPartition(path, end, work.backup, ongoing if any(log.gone for log in repair.logs.values()) else {})


def _forget_sealed(fs: Fs, work: FileReplacement, path: str, repair: PartitionRepair) -> None:
    """Before a segment changes: after a crash the manifest must not contradict it."""
    if repair.rebuilds_manifest:
        for name in (WITNESS, MANIFEST):
            work.remove(os.path.join(path, name))
    elif repair.forgotten:
        Manifest.open(fs, path).forget(repair.forgotten)


def _check_sealed(fs: Fs, path: str, repair: PartitionRepair) -> None:
    """Make the manifest match the segments after the repair."""
    segments = [one.paths for one in repair.files.segments]
    manifest = Manifest.open(fs, path)
    if repair.rebuilds_manifest and len(segments) > 1:
        manifest.add(_sealed(fs, paths) for paths in segments[:-1])
        if repair.files.context.clean:
            manifest.close(_sealed(fs, segments[-1]))
    changed = [segments[at] for at in repair.logs if segments[at].base_offset in manifest.entries]
    manifest.forget(
        paths.base_offset for paths in changed if _differs(_sealed(fs, paths), manifest.entries[paths.base_offset])
    )


def _differs(found: SealedSegment, entry: SealedSegment) -> bool:
    return found != (entry if entry.chain is not None else entry._replace(chain=found.chain))


def _sealed(fs: Fs, paths: SegmentPaths) -> SealedSegment:
    with closing(fs.open(paths.log, write=False)) as file:
        chain, size = chain_of(file), file.size()
    end_offset, crc = tail_of(fs, paths, NO_ENTRIES) or (paths.base_offset, 0)
    return SealedSegment(paths.base_offset, end_offset, size, crc, chain)


def _repair_log(fs: Fs, work: FileReplacement, paths: SegmentPaths, log: LogRepair) -> None:
    mtime_ms = fs.stat(paths.log).mtime_ms
    only_cut = not log.patches and all(gone.is_tail for gone in log.gone)
    staged = None
    if only_cut:
        work.save(paths.log, log.gone[0].start)
    else:
        work.save(paths.log)
        with closing(fs.open(paths.log, write=False)) as file:
            staged = work.stage(paths.log, _kept_bytes(file, log))
    work.save(paths.timeindex)
    work.save(paths.txnindex)
    work.remove(paths.offset_index)
    if staged is None:
        work.cut(paths.log, log.gone[0].start)
    else:
        work.install(paths.log, staged)
    fs.set_mtime(paths.log, mtime_ms)


def _kept_bytes(file: File, log: LogRepair) -> Iterator[bytes]:
    patched = PatchedFile(file, log.patches)
    starts = [0, *(gone.end for gone in log.gone)]
    ends = [*(gone.start for gone in log.gone), patched.size()]
    return read_pieces(patched, zip(starts, ends, strict=True))


def _make_indexes(fs: Fs, work: FileReplacement, paths: SegmentPaths, interval: int) -> None:
    with closing(fs.open(paths.log, write=False)) as file:
        made = build_indexes(file, paths.base_offset, interval)
    work.save(paths.offset_index)
    work.replace(paths.timeindex, [made.timeindex])
    work.replace(paths.offset_index, [made.offset_index])


def _write_derived_files(
    fs: Fs, work: FileReplacement, path: str, context: PartitionContext, topic_id: UUID | None, *, epochs: bool
) -> tuple[int, Mapping[int, int]]:
    """Write snapshots, abort indexes, epochs and the topic's id that match the repaired log.

    Returns the end of the log, and the transactions that are open there.
    """
    files, _, summaries, findings = check_partition(fs, path, context)
    damaged = {finding.file for finding in findings if finding.severity is Severity.DAMAGE}
    end = log_end(files, summaries)
    good = [one for one in files.snapshots if one.offset <= end and one.file not in damaged]
    wanted = [one.offset for one in files.snapshots if one.offset <= end and one.file in damaged]
    had_snapshots = bool(files.snapshots)
    for snapshot in files.snapshots:
        if snapshot.offset > end:
            work.remove(snapshot.file)
    at_end = end not in {one.offset for one in files.snapshots}
    if had_snapshots and at_end and not files.is_open and any(summary.batches for summary in summaries):
        wanted.append(end)
    replay = replay_of(fs, files, summaries)
    made = build_producer_files(replay, good, wanted)
    for offset, data in made.snapshots.items():
        work.replace(snapshot_path(path, offset), [data])
    for offset in set(wanted) - made.snapshots.keys():
        work.remove(snapshot_path(path, offset))
    for segment in files.segments:
        if segment.paths.txnindex in damaged:
            data = made.txn_indexes[segment.paths.base_offset]
            if data:
                work.replace(segment.paths.txnindex, [data])
            else:
                work.remove(segment.paths.txnindex)
    runs = [run for summary in summaries for run in summary.epochs]
    known = build_epochs(files.epochs, runs) if epochs else files.epochs
    if known is not None and (known.truncate_from_end(end + 1) or epochs):
        work.replace(os.path.join(path, LEADER_EPOCHS), [encode_epochs(known.entries)])
    if topic_id is not None:
        work.replace(os.path.join(path, PARTITION_METADATA), [encode_partition_metadata(topic_id)])
    return end, made.ongoing
