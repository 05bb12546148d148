"""Topics that Metadata requests create: only so many at once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from seglog.broker.topics.auto_creation import MAX_TOPICS_IN_FLIGHT, MAX_TOPICS_PER_REQUEST
from seglog.core.error_codes import ErrorCode
from seglog.protocol.apis import ApiKey
from tests.broker.broker_thread import RunningNode, Wire


def ask(wire: Wire, names: list[str]) -> Counter[int]:
    send(wire, names)
    return codes(wire)


def send(wire: Wire, names: list[str]) -> None:
    wire.send(ApiKey.METADATA, topics=[{"name": name} for name in names], allow_auto_topic_creation=True)


def codes(wire: Wire) -> Counter[int]:
    """Those of the topics. 0: it is created, even if it has no leader yet."""
    found = (topic.error_code for topic in wire.answer(ApiKey.METADATA).topics)
    return Counter(0 if code == ErrorCode.LEADER_NOT_AVAILABLE else code for code in found)


@pytest.mark.parametrize("count", [250, 700])  # more than 500 names are handled in slices
def test_a_request_creates_some_of_the_topics_that_it_names_and_the_next_ones_the_others(
    count: int, tmp_path: Path
) -> None:
    names = [f"t{number}" for number in range(count)]
    with RunningNode(tmp_path) as running, Wire(running.bootstrap) as wire:
        for round_ in range(1, count // MAX_TOPICS_PER_REQUEST + 1):
            made = MAX_TOPICS_PER_REQUEST * round_
            assert ask(wire, names) == Counter({0: made, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: count - made})
        assert len(running.node.topics.by_name) == count // MAX_TOPICS_PER_REQUEST * MAX_TOPICS_PER_REQUEST


def test_names_that_cannot_be_topics_leave_room_for_others(tmp_path: Path) -> None:
    names = ["a b", "x.y", "x_y", "__consumer_offsets", "ok"]
    with RunningNode(tmp_path) as running, Wire(running.bootstrap) as wire:
        assert ask(wire, names) == Counter(
            {0: 2, ErrorCode.INVALID_TOPIC_EXCEPTION: 2, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: 1}
        )
        assert set(running.node.topics.by_name) == {"x.y", "ok"}


def test_a_topic_of_many_partitions_counts_as_many(tmp_path: Path) -> None:
    settings = {"num.partitions": "400"}
    with RunningNode(tmp_path, settings) as running, Wire(running.bootstrap) as wire:
        assert ask(wire, ["a", "b", "c"]) == Counter({0: 2, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: 1})


def test_requests_that_come_together_create_each_topic_once(tmp_path: Path) -> None:
    """All ask for the same names and for some of their own: a name that another request creates is waited for."""
    with RunningNode(tmp_path) as running:
        wires = [Wire(running.bootstrap) for _ in range(8)]
        try:
            for number, wire in enumerate(wires):
                send(wire, ["same", *(f"own-{number}-{index}" for index in range(90))])
            answers = [codes(wire) for wire in wires]
        finally:
            for wire in wires:
                wire.close()
        assert all(set(found) <= {0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION} for found in answers)
        created = running.node.topics.by_name.keys()
        assert "same" in created
        assert MAX_TOPICS_IN_FLIGHT <= len(created) <= 8 * 90 + 1
        assert sum(found[0] for found in answers) <= len(created) - 1 + len(wires)
