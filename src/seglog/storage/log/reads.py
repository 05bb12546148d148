"""Reading a log without a lock: by offset, by time, with what a read_committed consumer must skip."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from typing import Final, NamedTuple, Protocol, TypeVar

from seglog.core.errors import CorruptBatchError, CorruptError, LogClosedError, OffsetOutOfRangeError
from seglog.core.fs import File
from seglog.core.types import NO_EPOCH, NO_TIMESTAMP, Buffer, TopicPartition
from seglog.records import any_magic
from seglog.records.batch import BatchHeader, Entry, entries
from seglog.records.record import Record
from seglog.storage.formats.batch_walk import walk
from seglog.storage.log.epochs import LeaderEpochs
from seglog.storage.log.segment import Segment
from seglog.storage.log.segments import segment_at
from seglog.storage.log.transaction_index import AbortedTxn

LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
Found = TypeVar("Found")
_TRIES: Final = 5
"""How often a read may meet a segment that is being removed: it begins again with the segments that are left."""


class UpTo(Enum):
    """Where a read ends: the high watermark, the last stable offset (read_committed), or the log's end (followers)."""

    HIGH_WATERMARK = "high_watermark"
    LAST_STABLE = "last_stable"
    LOG_END = "log_end"


class FoundOffset(NamedTuple):
    """The answer to a look-up by time; timestamp and epoch are -1 where they are not of a record."""

    timestamp: int
    offset: int
    leader_epoch: int


class LogSlice(NamedTuple):
    """A slice of one segment's file: nothing is read before `read` is called, so that a server may send it in pieces.

    It begins with the batch that holds ``offset`` and may end inside of one. ``next_offset`` is where to go on when it
    is empty: after a gap that compaction left, or ``offset`` itself at the end. ``is_cut``: it is empty, for not even
    its first batch was let in.

    A file that is removed meanwhile stays open for as long as a slice refers to it: do not keep slices.
    """

    offset: int
    file: File | None
    position: int
    size: int
    next_offset: int
    log_start_offset: int
    high_watermark: int
    last_stable_offset: int
    aborted: tuple[AbortedTxn, ...]
    is_cut: bool = False

    def read(self) -> bytes:
        return self.file.pread(self.size, self.position) if self.file is not None and self.size else b""

    def batches(self) -> Iterator[tuple[BatchHeader, memoryview]]:
        """The whole batches of the slice: header, bytes."""
        data = memoryview(self.read())
        for entry in entries(data):
            yield any_magic.describe(data, entry), data[entry.position : entry.position + entry.size]

    def records(self, *, check_crcs: bool = True) -> Iterator[Record]:
        """The records from ``offset`` on: no control records, and none of transactions that `aborted` lists.

        These are of one slice of one segment: for all of a log, `Log.records`. `CorruptError` names file and position;
        ``check_crcs`` is Kafka's ``check.crcs``.
        """
        for _, records in self.decoded(check_crcs=check_crcs):
            for record in records:
                if record.offset >= self.offset:
                    yield record

    def decoded(self, *, check_crcs: bool = True) -> Iterator[tuple[BatchHeader, list[Record]]]:
        """The whole batches of the slice, and the records in each: none of control batches and aborted transactions."""
        data = memoryview(self.read())
        aborted = AbortedFilter(self.aborted)
        entry: Entry | None = None
        try:
            for entry in entries(data):
                if check_crcs:
                    any_magic.check(data, entry)
                header = any_magic.describe(data, entry)
                is_skipped = aborted.skips(header) or header.is_control
                yield header, [] if is_skipped else any_magic.decode(data, entry)
        except CorruptError as error:
            file = self.file.path if self.file is not None else None
            raise error.at(file=file, base=self.position, offset=entry.offset if entry else self.offset) from error


class FilePlace(NamedTuple):
    """A position in a file, in bytes."""

    file: str
    position: int


class AbortedFilter:
    """Which batches belong to aborted transactions; must be shown the batches in order (``CompletedFetch.java``)."""

    __slots__ = ("_active", "_pending")

    def __init__(self, aborted: Sequence[AbortedTxn]) -> None:
        self._pending = sorted(aborted, key=lambda txn: txn.first_offset, reverse=True)
        self._active: dict[int, int] = {}

    def skips(self, header: BatchHeader) -> bool:
        """Whether the batch is of an aborted transaction. Its marker is not: it is a control batch."""
        if header.producer_id < 0:
            return False
        while self._pending and self._pending[-1].first_offset <= header.last_offset:
            txn = self._pending.pop()
            self._active[txn.producer_id] = txn.last_offset
        end = self._active.get(header.producer_id)
        if end is None:
            return False
        if header.base_offset >= end:
            del self._active[header.producer_id]
            return False
        return header.is_transactional


