"""The partitions that brokers have, as a query finds them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from seglog.client.kept_connections import close_all
from seglog.core.errors import BrokerUnavailableError, UnknownTopicError
from seglog.sources.brokers.source import BrokerSource
from seglog.sources.options.read_options import parse_options
from seglog.testing import Broker


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker
        close_all()


def source(broker: Broker, **chosen: str) -> BrokerSource:
    options = parse_options({"kafka.bootstrap.servers": broker.bootstrap, **chosen})
    assert options.client is not None
    return BrokerSource(options.client, options)


def refused(broker: Broker, **selection: str) -> str:
    with pytest.raises(UnknownTopicError) as caught:
        source(broker, **selection).survey()
    return str(caught.value).removeprefix(f"{broker.bootstrap}: ")


def test_an_unknown_topic_is_answered_with_those_of_the_cluster(broker: Broker) -> None:
    assert refused(broker, subscribe="t") == "there is no topic 't'; existing: none"
    broker.create_topic("__transaction_state", 1)
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


@pytest.mark.parametrize("code", ["NOT_LEADER_OR_FOLLOWER", "LEADER_NOT_AVAILABLE", "FENCED_LEADER_EPOCH"])
def test_a_stream_waits_for_a_leader_as_for_a_broker(broker: Broker, code: str) -> None:
    """An election takes longer than all retries of one survey; a query that starts does not wait."""
    broker.reset()
    broker.create_topic("moving", 1)
    chosen = {"fetchOffset.numRetries": "1", "fetchOffset.retryIntervalMs": "1", "kafka.retry.backoff.ms": "1"}
    moving = source(broker, subscribe="moving", **chosen)
    told = broker.fail("ListOffsets", error=code, topic="moving", times=9)
    with pytest.raises(BrokerUnavailableError, match=f"offsets of moving-0: broker .*: {code}"):
        moving.survey()
    assert 0 < told.fired < 9
    (extent,) = moving.survey(may_be_away=True).extents
    assert (told.fired, extent.log_end) == (9, 0)
