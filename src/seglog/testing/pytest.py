"""Fixtures for pytest, there as soon as seglog is installed: ``def test_it(seglog_broker): ...``

The broker is started once for a session, in each process of pytest-xdist for itself, and is as new for each test.
Override `seglog_topics`, `seglog_settings` or `seglog_process` in a ``conftest.py`` for another one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from seglog.faults.topic_fixture import TopicSpec
    from seglog.testing.broker import Broker, BrokerClock
    from seglog.testing.cluster import Cluster
    from seglog.testing.injected_fault import BrokerFaults


@pytest.fixture(scope="session")
def seglog_topics() -> Mapping[str, TopicSpec] | Iterable[str]:
    """Topics that each test finds as new: names, or names with their numbers of partitions, their records, or both."""
    return ()


@pytest.fixture(scope="session")
def seglog_settings() -> Mapping[str, object]:
    """Keys of server.properties."""
    return {}


@pytest.fixture(scope="session")
def seglog_process() -> bool:
    """Whether the broker is a process of its own, which `Broker.kill` needs."""
    return False


@pytest.fixture(scope="session")
def seglog_session_broker(
    seglog_topics: Mapping[str, TopicSpec] | Iterable[str],
    seglog_settings: Mapping[str, object],
    *,
    seglog_process: bool,
) -> Iterator[Broker]:
    """The broker of the session, as the tests before have left it."""
    from seglog.testing.broker import Broker

    with Broker(seglog_topics, settings=seglog_settings, process=seglog_process) as broker:
        yield broker


@pytest.fixture
def seglog_broker(seglog_session_broker: Broker) -> Broker:
    """A broker that is as new: it runs, it has `seglog_topics`, no groups and no faults."""
    seglog_session_broker.reset()
    return seglog_session_broker


@pytest.fixture
def seglog_bootstrap(seglog_broker: Broker) -> str:
    """The value for ``bootstrap.servers``."""
    return seglog_broker.bootstrap


@pytest.fixture
def seglog_faults(seglog_broker: Broker) -> Iterator[BrokerFaults]:
    """The faults of `seglog_broker`. The test fails if one of them was never met, unless it was removed."""
    yield seglog_broker.faults
    seglog_broker.faults.assert_all_fired()


@pytest.fixture
def seglog_clock(seglog_broker: Broker) -> BrokerClock:
    """The clock of `seglog_broker`."""
    return seglog_broker.clock


@pytest.fixture(scope="session")
def seglog_cluster_topics() -> Mapping[str, int] | Iterable[str]:
    """Topics of `seglog_cluster`: names, or names with their numbers of partitions."""
    return ()


@pytest.fixture(scope="session")
def seglog_session_cluster(seglog_cluster_topics: Mapping[str, int] | Iterable[str]) -> Iterator[Cluster]:
    """Three brokers that share a cluster, as the tests before have left them."""
    from seglog.testing.cluster import Cluster

    with Cluster(seglog_cluster_topics) as cluster:
        yield cluster


@pytest.fixture
def seglog_cluster(seglog_session_cluster: Cluster) -> Cluster:
    """Three brokers that run and share a cluster, without faults. Topics and records of earlier tests are there."""
    seglog_session_cluster.heal()
    return seglog_session_cluster
