"""The same administrative requests to a real Kafka and to ours: the same answers, but for ids and what is named here.

The differences on purpose stand in docs/differences.md.
"""

from __future__ import annotations

from typing import Any

import pytest

from seglog.protocol.apis import ApiKey
from tests.broker.broker_thread import Wire
from tests.kafka import KafkaNode
from tests.sequences.both import UNKNOWN_ID, Both


def topic(name: str, partitions: int = 1, factor: int = 1, *brokers: tuple[int, ...], **config: Any) -> dict[str, Any]:
    """``brokers``: the replicas of each partition."""
    return {
        "name": name,
        "num_partitions": partitions,
        "replication_factor": factor,
        "assignments": [{"partition_index": at, "broker_ids": ids} for at, ids in enumerate(brokers)],
        "configs": [{"name": key.replace("_", "."), "value": value} for key, value in config.items()],
    }


def create(both: Both, *topics: dict[str, Any], version: int | None = 4) -> dict[str, int]:
    """Version 4 says nothing of the configurations, of which ours have one more."""
    answer = both.same(ApiKey.CREATE_TOPICS, version, topics=topics, timeout=30_000, validate_only=False)
    return {found["name"]: found["error_code"] for found in answer["topics"]}


def test_creating_topics_succeeds_and_fails_as_in_kafka(both: Both) -> None:
    assert create(both, topic("adm-a")) == {"adm-a": 0}
    assert create(both, topic("adm-a"), topic("adm.b"), topic("twice"), topic("twice")) == {
        "adm-a": 36,
        "adm.b": 0,
        "twice": 42,
    }
    assert set(create(both, topic("adm b"), topic(""), topic(".."), topic("x" * 250), topic("adm_b")).values()) == {17}
    assert set(create(both, topic("p0", 0), topic("p-2", -2)).values()) == {37}
    assert set(create(both, topic("r0", 1, 0), topic("r-2", 1, -2)).values()) == {38}
    assert create(both, topic("huge", 200_000)) == {"huge": 44}
    assert create(both, topic("adm-defaults", -1, -1), topic("adm-three", 3)) == {"adm-defaults": 0, "adm-three": 0}
    assert set(
        create(
            both,
            topic("m1", -1, -1, (9,)),
            topic("m2", -1, -1, (1, 1)),
            topic("m3", -1, -1, ()),
        ).values()
    ) == {39}
    assert set(create(both, topic("m4", 1, -1, (1,)), topic("m5", -1, 1, (1,))).values()) == {42}
    assert create(both, topic("adm-placed", -1, -1, (1,), (1,))) == {"adm-placed": 0}


@pytest.mark.parametrize(
    "config",
    [
        {"no_such_key": "1"},
        {"segment_bytes": "1000"},
        {"segment_bytes": "x"},
        {"segment_bytes": None},
        {"cleanup_policy": "foo"},
        {"retention_ms": "-2"},
        {"preallocate": "maybe"},
        {"compression_type": "br"},
        {"min_cleanable_dirty_ratio": "2"},
        {"min_cleanable_dirty_ratio": "x"},
        {"compression_zstd_level": "23"},
        {"min_compaction_lag_ms": "10", "max_compaction_lag_ms": "5"},
    ],
)
def test_invalid_configurations_are_refused_as_in_kafka(both: Both, config: dict[str, str | None]) -> None:
    assert create(both, topic("adm-bad", 1, 1, **config)) == {"adm-bad": 40}


def test_partitions_are_added_as_in_kafka(both: Both) -> None:
    create(both, topic("grow", 2))

    def grow(name: str, count: int, assignments: Any = None, *, validate_only: bool = False) -> int:
        asked = [{"name": name, "count": count, "assignments": assignments}]
        answer = both.same(ApiKey.CREATE_PARTITIONS, topics=asked, timeout=30_000, validate_only=validate_only)
        return int(answer["results"][0]["error_code"])

    assert [grow("grow", count) for count in (2, 1, 0, -1)] == [37] * 4
    assert grow("grow-none", 3) == 3
    assert grow("grow", 3, [{"broker_ids": [7]}]) == 39
    assert grow("grow", 4, [{"broker_ids": [1]}]) == 39
    assert grow("grow", 4, validate_only=True) == 0
    assert grow("grow", 4) == 0
    seen = both.same(ApiKey.METADATA, eventually=True, topics=[{"name": "grow"}])
    assert len(seen["topics"][0]["partitions"]) == 4


