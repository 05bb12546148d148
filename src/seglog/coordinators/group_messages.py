"""What members of a group ask for and what they are answered, whatever the version of the request. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from seglog.core.error_codes import ErrorCode
from seglog.core.errors import SeglogError

Ticket = object
"""Stands for a client that waits for an answer; whoever handed it in knows what to do with the answer."""

Protocols = tuple[tuple[str, bytes], ...]
"""What a member speaks, best first: names, and what it says of itself in each."""


def size_of(protocols: Protocols) -> int:
    """Bytes of what a member says of itself."""
    return sum([len(name) + len(metadata) for name, metadata in protocols])


class CoordinatorError(SeglogError):
    """A whole request is refused with this code."""

    def __init__(self, code: ErrorCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code


class JoinGroupRequest(NamedTuple):
    """A JoinGroup of any version; timeouts are milliseconds. ``member_id`` is empty for a member that has none yet."""

    group_id: str
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout: int
    session_timeout: int
    protocol_type: str
    protocols: Protocols
    version: int


class JoinedMember(NamedTuple):
    """What the leader learns of a member."""

    member_id: str
    instance_id: str | None
    metadata: bytes


class JoinGroupResult(NamedTuple):
    code: ErrorCode
    member_id: str = ""
    generation: int = -1
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    members: tuple[JoinedMember, ...] = ()
    skip_assignment: bool = False


class SyncGroupResult(NamedTuple):
    code: ErrorCode
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


class SyncGroupRequest(NamedTuple):
    """A SyncGroup; a leader brings what each member is assigned. Null where the version has no protocol in it."""

    group_id: str
    member_id: str
    instance_id: str | None
    generation: int
    protocol_type: str | None
    protocol: str | None
    assignments: Mapping[str, bytes]


class LeavingMember(NamedTuple):
    """Who leaves: a member by its id, or whoever has the instance id (administrators remove static members so)."""

    member_id: str
    instance_id: str | None = None


Answer = JoinGroupResult | SyncGroupResult


_OF_APPENDS: Final[dict[int, ErrorCode]] = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
}


def code_of_append(error: SeglogError) -> ErrorCode:
    """What a client is told when a group's records could not be written (``CoordinatorOperationExceptionHelper``)."""
    return _OF_APPENDS.get(error.code, ErrorCode.UNKNOWN_SERVER_ERROR)


def code_of_outcome(outcome: int) -> ErrorCode:
    """What a client is told of what became of its records, by `Partition.outcome`: what is committed stays so, also if
    there are too few replicas in sync by now."""
    if outcome in (ErrorCode.NONE, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND):
        return ErrorCode.NONE
    return _OF_APPENDS.get(outcome, ErrorCode.UNKNOWN_SERVER_ERROR)
