"""Damaged replicas: an intact one leads, the damaged one is never served, and the cluster names it with the remedy."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer

from seglog.client.bootstrap import parse_bootstrap
from seglog.client.transactions import TransactionAdmin, TransactionDescription
from seglog.cluster.health import PartitionStatus
from seglog.core.errors import RequestFailedError
from seglog.core.fs import OsFs
from seglog.core.types import TopicPartition
from seglog.storage.formats.watermarks import read_watermarks
from tests.broker.python_clients import NewTopic
from tests.kit.broker_process import BrokerProcess
from tests.kit.cluster import SeglogCluster
from tests.kit.topics import commit, committed, create_topics, values, write_all
from tests.kit.waiting import wait_until

SETTINGS = {
    "broker.session.timeout.ms": "1500",
    "auto.leader.rebalance.enable": "false",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.replication.factor": "3",
}
GROUP = "g"
ID = "payments"
OFFSET = 59


def seglog(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "seglog", *words], capture_output=True, text=True, check=False)


def status(bootstrap: str) -> Any:
    return json.loads(seglog("cluster", "status", "--json", "-b", bootstrap).stdout)


def log_file(broker: BrokerProcess, partition: str) -> Path:
    return broker.path / partition / f"{0:020d}.log"


def high_watermark(broker: BrokerProcess, topic: str) -> int | None:
    """None if the broker does not say it yet."""
    found = (read_watermarks(OsFs(), str(broker.path)) or {}).get(TopicPartition(topic, 0))
    return None if found is None else found.high


def knows_what_is_committed(follower: BrokerProcess, leader: BrokerProcess, topic: str) -> bool:
    high = high_watermark(leader, topic)
    return high is not None and high_watermark(follower, topic) == high


def flip(path: Path, text: bytes) -> None:
    """Flip a bit in the last place of the file that has these bytes."""
    data = path.read_bytes()
    at = data.rindex(text)
    with path.open("r+b") as file:
        file.seek(at)
        file.write(bytes([data[at] ^ 1]))


def transact(bootstrap: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": ID, "log_level": 0})
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce("t", b"paid")
    producer.commit_transaction(60)


def describe(bootstrap: str) -> TransactionDescription:
    with TransactionAdmin(parse_bootstrap(bootstrap), 60) as admin:
        return admin.describe_transaction(ID)


def epoch_of_transactions(bootstrap: str) -> tuple[int, int]:
    found = describe(bootstrap)
    return found.producer_id, found.producer_epoch


def is_completed(bootstrap: str) -> bool:
    try:
        return describe(bootstrap).state == "CompleteCommit"
    except RequestFailedError:  # as below
        return False


def is_loaded(ask: Callable[[], object]) -> bool:
    try:
        ask()
    except RequestFailedError:  # the client of this request does not repeat it
        return False
    return True


@pytest.mark.parametrize("topic", ["__consumer_offsets", "__transaction_state"])
def test_intact_replica_coordinates_when_the_next_leader_is_damaged(memory: Path, topic: str) -> None:
    with SeglogCluster(memory / "cluster", settings=SETTINGS) as cluster:
        create_topics(cluster.bootstrap, NewTopic("t", 1, 3))
        for offset in range(OFFSET - 9, OFFSET + 1):
            commit(cluster.bootstrap, GROUP, "t", offset)
        for _ in range(3):
            transact(cluster.bootstrap)
        wait_until(lambda: is_completed(cluster.bootstrap), "the last transaction: nothing more is appended then")
        cluster.wait_healthy()
        expected: dict[str, tuple[Callable[[], object], object]] = {
            "__consumer_offsets": (lambda: committed(cluster.bootstrap, GROUP, "t"), OFFSET),
            "__transaction_state": (
                lambda: epoch_of_transactions(cluster.bootstrap),
                epoch_of_transactions(cluster.bootstrap),
            ),
        }

        def partition() -> PartitionStatus:
            return next(one for one in cluster.look().partitions if one.place == (topic, 0))

        first = partition().leader
        assert first is not None
        damaged, intact = (node for node in partition().replicas if node != first)
        path = log_file(cluster[damaged], f"{topic}-0")
        # Alone in the ISR, a leader below min.insync.replicas commits nothing more, so it must know what is committed.
        wait_until(lambda: knows_what_is_committed(cluster[intact], cluster[first], topic), "it knows")
        flip(path, GROUP.encode() if topic == "__consumer_offsets" else ID.encode())
        cluster[first].stop()
        wait_until(lambda: partition().leader == intact, "the intact replica leads")
        ask, answer = expected[topic]
        wait_until(lambda: is_loaded(ask), "the coordinator has loaded its records")
        assert ask() == answer
        cluster[first].start()
        wait_until(lambda: set(partition().isr) == {first, intact}, "the first leader is in sync, the damaged is not")

        shown = status(cluster.bootstrap)
        (finding,) = [one for one in shown["findings"] if one["kind"] == "refused-replica"]
        assert finding["partitions"] == [f"{topic}-0"]
        assert f"broker {damaged} does not serve its replica of {topic}-0: {path}, position " in finding["what"]
        assert ", offset " in finding["what"]
        assert f"seglog verify {path.parent}" in finding["what"]
        assert f"stop broker {damaged}, move {path.parent} away, and start it" in finding["advice"]
        (broker,) = [one for one in shown["brokers"] if one["node"] == damaged]
        assert [one["directory"] for one in broker["refused"]] == [str(path.parent)]

        cluster[damaged].stop()
        shutil.rmtree(path.parent)
        cluster[damaged].start()
        cluster.wait_healthy()
        wait_until(lambda: is_loaded(ask), "the coordinator has loaded its records")
        assert ask() == answer


def test_damaged_replica_without_another_one_is_named(memory: Path) -> None:
    with SeglogCluster(
        memory / "cluster", count=2, settings={**SETTINGS, "offsets.topic.replication.factor": "1"}
    ) as cluster:
        create_topics(cluster.bootstrap, NewTopic("t", 1, replica_assignment=[[2]]))
        write_all(cluster.bootstrap, "t", [f"{number}" for number in range(100)], batch=10)
        cluster[2].stop()
        path = log_file(cluster[2], "t-0")
        whole = path.read_bytes()
        path.write_bytes(whole[:-5])
        cluster[2].start()
        wait_until(lambda: bool(cluster.look().brokers[2].refused), "broker 2 reports its damaged replica")

        shown = {one["kind"]: one for one in status(cluster.bootstrap)["findings"]}
        assert f"broker 2 does not serve its replica of t-0: {path}" in shown["refused-replica"]["what"]
        assert f"seglog repair {path.parent}" in shown["refused-replica"]["advice"]
        assert "repair the replica on broker 2; refused-replica says how" in shown["no-leader"]["advice"]
        assert "wait for the controller" not in shown["no-leader"]["advice"]

        chosen = seglog("cluster", "choose-leader", "t", "0", "-b", cluster.bootstrap)
        assert f"broker 2 does not serve its replica: {path}" in chosen.stdout
        refused = seglog("cluster", "choose-leader", "t", "0", "--node", "2", "--yes", "-b", cluster.bootstrap)
        assert refused.returncode != 0
        assert f"broker 2 cannot lead t-0: {path}" in refused.stderr

        cluster[2].stop()
        path.write_bytes(whole)
        cluster[2].start()
        cluster.wait_healthy()


SMALL_FILES = {
    "epochs": ("leader-epoch-checkpoint", "line 1: 'garbage' is not a number"),
    "ids": ("partition.metadata", "topic id AAAAAAAAAAAAAAAAAAAAAQ is not that of the topic"),
}
CONTENTS = {"epochs": "garbage\n", "ids": "version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ"}


def test_remedy_of_a_damaged_small_file_is_seglog_repair(memory: Path) -> None:
    with BrokerProcess(memory / "logs") as broker:
        create_topics(broker.bootstrap, *(NewTopic(topic, 1, 1) for topic in SMALL_FILES))
        for topic in SMALL_FILES:
            write_all(broker.bootstrap, topic, ["a", "b"], batch=1)
        broker.stop()
        for topic, (name, _) in SMALL_FILES.items():
            (broker.path / f"{topic}-0" / name).write_text(CONTENTS[topic])
        broker.start()
        findings = [one for one in status(broker.bootstrap)["findings"] if one["kind"] == "refused-replica"]
        assert [one["partitions"] for one in findings] == [[f"{topic}-0"] for topic in SMALL_FILES]
        elect = ("leaders", "elect", "--all", "--dry-run", "--json", "-b", broker.bootstrap)
        assert seglog(*elect).stdout == "", "the preferred replicas cannot lead"
        would = [json.loads(line) for line in seglog(*elect, "--election-type", "unclean").stdout.splitlines()]
        assert [(one["topic"], one["leader"], one["candidates"]) for one in would] == [
            (topic, None, [1]) for topic in SMALL_FILES
        ]
        broker.stop()
        for finding, (topic, (name, reason)) in zip(findings, SMALL_FILES.items(), strict=True):
            path = broker.path / f"{topic}-0"
            assert f"{path / name}: {reason}" in finding["what"]
            assert f"seglog repair {path} shows the damage" in finding["advice"]
            assert seglog("repair", str(path), "--yes").returncode == 0
        broker.start()
        assert status(broker.bootstrap)["healthy"]
        for topic in SMALL_FILES:
            assert values(broker.bootstrap, topic) == ["a", "b"]


def test_lone_broker_refuses_the_coordinator_partition_that_is_damaged(memory: Path) -> None:
    """It has no other replica: clients get an error on which they retry. Other partitions are served."""
    with BrokerProcess(memory / "logs", {"offsets.topic.num.partitions": "2"}) as broker:
        create_topics(broker.bootstrap, NewTopic("t", 1, 1))
        groups = [f"group-{number}" for number in range(4)]
        for group in groups:
            commit(broker.bootstrap, group, "t", OFFSET)
        broker.stop()
        path = log_file(broker, "__consumer_offsets-0")
        whole = path.read_bytes()
        here = [group for group in groups if group.encode() in whole]
        elsewhere = [group for group in groups if group not in here]
        assert here
        assert elsewhere
        flip(path, here[0].encode())
        broker.start()
        assert committed(broker.bootstrap, elsewhere[0], "t") == OFFSET
        wait_until(lambda: "__consumer_offsets-0 is not served any more" in broker.log.read_text(), "damage is logged")
        with pytest.raises(KafkaException):
            committed(broker.bootstrap, here[0], "t")
        shown = status(broker.bootstrap)
        assert not shown["healthy"]
        assert [one["kind"] for one in shown["findings"]] == ["no-leader", "refused-replica"]
        assert str(path) in shown["findings"][1]["what"]
        assert f"seglog repair {path.parent}" in shown["findings"][1]["advice"]
        broker.stop()
        path.write_bytes(whole)
        broker.start()
        assert [committed(broker.bootstrap, group, "t") for group in groups] == [OFFSET] * 4