def test_topics_are_deleted_as_in_kafka(both: Both) -> None:
    create(both, topic("gone"), topic("gone-too"))

    def delete(*asked: dict[str, Any]) -> list[int]:
        answer = both.same(ApiKey.DELETE_TOPICS, topics=asked, timeout=30_000)
        return [found["error_code"] for found in answer["responses"]]

    assert delete({"name": "gone"}, {"name": "never"}) == [0, 3]
    assert delete({"name": "gone"}) == [3]
    assert delete({"name": None, "topic_id": UNKNOWN_ID}) == [100]
    assert delete({"name": None, "topic_id": None}) == [42]
    assert delete({"name": "gone-too"}, {"name": "gone-too"}) == [42]
    assert delete({"name": "gone-too", "topic_id": UNKNOWN_ID}) == [42]
    assert delete({"name": "not legal"}, {"name": ""}) == [3, 3]


@pytest.mark.parametrize("version", range(1, 14))
def test_metadata_equals_kafkas(both: Both, version: int) -> None:
    create(both, topic(f"seen-{version}", 2))
    for asked in ([f"seen-{version}"], [f"seen-{version}", f"seen-{version}", "unseen", "not legal"], []):
        both.same(
            ApiKey.METADATA,
            version,
            topics=[{"name": name} for name in asked],
            eventually=True,
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=True,
            include_cluster_authorized_operations=True,
        )
    if version >= 12:
        both.same(ApiKey.METADATA, version, topics=[{"name": None, "topic_id": UNKNOWN_ID}])


def test_pages_of_partitions_equal_kafkas(both: Both) -> None:
    create(both, topic("page-a", 3), topic("page-b", 2))
    asked = [{"name": name} for name in ("page-b", "page-a", "page-c")]
    for limit in (0, 1, 2, 3, 4, 5, 100):
        cursor: Any = None
        for _ in range(7):
            answer = both.same(
                ApiKey.DESCRIBE_TOPIC_PARTITIONS,
                eventually=True,
                topics=asked,
                response_partition_limit=limit,
                cursor=cursor,
            )
            cursor = answer["next_cursor"]
            if cursor is None:
                break
    both.same(
        ApiKey.DESCRIBE_TOPIC_PARTITIONS,
        topics=asked,
        response_partition_limit=5,
        cursor={"topic_name": "page-a", "partition_index": -1},
    )


@pytest.mark.parametrize("endpoint", [1, 2, 3])
def test_cluster_description_equals_kafkas(both: Both, endpoint: int) -> None:
    both.same(ApiKey.DESCRIBE_CLUSTER, include_cluster_authorized_operations=True, endpoint_type=endpoint)
    both.same(ApiKey.DESCRIBE_CLUSTER, 0)


@pytest.mark.parametrize("timestamp", [-1, -2, -3, -4, -5, -6, -7, 0, 5])
def test_offsets_of_an_empty_topic_equal_kafkas(both: Both, timestamp: int) -> None:
    name = f"empty{timestamp}"
    create(both, topic(name))
    for version in range(1, 12):
        for partition, epoch in ((0, -1), (0, 0), (0, 4), (7, -1)):
            wanted = {"partition_index": partition, "timestamp": timestamp, "current_leader_epoch": epoch}
            for isolation in (0, 1):
                both.same(
                    ApiKey.LIST_OFFSETS,
                    version,
                    eventually=True,
                    replica_id=-1,
                    isolation_level=isolation,
                    topics=[{"name": name, "partitions": [wanted]}, {"name": "none", "partitions": [wanted]}],
                )


def test_epochs_and_deletions_of_an_empty_topic_equal_kafkas(both: Both) -> None:
    create(both, topic("records"), topic("compacted", cleanup_policy="compact"), topic("kept", cleanup_policy=""))
    for epoch, current in ((0, -1), (0, 0), (5, -1), (0, 5), (-1, -1)):
        wanted = [{"partition": at, "leader_epoch": epoch, "current_leader_epoch": current} for at in (0, 7)]
        topics = [{"topic": name, "partitions": wanted} for name in ("records", "none")]
        both.same(ApiKey.OFFSET_FOR_LEADER_EPOCH, eventually=True, topics=topics)
    for name in ("records", "compacted", "kept", "none"):
        for offset in (0, -1, -2, 1):
            partitions = [{"partition_index": 0, "offset": offset}]
            both.same(
                ApiKey.DELETE_RECORDS,
                eventually=True,
                topics=[{"name": name, "partitions": partitions}],
                timeout=30_000,
            )


