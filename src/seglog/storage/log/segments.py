"""The segments of one log: the tuple of them, and everything that adds, replaces or removes one.

A change puts another tuple in the place of the old one. Readers take the tuple once, hold no lock, and keep the file
open that they read, also if it is removed meanwhile. Every change is made with the log's lock held.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress

from seglog.core.config import LogConfig
from seglog.core.errors import LogClosedError
from seglog.core.fs import NoSpaceError
from seglog.core.ground import Ground
from seglog.storage.formats.paths import DELETED, INDEX, LOG, SWAP, TIME_INDEX, segment_paths
from seglog.storage.log import producer_snapshots
from seglog.storage.log.dir_health import Background, DirHealth
from seglog.storage.log.epochs import LeaderEpochs
from seglog.storage.log.manifest import Manifest, SealedSegment
from seglog.storage.log.producers import Producers
from seglog.storage.log.retention import SegmentFacts
from seglog.storage.log.segment import Segment, SegmentConfig
from seglog.storage.log.segment_recovery import rescan


def segment_at(segments: Sequence[Segment], offset: int) -> int:
    """Position in ``segments`` of the one that ``offset`` belongs to, -1 before the first."""
    return bisect_right(segments, offset, key=lambda segment: segment.base_offset) - 1


class Segments:
    """Invariants: ``all`` is not empty, and base offsets ascend; ``active``, the last one, takes the appends."""

    __slots__ = (
        "_background", "_clock", "_fs", "_has_new_names", "_health", "active", "all", "config", "manifest", "path",
    )  # fmt: skip

    def __init__(
        self,
        ground: Ground,
        path: str,
        config: LogConfig,
        segments: Sequence[Segment],
        manifest: Manifest,
        health: DirHealth,
        background: Background,
    ) -> None:
        self._fs = ground.fs
        self._clock = ground.clock
        self._health = health
        self._background = background
        self._has_new_names = True  # set after a change of names, and taken back before the fsync: no lock
        """Whether names of files may have changed that are not on the disk."""
        self.path = path  # guarded by the log's lock
        self.config = config  # guarded by the log's lock
        self.manifest = manifest
        self.all: tuple[Segment, ...] = ()  # guarded by the log's lock
        self.active = segments[-1]  # guarded by the log's lock
        self._become(segments)

    def _become(self, segments: Sequence[Segment]) -> None:
        self.all, self.active = tuple(segments), segments[-1]

    # Find

    @property
    def size(self) -> int:
        """Bytes of all log files."""
        return sum(segment.size for segment in self.all)

    def between(self, start: int, end: int) -> Sequence[Segment]:
        """The segments that may hold ``start`` to ``end`` (exclusive), and the active one if it is empty at ``end``."""
        segments = self.all
        return segments[max(segment_at(segments, start), 0) : segment_at(segments, end) + 1]

    def start_of_batch(self, offset: int) -> int:
        """Where the log ends if ``offset`` is cut off: batches go whole."""
        at = segment_at(self.all, offset)
        found = self.all[at].locate(offset) if at >= 0 else None
        if found is None:
            return offset
        header, _, _ = next(self.all[at].headers(found.position))
        return min(offset, header.base_offset)

    def facts(self, log_end_offset: int) -> list[SegmentFacts]:
        """The facts that retention needs."""
        following = [*(segment.base_offset for segment in self.all[1:]), log_end_offset]
        return [
            SegmentFacts(
                base_offset=segment.base_offset,
                next_base_offset=next_base,
                size=segment.size,
                largest_timestamp=segment.largest_timestamp(),
                is_active=segment is self.active,
            )
            for segment, next_base in zip(self.all, following, strict=True)
        ]

    # Add

    @property
    def segment_config(self) -> SegmentConfig:
        return SegmentConfig(self.config.segment_index_bytes, self.config.index_interval_bytes)

    def add_active(self, base_offset: int) -> Segment:
        """Make an empty segment, which is active from now on. `NoSpaceError`: then there is no file of it."""
        segment = self._create(base_offset)
        self._become((*self.all, segment))
        return segment

    def fill_active(self, staged: str) -> Segment:
        """Give a finished segment, whose log file is at ``staged``, the names and the place of the active one, which
        is empty. A flush may still use that one.

        The ``.log`` is renamed first: then it is there, and an index that a crash leaves behind is made again.
        """
        fs, paths, root = self._fs, self.active.paths, staged.removesuffix(LOG)
        fs.rename(staged, paths.log)
        has_indexes = True
        for suffix, target in ((INDEX, paths.offset_index), (TIME_INDEX, paths.timeindex)):
            if fs.exists(root + suffix):
                fs.rename(root + suffix, target)
            else:
                has_indexes = False
        self._has_new_names = True
        base, now_ms = self.active.base_offset, self._clock.now_ms()
        segment = Segment(fs, self.path, base, self.segment_config, now_ms=now_ms, active=True)
        if not has_indexes:
            rescan(segment, Producers(), LeaderEpochs(), index_interval=self.config.index_interval_bytes)
            segment.offset_index.make_room()
            segment.time_index.make_room()
        replaced = self.active
        self._become((*self.all[:-1], segment))
        replaced.lose_name()
        return segment

    def _create(self, base_offset: int) -> Segment:
        fs, path = self._fs, self.path
        try:
            segment = Segment(fs, path, base_offset, self.segment_config, now_ms=self._clock.now_ms(), active=True)
            segment.truncate_bytes(0)  # a crash in the middle of a deletion may have left files of that name
            segment.reset_indexes()
            if self.config.preallocate:
                segment.preallocate(self.config.segment_bytes)
        except NoSpaceError:
            for left in segment_paths(path, base_offset)[1:5]:
                if fs.exists(left):
                    fs.unlink(left)
            raise
        self._has_new_names = True
        return segment

    # Remove and replace

    def truncate_to(self, offset: int) -> int:
        """Drop everything from the batch that holds ``offset`` on; returns where the log ends now."""
        kept = [segment for segment in self.all if segment.base_offset <= offset]
        gone = self.all[len(kept) :]
        self._become(kept)
        self.manifest.forget_from(self.active.base_offset)
        self._delete(gone[::-1], later=False)  # from the end: a crash in between leaves no hole
        with _without_undo():
            self.active.truncate_to(offset, self._clock.now_ms())
        return self.active.next_offset()

    def start_over(self, offset: int) -> None:
        """Remove all segments; an empty one at ``offset`` takes their place."""
        gone = self.all
        self.manifest.forget_from(0)
        self._delete([segment for segment in gone if segment.base_offset != offset], later=False)
        for segment in gone:
            if segment.base_offset == offset:
                segment.close(write=False)
        with _without_undo():
            self._become((self._create(offset),))

    def remove(self, bases: Collection[int]) -> None:
        """Remove these segments; their files go after ``file.delete.delay.ms``."""
        gone = [segment for segment in self.all if segment.base_offset in bases]
        self._become([segment for segment in self.all if segment.base_offset not in bases])
        self.manifest.forget(bases)
        self._delete(gone, later=True)

    def replace(self, new: Sequence[Segment], old: Sequence[Segment]) -> None:
        """Put ``new``, open on their ``.cleaned`` files, which are on the disk, in the place of ``old``, neighbours.

        ::

            new:  .cleaned ──1──► .swap ─────────────3──► plain name
            old:              plain name ──2──► .deleted ──────► gone after file.delete.delay.ms

        A crash at any moment leaves the old or the new segments (``LocalLog.java``). Before step 1 is done for the last
        file, the next start drops everything new; from then on it drops everything old and goes on with step 3
        (`seglog.storage.log.crash_cleanup`). The start recognises old segments by their offsets. An old segment after
        the last batch of the new one may therefore survive a crash; the next round removes it.

        Both sequences ascend. Readers see the old segments or the new ones, and keep files that they have open.
        """
        bases = {segment.base_offset for segment in new}
        replaced = [segment.base_offset for segment in old]
        self.manifest.forget(replaced)  # before a crash can leave the new ones in their place
        for segment in sorted(new, key=lambda segment: -segment.base_offset):
            segment.rename(SWAP)
        first = self.all.index(old[0])
        assert self.all[first : first + len(old)] == tuple(old), "a group is of neighbours"
        self._become((*self.all[:first], *new, *self.all[first + len(old) :]))
        self.manifest.forget(replaced)  # a flush may have written them again
        for segment in old:
            if segment.base_offset in bases:  # the new segment takes over its producer snapshot
                segment.rename(DELETED)
                self._background.schedule(self.config.file_delete_delay_ms, segment.delete)
            else:
                self._delete([segment], later=True)
        for segment in sorted(new, key=lambda segment: segment.base_offset):
            segment.rename("")
        self._fs.fsync_dir(self.path)

    def _delete(self, segments: Sequence[Segment], *, later: bool) -> None:
        """Remove files at once, or rename them to ``.deleted`` and remove them after ``file.delete.delay.ms``.

        On a full disk nothing waits: a reader keeps the files open until it is done.
        """
        later = later and self._health.full is None
        for segment in segments:
            snapshot = producer_snapshots.snapshot_path(self.path, segment.base_offset)
            has_snapshot = self._fs.exists(snapshot) and segment.base_offset != self.active.base_offset
            if later:
                try:
                    segment.rename(DELETED)
                    if has_snapshot:
                        self._fs.rename(snapshot, snapshot + DELETED)
                    delay_ms = self.config.file_delete_delay_ms
                    self._background.schedule(delay_ms, self._deletion(segment, snapshot + DELETED))
                    continue
                except NoSpaceError:  # the directory has no room for longer names
                    pass
            segment.delete()
            if has_snapshot:
                self._fs.unlink(snapshot)
        self._has_new_names = True

    def _deletion(self, segment: Segment, snapshot: str) -> Callable[[], None]:
        def delete() -> None:
            segment.delete()
            if self._fs.exists(snapshot):
                self._fs.unlink(snapshot)

        return delete

    # Flush and seal

    def flush_names(self) -> None:
        """Bring names of files that were made, renamed or removed to the disk."""
        if self._has_new_names:
            self._has_new_names = False
            self._fs.fsync_dir(self.path)

    def note_sealed(self, recovery_point: int) -> None:
        """Add sealed segments that are flushed to the manifest."""
        segments = self.all
        known = self.manifest.entries
        missing = len(segments) - 1 - len(known)
        new: dict[int, tuple[Segment, SealedSegment]] = {}
        for at in range(len(segments) - 2, -1, -1):  # of a long log the last ones are missing
            if missing <= 0:
                break
            segment = segments[at]
            if segment.base_offset not in known:
                missing -= 1
                if segments[at + 1].base_offset <= recovery_point:
                    with suppress(LogClosedError, FileNotFoundError):  # retention or compaction has removed it
                        new[segment.base_offset] = segment, segment.sealed()
        entries = [new[base][1] for base in sorted(new)]
        self.manifest.add(entries, lambda entry: self._is_sealed(new[entry.base_offset][0]))

    def _is_sealed(self, segment: Segment) -> bool:
        """Whether it is one of these, and not the active one."""
        segments = self.all
        at = segment_at(segments, segment.base_offset)
        return 0 <= at < len(segments) - 1 and segments[at] is segment

    # Life

    def reconfigure(self, config: LogConfig) -> None:
        self.config = config

    def moved_to(self, path: str) -> None:
        """The partition's directory was renamed."""
        self.path = path
        self.manifest.moved_to(path)
        for segment in self.all:
            segment.moved_to(path)

    def close(self, *, write: bool) -> None:
        for segment in self.all:
            segment.close(write=write)


@contextmanager
def _without_undo() -> Iterator[None]:
    """For a change that cannot be undone: if there is no room even now that files are gone, the directory fails."""
    try:
        yield
    except NoSpaceError as error:
        raise OSError(error.errno, error.strerror, error.filename) from error
