"""How long writes stop when a leader dies, when it is stopped, and when one of its disks fails: seen by a client that
tries again at once, and goes where it is told (KIP-951). What a stock client adds is its own backoff."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.broker.python_clients import NewTopic
from tests.cluster_run.steady import Steady
from tests.kit.cluster import ClusterBroker, SeglogCluster
from tests.kit.disk import Disk
from tests.kit.topics import create_topics
from tests.kit.waiting import wait_until

PARTITIONS = 6
SESSION_SECONDS = 2.0
FAILOVER_SECONDS = SESSION_SECONDS + 1
KILLS = 3
SHUTDOWN_SECONDS = 0.3
MARGIN_SECONDS = 4.0
"""For a machine that does something else meanwhile: what is asked must hold for the best, or half of several, and no
pause may be longer by more than this."""


SETTINGS = {
    "broker.session.timeout.ms": str(int(SESSION_SECONDS * 1000)),
    # Nothing may wait for these.
    "replica.fetch.wait.max.ms": "1500",
    "replica.lag.time.max.ms": "60000",
}


@pytest.fixture
def cluster(memory: Path) -> Iterator[SeglogCluster]:
    with SeglogCluster(memory / "cluster", settings=SETTINGS) as cluster:
        create_topics(cluster.bootstrap, NewTopic("t", PARTITIONS, 3))
        yield cluster


def pauses(cluster: SeglogCluster, strike: Callable[[ClusterBroker], None]) -> list[float]:
    """Of each partition that a broker leads when ``strike`` is done to it, the seconds without an acknowledgement."""
    victim = cluster.leader("t", 0)
    assert victim is not None
    led = [number for number in range(PARTITIONS) if cluster.leader("t", number) == victim]
    with ExitStack() as stack:
        clients = [stack.enter_context(Steady(cluster.addresses, "t", number)) for number in led]
        wait_until(lambda: all(client.has_written(20) for client in clients), "writes to all partitions")
        began = time.monotonic()
        strike(cluster[victim])
        counts = [len(client.acknowledged) + 20 for client in clients]
        wait_until(
            lambda: all(client.has_written(count) for client, count in zip(clients, counts, strict=True)),
            "writes to go on",
        )
    told = {client.number: client.story(began) for client in clients}
    cluster[victim].start()
    cluster.wait_healthy()
    found = [client.pause(began) for client in clients]
    assert max(found) < FAILOVER_SECONDS + MARGIN_SECONDS, told
    return found


def test_writes_go_on_a_second_after_the_session_of_a_leader_that_was_killed(cluster: SeglogCluster) -> None:
    # All partitions of one broker wait for the same few commits: what is slow for one is so for all.
    found = [min(pauses(cluster, ClusterBroker.kill)) for _ in range(KILLS)]
    assert sorted(found)[KILLS // 2] < FAILOVER_SECONDS, found
    assert min(found) > SESSION_SECONDS / 2, "nobody may lead while the session of the old leader is certain"


def test_a_controlled_shutdown_is_hardly_noticed(cluster: SeglogCluster) -> None:
    found = [pause for _ in range(2) for pause in pauses(cluster, ClusterBroker.stop)]
    assert sorted(found)[len(found) // 2] < SHUTDOWN_SECONDS, found


def test_a_disk_that_fails_takes_its_partitions_elsewhere_at_once(memory: Path) -> None:
    """Partitions that the broker leads, and those that it follows: no producer waits for the broker without a disk."""
    if not Disk.can_be_made():  # without root there is none
        return
    with (
        Disk(memory / "disk", 8) as disk,
        SeglogCluster(memory / "cluster", settings=SETTINGS, more={2: [disk.path / "logs"]}) as cluster,
        ExitStack() as stack,
    ):
        create_topics(cluster.bootstrap, NewTopic("t", PARTITIONS, 3))
        clients = [stack.enter_context(Steady(cluster.addresses, "t", number)) for number in range(PARTITIONS)]
        wait_until(lambda: all(client.has_written(20) for client in clients), "writes to all partitions")
        began = time.monotonic()
        disk.fill()
        wait_until(lambda: any(len(one.isr) < 3 for one in cluster.look().partitions), "the disk to be missed")
        counts = [len(client.acknowledged) + 200 for client in clients]
        wait_until(
            lambda: all(client.has_written(count) for client, count in zip(clients, counts, strict=True)),
            "writes to go on",
        )
        told = {client.number: client.story(began) for client in clients}
        assert max(client.pause(began) for client in clients) < FAILOVER_SECONDS + MARGIN_SECONDS, told
        assert cluster[2].is_running
        assert cluster.leader("t", 0) is not None
        disk.free()
        cluster[2].stop()
        cluster[2].start()
        cluster.wait_healthy()
