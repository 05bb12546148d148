"""One verification under way: what is looked at, side by side, and what has come in."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor, Future
from typing import Final, NamedTuple
from uuid import UUID

from seglog.core.errors import InvalidLogDirError
from seglog.core.fs import Fs
from seglog.core.types import MAX_INT64
from seglog.storage.formats.paths import LOG, check_holds_no_log_dirs, is_log_dir, is_partition, parse_file_name
from seglog.storage.offline.findings import Finding, Severity, damage, has_damage, note
from seglog.storage.offline.verify.conclusions import (
    in_order,
    log_end,
    manifest_findings,
    partition_findings,
    segment_findings,
    single_segment_findings,
)
from seglog.storage.offline.verify.directory_files import (
    BOOTSTRAP,
    check_cleaner_offsets,
    check_topic_ids,
    read_dir,
    topic_ids,
)
from seglog.storage.offline.verify.indexes import NO_EVIDENCE
from seglog.storage.offline.verify.partition_files import Around, Plan, Stretch, facts_of, prepare, stretches
from seglog.storage.offline.verify.single_files import look_at_small_file
from seglog.storage.offline.verify.stretches import CompiledWalk, StretchWalk
from seglog.storage.offline.verify.summary import Facts, Summary, check_range, combine_all, hole

_LOOKS: Final = 3
"""How often a partition in use is looked at again before what is found is believed."""


class Verified(NamedTuple):
    """What was looked at, and what there is to say about it, by file and position."""

    findings: list[Finding]
    partitions: int
    segments: int
    bytes: int
    batches: int
    records: int

    @property
    def is_damaged(self) -> bool:
        return has_damage(self.findings)


def walk_stretch(fs: Fs, stretch: Stretch, *, fast: bool) -> Summary:
    """The summary of one stretch; runs in a thread or process of its own."""
    compiled: CompiledWalk | None = None
    if fast:
        from seglog.storage.offline.verify.compiled_batches import walk_compiled

        compiled = walk_compiled
    try:
        file = fs.open(stretch.facts.file, write=False)
    except FileNotFoundError:
        gone = damage(stretch.facts.file, "the file went away while the partition was looked at")
        return hole(stretch.start, stretch.end, gone)
    try:
        return StretchWalk(file, stretch.facts, compiled=compiled).run(stretch.start, stretch.end)
    finally:
        file.close()


class _Outcome:
    """A partition: what was found so far, and once all its segments were looked at, where it ends."""

    def __init__(self, path: str, around: Callable[[], Around]) -> None:
        self.path = path
        self.around = around
        self.topic_id: UUID | None = None
        self.is_open = False
        self.is_complete = True
        self.end = 0
        self.findings: list[Finding] = []
        self.summaries: list[Summary] = []


class _Pending(NamedTuple):
    """A log whose stretches are under way; ``then`` takes its summary."""

    facts: Facts
    stretches: Sequence[Stretch]
    futures: Sequence[Future[Summary]]
    then: Callable[[Summary], None]
    size: int


class Run:
    """Logs are settled in the order in which they were begun; some are always ahead."""

    def __init__(
        self,
        fs: Fs,
        executor: Executor | None,
        workers: int,
        *,
        strict: bool,
        fast: bool,
        limit: int,
        progress: Callable[[int], None] | None,
        most_ahead: int = MAX_INT64,
        since_manifest: bool = False,
    ) -> None:
        """``since_manifest``: of sealed segments in a manifest only the end is read.

        ``most_ahead``: bytes of logs of which the indexes may be in memory at a time, beside those of one log.
        """
        self._fs = fs
        self._executor = executor
        self._most_pending = 2 * workers + 2
        self._most_ahead = most_ahead
        self._ahead = 0
        self._strict = strict
        self._since_manifest = since_manifest
        self._fast = fast
        self._limit = limit
        self._progress = progress
        self._pending: deque[_Pending] = deque()
        self._findings: list[Finding] = []
        self._partitions = self._segments = self._bytes = self._batches = self._records = 0

    def result(self) -> Verified:
        self._settle_all()
        findings = in_order(self._findings)
        return Verified(findings, self._partitions, self._segments, self._bytes, self._batches, self._records)

    def look_at(self, path: str) -> None:
        """Whatever it is; `InvalidLogDirError` if it is none of Kafka's."""
        fs = self._fs
        if not fs.stat(os.path.realpath(path)).is_dir:
            self._file(path)
            return
        if is_partition(fs, path):
            self._lone_partition(path)
            return
        check_holds_no_log_dirs(fs, path)
        if is_log_dir(fs, path) or any(is_partition(fs, os.path.join(path, name)) for name in fs.listdir(path)):
            self._log_dir(path)
        else:
            raise InvalidLogDirError(f"{path} is neither a log directory nor a partition's")

    # Directories

    def _log_dir(self, path: str) -> None:
        fs = self._fs
        state = read_dir(fs, path)
        self._findings += state.findings
        bootstrap = os.path.join(path, BOOTSTRAP)
        if fs.exists(bootstrap):
            self._batch_file(bootstrap)

        def around(name: str) -> Callable[[], Around]:
            return lambda: read_dir(fs, path).around(fs, name)

        outcomes = {
            name: self._partition(os.path.join(path, name), state.around(fs, name), around(name))
            for name in state.partitions
        }
        self._conclude(outcomes.values())
        self._findings += check_topic_ids(state, {name: one.topic_id for name, one in outcomes.items()})
        self._findings += check_cleaner_offsets(state, {name: one.end for name, one in outcomes.items()})

    def _lone_partition(self, path: str) -> None:
        """A partition by itself; what its log directory says of it is heard, if it is in one."""
        fs = self._fs
        parent, name = os.path.split(path)
        if not is_log_dir(fs, parent):
            self._conclude([self._partition(path, Around(), Around)])
            return
        state = read_dir(fs, parent)
        outcome = self._partition(path, state.around(fs, name), lambda: read_dir(fs, parent).around(fs, name))
        self._conclude([outcome])
        ids = topic_ids(fs, state, name)
        self._findings += [one for one in check_topic_ids(state, ids) if os.path.dirname(one.file) == path]

    def _partition(self, path: str, around: Around, look_again: Callable[[], Around]) -> _Outcome:
        outcome = _Outcome(path, look_again)
        self._partitions += 1
        try:
            plan = prepare(self._fs, path, around, limit=self._limit)
        except FileNotFoundError as error:
            outcome.is_open = True
            outcome.findings.append(damage(path, f"a file went away while it was looked at: {error}"))
            return outcome
        outcome.topic_id = plan.topic_id
        # A log that Kafka makes has no indexes yet, and one that it rolls has none that shows that it is in use.
        outcome.is_open = plan.is_open or around.clean is False
        outcome.findings += plan.findings
        for file in plan.batch_files:
            self._batch_file(file)
        for at in range(len(plan.segments)):
            facts, findings = facts_of(self._fs, plan, at)
            outcome.findings += findings
            size = plan.segments[at].size
            if self._is_covered(plan, at):
                self._begin(facts, size, self._passer(plan, at, facts, outcome), skip=True)
            else:
                self._begin(facts, size, self._taker(plan, at, facts, outcome))
        if not plan.segments:
            outcome.findings += partition_findings(self._fs, plan, [])
        return outcome

    def _taker(self, plan: Plan, at: int, facts: Facts, outcome: _Outcome) -> Callable[[Summary], None]:
        def take(summary: Summary) -> None:
            self._segments += 1
            strict = self._strict or plan.around.recent
            outcome.findings += segment_findings(plan, at, facts, summary, strict=strict)
            outcome.findings += self._by_manifest(plan, at, facts, outcome, chain=True)
            outcome.summaries.append(summary._replace(findings=(), evidence=NO_EVIDENCE))
            self._finish(plan, outcome)

        return take

    def _is_covered(self, plan: Plan, at: int) -> bool:
        return (
            self._since_manifest and plan.segments[at].paths.base_offset in plan.sealed and at + 1 < len(plan.segments)
        )

    def _passer(self, plan: Plan, at: int, facts: Facts, outcome: _Outcome) -> Callable[[Summary], None]:
        def take(summary: Summary) -> None:
            self._segments += 1
            outcome.is_complete = False
            outcome.findings += self._by_manifest(plan, at, facts, outcome, chain=False)
            outcome.summaries.append(summary)
            self._finish(plan, outcome)

        return take

    def _by_manifest(self, plan: Plan, at: int, facts: Facts, outcome: _Outcome, *, chain: bool) -> list[Finding]:
        try:
            return manifest_findings(self._fs, plan, at, facts, chain=chain)
        except FileNotFoundError:  # of a log in use; the walk has said so, or another look will
            outcome.is_open = True
            return []

    def _finish(self, plan: Plan, outcome: _Outcome) -> None:
        if len(outcome.summaries) == len(plan.segments):
            is_complete = outcome.is_complete
            outcome.findings += partition_findings(self._fs, plan, outcome.summaries, is_complete=is_complete)
            outcome.end = log_end(plan, outcome.summaries)
            outcome.summaries.clear()

    def _conclude(self, outcomes: Iterable[_Outcome]) -> None:
        self._settle_all()
        for outcome in outcomes:
            if outcome.is_open and has_damage(outcome.findings):
                self._look_again(outcome)
            self._findings += outcome.findings

    def _look_again(self, outcome: _Outcome) -> None:
        """Files of a log in use are read one after the other while it goes on: what is damage is there again."""
        for _ in range(_LOOKS):
            run = Run(self._fs, None, 1, strict=self._strict, fast=self._fast, limit=self._limit, progress=None)
            again = run._partition(outcome.path, outcome.around(), outcome.around)
            run._settle_all()
            there = {finding[:3] for finding in again.findings if finding.severity is Severity.DAMAGE}
            kept = [one for one in outcome.findings if one.severity is Severity.NOTE or one[:3] in there]
            is_settled = len(kept) == len(outcome.findings)
            outcome.findings = kept
            if is_settled or not has_damage(kept):
                return

    # Files

    def _file(self, path: str) -> None:
        """A single file: of a segment, with what stands beside it; else by itself."""
        name = os.path.basename(path)
        parsed = parse_file_name(name)
        directory = os.path.dirname(path)
        if parsed is None or parsed.state or parsed.kind == ".snapshot":
            findings = look_at_small_file(self._fs, path)
            if findings is None:
                self._batch_file(path)
            else:
                self._findings += findings
            return
        plan = prepare(self._fs, directory, Around(), limit=self._limit)
        at = next((k for k, one in enumerate(plan.segments) if one.paths.base_offset == parsed.base_offset), None)
        if at is None:
            raise InvalidLogDirError(f"{path}: the segment's {LOG} is not beside it")
        facts, found = facts_of(self._fs, plan, at)

        def take(summary: Summary) -> None:
            findings = [*found, *segment_findings(plan, at, facts, summary, strict=self._strict)]
            findings += single_segment_findings(self._fs, plan, at, summary)
            self._findings += [finding for finding in findings if finding.file == path]

        self._begin(facts, plan.segments[at].size, take)

    def _batch_file(self, path: str) -> None:
        """Batches and nothing else: a snapshot of KRaft's, or a log that is on its way in or out."""

        def take(summary: Summary) -> None:
            self._findings += (*summary.findings, *check_range(facts, summary))

        parsed = parse_file_name(os.path.basename(path))
        facts = Facts(path, base_offset=parsed.base_offset if parsed else 0, limit=self._limit)
        try:
            size = self._fs.stat(path).size
        except FileNotFoundError:
            self._findings.append(note(path, "the file went away before it was looked at"))
            return
        self._begin(facts, size, take)

    # Logs

    def _begin(self, facts: Facts, size: int, then: Callable[[Summary], None], *, skip: bool = False) -> None:
        """Begin with a log of ``size`` bytes; ``skip``: nothing of it is read; it takes its place in the order."""
        parts = [] if skip else stretches(facts, size)
        futures = (
            []
            if self._executor is None
            else [self._executor.submit(walk_stretch, self._fs, part, fast=self._fast) for part in parts]
        )
        self._pending.append(_Pending(facts, parts, futures, then, size))
        self._ahead += size
        while len(self._pending) > self._most_pending or (len(self._pending) > 1 and self._ahead > self._most_ahead):
            self._settle_one()

    def _settle_all(self) -> None:
        while self._pending:
            self._settle_one()

    def _settle_one(self) -> None:
        facts, parts, futures, then, size = self._pending.popleft()
        self._ahead -= size
        if not parts:
            if self._progress is not None:
                self._progress(size)
            then(hole(0, size))
            return
        summaries: list[Summary] = []
        end = 0
        for k, part in enumerate(parts):
            summary = futures[k].result() if futures else walk_stretch(self._fs, part, fast=self._fast)
            if part.start != end:  # no batch starts there, whatever the index says
                summary = walk_stretch(self._fs, part._replace(start=end), fast=self._fast)
            summaries.append(summary)
            if self._progress is not None:
                self._progress(summary.end - end)
            end = summary.end
        whole = combine_all(facts, summaries)
        self._bytes += whole.end
        self._batches += whole.batches
        self._records += whole.records
        then(whole)