class ReadableLog(Protocol):
    """The part of a `seglog.storage.log.log.Log` that reading needs."""

    @property
    def topic_partition(self) -> TopicPartition: ...
    @property
    def segments(self) -> Sequence[Segment]: ...
    @property
    def epochs(self) -> LeaderEpochs: ...
    @property
    def log_start_offset(self) -> int: ...
    @property
    def log_end_offset(self) -> int: ...
    @property
    def high_watermark(self) -> int: ...
    @property
    def last_stable_offset(self) -> int: ...


def fetch(log: ReadableLog, offset: int, max_bytes: int, up_to: UpTo, *, min_one: bool) -> LogSlice:
    """See `Log.read`."""
    try:
        return _fetch(log, offset, max_bytes, up_to, min_one=min_one)
    except LogClosedError:
        return _until_there(lambda: _fetch(log, offset, max_bytes, up_to, min_one=min_one))


def _until_there(read: Callable[[], Found]) -> Found:
    for _ in range(_TRIES - 1):
        try:
            return read()
        except LogClosedError:
            continue
    return read()


def _fetch(log: ReadableLog, offset: int, max_bytes: int, up_to: UpTo, *, min_one: bool) -> LogSlice:
    segments = log.segments
    log_start, log_end, high_watermark = log.log_start_offset, log.log_end_offset, log.high_watermark
    stable = min(log.last_stable_offset, high_watermark)
    limit = {UpTo.HIGH_WATERMARK: high_watermark, UpTo.LAST_STABLE: stable, UpTo.LOG_END: log_end}[up_to]
    if not log_start <= offset <= log_end:
        raise OffsetOutOfRangeError(
            f"offset {offset} of {log.topic_partition} is outside of the log, which goes from {log_start} to {log_end}"
        )
    nothing = LogSlice(offset, None, 0, 0, offset, log_start, high_watermark, stable, ())
    if offset >= limit:
        return nothing
    at = max(segment_at(segments, offset), 0)
    while at < len(segments):
        segment = segments[at]
        file = segment.log  # before it can be removed
        found = segment.locate(offset)
        if found is None:  # after the last batch here: compaction may have left a gap up to the next segment
            at += 1
            continue
        end = _end_position(segments, at, limit, log_end)
        size = min(max(max_bytes, found.size if min_one else 0), end - found.position)
        if size < found.size and not min_one:
            return nothing._replace(is_cut=size > 0)  # of no use to anybody (``ReplicaManager.readFromLog``)
        aborted: tuple[AbortedTxn, ...] = ()
        if up_to is UpTo.LAST_STABLE:
            aborted = tuple(_aborted(segments, at, offset, _upper_bound(segments, at, found.position + size, limit)))
        return LogSlice(offset, file, found.position, size, offset, log_start, high_watermark, stable, aborted)
    return nothing._replace(next_offset=limit)


def checked_batches(log: ReadableLog, start: int, end: int) -> Iterator[tuple[BatchHeader, Entry, Buffer, FilePlace]]:
    """All batches with offsets from ``start`` to before ``end``: for a reader whose result must be right or refused.

    No index is used, each CRC is checked, and each segment must lead from one batch to the next up to its end, so that
    a damaged length hides nothing. Otherwise raises `CorruptError`, with file, position and offset. The bytes are valid
    until the next item.
    """
    offset, tries = start, 0
    while offset < end:
        segments = log.segments
        at = max(segment_at(segments, offset), 0)
        try:
            for batch in _checked_segment(segments, at, offset):
                header, (file, position) = batch[0], batch[3]
                if header.base_offset >= end:  # appended since, unless its offset is damaged
                    if offset < end and segments[at].base_offset < end:
                        reason = f"offset {header.base_offset} follows, in a log that ended at {end}"
                        raise CorruptBatchError(reason, position=position, file=file, offset=offset)
                    return
                yield batch
                offset, tries = header.last_offset + 1, 0
        except LogClosedError:  # compaction has replaced it
            tries += 1
            if tries == _TRIES:
                raise
            continue
        if at + 1 < len(segments):
            offset = max(offset, segments[at + 1].base_offset)
        elif offset < end and segments is log.segments:
            last = segments[at]
            reason = f"the log ends here, and not at offset {end}"
            raise CorruptBatchError(reason, position=last.size, file=last.paths.log, offset=offset)


