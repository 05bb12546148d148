"""Recovery of one segment: check every batch, make the indexes again, follow producers and epochs.

The rules of Kafka's ``LogSegment.recover``, but for one: where batches and known epochs contradict each other, here the
batches are right. Nothing is cut: the caller learns where the good batches end.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from struct import Struct
from typing import Final, NamedTuple

from crc32c import crc32c

from seglog.core.clock import Clock
from seglog.core.errors import CorruptBatchError, CorruptError
from seglog.core.fs import Fs, NoSpaceError
from seglog.core.types import MAX_INT32, NO_EPOCH, Buffer
from seglog.records import any_magic
from seglog.records.batch import (
    BATCH_OVERHEAD,
    CONTROL_BIT,
    CRC_START,
    HEADER,
    LOG_OVERHEAD,
    MAGIC_POSITION,
    MIN_ENTRY,
    BatchHeader,
    Entry,
)
from seglog.records.record import parse_control
from seglog.storage.formats.paths import CLEANED, DELETED, SWAP
from seglog.storage.log.epochs import LeaderEpochs
from seglog.storage.log.manifest import CHAINED
from seglog.storage.log.producers import Producers
from seglog.storage.log.segment import Segment, SegmentConfig
from seglog.storage.log.transaction_index import AbortedTxn

CHUNK: Final = 1 << 20
_OFFSET_LENGTH: Final = Struct(">qi")


class SegmentScan(NamedTuple):
    """The result of recovering a segment: ``size`` bytes of good batches, after which comes ``next_offset``.

    ``bad`` is the fault of the bytes after them, if any. ``overflow``: the next batch is good, but its offset cannot
    be written relative to the segment's base (KAFKA-6264). ``epochs_changed``: the file must be written again.
    """

    size: int
    next_offset: int
    batches: int
    epochs_changed: bool
    bad: CorruptError | None
    overflow: bool


class _OverflowError(Exception):
    """The batch is good and its offset too far from the segment's base."""


def rescan(
    segment: Segment,
    producers: Producers,
    epochs: LeaderEpochs,
    *,
    index_interval: int,
    progress: Callable[[int], None] | None = None,
) -> SegmentScan:
    """Walk through ``segment``. ``producers`` is the state at its base and follows the batches; so does ``epochs``.

    Sets the segment's size to that of the good batches; the file keeps what is behind. ``progress`` gets how many
    bytes were checked, every few MiB. Raises an `AppendError` where good batches contradict the producers' state.
    """
    walk = _RecoveryWalk(segment, producers, epochs, index_interval)
    segment.reset_indexes()
    file, end = segment.log, segment.log.size()
    position, wanted = 0, CHUNK
    bad: CorruptError | None = None
    overflow = False
    while position < end and bad is None and not overflow:
        asked = min(wanted, end - position)
        chunk = file.pread(asked, position)
        try:
            used = walk.chunk(chunk, position)
            if not used:
                wanted = _size_at(chunk)
                if wanted > end - position or wanted <= len(chunk) or len(chunk) < asked:
                    raise CorruptBatchError(f"the last batch claims {wanted} bytes, but only {end - position} are left")
                continue
        except CorruptError as error:
            bad = error
        except _OverflowError:
            overflow = True
        position, wanted = walk.end, CHUNK
        if progress is not None:
            progress(position)
    segment.recovered(walk.end, walk.chain)
    segment.time_index.maybe_append(segment.max_timestamp, segment.max_timestamp_offset)
    for index in (segment.offset_index, segment.time_index):
        with suppress(NoSpaceError):  # what has no place stays in memory: a shorter index is a right one
            index.trim()
    segment.txn_index.write()
    if bad is not None:
        bad = type(bad)(bad.reason, position=walk.end, file=segment.paths.log, offset=walk.next_offset)
    return SegmentScan(walk.end, walk.next_offset, walk.batches, walk.epochs_changed, bad, overflow)


