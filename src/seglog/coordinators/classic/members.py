"""The members of a classic group, and the protocol that they share. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from seglog.coordinators import consumer_protocol
from seglog.coordinators.classic.messages import JoinedMember, JoinGroupRequest, Protocols, Ticket
from seglog.coordinators.group_records import GroupMetadataValue, MemberMetadata
from seglog.core.error_codes import ErrorCode
from seglog.core.errors import InvalidRequestError

CONSUMER: Final = "consumer"
"""The protocol type of consumers, the only one whose metadata the coordinator reads."""


class GroupMember:
    """A member. ``is_new`` until its first rebalance ends: until then its session may end even while it waits."""

    __slots__ = (
        "assignment",
        "awaiting_join",
        "awaiting_sync",
        "client_host",
        "client_id",
        "instance_id",
        "is_new",
        "member_id",
        "protocols",
        "rebalance_timeout",
        "session_timeout",
    )

    def __init__(
        self,
        member_id: str,
        instance_id: str | None,
        client_id: str,
        client_host: str,
        rebalance_timeout: int,
        session_timeout: int,
        protocols: Protocols,
        assignment: bytes = b"",
        *,
        is_new: bool = False,
    ) -> None:
        self.member_id = member_id
        self.instance_id = instance_id
        self.client_id = client_id
        self.client_host = client_host
        self.rebalance_timeout = rebalance_timeout
        self.session_timeout = session_timeout
        self.protocols = protocols
        self.assignment = assignment
        self.is_new = is_new
        self.awaiting_join: Ticket | None = None
        self.awaiting_sync: Ticket | None = None

    def await_join(self, ticket: Ticket | None) -> Ticket | None:
        """Set the client that waits for the join, or None. Return the one before."""
        before, self.awaiting_join = self.awaiting_join, ticket
        return before

    @classmethod
    def joining(cls, request: JoinGroupRequest, member_id: str) -> GroupMember:
        client = request.instance_id, request.client_id, request.client_host
        timeouts = request.rebalance_timeout, request.session_timeout
        return cls(member_id, *client, *timeouts, request.protocols, is_new=True)

    @classmethod
    def restored(cls, value: MemberMetadata, protocol: str | None) -> GroupMember:
        """The member as the group's record has it; ``protocol`` is the group's."""
        protocols = () if protocol is None else ((protocol, value.subscription),)
        return cls(*value[:6], protocols, value.assignment)

    def renamed(self, member_id: str) -> GroupMember:
        """The same member under another id. No client waits for its join or its assignment."""
        client = self.instance_id, self.client_id, self.client_host
        timeouts = self.rebalance_timeout, self.session_timeout
        return GroupMember(member_id, *client, *timeouts, self.protocols, self.assignment)

    def rebalanced(self) -> None:
        """A rebalance has ended with this member."""
        self.is_new = False

    def assign(self, assignment: bytes) -> None:
        self.assignment = assignment

    def rejoin(self, request: JoinGroupRequest) -> None:
        """Take over the protocols and timeouts of the request."""
        self.protocols = request.protocols
        self.rebalance_timeout = request.rebalance_timeout
        self.session_timeout = request.session_timeout

    def await_sync(self, ticket: Ticket | None) -> None:
        """Set the client that waits for the assignment; None: no client waits."""
        self.awaiting_sync = ticket

    @property
    def is_waiting(self) -> bool:
        """A member with a waiting client is alive without heartbeats; a client that never got its member id may be
        gone."""
        return not self.is_new and (self.awaiting_join is not None or self.awaiting_sync is not None)

    def metadata(self, protocol: str | None) -> bytes:
        return next((metadata for name, metadata in self.protocols if name == protocol), b"")

    def value(self, protocol: str | None, assignment: bytes) -> MemberMetadata:
        return MemberMetadata(
            self.member_id,
            self.instance_id,
            self.client_id,
            self.client_host,
            self.rebalance_timeout,
            self.session_timeout,
            self.metadata(protocol),
            assignment,
        )


class GroupMembers:
    """The members of one group, in the order of joining. ``leader`` is one of them, or None.

    ``pending`` have a member id and have not joined with it yet; ``pending_sync`` have not asked for their assignment
    of this generation; ``joining`` counts those that wait for the rebalance to end.
    """

    __slots__ = ("_spoken", "by_id", "joining", "leader", "pending", "pending_sync", "static")

    def __init__(self) -> None:
        self.by_id: dict[str, GroupMember] = {}
        self.joining = 0
        self._spoken: Counter[str] = Counter()
        self.static: dict[str, str] = {}
        self.leader: str | None = None
        self.pending: dict[str, None] = {}
        self.pending_sync: set[str] = set()

    @classmethod
    def restored(cls, value: GroupMetadataValue) -> GroupMembers:
        members = cls()
        for one in value.members:
            members.add(GroupMember.restored(one, value.protocol))
        if value.leader in members.by_id:
            members.leader = value.leader
        return members

    def __iter__(self) -> Iterator[GroupMember]:
        return iter(self.by_id.values())

    def __len__(self) -> int:
        return len(self.by_id)

    def __contains__(self, member_id: str) -> bool:
        return member_id in self.by_id

    def __getitem__(self, member_id: str) -> GroupMember:
        return self.by_id[member_id]

    def add(self, member: GroupMember) -> None:
        assert member.instance_id is None or member.instance_id not in self.static
        self.by_id[member.member_id] = member
        self._spoken.update(_names(member.protocols))
        if member.instance_id is not None:
            self.static[member.instance_id] = member.member_id
        if self.leader is None:
            self.leader = member.member_id
        self.pending.pop(member.member_id, None)

    def remove(self, member_id: str) -> None:
        """Remove a member or pending member; no client waits for it. The longest-serving member follows a leader."""
        member = self.by_id.pop(member_id, None)
        if member is not None:
            self._spoken.subtract(_names(member.protocols))
            assert member.awaiting_join is None
            if member.instance_id is not None:
                self.static.pop(member.instance_id, None)
        if self.leader == member_id:
            self.leader = next(iter(self.by_id), None)
        self.pending.pop(member_id, None)
        self.pending_sync.discard(member_id)

    def replace_static(self, instance_id: str, new_id: str) -> GroupMember:
        """A static member came back without its id: it takes its own place under a new one. No client waits for the old
        one."""
        old = self.by_id.pop(self.static[instance_id])
        assert old.awaiting_join is None
        member = old.renamed(new_id)
        self.by_id[new_id] = member
        self.static[instance_id] = new_id
        if self.leader == old.member_id:
            self.leader = new_id
        if old.member_id in self.pending_sync:
            self.pending_sync.remove(old.member_id)
            self.pending_sync.add(new_id)
        return member

    def check(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """Check that this member is here, and that no other one has its instance id."""
        if instance_id is not None:
            existing = self.static.get(instance_id)
            if existing is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if existing != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        return ErrorCode.NONE if member_id in self.by_id else ErrorCode.UNKNOWN_MEMBER_ID

    def update(self, member: GroupMember, request: JoinGroupRequest) -> None:
        """The member joined again, perhaps with other protocols."""
        self._spoken.subtract(_names(member.protocols))
        self._spoken.update(_names(request.protocols))
        member.rejoin(request)

    def await_join(self, member: GroupMember, ticket: Ticket | None) -> Ticket | None:
        """Set the client that waits for the member's join, or None. Return the one before."""
        before = member.await_join(ticket)
        self.joining += (ticket is not None) - (before is not None)
        return before

    @property
    def all_joined(self) -> bool:
        return not self.pending and self.joining == len(self.by_id)

    @property
    def rebalance_timeout(self) -> int:
        return max((member.rebalance_timeout for member in self), default=0)

    def elect(self) -> bool:
        """Keep a leader that has joined, or elect a member that has. False if none has."""
        if self.leader is None:
            return False
        if self.by_id[self.leader].awaiting_join is not None:
            return True
        joined = next((member for member in self if member.awaiting_join is not None), None)
        if joined is None:
            return False
        self.leader = joined.member_id
        return True

    def supports(self, protocols: Protocols) -> bool:
        """Whether all members support one of these protocols."""
        return any(self._spoken[name] == len(self.by_id) for name, _ in protocols)

    def select_protocol(self) -> str | None:
        """Each member votes for its first protocol that all support. The most votes win; on a tie, those of the oldest
        member."""
        everyone = len(self.by_id)
        votes = Counter(next(name for name, _ in member.protocols if self._spoken[name] == everyone) for member in self)
        return max(votes, key=votes.__getitem__, default=None)

    def described(self, protocol: str | None) -> tuple[JoinedMember, ...]:
        return tuple([JoinedMember(member.member_id, member.instance_id, member.metadata(protocol)) for member in self])

    def values(self, protocol: str | None, assignments: Mapping[str, bytes]) -> tuple[MemberMetadata, ...]:
        return tuple([member.value(protocol, assignments.get(member.member_id, b"")) for member in self])


def _names(protocols: Protocols) -> set[str]:
    return {name for name, _ in protocols}


def subscribed_topics(metadata: Iterable[bytes]) -> frozenset[str] | None:
    """Return the topics of consumers' subscriptions. None if one cannot be read."""
    try:
        return frozenset[str]().union(*map(consumer_protocol.subscribed_topics, metadata))
    except InvalidRequestError:
        return None
