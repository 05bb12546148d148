"""Consumer groups: FindCoordinator, membership, and administration."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from seglog.broker.identity import NOT_ASKED, Identity
from seglog.broker.requests import Answer, ApiHandler, RequestContext
from seglog.broker.topic_changes import TopicChanges
from seglog.broker.topics import Topics
from seglog.coordinators.classic_group import ClassicGroup
from seglog.coordinators.group_coordinator import GroupCoordinator
from seglog.coordinators.group_messages import (
    CoordinatorError,
    JoinGroupRequest,
    JoinGroupResult,
    LeavingMember,
    SyncGroupRequest,
    SyncGroupResult,
)
from seglog.coordinators.group_state import GroupState
from seglog.coordinators.settings import OFFSETS_TOPIC, GroupSettings
from seglog.core.error_codes import ErrorCode
from seglog.core.errors import SeglogError
from seglog.protocol.apis import ApiKey
from seglog.protocol.messages import Message
from seglog.replication.replica import Replica

GROUP_OPERATIONS: Final = sum(1 << operation for operation in (3, 6, 8, 10, 11))
"""Read, delete, describe, describe configs, alter configs: without ACLs, everyone may do everything."""
_log: Final = logging.getLogger("seglog.broker")
_GROUP: Final = 0
_TRANSACTION: Final = 1
_NOBODY: Final = -1
_SETTLED_SECONDS: Final = 2.0
"""How long the first group waits until its partition has a leader. Without the wait, clients retry only after a second.
"""
_NO_NODE: Final = {"node_id": -1, "host": "", "port": -1}
_NO_TRANSACTIONS: Final = "seglog has no transactions yet: produce without transactional.id"


class BrokerOffsetsTopic:
    """``__consumer_offsets`` as this broker sees it: the `OffsetsTopic` of its `GroupCoordinator`. A new topic gets
    ``config`` in addition to Kafka's."""

    def __init__(
        self,
        topics: Topics,
        changes: TopicChanges,
        settings: GroupSettings,
        identity: Identity,
        config: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._config = config
        self._topics = topics
        self._changes = changes
        self._settings = settings
        self._identity = identity

    def partitions(self) -> Sequence[Replica | None]:
        topic = self._topics.by_name.get(OFFSETS_TOPIC)
        return () if topic is None else topic.partitions

    def leader(self, number: int) -> int:
        topic = self._topics.by_name.get(OFFSETS_TOPIC)
        if topic is None or number >= len(topic.partitions):
            return _NOBODY
        return self._topics.standing(topic, number).leader

    def is_awaited(self, number: int) -> bool:
        partitions = self.partitions()
        has_none = number < len(partitions) and partitions[number] is None
        return has_none and self.leader(number) == self._identity.node_id

    async def create(self) -> None:
        settings = self._settings
        factor = min(settings.offsets_topic_replication_factor, len(self._identity.racks()))
        count, config = settings.offsets_topic_num_partitions, {**settings.topic_config(), **self._config}
        topic = await self._changes.ensure(OFFSETS_TOPIC, count, config, factor=factor)
        await self._changes.settled([topic], _SETTLED_SECONDS)

    async def complete_config(self) -> None:
        """Give a topic that an earlier release made the configuration of a new one, except for keys that it has."""
        if OFFSETS_TOPIC in self._topics.by_name:
            try:
                await self._changes.complete_config(OFFSETS_TOPIC, self._config)
            except SeglogError as error:
                _log.warning("%s is not flushed with each commit: %s", OFFSETS_TOPIC, error)


class GroupApis:
    """Answers group members and administrators. For offsets see `seglog.broker.apis.group_offsets`."""

    def __init__(self, coordinator: GroupCoordinator, identity: Identity) -> None:
        self._coordinator = coordinator
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
        message, address, leader = None, None, _NOBODY
        if kind == _GROUP:
            leader = await self._coordinator.locate(key)
            address = self._identity.address(leader, context.listener)
            code = ErrorCode.COORDINATOR_NOT_AVAILABLE if address is None else ErrorCode.NONE
        elif kind == _TRANSACTION:
            # Every client gives up at once on this code. On 53 Java does not show the message; on all others
            # librdkafka tries again until its time is over.
            code, message = ErrorCode.CLUSTER_AUTHORIZATION_FAILED, _NO_TRANSACTIONS
        else:
            code = ErrorCode.INVALID_REQUEST  # share groups, and unknown types
        if message is None and context.version < 4:
            message = code.name
        found = {"key": key, "error_code": int(code), "error_message": message or "", **_NO_NODE}
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
            return _joined(await self._coordinator.join(join))
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

    def heartbeat(self, request: Message, _: RequestContext) -> Answer:
        if not request.group_id:
            return {"error_code": int(ErrorCode.INVALID_GROUP_ID)}
        try:
            code = self._coordinator.heartbeat(
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
        if group is not None:
            return _described(group)
        if version < 6:
            return {"group_state": GroupState.DEAD.value}
        return {
            "group_state": GroupState.DEAD.value,
            "error_code": int(ErrorCode.GROUP_ID_NOT_FOUND),
            "error_message": f"Group {group_id} not found.",
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
                    "group_type": "classic",
                }
                for group in groups
                if (not states or group.state.value.lower() in states) and (not types or "classic" in types)
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
