"""What the repair of a partition will do, found out without changing anything."""

from __future__ import annotations

import os.path
from collections.abc import Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

from seglog.core.fs import Fs
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
)
from seglog.storage.offline.findings import Finding, Severity
from seglog.storage.offline.repair.log_plan import Gone, LogRepair, plan_log
from seglog.storage.offline.verify.conclusions import (
    in_order,
    log_end,
    manifest_findings,
    partition_findings,
    segment_findings,
)
from seglog.storage.offline.verify.partition_files import Around, Plan, Stretch, facts_of, prepare
from seglog.storage.offline.verify.run import walk_stretch
from seglog.storage.offline.verify.summary import Facts, Summary


class Step(NamedTuple):
    """One thing to be done. ``loses``: which offsets go with it, "" if none does."""

    file: str
    what: str
    loses: str = ""

    def __str__(self) -> str:
        return f"{self.file}: {self.what}{f'; lost: {self.loses}' if self.loses else ''}"


class PartitionRepair(NamedTuple):
    """``logs`` by number of the segment; ``indexes`` are segments of which both indexes are made anew.

    ``epochs``: the checkpoint of leader epochs is made anew; ``topic_id`` is written, if it is not None.
    ``forgets_topic_id``: ``partition.metadata`` cannot be read, and nothing else tells what it said.
    ``forgotten``: base offsets of segments that are taken out of the manifest; ``remakes_manifest``: it is made anew.
    ``empties``: why all segments are moved away, so that the log begins and ends at ``end_offset``; "" if they stay.

    ``refusals``: what cannot be repaired, or not in this way; then nothing of the partition is touched.
    """

    plan: Plan
    findings: Sequence[Finding]
    logs: Mapping[int, LogRepair]
    indexes: frozenset[int]
    epochs: bool
    topic_id: UUID | None
    forgets_topic_id: bool
    forgotten: frozenset[int]
    remakes_manifest: bool
    end_offset: int
    empties: str
    steps: Sequence[Step]
    refusals: Sequence[str]

    @property
    def is_needed(self) -> bool:
        return bool(self.steps or self.refusals)


def look_through(fs: Fs, path: str, around: Around) -> tuple[Plan, list[Facts], list[Summary], list[Finding]]:
    """A partition and all its findings."""
    plan = prepare(fs, path, around)
    facts: list[Facts] = []
    summaries: list[Summary] = []
    findings = list(plan.findings)
    for at, segment in enumerate(plan.segments):
        known, wrong = facts_of(fs, plan, at)
        facts.append(known)
        summaries.append(walk_stretch(fs, Stretch(known, 0, segment.size), fast=False))
        findings += wrong + segment_findings(plan, at, known, summaries[-1], strict=around.recent)
        findings += manifest_findings(fs, plan, at, known)
    findings += partition_findings(fs, plan, summaries)
    return plan, facts, summaries, in_order(findings)


def plan_partition(
    fs: Fs,
    path: str,
    around: Around,
    *,
    topic_id: UUID | None,
    wrong_id: bool,
    salvage: bool,
    keep_log_start: bool = False,
) -> PartitionRepair:
    """``topic_id``: what the rest of the log directory says it is, and with ``wrong_id`` the partition's is another.

    ``salvage``: batches may be given up. ``keep_log_start``: a log that ends below its checkpointed start is emptied.
    """
    planner = _Planner(fs, path, around, topic_id, salvage=salvage, keep_log_start=keep_log_start)
    if wrong_id:
        planner.damaged.add(os.path.join(path, PARTITION_METADATA))
    return planner.plan()


