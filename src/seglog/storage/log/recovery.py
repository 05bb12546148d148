"""Loading a partition: what a crash left is cleared, unflushed segments are checked, state is made again.

The rules of Kafka's ``LogLoader.java``, and one of our own (R5): a bad batch *below* what was flushed, or below the
checkpointed high watermark, is damage, not a torn write. Kafka would cut there and delete all that follows; we refuse
the partition and name the tool that repairs it. Bytes that are cut above it are saved in the partition's ``.seglog``.
"""

from __future__ import annotations

import logging
import os.path
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from seglog.core.config import LogConfig
from seglog.core.errors import (
    AppendError,
    CorruptBatchError,
    CorruptCheckpointError,
    CorruptError,
    CorruptIndexError,
    DamagedPartitionError,
    LogDirFullError,
)
from seglog.core.fs import Fs, NoSpaceError
from seglog.core.ground import Ground
from seglog.core.types import MAX_INT64, TopicPartition
from seglog.storage.formats.checkpoints import line_of_offset, read_leader_epochs, write_leader_epochs
from seglog.storage.formats.paths import LOG_START_OFFSETS, SegmentPaths, list_segments
from seglog.storage.log import producer_snapshots
from seglog.storage.log.crash_cleanup import Leftovers, clear_leftovers
from seglog.storage.log.dir_health import Background, DirHealth
from seglog.storage.log.epochs import LeaderEpochs
from seglog.storage.log.log import LoadedLog, Log
from seglog.storage.log.manifest import Difference, Manifest, differences, exchanged
from seglog.storage.log.producers import Producers
from seglog.storage.log.quarantine import (
    Cut,
    EmptiedLog,
    cut_log,
    forget_refused_start,
    read_refused_start,
    save_log,
    write_refused_start,
)
from seglog.storage.log.segment import Segment, SegmentConfig
from seglog.storage.log.segment_recovery import SegmentScan, rescan, split_overflowed

_logger = logging.getLogger("seglog")


class LogCheckpoint(NamedTuple):
    """The state of a partition by the checkpoints of its log directory.

    ``clean``: the directory was closed properly, so that no segment needs recovery. ``recovery_point``: everything
    below was flushed; None where the checkpoint cannot be read.
    """

    clean: bool = False
    recovery_point: int | None = 0
    log_start_offset: int = 0
    high_watermark: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryReport:
    """The actions of loading a partition. Offsets of segments are base offsets."""

    topic_partition: TopicPartition
    clean: bool
    scanned: tuple[int, ...]
    """Segments of which every batch was checked."""
    bytes_scanned: int
    rebuilt: dict[int, str]
    """Of those, the segments that were flushed and had to be checked because of an index; and why."""
    cut: Cut | None
    emptied: EmptiedLog | None
    leftovers: Leftovers
    split: tuple[int, ...]
    """Segments that were split because their offsets did not fit their indexes."""
    unreadable: tuple[str, ...]
    """Errors in producer snapshots, which were made again."""
    log_start_offset: int
    log_end_offset: int

    @property
    def is_eventful(self) -> bool:
        """Whether loading found anything that a clean start does not have."""
        return bool(self.cut or self.emptied or self.rebuilt or self.split or self.unreadable or any(self.leftovers))


class LoadResult(NamedTuple):
    log: Log
    report: RecoveryReport


