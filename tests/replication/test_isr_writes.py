"""A leader's writes of its ISR when others write too, when the outcome is unknown, and when it learns of a state
late."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Final
from uuid import UUID

import pytest

from seglog.cluster.cluster_view import NamedValue
from seglog.cluster.model import (
    GENERATION,
    GENERATION_BASE,
    BrokerRegistration,
    Member,
    PartitionState,
    broker_name,
    decode_partition,
    encode,
    generation_of,
    partition_name,
)
from seglog.cluster.store import ANY_VERSION, Change, VersionedValue
from seglog.core.errors import NotLeaderError
from seglog.replication.replica import ReplicaFetch
from tests.cluster.faulty import BEFORE, UNKNOWN
from tests.replication.brokers import Node, cluster
from tests.replication.logs import batch

OTHER: Final = Member(2, 99)


def run(path: Path, act: Callable[[Node, UUID], Awaitable[None]]) -> None:
    """Run with a broker that leads a partition and is the whole ISR; the test plays `OTHER`, which has a replica."""

    async def within() -> None:
        async with cluster(path, 1) as (node,):
            await register(node, OTHER)
            topic_id = await node.create("t", [[1, 2]])
            await node.put(topic_id, lambda state: replace(state, isr=(node.me,)))
            await node.until(lambda: (topic_id, 0) in node.replicas.by_key and node.replica(topic_id).leads)
            await act(node, topic_id)

    asyncio.run(within())


async def register(node: Node, member: Member) -> None:
    value = encode(BrokerRegistration(node_id=member.node_id, epoch=member.epoch, kept_since=0))
    if await node.store.get(broker_name(member.node_id)) is not None:
        await node.store.delete(broker_name(member.node_id))
    await node.store.create(broker_name(member.node_id), value)
    await node.until(lambda: member.node_id in node.view.brokers and node.view.brokers[2].epoch == member.epoch)


def fetch(node: Node, topic_id: UUID, member: Member = OTHER) -> None:
    """The follower has everything."""
    replica = node.replica(topic_id)
    node.replicas.serve(replica, ReplicaFetch(*member, replica.leader_epoch, 0, -1, 0, 1 << 20))


def isr(node: Node, topic_id: UUID) -> tuple[Member, ...]:
    return node.view.partitions[topic_id, 0].state.isr


async def in_store(node: Node, topic_id: UUID) -> PartitionState:
    name = partition_name(topic_id, 0)
    found = await node.store.get(name)
    assert found is not None
    return decode_partition(name, found.value)


def test_the_first_leader_says_that_the_partition_is_served(tmp_path: Path) -> None:
    async def act(node: Node, topic_id: UUID) -> None:
        await node.put(topic_id, lambda state: replace(state, is_new=True))
        await node.until(lambda: not node.view.partitions[topic_id, 0].state.is_new)
        assert await in_store(node, topic_id) == node.view.partitions[topic_id, 0].state
        assert isr(node, topic_id) == (node.me,)

    run(tmp_path, act)


def test_a_new_partition_takes_no_record_before_the_store_has_confirmed_that_it_is_written(tmp_path: Path) -> None:
    """So a new state proves that nothing was ever acknowledged. The generation rises, because an older copy of the
    state would prove nothing."""

    async def act(node: Node, topic_id: UUID) -> None:
        node.faulty.fail(BEFORE, at="partitions/")
        before = generation_of(await node.store.get_many([GENERATION, GENERATION_BASE]))
        await node.put(topic_id, lambda state: replace(state, is_new=True))
        replica = node.replica(topic_id)
        with pytest.raises(NotLeaderError, match="t-0 is new"):
            replica.append(batch())
        await node.until(lambda: replica.progress is not None and not replica.progress.state.is_new)
        assert replica.append(batch(), needs_all=True).first_offset == 0
        assert not (await in_store(node, topic_id)).is_new
        assert generation_of(await node.store.get_many([GENERATION, GENERATION_BASE])) == before + 1

    run(tmp_path, act)


def test_isr_write_keeps_a_concurrent_change_by_the_controller(tmp_path: Path) -> None:
    """The leader proposes another ISR, and sees in the same turn of the loop a state that was written before."""

    async def act(node: Node, topic_id: UUID) -> None:
        moving = encode(replace(await in_store(node, topic_id), replicas=(1, 2, 3), adding=(3,)))
        before = node.view.partitions[topic_id, 0].version
        version = await node.store.cas(partition_name(topic_id, 0), moving, ANY_VERSION)
        assert node.view.partitions[topic_id, 0].version == before, "nobody has told it yet"
        fetch(node, topic_id)
        node.view.note(partition_name(topic_id, 0), moving, version)
        await node.until(lambda: isr(node, topic_id) == (node.me, OTHER))
        found = await in_store(node, topic_id)
        assert (found.replicas, found.adding, found.isr) == ((1, 2, 3), (3,), (node.me, OTHER))

    run(tmp_path, act)


def test_lost_isr_write_is_proposed_again_without_another_fetch(tmp_path: Path) -> None:
    """Its follower has everything, and sends no further fetch."""

    async def act(node: Node, topic_id: UUID) -> None:
        node.faulty.fail(UNKNOWN, at="partitions/")
        fetch(node, topic_id)
        await node.until(lambda: isr(node, topic_id) == (node.me, OTHER))

    run(tmp_path, act)


def test_follower_joins_once_its_registration_is_seen(tmp_path: Path) -> None:
    """The follower has everything, and sends no further fetch."""

    async def act(node: Node, topic_id: UUID) -> None:
        again = Member(2, 100)
        fetch(node, topic_id, again)
        assert isr(node, topic_id) == (node.me,)
        await register(node, again)
        await node.until(lambda: isr(node, topic_id) == (node.me, again))

    run(tmp_path, act)


def test_many_new_partitions_are_confirmed_together_and_one_that_has_changed_alone(tmp_path: Path) -> None:
    """One commit for all, and two more because another broker has changed one of them meanwhile."""

    async def act(node: Node, _: UUID) -> None:
        topic_id = await node.create("many", [[1, 2]] * 40)
        await node.until(lambda: all((topic_id, number) in node.replicas.by_key for number in range(40)))
        await node.until(lambda: not any(stored.state.is_new for stored in node.view.partitions.values()))
        names = [partition_name(topic_id, number) for number in range(40)]
        found = await node.store.get_many(names)
        fresh = {
            name: encode(replace(decode_partition(name, one.value), is_new=True, isr=(node.me,), leader_epoch=7))
            for name, one in found.items()
        }
        versions = await node.store.commit([Change(name, value, ANY_VERSION) for name, value in fresh.items()])
        moved = encode(replace(decode_partition(names[17], fresh[names[17]]), replicas=(1, 2, 3), adding=(3,)))
        behind = await node.store.cas(names[17], moved, versions[17])
        node.faulty.commits.clear()
        node.view.note_all(
            NamedValue(name, VersionedValue(value, version))
            for (name, value), version in zip(fresh.items(), versions, strict=True)
        )
        await node.until(lambda: not any(stored.state.is_new for stored in node.view.partitions.values()))
        states = [node.view.partitions[topic_id, number].state for number in range(40)]
        assert [number for number, state in enumerate(states) if state.adding] == [17]
        assert node.view.partitions[topic_id, 17].version == behind + 1
        written = [commit for commit in node.faulty.commits if any(step.name in fresh for step in commit)]
        assert len(written) <= 4, [len(commit) for commit in written]

    run(tmp_path, act)
