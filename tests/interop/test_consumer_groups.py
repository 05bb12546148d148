"""Consumer groups beside a real Kafka: the same answers to random requests, and the same records."""

from __future__ import annotations

import itertools
from random import Random

import pytest
from hypothesis import settings

from seglog.protocol.apis import ApiKey
from tests.cases import case
from tests.interop.test_sequences_apis import created
from tests.sequences.both import Both
from tests.sequences.consumer_groups import ConsumerGroups

STEPS = 80
_numbers = itertools.count()


@pytest.fixture
def at_once(both: Both) -> None:
    """Targets follow each other at once (KIP-1263): how many there are would depend on the time."""
    config = {"name": "group.consumer.assignment.interval.ms", "config_operation": 0, "value": "0"}
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
