"""Random ACLs, and requests that meet them: few names, many of which begin alike."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final, NamedTuple

from seglog.broker.security.acls import (
    Acl,
    AclFilter,
    Entry,
    Operation,
    Pattern,
    PatternType,
    Permission,
    ResourceType,
)
from seglog.broker.security.authorizer import Authorizer, Client

__all__ = ["AclCase", "Asked", "answers", "case_of"]

_RESOURCES: Final = [one for one in ResourceType if one > ResourceType.ANY]
_OPERATIONS: Final = [one for one in Operation if one > Operation.ANY]
_NAMES: Final = ("*", "a", "ab", "abc", "abd", "b", "a*", "A", "hardcode", "hard", "é", "ж", "kafka-cluster")
_PRINCIPALS: Final = ("User:*", "User:ann", "User:bob", "Group:ann", "User:CN=a,O=b", "User:a:b", "User:")
_HOSTS: Final = (
    "*", "10.0.0.1", "10.0.0.2", "10.0.0.0/8", "10.0.0.1/32", "10.0.0.0/31", "192.168.0.0/16", "0.0.0.0/0",
    "2001:db8:0:0:0:0:0:1", "2001:db8::/32", "::/0", "fe80::/10",
)  # fmt: skip
_FROM: Final = ("10.0.0.1", "10.0.0.2", "192.168.7.7", "2001:db8:0:0:0:0:0:1", "fe80:0:0:0:0:0:0:2")


class Asked(NamedTuple):
    """``name`` is None for any resource of the type."""

    client: Client
    operation: Operation
    resource: ResourceType
    name: str | None


class AclCase(NamedTuple):
    super_users: str
    everyone: bool
    acls: list[Acl]
    requests: list[Asked]
    filters: list[AclFilter]


def _name(rng: random.Random, names: Sequence[str]) -> str:
    """Kafka does not apply ACLs for ``*`` to a name that begins with an asterisk (``docs/differences.md``)."""
    name = rng.choice(names)
    return name if name == "*" else name + rng.choice(("", "", "c", "-x"))


def case_of(seed: int, *, requests: int = 20, filters: int = 5) -> AclCase:
    rng = random.Random(seed)
    # Most requests are about two types of resources and few names, or they would rarely meet an ACL.
    resources = rng.sample(_RESOURCES, 2)
    operations = rng.sample(_OPERATIONS, rng.choice((3, 6, len(_OPERATIONS))))
    names = rng.sample(_NAMES, rng.choice((3, 6, len(_NAMES))))
    acls = {
        Acl(
            Pattern(rng.choice(resources), rng.choice(names), rng.choice((PatternType.LITERAL, PatternType.PREFIXED))),
            Entry(
                rng.choice(_PRINCIPALS),
                rng.choice(_HOSTS) if rng.random() < 0.6 else "*",
                rng.choice(operations),
                Permission.ALLOW if rng.random() < 0.75 else Permission.DENY,
            ),
        )
        for _ in range(rng.choice((0, 1, 3, 8, 20)))
    }
    asked = [
        Asked(
            Client(rng.choice(_PRINCIPALS[1:]), rng.choice(_FROM)),
            rng.choice([one for one in operations if one is not Operation.ALL] or [Operation.READ]),
            rng.choice(resources),
            None if rng.random() < 0.2 else _name(rng, names),
        )
        for _ in range(requests)
    ]
    wanted = [
        AclFilter(
            rng.choice((ResourceType.ANY, *resources)),
            rng.choice((None, *names)),
            rng.choice([one for one in PatternType if one]),
            rng.choice((None, *_PRINCIPALS)),
            rng.choice((None, None, *_HOSTS)),
            rng.choice((Operation.ANY, *operations)),
            rng.choice((Permission.ANY, Permission.ALLOW, Permission.DENY)),
        )
        for _ in range(filters)
    ]
    super_users = rng.choice(("", "", "User:bob", "User:x; User:a:b"))
    return AclCase(super_users, rng.random() < 0.3, sorted(acls), asked, wanted)


def answers(case: AclCase) -> list[int]:
    """Of an `Authorizer`: 1 for a request that it allows, and the number of ACLs that match each filter."""
    users = [text for one in case.super_users.split(";") if (text := one.strip())]
    authorizer = Authorizer(users, allows_without_acls=case.everyone)
    for pattern in {acl.pattern for acl in case.acls}:
        authorizer.put(pattern, [acl.entry for acl in case.acls if acl.pattern == pattern])
    verdicts = [
        authorizer.verdict_on_some(*asked[:3]) if asked.name is None else authorizer.verdict(*asked[:3], asked.name)
        for asked in case.requests
    ]
    return [int(one.is_allowed) for one in verdicts] + [len(list(authorizer.matching(one))) for one in case.filters]
