"""Configurations described and changed, of topics and of the broker."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from seglog.core.broker_config import BROKER_KEYS, DYNAMIC_KEYS, LISTENER_DYNAMIC_KEYS
from seglog.core.config import TOPIC_KEYS
from seglog.core.kafka_broker_keys import dynamic_kafka_only_keys, internal_kafka_only_keys, kafka_only_keys
from seglog.protocol.apis import ApiKey
from tests.broker.broker_thread import RunningNode, Wire
from tests.broker.python_clients import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewTopic,
    ResourceType,
)

TOPIC = 2
BROKER = 4
SET, DELETE, APPEND, SUBTRACT = range(4)


def alter(wire: Wire, kind: int, name: str, *changes: tuple[str, int, str | None]) -> int:
    configs = [{"name": key, "config_operation": operation, "value": value} for key, operation, value in changes]
    resources = [{"resource_type": kind, "resource_name": name, "configs": configs}]
    (response,) = wire.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, resources=resources, validate_only=False).responses
    return int(response.error_code)


def described(wire: Wire, kind: int, name: str, *keys: str) -> dict[str, tuple[str | None, int]]:
    resource = {"resource_type": kind, "resource_name": name, "configuration_keys": keys or None}
    (result,) = wire.ask(ApiKey.DESCRIBE_CONFIGS, resources=[resource], include_synonyms=True).results
    assert result.error_code == 0
    return {config.name: (config.value, config.config_source) for config in result.configs}


@pytest.fixture
def topic(wire: Wire, topic_name: str) -> str:
    return wire.create_topic(topic_name)


def test_librdkafka_describes_and_changes_a_topic(broker: RunningNode, topic_name: str) -> None:
    admin = AdminClient({"log_level": 0, "bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(topic_name, 1, 1, config={"retention.ms": "60000"})])[topic_name].result()
    resource = ConfigResource(ResourceType.TOPIC, topic_name)
    found = admin.describe_configs([resource])[resource].result()
    assert found["retention.ms"].value == "60000"
    assert ConfigSource(found["retention.ms"].source) is ConfigSource.DYNAMIC_TOPIC_CONFIG
    assert [synonym.name for synonym in found["retention.ms"].synonyms.values()][:1] == ["retention.ms"]
    entry = ConfigEntry("retention.ms", "70000", incremental_operation=AlterConfigOpType.SET)
    changed = ConfigResource(ResourceType.TOPIC, topic_name, incremental_configs=[entry])
    admin.incremental_alter_configs([changed])[changed].result()
    assert admin.describe_configs([resource])[resource].result()["retention.ms"].value == "70000"
    assert broker.node.directories.dirs[0].log(topic_name).config.retention_ms == 70_000


def test_a_topic_has_all_keys_and_each_its_type(wire: Wire, topic: str) -> None:
    found = described(wire, TOPIC, topic)
    assert found.keys() == TOPIC_KEYS.keys() - {"internal.segment.bytes"}
    resource = {"resource_type": BROKER, "resource_name": "1", "configuration_keys": None}
    (result,) = wire.ask(ApiKey.DESCRIBE_CONFIGS, resources=[resource], include_documentation=True).results
    others = kafka_only_keys().keys() - internal_kafka_only_keys()
    assert {config.name for config in result.configs} == BROKER_KEYS.keys() | others
    dynamic = DYNAMIC_KEYS | LISTENER_DYNAMIC_KEYS | dynamic_kafka_only_keys()
    assert {config.name for config in result.configs if not config.read_only} == dynamic
    assert all(config.documentation and config.config_type for config in result.configs)


def test_lists_grow_and_shrink(wire: Wire, topic: str) -> None:
    assert alter(wire, TOPIC, topic, ("cleanup.policy", APPEND, "compact")) == 0
    assert set((described(wire, TOPIC, topic)["cleanup.policy"][0] or "").split(",")) == {"compact", "delete"}
    assert alter(wire, TOPIC, topic, ("cleanup.policy", SUBTRACT, "delete")) == 0
    assert described(wire, TOPIC, topic)["cleanup.policy"] == ("compact", 1)
    assert alter(wire, TOPIC, topic, ("cleanup.policy", DELETE, None)) == 0
    assert described(wire, TOPIC, topic)["cleanup.policy"] == ("delete", 5)
    assert alter(wire, TOPIC, topic, ("retention.ms", APPEND, "5")) == 40


def test_alter_configs_takes_away_what_it_does_not_name(wire: Wire, topic: str) -> None:
    assert alter(wire, TOPIC, topic, ("retention.ms", SET, "5"), ("segment.ms", SET, "6")) == 0
    resource = {"resource_type": TOPIC, "resource_name": topic, "configs": [{"name": "segment.ms", "value": "7"}]}
    (response,) = wire.ask(ApiKey.ALTER_CONFIGS, resources=[resource], validate_only=False).responses
    assert response.error_code == 0
    found = described(wire, TOPIC, topic)
    assert found["segment.ms"] == ("7", 1)
    assert found["retention.ms"] == ("604800000", 5)


def test_what_is_refused_changes_nothing(broker: RunningNode, wire: Wire, topic: str) -> None:
    before = described(wire, TOPIC, topic)
    assert alter(wire, TOPIC, topic, ("retention.ms", SET, "5"), ("segment.bytes", SET, "1")) == 40
    assert alter(wire, TOPIC, topic, ("retention.ms", SET, "5"), ("no.such.key", SET, "1")) == 40
    assert alter(wire, TOPIC, topic, ("retention.ms", SET, None)) == 42
    assert alter(wire, TOPIC, "no-such-topic", ("retention.ms", SET, "5")) == 3
    assert described(wire, TOPIC, topic) == before
    assert alter(wire, BROKER, "1", ("num.partitions", SET, "5")) == 42
    assert alter(wire, BROKER, "7", ("log.retention.ms", SET, "5")) == 42
    assert broker.node.configuration.of_broker == {}


def test_a_default_that_changes_reaches_every_topic_and_outlives_a_restart(
    start: Callable[..., RunningNode], topic_name: str
) -> None:
    running = start()
    with Wire(running.bootstrap) as wire:
        wire.create_topic(topic_name)
        assert alter(wire, BROKER, "", ("log.retention.ms", SET, "77000")) == 0
        assert described(wire, TOPIC, topic_name)["retention.ms"] == ("77000", 3)
        assert running.node.directories.dirs[0].log(topic_name).config.retention_ms == 77_000
        assert alter(wire, BROKER, "1", ("log.retention.ms", SET, "88000")) == 0
        assert described(wire, TOPIC, topic_name)["retention.ms"] == ("88000", 2)
    running.stop()
    running.start()
    with Wire(running.bootstrap) as wire:
        assert running.node.directories.dirs[0].log(topic_name).config.retention_ms == 88_000
        assert alter(wire, BROKER, "1", ("log.retention.ms", DELETE, None)) == 0
        assert running.node.directories.dirs[0].log(topic_name).config.retention_ms == 77_000
        assert described(wire, BROKER, "")["log.retention.ms"] == ("77000", 3)


def test_a_limit_of_connections_takes_effect_at_once(start: Callable[..., RunningNode]) -> None:
    running = start()
    with Wire(running.bootstrap) as wire:
        assert alter(wire, BROKER, "1", ("max.connections", SET, "1")) == 0
        with Wire(running.bootstrap) as other:  # accepted by the kernel, and waits for a place
            other.send(ApiKey.METADATA, topics=())
            wire.ask(ApiKey.METADATA, topics=())
            assert len(running.node.quotas.connections) == 1
            assert alter(wire, BROKER, "1", ("max.connections", DELETE, None)) == 0
            other.answer(ApiKey.METADATA)


def test_resources_are_listed(wire: Wire, topic: str) -> None:
    found = wire.ask(ApiKey.LIST_CONFIG_RESOURCES, resource_types=()).config_resources
    listed = {(resource.resource_type, resource.resource_name) for resource in found}
    assert {(BROKER, "1"), (TOPIC, topic)} <= listed
    assert wire.ask(ApiKey.LIST_CONFIG_RESOURCES, resource_types=(99,)).error_code == 35


def test_the_cleaner_s_configuration_changes_by_kafka_s_rules(start: Callable[..., RunningNode]) -> None:
    """Each answer as Kafka 4.4.0 gave it to the same changes in this order."""
    running = start()
    with Wire(running.bootstrap) as wire:
        asked = [
            ("log.cleaner.threads", "0", 42),
            ("log.cleaner.threads", "3", 42),
            ("log.cleaner.threads", "2", 0),
            ("log.cleaner.threads", "1", 0),
            ("log.cleaner.backoff.ms", "100", 0),
            ("log.cleaner.dedupe.buffer.size", "1000", 42),
            ("log.cleaner.dedupe.buffer.size", "10000000", 0),
            ("log.cleaner.io.max.bytes.per.second", "1000000", 0),
            ("log.cleaner.io.buffer.size", "0", 0),
            ("num.recovery.threads.per.data.dir", "0", 42),
            ("num.recovery.threads.per.data.dir", "50", 42),
            ("group.max.size", "5", 42),
            ("group.initial.rebalance.delay.ms", "1", 42),
            ("offsets.retention.minutes", "5", 42),
            ("offsets.topic.compression.codec", "1", 42),
        ]
        for name in ("", "1"):
            assert [(key, value, alter(wire, BROKER, name, (key, SET, value))) for key, value, _ in asked] == asked
        config = running.node.directories.dirs[0].config
        assert (config.log_cleaner_backoff_ms, config.log_cleaner_dedupe_buffer_size) == (100, 10_000_000)
        assert config.log_cleaner_io_max_bytes_per_second == 1_000_000


def test_keys_of_kafka_without_effect_are_kept_and_described(wire: Wire) -> None:
    key, secret, fixed = "num.io.threads", "sasl.jaas.config", "queued.max.requests"

    def found(name: str) -> tuple[str | None, int, bool, bool]:
        resource = {"resource_type": BROKER, "resource_name": "1", "configuration_keys": [name]}
        (config,) = wire.ask(ApiKey.DESCRIBE_CONFIGS, resources=[resource]).results[0].configs
        return config.value, config.config_source, config.read_only, config.is_sensitive

    assert found(key) == ("8", 5, False, False)
    assert found(fixed) == ("500", 5, True, False)
    assert alter(wire, BROKER, "", (key, SET, "9")) == alter(wire, BROKER, "1", (secret, SET, "x")) == 0
    assert found(key) == ("9", 3, False, False)
    assert found(secret) == (None, 2, False, True)
    assert alter(wire, BROKER, "1", (key, SET, "many")) == 42
    assert alter(wire, BROKER, "1", (fixed, SET, "9")) == 42
    assert alter(wire, BROKER, "1", ("sasl.enabled.mechanisms", SET, "PLAIN")) == 42
    assert alter(wire, BROKER, "", ("replica.alter.log.dirs.io.max.bytes.per.second", SET, "9")) == 40
    assert alter(wire, BROKER, "", ("replica.alter.log.dirs.io.max.bytes.per.second", DELETE, None)) == 0
    assert alter(wire, BROKER, "", ("leader.replication.throttled.rate", SET, "-1")) == 42
    assert alter(wire, BROKER, "", (key, DELETE, None)) == alter(wire, BROKER, "1", (secret, DELETE, None)) == 0
    assert found(key) == ("8", 5, False, False)
