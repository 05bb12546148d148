"""Changes to a broker for tests from inside, on its event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from seglog.broker.app import Node
from seglog.coordinators.coordinator_error import CoordinatorError
from seglog.coordinators.coordinator_shard import CoordinatorShard
from seglog.coordinators.group_messages import LeavingMember
from seglog.core.error_codes import ErrorCode
from seglog.core.errors import TopicExistsError


async def reset(node: Node, topics: Mapping[str, int]) -> None:
    """Delete all groups and topics, and make these."""
    for shard in await _loaded(node):
        for group_id in list(shard.groups):
            await _delete_group(node, shard, group_id)
    for topic in list(node.topics):
        if not topic.is_internal:
            await node.changes.delete(topic)
    for name, partitions in topics.items():
        try:
            await create_topic(node, name, partitions, {})
        except TopicExistsError:  # a client that was left running has asked for it
            await node.changes.delete(node.topics.by_name[name])
            await create_topic(node, name, partitions, {})


async def create_missing(node: Node, topics: Mapping[str, int]) -> None:
    """Make those of these topics that are not there. Errors of `LogDir.create_topic`."""
    for name, partitions in topics.items():
        if name not in node.topics.by_name:
            await create_topic(node, name, partitions, {})


async def create_topic(node: Node, name: str, partitions: int, config: Mapping[str, str]) -> None:
    """Errors of `LogDir.create_topic`."""
    await node.changes.create(name, node.changes.place(partitions, 1), config)


async def _loaded(node: Node) -> list[CoordinatorShard]:
    while True:
        try:
            return list(node.groups.shards())
        except CoordinatorError:  # it has just started, and reads what there was
            await asyncio.sleep(0.001)


async def _delete_group(node: Node, shard: CoordinatorShard, group_id: str) -> None:
    while (group := shard.groups.get(group_id)) is not None:
        members = [LeavingMember(member.member_id, member.instance_id) for member in group.members]
        if members:
            await node.groups.leave(group_id, members)
        if await node.groups.delete_group(group_id) in (ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND):
            return
