"""`verify`: finds the files, has the stretches of their logs checked side by side, and collects the findings."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Sequence, Set
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, nullcontext, suppress
from multiprocessing import get_context
from typing import Final, NamedTuple
from uuid import UUID

from seglog.core.errors import InvalidLogDirError, MissingExtraError
from seglog.core.extras import require
from seglog.core.fs import Fs, NotRegularFileError, OsFs
from seglog.core.types import MAX_INT64
from seglog.records.compression import DEFAULT_LIMIT
from seglog.storage.formats.paths import (
    LOG,
    PARTITION_METADATA,
    SNAPSHOT,
    check_holds_no_log_dirs,
    is_log_dir,
    is_partition,
    list_segments,
    parse_file_name,
)
from seglog.storage.offline.findings import Finding, Severity, damage, has_damage, note
from seglog.storage.offline.verify.directory_state import (
    BOOTSTRAP,
    DirectoryState,
    check_cleaner_offsets,
    check_topic_ids,
    read_directory,
    topic_ids,
)
from seglog.storage.offline.verify.index_entries import NO_EVIDENCE
from seglog.storage.offline.verify.partition_checks import (
    in_order,
    log_end,
    manifest_findings,
    partition_findings,
    segment_findings,
    single_segment_findings,
)
from seglog.storage.offline.verify.partition_files import (
    LogStretch,
    PartitionContext,
    PartitionFiles,
    read_facts,
    read_partition,
    read_topic_id,
    stretches,
)
from seglog.storage.offline.verify.single_files import check_small_file
from seglog.storage.offline.verify.stretch_walk import CompiledWalk, StretchWalk
from seglog.storage.offline.verify.summary import Facts, Summary, check_range, combine_all, hole

_WORTH_LOADING: Final = 32 << 20
"""Bytes of logs that take as long to check as the compiled loops take to load, or processes to start."""
_ATTEMPTS: Final = 3
"""How often a partition in use is checked again, while none of its sealed files changes, before its findings count."""
_MOST_ATTEMPTS: Final = 30
"""How often a partition is checked again if its files change each time."""


class VerifyReport(NamedTuple):
    """The findings by file and position, and how much was checked."""

    findings: list[Finding]
    partitions: int
    segments: int
    bytes: int
    batches: int
    records: int

    @property
    def is_damaged(self) -> bool:
        return has_damage(self.findings)


class VerifyOptions(NamedTuple):
    """How to check, as in `verify`."""

    strict: bool = False
    fast: bool = False
    limit: int = DEFAULT_LIMIT
    since_manifest: bool = False


def verify(
    paths: Sequence[str],
    *,
    fs: Fs | None = None,
    strict: bool = False,
    workers: int | None = None,
    fast: bool | None = None,
    limit: int = DEFAULT_LIMIT,
    since_manifest: bool = False,
    progress: Callable[[int], None] | None = None,
) -> VerifyReport:
    """Check log directories, partitions' directories and single files of any kind.

    ``strict``: Kafka up to 3.9 leaves index entries that in a newer Kafka would be flipped bits. They are notes; with
    ``strict`` they are damage, for directories that only Kafka from 4.0 on or seglog has written.
    ``workers``: threads or processes (default: one for each CPU). ``fast``: whether to use compiled loops (default: if
    they can be imported and there is enough to check); the findings are the same. ``limit``: most bytes that a batch
    may decompress to. ``since_manifest``: of sealed segments in a manifest check only presence, size and end; this does
    not find a flipped bit. ``progress`` receives how many more bytes of logs were checked.

    Raises `InvalidLogDirError` if one of ``paths`` is none of these, and OSError.
    """
    fs = fs or OsFs()
    is_large = measure(paths, fs=fs) >= _WORTH_LOADING
    if fast is None:
        fast = is_large and _has_compiled_loops()
    count = workers or os.cpu_count() or 1
    pool: AbstractContextManager[Executor | None] = nullcontext()
    if count > 1 and fast:
        pool = ThreadPoolExecutor(count)
    elif count > 1 and is_large and isinstance(fs, OsFs):
        pool = ProcessPoolExecutor(count, mp_context=get_context("spawn"))
    with pool as executor:
        verifier = Verifier(fs, VerifyOptions(strict, fast, limit, since_manifest), executor, count, progress=progress)
        for path in paths:
            verifier.check(os.path.abspath(path))
        return verifier.report()


def measure(paths: Sequence[str], *, fs: Fs | None = None) -> int:
    """Bytes of logs that `verify` would check."""
    fs = fs or OsFs()
    total = 0
    for path in paths:
        found = fs.stat(os.path.realpath(path))
        if not found.is_dir:
            total += found.size
            continue
        for directory in (path, *(os.path.join(path, name) for name in fs.listdir(path))):
            if is_partition(fs, directory):
                with suppress(FileNotFoundError):  # a broker may delete segments meanwhile
                    total += sum(fs.stat(segment.log).size for segment in list_segments(fs, directory))
    return total


def _has_compiled_loops() -> bool:
    try:
        require("seglog.storage.offline.verify.compiled_batches", "fast", purpose="fast verification")
    except MissingExtraError:
        return False
    return True


def walk_stretch(fs: Fs, stretch: LogStretch, *, fast: bool) -> Summary:
    """The summary of one stretch; runs in a thread or process of its own."""
    compiled: CompiledWalk | None = None
    if fast:
        from seglog.storage.offline.verify.compiled_batches import walk_compiled

        compiled = walk_compiled
    try:
        file = fs.open(stretch.facts.file, write=False)
    except FileNotFoundError:
        gone = damage(stretch.facts.file, "the file disappeared while the partition was checked")
        return hole(stretch.start, stretch.end, gone)
    except NotRegularFileError as error:
        return hole(stretch.start, stretch.end, damage(stretch.facts.file, str(error.strerror)))
    with closing(file):
        return StretchWalk(file, stretch.facts, compiled=compiled).run(stretch.start, stretch.end)


class _PartitionOutcome:
    """The findings on a partition so far; once all its segments were checked, also its end."""

    def __init__(self, path: str, read_context: Callable[[], PartitionContext]) -> None:
        self.path = path
        self.read_context = read_context
        self.topic_id: UUID | None = None
        self.is_open = False
        self.is_complete = True
        self.is_unchecked = False
        """A file disappeared before the first one was checked."""
        self.end = 0
        self.findings: list[Finding] = []
        self.summaries: list[Summary] = []

    def begin(self, files: PartitionFiles, context: PartitionContext) -> None:
        self.topic_id = files.topic_id
        # A log that Kafka has just made or rolled has no index that shows that it is in use.
        self.is_open = files.is_open or context.clean is False
        self.findings += files.findings

    def file_disappeared(self) -> None:
        """A broker uses the partition."""
        self.is_open = True

    def skip_segment(self) -> None:
        self.is_complete = False

    def finish(self, end: int) -> None:
        """All segments were checked."""
        self.end = end
        self.summaries.clear()

    def skip_unchecked(self, reason: str) -> None:
        """A file disappeared while the partition was read: that says nothing about it."""
        self.is_open = self.is_unchecked = True
        self.findings = [note(self.path, reason)]

    def keep_found_again(self, places: Set[tuple[object, ...]]) -> None:
        """Keep notes, and damage at these places."""
        self.findings = [one for one in self.findings if one.severity is Severity.NOTE or one[:3] in places]

    @property
    def is_settled(self) -> bool:
        """Whether no further check changes the findings."""
        return not self.is_unchecked and not (self.is_open and has_damage(self.findings))


def _read_topic_ids(fs: Fs, path: str) -> tuple[DirectoryState, dict[str, UUID | None]]:
    state = read_directory(fs, path)
    metadata = {name: os.path.join(path, name, PARTITION_METADATA) for name in state.partitions}
    return state, {name: read_topic_id(fs, file, []) for name, file in metadata.items()}


def _sealed_state(fs: Fs, path: str) -> tuple[object, ...] | None:
    """Names of a partition's files, and size and time of each log but the last; None if the partition is gone."""
    try:
        state: list[object] = [name for name in fs.listdir(path) if not name.endswith(SNAPSHOT)]
        for segment in list_segments(fs, path)[:-1]:
            with suppress(FileNotFoundError):
                state.append(fs.stat(segment.log))
    except FileNotFoundError:
        return None
    return tuple(state)


