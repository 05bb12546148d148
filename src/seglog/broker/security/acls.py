"""Access control lists as values: what they say, which filters match them, and which new ones are refused.

Numbers are those of ``ResourceType``, ``PatternType``, ``AclOperation`` and ``AclPermissionType``; rules and messages
are those of ``AclControlManager`` and ``ResourcePatternFilter``.
"""

from __future__ import annotations

from enum import IntEnum
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Final, NamedTuple, TypeVar

from seglog.broker.requests import ApiError
from seglog.core.error_codes import ErrorCode

E = TypeVar("E", bound=IntEnum)
ANYONE: Final = "User:*"
WILDCARD: Final = "*"
CLUSTER_NAME: Final = "kafka-cluster"


class ResourceType(IntEnum):
    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(IntEnum):
    """``ANY`` and ``MATCH`` are for filters: all patterns of the name, and all that apply to a resource of the name."""

    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Operation(IntEnum):
    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class Permission(IntEnum):
    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


def of_number(kind: type[E], number: int) -> E:
    """A number that is not known is ``UNKNOWN``."""
    return kind(number) if number in set(kind) else kind(0)


class Pattern(NamedTuple):
    """Resources: one by its name, those with a prefix, or (literally ``*``) all of the type."""

    resource: ResourceType
    name: str
    type: PatternType = PatternType.LITERAL


class Entry(NamedTuple):
    """What a principal (``User:alice``, or all: ``User:*``) may or must not do from a host: an address, a range of
    addresses such as ``10.0.0.0/8``, or ``*``."""

    principal: str
    host: str
    operation: Operation
    permission: Permission


class Acl(NamedTuple):
    pattern: Pattern
    entry: Entry


class AclFilter(NamedTuple):
    """None and ``ANY`` match all.

    >>> alice = Entry("User:alice", "*", Operation.READ, Permission.ALLOW)
    >>> prefixed = Acl(Pattern(ResourceType.TOPIC, "ord", PatternType.PREFIXED), alice)
    >>> AclFilter(name="orders").matches(prefixed)
    False
    >>> AclFilter(name="orders", type=PatternType.MATCH).matches(prefixed)
    True
    """

    resource: ResourceType = ResourceType.ANY
    name: str | None = None
    type: PatternType = PatternType.ANY
    principal: str | None = None
    host: str | None = None
    operation: Operation = Operation.ANY
    permission: Permission = Permission.ANY

    def matches(self, acl: Acl) -> bool:
        entry = acl.entry
        return (
            self._matches_pattern(acl.pattern)
            and self.principal in (None, entry.principal)
            and self.host in (None, entry.host)
            and self.operation in (Operation.ANY, entry.operation)
            and self.permission in (Permission.ANY, entry.permission)
        )

    def _matches_pattern(self, pattern: Pattern) -> bool:
        if self.resource not in (ResourceType.ANY, pattern.resource):
            return False
        if self.type not in (PatternType.ANY, PatternType.MATCH, pattern.type):
            return False
        if self.name is None:
            return True
        if self.type is not PatternType.MATCH:
            return self.name == pattern.name
        if pattern.type is PatternType.PREFIXED:
            return self.name.startswith(pattern.name)
        return pattern.name in (self.name, WILDCARD)


def check_filter(wanted: AclFilter) -> None:
    """`ApiError` if a part of it has a number that is not known."""
    if not wanted.resource or not wanted.type:
        raise ApiError(ErrorCode.INVALID_REQUEST, "Unknown patternFilter.")
    if not wanted.operation or not wanted.permission:
        raise ApiError(ErrorCode.INVALID_REQUEST, "Unknown entryFilter.")


def check_acl(acl: Acl) -> None:
    """`ApiError` if the ACL cannot be created."""
    pattern, entry = acl
    if pattern.resource is ResourceType.CLUSTER and pattern.name != CLUSTER_NAME:
        raise _invalid(f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}")
    if not pattern.name:
        raise _invalid("Invalid empty resource name")
    if pattern.resource in (ResourceType.UNKNOWN, ResourceType.ANY):
        raise _invalid(f"Invalid resourceType {pattern.resource.name}")
    if pattern.type not in (PatternType.LITERAL, PatternType.PREFIXED):
        raise _invalid(f"Invalid patternType {pattern.type.name}")
    if entry.operation in (Operation.UNKNOWN, Operation.ANY):
        raise _invalid(f"Invalid operation {entry.operation.name}")
    if entry.permission not in (Permission.DENY, Permission.ALLOW):
        raise _invalid(f"Invalid permissionType {entry.permission.name}")
    if ":" not in entry.principal:
        raise _invalid(
            f"Could not parse principal from `{entry.principal}` (no colon is present separating the principal type "
            "from the principal name)"
        )
    if not entry.host:
        raise _invalid("Host pattern cannot be null or empty")
    if "/" in entry.host:
        try:
            _network(entry.host)
        except ValueError as error:
            raise _invalid(f"Invalid CIDR notation '{entry.host}': {error}") from None


def _invalid(message: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_REQUEST, message)


def matches_host(wanted: str, host: str) -> bool:
    """Whether an ACL for ``wanted`` applies to a client of the address ``host``.

    >>> [matches_host(one, "10.1.2.3") for one in ("*", "10.1.2.3", "10.0.0.0/8", "fe80::/10", "10.2.0.0/16")]
    [True, True, True, False, False]
    """
    if wanted in (WILDCARD, host):
        return True
    if "/" not in wanted:
        return False
    try:
        return ip_address(host) in _network(wanted)
    except ValueError:
        return False


@lru_cache(1024)
def _network(text: str) -> IPv4Network | IPv6Network:
    """ValueError. Only the length of a prefix may follow the slash, not a mask."""
    if not text.rpartition("/")[2].isdecimal():
        raise ValueError(f"Could not parse [{text}]")
    return ip_network(text, strict=False)
