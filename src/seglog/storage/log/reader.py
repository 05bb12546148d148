"""All records of a log one after the other: across segments, without those of aborted transactions, with CRCs checked.

A `RecordReader` does what a loop over `Log.read` must do: it continues after control batches, after transactions that
were aborted and after gaps that compaction left, from the end of one segment into the next.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final, Protocol, Self

from seglog.core.errors import InvalidReadError, LogClosedError, OffsetOutOfRangeError
from seglog.core.types import TopicPartition
from seglog.records.record import Record
from seglog.storage.log.reads import FoundOffset, LogSlice, UpTo

_SLICE_BYTES: Final = 1 << 20
_EPOCH: Final = datetime.fromtimestamp(0, UTC)


class Isolation(StrEnum):
    """Kafka's ``isolation.level``: all records up to the high watermark, or those of committed transactions only."""

    READ_UNCOMMITTED = "read_uncommitted"
    READ_COMMITTED = "read_committed"


class RecordSource(Protocol):
    """The part of a `Log` that a reader needs."""

    topic_partition: TopicPartition
    log_start_offset: int
    high_watermark: int

    @property
    def last_stable_offset(self) -> int: ...
    @property
    def is_open(self) -> bool: ...
    def read(self, offset: int, max_bytes: int = ..., *, up_to: UpTo = ..., min_one: bool = ...) -> LogSlice: ...
    def offset_for_timestamp(self, timestamp: int, *, check_crcs: bool = ...) -> FoundOffset | None: ...
    def watch(self, wake: Callable[[], object]) -> Callable[[], None]: ...


class RecordReader:
    """An iterator, and an asynchronous one, over the records of a log; made by `Log.records`.

    ``next_offset`` is where it goes on: after the last record that it gave, and after all that it passed over. With
    ``follow`` it waits for records and ends when the log is closed. One thread or task uses it at a time.
    """

    def __init__(
        self,
        log: RecordSource,
        *,
        start: int | datetime | None,
        end: int | datetime | None,
        isolation: Isolation | str,
        follow: bool,
        check_crcs: bool,
    ) -> None:
        self._log = log
        try:
            self._isolation = Isolation(isolation)
        except ValueError:
            raise InvalidReadError(
                f"isolation {isolation!r} is neither 'read_uncommitted' nor 'read_committed'"
            ) from None
        self._follow = follow
        self._check_crcs = check_crcs
        self._until_ms: int | None = None
        self.next_offset = self._start(start)
        self._end = self._resolve_end(end)
        self._records: Iterator[Record] = iter(())

    def _start(self, start: int | datetime | None) -> int:
        if start is None:
            return self._log.log_start_offset
        if isinstance(start, datetime):
            found = self._log.offset_for_timestamp(_milliseconds(start, "start"), check_crcs=self._check_crcs)
            return self._limit() if found is None else found.offset
        offset = _offset(start, "start")
        if not self._log.log_start_offset <= offset <= self._log.high_watermark:
            raise OffsetOutOfRangeError(
                f"start {offset} is outside of {self._log.topic_partition}, which has offsets "
                f"{self._log.log_start_offset} to {self._log.high_watermark}"
            )
        return offset

    def _resolve_end(self, end: int | datetime | None) -> int | None:
        """The offset to stop before; None: there is none, the reader follows."""
        if end is None:
            return None if self._follow else self._limit()
        if isinstance(end, datetime):
            until_ms = _milliseconds(end, "end")
            found = self._log.offset_for_timestamp(until_ms, check_crcs=self._check_crcs)
            if found is not None and found.offset >= 0:
                return found.offset
            self._until_ms = until_ms
            return None if self._follow else self._limit()
        offset = _offset(end, "end")
        if offset > self._log.high_watermark and not self._follow:
            raise OffsetOutOfRangeError(
                f"end {offset} is after the end of {self._log.topic_partition}, {self._log.high_watermark}; "
                "follow=True waits for it"
            )
        return offset

    def _limit(self) -> int:
        if self._isolation is Isolation.READ_COMMITTED:
            return self._log.last_stable_offset
        return self._log.high_watermark

    # Reading

    def _next(self) -> Record | None:
        """The next record that is there; None: all was read."""
        while True:
            for record in self._records:
                return record
            if self._end is not None and self.next_offset >= self._end:
                return None
            before = self.next_offset
            up_to = UpTo.LAST_STABLE if self._isolation is Isolation.READ_COMMITTED else UpTo.HIGH_WATERMARK
            fetched = self._log.read(before, _SLICE_BYTES, up_to=up_to)
            if fetched.size:
                self._records = self._decode(fetched)
                continue
            self.next_offset = max(before, fetched.next_offset)
            if self.next_offset == before:
                return None

    def _decode(self, fetched: LogSlice) -> Iterator[Record]:
        end = self._end
        for header, records in fetched.decoded(check_crcs=self._check_crcs):
            for record in records:
                if record.offset < self.next_offset:
                    continue
                if end is not None and record.offset >= end:
                    self.next_offset = end
                    return
                if self._until_ms is not None and record.timestamp >= self._until_ms:
                    self._end = self.next_offset
                    return
                self.next_offset = record.offset + 1
                yield record
            following = header.next_offset
            self.next_offset = max(self.next_offset, following if end is None else min(following, end))

    @property
    def _is_over(self) -> bool:
        return not self._follow or (self._end is not None and self.next_offset >= self._end)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Record:
        record = self._next()
        if record is None and not self._is_over:
            record = self._wait()
        if record is None:
            raise StopIteration
        return record

    def _wait(self) -> Record | None:
        changed = threading.Event()
        unwatch = self._log.watch(changed.set)
        try:
            while self._log.is_open:
                changed.clear()
                record = self._next()
                if record is not None or self._is_over:
                    return record
                changed.wait()
        except LogClosedError:
            pass
        finally:
            unwatch()
        return None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Record:
        record = self._next()
        if record is None and not self._is_over:
            record = await self._wait_async()
        if record is None:
            raise StopAsyncIteration
        return record

    async def _wait_async(self) -> Record | None:
        changed, loop = asyncio.Event(), asyncio.get_running_loop()
        unwatch = self._log.watch(lambda: _call(loop, changed.set))
        try:
            while self._log.is_open:
                changed.clear()
                record = self._next()
                if record is not None or self._is_over:
                    return record
                await changed.wait()
        except LogClosedError:
            pass
        finally:
            unwatch()
        return None

    def __repr__(self) -> str:
        end = "follows" if self._end is None else f"up to {self._end}"
        return f"<RecordReader of {self._log.topic_partition}: next offset {self.next_offset}, {end}>"


def _call(loop: asyncio.AbstractEventLoop, act: Callable[[], object]) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(act)


def _offset(value: object, name: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidReadError(f"{name} {value!r} is neither an offset (int) nor a time (datetime)")
    if value < 0:
        raise OffsetOutOfRangeError(f"{name} {value} is negative: offsets count from 0")
    return value


def _milliseconds(time: datetime, name: str) -> int:
    if time.tzinfo is None:
        raise InvalidReadError(f"{name} {time.isoformat()} has no time zone: say datetime(…, tzinfo=UTC)")
    return max((time - _EPOCH) // timedelta(milliseconds=1), 0)
