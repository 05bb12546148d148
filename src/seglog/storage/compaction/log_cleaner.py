"""Compaction of a log: the last record of each key stays (``LogCleaner.java``, ``LogCleanerManager.java``).

A round has three steps. `cleanable_part` decides which part of the log to clean. `clean` writes ``.cleaned`` segments,
here or in a child process. `carry_out` replaces the old segments under the log's lock. Appends and reads go on
meanwhile. If the log is truncated or loses segments before the last step, the round is given up.
"""

from __future__ import annotations

import errno
import importlib.util
import logging
from collections.abc import Callable, Collection, Generator, Mapping, MutableMapping
from contextlib import closing
from itertools import islice
from typing import Final, NamedTuple

from seglog.core.config import LogDirConfig
from seglog.core.errors import CorruptError, LogClosedError, LogDirFullError, SeglogError, TooManyFilesError
from seglog.core.fs import NoSpaceError, OsFs
from seglog.core.types import TopicPartition
from seglog.storage.compaction.child_process import WorkerFailedError, clean_in_child
from seglog.storage.compaction.cleanable import CleanablePart, CleaningFacts, cleanable_part
from seglog.storage.compaction.cleaned_segment import remove_cleaned
from seglog.storage.compaction.cleaner import CleaningAbortedError, clean, wait_for
from seglog.storage.compaction.offset_map import capacity
from seglog.storage.compaction.round import (
    COMPILED,
    PLAIN,
    CleanedGroup,
    LastRecord,
    OffsetMapStats,
    Round,
    SourceSegment,
)
from seglog.storage.formats.paths import CLEANED
from seglog.storage.log.log import Log
from seglog.storage.log.producers import Producers
from seglog.storage.log.segment import Segment
from seglog.storage.log.transaction_index import AbortedTxn

_logger = logging.getLogger("seglog")

COMPILED_FROM: Final = 16 << 20
"""Bytes to read from which compiled loops pay for their start (about a second)."""
CHILD_FROM: Final = 1 << 20
"""Bytes to read from which a child process pays for its start (a tenth of a second)."""
_MANIFEST_WRITES: Final = 16
"""How often a round writes a long manifest again, about."""
_OF_ONE_LOG: Final = (CorruptError, WorkerFailedError, LogDirFullError, TooManyFilesError, OSError)
"""The errors that one log gets, while the others are cleaned."""

RoundEvents = Callable[[Callable[[], bool]], Generator[OffsetMapStats | CleanedGroup]]
"""Begins a round, which asks what it is given whether to stop, and yields what `seglog.storage.compaction.cleaner`'s
does: ``.cleaned`` files of a group lie in the log's directory when it is yielded, and those of no later one."""


class CleaningCandidate(NamedTuple):
    """A log and what of it may be cleaned."""

    log: Log
    part: CleanablePart


class CompactionStats(NamedTuple):
    """The result of a round.

    Everything below ``end_offset`` is clean now; ``first_uncleanable`` is larger if the map was full before.
    ``mapped_*`` are of the first pass, over the dirty part; ``*_read`` and ``*_written`` of the second, over all before
    ``end_offset``. ``keyless`` records were dropped since they had no key. Times in seconds.
    """

    topic_partition: TopicPartition
    first_dirty: int
    end_offset: int
    first_uncleanable: int
    engine: str
    map_entries: int
    mapped_messages: int
    mapped_bytes: int
    messages_read: int
    messages_written: int
    keyless: int
    bytes_read: int
    bytes_written: int
    segments_before: int
    segments_after: int
    map_seconds: float
    seconds: float
    aborted: bool
    """The log was closed or truncated, or lost segments, meanwhile: files that are not in place yet are discarded."""


class RoundPlan(NamedTuple):
    """A round, and the log's segments that it is about.

    ``producers`` serves as a token: a truncation makes the log's producers again, so that they are another object.
    """

    round: Round
    segments: tuple[Segment, ...]
    producers: Producers


