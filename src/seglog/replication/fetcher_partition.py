"""One partition of a fetcher, and for how long it is left alone after an error. Pure."""

from __future__ import annotations

from typing import Final

from seglog.replication.replica import Replica

_TOLD: Final = 6
_FIRST_WAIT_MS: Final = 20
"""A leader may learn that it leads a moment after us: who asks too early is not to lose a second by it."""


class PartitionFetchState:
    """A partition, followed in ``leader_epoch``. It ``waits_until`` a time in seconds (0: it does not wait) after
    ``failures`` in a row, the last of which was ``error``."""

    __slots__ = ("error", "failures", "leader_epoch", "replica", "waits_until")

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self.leader_epoch = replica.leader_epoch
        self.waits_until = 0.0
        self.failures = 0
        self.error = ""

    def failed(self, error: str, now: float, most_ms: int) -> bool:
        """Wait, for longer each time; whether it is to be told: once, when it has lasted for a while. The first ones
        are of leaders that do not know yet that they lead."""
        self.waits_until = now + growing(_FIRST_WAIT_MS, self.failures, most_ms) / 1000
        self.failures += 1
        self.error = error
        return self.failures == _TOLD

    def succeeded(self) -> None:
        self.failures = 0
        self.error = ""


def growing(first_ms: int, failures: int, most_ms: int) -> int:
    """Twice as long after each failure.

    >>> [growing(20, failures, 100) for failures in range(4)]
    [20, 40, 80, 100]
    """
    return min(first_ms << min(failures, 16), most_ms)
