"""Consumer groups beside a real Kafka: the same answers to random requests, and the same records."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from random import Random

import pytest
from hypothesis import settings

from seglog.protocol.apis import ApiKey
from tests.cases import case
from tests.interop.test_sequences_apis import created
from tests.sequences.both import Both
from tests.sequences.consumer_groups import ClassicMember, ConsumerGroups

ILLEGAL_GENERATION = 22
REBALANCE_IN_PROGRESS = 27
STEPS = 80
_numbers = itertools.count()


@pytest.fixture
def at_once(both: Both) -> Iterator[None]:
    """Targets follow each other at once (KIP-1263): how many there are would depend on the time. Other tests share
    this Kafka, so the default comes back."""
    _configure(both, {"config_operation": 0, "value": "0"})
    yield
    _configure(both, {"config_operation": 1, "value": None})


def _configure(both: Both, change: Mapping[str, object]) -> None:
    config = {"name": "group.consumer.assignment.interval.ms", **change}
    resources = [{"resource_type": 4, "resource_name": "", "configs": [config]}]
    both.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, resources=resources, validate_only=False)


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("block", range(4))
def test_random_requests_are_answered_as_by_kafka(both: Both, block: int) -> None:
    count = max(settings().max_examples // 25, 1)
    for seed in range(block * count, (block + 1) * count):
        case()
        name = f"consumer-{next(_numbers)}-{seed}"
        topics = [created(both, f"{name}-a", 4), created(both, f"{name}-b", 2)]
        world = ConsumerGroups(both, Random(seed), name, topics)
        for _ in range(STEPS):
            world.step()
        world.check_records()


@pytest.mark.usefixtures("at_once")
def test_group_migrates_as_in_kafka(both: Both) -> None:
    """A classic group becomes a consumer group with its first consumer member, and a classic one with its last."""
    name = f"consumer-{next(_numbers)}"
    topic = created(both, name, 4)
    world = ConsumerGroups(both, Random(1), name, [topic])
    classic = ClassicMember(world)
    classic.join()
    classic.sync(assigns=[0, 1, 2, 3])
    world.describe()
    member = world.members[0]
    member.topics = [topic]
    world.heartbeat(member)
    world.describe()
    assert member.epoch == 2
    assert classic.heartbeat() == REBALANCE_IN_PROGRESS
    classic.join()
    classic.sync()
    assert classic.owned == [2, 3]
    world.describe()
    assert classic.heartbeat() == REBALANCE_IN_PROGRESS  # it has yet to say that it gave up the others
    classic.join()
    classic.sync()
    world.heartbeat(member)
    assert member.owned == {topic: [0, 1]}
    assert classic.heartbeat() == 0
    # Another classic member joins the consumer group, and leaves it.
    other = ClassicMember(world, instance=f"{name}-static")
    other.join()
    other.sync()
    world.describe()
    other.leave()
    world.heartbeat(member)
    classic.heartbeat()
    world.describe()
    world.leave(member)
    assert classic.heartbeat() == ILLEGAL_GENERATION  # the generation of the classic group is the group's epoch
    classic.join()
    classic.sync(assigns=[0, 1, 2, 3])
    both.ask(ApiKey.DESCRIBE_GROUPS, 5, groups=[world.group])
    classic.leave()
    world.heartbeat(member)  # the empty classic group becomes a consumer group
    world.describe()
    world.check_records()


@pytest.mark.usefixtures("at_once")
def test_regular_expressions_are_resolved_as_in_kafka(both: Both) -> None:
    name = f"consumer-{next(_numbers)}"
    topics = [created(both, f"{name}-a", 2), created(both, f"{name}-b", 1)]
    world = ConsumerGroups(both, Random(1), name, topics)
    member = world.members[0]
    world.join_by_expression(member, f"{name}-(")
    assert member.epoch == 0
    world.join_by_expression(member, f"{name}-.")
    world.until_described_alike()
    world.heartbeat(member)
    assert sorted(member.owned) == topics
    world.describe()
    world.join_by_expression(member, f"{name}-[b]")
    world.describe()
    world.leave(member)
    world.describe()
    world.check_records()
