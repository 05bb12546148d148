"""The partitions that brokers have, as a query finds them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from seglog.core.errors import UnknownTopicError
from seglog.sources.brokers.source import BrokerSource
from seglog.sources.options.read_options import parse_options
from seglog.testing import Broker


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


def refused(broker: Broker, **selection: str) -> str:
    options = parse_options({"kafka.bootstrap.servers": broker.bootstrap, **selection})
    assert options.client is not None
    with pytest.raises(UnknownTopicError) as caught:
        BrokerSource(options.client, options).survey()
    return str(caught.value).removeprefix(f"{broker.bootstrap}: ")


def test_an_unknown_topic_is_answered_with_those_of_the_cluster(broker: Broker) -> None:
    assert refused(broker, subscribe="t") == "there is no topic 't'; existing: none"
    broker.create_topic("flights", 2)
    for number in range(12):
        broker.create_topic(f"t{number}", 1)
    some = "flights, t0, t1, t10, t11, t2, t3, t4, t5, t6 …"
    assert refused(broker, subscribe="t3,flihgts") == (
        f"there is no topic 'flihgts'; existing: {some}; did you mean flights?"
    )
    assert refused(broker, subscribe="nix") == f"there is no topic 'nix'; existing: {some}"
    assert refused(broker, assign='{"flights": [4]}').startswith(
        "there is no partition flights-4; existing: flights-0, flights-1, t0-0, "
    )
