"""Changes to a broker for tests from inside, on its event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from seglog.broker.app import Node
from seglog.coordinators.classic.group import ClassicGroup
from seglog.coordinators.classic.messages import LeavingMember
from seglog.coordinators.coordinator_error import CoordinatorError
from seglog.coordinators.coordinator_shard import CoordinatorShard
from seglog.core.error_codes import ErrorCode
from seglog.core.errors import TopicExistsError
from seglog.faults.topic_fixture import TopicFixture, config_text
from seglog.records.record import encode_batch


async def reset(node: Node, topics: Mapping[str, TopicFixture]) -> None:
    """Delete all groups and topics, and make these."""
    for shard in await _loaded(node):
        for group_id in list(shard.groups):
            await _delete_group(node, shard, group_id)
    for topic in list(node.topics):
        if not topic.is_internal:
            await node.changes.delete(topic)
    for name, fixture in topics.items():
        try:
            await create_topic(node, name, fixture)
        except TopicExistsError:  # a client that was left running has asked for it
            await node.changes.delete(node.topics.by_name[name])
            await create_topic(node, name, fixture)


async def create_missing(node: Node, topics: Mapping[str, TopicFixture]) -> None:
    """Make those of these topics that are not there. Errors of `LogDir.create_topic`."""
    for name, fixture in topics.items():
        if name not in node.topics.by_name:
            await create_topic(node, name, fixture)


async def create_topic(node: Node, name: str, fixture: TopicFixture) -> None:
    """Make a topic with its records. Errors of `LogDir.create_topic` and `Log.append`, `FaultError`."""
    batches = list(fixture.batches())
    assignment = node.changes.place(fixture.partitions, fixture.replication)
    await node.changes.create(name, assignment, config_text(fixture.config))
    for number, records in batches:
        # The controller takes up many partitions in parts.
        while (replica := node.topics.partition(name, number)) is None or not replica.leads:
            await asyncio.sleep(0.001)
        now_ms = replica.log.clock.now_ms()
        replica.append(encode_batch([one._replace(timestamp=now_ms) if one.timestamp < 0 else one for one in records]))


async def _loaded(node: Node) -> list[CoordinatorShard]:
    while True:
        try:
            return list(node.groups.shards())
        except CoordinatorError:  # it has just started, and reads what there was
            await asyncio.sleep(0.001)


async def _delete_group(node: Node, shard: CoordinatorShard, group_id: str) -> None:
    while (group := shard.groups.get(group_id)) is not None:
        there = group.members if isinstance(group, ClassicGroup) else list(group.members.values())
        members = [LeavingMember(member.member_id, member.instance_id) for member in there]
        if members:
            await node.groups.leave(group_id, members)
        if await node.groups.delete_group(group_id) in (ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND):
            return
