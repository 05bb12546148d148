"""Lists of replicas that a client has made (``ReplicationControlManager.validateManualPartitionAssignment``)."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from seglog.broker.identity import Identity
from seglog.broker.refused_error import RefusedError
from seglog.core.error_codes import ErrorCode


def check_replicas(
    brokers: Sequence[int], identity: Identity, factor: int | None, *, now: Collection[int] = ()
) -> None:
    """`RefusedError` if a partition cannot have its replicas on these brokers. ``factor``: how many there must be;
    ``now``: who has replicas of it already, and may be away for a while (Kafka's brokers stay registered)."""
    what = "The manual partition assignment includes"
    if not brokers:
        raise RefusedError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"{what} an empty replica list.")
    registered = identity.registered()
    before = None
    for broker in sorted(brokers):
        if broker not in registered and broker not in now:
            message = f"{what} broker {broker}, but no such broker is registered."
            raise RefusedError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)
        if broker == before:
            raise RefusedError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"{what} the broker {broker} more than once.")
        before = broker
    if factor is not None and len(brokers) != factor:
        message = (
            f"{what} a partition with {len(brokers)} replica(s), but this is not consistent with previous partitions, "
            f"which have {factor} replica(s)."
        )
        raise RefusedError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)