def load_log(
    *,
    ground: Ground,
    path: str,
    topic_partition: TopicPartition,
    config: LogConfig,
    health: DirHealth,
    known: LogCheckpoint,
    background: Background | None = None,
    hw_follows_end: bool = True,
    has_gaps: bool = True,
    producer_id_expiration_ms: int = 86_400_000,
    progress: Callable[[int, int], None] | None = None,
) -> LoadResult:
    """Open the partition at ``path`` and make it whole.

    ``has_gaps``: compaction may have left some. Without, a segment that does not begin where the one before it ends is
    cut like a bad batch: a power cut can take the end of a segment at a batch's boundary and leave the next segment.

    ``progress`` gets bytes checked and bytes to check. Raises `DamagedPartitionError` for damage below what was
    flushed: then nothing was cut. Other errors: `CorruptCheckpointError` (leader epochs), `InvalidLogDirError` (a
    symbolic link), OSError.
    """
    fs = ground.fs
    manifest, unreadable = _open_manifest(fs, path, known)
    leftovers = clear_leftovers(fs, path)
    loader = _Loader(
        ground,
        path,
        config,
        known,
        manifest,
        progress,
        has_followers=not hw_follows_end,
        has_gaps=has_gaps,
        producer_id_expiration_ms=producer_id_expiration_ms,
        unreadable=unreadable,
    )
    try:
        loaded = loader.load()
    except BaseException:
        loader.close()
        raise
    log = Log(
        ground=ground,
        path=path,
        topic_partition=topic_partition,
        config=config,
        loaded=loaded,
        health=health,
        background=background,
        hw_follows_end=hw_follows_end,
    )
    with suppress(LogDirFullError):  # it is made from an older one, or from the log
        log.take_snapshot()
    with suppress(LogDirFullError):  # an index has no room: the records are on the disk
        if log.needs_flush:  # it is about to be told, and a crash has left it in the page cache
            log.flush()
    loader.expire(log.producers)
    return LoadResult(log, loader.report(log, leftovers))


def make_log(
    *,
    ground: Ground,
    path: str,
    topic_partition: TopicPartition,
    config: LogConfig,
    health: DirHealth,
    background: Background | None = None,
    hw_follows_end: bool = True,
) -> LoadResult:
    """Make an empty log in the directory ``path``, which the caller has just made. As `load_log` of an empty directory,
    but it searches for nothing and reads nothing: a request may create thousands of partitions."""
    fs, now_ms = ground.fs, ground.clock.now_ms()
    segment_config = SegmentConfig(config.segment_index_bytes, config.index_interval_bytes)
    segment = Segment(fs, path, 0, segment_config, now_ms=now_ms, active=True, is_new=True)
    if config.preallocate:
        segment.preallocate(config.segment_bytes)
    epochs, manifest = LeaderEpochs(), Manifest(fs, path)
    loaded = LoadedLog([segment], producer_snapshots.starting_at(0), epochs, 0, 0, 0, 0, manifest)
    log = Log(
        ground=ground,
        path=path,
        topic_partition=topic_partition,
        config=config,
        loaded=loaded,
        health=health,
        background=background,
        hw_follows_end=hw_follows_end,
    )
    report = RecoveryReport(
        topic_partition=topic_partition,
        clean=True,
        scanned=(),
        bytes_scanned=0,
        rebuilt={},
        cut=None,
        emptied=None,
        leftovers=Leftovers(),
        split=(),
        unreadable=(),
        log_start_offset=0,
        log_end_offset=0,
    )
    return LoadResult(log, report)


def _open_manifest(fs: Fs, path: str, known: LogCheckpoint) -> tuple[Manifest, list[str]]:
    """The manifest, and its faults. Call it before leftovers are cleared: they may be evidence.

    `DamagedPartitionError` if a sealed segment is missing or has another size.
    """
    try:
        manifest = Manifest.open(fs, path)
    except CorruptCheckpointError as error:
        _logger.warning("%s; it is rebuilt, and segments are not checked against it", error)
        return Manifest(fs, path), [str(error)]
    for found in differences(fs, path, manifest.entries, log_start=known.log_start_offset):
        raise differs(path, found)
    return manifest, []


def differs(path: str, found: Difference) -> DamagedPartitionError:
    return DamagedPartitionError(
        f"{found}. It was flushed when it was sealed, so this is damage. The partition is not opened and nothing was "
        f"changed: bring the file back, take the partition from a replica, or see `seglog repair {path}`"
    )


