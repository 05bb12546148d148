"""The page of permissions, from the table by which the broker checks requests."""

from __future__ import annotations

from seglog.broker.security.acls import Operation, ResourceType
from seglog.broker.security.authorizer import OPERATIONS, SUFFICE
from seglog.broker.security.permissions import NEEDS, Denied, Need
from seglog.protocol.apis import name_of

_LATEST = 1 << 15


def permissions() -> str:
    """The page, in Markdown."""
    lines = [
        "# Permissions",
        "",
        "`seglog.broker.security.permissions` has this table; the broker checks requests by it, and",
        "`tests/interop/test_acl_answers.py` compares the answers with Kafka's. `python -m docs_site --write`",
        "writes the page. [Secure a broker](security.md#acls) says how to grant permissions.",
        "",
        "Without an authorizer, none of it is checked. Brokers of the cluster and `super.users` may do everything.",
        "",
        "| API | operation | on | of | without it |",
        "|---|---|---|---|---|",
    ]
    for key, needs in sorted(NEEDS.items(), key=lambda one: name_of(one[0])):
        if not needs:
            lines.append(f"| {name_of(key)} | none | | | |")
        lines += [
            f"| {name_of(key)}{_versions(need)} | {_operation(need)} | {_on(need)} | {_denied(need)} |"
            for need in needs
        ]
    lines += ["", "An ALLOW for one operation is one for others too; a DENY is not:", ""]
    for operation, enough in SUFFICE.items():
        others = ", ".join(sorted(_words(one) for one in enough if one != operation))
        lines.append(f"- {_words(Operation(operation))} is allowed by {others}.")
    lines += ["", "The operations of a resource, as `seglog acls add` takes them:", ""]
    lines += [f"- {_words(kind)}: {', '.join(map(_words, some))}." for kind, some in OPERATIONS.items()]
    return "\n".join(lines) + "\n"


def _versions(need: Need) -> str:
    if need.first:
        return f" {need.first} and later"
    return f" before {need.last + 1}" if need.last != _LATEST else ""


def _operation(need: Need) -> str:
    others = [f"or {_words(operation)} on {_some(kind)}" for operation, kind in need.or_else]
    return ", ".join([_words(need.operation), *others])


def _some(kind: ResourceType) -> str:
    return "Cluster" if kind is ResourceType.CLUSTER else f"any {_words(kind)}"


def _on(need: Need) -> str:
    return f"{_words(need.resource)} | {f'`{need.of}`' if need.of else ''}"


def _denied(need: Need) -> str:
    has_code = need.denied in (Denied.REQUEST, Denied.ELEMENT)
    text = f"{need.code.name}: {need.denied.value}" if has_code else need.denied.value
    return f"{text} ({need.note})" if need.note else text


def _words(value: Operation | ResourceType) -> str:
    """As Kafka's tools write it.

    >>> _words(Operation.DESCRIBE_CONFIGS)
    'DescribeConfigs'
    """
    return value.name.title().replace("_", "")