class _UnchangedLog:
    """Whether a log is still what a round was planned for, but for the groups that the round has put in place."""

    __slots__ = ("_known", "_producers", "_waiting", "log")

    def __init__(self, log: Log, planned: RoundPlan) -> None:
        self.log = log
        self._producers = planned.producers
        self._waiting = {segment.base_offset: segment for segment in planned.segments}
        self._known: tuple[Segment, ...] = ()
        """The log's segments as they were when all that wait were found there: a log may have thousands."""

    def holds(self) -> bool:
        """False once the log was closed, deleted, truncated, or lost a segment. Needs no lock to say so."""
        log = self.log
        segments = log.segments
        if segments is not self._known:
            inactive = {id(segment) for segment in segments[:-1]}
            if not all(id(segment) in inactive for segment in self._waiting.values()):
                return False
            self._known = segments
        return log.producers is self._producers and not log.closed and not log.deleted

    def replace(self, bases: Collection[int], new: Segment) -> None:
        """Put ``new`` in place of a group. Called with the log's lock held, after `holds`."""
        self._forget(bases)
        self.log.replace_segments([new], [self._waiting.pop(base) for base in bases])
        self._known = self.log.segments

    def _forget(self, bases: Collection[int]) -> None:
        """Take the group out of the manifest, and of a long one, which is written again each time, some that follow."""
        manifest = self.log.manifest
        if not manifest.entries.keys().isdisjoint(bases):
            following = islice(self._waiting, len(bases), len(bases) + len(manifest.entries) // _MANIFEST_WRITES)
            manifest.forget([*bases, *following])


def cleanable(log: Log, checkpoint: int | None) -> CleanablePart:
    """Which part of the log may be cleaned now; ``checkpoint`` is the end of its last round."""
    with log.lock:
        facts = [
            CleaningFacts(segment.base_offset, segment.size, segment.largest_timestamp, segment.rolling_timestamp)
            for segment in log.segments
        ]
        return cleanable_part(
            facts,
            checkpoint=checkpoint,
            log_start_offset=log.log_start_offset,
            log_end_offset=log.log_end_offset,
            last_stable_offset=log.last_stable_offset,
            config=log.config,
            now_ms=log.clock.now_ms(),
        )


def pick(
    logs: Mapping[TopicPartition, Log],
    cleaner_offsets: Mapping[TopicPartition, int],
    *,
    without: Collection[TopicPartition] = (),
    failed: Callable[[TopicPartition, SeglogError | OSError], object] | None = None,
) -> CleaningCandidate | None:
    """The dirtiest of the compacted logs that are dirty enough, or have records that waited too long; None: none is.

    ``failed`` is told of logs whose files cannot be read, and the others are compared. Without it the error is raised.
    """
    candidates: list[CleaningCandidate] = []
    for name, log in logs.items():
        if not log.config.compact or name in without:
            continue
        with log.lock:
            if log.closed or log.deleted:
                continue
            try:
                candidates.append(CleaningCandidate(log, cleanable(log, cleaner_offsets.get(name))))
            except (*_OF_ONE_LOG, LogClosedError) as error:  # that of an open log: a file is gone
                if failed is None:
                    raise
                failed(name, error)
    due = (
        candidate for candidate in candidates if candidate.part.is_due(candidate.log.config.min_cleanable_dirty_ratio)
    )
    return max(due, key=lambda candidate: candidate.part.ratio, default=None)


def plan(
    log: Log,
    *,
    first_dirty: int,
    first_uncleanable: int,
    map_bytes: int,
    load_factor: float = 0.9,
    max_bytes_per_second: float = float("inf"),
    engine: str | None = None,
) -> RoundPlan:
    """Everything that the round needs to know of the log, as of now; ``engine`` None chooses by size."""
    slots, max_entries = capacity(map_bytes, load_factor)
    with log.lock:
        if log.closed or log.deleted:
            raise LogClosedError(f"{log.path} is {'deleted' if log.deleted else 'closed'}")
        segments = tuple(segment for segment in log.segments[:-1] if segment.base_offset < first_uncleanable)
        following = [segment.base_offset for segment in log.segments[1 : len(segments) + 1]]
        aborted = [
            txn
            for segment in log.segments
            for txn in segment.txn_index.entries
            if txn.last_offset >= log.log_start_offset and txn.first_offset < first_uncleanable
        ]
        producers = [
            LastRecord(producer_id, entry.batches[-1].last_offset if entry.batches else -1, entry.epoch)
            for producer_id, entry in log.producers.entries.items()
        ]
        dirty = next((segment for segment in reversed(segments) if segment.base_offset <= first_dirty), None)
        sources = tuple(
            SourceSegment(
                base_offset=segment.base_offset,
                next_base_offset=next_base,
                size=segment.size,
                offset_index_size=segment.offset_index.size,
                time_index_size=segment.time_index.size,
                mtime_ms=log.fs.stat(segment.paths.log).mtime_ms,
            )
            for segment, next_base in zip(segments, following, strict=True)
        )
        total = sum(source.size for source in sources)
        round_ = Round(
            directory=log.path,
            sources=sources,
            first_dirty=first_dirty,
            first_uncleanable=first_uncleanable,
            dirty_position=dirty.offset_index.lookup(first_dirty).position if dirty is not None else 0,
            aborted=tuple(AbortedTxn(*txn) for txn in aborted),
            producers=tuple(sorted(producers)),
            now_ms=log.clock.now_ms(),
            delete_retention_ms=log.config.delete_retention_ms,
            segment_bytes=log.config.segment_bytes,
            index_bytes=log.config.segment_index_bytes,
            index_interval=log.config.index_interval_bytes,
            slots=slots,
            max_entries=max_entries,
            max_bytes_per_second=max_bytes_per_second,
            engine=engine or (COMPILED if total >= COMPILED_FROM and _have_numba() else PLAIN),
        )
        return RoundPlan(round_, segments, log.producers)


def _have_numba() -> bool:
    return all(importlib.util.find_spec(name) is not None for name in ("numba", "numpy"))


def compact(
    log: Log,
    *,
    first_dirty: int,
    first_uncleanable: int | None = None,
    config: LogDirConfig | None = None,
    map_bytes: int | None = None,
    engine: str | None = None,
    in_child: bool | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> CompactionStats:
    """One round over a log, whatever its policy and however little is dirty; blocks until it is done.

    ``first_uncleanable`` must be where a segment begins (default: as far as the log may be cleaned). ``map_bytes``,
    load factor and speed come from ``config``. ``engine`` is "compiled" (needs the extra ``fast``) or "plain",
    ``in_child`` whether another process does the work; by default both are chosen by how much there is to read. The
    checkpoint is the caller's business: the next round begins at ``end_offset`` of what is returned.

    Raises `CorruptError`s for batches that cannot be read or have a wrong CRC, `LogDirOfflineError` when writing fails.
    """
    config = config or LogDirConfig()
    if first_uncleanable is None:
        first_uncleanable = cleanable(log, first_dirty).first_uncleanable
    planned = plan(
        log,
        first_dirty=first_dirty,
        first_uncleanable=first_uncleanable,
        map_bytes=map_bytes or config.log_cleaner_dedupe_buffer_size // max(config.log_cleaner_threads, 1),
        load_factor=config.log_cleaner_io_buffer_load_factor,
        max_bytes_per_second=config.log_cleaner_io_max_bytes_per_second,
        engine=engine,
    )
    return carry_out(log, planned, lambda stop: _start(log, planned.round, in_child, stop), should_stop)


def carry_out(
    log: Log, planned: RoundPlan, events: RoundEvents, should_stop: Callable[[], bool] = lambda: False
) -> CompactionStats:
    """Run the round after ``events``, and put each group in place when it comes."""
    round_ = planned.round
    watch = _UnchangedLog(log, planned)
    started = log.clock.monotonic()
    mapped = OffsetMapStats(round_.first_dirty, 0, 0, 0, 0.0)
    groups: list[CleanedGroup] = []
    aborted = False
    if round_.first_uncleanable > round_.first_dirty:
        try:
            _tidy(log)
            with closing(events(lambda: should_stop() or not watch.holds())) as coming:
                for event in coming:
                    if isinstance(event, OffsetMapStats):
                        mapped = event
                    else:
                        _commit(watch, event)
                        groups.append(event)
        except CleaningAbortedError:
            aborted = True
        except (CorruptError, WorkerFailedError, OSError):
            if watch.holds():
                raise
            aborted = True  # files that were cut or renamed under the reader's eyes
        finally:
            _tidy(log)
    return CompactionStats(
        topic_partition=log.topic_partition,
        first_dirty=round_.first_dirty,
        end_offset=round_.first_dirty if aborted else mapped.end_offset,
        first_uncleanable=round_.first_uncleanable,
        engine=round_.engine,
        map_entries=mapped.entries,
        mapped_messages=mapped.messages,
        mapped_bytes=mapped.bytes,
        messages_read=sum(group.messages_read for group in groups),
        messages_written=sum(group.messages_written for group in groups),
        keyless=sum(group.keyless for group in groups),
        bytes_read=sum(group.bytes_read for group in groups),
        bytes_written=sum(group.bytes_written for group in groups),
        segments_before=sum(len(group.bases) for group in groups),
        segments_after=len(groups),
        map_seconds=mapped.seconds,
        seconds=log.clock.monotonic() - started,
        aborted=aborted,
    )


def _start(
    log: Log, round_: Round, in_child: bool | None, stop: Callable[[], bool]
) -> Generator[OffsetMapStats | CleanedGroup]:
    if in_child is None:
        in_child = isinstance(log.fs, OsFs) and sum(source.size for source in round_.sources) >= CHILD_FROM
    if in_child:
        return clean_in_child(round_, stop)
    return clean(round_, log.fs, log.clock, should_stop=stop, wait=lambda seconds: wait_for(seconds, stop))


def _commit(watch: _UnchangedLog, group: CleanedGroup) -> None:
    """Put a cleaned group in place, unless the log is not what the round began with."""
    log = watch.log
    with log.lock:
        if not watch.holds():
            raise CleaningAbortedError
        with log._guard():
            new = Segment(
                log.fs,
                log.path,
                group.bases[0],
                log.segment_config,
                now_ms=log.clock.now_ms(),
                active=False,
                suffix=CLEANED,
            )
            watch.replace(group.bases, new)


def _tidy(log: Log) -> None:
    """No ``.cleaned`` files before and after a round; where the partition is being deleted they go with it."""
    with log.lock:
        if not log.closed and not log.deleted:
            with log._guard():
                remove_cleaned(log.fs, log.path)


def run(
    logs: Mapping[TopicPartition, Log],
    cleaner_offsets: Mapping[TopicPartition, int],
    config: LogDirConfig,
    *,
    note: Callable[[Log, int], None],
    uncleanable: MutableMapping[TopicPartition, Exception] | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> list[CompactionStats]:
    """Clean the dirtiest of ``logs`` until none is dirty enough: what Kafka's cleaner thread does between two naps.

    ``cleaner_offsets`` is the content of ``cleaner-offset-checkpoint``; ``note(log, end_offset)`` brings it up to date,
    and the file with it, after every round. Only one thread at a time may call this for a directory; appends, reads,
    retention and truncation of the logs go on meanwhile. A log that cannot be cleaned, since it is damaged, its worker
    failed, or there was no room for its ``.cleaned`` files, is put into ``uncleanable`` with the reason and left alone
    while it is there; as in Kafka until the next start, if the caller keeps the mapping. ``should_stop`` is asked
    several times a second (`LogDir.close`).

    Returns one item a round. Raises `LogDirOfflineError` when a write fails.
    """
    uncleanable = {} if uncleanable is None else uncleanable
    done: list[CompactionStats] = []
    given_up: set[TopicPartition] = set()

    def leave_alone(name: TopicPartition, error: SeglogError | OSError) -> None:
        if _may_pass(error):
            _logger.warning("%s is not compacted now: %s", name, error)
            given_up.add(name)
        else:
            uncleanable[name] = error

    while not should_stop():
        candidate = pick(logs, cleaner_offsets, without=given_up | uncleanable.keys(), failed=leave_alone)
        if candidate is None:
            break
        log, part = candidate
        name = log.topic_partition
        try:
            stats = compact(
                log,
                first_dirty=part.first_dirty,
                first_uncleanable=part.first_uncleanable,
                config=config,
                should_stop=should_stop,
            )
        except LogClosedError:
            given_up.add(name)
            continue
        except _OF_ONE_LOG as error:
            leave_alone(name, error)
            continue
        done.append(stats)
        if stats.aborted or stats.end_offset <= part.first_dirty:
            given_up.add(name)  # the next run checks it again
        if not stats.aborted:
            note(log, stats.end_offset)
    return done


def _may_pass(error: SeglogError | OSError) -> bool:
    """Whether the next run may succeed: there was no room on the disk, or no file could be opened."""
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        return True
    return isinstance(error, NoSpaceError | LogDirFullError | TooManyFilesError)
