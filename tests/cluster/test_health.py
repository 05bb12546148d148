"""The findings about a cluster in each state, and their advice."""

from __future__ import annotations

from dataclasses import replace

import pytest

from seglog.cluster.health import BrokerStatus, ClusterStatus, PartitionStatus, judge
from seglog.cluster.model import Evidence, Refusal

FINE = PartitionStatus(
    topic="t", number=0, replicas=(1, 2, 3), isr=(1, 2, 3), leader=1, min_insync=2, ends={1: 9, 2: 9, 3: 9}
)


REFUSAL = Evidence(3, 30, "d", 4, start=0, flushed=9, high_watermark=8, end=9, made=3, kept_since=3, refused_cut=5)


def seen(
    *partitions: PartitionStatus, brokers: tuple[int, ...] = (1, 2, 3), controller: int | None = 1
) -> ClusterStatus:
    there = {node: BrokerStatus(node_id=node, listeners={"PLAINTEXT": f"h:{node}"}) for node in brokers}
    return ClusterStatus(cluster_id="c", controller=controller, brokers=there, partitions=partitions)


@pytest.mark.parametrize(
    "partition",
    [
        FINE,
        replace(FINE, replicas=(1, 2, 3, 4), adding=(4,), removing=(1,)),
        replace(FINE, replicas=(1,), isr=(1,)),
        replace(FINE, replicas=(1, 2, 3), isr=(1, 2), removing=(3,)),
    ],
    ids=["in sync", "moving", "alone", "leaving"],
)
def test_nothing_is_wrong(partition: PartitionStatus) -> None:
    assert judge(seen(partition)) == []


@pytest.mark.parametrize(
    ("partition", "brokers", "kinds", "advice"),
    [
        (
            replace(FINE, isr=(1, 2)),
            (1, 2),
            ["under-replicated"],
            "start another one, then seglog cluster remove",
        ),
        (replace(FINE, isr=(1, 2)), (1, 2, 4), ["under-replicated"], "come back: seglog cluster remove-broker 3"),
        (replace(FINE, isr=(1, 2)), (1, 2, 3), ["under-replicated"], "it catches up"),
        (replace(FINE, isr=(1,), elr=(2,)), (1,), ["under-min-isr", "under-replicated", "under-replicated"], "2 or 3"),
        (
            replace(FINE, leader=None, isr=(1,), elr=(2,)),
            (3,),
            ["no-leader"],
            "start broker 1 or 2, with its own disk: the first of them can lead",
        ),
        (replace(FINE, leader=None, isr=(), replicas=(3,)), (1,), ["no-leader"], "choose-leader"),
        (
            replace(FINE, leader=None, isr=(), last_known=(1, 2)),
            (1, 3),
            ["no-leader"],
            "start broker 2, with its own disk: its log will decide",
        ),
        (
            replace(FINE, leader=None, isr=(), last_known=(1, 2), unheard=(1,)),
            (1, 2, 3),
            ["no-leader"],
            "the data of broker 1 is gone, or not reported yet",
        ),
        (
            replace(FINE, isr=(1, 2), evidence=(REFUSAL,)),
            (1, 2, 3),
            ["cut-refused", "under-replicated"],
            "--node 3 lets it lead; with --node 1 it saves a copy and truncates them",
        ),
        (
            replace(FINE, leader=None, isr=(), elr=(3,), replicas=(3,)),
            (1,),
            ["no-leader"],
            "start broker 3, with its own disk: it can lead",
        ),
        (replace(FINE, isr=(1, 2), leader=2), (1, 3), ["broker-gone", "under-replicated"], "the controller is about"),
        (replace(FINE, leader=2), (1, 3), ["broker-gone"], "the controller is about"),
    ],
    ids=[
        "broker gone",
        "one too many",
        "behind",
        "too few",
        "no leader",
        "nobody has all",
        "one is away that had all",
        "one had all, and has not",
        "refusal",
        "one has all",
        "leader gone",
        "all in sync, leader gone",
    ],
)
def test_each_thing_that_is_wrong_has_its_advice(
    partition: PartitionStatus, brokers: tuple[int, ...], kinds: list[str], advice: str
) -> None:
    findings = judge(seen(partition, brokers=brokers))
    assert [one.kind for one in findings] == kinds
    assert advice in findings[0].advice
    assert all(one.places == (("t", 0),) for one in findings)


def test_problems_of_brokers_are_reported() -> None:
    cluster = seen(FINE, controller=None)
    silent = replace(cluster.brokers[2], answers=False, failed={"/d": "KAFKA_STORAGE_ERROR"})
    findings = judge(replace(cluster, brokers={**cluster.brokers, 2: silent}))
    assert [one.kind for one in findings] == ["no-controller", "log-dir-failed", "broker-silent"]
    assert findings[1].what == "broker 2: log directory /d: KAFKA_STORAGE_ERROR"
    assert "replace-disk 2" in findings[1].advice


