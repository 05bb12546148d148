"""`seglog cluster status`, `add-broker`, `remove-broker` and `replace-disk` with three nodes of real Kafka."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from seglog.client.bootstrap import parse_bootstrap
from seglog.client.cluster import ClusterAdmin
from seglog.cluster.reassignment_plan import ReplicaMove
from tests.broker.python_clients import NewTopic
from tests.cli.run import Run, run_here
from tests.clients.clusters import wait_for_all
from tests.kafka import tools
from tests.kafka.ensemble import KafkaEnsemble
from tests.kit.memory import directory_in_memory
from tests.kit.topics import create_topics
from tests.kit.waiting import wait_until

PARTITIONS = 6


@pytest.fixture
def kafka() -> Iterator[KafkaEnsemble]:
    soon = {"broker.session.timeout.ms": "5000", "broker.heartbeat.interval.ms": "500"}
    with (
        directory_in_memory() as path,
        KafkaEnsemble(path / "kafka", {"min.insync.replicas": "1", **soon}) as kafka,
    ):
        yield kafka


@pytest.fixture
def run(capfdbinary: pytest.CaptureFixture[bytes]) -> Run:
    return run_here(capfdbinary)


def state(run: Run, kafka: KafkaEnsemble) -> tuple[int, dict[str, Any]]:
    ran = run("cluster", "status", "-b", kafka.bootstrap, "--json")
    (document,) = ran.objects
    return ran.code, document


def on_brokers(document: dict[str, Any]) -> dict[int, int]:
    found: dict[int, int] = {}
    for partition in document["partitions"]:
        for node in partition["replicas"]:
            found[node] = found.get(node, 0) + 1
    return found


def fill(run: Run, kafka: KafkaEnsemble) -> None:
    """Six partitions on two of three brokers, with records."""
    assignment = [[1, 2] if number % 2 else [2, 1] for number in range(PARTITIONS)]
    create_topics(kafka.bootstrap, NewTopic("t", PARTITIONS, replica_assignment=assignment))
    lines = kafka.nodes[0].log_dir.parent / "lines"
    lines.write_text("".join(f"line {number}\n" for number in range(10_000)))
    assert run("produce", "t", "-b", kafka.bootstrap, "--from-file", lines).code == 0


def test_a_cluster_of_kafkas_grows_shrinks_and_gets_a_new_disk(run: Run, kafka: KafkaEnsemble) -> None:
    fill(run, kafka)
    code, document = state(run, kafka)
    assert (code, document["healthy"], on_brokers(document)) == (0, True, {1: 6, 2: 6})
    assert all(len(set(one["ends"].values())) == 1 < len(one["ends"]) for one in document["partitions"])

    added = run("cluster", "add-broker", "-b", kafka.bootstrap, "--json", "--at-once", "2")
    assert (added.code, added.err) == (0, "")
    assert added.objects[-1] == {"finished": True, "node": [3], "moved": 4}
    wait_for_all(
        [node.bootstrap for node in kafka.nodes],
        lambda seen: sorted(one.leader or 0 for one in seen.partitions) == [1, 1, 2, 2, 3, 3],
        "the leaders that were elected last",
    )
    _, document = state(run, kafka)
    assert on_brokers(document) == {1: 4, 2: 4, 3: 4}
    described = tools.topics(kafka.bootstrap, "--describe", "--topic", "t")
    for one in document["partitions"]:
        replicas = ",".join(map(str, one["replicas"]))
        assert f"Partition: {one['partition']}\tLeader: {one['leader']}\tReplicas: {replicas}\t" in described

    removed = run("cluster", "remove-broker", "2", "-b", kafka.bootstrap)
    assert (removed.code, removed.lines[-1]) == (0, "broker 2 has no replicas: it can be stopped")
    assert on_brokers(state(run, kafka)[1]) == {1: 6, 3: 6}
    planned = run("cluster", "remove-broker", "3", "-b", kafka.bootstrap, "--dry-run")
    assert planned.code == 0
    assert {line.rpartition(" ")[2] for line in planned.lines} == {"1,2", "2,1"}

    third = kafka.nodes[2]
    third.kill()

    def is_seen() -> bool:
        _, document = state(run, kafka)
        found = [(one["kind"], len(one["partitions"])) for one in document["findings"]]
        return len(document["brokers"]) == 2 and found == [("under-replicated", PARTITIONS)]

    wait_until(is_seen, "Kafka to see that a broker is gone")
    code, document = state(run, kafka)
    assert code == 1
    (finding,) = document["findings"]
    assert finding["advice"] == (
        "start broker 3, with an empty disk if its own is lost: it copies what it lacks; if it will not come back: "
        "seglog cluster remove-broker 3"
    )
    for directory in third.log_dir.glob("t-*"):
        shutil.rmtree(directory)
    third.start()
    replaced = run("cluster", "replace-disk", "3", "-b", kafka.bootstrap)
    assert (replaced.code, replaced.lines[-1]) == (0, "broker 3 has all its 6 replicas in sync")
    assert state(run, kafka)[0] == 0

    with ClusterAdmin(parse_bootstrap(kafka.bootstrap), 30) as cluster:
        not_there = cluster.reassign([ReplicaMove(("t", 0), (1, 3), (1, 9)), ReplicaMove(("none", 0), (1,), (2,))])
    assert sorted(not_there) == [("none", 0), ("t", 0)]
    assert "9" in not_there["t", 0]
