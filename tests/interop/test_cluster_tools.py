"""Kafka's own tools against three of our brokers: what only a cluster has; the same against three of Kafka's."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from seglog.cluster.health import ClusterStatus
from seglog.cluster.reassignment_plan import Place
from tests.clients.clusters import NODES, Cluster
from tests.clients.java_tools import Ran, Steps, only
from tests.clients.kcat import kcat
from tests.kafka.jars import CURRENT, PREVIOUS, KafkaVersion
from tests.kit.waiting import wait_until

_EVERYTHING = pytest.mark.everything
_MOVED = {0: [3, 1, 2], 1: [2, 3]}


class _Files:
    """Of JSON, as the tools take them."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._count = 0

    def write(self, body: object) -> str:
        self._count += 1
        path = self._path / f"{self._count}.json"
        path.write_text(json.dumps(body))
        return str(path)

    def moves(self, *moves: tuple[str, int, Sequence[int]]) -> tuple[str, str]:
        partitions = [{"topic": topic, "partition": number, "replicas": to} for topic, number, to in moves]
        return "--reassignment-json-file", self.write({"version": 1, "partitions": partitions})


def _acks_all(version: KafkaVersion) -> tuple[str, ...]:
    # Each record is waited for: what the producer would send while its process ends is not sent in `Tools`.
    option = "--command-property" if version == CURRENT else "--producer-property"
    return option, "acks=all", option, "max.block.ms=20000", "--sync", "--timeout", "0"


@pytest.mark.parametrize("version", [CURRENT, pytest.param(PREVIOUS, marks=_EVERYTHING)])
def test_kafkas_tools(cluster: Cluster, version: KafkaVersion, topic_name: str, tmp_path: Path) -> None:
    files = _Files(tmp_path)
    moved = files.moves(*((topic_name, number, to) for number, to in _MOVED.items()))
    ran = _make_and_move(cluster, version, topic_name, moved, files)
    refused = {"unknown", "uneven", "too many", "grow unknown", "elect none", "move none", "move unknown"}
    assert {name for name, one in ran.items() if one.code} == refused
    _check_made(ran, topic_name, version)
    cluster.wait_for_all(lambda seen: _are_moved(seen, topic_name), "replicas that moved")
    cluster.wait_healthy()
    wait_until(lambda: not _has(cluster, 1, (topic_name, 1)), "the replica that went to be removed")
    ran = _verify_and_elect(cluster, version, topic_name, moved)
    assert {name for name, one in ran.items() if one.code} == set()
    _check_moved(ran, topic_name)
    cluster.kill(3)
    try:
        ran = _without_one(cluster, version, topic_name, files)
    finally:
        cluster.restart(3)
        cluster.wait_healthy()
    assert {name for name, one in ran.items() if one.code} == {"elect", "move to the dead", "log dirs of the dead"}
    _check_without_one(ran, topic_name)


def test_a_throttled_move_sets_its_throttles_and_takes_them_back(
    cluster: Cluster, topic_name: str, tmp_path: Path
) -> None:
    steps = Steps(CURRENT, cluster.bootstrap)
    moved = _Files(tmp_path).moves((topic_name, 0, [2, 3]))
    topic, broker = ("configs", "--describe", "--topic", topic_name), ("configs", "--describe", "--broker", "2")
    steps.add("create", "topics", "--create", "--topic", topic_name, "--replica-assignment", "1:2")
    steps.add("move", "reassign-partitions", "--execute", *moved, "--throttle", "50000000")
    steps.add("topic", *topic)
    steps.add("broker", *broker)
    steps.add("faster", "reassign-partitions", "--execute", "--additional", *moved, "--throttle", "60000000")
    steps.add("verify", "reassign-partitions", "--verify", *moved, until="Clearing topic-level throttles")
    steps.add("topic then", *topic)
    steps.add("broker then", *broker)
    ran = steps.run()
    assert "The inter-broker throttle limit was set to 50000000 B/s" in ran["move"].out, ran
    assert "leader.replication.throttled.replicas=0:1,0:2" in ran["topic"].out, ran
    assert "follower.replication.throttled.replicas=0:3" in ran["topic"].out, ran
    assert "leader.replication.throttled.rate=50000000" in ran["broker"].out, ran
    assert "follower.replication.throttled.rate=50000000" in ran["broker"].out, ran
    assert f"Reassignment of partition {topic_name}-0 is completed." in ran["verify"].out, ran
    assert "Clearing broker-level throttles" in ran["verify"].out, ran
    assert "throttled" not in ran["topic then"].out + ran["broker then"].out, ran
    cluster.wait_healthy()


