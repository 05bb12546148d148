"""All complete replicas are gone: a partition waits for one of them, or continues without it, as configured."""

from __future__ import annotations

from pathlib import Path

from tests.broker.python_clients import AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType
from tests.cluster_run.replicas import differences
from tests.kit.cluster import SeglogCluster
from tests.kit.topics import admin_client, create_topics, values, write
from tests.kit.waiting import stays, wait_until

SESSION_SECONDS = 1.5
SETTINGS = {
    "broker.session.timeout.ms": str(int(SESSION_SECONDS * 1000)),
    "min.insync.replicas": "1",
    "auto.leader.rebalance.enable": "false",
}
TOPICS = ("safe", "risky")


def leaders(cluster: SeglogCluster) -> list[int | None]:
    return [cluster.leader(topic, 0) for topic in TOPICS]


def allow_unclean(cluster: SeglogCluster, topic: str) -> None:
    entry = ConfigEntry("unclean.leader.election.enable", "true", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin = admin_client(cluster.bootstrap)
    for done in admin.incremental_alter_configs([resource]).values():
        done.result(30)


def test_partition_waits_for_last_complete_replica_unless_unclean_election_is_allowed(memory: Path) -> None:
    with SeglogCluster(memory / "cluster", settings=SETTINGS) as cluster:
        where = cluster.bootstrap
        create_topics(where, *(NewTopic(topic, 1, replica_assignment=[[1, 2, 3]]) for topic in TOPICS))
        for topic in TOPICS:
            assert write(where, topic, "early") is None
        cluster[2].stop()
        cluster[3].stop()
        for topic in TOPICS:
            assert write(where, topic, "late") is None, "one replica is enough here"
        cluster[1].kill()
        cluster.start_all([2, 3])
        wait_until(lambda: leaders(cluster) == [None, None], "the end of the session of broker 1")
        assert stays(lambda: leaders(cluster) == [None, None], 2 * SESSION_SECONDS)
        assert write(where, "safe", "never", seconds=1) is not None
        allow_unclean(cluster, "risky")
        wait_until(lambda: cluster.leader("risky", 0) in (2, 3), "an unclean election")
        assert write(where, "risky", "after") is None
        assert cluster.leader("safe", 0) is None
        cluster[1].start()
        cluster.wait_healthy()
        assert cluster.leader("safe", 0) == 1
        assert values(where, "safe") == ["early", "late"]
        assert values(where, "risky") == ["early", "after"]
        assert differences(cluster) == []
