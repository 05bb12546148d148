"""Changes of logs that a replica wants, carried out at once; `seglog.replication.log_changes` does it in a thread."""

from __future__ import annotations

from seglog.cluster.model import Member, VersionedState
from seglog.core.errors import SeglogError
from seglog.replication.replica import Brokers, Replica
from seglog.storage.directory.log_changes import LogChange


def take_over(
    replica: Replica, stored: VersionedState, me: Member, brokers: Brokers, now_ms: int = 0, *, lag_max_ms: int
) -> None:
    """`Replica.apply`, and again after the change of the log that it wants."""
    replica.apply(stored, me, brokers, now_ms, lag_max_ms=lag_max_ms)
    if replica.wanted is not None:
        carry_out(replica, replica.wanted)
        replica.apply(stored, me, brokers, now_ms, lag_max_ms=lag_max_ms)
        assert replica.wanted is None


def carry_out(replica: Replica, change: LogChange | None) -> None:
    """Raises the error of the change."""
    if change is None:
        return
    replica.begin_change()
    (outcome,) = replica.directory.carry_out([change])
    replica.end_change(change, saved=outcome if isinstance(outcome, str) else None)
    if isinstance(outcome, SeglogError):
        raise outcome
