"""How long writes stop when a leader dies, when it is stopped, and when one of its disks fails: seen by a client that
tries again at once, and goes where it is told (KIP-951). What a stock client adds is its own backoff."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from tests.broker.python_clients import NewTopic
from tests.cluster_run.steady import Steady
from tests.kit.cluster import ClusterBroker, SeglogCluster
from tests.kit.disk import Disk
from tests.kit.topics import create_topics
from tests.kit.waiting import wait_until

PARTITIONS = 6
SESSION_SECONDS = 8.0
NEVER_SECONDS = 20.0
"""Nothing may wait for a session, a fetch or a lag of so many seconds, and no pause may take half of it. The processors
of a busy machine are away for less."""
SETTINGS = {"replica.fetch.wait.max.ms": "20000", "replica.lag.time.max.ms": "60000"}


def started(path: Path, session: float, more: Mapping[int, Sequence[Path]] | None = None) -> SeglogCluster:
    settings = {**SETTINGS, "broker.session.timeout.ms": str(int(session * 1000))}
    return SeglogCluster(path, settings=settings, more=more)


def steady(cluster: SeglogCluster, number: int) -> Steady:
    """A client that would wait for the answer of a broker that hangs for longer than a pause may take."""
    return Steady(cluster.addresses, "t", number, timeout_ms=30_000)


def pauses(cluster: SeglogCluster, strike: Callable[[ClusterBroker], None]) -> list[float]:
    """Of each partition that a broker leads when ``strike`` is done to it, the seconds without an acknowledgement."""
    create_topics(cluster.bootstrap, NewTopic("t", PARTITIONS, 3))
    victim = cluster.leader("t", 0)
    assert victim is not None
    led = [number for number in range(PARTITIONS) if cluster.leader("t", number) == victim]
    with ExitStack() as stack:
        clients = [stack.enter_context(steady(cluster, number)) for number in led]
        wait_until(lambda: all(client.has_written(20) for client in clients), "writes to all partitions")
        began = time.monotonic()
        strike(cluster[victim])
        counts = [len(client.acknowledged) + 20 for client in clients]
        wait_until(
            lambda: all(client.has_written(count) for client, count in zip(clients, counts, strict=True)),
            "writes to go on",
        )
    for client in clients:
        print(client.number, client.story(began))
    cluster[victim].start()
    cluster.wait_healthy()
    return [client.pause(began) for client in clients]


def test_writes_go_on_when_the_session_of_a_leader_that_was_killed_has_ended(memory: Path) -> None:
    with started(memory / "cluster", SESSION_SECONDS) as cluster:
        found = pauses(cluster, ClusterBroker.kill)
    assert max(found) < 2 * SESSION_SECONDS, found
    assert min(found) > SESSION_SECONDS / 2, "nobody may lead while the session of the old leader is certain"


def test_a_controlled_shutdown_waits_for_no_session(memory: Path) -> None:
    with started(memory / "cluster", NEVER_SECONDS) as cluster:
        found = pauses(cluster, ClusterBroker.stop)
    assert max(found) < NEVER_SECONDS / 2, found


def test_a_disk_that_fails_takes_its_partitions_elsewhere_at_once(memory: Path) -> None:
    """Partitions that the broker leads, and those that it follows: no producer waits for the broker without a disk."""
    if not Disk.can_be_made():  # without root there is none
        return
    with (
        Disk(memory / "disk", 8) as disk,
        started(memory / "cluster", NEVER_SECONDS, {2: [disk.path / "logs"]}) as cluster,
        ExitStack() as stack,
    ):
        create_topics(cluster.bootstrap, NewTopic("t", PARTITIONS, 3))
        clients = [stack.enter_context(steady(cluster, number)) for number in range(PARTITIONS)]
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
        assert max(client.pause(began) for client in clients) < NEVER_SECONDS / 2, told
        assert cluster[2].is_running
        assert cluster.leader("t", 0) is not None
        disk.free()
        cluster[2].stop()
        cluster[2].start()
        cluster.wait_healthy()