class _PendingLog(NamedTuple):
    """A log whose stretches are under way; ``then`` takes its summary."""

    facts: Facts
    stretches: Sequence[LogStretch]
    futures: Sequence[Future[Summary]]
    then: Callable[[Summary], None]
    size: int


class Verifier:
    """Checks paths one after the other, with several logs under way, and settles logs in the order of their start."""

    def __init__(
        self,
        fs: Fs,
        options: VerifyOptions,
        executor: Executor | None = None,
        workers: int = 1,
        *,
        progress: Callable[[int], None] | None = None,
        most_ahead: int = MAX_INT64,
    ) -> None:
        """``most_ahead``: bytes of logs whose indexes may be in memory at a time, beside those of one log."""
        self._fs = fs
        self._options = options
        self._executor = executor
        self._most_pending = 2 * workers + 2
        self._most_ahead = most_ahead
        self._ahead = 0
        self._progress = progress
        self._pending: deque[_PendingLog] = deque()
        self._findings: list[Finding] = []
        self._partitions = self._segments = self._bytes = self._batches = self._records = 0

    def report(self) -> VerifyReport:
        self._settle_all()
        findings = in_order(self._findings)
        return VerifyReport(findings, self._partitions, self._segments, self._bytes, self._batches, self._records)

    def check(self, path: str) -> None:
        """Check a log directory, a partition or a file; `InvalidLogDirError` if ``path`` is none of these."""
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
        state = read_directory(fs, path)
        again = read_directory(fs, path).findings if has_damage(state.findings) else state.findings
        self._findings += [one for one in state.findings if one in again]
        bootstrap = os.path.join(path, BOOTSTRAP)
        if fs.exists(bootstrap):
            self._batch_file(bootstrap)

        def reader(name: str) -> Callable[[], PartitionContext]:
            return lambda: read_directory(fs, path).context(fs, name)

        outcomes = {
            name: self._partition(os.path.join(path, name), state.context(fs, name), reader(name))
            for name in state.partitions
        }
        self._conclude(outcomes.values())
        wrong_ids = list(check_topic_ids(state, {name: one.topic_id for name, one in outcomes.items()}))
        if wrong_ids:  # or a topic was deleted and created again meanwhile
            wrong_ids = list(check_topic_ids(*_read_topic_ids(fs, path)))
        self._findings += wrong_ids
        self._findings += check_cleaner_offsets(state, {name: one.end for name, one in outcomes.items()})

    def _lone_partition(self, path: str) -> None:
        """A partition by itself. If it lies in a log directory, that one's checkpoints count."""
        fs = self._fs
        parent, name = os.path.split(path)
        if not is_log_dir(fs, parent):
            self._conclude([self._partition(path, PartitionContext(), PartitionContext)])
            return
        state = read_directory(fs, parent)
        outcome = self._partition(path, state.context(fs, name), lambda: read_directory(fs, parent).context(fs, name))
        self._conclude([outcome])
        ids = topic_ids(fs, state, name)
        self._findings += [one for one in check_topic_ids(state, ids) if os.path.dirname(one.file) == path]

    def _partition(
        self, path: str, context: PartitionContext, read_context: Callable[[], PartitionContext]
    ) -> _PartitionOutcome:
        outcome = _PartitionOutcome(path, read_context)
        self._partitions += 1
        try:
            files = read_partition(self._fs, path, context, limit=self._options.limit)
        except FileNotFoundError as error:
            outcome.skip_unchecked(f"a file disappeared whenever it was checked: {error}")
            return outcome
        outcome.begin(files, context)
        for file in files.batch_files:
            self._batch_file(file)
        for at in range(len(files.segments)):
            self._segment(files, at, outcome)
        if not files.segments:
            outcome.findings.extend(partition_findings(self._fs, files, []))
        return outcome

    def _segment(self, files: PartitionFiles, at: int, outcome: _PartitionOutcome) -> None:
        facts, findings = read_facts(self._fs, files, at)
        outcome.findings.extend(findings)
        segment, is_last = files.segments[at], at + 1 == len(files.segments)
        skip = self._options.since_manifest and segment.paths.base_offset in files.sealed and not is_last

        def take(summary: Summary) -> None:
            self._segments += 1
            if skip:
                outcome.skip_segment()
            else:
                strict = self._options.strict or files.context.recent
                outcome.findings.extend(segment_findings(files, at, facts, summary, strict=strict))
            try:
                outcome.findings.extend(manifest_findings(self._fs, files, at, facts, chain=not skip))
            except FileNotFoundError:  # a broker deleted it: the walk has found that, or the next attempt will
                outcome.file_disappeared()
            outcome.summaries.append(summary._replace(findings=(), evidence=NO_EVIDENCE))
            if len(outcome.summaries) == len(files.segments):
                outcome.findings.extend(
                    partition_findings(self._fs, files, outcome.summaries, is_complete=outcome.is_complete)
                )
                outcome.finish(log_end(files, outcome.summaries))

        self._begin(facts, segment.size, take, skip=skip)

    def _conclude(self, outcomes: Iterable[_PartitionOutcome]) -> None:
        self._settle_all()
        for outcome in outcomes:
            if not outcome.is_settled:
                self._check_again(outcome)
            self._findings += outcome.findings

    def _check_again(self, outcome: _PartitionOutcome) -> None:
        """Keep the damage that is found again: a broker may have changed files between two reads.

        A check counts if no sealed file changed meanwhile. Where files change all the time, damage that every check
        has found counts.
        """
        quiet = 0
        for _ in range(_MOST_ATTEMPTS):
            before = _sealed_state(self._fs, outcome.path)
            verifier = Verifier(self._fs, self._options._replace(since_manifest=False))
            again = verifier._partition(outcome.path, outcome.read_context(), outcome.read_context)
            verifier._settle_all()
            if before is None:
                outcome.findings = [note(outcome.path, "it was deleted before it was checked")]
                return
            if outcome.is_unchecked:
                outcome.findings, outcome.is_unchecked = again.findings, again.is_unchecked
            elif not again.is_unchecked:
                outcome.keep_found_again({one[:3] for one in again.findings if one.severity is Severity.DAMAGE})
            quiet += before == _sealed_state(self._fs, outcome.path)
            if outcome.is_settled or quiet >= _ATTEMPTS:
                return

    # Files

    def _file(self, path: str) -> None:
        """A single file. A segment's file is checked with the files beside it, any other by itself."""
        name = os.path.basename(path)
        parsed = parse_file_name(name)
        directory = os.path.dirname(path)
        if parsed is None or parsed.state or parsed.kind == ".snapshot":
            findings = check_small_file(self._fs, path)
            if findings is None:
                self._batch_file(path)
            else:
                self._findings += findings
            return
        files = read_partition(self._fs, directory, PartitionContext(), limit=self._options.limit)
        at = next((k for k, one in enumerate(files.segments) if one.paths.base_offset == parsed.base_offset), None)
        if at is None:
            raise InvalidLogDirError(f"{path}: the segment's {LOG} is not beside it")
        facts, found = read_facts(self._fs, files, at)

        def take(summary: Summary) -> None:
            findings = [*found, *segment_findings(files, at, facts, summary, strict=self._options.strict)]
            findings += single_segment_findings(self._fs, files, at, summary)
            self._findings += [finding for finding in findings if finding.file == path]

        self._begin(facts, files.segments[at].size, take)

    def _batch_file(self, path: str) -> None:
        """A file of batches and nothing else: a KRaft snapshot, or a log that is being installed or deleted."""

        def take(summary: Summary) -> None:
            self._findings += (*summary.findings, *check_range(facts, summary))

        parsed = parse_file_name(os.path.basename(path))
        facts = Facts(path, base_offset=parsed.base_offset if parsed else 0, limit=self._options.limit)
        try:
            size = self._fs.stat(path).size
        except FileNotFoundError:
            self._findings.append(note(path, "the file disappeared before it was checked"))
            return
        self._begin(facts, size, take)

    # Logs

    def _begin(self, facts: Facts, size: int, then: Callable[[Summary], None], *, skip: bool = False) -> None:
        """Begin with a log of ``size`` bytes. With ``skip`` it is not read, and only takes its place in the order."""
        parts = [] if skip else stretches(facts, size)
        futures: list[Future[Summary]] = []
        if self._executor is not None:
            fast = self._options.fast
            futures = [self._executor.submit(walk_stretch, self._fs, part, fast=fast) for part in parts]
        self._pending.append(_PendingLog(facts, parts, futures, then, size))
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
            self._advance(size)
            then(hole(0, size))
            return
        summaries: list[Summary] = []
        end = 0
        for k, part in enumerate(parts):
            summary = futures[k].result() if futures else walk_stretch(self._fs, part, fast=self._options.fast)
            if part.start != end:  # no batch starts there, whatever the index says
                summary = walk_stretch(self._fs, part._replace(start=end), fast=self._options.fast)
            summaries.append(summary)
            self._advance(summary.end - end)
            end = summary.end
        whole = combine_all(facts, summaries)
        self._bytes += whole.end
        self._batches += whole.batches
        self._records += whole.records
        then(whole)

    def _advance(self, size: int) -> None:
        if self._progress is not None:
            self._progress(size)