class _Planner:
    def __init__(
        self, fs: Fs, path: str, around: Around, topic_id: UUID | None, *, salvage: bool, keep_log_start: bool
    ) -> None:
        self._fs = fs
        self._path = path
        self._topic_id = topic_id
        self._salvage = salvage
        self._keep_log_start = keep_log_start
        self._plan, self._facts, self._summaries, self._findings = look_through(fs, path, around)
        self.damaged = {finding.file for finding in self._findings if finding.severity is Severity.DAMAGE}
        self._steps: list[Step] = []
        self._refusals: list[str] = []
        self._logs: dict[int, LogRepair] = {}
        self._empties = ""
        self._forgotten: set[int] = set()
        self._end = log_end(self._plan, self._summaries)

    def plan(self) -> PartitionRepair:
        plan = self._plan
        epochs_file, metadata = os.path.join(self._path, LEADER_EPOCHS), os.path.join(self._path, PARTITION_METADATA)
        trusts_epochs = epochs_file not in self.damaged and not self._epochs_contradict_batches()
        for at, segment in enumerate(plan.segments):
            if segment.paths.log in self.damaged or self._summaries[at].holes:
                self._plan_log(at, trusts_epochs=trusts_epochs)
        self._end_of_log()
        indexes = frozenset(
            at
            for at, segment in enumerate(plan.segments)
            if at in self._logs or {segment.paths.offset_index, segment.paths.timeindex} & self.damaged
        )
        for at in sorted(indexes):
            paths = plan.segments[at].paths
            why = "its log changes" if at in self._logs else self._reason(paths.offset_index, paths.timeindex)
            self._steps.append(Step(paths.offset_index, f"make it and the time index anew ({why})"))
        self._plan_producers()
        self._plan_checkpoints()
        epochs = epochs_file in self.damaged or not trusts_epochs
        if not epochs and plan.epochs is not None and any(start > self._end for _, start in plan.epochs.entries):
            self._steps.append(Step(epochs_file, f"leave out what begins behind offset {self._end}"))
        elif epochs:
            why = self._reason(epochs_file) or "it contradicts them"
            self._steps.append(Step(epochs_file, f"make it anew from the batches ({why})"))
        topic_id = None
        forgets_topic_id = False
        if metadata in self.damaged:
            is_unreadable = bool(self._reason(metadata))
            topic_id = self._topic_id or (plan.topic_id if is_unreadable else None)
            forgets_topic_id = topic_id is None and is_unreadable
            if topic_id is None and not is_unreadable:
                self._refusals.append(f"{metadata}: nothing else in the log directory tells the topic's id")
            elif forgets_topic_id:
                what = "remove it: it cannot be read, and nothing else tells the topic's id; a broker writes it again"
                self._steps.append(Step(metadata, what))
            else:
                self._steps.append(Step(metadata, "write the topic's id, which the rest of the log directory tells"))
        remakes_manifest = self._plan_manifest()
        self._refuse_the_rest(epochs=epochs)
        return PartitionRepair(
            plan,
            self._findings,
            self._logs,
            indexes,
            epochs,
            topic_id,
            forgets_topic_id,
            frozenset(self._forgotten),
            remakes_manifest,
            self._end,
            self._empties,
            self._steps,
            self._refusals,
        )

    def _plan_manifest(self) -> bool:
        """Which segments are not as the manifest has them, and will not be; whether it is made anew as a whole."""
        for file in (os.path.join(self._path, MANIFEST), os.path.join(self._path, WITNESS)):
            if file in self.damaged:
                self._steps.append(Step(file, f"make the manifest anew ({self._reason(file)})"))
                return True
        repaired = {self._plan.segments[at].paths.base_offset: repair for at, repair in self._logs.items()}
        for entry in self._plan.sealed.values():
            file = os.path.join(self._path, entry.log)
            reason = next((one.reason for one in self._findings if one.file == file and MANIFEST in one.reason), "")
            repair = repaired.get(entry.base_offset)
            if repair is not None and repair.gone:
                self._forgotten.add(entry.base_offset)
            elif reason and repair is None:
                lost = f"what is missing of offsets {entry.base_offset} to {entry.end_offset - 1}"
                if self._salvage:
                    self._forgotten.add(entry.base_offset)
                    self._steps.append(Step(file, f"go on without what it was ({reason})", lost))
                else:
                    self._refusals.append(
                        f"{file}: {reason}: bring the file back, take the records from a replica, or go on without "
                        "them with --salvage"
                    )
        return False

    def _refuse_the_rest(self, *, epochs: bool) -> None:
        """Damage that no step is about."""
        files = {step.file for step in self._steps}
        logs = set()
        for segment in self._plan.segments:
            logs.add(segment.paths.log)
            if segment.paths.offset_index in files:
                files.add(segment.paths.timeindex)
        for finding in self._findings:
            if finding.severity is not Severity.DAMAGE or finding.file in files or self._refusals:
                continue
            is_log = finding.file in logs
            about_end = is_log and finding.position < 0 and bool(files)  # snapshots and checkpoints follow the log
            if not about_end and not (is_log and epochs):
                self._refusals.append(f"{finding}; this cannot be repaired: take the partition from a replica")

    def _reason(self, *files: str) -> str:
        damaged = (one for one in self._findings if one.file in files and one.severity is Severity.DAMAGE)
        return next((finding.reason for finding in damaged), "")

    def _epochs_contradict_batches(self) -> bool:
        """Whether it is the checkpoint that is wrong: a flipped bit in a batch's epoch makes one batch differ.

        One batch alone in its epoch may differ too because of the checkpoint: then the two agree on where it begins,
        and no other batch is of the epoch that the checkpoint says.
        """
        epochs = self._plan.epochs
        if epochs is None or not epochs.entries:
            return False
        runs = [run for summary in self._summaries for run in summary.epochs if run.epoch >= 0]
        has_batches = {run.epoch for run in runs}
        starts = {start: epoch for epoch, start in epochs.entries}
        known_from = epochs.entries[0].start_offset
        log_start = self._plan.around.log_start if self._plan.around.clean else None
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
            for segment, summary in zip(self._plan.segments, self._summaries, strict=True)
        )

    # Logs

    def _plan_log(self, at: int, *, trusts_epochs: bool) -> None:
        plan = self._plan
        segment = plan.segments[at]
        is_last = at + 1 == len(plan.segments)
        end = self._known_end() if is_last else None
        epochs = plan.epochs if trusts_epochs else None
        file = self._fs.open(segment.paths.log, write=False)
        try:
            repair = plan_log(file, self._facts[at], epochs, end)
            if end is not None and end < self._end and repair.gone:  # it ends behind that: a snapshot is missing
                end = None
                repair = plan_log(file, self._facts[at], epochs, end)
        finally:
            file.close()
        if not repair.is_needed:
            return
        self._logs[at] = repair
        self._steps += [Step(segment.paths.log, f"set the {patch.what}") for patch in repair.patches]
        for gone in repair.gone:
            may_go = gone.is_tail and is_last and not self._is_damage(segment.paths.log, gone)
            what = "cut off" if gone.is_tail else "take out"
            text = f"{what} {gone.end - gone.start} bytes at position {gone.start} ({gone.reason})"
            if may_go or self._salvage:
                self._steps.append(Step(segment.paths.log, text, gone.offsets))
            else:
                self._refusals.append(
                    f"{segment.paths.log}: would {text}, with {gone.offsets}: take the records from a replica, or give "
                    "them up with --salvage"
                )
        if is_last and repair.gone and repair.gone[-1].is_tail:
            self._end = repair.gone[-1].first
        elif is_last and end is not None:
            self._end = end

    def _is_damage(self, file: str, gone: Gone) -> bool:
        """Not a torn tail, which is a note."""
        return any(
            one.file == file and one.severity is Severity.DAMAGE and one.position >= gone.start
            for one in self._findings
        )

    def _known_end(self) -> int | None:
        """Where the log ended when it was closed."""
        if not self._plan.is_at_rest:
            return None
        if self._plan.around.clean and self._plan.around.recovery_point is not None:
            return self._plan.around.recovery_point
        return self._plan.snapshots[-1].offset if self._plan.snapshots else None

    def _end_of_log(self) -> None:
        """A log that is shorter than it was: all that is left of it may be sound."""
        known = max(self._known_end() or 0, self._plan.around.recovery_point or 0)
        if not self._plan.segments or known <= self._end or any(repair.gone for repair in self._logs.values()):
            return
        file = self._plan.segments[-1].paths.log
        lost = f"offsets {self._end} to {known - 1}"
        if self._salvage:
            self._steps.append(Step(file, f"let the log end at offset {self._end}", lost))
        else:
            self._refusals.append(
                f"{file}: the log ends at offset {self._end}, and {lost} were there: take the records from a replica, "
                "or give them up with --salvage"
            )

    def _plan_checkpoints(self) -> None:
        """What the log directory says of the partition, if that is not where it ends."""
        around, directory = self._plan.around, os.path.dirname(self._path)
        point, mark = around.recovery_point, around.high_watermark
        if point is not None and (point > self._end or (around.clean and point < self._end)):
            what = f"recovery point of {os.path.basename(self._path)}: {self._end}, not {point}"
            self._steps.append(Step(os.path.join(directory, RECOVERY_POINTS), what))
        if mark is not None and mark > self._end:
            what = f"high watermark of {os.path.basename(self._path)}: {self._end}, not {mark}"
            self._steps.append(Step(os.path.join(directory, HIGH_WATERMARKS), what))
        if around.log_start is not None and around.log_start > self._end:
            self._plan_log_start(os.path.join(directory, LOG_START_OFFSETS), around.log_start)

    def _plan_log_start(self, file: str, start: int) -> None:
        """Either the checkpoint is wrong, or the log has lost its tail: only the operator can know."""
        name, segments = os.path.basename(self._path), self._plan.segments
        if self._keep_log_start:
            own = os.path.join(self._path, OWN_DIRECTORY)
            what = f"let {name} start at offset {start}, and move its {len(segments)} segments to {own}"
            first = segments[0].paths.base_offset if segments else 0
            self._steps.append(Step(file, what, f"offsets {first} to {self._end - 1} (saved)" if segments else ""))
            self._empties = f"the log ends at offset {self._end}, below its start {start} in {file}"
            self._end = start
        else:
            what = f"start of {name}: that of its first segment, not {start}, which is above its end {self._end}"
            self._steps.append(Step(file, f"{what}; with --log-start checkpoint it starts at {start} instead"))

    # Producers

    def _plan_producers(self) -> None:
        plan = self._plan
        loses = any(repair.gone for repair in self._logs.values())
        for snapshot in plan.snapshots:
            if snapshot.offset > self._end:
                self._steps.append(Step(snapshot.file, f"remove it (the log ends at offset {self._end})"))
            elif snapshot.file in self.damaged:
                self._steps.append(Step(snapshot.file, f"make it anew ({self._reason(snapshot.file)})"))
        missing = self._end not in {snapshot.offset for snapshot in plan.snapshots}
        if missing and (loses or plan.around.clean or plan.is_at_rest) and self._needs_end_snapshot():
            name = f"{self._end:020d}{SNAPSHOT}"
            self._steps.append(Step(os.path.join(self._path, name), "make it (the log ends there)"))
        for segment in plan.segments:
            if segment.paths.txnindex in self.damaged:
                why = self._reason(segment.paths.txnindex)
                self._steps.append(Step(segment.paths.txnindex, f"make it anew ({why})"))

    def _needs_end_snapshot(self) -> bool:
        return bool(self._plan.snapshots) and any(summary.batches for summary in self._summaries)
