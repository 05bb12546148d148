"""Idempotent producers that write to a topic at once when it is made: no batch overtakes one that was refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests.broker.python_clients import NewTopic
from tests.kit.broker_process import SECONDS
from tests.kit.cluster import SeglogCluster
from tests.kit.topics import create_topics, values

SENDS = 600


def write_at_once(bootstrap: str, topic: str, *, made: bool) -> list[str]:
    """Values in the order in which they are in the topic, which is created by the first of them unless it is
    ``made``. What was not acknowledged is a failure."""
    if made:
        create_topics(bootstrap, NewTopic(topic, 1, 3))
    wrong: list[str] = []
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "linger.ms": 0,
            "batch.num.messages": 20,
            "message.timeout.ms": int(SECONDS * 1000),
            "error_cb": lambda error: wrong.append(str(error)),
        }
    )
    for number in range(SENDS):
        producer.produce(topic, str(number), callback=lambda error, _: wrong.append(str(error)) if error else None)
        producer.poll(0)
    assert producer.flush(SECONDS) == 0
    assert wrong == [], topic
    return values(bootstrap, topic)


@pytest.mark.parametrize("rounds", [2, pytest.param(52, marks=pytest.mark.everything)])
def test_all_that_is_sent_to_a_fresh_topic_is_there_once_and_in_order(memory: Path, rounds: int) -> None:
    """In 2 of 52 rounds a second batch in flight was taken after the first was refused, and the producer was stuck."""
    with SeglogCluster(memory / "cluster", settings={"auto.create.topics.enable": "true"}) as cluster:
        for number in range(rounds):
            found = write_at_once(cluster.bootstrap, f"fresh-{number}", made=number % 2 == 0)
            assert found == [str(value) for value in range(SENDS)], number
