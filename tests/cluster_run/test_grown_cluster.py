"""A cluster that begins with one broker: its internal topics follow when others join; a locked store stops no end."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition

from tests.broker.python_clients import ConfigResource
from tests.cli.run import Run, run_here
from tests.kit.cluster import SeglogCluster
from tests.kit.topics import admin_client, consumer
from tests.kit.waiting import wait_until

END_SECONDS = 29.0
"""Two waits of 3 s for the store, with a margin for a busy machine. One that waits for the lock takes 30 s and more."""


@pytest.fixture
def seglog(capfdbinary: pytest.CaptureFixture[bytes]) -> Run:
    return run_here(capfdbinary)


def test_internal_topics_follow_and_a_locked_store_stops_no_end(memory: Path, seglog: Run) -> None:
    with SeglogCluster(memory / "cluster", count=1) as cluster:
        with consumer(cluster.bootstrap, "early") as member:
            wait_until(lambda: bool(member.committed([TopicPartition("t", 0)], 5)), "the group's coordinator")
        assert replicas(cluster) == [(1,)] * 3
        assert flush_messages(cluster) == "1"
        as_an_earlier_release = ("--delete", "flush.messages", "-b", cluster.bootstrap)
        assert seglog("configs", "alter", "__consumer_offsets", *as_an_earlier_release).code == 0
        cluster.add(2)
        cluster.add(3)
        cluster.start_all([2, 3])
        wait_until(lambda: [len(one) for one in replicas(cluster)] == [3] * 3, "all replicas of __consumer_offsets")
        cluster.wait_healthy()
        assert flush_messages(cluster) == "1", "an existing topic gets it from a broker that starts"
        assert "__consumer_offsets-0 gets replicas on brokers" in "".join(
            broker.log.read_text(errors="replace") for broker in cluster.brokers.values()
        )
        move_and_elect(cluster, seglog, memory / "back.json")
        with closing(sqlite3.connect(cluster.store.removeprefix("sqlite:"), isolation_level=None, timeout=30)) as file:
            file.execute("BEGIN IMMEDIATE")
            began = time.monotonic()
            cluster[3].stop()
            assert time.monotonic() - began < END_SECONDS


def move_and_elect(cluster: SeglogCluster, seglog: Run, back: Path) -> None:
    """A partition moves to two brokers in another order, is led by its first replica, and moves back by a file."""
    where = ("-b", cluster.bootstrap, "--json")
    plan, now = "__consumer_offsets-0=3,2", {"topic": "__consumer_offsets", "partition": 0}
    moved = seglog("partitions", "reassign", plan, "--save", back, *where)
    assert (moved.code, moved.objects[-1]) == (0, {"finished": True, "moved": 1})
    assert [one["after"] for one in moved.objects if "after" in one] == [[3, 2]]
    (there,) = seglog("partitions", "reassign", plan, "--verify", *where).objects
    assert there == {**now, "state": "done", "replicas": [3, 2], "wanted": [3, 2]}
    seglog("leaders", "elect", "__consumer_offsets:0", *where)  # the controller may have been faster
    (elected,) = seglog("leaders", "elect", "__consumer_offsets:0", *where).objects
    assert elected == {**now, "outcome": "not needed", "leader": 3, "error": None}
    assert seglog("partitions", "reassign", "-f", back, *where).code == 0
    (there,) = seglog("partitions", "reassign", "-f", back, "--verify", *where).objects
    assert len(there["replicas"]) == 3
    assert seglog("partitions", "reassign", "--list", *where).objects == []
    cancelled = seglog("partitions", "reassign", "--cancel", "__consumer_offsets-0", *where)
    assert (cancelled.code, cancelled.objects) == (2, [{"finished": True, "cancelled": 0}])


def flush_messages(cluster: SeglogCluster) -> str:
    """The value that ``__consumer_offsets`` has."""
    admin = admin_client(cluster.bootstrap)
    (described,) = admin.describe_configs([ConfigResource(ConfigResource.Type.TOPIC, "__consumer_offsets")]).values()
    return str(described.result(30)["flush.messages"].value)


def replicas(cluster: SeglogCluster) -> list[tuple[int, ...]]:
    """In sync and not moving any more."""
    offsets = [one for one in cluster.look().partitions if one.topic == "__consumer_offsets"]
    return [one.isr for one in offsets if not one.adding]