def _size_at(chunk: bytes) -> int:
    """The size of the entry at the start, by its header; more than is left if there is no entry."""
    return _OFFSET_LENGTH.unpack_from(chunk)[1] + LOG_OVERHEAD if len(chunk) >= MIN_ENTRY else MIN_ENTRY


class _RecoveryWalk:
    """Where the walk is: ``end`` and ``next_offset`` are behind the last good batch."""

    __slots__ = (
        "_epochs", "_interval", "_last_entry", "_producers", "_segment", "batches", "chain", "end", "epochs_changed",
        "next_offset",
    )  # fmt: skip

    def __init__(self, segment: Segment, producers: Producers, epochs: LeaderEpochs, index_interval: int) -> None:
        self._segment = segment
        self._producers = producers
        self._epochs = epochs
        self._interval = index_interval
        self._last_entry = 0
        self.end = 0
        self.next_offset = segment.base_offset
        self.batches = 0
        self.chain = 0
        self.epochs_changed = False

    def chunk(self, chunk: bytes, position: int) -> int:
        """Take in the whole batches at the start of ``chunk``, which is at ``position``; returns their size in bytes.

        Raises `CorruptError` or `_OverflowError` at a batch, after all before it were taken in. A segment may have
        millions of batches: with `entries` this loop takes 38 % longer.
        """
        unpack, crc, segment = HEADER.unpack_from, crc32c, self._segment
        data, limit = memoryview(chunk), segment.base_offset + MAX_INT32
        next_offset, last_entry, interval = self.next_offset, self._last_entry, self._interval
        max_timestamp, epochs, last_epoch, next_epoch_start = segment.max_timestamp, self._epochs, NO_EPOCH, next_offset
        at, left, batches, chain = 0, len(chunk), 0, self.chain
        try:
            while left >= MIN_ENTRY:
                if chunk[at + MAGIC_POSITION] == 2:
                    if left < BATCH_OVERHEAD:
                        break
                    fields = unpack(chunk, at)
                    base, length, epoch, _, stored, _, delta, _, timestamp, producer_id, _, _, count = fields
                    size = length + LOG_OVERHEAD
                    if size > left:
                        break
                    if (
                        size < BATCH_OVERHEAD
                        or delta < 0
                        or count < 0
                        or crc(data[at + CRC_START : at + size]) != stored
                    ):
                        raise _why(fields, data[at : at + size])
                else:
                    size = _OFFSET_LENGTH.unpack_from(chunk, at)[1] + LOG_OVERHEAD
                    if size > left:
                        break
                    fields = _legacy(data, at, size)
                    base, _, epoch, _, _, _, delta, _, timestamp, producer_id, _, _, _ = fields
                if base < next_offset:
                    raise CorruptBatchError(f"offset {base} comes after {next_offset - 1}")
                last = base + delta
                if last > limit:
                    raise _OverflowError
                if producer_id >= 0:
                    self._note_producer(fields, data[at : at + size], position + at)
                if timestamp > max_timestamp:
                    max_timestamp = timestamp
                    segment.recovered_timestamp(timestamp, last)
                if position + at - last_entry > interval:
                    last_entry = position + at
                    self._index(last, last_entry)
                if epoch != last_epoch or base >= next_epoch_start:
                    self.epochs_changed |= epochs.agree(epoch, base)
                    last_epoch, next_epoch_start = epoch, epochs.next_start(base)
                next_offset = last + 1
                chain = crc(data[at : at + CHAINED], chain)
                at += size
                left -= size
                batches += 1
        finally:
            self.next_offset, self._last_entry, self.end = next_offset, last_entry, position + at
            self.batches += batches
            self.chain = chain
            self._producers.reflect(max(self._producers.map_end_offset, next_offset))
        return at

    def _index(self, offset: int, position: int) -> None:
        segment = self._segment
        if not segment.offset_index.is_full:
            segment.offset_index.append(offset, position)
        if not segment.time_index.is_full:
            segment.time_index.maybe_append(segment.max_timestamp, segment.max_timestamp_offset)

    def _note_producer(self, fields: tuple[int, ...], batch: Buffer, position: int) -> None:
        header = BatchHeader._make(fields)
        control = None
        if header.attributes & CONTROL_BIT and header.records_count:
            records = self._segment.decode(batch, header, position)
            control = parse_control(records[0])
        completed = self._producers.replay(header, control)
        if completed is None:
            return
        if completed.is_aborted:
            stable = self._producers.last_stable_offset(completed)
            self._segment.txn_index.append(
                AbortedTxn(completed.producer_id, completed.first_offset, completed.last_offset, stable)
            )
        self._producers.complete(completed)


