"""Decisions of the authorizer, against a naive model and while ACLs change. `tests/interop/test_acl_decisions.py`
compares them with Kafka's."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog.broker.requests import ApiError
from seglog.broker.security import authorizer as module
from seglog.broker.security.acls import (
    Acl,
    AclFilter,
    Entry,
    Operation,
    Pattern,
    PatternType,
    Permission,
    ResourceType,
    check_acl,
    check_filter,
    matches_host,
)
from seglog.broker.security.authorizer import OPERATIONS, Authorizer, Client
from tests.broker.security.generated_acls import Asked, answers, case_of
from tests.cases import case

READ, ALLOW, DENY = Operation.READ, Permission.ALLOW, Permission.DENY
TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP
ANN = Client("User:ann", "10.0.0.1")
_IMPLIED = {
    Operation.DESCRIBE: {Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER},
    Operation.DESCRIBE_CONFIGS: {Operation.ALTER_CONFIGS},
}


def naive(acls: list[Acl], asked: Asked, *, everyone: bool) -> bool:
    """All ACLs, one after the other: a denial wins, then a permission, then the default."""
    assert asked.name is not None
    about = [
        acl.entry
        for acl in acls
        if acl.pattern.resource is asked.resource
        and (
            acl.pattern.name in (asked.name, "*")
            if acl.pattern.type is PatternType.LITERAL
            else asked.name.startswith(acl.pattern.name)
        )
    ]
    applying = [
        one for one in about
        if one.principal in (asked.client.principal, "User:*") and matches_host(one.host, asked.client.host)
    ]  # fmt: skip
    exact = {asked.operation, Operation.ALL}
    if any(one.permission is DENY and one.operation in exact for one in applying):
        return False
    enough = exact | _IMPLIED.get(asked.operation, set())
    return any(one.permission is ALLOW and one.operation in enough for one in applying) or (everyone and not about)


@given(st.integers(0, 1 << 32))
def test_decisions_are_those_of_a_naive_model(seed: int) -> None:
    made = case_of(seed)
    users = {one.strip() for one in made.super_users.split(";")}
    for asked, answer in zip(made.requests, answers(made), strict=False):
        case()
        if asked.name is not None:
            expected = asked.client.principal in users or naive(made.acls, asked, everyone=made.everyone)
            assert bool(answer) == expected, asked


@given(st.integers(0, 1 << 32))
def test_a_change_takes_effect_with_the_next_decision(seed: int) -> None:
    made, rng = case_of(seed), random.Random(seed)
    changing = Authorizer(allows_without_acls=made.everyone)
    entries: dict[Pattern, set[Entry]] = {}
    for one in rng.choices(made.acls, k=2 * len(made.acls)):
        entries.setdefault(one.pattern, set()).symmetric_difference_update({one.entry})
        changing.put(one.pattern, sorted(entries[one.pattern]))
        there = [Acl(pattern, entry) for pattern, some in entries.items() for entry in some]
        for asked in made.requests[:4]:
            if asked.name is not None:
                case()
                expected = naive(there, asked, everyone=made.everyone)
                assert changing.verdict(*asked[:3], asked.name).is_allowed == expected
        assert sorted(changing.matching(AclFilter())) == sorted(there)


def test_a_decision_names_its_rule() -> None:
    asked = Authorizer({"User:root"})
    pattern, entry = Pattern(TOPIC, "t"), Entry("User:*", "*", READ, DENY)
    assert asked.verdict(Client("User:root", ""), READ, TOPIC, "t").rule == "SuperUser"
    assert asked.verdict(ANN, READ, TOPIC, "t").rule == "DefaultDeny"
    asked.put(pattern, [entry])
    assert asked.verdict(ANN, READ, TOPIC, "t").rule == Acl(pattern, entry)
    assert Authorizer(allows_without_acls=True).verdict(ANN, READ, TOPIC, "t").rule == "DefaultAllow"


def test_an_acl_for_all_names_is_for_names_that_begin_with_an_asterisk_too() -> None:
    """Kafka passes over it, so that a denial for all groups would not hold for this one."""
    asked = Authorizer()
    asked.put(Pattern(GROUP, "*g", PatternType.PREFIXED), [Entry("User:ann", "*", READ, ALLOW)])
    assert asked.verdict(ANN, READ, GROUP, "*g").is_allowed
    asked.put(Pattern(GROUP, "*"), [Entry("User:ann", "*", READ, DENY)])
    assert not asked.verdict(ANN, READ, GROUP, "*g").is_allowed


def test_operations_are_a_field_of_bits() -> None:
    asked = Authorizer({"User:root"})
    asked.put(Pattern(TOPIC, "t"), [Entry("User:ann", "*", READ, ALLOW)])
    assert asked.operations(ANN, TOPIC, "t") == 1 << READ | 1 << Operation.DESCRIBE
    assert asked.operations(ANN, TOPIC, "u") == 0
    assert asked.operations(Client("User:root", ""), TOPIC, "u") == sum(1 << one for one in OPERATIONS[TOPIC])


def test_remembered_decisions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_REMEMBERED", 10)
    asked = Authorizer()
    asked.put(Pattern(TOPIC, "t7", PatternType.PREFIXED), [Entry("User:ann", "*", READ, ALLOW)])
    allowed = [name for number in range(100) if asked.verdict(ANN, READ, TOPIC, name := f"t{number}").is_allowed]
    assert allowed == ["t7", *(f"t7{number}" for number in range(10))]


@pytest.mark.parametrize(
    ("pattern", "entry", "message"),
    [
        (Pattern(ResourceType.CLUSTER, "x"), {}, "The only valid name for the CLUSTER resource is kafka-cluster"),
        (Pattern(TOPIC, ""), {}, "Invalid empty resource name"),
        (Pattern(ResourceType.ANY, "x"), {}, "Invalid resourceType ANY"),
        (Pattern(TOPIC, "x", PatternType.MATCH), {}, "Invalid patternType MATCH"),
        (Pattern(TOPIC, "x"), {"operation": Operation.ANY}, "Invalid operation ANY"),
        (Pattern(TOPIC, "x"), {"permission": Permission.ANY}, "Invalid permissionType ANY"),
        (Pattern(TOPIC, "x"), {"principal": "ann"}, "Could not parse principal from `ann` "),
        (Pattern(TOPIC, "x"), {"host": ""}, "Host pattern cannot be null or empty"),
        (Pattern(TOPIC, "x"), {"host": "10.0.0.0/33"}, "Invalid CIDR notation '10.0.0.0/33'"),
        (Pattern(TOPIC, "x"), {"host": "10.0.0.0/255.0.0.0"}, "Invalid CIDR notation '10.0.0.0/255.0.0.0'"),
        (Pattern(TOPIC, "x"), {"host": "::1/129"}, "Invalid CIDR notation '::1/129'"),
        (Pattern(TOPIC, "x"), {"host": "h/8"}, "Invalid CIDR notation 'h/8'"),
    ],
)
def test_acls_that_cannot_be_created(pattern: Pattern, entry: dict[str, Any], message: str) -> None:
    good = Entry("User:ann", "*", READ, ALLOW)
    with pytest.raises(ApiError, match=message.replace("`", ".")) as refused:
        check_acl(Acl(pattern, good._replace(**entry)))
    assert str(refused.value).startswith(message)
    for host in ("*", "10.1.2.3", "10.0.0.0/8", "10.1.2.3/32", "::/0", "any text"):
        check_acl(Acl(Pattern(TOPIC, "x"), good._replace(host=host)))


def test_filters_with_unknown_parts_are_refused() -> None:
    check_filter(AclFilter())
    for wanted in (AclFilter(resource=ResourceType.UNKNOWN), AclFilter(type=PatternType.UNKNOWN)):
        with pytest.raises(ApiError, match="Unknown patternFilter"):
            check_filter(wanted)
    for wanted in (AclFilter(operation=Operation.UNKNOWN), AclFilter(permission=Permission.UNKNOWN)):
        with pytest.raises(ApiError, match="Unknown entryFilter"):
            check_filter(wanted)
