"""Three real brokers of which one after the other is killed, hangs or stops, under stock clients: nothing is lost,
nothing is there twice, and every broker has the same."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import pytest
from hypothesis import settings

from seglog.storage.compare_dirs import compare_directories
from tests.broker.clients import AdminClient, NewTopic
from tests.cases import case
from tests.cluster_run.brokers import ThreeBrokers
from tests.cluster_run.checks import check, longest_pauses
from tests.cluster_run.clients import Workload
from tests.kafka.zookeeper import ZooKeeperNode

LONG = settings.default is not None and settings.default.max_examples > 1000
FAULTS = 60 if LONG else 3
PARTITIONS = 4
PAUSE_SECONDS = 30
"""A session is 3 s; a machine with much else to do takes its time."""

KINDS = ("kill", "pause", "stop")


def make_topic(cluster: ThreeBrokers) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    for made in admin.create_topics([NewTopic("t", PARTITIONS, 3)]).values():
        made.result(30)


def strike(cluster: ThreeBrokers, kind: str, node: int) -> None:
    broker = cluster[node]
    if kind == "kill":
        broker.kill()
    elif kind == "pause":
        broker.pause()
    else:
        broker.stop()


def recover(cluster: ThreeBrokers, kind: str, node: int) -> None:
    if kind == "pause":
        cluster[node].resume()
    else:
        cluster[node].start()


@pytest.fixture(
    params=["sqlite", pytest.param("zookeeper", marks=[pytest.mark.interop, pytest.mark.everything])],
)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str | None]:
    """An address; None for a file of the cluster's own."""
    if request.param == "sqlite":
        yield None
        return
    with ZooKeeperNode(tmp_path / "zookeeper") as zookeeper:
        yield f"zookeeper://{zookeeper.address}/nemesis"


@pytest.mark.timeout(3000 if LONG else 300)
def test_two_of_three_brokers_lose_nothing(store: str | None, tmp_path: Path) -> None:
    rng = Random(7)
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with TemporaryDirectory(dir=memory, prefix="seglog-nemesis-") as path, ThreeBrokers(Path(path), store) as cluster:
        make_topic(cluster)
        kinds = [KINDS[at % len(KINDS)] for at in range(FAULTS)]
        with Workload(cluster.bootstrap, "t", PARTITIONS, pace=0.02) as load:
            load.wait_for_more()
            for kind in kinds:
                case()
                node = cluster.leader("t", rng.randrange(PARTITIONS)) or rng.randint(1, 3)
                strike(cluster, kind, node)
                load.wait_for_more(100)
                recover(cluster, kind, node)
                load.wait_for_more(100)
                cluster.wait_healthy()
            history = load.finish()
        assert load.wrong == []
        report = check(history)
        if report.anomalies:
            history.write(tmp_path / "history")
        assert report.anomalies == [], f"{report.describe()}\n{tmp_path / 'history'}"
        assert report.read >= report.acknowledged > 1000
        assert max(longest_pauses(history).values()) < PAUSE_SECONDS
        cluster.wait_healthy()
        for broker in cluster.brokers.values():
            broker.stop()
        paths = [str(broker.path) for broker in cluster.brokers.values()]
        for other in paths[1:]:
            assert [str(one) for one in compare_directories(paths[0], other) if not one.is_fine] == []
