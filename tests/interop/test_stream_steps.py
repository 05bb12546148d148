"""Streams through Kafka whose topic is deleted, made again or emptied before a step of a micro-batch.

`tests.spark.read.test_stream_steps` has the model of steps, and many more cases with our brokers.
"""

from __future__ import annotations

from itertools import count
from typing import Final

import pytest

from seglog.client.kept_connections import close_all
from tests.kafka import KafkaNode
from tests.spark.read.test_stream_steps import EVENTS, ServedLogs, run_case

_numbers: Final = count()
_STEPS: Final = (2, 4, 6)
"""Requests of the batch before which the event happens; 2 is between Metadata and ListOffsets."""


@pytest.mark.parametrize("event", [one for one in EVENTS if one != "truncate"])
@pytest.mark.parametrize("fails", [True, False])
def test_before_each_step(kafka: KafkaNode, event: str, fails: bool) -> None:
    world = ServedLogs(kafka.bootstrap)
    try:
        for at in _STEPS:
            chosen = {"kafka.bootstrap.servers": kafka.bootstrap}
            assert run_case(world, chosen, f"steps{next(_numbers)}", event, at, fails=fails)
    finally:
        close_all()
