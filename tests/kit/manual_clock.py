"""A clock that only a test moves."""

from __future__ import annotations


class ManualClock:
    """`seglog.core.clock.Clock` that stands still until `advance`.

    >>> clock = ManualClock(1_000)
    >>> clock.advance(250)
    >>> clock.now_ms(), clock.monotonic()
    (1250, 0.25)
    """

    __slots__ = ("_elapsed_ms", "_now_ms")

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms
        self._elapsed_ms = 0

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic(self) -> float:
        return self._elapsed_ms / 1000

    def advance(self, milliseconds: int) -> None:
        """Time goes by, on both hands."""
        if milliseconds < 0:
            raise ValueError(f"time does not go back: {milliseconds}; set_wall can")
        self._now_ms += milliseconds
        self._elapsed_ms += milliseconds

    def set_wall(self, now_ms: int) -> None:
        """Set the wall clock alone, also back, as an operator or NTP may."""
        self._now_ms = now_ms
