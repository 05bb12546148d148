"""Who may do what: decisions of Kafka's ``StandardAuthorizer``, from ACLs that are indexed by resource.

A decision depends on its arguments and on the ACLs of the moment only. Decisions are remembered until an ACL changes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from seglog.broker.security.acls import (
    ANYONE,
    WILDCARD,
    Acl,
    AclFilter,
    Entry,
    Operation,
    Pattern,
    PatternType,
    Permission,
    ResourceType,
    matches_host,
)

_MOST_REMEMBERED: Final = 1 << 16
"""Decisions, of some 300 bytes each. Clients choose the names that they ask for, so there must be a limit."""
SUFFICE: Final[Mapping[int, frozenset[Operation]]] = {
    Operation.DESCRIBE: frozenset(
        {Operation.DESCRIBE, Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER}
    ),
    Operation.DESCRIBE_CONFIGS: frozenset({Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS}),
}
"""Operations whose permission implies that of another. To deny one of them does not deny the other."""
_SOME_NAME: Final = "hardcode"
"""The name by which Kafka asks whether a principal may do something with a resource of any name."""
OPERATIONS: Final[Mapping[ResourceType, Sequence[Operation]]] = {
    ResourceType.TOPIC: (
        Operation.READ,
        Operation.WRITE,
        Operation.CREATE,
        Operation.DESCRIBE,
        Operation.DELETE,
        Operation.ALTER,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    ResourceType.GROUP: (
        Operation.READ,
        Operation.DESCRIBE,
        Operation.DELETE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    ResourceType.CLUSTER: (
        Operation.CREATE,
        Operation.CLUSTER_ACTION,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
        Operation.IDEMPOTENT_WRITE,
        Operation.ALTER,
        Operation.DESCRIBE,
    ),
    ResourceType.TRANSACTIONAL_ID: (Operation.DESCRIBE, Operation.WRITE, Operation.TWO_PHASE_COMMIT),
    ResourceType.DELEGATION_TOKEN: (Operation.DESCRIBE,),
    ResourceType.USER: (Operation.CREATE_TOKENS, Operation.DESCRIBE_TOKENS),
}
"""The operations of a resource: those that it reports as authorized (``AclEntry.supportedOperations``)."""


class Client(NamedTuple):
    """Who asks, and from which address."""

    principal: str
    host: str


class Verdict(NamedTuple):
    """``rule`` is why: the ACL, or ``SuperUser``, ``DefaultAllow``, ``DefaultDeny``."""

    rule: Acl | str
    is_allowed: bool


_SUPER_USER: Final = Verdict("SuperUser", is_allowed=True)
_DENIED: Final = Verdict("DefaultDeny", is_allowed=False)
_Entries = tuple[Pattern, Mapping[str, Sequence[Entry]]]
"""A pattern with its entries, by principal."""


class Authorizer:
    """The only writer of the ACLs is the broker's loop, by `put`."""

    def __init__(self, super_users: Collection[str] = (), *, allows_without_acls: bool = False) -> None:
        self.super_users: Final = frozenset(super_users)
        self.generation = 0
        """Rises with each change."""
        self._default = Verdict("DefaultAllow", is_allowed=True) if allows_without_acls else _DENIED
        self._patterns: dict[Pattern, tuple[Entry, ...]] = {}
        self._exact: dict[tuple[int, str], _Entries] = {}
        self._prefixed: dict[tuple[int, str], _Entries] = {}
        self._lengths: dict[int, Counter[int]] = {}
        """By type of resource: how many prefixes there are of each length."""
        self._known: dict[tuple[str, str, int, int, str | None], Verdict] = {}

    # ACLs

    def put(self, pattern: Pattern, entries: Collection[Entry]) -> None:
        """From now on these are the entries of a pattern; none removes it. Takes effect with the next decision."""
        self.generation += 1
        self._known.clear()
        key = int(pattern.resource), pattern.name
        is_prefix = pattern.type is PatternType.PREFIXED
        if is_prefix and bool(entries) != (pattern in self._patterns):
            lengths = self._lengths.setdefault(key[0], Counter())
            lengths[len(pattern.name)] += 1 if entries else -1
            if not lengths[len(pattern.name)]:
                del lengths[len(pattern.name)]
        index = self._prefixed if is_prefix else self._exact
        if not entries:
            self._patterns.pop(pattern, None)
            index.pop(key, None)
            return
        self._patterns[pattern] = tuple(entries)
        by_principal: dict[str, list[Entry]] = {}
        for entry in entries:
            by_principal.setdefault(entry.principal, []).append(entry)
        index[key] = pattern, by_principal

    def matching(self, wanted: AclFilter) -> Iterator[Acl]:
        for pattern, entries in self._patterns.items():
            for entry in entries:
                acl = Acl(pattern, entry)
                if wanted.matches(acl):
                    yield acl

    # Decisions

    def verdict(self, client: Client, operation: Operation, resource: ResourceType, name: str) -> Verdict:
        """Whether a client may do something with one resource."""
        principal, host = client
        if principal in self.super_users:
            return _SUPER_USER
        key = (principal, host, operation, resource, name)
        found = self._known.get(key)
        return self._remember(key, self._decide(client, operation, resource, name)) if found is None else found

    def verdict_on_some(self, client: Client, operation: Operation, resource: ResourceType) -> Verdict:
        """Whether a client may do something with at least one resource of a type (KIP-679)."""
        if client.principal in self.super_users:
            return _SUPER_USER
        key = (*client, operation, resource, None)
        found = self._known.get(key)
        if found is not None:
            return found
        on_one = self._decide(client, operation, resource, _SOME_NAME)
        is_allowed = on_one.is_allowed or self._may_with_some(client, operation, resource)
        return self._remember(key, on_one._replace(is_allowed=is_allowed))

    def operations(self, client: Client, resource: ResourceType, name: str) -> int:
        """The operations that a client may do with a resource, as a field of bits."""
        allowed = (one for one in OPERATIONS[resource] if self.verdict(client, one, resource, name).is_allowed)
        return sum(1 << one for one in allowed)

    def _remember(self, key: tuple[str, str, int, int, str | None], verdict: Verdict) -> Verdict:
        if len(self._known) >= _MOST_REMEMBERED:
            self._known.clear()
        self._known[key] = verdict
        return verdict

    def _decide(self, client: Client, operation: Operation, resource: ResourceType, name: str) -> Verdict:
        principal, host = client
        suffice = SUFFICE.get(operation)
        allowed: Verdict | None = None
        has_acls = False
        for pattern, by_principal in self._applying(resource, name):
            has_acls = True
            for who in (principal, ANYONE):
                for entry in by_principal.get(who, ()):
                    _, wanted, its_operation, permission = entry
                    is_denied = permission is Permission.DENY
                    if (
                        its_operation is not operation
                        and its_operation is not Operation.ALL
                        and (is_denied or suffice is None or its_operation not in suffice)
                    ) or (wanted != WILDCARD and not matches_host(wanted, host)):
                        continue
                    if is_denied:
                        return Verdict(Acl(pattern, entry), is_allowed=False)
                    allowed = allowed or Verdict(Acl(pattern, entry), is_allowed=True)
        if allowed is not None:
            return allowed
        return _DENIED if has_acls else self._default

    def _applying(self, resource: ResourceType, name: str) -> list[_Entries]:
        """The patterns that a name matches; one of them may be there twice."""
        exact, prefixed, size = self._exact, self._prefixed, len(name)
        found = [exact.get((resource, name)), exact.get((resource, WILDCARD))]
        found += [
            prefixed.get((resource, name[:length])) for length in self._lengths.get(resource, ()) if length <= size
        ]
        return [one for one in found if one is not None]

    def _may_with_some(self, client: Client, operation: Operation, resource: ResourceType) -> bool:
        """Whether a pattern allows it and no pattern denies all that it allows. ``Authorizer.authorizeByResourceType``
        takes neither implied operations nor a literal name below a denied prefix into account in another way."""
        allowed: list[Pattern] = []
        denied: set[Pattern] = set()
        for pattern, entries in self._patterns.items():
            if pattern.resource is not resource:
                continue
            for entry in entries:
                if (
                    entry.principal in (client.principal, ANYONE)
                    and entry.operation in (operation, Operation.ALL)
                    and matches_host(entry.host, client.host)
                ):
                    if entry.permission is Permission.ALLOW:
                        allowed.append(pattern)
                    else:
                        denied.add(pattern)
        everything = Pattern(resource, WILDCARD)
        if everything in denied:
            return False
        if everything in allowed:
            return True
        return any(
            (pattern.type is PatternType.PREFIXED or pattern not in denied)
            and not any(
                Pattern(resource, pattern.name[:length], PatternType.PREFIXED) in denied
                for length in range(1, len(pattern.name) + 1)
            )
            for pattern in allowed
        )
