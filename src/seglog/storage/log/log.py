"""The log of one partition: its segments, its offsets, and who may do what to it (``UnifiedLog``, ``LocalLog``).

Writers (append, roll, truncate, delete) hold the log's lock, one at a time. Readers hold no lock: they use an
immutable tuple of segments, and sizes that grow after the bytes are written.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import Final, NamedTuple

from seglog.core.config import LogConfig
from seglog.core.errors import (
    InvalidReadError,
    InvalidRecordError,
    LogClosedError,
    LogDirFullError,
    OffsetOutOfRangeError,
    OutOfOrderSequenceError,
    SeglogError,
)
from seglog.core.fs import NoSpaceError
from seglog.core.ground import Ground
from seglog.core.types import MAX_INT64, NO_TIMESTAMP, Buffer, ProducerIdAndEpoch, TopicPartition
from seglog.records.batch import entries, read_header
from seglog.records.compression import Codec
from seglog.records.record import NewRecord, encode_batch
from seglog.storage.log import producer_snapshots, reads, retention
from seglog.storage.log.admit import AppendPlan, Duplicate, Origin, admit
from seglog.storage.log.dir_health import Background, DirHealth, Inline
from seglog.storage.log.epoch_file import EpochFile
from seglog.storage.log.epochs import EpochEnd, LeaderEpochs
from seglog.storage.log.finished_segment import FinishedSegment
from seglog.storage.log.manifest import Manifest
from seglog.storage.log.producer_entry import BATCHES_KEPT
from seglog.storage.log.producers import Producers, ProducerUpdates
from seglog.storage.log.reader import Isolation, RecordReader
from seglog.storage.log.reads import FoundOffset, LogSlice, UpTo
from seglog.storage.log.retention import should_roll
from seglog.storage.log.segment import Segment, SegmentConfig
from seglog.storage.log.segments import Segments
from seglog.storage.log.transaction_index import AbortedTxn

_new: Final = tuple.__new__
"""Makes a named tuple in half the time that its own constructor takes: each append makes one."""
_AGAIN_MS: Final = 1000
_LOOK_BACK: Final = (1 << 20, 32 << 20)
"""The least and the most bytes of the log that are searched for earlier batches of a producer. Between them it is twice
as many as a producer can have in flight, because there are other producers."""


class AppendResult(NamedTuple):
    """The result of an append. Offsets are inclusive; ``log_append_time`` is -1 unless the topic has LogAppendTime."""

    first_offset: int
    last_offset: int
    max_timestamp: int
    log_append_time: int
    log_start_offset: int
    duplicate: bool


class LoadedLog(NamedTuple):
    """The state that recovery found, from which a `Log` starts."""

    segments: list[Segment]
    producers: Producers
    epochs: LeaderEpochs
    log_start_offset: int
    log_end_offset: int
    recovery_point: int
    high_watermark: int
    manifest: Manifest


class Log:
    """An open partition.

    Invariants, which `check` asserts: ``log_start_offset <= last_stable_offset <= high_watermark <= log_end_offset``,
    ``recovery_point <= log_end_offset``, and segments that follow each other.
    """

    def __init__(
        self,
        *,
        ground: Ground,
        path: str,
        topic_partition: TopicPartition,
        config: LogConfig,
        loaded: LoadedLog,
        health: DirHealth,
        background: Background | None = None,
        hw_follows_end: bool = True,
    ) -> None:
        """``hw_follows_end``: the log has no followers, so that its high watermark is its end."""
        self.lock = threading.RLock()
        """Held by a writer. Readers take no lock: they see each attribute as it was before or after a change."""
        self._flushing = threading.RLock()
        """One flush at a time, and no truncation meanwhile. Taken after `lock`; its holder never waits for `lock`."""
        self.fs = ground.fs
        self.clock = ground.clock
        self.path = path  # guarded by lock
        self.topic_partition = topic_partition
        self.background: Background = background or Inline()
        self._segments = Segments(ground, path, config, loaded.segments, loaded.manifest, health, self.background)
        self.producers = loaded.producers  # guarded by lock
        self.epochs = loaded.epochs
        self.epoch_file = EpochFile(ground.fs, path, loaded.epochs)
        self.log_start_offset = loaded.log_start_offset  # guarded by lock
        self.log_end_offset = loaded.log_end_offset  # guarded by lock
        self._rolled: dict[Segment, int] = {}  # set once: each change of it is one step
        """Segments that were rolled, and where they end; their indexes may not be flushed."""
        self.recovery_point = self._records_flushed = loaded.recovery_point  # guarded by _flushing
        self.high_watermark = loaded.log_end_offset if hw_follows_end else loaded.high_watermark  # guarded by lock
        self.last_flush_ms = self.clock.now_ms()  # guarded by _flushing
        self.hw_follows_end = hw_follows_end
        self.closed = False  # guarded by _flushing
        self.deleted = False  # guarded by lock
        self._defers_flushes = False  # set once, by the first Replica
        self._health = health
        self._rng = ground.rng
        self._jitter_ms = self._new_jitter()  # guarded by lock
        self._first_unstable: int | None = None  # guarded by lock
        self._watchers: tuple[Callable[[], object], ...] = ()  # guarded by lock
        self._show(self.high_watermark)

    def __repr__(self) -> str:
        state = "deleted" if self.deleted else "closed" if self.closed else "open"
        segments = len(self.segments)
        return (
            f"<Log {self.topic_partition}: offsets {self.log_start_offset} to {self.log_end_offset}, {segments} "
            f"segment{'s' if segments != 1 else ''}, {self.size} bytes, {state}, {self.path}>"
        )

    # Offsets

    @property
    def config(self) -> LogConfig:
        return self._segments.config

    @property
    def segments(self) -> tuple[Segment, ...]:
        """As they are now; the last one is active. A reader takes them once."""
        return self._segments.all

    @property
    def active(self) -> Segment:
        return self._segments.active

    @property
    def segment_config(self) -> SegmentConfig:
        return self._segments.segment_config

    @property
    def manifest(self) -> Manifest:
        return self._segments.manifest

    @property
    def last_stable_offset(self) -> int:
        """Up to here (exclusive) every transaction is decided; what a read_committed consumer sees."""
        high_watermark, unstable = self.high_watermark, self._first_unstable  # in this order: see `_show`
        return high_watermark if unstable is None else min(unstable, high_watermark)

    @property
    def needs_flush(self) -> bool:
        """Whether ``flush.messages`` asks for a flush."""
        return self.log_end_offset - self.recovery_point >= self._segments.config.flush_messages

    @property
    def flushed_end(self) -> int:
        """The log's end, as far as ``flush.messages`` lets it be told: with 1, what is on the disk.

        A leader answers and commits nothing above it, and a follower does not fetch from there. On a full disk records
        may be flushed whose index has no room: the recovery point stays behind.
        """
        return max(self.recovery_point, self._records_flushed) if self.needs_flush else self.log_end_offset

    @property
    def is_open(self) -> bool:
        return not (self.closed or self.deleted)

    @property
    def size(self) -> int:
        """Bytes of all log files."""
        return self._segments.size

    def check(self) -> None:
        """Assert the invariants; tests call it after every step."""
        assert self.log_start_offset <= self.last_stable_offset <= self.high_watermark <= self.log_end_offset
        assert self.recovery_point <= self.log_end_offset
        bases = [segment.base_offset for segment in self.segments]
        assert bases == sorted(set(bases))
        assert bases[-1] <= self.log_end_offset

    # Append

    def append(
        self,
        data: Buffer,
        *,
        leader_epoch: int | None = None,
        origin: Origin = Origin.BULK,
        transaction_version: int = 0,
    ) -> AppendResult:
        """Admit whole batches and write them at the end; into the page cache, not through to the disk.

        ``leader_epoch`` is by default the latest that the log knows; with `Origin.REPLICATION` it is that in which the
        batches were fetched. ``transaction_version`` is the coordinator's, for markers (KIP-890).
        Raises a subclass of `AppendError`, or `CorruptBatchError`, when they are refused, and `LogDirFullError` on a
        full disk: then nothing has changed. Once the batches are in the log, a full disk does not fail the append; it
        refuses the next one. `LogDirOfflineError`: the disk fails, and the batches may be in the log or not.
        A batch of an idempotent producer that is here already is answered with its offsets and ``duplicate``.
        """
        with self.lock:
            health = self._health
            if self.closed or self.deleted or health.failure is not None:
                self._check_open()
            if health.full is not None:
                health.check_room(self.clock.monotonic())
            latest_epoch = self.epochs.latest
            if leader_epoch is None:
                leader_epoch = max(latest_epoch, 0)
            try:
                plan = admit(
                    data,
                    self.log_end_offset,
                    self._segments.config,
                    self.producers,
                    latest_epoch,
                    leader_epoch,
                    origin,
                    self.clock.now_ms(),
                    transaction_version,
                )
            except OutOfOrderSequenceError:
                if not self._remember_batches_before(data):
                    raise
                return self.append(
                    data, leader_epoch=leader_epoch, origin=origin, transaction_version=transaction_version
                )
            if isinstance(plan, Duplicate):
                return AppendResult(
                    plan.base_offset,
                    plan.last_offset,
                    plan.timestamp,
                    plan.timestamp,
                    self.log_start_offset,
                    duplicate=True,
                )
            try:
                self._apply(plan)
            except OSError as error:
                raise health.refusal(error) from error
            _, first, last, max_timestamp, _, _, _, log_append_time, _ = plan
            return _new(AppendResult, (first, last, max_timestamp, log_append_time, self.log_start_offset, False))

    def _remember_batches_before(self, data: Buffer) -> bool:
        """Whether the log was searched for earlier batches of these producers, of which a snapshot left them out."""
        producers, largest = self.producers, 2 * BATCHES_KEPT * self.config.max_message_bytes
        limit = min(max(_LOOK_BACK[0], largest), _LOOK_BACK[1])
        is_changed = False
        for entry in entries(data):
            header = read_header(data, entry.position)
            producer_id = header.producer_id
            if producers.may_have_forgotten(header):
                before = producers.entries[producer_id].batches[0].first_offset
                producers.remember(
                    producer_id, producer_snapshots.earlier_batches(self.segments, producer_id, before, limit)
                )
                is_changed = True
        return is_changed

    def verify(self, producer: ProducerIdAndEpoch, sequence: int, *, bumps_epoch: bool) -> int | None:
        """Begin to verify that a transaction of the producer is open (`Producers.verify`)."""
        with self.lock:
            return self.producers.verify(producer, sequence, bumps_epoch=bumps_epoch, now_ms=self.clock.now_ms())

    def append_records(
        self,
        records: Sequence[NewRecord],
        *,
        codec: Codec | str = Codec.NONE,
        level: int | None = None,
        leader_epoch: int | None = None,
    ) -> AppendResult:
        """Append records as one batch, compressed by ``codec`` (or one of Kafka's names: "zstd").

        A record without a timestamp gets the current time.
        """
        codec = Codec.parse(codec) if isinstance(codec, str) else codec
        _check_records(records)
        if any(record.timestamp == NO_TIMESTAMP for record in records):
            now_ms = self.clock.now_ms()
            records = [
                record._replace(timestamp=now_ms) if record.timestamp == NO_TIMESTAMP else record for record in records
            ]
        return self.append(encode_batch(records, codec=codec, level=level), leader_epoch=leader_epoch)

    def append_segment(self, segment: FinishedSegment, leader_epoch: int) -> AppendResult:
        """Make a finished file of a transactional producer the next segment, in two renames and without a copy.

        As an append it reaches the page cache only: what a power cut leaves of it, recovery cuts off. If the producer's
        batches are here already, the answer has the log's last offset and ``duplicate``. Raises a subclass of
        `AppendError` if the producer may not append them, and `LogDirFullError`: then nothing has changed. As in
        `append`, a disk that is full only once the segment has its place does not fail this call.
        """
        with self.lock:
            self._check_open()
            self._health.check_room(self.clock.monotonic())
            base, start = self.log_end_offset, self.log_start_offset
            if self.producers.has_sequence(segment.producer, segment.last_sequence):
                return AppendResult(base - 1, base - 1, NO_TIMESTAMP, NO_TIMESTAMP, start, duplicate=True)
            first, *last = (
                header._replace(base_offset=base + header.base_offset) for header in (segment.first, *segment.last)
            )
            updates = self.producers.prepare_run(first, last)
            with self._guard():
                segment.place(self.fs, base, leader_epoch)
                self._roll(base)
                try:
                    self.take_segment(segment.path, base + segment.records, updates, leader_epoch=leader_epoch)
                except OSError as error:
                    if isinstance(error, NoSpaceError) and self.fs.exists(segment.path):
                        raise  # it has its old name
                    # Also of a full disk: the file has its new name, and nothing knows it.
                    raise OSError(errno.EIO, f"{segment.path} is a part of {self.path} by half: {error}") from error
                if self.active.size * 2 >= self.config.segment_bytes:
                    with self._without_refusal():
                        self._roll(self.log_end_offset)  # so that no later start has to check so much
            end = self.log_end_offset
            return AppendResult(base, end - 1, segment.max_timestamp, NO_TIMESTAMP, start, duplicate=False)

    def _apply(self, plan: AppendPlan) -> None:
        """Do what was decided. Only the disk can refuse now."""
        data, first_offset, last_offset, max_timestamp, batches, updates, epoch_starts, _, clears_epochs = plan
        segment = self._segments.active
        config = self._segments.config
        if should_roll(
            segment.size,
            len(data),
            segment.base_offset,
            last_offset,
            max_timestamp,
            segment.rolling_timestamp(),
            segment.created_ms,
            segment.is_index_full,
            config,
            self._jitter_ms,
            self.clock.now_ms,
        ):
            segment = self._roll(first_offset)
        segment.append(data, batches)
        # The disk cannot refuse the batches any more.
        if epoch_starts or clears_epochs or first_offset == 0:
            self._begin_epochs(epoch_starts, clears=clears_epochs)
        self.log_end_offset = end_offset = last_offset + 1
        producers = self.producers
        if updates is not None:
            for completed in producers.apply(updates):
                if completed.is_aborted:
                    segment.txn_index.append(
                        AbortedTxn(
                            completed.producer_id,
                            completed.first_offset,
                            completed.last_offset,
                            producers.last_stable_offset(completed),
                        )
                    )
                producers.complete(completed)
        producers.reflect(end_offset)
        self._grown(end_offset, config.flush_messages)

    def _grown(self, end_offset: int, flush_messages: int) -> None:
        """The log ends at ``end_offset`` now: show what may be seen, and flush if that is due."""
        needs_flush = end_offset - self.recovery_point >= flush_messages
        high_watermark = self.high_watermark
        if self.hw_follows_end:
            is_held_back = needs_flush and self._defers_flushes
            high_watermark = max(high_watermark, self.recovery_point) if is_held_back else end_offset
        producers = self.producers
        if producers.ongoing or producers.replicating or self._first_unstable is not None:
            self._show(high_watermark)
        else:
            self.high_watermark = high_watermark
        if self._watchers:
            self._wake()
        if needs_flush and not self._defers_flushes:
            with self._without_refusal():
                self.flush()

    @contextmanager
    def _without_refusal(self) -> Iterator[None]:
        """The append is done. If its sequel finds the disk full, the next append is refused (`DirHealth.full`)."""
        try:
            yield
        except NoSpaceError as error:
            self._health.filled(error)
        except LogDirFullError:
            pass

    # Leader epochs

    def _begin_epochs(self, starts: Iterable[tuple[int, int]], *, clears: bool = False) -> None:
        """Epochs of batches, which recovery finds in them; the file follows (`seglog.storage.log.epoch_file`)."""
        changed = clears and self.epochs.clear()
        for epoch, start in starts:
            changed = self.epochs.assign(epoch, start) or changed
        if changed or not self.epoch_file.is_current:  # of `begin_first_epoch`
            self._write_epochs_later()

    def _write_epochs_later(self) -> None:
        with self._without_refusal():
            self.background.submit(self._write_epochs_soon)

    def _write_epochs_soon(self) -> None:
        if not (self.closed or self.deleted):
            with self._guard(), suppress(NoSpaceError):  # a flush tries again, and the recovery point waits for it
                self.epoch_file.write(self._health.make_room)

    def assign_epoch(self, epoch: int) -> None:
        """`begin_epoch`, durable when it returns. `LogDirFullError`: nothing has changed."""
        with self.lock, self._guard():
            before = self.begin_epoch(epoch)
            try:
                self.epoch_file.write(self._health.make_room)
            except NoSpaceError:
                self.epochs.restore(before)
                raise

    def begin_epoch(self, epoch: int) -> LeaderEpochs:
        """A new leader's first act: its epoch starts at the log's end (KIP-101). Return the epochs before that.

        `has_epoch` is true once the caller has written `epoch_file`: only then may the leader serve anyone.
        """
        with self.lock:
            self._check_open()
            before = self.epochs.copy()
            self.epochs.assign(epoch, self.log_end_offset)
            return before

    def begin_first_epoch(self, epoch: int) -> bool:
        """`begin_epoch` for epoch 0 of a log that has no records, and no epoch on the disk; otherwise do nothing and
        return False.

        It needs no file before there are records: it ends where it begins, which is where a log begins that has no
        epoch, and no other epoch comes before it. The first batch names it, as in `_begin_epochs`. So a thousand new
        topics wait for no fsync. A later epoch is written although there are no records: see `cluster.rebuild`.
        """
        with self.lock:
            if self.closed or self.deleted or self._health.failure is not None:
                return False
            if epoch or self.epochs or self.log_end_offset or not self.epoch_file.is_empty:
                return False
            return self.epochs.assign(0, 0)

    @property
    def _begins(self) -> bool:
        """Whether the only epoch is that of `begin_first_epoch`, and the disk does not have it yet."""
        return self.epochs.is_first and self.epoch_file.is_empty

    def forget_epoch(self, before: LeaderEpochs) -> None:
        """Undo `begin_epoch`: there was no room for the file."""
        with self.lock:
            self.epochs.restore(before)

    def has_epoch(self, epoch: int) -> bool:
        """Whether the latest epoch is this one, and on the disk if it has to be: see `begin_first_epoch`."""
        if self.epochs.latest != epoch:
            return False
        return self.epoch_file.is_current or self._begins

    # High watermark and stable offset

    def update_high_watermark(self, offset: int) -> int:
        """Raise the high watermark to ``offset``, or to the log's end. It never falls: a caller may have computed
        ``offset`` before another thread has raised it. Returns the high watermark."""
        with self.lock:
            self._show(max(self.high_watermark, min(offset, self.log_end_offset)))
            self._wake()
            return self.high_watermark

    def lower_high_watermark(self, offset: int) -> None:
        """Records from ``offset`` on are about to be cut off."""
        with self.lock:
            self._show(max(self.log_start_offset, min(self.high_watermark, offset)))
            self._wake()

    def _show(self, high_watermark: int) -> None:
        """Let the high watermark be this, and the last stable offset what follows from it.

        The first unstable offset is stored first, and `last_stable_offset` reads it last: a reader never sees a high
        watermark above records of a transaction that it does not know to be open.
        """
        self.producers.on_high_watermark(high_watermark)
        unstable = self.producers.first_unstable_offset()
        self._first_unstable = None if unstable is None else max(unstable, self.log_start_offset)
        self.high_watermark = high_watermark

    # Roll and flush

    def roll(self) -> Segment:
        """Begin a new segment at the log's end, unless the active one is empty."""
        with self.lock, self._guard():
            return self._roll(self.log_end_offset)

    def _roll(self, offset: int) -> Segment:
        active = self.active
        base = max(offset, self.log_end_offset)
        if active.base_offset == base and active.size == 0:  # nothing to roll, but its index may be full (KAFKA-6388)
            active.reset_indexes()
            return active
        make_room, mapped = self._health.make_room, self.producers.map_end_offset
        make_room(active.become_inactive)
        self.producers.reflect(base)
        try:
            make_room(lambda: producer_snapshots.take(self.fs, self.path, self.producers, sync=False))
            segment = make_room(lambda: self._segments.add_active(base))
        except NoSpaceError:
            self.producers.reflect(mapped)
            active.become_active()
            raise
        self._jitter_ms = self._new_jitter()
        self._rolled[active] = base
        self.background.submit(lambda: self._flush_rolled(active, base))
        return segment

    def take_segment(
        self, staged: str, end_offset: int, updates: ProducerUpdates | None = None, *, leader_epoch: int
    ) -> None:
        """Put a finished segment, whose log file is at ``staged`` and whose records end at ``end_offset``, in the place
        of the active one, which is empty. ``updates`` are the changes to producers that its batches make, all of
        ``leader_epoch``.

        Called with the lock held.
        """
        base = self.log_end_offset
        self._segments.fill_active(staged)
        if self.epochs.latest != leader_epoch or base == 0:
            self._begin_epochs([(leader_epoch, base)])
        self.log_end_offset = end_offset
        if updates is not None:
            self.producers.apply(updates)
        self.producers.reflect(end_offset)
        self._grown(end_offset, self.config.flush_messages)

    def reconfigure(self, config: LogConfig) -> None:
        with self.lock:
            self._segments.reconfigure(config)

    def _new_jitter(self) -> int:
        limit = min(self.config.segment_jitter_ms, self.config.segment_ms)
        return self._rng.randrange(limit) if limit > 0 else 0

    def defer_flushes(self) -> None:
        """From now on an append does not wait for the flush that ``flush.messages`` asks for: the caller flushes
        (`needs_flush`) before anything above `flushed_end` is acknowledged."""
        self._defers_flushes = True

    def flush(self, up_to: int | None = None) -> None:
        """fsync everything below ``up_to`` (default: all) and move the recovery point there. In any thread."""
        if self.closed:
            return
        try:
            with self._guard(), self._exclusive_flush():
                self._flush(up_to)
        finally:  # also if an index had no room
            if self._defers_flushes and self.hw_follows_end and self.high_watermark < self.log_end_offset:
                with self.lock:  # an append between the two would be hidden again
                    self.update_high_watermark(self.flushed_end)

    @contextmanager
    def _exclusive_flush(self) -> Iterator[None]:
        """The system reports a failed fsync to one thread only: a later fsync must not count as success."""
        with self._flushing:
            self._health.check()
            try:
                yield
            except FileNotFoundError:
                raise
            except OSError as error:
                raise self._health.refusal(error) from error

    def _flush(self, up_to: int | None) -> None:
        target = self.log_end_offset if up_to is None else up_to
        start = self.recovery_point
        if target < start or (target == start and up_to is not None):
            return
        flushing = self._segments.between(start, target)
        try:
            if self.log_end_offset or not self._begins:
                self.epoch_file.write(self._health.make_room)  # recovery reads no epochs below the recovery point
            for segment in flushing:
                segment.flush()
                if segment.base_offset >= start:  # at the start, too: the roll may have come after the last flush
                    producer_snapshots.flush(self.fs, self.path, segment.base_offset)
        except NoSpaceError:  # of the epochs or an index; records need no more room
            for segment in flushing:
                segment.flush_records()
            self._segments.flush_names()
            self._records_flushed = max(self._records_flushed, min(target, self.log_end_offset))
            raise
        self._segments.flush_names()
        self.recovery_point = max(start, min(target, self.log_end_offset))
        self.last_flush_ms = self.clock.now_ms()

    def _flush_rolled(self, segment: Segment, end_offset: int) -> None:
        """fsync a segment that was just rolled, also when its records were flushed before.

        Its indexes were not, nor was the snapshot that the roll has taken: torn, it would look like damage.
        """
        try:
            if not self.closed and end_offset <= self.recovery_point:
                self._flush_files(segment, end_offset)
            self.flush(end_offset)
            self._rolled.pop(segment, None)
            if not self.closed:
                with self._guard():
                    self._segments.note_sealed(self.recovery_point)
        except LogDirFullError:  # an index that has not found its place: it is tried again until it has
            self.background.schedule(_AGAIN_MS, lambda: self._flush_rolled(segment, end_offset))

    def _flush_files(self, segment: Segment, end_offset: int) -> None:
        with self._guard(), self._exclusive_flush():
            segment.flush()
            producer_snapshots.flush(self.fs, self.path, end_offset)

    def lower_recovery_point(self, offset: int) -> None:
        """Records from ``offset`` on are about to be cut off, or were."""
        with self._flushing:
            self.recovery_point = min(self.recovery_point, offset)
            self._records_flushed = min(self._records_flushed, offset)

    def take_snapshot(self) -> None:
        """Write the producers' state as of the log's end, so that the next start need not read the log."""
        with self.lock, self._guard():
            self.producers.reflect(self.log_end_offset)
            self._health.make_room(lambda: producer_snapshots.take(self.fs, self.path, self.producers))

    # Reading: see `seglog.storage.log.reads`

    def read(
        self, offset: int, max_bytes: int = 1 << 20, *, up_to: UpTo = UpTo.HIGH_WATERMARK, min_one: bool = True
    ) -> LogSlice:
        """Whole batches from the one that holds ``offset`` on, at most ``max_bytes``; the last may be cut off.

        With ``min_one`` the first batch comes whole even if it is larger, else nothing does. `OffsetOutOfRangeError`
        outside of the log. CRCs are checked by who decodes: `LogSlice.records`. For a loop over all records: `records`.
        """
        self._check_open()
        if type(offset) is not int or type(max_bytes) is not int or type(up_to) is not UpTo:
            raise _invalid_read(offset, max_bytes, up_to)
        return reads.fetch(self, offset, max_bytes, up_to, min_one=min_one)

    def records(
        self,
        start: int | datetime | None = None,
        end: int | datetime | None = None,
        *,
        isolation: Isolation | str = Isolation.READ_UNCOMMITTED,
        follow: bool = False,
        check_crcs: bool = True,
    ) -> RecordReader:
        """All records from ``start`` to ``end`` (exclusive), each an offset or a time with a zone: an iterator.

        By default from the log's start to its high watermark as it is now; with ``isolation="read_committed"`` without
        records of aborted transactions, and up to the first open one. ``follow`` goes on with what is appended later,
        for ``for`` and ``async for``: the iterator is woken by the append, and ends when the log is closed. One process
        has a log open, so there are no appends of others to wait for.

        Raises `InvalidReadError` and `OffsetOutOfRangeError` at once; `CorruptError` where a batch is damaged;
        `OffsetOutOfRangeError` if retention has passed `RecordReader.next_offset`.
        """
        self._check_open()
        return RecordReader(self, start=start, end=end, isolation=isolation, follow=follow, check_crcs=check_crcs)

    def watch(self, wake: Callable[[], object]) -> Callable[[], None]:
        """Call ``wake``, from whichever thread, when there may be more to read and when the log is closed.

        Returns what ends that.
        """
        with self.lock:
            self._watchers = (*self._watchers, wake)

        def unwatch() -> None:
            with self.lock:
                self._watchers = tuple(one for one in self._watchers if one is not wake)

        return unwatch

    def _wake(self) -> None:
        for wake in self._watchers:
            wake()

    def offset_for_timestamp(self, timestamp: int, *, check_crcs: bool = True) -> FoundOffset | None:
        """The first record at ``timestamp`` ms or later, or EARLIEST, LATEST, MAX_TIMESTAMP. None: there is none."""
        self._check_open()
        if type(timestamp) is not int:
            raise InvalidReadError(f"timestamp {timestamp!r} is not milliseconds since 1970 (int)")
        return reads.offset_for_timestamp(self, timestamp, check_crcs=check_crcs)

    def end_offset_for_epoch(self, epoch: int) -> EpochEnd:
        """Where the largest epoch at or below ``epoch`` ends (KIP-101, KIP-279)."""
        return self.epochs.end_offset_for(epoch, self.log_end_offset)

    # Making it shorter

    @contextmanager
    def standing_still(self) -> Iterator[None]:
        """Meanwhile no append, and no flush that would raise the recovery point again."""
        with self.lock, self._flushing:
            yield

    def truncate_to(self, offset: int) -> bool:
        """Drop all from the batch that holds ``offset`` on (``UnifiedLog.truncateTo``); whether there was any."""
        with self.lock, self._guard(), self._flushing:
            return self._truncate_to(offset)

    def _truncate_to(self, offset: int) -> bool:
        if offset < 0:
            raise ValueError(f"cannot truncate {self.topic_partition} to offset {offset}")
        if offset >= self.log_end_offset:
            # The epochs may know of more than the log has (KAFKA-10706)
            self._forget_epochs_from(self.log_end_offset)
            return False
        if self.segments[0].base_offset > offset:
            self._truncate_fully(offset)
            return True
        end = self._segments.truncate_to(offset)  # the batch that holds the offset is gone whole
        self._end_at(end)
        self.log_start_offset = min(self.log_start_offset, end)
        self._forget_epochs_from(end)
        self.producers = producer_snapshots.after_truncation(
            self.fs, self.path, self.segments, self.producers, self.log_start_offset, end
        )
        self._show(self.high_watermark)
        return True

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Drop everything; the log begins and ends at ``offset``."""
        with self.lock, self._guard(), self._flushing:
            self._truncate_fully(offset)

    def _truncate_fully(self, offset: int) -> None:
        if not 0 <= offset <= MAX_INT64:
            raise ValueError(f"{self.topic_partition} cannot start at offset {offset}")
        self._segments.start_over(offset)
        for snapshot in producer_snapshots.list_snapshots(self.fs, self.path):
            self.fs.unlink(producer_snapshots.snapshot_path(self.path, snapshot))
        self.producers = Producers()
        self.producers.reflect(offset)
        producer_snapshots.take_if_room(self.fs, self.path, self.producers)
        self._end_at(offset)
        self.log_start_offset = offset
        self.recovery_point = offset  # an empty log has nothing to flush
        if self.epochs.clear():
            self._write_epochs_later()
        self._show(offset)

    def _end_at(self, offset: int) -> None:
        self.high_watermark = min(self.high_watermark, offset)
        self.lower_recovery_point(offset)
        self.log_end_offset = offset

    def _forget_epochs_from(self, offset: int) -> None:
        if self.epochs.truncate_from_end(offset):
            self._write_epochs_later()

    def delete_records(self, before: int) -> int:
        """Move the log's start to ``before`` (-1: the high watermark) and return it (KIP-107); retention deletes files.

        A crash may bring the records back, unless a checkpoint has the new start: see `LogDir.delete_records`.
        """
        with self.lock, self._guard():
            target = self.check_deletable(before)
            self._move_start(target)
            return target

    def check_deletable(self, before: int) -> int:
        """The start that `delete_records` would give the log. `OffsetOutOfRangeError`."""
        with self.lock:
            self._check_open()
            target = self.high_watermark if before == -1 else before
            if not self.log_start_offset <= target <= self.high_watermark:
                raise OffsetOutOfRangeError(
                    f"records of {self.topic_partition} can be deleted up to an offset from {self.log_start_offset} to "
                    f"the high watermark {self.high_watermark}, not {target}"
                )
            return target

    def _move_start(self, offset: int) -> None:
        if offset > self.log_start_offset:
            self.log_start_offset = offset
            if self.epochs.truncate_from_start(offset):
                self._write_epochs_later()
            self.producers.on_log_start(offset)
            self._show(self.high_watermark)

    def delete_old_segments(self) -> list[retention.ExpiredSegment]:
        """Apply ``cleanup.policy=delete`` and the log's start offset; what went, and why
        (``UnifiedLog.deleteOldSegments``)."""
        with self.lock, self._guard():
            expired = retention.expired_segments(
                self._segments.facts(self.log_end_offset),
                config=self.config,
                log_start_offset=self.log_start_offset,
                high_watermark=self.high_watermark,
                now_ms=self.clock.now_ms(),
            )
            if not expired:
                return []
            bases = {segment.base_offset for segment in expired}
            if self.active.base_offset in bases:  # the last one goes too: what is appended next needs a place
                self.roll()
            kept = next(segment for segment in self.segments if segment.base_offset not in bases)
            self._move_start(kept.base_offset)
            self._segments.remove(bases)
            return expired

    def replace_segments(self, new: Sequence[Segment], old: Sequence[Segment]) -> None:
        """`Segments.replace`. Called with the lock held."""
        self._segments.replace(new, old)

    # Opening and closing

    def close(self) -> None:
        """Snapshot, trim, flush and close. After a failure only the files are closed."""
        with self.lock:
            if self.closed:
                return
            if self._health.failure is None:
                self.take_snapshot()
                with self._guard():
                    self.active.become_inactive()
                self.flush()
                with suppress(LogDirFullError):
                    for segment, end_offset in list(self._rolled.items()):  # the background thread has not come to them
                        if segment in self.segments:
                            self._flush_files(segment, end_offset)
                with suppress(LogDirFullError), self._guard():  # the next start makes good for it
                    self._segments.note_sealed(self.recovery_point)
                    if self.manifest.entries:
                        self.manifest.close(self.active.sealed())
            with self._flushing:
                self.closed = True
                self._segments.close(write=self._health.failure is None)
            self._wake()

    def close_files(self) -> None:
        """Close the files that are still open, without a last write."""
        with self._flushing:
            if not self.closed:
                self.closed = True
                self._segments.close(write=False)

    def start_of_batch(self, offset: int) -> int:
        """Where the log ends once ``offset`` is cut off: batches go whole."""
        return self._segments.start_of_batch(offset)

    def moved_to(self, path: str) -> None:
        """The partition's directory was renamed, as the deletion of a topic does."""
        with self.lock:
            self.path = path
            self.deleted = True
            self._wake()
            self._segments.moved_to(path)
            self.epoch_file.moved_to(path)

    @property
    def has_failed(self) -> bool:
        """Whether its disk failed: bytes that were not flushed then may be lost."""
        return self._health.failure is not None

    @property
    def is_full(self) -> bool:
        """Whether its disk is full."""
        return self._health.full is not None

    @contextmanager
    def _guard(self) -> Iterator[None]:
        self._check_open()
        with self._health.guard():
            try:
                yield
            except FileNotFoundError:
                with self.lock:  # files are opened by name: the caller that renames the directory holds it
                    self._check_open()
                raise

    def _check_open(self) -> None:
        if self.closed or self.deleted:
            raise LogClosedError(f"{self.path} is {'deleted' if self.deleted else 'closed'}")
        if self._health.failure is not None:
            self._health.check()


def _invalid_read(offset: object, max_bytes: object, up_to: object) -> SeglogError:
    if type(offset) is not int:
        return InvalidReadError(f"offset {offset!r} is not a number")
    if type(max_bytes) is not int:
        return InvalidReadError(f"max_bytes {max_bytes!r} is not a number")
    return InvalidReadError(f"up_to {up_to!r} is none of {', '.join(str(one) for one in UpTo)}")


def _check_records(records: Iterable[object]) -> None:
    for record in records:
        if not isinstance(record, NewRecord):
            raise InvalidRecordError(f"{record!r:.80} is not a NewRecord")
