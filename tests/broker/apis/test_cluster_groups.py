"""Groups of a cluster: every broker knows who coordinates one, and only that broker answers for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest

from seglog.broker.apis.group_offsets import GroupOffsetApis
from seglog.broker.apis.groups import GroupApis
from seglog.broker.configuration import group_settings
from seglog.broker.produce.transaction_verification import TransactionVerifier
from seglog.broker.topics import internal_topics
from seglog.broker.topics.internal_topics import InternalTopic
from seglog.cluster.model import BrokerRegistration
from seglog.coordinators.group_coordinator import GroupCoordinator
from seglog.coordinators.transactions.coordinator import TransactionCoordinator
from seglog.core.ground import Ground
from seglog.core.topic_names import OFFSETS_TOPIC
from seglog.protocol.apis import ApiKey
from seglog.protocol.messages import Message
from tests.broker.cluster_desk import SOON, Desk, broker, run
from tests.coordinators.fixed_topics import FixedTopics

FOUR = {"offsets.topic.num.partitions": "4"}
NOBODY = (15, -1, "", -1)


@pytest.fixture(autouse=True)
def _who_asks_first_is_patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the disk takes until all partitions of the topic of offsets have leaders."""
    monkeypatch.setattr(internal_topics, "_SETTLED_SECONDS", SOON)


@asynccontextmanager
async def groups(desk: Desk) -> AsyncIterator[GroupCoordinator]:
    """The desk answers for groups, too."""
    settings = group_settings(desk.configuration.current, is_alone=False)
    topic = InternalTopic(
        OFFSETS_TOPIC,
        desk.topics,
        desk.changes,
        desk.identity,
        count=settings.offsets_topic_num_partitions,
        factor=settings.offsets_topic_replication_factor,
        config=settings.topic_config(),
    )
    coordinator = GroupCoordinator(topic, settings, FixedTopics(), ground=Ground(rng=Random(1)))
    no_transactions, no_verifier = cast(TransactionCoordinator, None), cast(TransactionVerifier, None)
    for api in (
        GroupApis(coordinator, no_transactions, desk.identity),
        GroupOffsetApis(coordinator, desk.topics, no_verifier),
    ):
        desk._handlers |= api.handlers()
    running = asyncio.create_task(coordinator.run())
    await asyncio.sleep(0)
    yield coordinator
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running


async def find(desk: Desk, group: str = "g", **more: Any) -> tuple[int, int, str, int]:
    (found,) = (await desk.ask(ApiKey.FIND_COORDINATOR, coordinator_keys=[group], key_type=0, **more)).coordinators
    return found.error_code, found.node_id, found.host, found.port


async def decide(desk: Desk) -> None:
    """Control a cluster to which another broker adds the topic of offsets."""
    assert await desk.view.until(lambda: OFFSETS_TOPIC in desk.view.topics, SOON)
    await desk.decide()


async def codes(desk: Desk, group: str = "g") -> list[int]:
    """The error codes of all requests that only a group's coordinator can answer."""
    described = await desk.ask(ApiKey.DESCRIBE_GROUPS, groups=[group])
    deleted = await desk.ask(ApiKey.DELETE_GROUPS, groups_names=[group])
    heard = await desk.ask(ApiKey.HEARTBEAT, group_id=group, generation_id=1, member_id="m")
    left = await desk.ask(ApiKey.LEAVE_GROUP, group_id=group, members=[{"member_id": "m"}])
    fetched = await desk.ask(ApiKey.OFFSET_FETCH, 8, groups=[{"group_id": group, "topics": None}])
    answers: Sequence[Message] = (*described.groups, *deleted.results, heard, left, *fetched.groups)
    return [answer.error_code for answer in answers]


def test_every_broker_knows_who_coordinates(tmp_path: Path) -> None:
    async def work(desk: Desk, other: Desk) -> None:
        async with AsyncExitStack() as stack:
            for one in (desk, other):
                await stack.enter_async_context(groups(one))
            both = [asyncio.ensure_future(find(one)) for one in (desk, other)]  # both want to make the topic
            await decide(desk)
            assert await both[0] == await both[1]
            (topic,) = (await desk.ask(ApiKey.METADATA, topics=[{"name": OFFSETS_TOPIC}])).topics
            assert [len(partition.replica_nodes) for partition in topic.partitions] == [3] * 4
            groups_of = [f"g-{number}" for number in range(20)]
            found = [await find(desk, group) for group in groups_of]
            assert found == [await find(other, group) for group in groups_of]
            assert {(code, host, port) for code, _, host, port in found} == {
                (0, f"10.0.0.{number}", 9092) for number in (1, 2, 3)
            }
            assert await find(desk, "g-1", listener="ANOTHER") == NOBODY
            # Neither has a replica: they send elsewhere what is not theirs, and have no groups yet.
            for (_, leader, *_), group in zip(found, groups_of, strict=True):
                for one in (desk, other):
                    is_theirs = leader == one.node_id
                    assert await codes(one, group) == ([14, 14, 0, 14, 14] if is_theirs else [16] * 5)
            assert not (await desk.ask(ApiKey.LIST_GROUPS)).groups
            await desk.dies(found[0][1])
            assert await find(desk, groups_of[0]) == NOBODY

    run(tmp_path, work, desks=2, config=FOUR)


@pytest.mark.parametrize(
    ("brokers", "config", "replicas"),
    [
        ([broker(1), broker(2)], {}, 2),
        ([broker(1), broker(2), broker(3, is_stopping=True)], {}, 2),
        ([broker(number) for number in range(1, 6)], {}, 3),
        ([broker(number) for number in range(1, 6)], {"offsets.topic.replication.factor": "4"}, 4),
        ([broker(number) for number in range(1, 6)], {"offsets.topic.replication.factor": "1"}, 1),
    ],
)
def test_as_many_replicas_as_wanted_and_possible(
    tmp_path: Path, brokers: list[BrokerRegistration], config: dict[str, str], replicas: int
) -> None:
    async def work(desk: Desk) -> None:
        async with groups(desk):
            found = asyncio.ensure_future(find(desk))
            await decide(desk)
            assert (await found)[0] == 0
            assignment = desk.view.topics[OFFSETS_TOPIC].assignment
            assert [len(one) for one in assignment] == [replicas] * 4

    run(tmp_path, work, brokers=brokers, config=FOUR | config)


def test_offsets_topic_is_not_created_without_an_eligible_broker(tmp_path: Path) -> None:
    async def work(desk: Desk) -> None:
        async with groups(desk) as coordinator:
            assert await find(desk) == NOBODY
            assert OFFSETS_TOPIC not in desk.view.topics
            assert list(coordinator.shards()) == []

    run(tmp_path, work, brokers=[broker(1, is_stopping=True)])
