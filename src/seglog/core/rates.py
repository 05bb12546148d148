"""Kafka's rates over a sliding window, and its token bucket: the measures of all quotas (``Rate``, ``SimpleRate``,
``SampledStat``, ``TokenBucket`` and ``QuotaUtils``). They know no clock: each call has the time in milliseconds."""

from __future__ import annotations

from math import floor, inf
from typing import NamedTuple


class Window(NamedTuple):
    """So many ``samples`` of ``sample_ms`` each (``quota.window.num``, ``quota.window.size.seconds``)."""

    samples: int = 11
    sample_ms: int = 1_000

    @property
    def length_ms(self) -> int:
        return self.samples * self.sample_ms

    @property
    def burst_seconds(self) -> float:
        """For how many seconds a client's whole quota may come at once (``getMaxValueInQuotaWindow``)."""
        return (self.samples - 1) * self.sample_ms / 1000


class Rate:
    """A sum per second. The samples are a ring; one that saw nothing for the length of the window starts again.

    >>> rate, window = Rate(), Window()
    >>> rate.record(window, 2_000, 0)
    >>> rate.measure(window, 0)
    (200.0, 10000)
    >>> rate.throttle_ms(window, 100.0, 0)
    10000
    """

    __slots__ = ("_at", "_seen", "_starts", "_sums")

    def __init__(self) -> None:
        self._at = 0
        self._sums: list[float] = []
        self._starts: list[int] = []
        self._seen: list[int] = []
        """When each sample's last value came."""

    def record(self, window: Window, value: float, now_ms: int) -> None:
        if not self._sums:
            self._begin(now_ms)
        elif now_ms - self._starts[self._at] >= window.sample_ms:
            self._at = (self._at + 1) % (window.samples + 1)
            if self._at >= len(self._sums):
                self._begin(now_ms)
            else:
                self._restart(self._at, now_ms)
        self._sums[self._at] += value
        self._seen[self._at] = now_ms

    def measure(self, window: Window, now_ms: int) -> tuple[float, int]:
        """The rate, and the milliseconds that it counts."""
        if not self._sums:
            self._begin(now_ms)
        for place, seen in enumerate(self._seen):
            if now_ms - seen >= window.length_ms:
                self._restart(place, now_ms)
        size_ms = self._size_ms(window, now_ms - min(self._starts))
        return sum(self._sums) / (size_ms / 1000), size_ms

    def throttle_ms(self, window: Window, bound: float, now_ms: int) -> int:
        """How long the client must be silent until the rate is ``bound``; 0 if it is not above."""
        value, size_ms = self.measure(window, now_ms)
        return floor((value - bound) / bound * size_ms + 0.5) if value > bound else 0

    def is_fresh(self, window: Window, now_ms: int) -> bool:
        """Whether it would measure the same if it were new."""
        return all(now_ms - seen >= window.length_ms for seen in self._seen)

    def _size_ms(self, window: Window, elapsed_ms: int) -> int:
        """A short history counts as if zeros came before it."""
        missing = window.samples - 1 - elapsed_ms // window.sample_ms
        return max(elapsed_ms + max(missing, 0) * window.sample_ms, 1)

    def _begin(self, now_ms: int) -> None:
        self._sums.append(0.0)
        self._starts.append(now_ms)
        self._seen.append(now_ms)

    def _restart(self, place: int, now_ms: int) -> None:
        self._sums[place] = 0.0
        self._starts[place] = self._seen[place] = now_ms


class SimpleRate(Rate):
    """A rate since the first value, or over one sample at least: for the traffic between brokers."""

    __slots__ = ()

    def _size_ms(self, window: Window, elapsed_ms: int) -> int:
        return max(elapsed_ms, window.sample_ms)


class TokenBucket:
    """Takes ``quota`` tokens a second, and as many at once as come in a whole window (KIP-599).

    >>> bucket, window = TokenBucket(), Window(samples=10)
    >>> bucket.record(window, 2.0, 25, 0)
    >>> bucket.throttle_ms(window, 2.0, 0), bucket.throttle_ms(window, 2.0, 2_500)
    (2500, 0)
    """

    __slots__ = ("_then_ms", "_tokens")

    def __init__(self) -> None:
        self._tokens = inf
        self._then_ms = 0

    def record(self, window: Window, quota: float, value: float, now_ms: int) -> None:
        self._refill(window, quota, now_ms)
        self._tokens -= value

    def throttle_ms(self, window: Window, quota: float, now_ms: int) -> int:
        """How long it takes until there is no debt."""
        self._refill(window, quota, now_ms)
        return floor(-self._tokens / quota * 1000 + 0.5) if self._tokens < 0 else 0

    def is_full(self, window: Window, quota: float, now_ms: int) -> bool:
        self._refill(window, quota, now_ms)
        return self._tokens >= quota * window.length_ms / 1000

    def _refill(self, window: Window, quota: float, now_ms: int) -> None:
        most = quota * window.length_ms / 1000
        self._tokens = min(most, self._tokens + quota * (now_ms - self._then_ms) / 1000)
        self._then_ms = now_ms
