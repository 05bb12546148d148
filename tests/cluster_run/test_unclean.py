"""All replicas that have everything are gone: a partition waits for one of them, or goes on without, as configured."""

from __future__ import annotations

import time
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from tests.broker.clients import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType
from tests.cluster_run.brokers import ThreeBrokers
from tests.cluster_run.replicas import differences
from tests.kafka.waiting import wait_until

SESSION_SECONDS = 1.5
SETTINGS = {
    "broker.session.timeout.ms": str(int(SESSION_SECONDS * 1000)),
    "min.insync.replicas": "1",
    "auto.leader.rebalance.enable": "false",
}
TOPICS = ("safe", "risky")


def write(cluster: ThreeBrokers, topic: str, value: str, seconds: float = 30) -> KafkaError | None:
    """With acks=all; what it came to."""
    producer = Producer(
        {"bootstrap.servers": cluster.bootstrap, "log_level": 0, "acks": "all", "message.timeout.ms": seconds * 1000}
    )
    told: list[KafkaError | None] = []
    producer.produce(topic, value.encode(), partition=0, on_delivery=lambda error, _: told.append(error))
    producer.flush(seconds + 30)
    return told[0]


def values(cluster: ThreeBrokers, topic: str) -> list[str]:
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "log_level": 0, "group.id": "none"})
    try:
        _, high = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=30)
        consumer.assign([TopicPartition(topic, 0, 0)])
        found: list[str] = []
        while len(found) < high:
            for message in consumer.consume(high, 5):
                error, value = message.error(), message.value()
                if error is not None:
                    raise KafkaException(error)
                found.append((value or b"").decode())
        return found
    finally:
        consumer.close()


def leaders(cluster: ThreeBrokers) -> list[int | None]:
    return [cluster.leader(topic, 0) for topic in TOPICS]


def allow_unclean(cluster: ThreeBrokers, topic: str) -> None:
    entry = ConfigEntry("unclean.leader.election.enable", "true", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    for done in admin.incremental_alter_configs([resource]).values():
        done.result(30)


def test_without_the_last_who_has_everything_a_partition_waits_unless_it_may_lose(memory: Path) -> None:
    with ThreeBrokers(memory / "cluster", settings=SETTINGS) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
        new = [NewTopic(topic, 1, replica_assignment=[[1, 2, 3]]) for topic in TOPICS]
        for made in admin.create_topics(new).values():
            made.result(30)
        for topic in TOPICS:
            assert write(cluster, topic, "early") is None
        cluster[2].stop()
        cluster[3].stop()
        for topic in TOPICS:
            assert write(cluster, topic, "late") is None, "one replica is enough here"
        cluster[1].kill()
        cluster.start_all([2, 3])
        wait_until(lambda: leaders(cluster) == [None, None], "the end of the session of broker 1")
        deadline = time.monotonic() + 2 * SESSION_SECONDS
        while time.monotonic() < deadline:
            assert leaders(cluster) == [None, None]
        assert write(cluster, "safe", "never", seconds=1) is not None
        allow_unclean(cluster, "risky")
        wait_until(lambda: cluster.leader("risky", 0) in (2, 3), "an unclean election")
        assert write(cluster, "risky", "after") is None
        assert cluster.leader("safe", 0) is None
        cluster[1].start()
        cluster.wait_healthy()
        assert cluster.leader("safe", 0) == 1
        assert values(cluster, "safe") == ["early", "late"]
        assert values(cluster, "risky") == ["early", "after"]
        assert differences(cluster) == []
