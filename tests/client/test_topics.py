"""Configurations of topics from a broker of ours."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from seglog.client import topics as client_topics
from seglog.client.cluster_connections import ClusterConnections
from seglog.client.topics import topic_config
from seglog.testing import Broker, TopicFixture
from tests.client.produce.written import config

SIZES = {f"t{number}": (number + 1) << 20 for number in range(5)}
DEFAULT = str(1 << 30)


@pytest.fixture(scope="module")
def cluster() -> Iterator[ClusterConnections]:
    topics = {name: TopicFixture(config={"segment.bytes": str(size)}) for name, size in SIZES.items()}
    with Broker({**topics, "plain": 1}) as broker, ClusterConnections(config(broker.bootstrap)) as opened:
        yield opened


@pytest.mark.parametrize("at_once", [500, 2, 1])
def test_each_topic_has_its_value(cluster: ClusterConnections, monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    monkeypatch.setattr(client_topics, "_AT_ONCE", at_once)
    expected = {name: str(size) for name, size in SIZES.items()} | {"plain": DEFAULT}
    assert topic_config(cluster, [*expected, "t0", "plain"], "segment.bytes") == expected


def test_a_topic_that_does_not_exist_is_left_out(cluster: ClusterConnections) -> None:
    assert topic_config(cluster, ["none", "t1"], "segment.bytes") == {"t1": str(2 << 20)}


def test_a_key_that_does_not_exist_has_no_value(cluster: ClusterConnections) -> None:
    assert topic_config(cluster, ["t1"], "no.such.key") == {}


def test_no_topics_need_no_request(cluster: ClusterConnections, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ClusterConnections, "ask_any", None)
    assert topic_config(cluster, [], "segment.bytes") == {}