class _Loader:
    def __init__(
        self,
        ground: Ground,
        path: str,
        config: LogConfig,
        known: LogCheckpoint,
        manifest: Manifest,
        progress: Callable[[int, int], None] | None,
        *,
        has_followers: bool,
        has_gaps: bool,
        producer_id_expiration_ms: int,
        unreadable: Sequence[str],
    ) -> None:
        fs = self._fs = ground.fs
        self._clock = ground.clock
        self._path = path
        self._config = config
        self._segment_config = SegmentConfig(config.segment_index_bytes, config.index_interval_bytes)
        self._known = known
        self._manifest = manifest
        self._has_followers = has_followers
        self._has_gaps = has_gaps
        self._expiration_ms = producer_id_expiration_ms
        self._progress = progress
        self._epochs = LeaderEpochs(read_leader_epochs(fs, path))
        self._epochs_changed = False
        self._segments: list[Segment] = []
        self._producers: Producers | None = None
        self._must_scan: set[int] = set()
        self._last_base = 0
        self._bytes_total = 0
        self.bytes_done = 0
        self.scanned: list[int] = []
        self.rebuilt: dict[int, str] = {}
        self.split: list[int] = []
        self.cut: Cut | None = None
        self.emptied: EmptiedLog | None = None
        self.unreadable = list(unreadable)

    def report(self, log: Log, leftovers: Leftovers) -> RecoveryReport:
        return RecoveryReport(
            topic_partition=log.topic_partition,
            clean=self._known.clean,
            scanned=tuple(self.scanned),
            bytes_scanned=self.bytes_done,
            rebuilt=self.rebuilt,
            cut=self.cut,
            emptied=self.emptied,
            leftovers=leftovers,
            split=tuple(self.split),
            unreadable=tuple(self.unreadable),
            log_start_offset=log.log_start_offset,
            log_end_offset=log.log_end_offset,
        )

    def close(self) -> None:
        for segment in self._segments:
            segment.close(write=False)

    def load(self) -> LoadedLog:
        known = self._known
        while not self._load_segments():
            self.close()
            self._segments = []
        if self.cut is not None and self._progress is not None:
            self._progress(self._bytes_total, self._bytes_total)  # the bytes that were cut need no check
        end = self._end_of_log()
        recovery_point = end if known.clean else min(known.recovery_point or 0, end)
        log_start = max(known.log_start_offset, self._segments[0].base_offset)
        self._epochs_changed |= self._epochs.truncate_from_end(end)
        self._epochs_changed |= self._epochs.truncate_from_start(known.log_start_offset)
        if self._epochs_changed:
            write_leader_epochs(self._fs, self._path, self._epochs.entries)
        active = self._segments[-1]
        left = self._manifest.active
        if known.clean and left is not None and (left.base_offset, left.size) == (active.base_offset, active.size):
            active.resume(left.chain)
        # If a power cut took an empty segment after it, the last one was sealed, and is written again.
        self._manifest.forget([active.base_offset])
        active.become_active()
        producers = self._producers_at(end, log_start, trust_none=known.clean)
        producer_snapshots.remove_stray(self._fs, self._path, {segment.base_offset for segment in self._segments}, end)
        high_watermark = max(log_start, min(known.high_watermark, end))
        return LoadedLog(
            self._segments, producers, self._epochs, log_start, end, recovery_point, high_watermark, self._manifest
        )

    # Segments

    def _load_segments(self) -> bool:
        """Open all segments and check those that need it; False: one was split, begin again."""
        found = list_segments(self._fs, self._path)
        unflushed_from = self._first_unflushed(found)
        self._last_base = found[-1].base_offset if found else 0
        self._bytes_total = self.bytes_done + sum(self._fs.stat(paths.log).size for paths in found[unflushed_from:])
        expected: int | None = None
        for at, paths in enumerate(found):
            if expected is not None and paths.base_offset != expected and not self._has_gaps:
                reason = f"the next segment begins at offset {paths.base_offset}"
                self._cut(self._segments[-1], CorruptBatchError(reason, offset=expected), found[at:])
                break
            segment, wrong = self._open(paths)
            self._segments.append(segment)
            if at < unflushed_from:
                wrong = wrong or self._look_wrong(segment)
                if wrong is None:
                    if not self._known.clean:
                        segment.complete_time_index()
                    self._producers = None
                    continue
                self.rebuilt[segment.base_offset] = wrong
            scan = self._scan(segment)
            if scan.overflow:
                self._manifest.forget_from(segment.base_offset)
                made = split_overflowed(self._fs, self._clock, self._path, segment, self._segment_config)
                self._segments.remove(segment)
                self.split.append(segment.base_offset)
                self._must_scan.update(made)
                return False
            if scan.bad is not None:
                self._cut(segment, scan.bad, found[at + 1 :])
                break
            self._check_recovered(segment)
            if at < unflushed_from:  # nothing flushes it again
                with suppress(NoSpaceError):
                    segment.flush()
            expected = scan.next_offset if at >= unflushed_from else None
        return True

    def _first_unflushed(self, found: list[SegmentPaths]) -> int:
        """Position in ``found`` of the segment that the recovery point lies in; after the last after a clean stop."""
        if self._known.clean:
            return len(found)
        below = [paths for paths in found if paths.base_offset <= (self._known.recovery_point or 0)]
        return max(len(below) - 1, 0)

    def _open(self, paths: SegmentPaths) -> tuple[Segment, str | None]:
        """The segment, and why it must be checked although it was flushed."""
        wrong = None
        for index in (paths.offset_index, paths.timeindex):
            if not self._fs.exists(index):
                wrong = f"{os.path.basename(index)} is missing"
        if paths.base_offset in self._must_scan:
            wrong = "made by a split"
        try:
            return self._new_segment(paths.base_offset), wrong
        except CorruptIndexError as error:
            self._fs.unlink(paths.txnindex)
            return self._new_segment(paths.base_offset), str(error)

    def _new_segment(self, base_offset: int, *, active: bool = False) -> Segment:
        now_ms = self._clock.now_ms()
        return Segment(self._fs, self._path, base_offset, self._segment_config, now_ms=now_ms, active=active)

    def _look_wrong(self, segment: Segment) -> str | None:
        """The reason why the indexes of a flushed segment cannot be its own, or its last batch is not whole."""
        try:
            following, end, crc = segment.base_offset, 0, 0
            last = segment.offset_index.lookup(segment.offset_index.last_offset)
            for header, position, _ in segment.headers(last.position):
                following, end, crc = header.next_offset, position + header.size, header.crc
            segment.offset_index.check(following, segment.size)
            segment.time_index.check(following, segment.size)
        except CorruptError as error:
            return str(error)
        entry = self._manifest.entries.get(segment.base_offset)
        found = exchanged(self._path, entry, following, crc) if entry is not None else None
        if found is not None:
            raise differs(self._path, found)
        return None if end == segment.size else f"{segment.size - end} bytes behind the last batch"

    def _check_recovered(self, segment: Segment) -> None:
        """Compare a sealed segment, whose batches were just checked, with its manifest entry."""
        entry = self._manifest.entries.get(segment.base_offset)
        if entry is not None:
            sealed = segment.sealed()
            found = exchanged(self._path, entry, sealed.end_offset, sealed.last_crc)
            if found is None and None not in (sealed.chain, entry.chain) and sealed.chain != entry.chain:
                file = segment.paths.log
                found = Difference(file, entry, "it is another file: the chain of its batches' CRCs is another")
            if found is not None:
                raise differs(self._path, found)

    def _scan(self, segment: Segment) -> SegmentScan:
        """Check every batch and make the indexes again; the producers' state follows."""
        base = segment.base_offset
        producers = self._producers_at(base, self._known.log_start_offset)
        producer_snapshots.take_if_room(self._fs, self._path, producers)
        self.expire(producers)  # Kafka reads that snapshot again here, without those that are expired
        done = self.bytes_done

        def report(position: int) -> None:
            self.bytes_done = done + position
            if self._progress is not None:
                self._progress(self.bytes_done, max(self._bytes_total, self.bytes_done))

        interval = self._config.index_interval_bytes
        try:
            scan = rescan(segment, producers, self._epochs, index_interval=interval, progress=report)
        except AppendError as error:
            raise self._damaged(segment.paths.log, segment.size, base, str(error)) from error
        self.scanned.append(base)
        self._epochs_changed |= scan.epochs_changed
        return scan

    # Damage

    def _flushed_up_to(self) -> int:
        """Below this offset every batch must be good: it was flushed, or a consumer may have seen what only we have."""
        known = self._known
        if known.clean:
            return MAX_INT64
        seen = max(0 if self._has_followers else known.high_watermark, self._manifest.flushed)
        if known.recovery_point is None:  # lost; segments before the last were flushed when they were rolled
            return max(self._last_base, seen)
        return max(known.recovery_point, seen)

    def _cut(self, segment: Segment, bad: CorruptError, later: list[SegmentPaths]) -> None:
        lost_from = bad.offset if bad.offset is not None else segment.base_offset
        if max(lost_from, self._known.log_start_offset) < self._flushed_up_to():
            self._fs.unlink(segment.paths.offset_index)  # so that the next start finds the damage too
            raise self._damaged(segment.paths.log, segment.size, lost_from, bad.reason) from bad
        self.cut = cut_log(self._fs, self._path, segment, later, bad, self._clock.now_ms())

    def _damaged(self, file: str, position: int, offset: int, reason: str) -> DamagedPartitionError:
        limit = self._flushed_up_to()
        flushed = "the directory was closed cleanly" if limit == MAX_INT64 else f"all below offset {limit} was flushed"
        return DamagedPartitionError(
            f"{file}, position {position}, offset {offset}: {reason}; {flushed}, so this is damage, not a torn write. "
            f"The partition is not opened and nothing was cut: see `seglog repair {self._path}`"
        )

    def _end_of_log(self) -> int:
        """The log's end; below the checkpointed start, or without segments, the log begins and ends at that start."""
        known = self._known
        end = self._segments[-1].next_offset() if self._segments else -1
        reached = max(end, known.log_start_offset)
        if known.recovery_point is not None and reached < known.recovery_point:
            last = self._segments[-1].paths.log if self._segments else self._path
            size = self._segments[-1].size if self._segments else 0
            raise self._damaged(
                last, size, reached, f"the log ends here, below its recovery point {known.recovery_point}"
            )
        if end >= known.log_start_offset:
            forget_refused_start(self._fs, self._path)
            return end
        self._empty_log(end)
        self._segments = [self._new_segment(known.log_start_offset, active=True)]
        if self._config.preallocate:
            self._segments[0].preallocate(self._config.segment_bytes)
        self._producers = None
        self._epochs_changed |= self._epochs.clear()
        for offset in producer_snapshots.list_snapshots(self._fs, self._path):
            self._fs.unlink(producer_snapshots.snapshot_path(self._path, offset))
        return known.log_start_offset

    def _empty_log(self, end: int) -> None:
        """Save the segments of a log that ends below its start, so that it can begin there.

        After an unclean start that is legal: deleting records writes the new start before the tail is flushed, and a
        power cut may take that tail. After a clean shutdown the checkpoint itself is wrong. The next start is not clean
        then, so the refusal is written down until the checkpoint says something else.
        """
        if not self._segments:
            forget_refused_start(self._fs, self._path)
            return
        start = self._known.log_start_offset
        checkpoint = os.path.join(os.path.dirname(self._path), LOG_START_OFFSETS)
        file = self._segments[-1].paths.log
        reason = f"the log starts at offset {start}, and {file} ends at {end}"
        if self._known.clean:
            write_refused_start(self._fs, self._path, start)
        if read_refused_start(self._fs, self._path) == start:
            line = line_of_offset(self._fs, checkpoint, os.path.basename(self._path))
            where = f"{checkpoint}, line {line}" if line else checkpoint
            raise DamagedPartitionError(
                f"{where}: {reason}; the log was closed cleanly, so the checkpoint is damaged. The partition is not "
                f"opened and nothing was deleted: `seglog repair {self._path}` lets the log start at its first "
                f"segment, or with `--log-start checkpoint` at offset {start}"
            )
        for segment in self._segments:
            segment.close(write=False)
        self._manifest.forget_from(0)
        self.emptied = save_log(self._fs, self._path, f"{checkpoint}: {reason}", self._clock.now_ms())

    # Producers

    def expire(self, producers: Producers) -> None:
        producers.expire(self._clock.now_ms(), self._expiration_ms)

    def _producers_at(self, offset: int, log_start: int, *, trust_none: bool = False) -> Producers:
        """The state at ``offset``, which is the end of the segments loaded so far, or the base of the last of them."""
        if self._producers is None:
            self._producers, unreadable = producer_snapshots.producers_at(
                self._fs,
                self._path,
                self._segments,
                log_start,
                offset,
                expire=self.expire,
                trust_none=trust_none,
            )
            self.unreadable += unreadable
        self._producers.reflect(offset)
        return self._producers
