"""Requests of group members and their answers, independent of the request's version. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from seglog.core.error_codes import ErrorCode

Ticket = object
"""Stands for a client that waits for an answer. Only the caller that made it knows what it is."""

Protocols = tuple[tuple[str, bytes], ...]
"""A member's protocols, in order of preference: names, with the member's metadata for each."""


def size_of(protocols: Protocols) -> int:
    """Return the bytes of a member's protocols and their metadata."""
    return sum([len(name) + len(metadata) for name, metadata in protocols])


class JoinGroupRequest(NamedTuple):
    """A JoinGroup of any version; timeouts are milliseconds. ``member_id`` is empty for a member without one."""

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
    """A member as the leader sees it."""

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
    """A SyncGroup; the leader's has the assignment of each member. Protocols are None where the version has none."""

    group_id: str
    member_id: str
    instance_id: str | None
    generation: int
    protocol_type: str | None
    protocol: str | None
    assignments: Mapping[str, bytes]


class LeavingMember(NamedTuple):
    """A member that leaves, by its id, or by its instance id alone (how administrators remove static members)."""

    member_id: str
    instance_id: str | None = None


Answer = JoinGroupResult | SyncGroupResult