def _legacy(data: memoryview, at: int, size: int) -> tuple[int, ...]:
    """The fields of a batch header for an entry of format 0 or 1, checked. Its base offset may be its last one."""
    magic = data[at + MAGIC_POSITION]
    if size == LOG_OVERHEAD and not any(data[at : at + MIN_ENTRY]):
        raise CorruptBatchError("zeros where a batch should be")
    if size < MIN_ENTRY or magic > 1:
        raise CorruptBatchError(f"size {size} and magic {magic} cannot be")
    entry = Entry(at, size, _OFFSET_LENGTH.unpack_from(data, at)[0], magic)
    any_magic.check(data, entry)
    return any_magic.describe(data, entry, deep=False)


def _why(fields: tuple[int, ...], batch: memoryview) -> CorruptError:
    """The reason why a batch of format 2 is bad."""
    header = BatchHeader._make(fields)
    if header.length < BATCH_OVERHEAD - LOG_OVERHEAD:
        return CorruptBatchError(f"size {header.size} is under the {BATCH_OVERHEAD} bytes of a header")
    if header.last_offset_delta < 0 or header.records_count < 0:
        return CorruptBatchError(
            f"last offset delta {header.last_offset_delta} and {header.records_count} records cannot be"
        )
    return CorruptBatchError(f"stored CRC {header.crc} is not the computed {crc32c(batch[CRC_START:])}")


def split_overflowed(fs: Fs, clock: Clock, path: str, segment: Segment, config: SegmentConfig) -> list[int]:
    """Put segments whose offsets fit in the place of ``segment``, which is closed; returns their base offsets.

    Kafka before 1.1 could write a segment whose offsets are too far apart for its indexes (KAFKA-6264): an entry has 31
    bits for offset - base offset.

    A crash on the way leaves the old segment or the new ones (`seglog.storage.log.crash_cleanup`).
    """
    end = segment.log.size()
    mtime_ms = fs.stat(segment.paths.log).mtime_ms
    made: list[Segment] = []
    try:
        for header, position, data in segment.headers(0, end):
            if not made or not made[-1].holds(header.last_offset):
                made.append(
                    Segment(fs, path, header.base_offset, config, now_ms=clock.now_ms(), active=True, suffix=CLEANED)
                )
            if not made[-1].holds(header.last_offset):
                raise CorruptBatchError(
                    f"offsets {header.base_offset} to {header.last_offset} are too many for one batch",
                    position=position,
                    file=segment.paths.log,
                    offset=header.base_offset,
                )
            made[-1].append(data, [header])
        copied = sum(new.size for new in made)
        if copied != end:
            raise CorruptBatchError("the last batch is not all there", position=copied, file=segment.paths.log)
    except (CorruptError, OSError):
        for new in made:
            new.close(write=False)
            new.delete()
        raise
    for new in made:
        new.become_inactive()
        new.flush()
        fs.set_mtime(new.paths.log, mtime_ms)
    fs.fsync_dir(path)
    for new in reversed(made):
        new.rename(SWAP)
    fs.fsync_dir(path)
    segment.rename(DELETED)
    for new in made:
        new.rename("")
        new.close(write=False)
    fs.fsync_dir(path)
    segment.close(write=False)
    segment.delete()
    return [new.base_offset for new in made]
