"""Consumer groups: FindCoordinator, membership, and administration."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

from seglog.broker.identity import NOT_ASKED, Identity
from seglog.broker.requests import Answer, ApiHandler, RequestContext, Sees, sees_all
from seglog.cluster.model import NO_LEADER
from seglog.coordinators.classic.group import ClassicGroup
from seglog.coordinators.classic.messages import (
    JoinGroupRequest,
    JoinGroupResult,
    LeavingMember,
    SyncGroupRequest,
    SyncGroupResult,
)
from seglog.coordinators.classic.state import GroupState
from seglog.coordinators.coordinator_error import CoordinatorError
from seglog.coordinators.coordinator_shard import Group
from seglog.coordinators.group_coordinator import GroupCoordinator
from seglog.coordinators.transactions.coordinator import TransactionCoordinator
from seglog.core.error_codes import ErrorCode
from seglog.protocol.apis import ApiKey
from seglog.protocol.messages import Message

GROUP_OPERATIONS: Final = sum(1 << operation for operation in (3, 6, 8, 10, 11))
"""Read, delete, describe, describe configs, alter configs: without ACLs, everyone may do everything."""
_log: Final = logging.getLogger("seglog.broker")
_GROUP: Final = 0
_TRANSACTION: Final = 1
_NO_NODE: Final = {"node_id": -1, "host": "", "port": -1}


class GroupApis:
    """Answers group members and administrators. For offsets see `seglog.broker.apis.group_offsets`."""

    def __init__(
        self,
        coordinator: GroupCoordinator,
        transactions: TransactionCoordinator,
        identity: Identity,
        sees: Sees = sees_all,
    ) -> None:
        self._coordinator = coordinator
        self._sees = sees
        self._transactions = transactions
        self._identity = identity

    def handlers(self) -> Mapping[int, ApiHandler]:
        return {
            ApiKey.FIND_COORDINATOR: self.find_coordinator,
            ApiKey.JOIN_GROUP: self.join_group,
            ApiKey.HEARTBEAT: self.heartbeat,
            ApiKey.LEAVE_GROUP: self.leave_group,
            ApiKey.SYNC_GROUP: self.sync_group,
            ApiKey.DESCRIBE_GROUPS: self.describe_groups,
            ApiKey.LIST_GROUPS: self.list_groups,
            ApiKey.DELETE_GROUPS: self.delete_groups,
        }

    # FindCoordinator

    async def find_coordinator(self, request: Message, context: RequestContext) -> Answer:
        return {"coordinators": [await self._find(key, request.key_type, context) for key in request.coordinator_keys]}

    async def _find(self, key: str, kind: int, context: RequestContext) -> dict[str, Any]:
        coordinator = self._coordinator if kind == _GROUP else self._transactions if kind == _TRANSACTION else None
        address, leader = None, NO_LEADER
        if coordinator is None:
            code = ErrorCode.INVALID_REQUEST  # share groups are not here, and what else there may be is not known
        else:
            leader = await coordinator.locate(key)
            address = self._identity.address(leader, context.listener)
            code = ErrorCode.COORDINATOR_NOT_AVAILABLE if address is None else ErrorCode.NONE
        message = code.name if context.version < 4 else ""
        found = {"key": key, "error_code": int(code), "error_message": message, **_NO_NODE}
        if address is not None:
            found |= {"node_id": leader, "host": address.host, "port": address.port}
        return found

    # Members

    async def join_group(self, request: Message, context: RequestContext) -> Answer:
        settings = self._coordinator.settings
        session_timeout = request.session_timeout
        if not request.group_id:
            return _joined(JoinGroupResult(ErrorCode.INVALID_GROUP_ID, request.member_id))
        if not settings.group_min_session_timeout_ms <= session_timeout <= settings.group_max_session_timeout_ms:
            return _joined(JoinGroupResult(ErrorCode.INVALID_SESSION_TIMEOUT, request.member_id))
        join = JoinGroupRequest(
            group_id=request.group_id,
            member_id=request.member_id,
            instance_id=request.group_instance_id,
            client_id=context.client_id,
            client_host=f"/{context.client_host}",
            # Version 0 has one timeout for both.
            rebalance_timeout=session_timeout if context.version == 0 else request.rebalance_timeout,
            session_timeout=session_timeout,
            protocol_type=request.protocol_type,
            protocols=tuple([(protocol.name, protocol.metadata) for protocol in request.protocols]),
            version=context.version,
        )
        try:
            return _joined(await self._coordinator.join(join, self._sees(context)))
        except CoordinatorError as error:
            return _joined(JoinGroupResult(error.code))

    async def sync_group(self, request: Message, context: RequestContext) -> Answer:
        if context.version >= 5 and (request.protocol_type is None or request.protocol_name is None):
            return _synced(SyncGroupResult(ErrorCode.INCONSISTENT_GROUP_PROTOCOL))
        if not request.group_id:
            return _synced(SyncGroupResult(ErrorCode.INVALID_GROUP_ID))
        sync = SyncGroupRequest(
            request.group_id,
            request.member_id,
            request.group_instance_id,
            request.generation_id,
            request.protocol_type,
            request.protocol_name,
            {one.member_id: one.assignment for one in request.assignments},
        )
        try:
            return _synced(await self._coordinator.sync(sync))
        except CoordinatorError as error:
            return _synced(SyncGroupResult(error.code))

    async def heartbeat(self, request: Message, _: RequestContext) -> Answer:
        if not request.group_id:
            return {"error_code": int(ErrorCode.INVALID_GROUP_ID)}
        try:
            code = await self._coordinator.heartbeat(
                request.group_id, request.member_id, request.group_instance_id, request.generation_id
            )
        except CoordinatorError as error:
            # While groups are loaded, no member is removed.
            code = ErrorCode.NONE if error.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS else error.code
        return {"error_code": int(code)}

    async def leave_group(self, request: Message, _: RequestContext) -> Answer:
        if not request.group_id:
            return {"error_code": int(ErrorCode.INVALID_GROUP_ID)}
        leaving = [LeavingMember(member.member_id, member.group_instance_id) for member in request.members]
        try:
            codes = await self._coordinator.leave(request.group_id, leaving)
        except CoordinatorError as error:
            return {"error_code": int(error.code)}
        return {
            "members": [
                {"member_id": one.member_id, "group_instance_id": one.instance_id, "error_code": int(code)}
                for one, code in zip(leaving, codes, strict=True)
            ]
        }

    # Administration

    def describe_groups(self, request: Message, context: RequestContext) -> Answer:
        operations = GROUP_OPERATIONS if context.version >= 3 and request.include_authorized_operations else NOT_ASKED
        groups = []
        for group_id in request.groups:
            described = {"group_id": group_id, **self._describe(group_id, context.version)}
            if not described.get("error_code"):
                described["authorized_operations"] = operations
            groups.append(described)
        return {"groups": groups}

    def _describe(self, group_id: str, version: int) -> dict[str, Any]:
        try:
            group = self._coordinator.shard(group_id).groups.get(group_id)
        except CoordinatorError as error:
            return {"error_code": int(error.code)}
        if isinstance(group, ClassicGroup):
            return _described(group)
        why = "not found" if group is None else "is not a classic group"
        if version < 6:
            return {"group_state": GroupState.DEAD.value}
        return {
            "group_state": GroupState.DEAD.value,
            "error_code": int(ErrorCode.GROUP_ID_NOT_FOUND),
            "error_message": f"Group {group_id} {why}.",
        }

    def list_groups(self, request: Message, _: RequestContext) -> Answer:
        states = {state.lower().strip() for state in request.states_filter}
        types = {kind.lower() for kind in request.types_filter}
        try:
            groups = [group for shard in self._coordinator.shards() for group in shard.groups.values()]
        except CoordinatorError as error:
            return {"error_code": int(error.code)}
        return {
            "groups": [
                {
                    "group_id": group.group_id,
                    "protocol_type": group.protocol_type or "",
                    "group_state": group.state.value,
                    "group_type": _type_of(group),
                }
                for group in groups
                if (not states or group.state.value.lower() in states) and (not types or _type_of(group) in types)
            ]
        }

    async def delete_groups(self, request: Message, _: RequestContext) -> Answer:
        results = []
        for group_id in dict.fromkeys(request.groups_names):
            try:
                code = await self._coordinator.delete_group(group_id)
            except CoordinatorError as error:
                code = error.code
            results.append({"group_id": group_id, "error_code": int(code)})
        return {"results": results}


def _type_of(group: Group) -> str:
    return "classic" if isinstance(group, ClassicGroup) else "consumer"


def _joined(answer: JoinGroupResult) -> Answer:
    return {
        "error_code": int(answer.code),
        "generation_id": answer.generation,
        "protocol_type": answer.protocol_type,
        "protocol_name": answer.protocol,
        "leader": answer.leader,
        "skip_assignment": answer.skip_assignment,
        "member_id": answer.member_id,
        "members": [
            {"member_id": member.member_id, "group_instance_id": member.instance_id, "metadata": member.metadata}
            for member in answer.members
        ],
    }


def _synced(answer: SyncGroupResult) -> Answer:
    return {
        "error_code": int(answer.code),
        "protocol_type": answer.protocol_type,
        "protocol_name": answer.protocol,
        "assignment": answer.assignment,
    }


def _described(group: ClassicGroup) -> dict[str, Any]:
    """Only a stable group has a protocol that all members use."""
    is_stable = group.state is GroupState.STABLE
    return {
        "group_state": group.state.value,
        "protocol_type": group.protocol_type or "",
        "protocol_data": group.protocol if is_stable else "",
        "members": [
            {
                "member_id": member.member_id,
                "group_instance_id": member.instance_id,
                "client_id": member.client_id,
                "client_host": member.client_host,
                "member_metadata": member.metadata(group.protocol) if is_stable else b"",
                "member_assignment": member.assignment,
            }
            for member in group.members
        ],
    }
