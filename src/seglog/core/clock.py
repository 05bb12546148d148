"""The only place that reads time."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """The source of time. Tests use `tests.kit.manual_clock.ManualClock`."""

    def now_ms(self) -> int:
        """Wall clock: milliseconds since 1970 in UTC."""

    def monotonic(self) -> float:
        """Seconds that never go back, from an arbitrary start."""


class SleepingClock(Clock, Protocol):
    """The clock of a thread that waits by itself."""

    def sleep(self, seconds: float) -> None:
        """Return after that many seconds."""


class SystemClock:
    """The clock of this machine."""

    __slots__ = ()

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Block this thread, as a client does between two tries."""
        time.sleep(seconds)
