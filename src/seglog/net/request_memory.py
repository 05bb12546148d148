"""The memory of large requests while they arrive (``queued.max.request.bytes``).

A connection reserves memory in steps, as the bytes of its request come; the announced size reserves nothing. If the
budget is used up, connections wait in the order in which their requests began:

- Buffers without a request are freed first.
- The oldest request may exceed the budget, one request at a time, so that partial requests never block each other.
- A request that receives no byte for `SILENT_SECONDS` while others wait is ended.

So at most one request exceeds the budget.
"""

from __future__ import annotations

import asyncio
from itertools import count
from typing import Final, NamedTuple, Protocol

SILENT_SECONDS: Final = 0.5
_TICKS: Final = 5
_TICK_SECONDS: Final = SILENT_SECONDS / _TICKS


class MemoryHolder(Protocol):
    """A connection that reserves memory."""

    @property
    def received(self) -> int:
        """Bytes received so far, in all requests."""

    @property
    def awaits_bytes(self) -> bool:
        """Whether a request is incomplete and has room for its next bytes."""

    def has_room(self, size: int, /) -> None:
        """The ``size`` bytes that it waited for are reserved now."""

    def shrink(self) -> None:
        """Release everything if the buffer holds no request."""

    def end_silent(self) -> None:
        """Release everything and close: others need the memory."""


class _Progress(NamedTuple):
    """The bytes received by the last tick, and the ticks since the last new byte."""

    received: int
    ticks: int


class RequestMemory:
    """Invariant: ``left`` plus all reservations is the budget. It is negative only while one holder exceeds it."""

    def __init__(self, budget: int) -> None:
        self.left = budget
        self._held: dict[MemoryHolder, int] = {}
        self._waiting: dict[MemoryHolder, int] = {}
        self._ages: dict[MemoryHolder, int] = {}
        self._numbers = count()
        self._beyond: MemoryHolder | None = None
        """The holder that may exceed the budget, until it releases its memory or the budget suffices again."""
        self._heard: dict[MemoryHolder, _Progress] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._is_serving = False

    @property
    def is_short(self) -> bool:
        return bool(self._waiting)

    def reserve(self, holder: MemoryHolder, size: int) -> bool:
        """Reserve ``size`` more bytes. Without room, the holder waits for `MemoryHolder.has_room`."""
        if size <= self.left and not self._waiting:
            self._take(holder, size)
            return True
        self._ages.setdefault(holder, next(self._numbers))
        if self._is_granted(holder, size):
            self._take(holder, size)
            return True
        self._waiting[holder] = size
        if self._timer is None:
            self._begin_tick()
        return False

    def release(self, holder: MemoryHolder) -> None:
        """Release everything that the holder has; it no longer waits."""
        self._ages.pop(holder, None)
        self._heard.pop(holder, None)
        waited = self._waiting.pop(holder, None) is not None
        held = self._held.pop(holder, 0)
        self.left += held
        if holder is self._beyond or self.left >= 0:
            self._beyond = None
        if (held or waited) and not self._is_serving:
            self._serve()

    def _take(self, holder: MemoryHolder, size: int) -> None:
        self._ages.setdefault(holder, next(self._numbers))
        self._held[holder] = self._held.get(holder, 0) + size
        self.left -= size

    def _is_granted(self, holder: MemoryHolder, size: int) -> bool:
        """Whether it may have ``size`` bytes although others wait or the budget is used up."""
        if holder is self._beyond:
            return True
        if any(self._ages[other] < self._ages[holder] for other in self._waiting):
            return False
        self._free(size, shrink_only=True)
        if size <= self.left or self._exceeds(holder):
            return True
        self._free(size, shrink_only=False)
        return size <= self.left or self._exceeds(holder)

    def _exceeds(self, holder: MemoryHolder) -> bool:
        """Whether it may exceed the budget: yes if no other holder does."""
        if self._beyond is None:
            self._beyond = holder
        return self._beyond is holder

    def _free(self, size: int, *, shrink_only: bool) -> None:
        """Make room for ``size`` bytes: shrink idle buffers, or end silent requests."""
        was_serving, self._is_serving = self._is_serving, True
        if shrink_only:
            for holder in list(self._held):
                if size <= self.left:
                    break
                holder.shrink()
        else:
            silent = [holder for holder in self._held if self._is_silent(holder)]
            silent.sort(key=self._ages.__getitem__)
            for holder in silent:
                if size <= self.left:
                    break
                holder.end_silent()
        self._is_serving = was_serving

    def _is_silent(self, holder: MemoryHolder) -> bool:
        heard = self._heard.get(holder)
        return (
            heard is not None
            and heard.ticks >= _TICKS
            and heard.received == holder.received
            and holder.awaits_bytes
            and holder not in self._waiting
        )

    def _serve(self) -> None:
        self._is_serving = True
        try:
            while self._waiting:
                oldest = min(self._waiting, key=self._ages.__getitem__)
                size = self._waiting[oldest]
                if not self._is_granted(oldest, size):
                    break
                del self._waiting[oldest]
                self._take(oldest, size)
                oldest.has_room(size)
        finally:
            self._is_serving = False
        if not self._waiting and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _begin_tick(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(_TICK_SECONDS, self._tick)

    def _tick(self) -> None:
        """Note which requests received nothing. Counts ticks, not seconds: while the process is stopped it receives
        nothing."""
        self._timer = None
        nothing = _Progress(-1, 0)
        for holder in self._held:
            before, received = self._heard.get(holder, nothing), holder.received
            ticks = before.ticks + 1 if before.received == received and holder.awaits_bytes else 0
            self._heard[holder] = _Progress(received, ticks)
        self._serve()
        if self._waiting and self._timer is None:
            self._begin_tick()
