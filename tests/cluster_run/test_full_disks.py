"""All disks of a cluster fill up at once and get space again: no record is lost, and no broker is restarted."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from seglog.client.bootstrap import parse_bootstrap
from seglog.client.cluster import ClusterAdmin
from seglog.cluster.health import ClusterStatus, judge
from tests.broker.python_clients import NewTopic
from tests.cluster_run.steady import Steady
from tests.kit.broker_process import SECONDS
from tests.kit.cluster import SeglogCluster
from tests.kit.disk import Disk
from tests.kit.topics import create_topics
from tests.kit.waiting import wait_until

PARTITIONS = 3


def look(cluster: SeglogCluster) -> ClusterStatus:
    """As `seglog cluster status` does, with what each broker says of its disks."""
    with ClusterAdmin(parse_bootstrap(cluster.bootstrap), SECONDS) as admin:
        return admin.look()


def test_all_disks_are_full_and_have_room_again(memory: Path) -> None:
    """With acks=all and min.insync.replicas=2; as KAFKA_STORAGE_ERROR says, clients try again until there is room."""
    if not Disk.can_be_made():  # without root there is none
        return
    with ExitStack() as stack:
        disks = {node: stack.enter_context(Disk(memory / "cluster" / f"broker-{node}", 8)) for node in (1, 2, 3)}
        cluster = stack.enter_context(SeglogCluster(memory / "cluster", store=f"sqlite:{memory / 'metadata.sqlite'}"))
        create_topics(cluster.bootstrap, NewTopic("t", PARTITIONS, 3))
        cluster.wait_healthy()
        clients = [stack.enter_context(Steady(cluster.addresses, "t", number)) for number in range(PARTITIONS)]
        wait_until(lambda: all(client.has_written(20) for client in clients), "writes to all partitions")
        for disk in disks.values():
            disk.fill()
        wait_until(lambda: all(client.events[-1].what != "0" for client in clients), "writes to stop")
        wait_until(
            lambda: sum(one.kind == "log-dir-full" for one in judge(look(cluster))) == 3, "the status to name the disks"
        )
        findings = judge(look(cluster))
        assert {one.kind for one in findings} <= {"log-dir-full", "under-min-isr", "under-replicated"}, findings
        assert not [one.advice for one in findings if "replace" in one.advice]
        for disk in disks.values():
            disk.free()
        counts = [len(client.acknowledged) + 50 for client in clients]
        wait_until(
            lambda: all(client.has_written(count) for client, count in zip(clients, counts, strict=True)),
            "writes to go on",
        )
        assert cluster.running == [1, 2, 3]
        cluster.wait_healthy()
        acknowledged = [len(client.acknowledged) for client in clients]
        ends = {one.number: min(one.ends.values()) for one in look(cluster).partitions if one.topic == "t"}
        assert all(ends[number] >= count for number, count in enumerate(acknowledged))
