"""Reads the parts of a scan in threads, and hands their batches over in the order of the parts.

The first part that is not finished is the *head*: its batches go to the caller at once. Threads read the parts after
it ahead, up to a number of bytes for all of them; then they wait. A batch that is large by itself is read by the head's
thread alone. So memory grows neither with the log nor with the threads, the head always moves, and the order never
depends on which thread is faster.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from threading import Condition, Thread
from types import TracebackType
from typing import Final, Generic, Self, TypeVar

import pyarrow as pa

from seglog.core.large_reads import set_gate

P = TypeVar("P")
ReadPart = Callable[[P], Iterator[pa.RecordBatch]]
"""Reads one part, in the thread that made it."""

AHEAD_BYTES: Final = 16 << 20
"""Bytes of batches that wait for the caller, in all parts together."""


def read_in_order(
    parts: Sequence[P],
    open_reader: Callable[[], AbstractContextManager[ReadPart[P]]],
    *,
    threads: int,
    on_finished: Callable[[P], object],
) -> Iterator[pa.RecordBatch]:
    """The batches of all ``parts``, in their order. Each thread opens a reader of its own. ``on_finished`` is called
    in the caller's thread after the last batch of a part.

    An error reaches the caller after the batches that precede it. A caller that stops early waits for no thread: a
    thread ends when it has its next batch.
    """
    if threads == 1 or len(parts) <= 1:
        with open_reader() as read:
            for part in parts:
                yield from read(part)
                on_finished(part)
        return
    reading = _OrderedReading(parts, open_reader, min(threads, len(parts)))
    try:
        yield from reading.batches(on_finished)
    finally:
        reading.stop()


class _Lane:
    """The batches of a part that the caller has not taken yet."""

    __slots__ = ("batches", "error", "is_done")

    def __init__(self) -> None:
        self.batches: deque[pa.RecordBatch] = deque()
        self.is_done = False
        self.error: BaseException | None = None


class _OrderedReading(Generic[P]):
    """One reading. Everything that changes is guarded by ``_changed``.

    Invariant: parts are begun in their order, so all parts before the head are finished, and the head has a thread.
    """

    def __init__(
        self, parts: Sequence[P], open_reader: Callable[[], AbstractContextManager[ReadPart[P]]], threads: int
    ) -> None:
        self._parts = parts
        self._open_reader = open_reader
        self._changed = Condition()
        self._lanes = [_Lane() for _ in parts]
        self._next = 0
        self._head = 0
        self._held = 0
        """Bytes of all lanes."""
        self._error: BaseException | None = None
        """Of a thread that was not reading a part: its reader could not be opened or closed."""
        self._is_stopped = False
        # Daemons: an interpreter that exits does not wait for a broker that is silent.
        self._threads = [
            Thread(target=self._work, name=f"seglog-scan-{number}", daemon=True) for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def batches(self, on_finished: Callable[[P], object]) -> Iterator[pa.RecordBatch]:
        for part, lane in zip(self._parts, self._lanes, strict=True):
            while (batch := self._take(lane)) is not None:
                yield batch
            on_finished(part)
        for thread in self._threads:
            thread.join()
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()

    def _take(self, lane: _Lane) -> pa.RecordBatch | None:
        """The next batch of the head; None after its last one."""
        with self._changed:
            while not lane.batches and not lane.is_done and self._error is None:
                self._changed.wait()
            if lane.batches:
                batch = lane.batches.popleft()
                self._held -= batch.nbytes
                self._changed.notify_all()
                return batch
            error = lane.error if lane.is_done else self._error
            if error is not None:
                raise error
            self._head += 1
            self._changed.notify_all()
            return None

    def _work(self) -> None:
        with _Failures(self._fail) as failures, self._open_reader() as read:
            while (number := self._begin()) is not None:
                failures.lane = lane = self._lanes[number]
                set_gate(partial(self._await_head, number))
                batches = read(self._parts[number])
                while (batch := next(batches, None)) is not None:
                    if not self._put(lane, batch, number):
                        return
                    del batch  # a thread that waits for its turn holds nothing
                del batches
                self._finish(lane)

    def _begin(self) -> int | None:
        """The next part for a thread."""
        with self._changed:
            if self._is_stopped or self._next == len(self._parts):
                return None
            self._next += 1
            return self._next - 1

    def _await_head(self, number: int) -> None:
        """Wait until a part is the head and its batches have been taken."""
        with self._changed:
            while not self._is_stopped and (number != self._head or self._lanes[number].batches):
                self._changed.wait()

    def _put(self, lane: _Lane, batch: pa.RecordBatch, number: int) -> bool:
        """Add a batch of a part, as soon as there is room; False if nothing is wanted any more."""
        size = batch.nbytes
        with self._changed:
            # A batch that alone is larger than all the room goes through when its part is the head.
            while not self._is_stopped and self._held + size > AHEAD_BYTES and (lane.batches or number != self._head):
                self._changed.wait()
            if self._is_stopped:
                return False
            lane.batches.append(batch)
            self._held += size
            self._changed.notify_all()
            return True

    def _finish(self, lane: _Lane) -> None:
        with self._changed:
            lane.is_done = True
            self._changed.notify_all()

    def _fail(self, lane: _Lane | None, error: BaseException) -> None:
        """``lane`` is that of the thread's last part; None: its reader could not be opened."""
        with self._changed:
            if lane is None or lane.is_done:
                self._error = self._error or error
            else:
                lane.is_done, lane.error = True, error
            self._changed.notify_all()


class _Failures:
    """Catches the error of a thread, which the caller's thread will raise."""

    def __init__(self, fail: Callable[[_Lane | None, BaseException], None]) -> None:
        self._fail = fail
        self.lane: _Lane | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if error is not None:
            self._fail(self.lane, error)
        return True
