"""A broker of seglog with an authorizer: clients of SASL log in by PLAIN, and those of PLAINTEXT may do everything."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from seglog.broker.security.acls import Acl, Entry, Operation, Pattern, PatternType, Permission, ResourceType
from seglog.protocol.apis import ApiKey
from tests.broker.broker_thread import RunningNode, Wire
from tests.broker.security.permission_requests import creation
from tests.broker.security.secured_node import log_in
from tests.kafka.acl_node import acl_settings, password_of

__all__ = ["LISTENERS", "AclNode", "acl", "add", "everything", "remove"]

LISTENERS: Final = {
    "listeners": "PLAINTEXT://127.0.0.1:0,SASL://127.0.0.1:0",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SASL:SASL_PLAINTEXT",
}


class AclNode(RunningNode):
    def __init__(self, path: Path, users: Iterable[str], settings: Mapping[str, str] | None = None) -> None:
        super().__init__(path, {**LISTENERS, **acl_settings(users), **(settings or {})})

    @property
    def secured(self) -> str:
        """`host:port` of the listener SASL."""
        return next(one.host_port for one in self.node.addresses if one.name == "SASL")

    def of(self, user: str) -> Wire:
        """A connection of a user."""
        wire = Wire(self.secured)
        log_in(wire, user, password_of(user))
        return wire


def acl(
    user: str,
    operation: Operation,
    resource: ResourceType,
    name: str,
    *,
    kind: PatternType = PatternType.LITERAL,
    permission: Permission = Permission.ALLOW,
    host: str = "*",
) -> Acl:
    return Acl(Pattern(resource, name, kind), Entry(f"User:{user}", host, operation, permission))


def add(wire: Wire, *acls: Acl) -> None:
    results = wire.ask(ApiKey.CREATE_ACLS, creations=[creation(one) for one in acls]).results
    assert [(one.error_code, one.error_message) for one in results] == [(0, None)] * len(acls)


def everything(**more: Any) -> dict[str, Any]:
    """A filter that matches all ACLs, as an element of DeleteAcls or as DescribeAcls; ``more`` narrows it."""
    any_ = {"resource_type_filter": 1, "pattern_type_filter": 1, "operation": 1, "permission_type": 1}
    return {**any_, "resource_name_filter": None, "principal_filter": None, "host_filter": None, **more}


def remove(wire: Wire, **more: Any) -> int:
    """Delete ACLs; returns how many."""
    (result,) = wire.ask(ApiKey.DELETE_ACLS, filters=[everything(**more)]).filter_results
    assert result.error_code == 0
    return len(result.matching_acls)
