"""The deadlines of a consumer group's members. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Final, NamedTuple

NEVER: Final = 1 << 62


class TimerKind(Enum):
    """The values say why a member is removed when its time is up."""

    SESSION = "its session has expired"
    REBALANCE = "it did not give up its partitions within the rebalance timeout"
    JOIN = "it did not join again within the rebalance timeout"
    SYNC = "it did not ask for its assignment within the rebalance timeout"


class TimerChange(NamedTuple):
    """Start a timer of a member, or stop it if ``timeout``, in milliseconds, is None.

    ``epoch``: the time only counts if the member is still in it; None for any. ``if_absent``: a timer that runs already
    keeps its time.
    """

    kind: TimerKind
    member_id: str
    timeout: int | None = None
    epoch: int | None = None
    if_absent: bool = False


class Expired(NamedTuple):
    """A timer whose time is up."""

    kind: TimerKind
    member_id: str
    epoch: int | None


class _Deadline(NamedTuple):
    at: int
    epoch: int | None


class MemberTimers:
    """At most one timer of each kind for a member. Times are monotonic milliseconds."""

    __slots__ = ("_deadlines", "earliest")

    def __init__(self) -> None:
        self._deadlines: dict[tuple[TimerKind, str], _Deadline] = {}
        self.earliest = NEVER

    def change(self, changes: Iterable[TimerChange], now: int) -> None:
        for change in changes:
            key = change.kind, change.member_id
            if change.timeout is None:
                self._deadlines.pop(key, None)
            elif not (change.if_absent and key in self._deadlines):
                self._deadlines[key] = _Deadline(now + change.timeout, change.epoch)
                self.earliest = min(self.earliest, now + change.timeout)

    def take_expired(self, now: int) -> Expired | None:
        """Stop a timer whose time is up and return it. None, and an exact `earliest`, if there is none."""
        if now < self.earliest:
            return None
        for key, deadline in self._deadlines.items():
            if deadline.at <= now:
                del self._deadlines[key]
                return Expired(*key, deadline.epoch)
        self.earliest = min((deadline.at for deadline in self._deadlines.values()), default=NEVER)
        return None


def stopped(member_id: str) -> list[TimerChange]:
    """All timers of a member stop."""
    return [TimerChange(kind, member_id) for kind in TimerKind]