def _are_moved(seen: ClusterStatus, topic: str) -> bool:
    found = {one.number: one for one in seen.partitions if one.topic == topic}
    return all(
        number in found and list(found[number].replicas) == to and not found[number].adding
        for number, to in _MOVED.items()
    )


def _has(cluster: Cluster, node: int, place: Place) -> bool:
    with cluster.asking(node) as admin:
        return any(place in directory.sizes for directory in admin.directories(node))


def _make_and_move(
    cluster: Cluster, version: KafkaVersion, name: str, moved: tuple[str, str], files: _Files
) -> dict[str, Ran]:
    steps, topic, group = Steps(version, cluster.bootstrap), ("--topic", name), ("--group", f"group-{name}")
    other = ("--topic", f"{name}-other")
    steps.add("create", "topics", "--create", *topic, "--replica-assignment", "1:2,2:1,3:2")
    steps.add("unknown", "topics", "--create", *other, "--replica-assignment", "1:9")
    steps.add("uneven", "topics", "--create", *other, "--replica-assignment", "1:2,1")
    steps.add("too many", "topics", "--create", *other, "--partitions", "1", "--replication-factor", "4")
    steps.add("other", "topics", "--create", *other, "--partitions", "6", "--replication-factor", "3")
    steps.add("grow", "topics", "--alter", *topic, "--partitions", "4", "--replica-assignment", "1:2,2:1,3:2,3:1")
    wrong = "1:2,2:1,3:2,3:1,1:7"
    steps.add("grow unknown", "topics", "--alter", *topic, "--partitions", "5", "--replica-assignment", wrong)
    steps.add("describe", "topics", "--describe", *topic, until="Replicas: 3,1\tIsr: 3,1")
    steps.add("describe other", "topics", "--describe", *other)
    lines = "".join(f"{number}\n" for number in range(50))
    steps.add("produce", "console-producer", *topic, *_acks_all(version), stdin=lines)
    steps.add("consume", "console-consumer", *topic, *group, "--from-beginning", "--max-messages", "50")
    for number in range(6):
        to = ("--topic", name, "--to-latest", "--execute")
        steps.add(f"group {number}", "consumer-groups", "--group", f"{name}-{number}", "--reset-offsets", *to)
    steps.add("groups", "consumer-groups", "--describe", "--all-groups")
    for number in range(6):
        steps.add(f"delete {number}", "consumer-groups", "--delete", "--group", f"{name}-{number}")
    steps.add("group", "consumer-groups", "--describe", *group, "--state")
    every = files.write({"version": 1, "partitions": [{"topic": name, "partition": 0, "offset": 0}]})
    steps.add("delete records", "delete-records", "--offset-json-file", every)
    steps.add("elect", "leader-election", "--election-type", "preferred", "--all-topic-partitions")
    steps.add("elect none", "leader-election", "--election-type", "preferred", *topic, "--partition", "9")
    some = files.write({"partitions": [{"topic": name, "partition": 1}]})
    steps.add("elect some", "leader-election", "--election-type", "unclean", "--path-to-json-file", some)
    steps.add("id", "cluster", "cluster-id")
    steps.add("versions", "broker-api-versions")
    what = files.write({"version": 1, "topics": [{"topic": name}]})
    to = ("--topics-to-move-json-file", what, "--broker-list", "2,3")
    steps.add("generate", "reassign-partitions", "--generate", *to)
    steps.add("move none", "reassign-partitions", "--execute", *files.moves((name, 9, [1])))
    steps.add("move unknown", "reassign-partitions", "--execute", *files.moves((name, 0, [1, 9])))
    steps.add("move", "reassign-partitions", "--execute", *moved)
    return steps.run()


