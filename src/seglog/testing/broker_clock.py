"""The clock of a broker for tests."""

from __future__ import annotations

from collections.abc import Callable

from seglog.core.clock import SystemClock


class BrokerClock:
    """Runs as this machine's, and can be moved ahead. The clocks of clients cannot: they send heartbeats, retry and
    give up by real time."""

    def __init__(self, move: Callable[[float], None]) -> None:
        self.ahead = 0.0
        """Seconds ahead of this machine's clock."""
        self._move = move

    def advance(self, seconds: float) -> None:
        """Move time for the broker: timers run in their order, each at its own time. Returns when everything that
        became due is done: retention, sessions, rebalance and transaction timeouts, delayed answers.

        A broker that is stopped finds the new time when it starts. ValueError for time that goes back."""
        if seconds < 0:
            raise ValueError(f"time does not go back: {seconds}")
        self._move(seconds)
        self.ahead += seconds

    def now_ms(self) -> int:
        """The broker's wall clock: milliseconds since 1970."""
        return SystemClock().now_ms() + round(self.ahead * 1000)
