"""Transactions beside a real Kafka: the same answers to random requests, and the same records of the coordinator."""

from __future__ import annotations

import itertools
from random import Random

import pytest
from hypothesis import settings

from tests.cases import case
from tests.interop.test_sequences_apis import created
from tests.sequences.both import Both
from tests.sequences.transactions import Transactions

STEPS = 60
_numbers = itertools.count()


@pytest.mark.parametrize("block", range(4))
def test_random_requests_are_answered_as_by_kafka(both: Both, block: int) -> None:
    count = max(settings().max_examples // 25, 1)
    for seed in range(block * count, (block + 1) * count):
        case()
        name = f"txn-{next(_numbers)}-{seed}"
        topics = [created(both, f"{name}-a", 2), created(both, f"{name}-b", 2)]
        world = Transactions(both, Random(seed), name, topics)
        for _ in range(STEPS):
            world.step()
        world.check_records()