def _check_made(ran: dict[str, Ran], topic: str, version: KafkaVersion) -> None:
    assert "no such broker is registered" in ran["unknown"].out
    assert "cannot be reached because only 3 broker(s) are registered" in ran["too many"].out
    for number, replicas in enumerate(("1,2", "2,1", "3,2", "3,1")):
        line = only(ran["describe"].lines, f"Partition: {number}\t")
        assert f"Leader: {replicas[0]}\tReplicas: {replicas}\tIsr: {replicas}" in line
    leaders = [line.split("Leader: ")[1][0] for line in ran["describe other"].lines[1:]]
    assert sorted(leaders) == ["1", "1", "2", "2", "3", "3"]
    assert sorted(map(int, ran["consume"].lines[-50:])) == list(range(50))
    rows = [line.split() for line in ran["groups"].lines if line.startswith(f"{topic}-")]
    assert len(rows) == 24
    assert all(row[3] == row[4] and row[5] == "0" for row in rows)
    assert only(ran["group"].lines, f"group-{topic} ").split()[-2:] == ["Empty", "0"]
    assert "No such partition as" in ran["elect none"].out
    assert f"Valid replica already elected for partitions {topic}-1" in ran["elect some"].out
    assert only(ran["id"].lines, "Cluster ID: ")
    assert sum("(id: " in line for line in ran["versions"].lines) == len(NODES)
    proposed = json.loads(ran["generate"].lines[-1])["partitions"]
    assert all(sorted(one["replicas"]) == [2, 3] for one in proposed)
    assert f"Successfully started partition reassignments for {topic}-0,{topic}-1" in ran["move"].out
    assert version == PREVIOUS or "Elr: " in ran["describe"].out


def _verify_and_elect(cluster: Cluster, version: KafkaVersion, name: str, moved: tuple[str, str]) -> dict[str, Ran]:
    steps, topic = Steps(version, cluster.bootstrap), ("--topic", name)
    steps.add("list", "reassign-partitions", "--list")
    steps.add("verify", "reassign-partitions", "--verify", *moved)
    steps.add("cancel", "reassign-partitions", "--cancel", *moved)
    steps.add("elect", "leader-election", "--election-type", "preferred", *topic, "--partition", "0")
    steps.add("describe", "topics", "--describe", *topic, until="Partition: 0\tLeader: 3\t")
    steps.add("log dirs", "log-dirs", "--describe", "--topic-list", name)
    steps.add("consume", "console-consumer", *topic, "--from-beginning", "--max-messages", "50")
    return steps.run()


def _check_moved(ran: dict[str, Ran], topic: str) -> None:
    assert "None of the specified partition reassignments are active." in ran["cancel"].lines
    assert ran["list"].lines == ["No partition reassignments found."]
    for number, replicas in _MOVED.items():
        assert f"Reassignment of partition {topic}-{number} is completed." in ran["verify"].lines
        assert f"Replicas: {','.join(map(str, replicas))}\t" in only(ran["describe"].lines, f"Partition: {number}\t")
    assert f"Successfully completed leader election (PREFERRED) for partitions {topic}-0" in ran["elect"].out
    assert "Leader: 3\t" in only(ran["describe"].lines, "Partition: 0\t")
    hosts: dict[str, list[int]] = {}
    for broker in json.loads(only(ran["log dirs"].lines, '"brokers"'))["brokers"]:
        for one in broker["logDirs"][0]["partitions"]:
            assert (one["offsetLag"], one["isFuture"]) == (0, False)
            hosts.setdefault(one["partition"], []).append(broker["broker"])
    assert {number: hosts[f"{topic}-{number}"] for number in _MOVED} == {0: [1, 2, 3], 1: [2, 3]}
    assert sorted(map(int, ran["consume"].lines[-50:])) == list(range(50))


