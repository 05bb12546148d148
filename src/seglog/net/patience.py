"""How long a client may go on with nothing new, and for how long it has."""

from __future__ import annotations

from typing import NamedTuple


class Patience(NamedTuple):
    """For how many seconds a client may do nothing (``connections.max.idle.ms``); how many it has for a frame that has
    begun, beside those that ``rate`` bytes a second give it. Kafka waits for half a frame as for an idle client."""

    idle: float
    frame: float = 30.0
    rate: int = 64 << 10


class Watch:
    """Looks at one client now and then, and knows for how long it has seen the same."""

    def __init__(self) -> None:
        self.seen: tuple[str, float] = ("", 0.0)
        self._since = 0.0

    def is_over(self, seen: tuple[str, float], left: float, now: float) -> bool:
        """Whether ``seen`` was seen at every look in the last ``left`` seconds before ``now``."""
        if seen != self.seen:
            self.seen, self._since = seen, now
            return False
        return now - self._since >= left
