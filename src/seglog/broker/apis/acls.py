"""Access control lists: CreateAcls, DescribeAcls, DeleteAcls (KIP-140, 290). Without an authorizer,
`seglog.broker.apis.unsupported` answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from seglog.broker.offload import in_turns
from seglog.broker.requests import Answer, ApiError, ApiHandler, RequestContext, failure
from seglog.broker.security.acl_store import StoredAcls
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
    of_number,
)
from seglog.broker.security.authorizer import Authorizer
from seglog.core.error_codes import ErrorCode
from seglog.core.errors import InvalidRequestError
from seglog.protocol.apis import ApiKey
from seglog.protocol.messages import Message

_MOST: Final = 10_000
"""ACLs that one request may change (``MAX_RECORDS_PER_USER_OP``)."""


class AclApis:
    def __init__(self, authorizer: Authorizer, stored: StoredAcls) -> None:
        self._authorizer = authorizer
        self._stored = stored

    def handlers(self) -> Mapping[int, ApiHandler]:
        return {
            ApiKey.DESCRIBE_ACLS: self.describe,
            ApiKey.CREATE_ACLS: self.create,
            ApiKey.DELETE_ACLS: self.delete,
        }

    async def describe(self, request: Message, _: RequestContext) -> Answer:
        wanted = _known_filter(request, "DescribeAcls")
        patterns: dict[Pattern, list[dict[str, Any]]] = {}
        async for pattern, entry in in_turns(list(self._authorizer.matching(wanted))):
            patterns.setdefault(pattern, []).append(_entry(entry))
        return {"resources": [{**_pattern(pattern), "acls": entries} for pattern, entries in patterns.items()]}

    async def create(self, request: Message, _: RequestContext) -> Answer:
        acls = [_acl(one) async for one in in_turns(request.creations)]
        if any(not all((*acl.pattern[::2], *acl.entry[2:])) for acl in acls):
            raise InvalidRequestError("CreatableAcls contain unknown elements")
        failed: dict[Acl, ApiError] = {}
        async for acl in in_turns(acls):
            try:
                check_acl(acl)
                if len(acls) > _MOST:
                    raise ApiError(ErrorCode.POLICY_VIOLATION, f"a request creates at most {_MOST} ACLs")
            except ApiError as error:
                failed[acl] = error
        failed |= await self._stored.add([acl async for acl in in_turns(acls) if acl not in failed])
        return {
            "results": [failure(failed[acl]) if acl in failed else {"error_code": 0} async for acl in in_turns(acls)]
        }

    async def delete(self, request: Message, _: RequestContext) -> Answer:
        results: list[dict[str, Any]] = []
        for one in request.filters:
            wanted = _known_filter(one, "DeleteAcls")
            try:
                check_filter(wanted)
                removed = await self._stored.remove(wanted)
            except ApiError as error:
                results.append(failure(error))
                continue
            matching = [
                {**({} if error is None else failure(error)), **_pattern(acl.pattern), **_entry(acl.entry)}
                for acl, error in removed.items()
            ]
            results.append({"error_code": 0, "matching_acls": matching})
        return {"filter_results": results}


def _acl(asked: Message) -> Acl:
    return Acl(
        Pattern(
            of_number(ResourceType, asked.resource_type),
            asked.resource_name,
            of_number(PatternType, asked.resource_pattern_type),
        ),
        Entry(
            asked.principal,
            asked.host,
            of_number(Operation, asked.operation),
            of_number(Permission, asked.permission_type),
        ),
    )


def _known_filter(asked: Message, api: str) -> AclFilter:
    """`InvalidRequestError`, which ends the connection as in Kafka, if a part of it is not known."""
    found = AclFilter(
        of_number(ResourceType, asked.resource_type_filter),
        asked.resource_name_filter,
        of_number(PatternType, asked.pattern_type_filter),
        asked.principal_filter,
        asked.host_filter,
        of_number(Operation, asked.operation),
        of_number(Permission, asked.permission_type),
    )
    if not (found.resource and found.type and found.operation and found.permission):
        raise InvalidRequestError(f"{api} contains UNKNOWN elements")
    return found


def _pattern(pattern: Pattern) -> dict[str, Any]:
    return {
        "resource_type": int(pattern.resource),
        "resource_name": pattern.name,
        "pattern_type": int(pattern.type),
    }


def _entry(entry: Entry) -> dict[str, Any]:
    return {
        "principal": entry.principal,
        "host": entry.host,
        "operation": int(entry.operation),
        "permission_type": int(entry.permission),
    }