def _without_one(cluster: Cluster, version: KafkaVersion, name: str, files: _Files) -> dict[str, Ran]:
    steps, topic = Steps(version, cluster.bootstrap), ("--topic", name)
    for what in ("under-replicated", "unavailable", "under-min-isr", "at-min-isr"):
        steps.add(what, "topics", "--describe", *topic, f"--{what}-partitions")
    steps.add("elect", "leader-election", "--election-type", "preferred", *topic, "--partition", "0")
    steps.add("elect unclean", "leader-election", "--election-type", "unclean", "--all-topic-partitions")
    steps.add("move to the dead", "reassign-partitions", "--execute", *files.moves((name, 1, [1, 3])))
    steps.add("log dirs of the dead", "log-dirs", "--describe", "--broker-list", "3")
    steps.add("group", "consumer-groups", "--describe", "--group", f"group-{name}")
    steps.add("produce", "console-producer", "--topic", f"{name}-other", *_acks_all(version), stdin="x\n" * 20)
    steps.add("offsets", "get-offsets", "--topic", f"{name}-other")
    return steps.run()


def _check_without_one(ran: dict[str, Ran], topic: str) -> None:
    assert [_standing(line) for line in ran["under-replicated"].lines] == [
        ("0", {"1", "2"}),
        ("1", {"2"}),
        ("2", {"2"}),
        ("3", {"1"}),
    ]
    assert ran["unavailable"].lines == []
    assert [_standing(line)[0] for line in ran["under-min-isr"].lines] == ["1", "2", "3"]
    assert [_standing(line)[0] for line in ran["at-min-isr"].lines] == ["0"]
    assert "The preferred leader was not available." in ran["elect"].out
    assert "Unknown broker id 3" in ran["move to the dead"].out
    assert "The given brokers do not exist from --broker-list: 3" in ran["log dirs of the dead"].err
    rows = [line.split()[2:6] for line in ran["group"].lines if line.startswith(f"group-{topic} ")]
    assert sum(int(row[1]) for row in rows) == 50
    assert sum(int(line.rpartition(":")[2]) for line in ran["offsets"].lines) == 20


def _standing(line: str) -> tuple[str, set[str]]:
    """A partition, and its ISR."""
    words = {key: value for key, _, value in (one.partition(": ") for one in line.strip().split("\t"))}
    return words["Partition"], set(words["Isr"].split(","))


def test_consumer_fetches_from_replica_in_its_rack(cluster: Cluster, topic_name: str) -> None:
    """KIP-392: a consumer that says in which rack it is reads from the replica there."""
    if cluster.kind == "kafka":  # its counters are told by JMX only
        return
    cluster.create(topic_name, [[1, 2, 3]])
    kcat(cluster.bootstrap, "-P", "-t", topic_name, "-X", "acks=all", stdin=b"x\n" * 100)
    cluster.wait_healthy()
    consumer = Consumer(
        {"bootstrap.servers": cluster.bootstrap, "group.id": "none", "client.rack": "r2", "enable.auto.commit": False}
    )
    consumer.assign([TopicPartition(topic_name, 0, OFFSET_BEGINNING)])
    try:
        assert len(consumer.consume(100, 30)) == 100
    finally:
        consumer.close()
    of_leader, near, _ = (cluster.bytes_out(node, topic_name) for node in NODES)
    assert of_leader == 0 < near
    rack = "--consumer-property", "client.rack=r3"
    steps = Steps(PREVIOUS, cluster.bootstrap)
    steps.add("consume", "console-consumer", "--topic", topic_name, "--from-beginning", "--max-messages", "100", *rack)
    assert steps.run()["consume"].code == 0
    assert [cluster.bytes_out(node, topic_name) > 0 for node in NODES] == [False, True, True]
