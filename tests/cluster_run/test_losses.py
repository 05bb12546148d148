"""Disks that operators or power cuts emptied or shortened: the data that each replica still has decides who leads."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from tests.broker.python_clients import NewTopic
from tests.cluster_run.power import cut_power
from tests.cluster_run.replicas import differences
from tests.kit.cluster import SeglogCluster
from tests.kit.topics import commit, committed, create_topics, values, write_all
from tests.kit.waiting import stays, wait_until

SESSION_SECONDS = 1.5
SETTINGS = {
    "broker.session.timeout.ms": str(int(SESSION_SECONDS * 1000)),
    "auto.leader.rebalance.enable": "false",
    "offsets.topic.num.partitions": "1",
}
RECORDS = 1_000


def write(cluster: SeglogCluster, topic: str, count: int, batch: int = 100) -> list[str]:
    texts = [f"{topic} {number}" for number in range(count)]
    write_all(cluster.bootstrap, topic, texts, batch=batch)
    return texts


def log_of(cluster: SeglogCluster, node: int, partition: str) -> Path:
    return cluster[node].path / partition / f"{0:020d}.log"


def choose(cluster: SeglogCluster, *arguments: str) -> str:
    """By way of the brokers, which say where their store is."""
    command = [sys.executable, "-m", "seglog", "cluster", "choose-leader", *arguments, "-b", cluster.bootstrap]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_emptied_disk_never_beats_full_ones(memory: Path) -> None:
    """RF 3, min.insync.replicas=1: 2 and 3 are stopped, 1 is killed, and comes back with an empty directory."""
    settings = {**SETTINGS, "min.insync.replicas": "1"}
    with SeglogCluster(memory / "cluster", settings=settings) as cluster:
        create_topics(
            cluster.bootstrap,
            NewTopic("t", 1, replica_assignment=[[1, 2, 3]]),
            NewTopic("alone", 1, replica_assignment=[[1]]),
        )
        written = write(cluster, "t", RECORDS)
        write(cluster, "alone", 10)
        cluster.wait_healthy()
        cluster[2].stop()
        cluster[3].stop()
        wait_until(lambda: cluster.look().partitions[-1].isr == (1,), "2 and 3 to leave the ISR")
        cluster[1].kill()
        sizes = [log_of(cluster, node, "t-0").stat().st_size for node in (2, 3)]
        shutil.rmtree(cluster[1].path)
        cluster.start_all([2, 3])
        cluster[1].start()

        def all_have_reported() -> bool:
            seen = {one.place: one for one in cluster.look().partitions}
            return len(seen["t", 0].evidence) == 3 and len(seen["alone", 0].evidence) == 1

        wait_until(all_have_reported, "all three to say what they have")
        # "alone" had ten records, and nobody said that they may go
        assert stays(lambda: {one.leader for one in cluster.look().partitions} == {None}, 2 * SESSION_SECONDS)
        assert [log_of(cluster, node, "t-0").stat().st_size for node in (2, 3)] == sizes
        finding = next(one for one in cluster.findings() if ("t", 0) in one.places)
        assert finding.kind == "no-leader"
        assert "broker 1" in finding.advice
        command = [sys.executable, "-m", "seglog", "cluster", "status", "-b", cluster.bootstrap]
        status = subprocess.run(command, capture_output=True, text=True, check=False).stdout
        assert f"t-0: broker 2 has offsets 0 to {RECORDS - 1}" in status, "the brokers say where their store is"
        shown = choose(cluster, "t", "0")
        assert f"broker 2 has offsets 0 to {RECORDS - 1}" in shown
        assert "this is not the log that it had when it was in sync (was in sync)" in shown
        told = choose(cluster, "t", "0", "--node", "2", "--yes")
        assert f"records from offset {RECORDS} on may be missing" in told
        choose(cluster, "alone", "0", "--node", "1", "--yes")
        cluster.wait_healthy()
        assert cluster.leader("t", 0) == 2
        assert values(cluster.bootstrap, "t") == written
        assert values(cluster.bootstrap, "alone") == []
        restarted = [one for one in cluster.look().partitions if one.recovery is not None]
        assert {one.place for one in restarted} == {("t", 0), ("alone", 0)}


def test_cluster_leads_again_by_itself_after_a_power_cut_of_all_machines(memory: Path) -> None:
    with SeglogCluster(memory / "cluster", settings=SETTINGS) as cluster:
        create_topics(
            cluster.bootstrap,
            NewTopic("plain", 1, replica_assignment=[[1, 2, 3]]),
            NewTopic("flushed", 1, replica_assignment=[[1, 2, 3]], config={"flush.messages": "1"}),
        )
        plain, flushed = write(cluster, "plain", 100, batch=10), write(cluster, "flushed", 30, batch=10)
        commit(cluster.bootstrap, "g", "flushed", 23)
        cluster.wait_healthy()
        cluster.kill()
        for node, lost in ((1, 3), (2, 1), (3, 2)):
            cut_power(cluster[node], "plain-0", lost)
        cluster.start_all([1, 2, 3])
        wait_until(
            lambda: all(one.recovery is not None for one in cluster.look().partitions),
            "an election in each partition, after the sessions from before the power cut",
        )
        cluster.wait_healthy()
        seen = {one.place: one for one in cluster.look().partitions}
        assert seen["plain", 0].leader == 2
        assert str(seen["plain", 0].recovery) == (
            f"broker 2 leads since epoch {seen['plain', 0].leader_epoch}: its log is the longest of all that had "
            "everything. It ends at offset 90: records from there on may be missing"
        )
        for place in (("flushed", 0), ("__consumer_offsets", 0)):
            recovery = seen[place].recovery
            assert recovery is not None
            assert recovery.kind == "proven", place
        assert values(cluster.bootstrap, "plain") == plain[:90]
        assert values(cluster.bootstrap, "flushed") == flushed
        assert committed(cluster.bootstrap, "g", "flushed") == 23
        assert "plain-0: broker 2 leads since epoch" in "".join(one.log.read_text() for one in cluster.brokers.values())
        assert differences(cluster) == []