def _checked_segment(
    segments: Sequence[Segment], at: int, start: int
) -> Iterator[tuple[BatchHeader, Entry, Buffer, FilePlace]]:
    segment = segments[at]
    path, size = segment.paths.log, segment.size
    following, limit = segment.base_offset, segments[at + 1].base_offset if at + 1 < len(segments) else None
    behind = 0
    for found, position, chunk in walk(segment.log, 0, size):
        entry = Entry(0, found.size, found.offset, found.magic)
        data = chunk[found.position : found.position + found.size]
        try:
            header = any_magic.describe(data, entry, deep=False)
            if header.last_offset < following or (limit is not None and header.last_offset >= limit):
                reason = f"offsets {header.base_offset} to {header.last_offset} are not in order here"
                raise CorruptBatchError(reason, position=0)
            if header.last_offset >= start:
                any_magic.check(data, entry)
                yield header, entry, data, FilePlace(path, position)
        except CorruptError as error:
            raise error.at(file=path, base=position, offset=following) from error
        following, behind = header.last_offset + 1, position + found.size
    if behind < size:
        reason = f"no whole batch begins here, and the segment has {size} bytes"
        raise CorruptBatchError(reason, position=behind, file=path, offset=following)


def _end_position(segments: Sequence[Segment], at: int, limit: int, log_end: int) -> int:
    """Where to stop reading in segment ``at`` so that no batch at or above offset ``limit`` is returned."""
    segment = segments[at]
    if limit >= log_end or (at + 1 < len(segments) and segments[at + 1].base_offset <= limit):
        return segment.size
    found = segment.locate(limit)
    return segment.size if found is None else found.position


def _upper_bound(segments: Sequence[Segment], at: int, end_position: int, limit: int) -> int:
    """An offset that the slice up to ``end_position`` of segment ``at`` does not reach, as near as the index tells."""
    segment = segments[at]
    if end_position >= segment.size:
        return min(limit, segments[at + 1].base_offset) if at + 1 < len(segments) else limit
    last = segment.offset_index.last_offset_at(end_position)
    if last is not None:
        return min(limit, last + 1)
    return min(limit, segments[at + 1].base_offset) if at + 1 < len(segments) else limit


def _aborted(segments: Sequence[Segment], at: int, start: int, end: int) -> list[AbortedTxn]:
    """Aborted transactions that touch offsets ``start`` to ``end``; their markers may lie in later segments."""
    found: list[AbortedTxn] = []
    for segment in segments[at:]:
        here, complete = segment.txn_index.collect(start, end)
        found += here
        if complete:
            break
    return sorted(found, key=lambda txn: txn.first_offset)


def offset_for_timestamp(log: ReadableLog, timestamp: int, *, check_crcs: bool = True) -> FoundOffset | None:
    """See `Log.offset_for_timestamp`; rules of ``UnifiedLog.fetchOffsetByTimestamp``."""
    return _until_there(lambda: _offset_for_timestamp(log, timestamp, check_crcs=check_crcs))


def _offset_for_timestamp(log: ReadableLog, timestamp: int, *, check_crcs: bool) -> FoundOffset | None:
    segments = log.segments
    if timestamp == EARLIEST:
        return FoundOffset(NO_TIMESTAMP, log.log_start_offset, log.epochs.epoch_for_offset(log.log_start_offset))
    if timestamp == LATEST:
        return FoundOffset(NO_TIMESTAMP, log.high_watermark, log.epochs.latest)
    if timestamp == MAX_TIMESTAMP:
        newest = max(segments, key=lambda segment: (segment.max_timestamp, -segment.base_offset))
        if newest.max_timestamp < 0:
            return None
        return _first_in([newest], newest.max_timestamp, log.log_start_offset, check_crcs)
    return _first_in(segments, timestamp, log.log_start_offset, check_crcs)


def _first_in(segments: Sequence[Segment], timestamp: int, from_offset: int, check_crcs: bool) -> FoundOffset | None:
    for segment in segments:
        if segment.max_timestamp >= timestamp:
            found = segment.find_timestamp(timestamp, from_offset, check_crcs=check_crcs)
            if found is not None:
                (at, offset), epoch = found
                return FoundOffset(at, offset, epoch if epoch >= 0 else NO_EPOCH)
    return None