def test_advice_never_replaces_the_disk_with_the_last_copy() -> None:
    alone = replace(FINE, isr=(2,), leader=2)
    leaderless = replace(FINE, number=1, leader=None)
    cluster = seen(alone, leaderless)
    failed = {node: replace(one, failed={"/d": "KAFKA_STORAGE_ERROR"}) for node, one in cluster.brokers.items()}
    found = {one.what: one for one in judge(replace(cluster, brokers=failed)) if one.kind == "log-dir-failed"}
    assert len(found) == 3
    assert all("keep the disk" in one.advice and "replace" not in one.advice for one in found.values())
    assert found["broker 2: log directory /d: KAFKA_STORAGE_ERROR"].places == (("t", 0), ("t", 1))


def test_full_disk_is_reported_with_its_remedy() -> None:
    cluster = seen(FINE)
    full = {node: replace(one, full={"/d": 4096}) for node, one in cluster.brokers.items()}
    findings = judge(replace(cluster, brokers=full))
    assert [one.kind for one in findings] == ["log-dir-full"] * 3
    assert findings[0].what == "broker 1: log directory /d is full: 4096 bytes are free"
    assert "DeleteRecords" in findings[0].advice
    assert "replace" not in findings[0].advice


def test_a_cluster_with_strays_is_not_healthy_and_their_bytes_are_named() -> None:
    cluster = seen(FINE)
    keeping = replace(cluster.brokers[2], strays=2, stray_bytes=4096)
    (finding,) = judge(replace(cluster, brokers={**cluster.brokers, 2: keeping}))
    assert finding.kind == "strays"
    assert finding.what == "broker 2 keeps 2 replicas that the cluster does not name: 4096 bytes"
    assert "seglog cluster strays" in finding.advice


def test_replicas_in_another_order_are_the_same_finding() -> None:
    one, other = (replace(FINE, replicas=replicas, isr=(1,), ends={}) for replicas in ((1, 2, 3), (1, 3, 2)))
    finding = judge(seen(one, replace(other, number=1), brokers=(1,)))[0]
    assert (finding.kind, finding.places) == ("under-min-isr", (("t", 0), ("t", 1)))


def test_lag_is_what_the_leader_has_more() -> None:
    one = replace(FINE, ends={1: 10, 2: 7, 3: 12}, sizes={1: 100, 2: 70, 4: 0})
    assert [one.lag(node) for node in (1, 2, 3)] == [0, 3, 0]
    assert [one.lag_bytes(node) for node in (1, 2, 3, 4)] == [0, 30, None, 100]
    assert replace(one, leader=None).lag(2) is None


DAMAGED = Refusal("/logs/t-0/0.log, position 7, offset 3: torn", "/logs/t-0")


@pytest.mark.parametrize(
    ("partition", "brokers", "kinds", "advice"),
    [
        (
            replace(FINE, isr=(1, 2)),
            (1, 2, 3),
            ["refused-replica"],
            ["stop broker 3, move /logs/t-0 away, and start it: it copies the partition from broker 1"],
        ),
        (
            replace(FINE, leader=None, isr=(3,), replicas=(3,)),
            (1, 3),
            ["no-leader", "refused-replica"],
            ["repair the replica on broker 3; refused-replica says how", "seglog repair /logs/t-0 shows the damage"],
        ),
        (
            replace(FINE, leader=None, isr=(), elr=(2, 3)),
            (1, 3),
            ["no-leader", "refused-replica"],
            ["start broker 2, or repair the replica on broker 3; refused-replica says how", "stop broker 3"],
        ),
        (
            replace(FINE, leader=None, isr=(), last_known=(2, 3), unheard=(2, 3)),
            (1, 3),
            ["no-leader", "refused-replica"],
            ["start broker 2, and repair the replica on broker 3; refused-replica says how", "stop broker 3"],
        ),
        (replace(FINE, replicas=(1, 2)), (1, 2, 3), [], []),
    ],
    ids=["others lead", "the only one", "another is away", "last known", "not a replica any more"],
)
def test_replica_that_its_broker_refuses_is_named_with_the_remedy(
    partition: PartitionStatus, brokers: tuple[int, ...], kinds: list[str], advice: list[str]
) -> None:
    cluster = seen(partition, brokers=brokers)
    three = replace(cluster.brokers[3], refused={partition.place: DAMAGED})
    found = judge(replace(cluster, brokers={**cluster.brokers, 3: three}))
    assert [one.kind for one in found] == kinds
    for one, expected in zip(found, advice, strict=True):
        assert expected in one.advice
        assert "wait for the controller" not in one.advice
    assert [one.what for one in found if one.kind == "refused-replica"] == [
        f"broker 3 does not serve its replica of t-0: {DAMAGED.reason}" for kind in kinds if kind == "refused-replica"
    ]


def test_replica_that_is_refused_for_another_reason_needs_no_repair() -> None:
    cluster = seen(replace(FINE, isr=(1, 2)))
    three = replace(cluster.brokers[3], refused={("t", 0): Refusal("Raise ulimit -n", "", is_damaged=False)})
    (found,) = judge(replace(cluster, brokers={**cluster.brokers, 3: three}))
    assert "Raise ulimit -n" in found.what
    assert "seglog repair" not in found.advice