def described(both: Both, kind: int, name: str, *keys: str, synonyms: bool = True) -> Any:
    resource = {"resource_type": kind, "resource_name": name, "configuration_keys": keys or None}
    return both.same(ApiKey.DESCRIBE_CONFIGS, eventually=True, resources=[resource], include_synonyms=synonyms)


def alter(both: Both, kind: int, name: str, *changes: tuple[str, int, str | None]) -> int:
    configs = [{"name": key, "config_operation": operation, "value": value} for key, operation, value in changes]
    resource = {"resource_type": kind, "resource_name": name, "configs": configs}
    answer = both.same(ApiKey.INCREMENTAL_ALTER_CONFIGS, resources=[resource], validate_only=False)
    return int(answer["responses"][0]["error_code"])


_ELSEWHERE = {"min.insync.replicas", "flush.ms", "segment.ms", "segment.jitter.ms"}
"""Kafka sets the first one for the cluster itself (KIP-966), and shows no synonyms of the others."""


def test_topic_configuration_changes_as_in_kafka(both: Both, kafka: KafkaNode) -> None:
    create(both, topic("conf", retention_ms="77"))
    described(both, 2, "conf", "retention.ms")  # Kafka's broker knows it, too
    with Wire(kafka.bootstrap) as real:
        resource = {"resource_type": 2, "resource_name": "conf", "configuration_keys": None}
        found = real.ask(ApiKey.DESCRIBE_CONFIGS, resources=[resource]).results[0].configs
    keys = {entry.name for entry in found} - _ELSEWHERE
    assert len(keys) > 25
    described(both, 2, "conf", *keys)
    described(both, 2, "conf", *_ELSEWHERE - {"min.insync.replicas"}, synonyms=False)
    for changes in (
        [("retention.ms", 0, "5")],
        [("retention.ms", 1, None)],
        [("retention.ms", 2, "5")],
        [("cleanup.policy", 2, "compact")],
        [("cleanup.policy", 3, "delete")],
        [("cleanup.policy", 3, "compact")],
        [("cleanup.policy", 1, None)],
        [("retention.ms", 0, "5"), ("retention.ms", 0, "6")],
        [("retention.ms", 0, None)],
        [("no.such.key", 0, "5")],
        [("no.such.key", 1, None)],
        [("retention.ms", 0, "x")],
        [("segment.bytes", 0, "1")],
        [("min.compaction.lag.ms", 0, "6"), ("max.compaction.lag.ms", 0, "5")],
        [],
    ):
        alter(both, 2, "conf", *changes)
        described(both, 2, "conf", "retention.ms", "cleanup.policy")
    for name in ("no-such-topic", "", "not legal"):
        assert alter(both, 2, name, ("retention.ms", 0, "5")) != 0
        resource = {"resource_type": 2, "resource_name": name, "configuration_keys": None}
        both.same(ApiKey.DESCRIBE_CONFIGS, resources=[resource])
    for configs in ([("retention.ms", "8"), ("cleanup.policy", "compact")], [("segment.bytes", "2000000")], []):
        resource = {
            "resource_type": 2,
            "resource_name": "conf",
            "configs": [{"name": key, "value": value} for key, value in configs],
        }
        both.same(ApiKey.ALTER_CONFIGS, resources=[resource], validate_only=False)
        described(both, 2, "conf", "retention.ms", "cleanup.policy", "segment.bytes")


_OWN_KEYS = {
    "allow.everyone.if.no.acl.found",
    "cluster.store",
    "cluster.store.jaas.config",
    "group.consumer.regex.refresh.interval.ms",
    "leader.imbalance.per.broker.percentage",
    "log.initial.task.delay.ms",
    "metrics.listener",
    "seglog.insecure.listeners",
    "seglog.max.groups",
    "seglog.max.producers",
    "seglog.max.transactional.ids",
    "seglog.scram.users",
    "seglog.validate.records",
    "super.users",
    "zookeeper.clientCnxnSocket",
    "zookeeper.set.acl",
    "zookeeper.ssl.cipher.suites",
    "zookeeper.ssl.client.enable",
    "zookeeper.ssl.enabled.protocols",
    "zookeeper.ssl.endpoint.identification.algorithm",
    "zookeeper.ssl.keystore.location",
    "zookeeper.ssl.keystore.password",
    "zookeeper.ssl.keystore.type",
    "zookeeper.ssl.protocol",
    "zookeeper.ssl.truststore.location",
    "zookeeper.ssl.truststore.password",
    "zookeeper.ssl.truststore.type",
}
"""Keys that Kafka does not describe: ours, old ones, and those that it has for its tests."""
_OTHER_DEFAULTS = {
    "listener.security.protocol.map",  # a map, in another order
    "listeners",
    "log.dir",
    "max.connection.creation.rate",
    "max.connections",
    "node.id",
    "offsets.topic.replication.factor",
    "transaction.state.log.min.isr",
    "transaction.state.log.replication.factor",
    # Kafka shows no synonyms of these
    "log.flush.interval.ms",
    "log.retention.minutes",
    "log.roll.jitter.ms",
    "log.roll.ms",
}


