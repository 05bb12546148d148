"""What members of a group ask for and what they are answered, whatever the version of the request. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from seglog.core.error_codes import ErrorCode

Ticket = object
"""Stands for a client that waits for an answer; whoever handed it in knows what to do with the answer."""

Protocols = tuple[tuple[str, bytes], ...]
"""What a member speaks, best first: names, and what it says of itself in each."""


def size_of(protocols: Protocols) -> int:
    """Bytes of what a member says of itself."""
    return sum([len(name) + len(metadata) for name, metadata in protocols])


"""Names with the member's metadata for each, the one that it likes best first."""


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
