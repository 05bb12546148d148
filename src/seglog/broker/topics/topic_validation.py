"""Checks of topic names and of replica lists that clients send, in Kafka's words."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from seglog.broker.identity import Identity
from seglog.broker.requests import ApiError
from seglog.broker.topics.topics import Topics
from seglog.core.error_codes import ErrorCode
from seglog.core.errors import InvalidTopicError
from seglog.core.types import validate_topic


def check_replicas(
    brokers: Sequence[int], identity: Identity, factor: int | None, *, now: Collection[int] = ()
) -> None:
    """`ApiError` if a partition cannot have its replicas on these brokers. ``factor`` is the number required. Brokers
    in ``now`` have a replica already and may be down: Kafka's brokers stay registered.
    (``ReplicationControlManager.validateManualPartitionAssignment``)"""
    what = "The manual partition assignment includes"
    if not brokers:
        raise ApiError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"{what} an empty replica list.")
    registered = identity.registered()
    before = None
    for broker in sorted(brokers):
        if broker not in registered and broker not in now:
            message = f"{what} broker {broker}, but no such broker is registered."
            raise ApiError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)
        if broker == before:
            raise ApiError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"{what} the broker {broker} more than once.")
        before = broker
    if factor is not None and len(brokers) != factor:
        message = (
            f"{what} a partition with {len(brokers)} replica(s), but this is not consistent with previous partitions, "
            f"which have {factor} replica(s)."
        )
        raise ApiError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)


def check_topic_name(name: str) -> None:
    """`ApiError` if the name is not legal (``Topic.validate``)."""
    try:
        validate_topic(name)
    except InvalidTopicError as error:
        raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {_reason(name)}") from error


def check_collisions(name: str, topics: Topics) -> None:
    """`ApiError` if the name differs from another topic's only in ``.`` and ``_``."""
    other = topics.colliding(name)
    if other is not None:
        message = f"Topic '{name}' collides with existing topic: {other}"
        raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, message)


def _reason(name: str) -> str:
    if not name:
        return "the empty string is not allowed"
    if name in (".", ".."):
        return f"'{name}' is not allowed"
    if len(name) > 249:
        return f"the length of '{name}' is longer than the max allowed length 249"
    return f"'{name}' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"