def test_every_key_of_a_broker_is_described_as_in_kafka(both: Both, kafka: KafkaNode) -> None:
    def described_keys(bootstrap: str) -> dict[str, tuple[object, ...]]:
        with Wire(bootstrap) as wire:
            resource = {"resource_type": 4, "resource_name": "1", "configuration_keys": None}
            (result,) = wire.ask(ApiKey.DESCRIBE_CONFIGS, resources=[resource], include_synonyms=True).results
        return {
            one.name: (
                one.config_type,
                one.is_sensitive,
                one.read_only and one.name not in ("listeners", "listener.security.protocol.map"),
                [(synonym.name, synonym.value) for synonym in one.synonyms if synonym.source == 5],
            )
            for one in result.configs
        }

    real, ours = described_keys(kafka.bootstrap), described_keys(both.ours.bootstrap)
    assert ours.keys() - real.keys() == _OWN_KEYS
    assert real.keys() - ours.keys() == {"group.consumer.assignor.offload.enable"}  # since the node sets it
    different = {name for name in real.keys() & ours.keys() if real[name] != ours[name]}
    assert different == _OTHER_DEFAULTS
    assert all(real[name][:3] == ours[name][:3] for name in real.keys() & ours.keys())


def test_broker_configuration_changes_as_in_kafka(both: Both) -> None:
    create(both, topic("conf-b"))
    keys = ("log.retention.ms", "log.retention.hours", "num.partitions", "log.segment.bytes", "message.max.bytes")
    for kind, name, *changes in (
        (4, "1", ("log.retention.ms", 0, "99999999")),
        (4, "", ("log.retention.ms", 0, "88888888")),
        (4, "1", ("log.retention.ms", 1, None)),
        (4, "", ("log.retention.ms", 1, None)),
        (4, "1", ("num.partitions", 0, "5")),
        (4, "", ("num.partitions", 0, "5")),
        (4, "1", ("log.segment.bytes", 0, "5")),
        (4, "9", ("log.retention.ms", 0, "5")),
        (4, "x", ("log.retention.ms", 0, "5")),
        (4, "1", ("log.retention.hours", 0, "5")),
        (4, "1", ("message.max.bytes", 0, "2000000")),
        (4, "1", ("message.max.bytes", 1, None)),
        (7, "x", ("a", 0, "b")),
    ):
        alter(both, kind, name, *changes)
        described(both, 4, "1", *keys)
        described(both, 2, "conf-b", "retention.ms", "max.message.bytes")
    for name in ("9", "x"):
        described(both, 4, name)


def test_producer_ids_and_producers_are_described_as_in_kafka(both: Both) -> None:
    create(both, topic("produced"))
    for contents in (
        {"transactional_id": ""},
        {"transactional_id": None, "producer_id": 5, "producer_epoch": -1},
        {"transactional_id": None, "producer_id": -1, "producer_epoch": 3},
    ):
        both.same(ApiKey.INIT_PRODUCER_ID, transaction_timeout=1000, **contents)
    asked = [{"name": "produced", "partition_indexes": [0, 9]}, {"name": "none", "partition_indexes": [0]}]
    both.same(ApiKey.DESCRIBE_PRODUCERS, eventually=True, topics=asked)
    for topics in ([{"topic": "produced", "partitions": [0, 9]}], []):
        both.same(ApiKey.DESCRIBE_LOG_DIRS, eventually=True, topics=topics)
    both.same(ApiKey.LIST_CONFIG_RESOURCES, resource_types=[4])
    both.same(ApiKey.LIST_CONFIG_RESOURCES, resource_types=[99])
