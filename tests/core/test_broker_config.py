"""A broker's keys: those of Kafka, with its types, defaults and ranges, but for what is named here."""

from __future__ import annotations

import re

import pytest

from seglog.core.addresses import Address
from seglog.core.broker_config import BROKER_KEYS, DYNAMIC_KEYS, REFUSED, BrokerConfig, default_text
from seglog.core.config import DIRECTORY_KEYS
from seglog.core.errors import InvalidConfigError
from seglog.core.kafka_broker_keys import dynamic_kafka_only_keys, internal_kafka_only_keys, kafka_only_keys
from seglog.core.settings import Integer
from tests.core.kafka_keys import keys

KAFKA = keys(
    """
advertised.listeners | LIST | null | none
authorizer.class.name | STRING |  | non-null string
auto.create.topics.enable | BOOLEAN | true | null
auto.leader.rebalance.enable | BOOLEAN | true | null
broker.id | INT | -1 | null
broker.rack | STRING | null | null
broker.session.timeout.ms | INT | 9000 | null
connection.failed.authentication.delay.ms | INT | 100 | [0,...]
connections.max.idle.ms | LONG | 600000 | null
connections.max.reauth.ms | LONG | 0 | null
controlled.shutdown.enable | BOOLEAN | true | null
controller.listener.names | LIST | REQUIRED | none
default.replication.factor | INT | 1 | null
delete.topic.enable | BOOLEAN | true | null
fetch.max.bytes | INT | 57671680 | [1024,...]
group.consumer.assignment.interval.ms | INT | 1000 | [0,...]
group.consumer.assignors | LIST | [uniform, range] | null
group.consumer.heartbeat.interval.ms | INT | 5000 | [1,...]
group.consumer.max.assignment.interval.ms | INT | 15000 | [0,...]
group.consumer.max.heartbeat.interval.ms | INT | 15000 | [1,...]
group.consumer.max.session.timeout.ms | INT | 60000 | [1,...]
group.consumer.max.size | INT | 2147483647 | [1,...]
group.consumer.migration.policy | STRING | bidirectional | [DISABLED, DOWNGRADE, UPGRADE, BIDIRECTIONAL]
group.consumer.min.assignment.interval.ms | INT | 0 | [0,...]
group.consumer.min.heartbeat.interval.ms | INT | 5000 | [1,...]
group.consumer.min.session.timeout.ms | INT | 45000 | [1,...]
group.consumer.regex.refresh.interval.ms | INT | 600000 | [10000,...]
group.consumer.session.timeout.ms | INT | 45000 | [1,...]
group.initial.rebalance.delay.ms | INT | 3000 | null
group.max.session.timeout.ms | INT | 1800000 | null
group.max.size | INT | 2147483647 | [1,...]
group.min.session.timeout.ms | INT | 6000 | null
inter.broker.listener.name | STRING | null | null
leader.imbalance.check.interval.seconds | LONG | 300 | [1,...]
listeners | LIST | [PLAINTEXT://:9092] | none
log.dir | LIST | [/tmp/kafka-logs] | none
log.dirs | LIST | null | none
max.connection.creation.rate | INT | 2147483647 | [0,...]
max.connections | INT | 2147483647 | [0,...]
max.connections.per.ip | INT | 2147483647 | [0,...]
max.incremental.fetch.session.cache.slots | INT | 1000 | [0,...]
max.request.partition.size.limit | INT | 2000 | [1,...]
node.id | INT | REQUIRED | [0,...]
offset.metadata.max.bytes | INT | 4096 | null
offsets.commit.timeout.ms | INT | 5000 | [1,...]
offsets.retention.check.interval.ms | LONG | 600000 | [1,...]
offsets.retention.minutes | INT | 10080 | [1,...]
offsets.topic.compression.codec | INT | 0 | null
offsets.topic.num.partitions | INT | 50 | [1,...]
offsets.topic.replication.factor | SHORT | 3 | [1,...]
offsets.topic.segment.bytes | INT | 104857600 | [1,...]
queued.max.request.bytes | LONG | -1 | null
replica.fetch.backoff.ms | INT | 1000 | [0,...]
replica.fetch.max.bytes | INT | 1048576 | [0,...]
replica.fetch.min.bytes | INT | 1 | null
replica.fetch.response.max.bytes | INT | 10485760 | [0,...]
replica.fetch.wait.max.ms | INT | 500 | null
replica.lag.time.max.ms | LONG | 30000 | null
replica.selector.class | STRING | null | null
replica.socket.timeout.ms | INT | 30000 | null
delegation.token.expiry.check.interval.ms | LONG | 3600000 | [1,...]
delegation.token.expiry.time.ms | LONG | 86400000 | [1,...]
delegation.token.max.lifetime.ms | LONG | 604800000 | [1,...]
delegation.token.secret.key | PASSWORD | null | null
sasl.enabled.mechanisms | LIST | [GSSAPI] | null
sasl.mechanism.inter.broker.protocol | STRING | GSSAPI | null
sasl.oauthbearer.allow.unverified.audience | BOOLEAN | false | null
sasl.oauthbearer.allow.unverified.issuer | BOOLEAN | false | null
sasl.oauthbearer.client.credentials.client.id | STRING | null | null
sasl.oauthbearer.client.credentials.client.secret | PASSWORD | null | null
sasl.oauthbearer.clock.skew.seconds | INT | 30 | null
sasl.oauthbearer.expected.audience | LIST | [] | null
sasl.oauthbearer.expected.issuer | STRING | null | null
sasl.oauthbearer.jwks.endpoint.refresh.ms | LONG | 3600000 | null
sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms | LONG | 10000 | null
sasl.oauthbearer.jwks.endpoint.retry.backoff.ms | LONG | 100 | null
sasl.oauthbearer.jwks.endpoint.url | STRING | null | null
sasl.oauthbearer.scope | STRING | null | null
sasl.oauthbearer.scope.claim.name | STRING | scope | null
sasl.oauthbearer.sub.claim.name | STRING | sub | null
sasl.oauthbearer.token.endpoint.url | STRING | null | null
sasl.server.max.receive.size | INT | 524288 | null
security.inter.broker.protocol | STRING | PLAINTEXT | [PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL]
socket.request.max.bytes | INT | 104857600 | [1,...]
ssl.cipher.suites | LIST | [] | null
ssl.client.auth | STRING | none | [required, requested, none]
ssl.enabled.protocols | LIST | [TLSv1.2, TLSv1.3] | null
ssl.endpoint.identification.algorithm | STRING | https | null
ssl.key.password | PASSWORD | null | null
ssl.keystore.certificate.chain | PASSWORD | null | null
ssl.keystore.key | PASSWORD | null | null
ssl.keystore.location | STRING | null | null
ssl.keystore.password | PASSWORD | null | null
ssl.keystore.type | STRING | JKS | null
ssl.principal.mapping.rules | STRING | DEFAULT | null
ssl.protocol | STRING | TLSv1.3 | null
ssl.truststore.certificates | PASSWORD | null | null
ssl.truststore.location | STRING | null | null
ssl.truststore.password | PASSWORD | null | null
ssl.truststore.type | STRING | JKS | null
transaction.abort.timed.out.transaction.cleanup.interval.ms | INT | 10000 | [1,...]
transaction.max.timeout.ms | INT | 900000 | [1,...]
transaction.partition.verification.enable | BOOLEAN | true | null
transaction.remove.expired.transaction.cleanup.interval.ms | INT | 3600000 | [1,...]
transaction.state.log.min.isr | INT | 2 | [1,...]
transaction.state.log.num.partitions | INT | 50 | [1,...]
transaction.state.log.replication.factor | SHORT | 3 | [1,...]
transaction.state.log.segment.bytes | INT | 104857600 | [1,...]
transactional.id.expiration.ms | INT | 604800000 | [1,...]
controller.quota.window.num | INT | 11 | [1,...]
controller.quota.window.size.seconds | INT | 1 | [1,...]
quota.window.num | INT | 11 | [1,...]
quota.window.size.seconds | INT | 1 | [1,...]
replication.quota.window.num | INT | 11 | [1,...]
replication.quota.window.size.seconds | INT | 1 | [1,...]
"""
)
"""Printed from ``AbstractKafkaConfig.CONFIG_DEF`` of Kafka 4.4.0: name, type, default, valid values."""

OURS = {
    "allow.everyone.if.no.acl.found": ("boolean", "false"),  # of the authorizer in Kafka, as super.users
    "cluster.store": ("string", ""),  # of our own, as the next one
    "cluster.store.jaas.config": ("password", ""),
    "leader.imbalance.per.broker.percentage": ("int", "10"),  # of Kafka before 4.0
    "controller.listener.names": ("string", ""),
    "listener.security.protocol.map": ("string", BROKER_KEYS["listener.security.protocol.map"].default),
    "listeners": ("list", "PLAINTEXT://127.0.0.1:9092"),  # loopback
    "log.dir": ("string", ""),
    "log.dirs": ("string", ""),
    "max.connection.creation.rate": ("int", "500"),
    "max.connections": ("int", "10000"),
    "metrics.listener": ("string", ""),  # of our own
    "node.id": ("int", "-1"),
    "offsets.topic.replication.factor": ("int", "1"),  # there is one broker
    "seglog.insecure.listeners": ("boolean", "false"),  # of our own, as the next four
    "seglog.max.groups": ("int", "100000"),
    "seglog.max.producers": ("int", "100000"),
    "seglog.max.transactional.ids": ("int", "100000"),
    "seglog.scram.users": ("password", ""),
    "super.users": ("string", ""),
    "transaction.state.log.min.isr": ("int", "1"),
    "transaction.state.log.replication.factor": ("int", "1"),
    # Of Kafka 3, which had ZooKeeper
    "zookeeper.clientCnxnSocket": ("string", ""),
    "zookeeper.set.acl": ("boolean", "false"),
    "zookeeper.ssl.cipher.suites": ("list", ""),
    "zookeeper.ssl.client.enable": ("boolean", "false"),
    "zookeeper.ssl.enabled.protocols": ("list", ""),
    "zookeeper.ssl.endpoint.identification.algorithm": ("string", "HTTPS"),
    "zookeeper.ssl.keystore.location": ("string", ""),
    "zookeeper.ssl.keystore.password": ("password", ""),
    "zookeeper.ssl.keystore.type": ("string", ""),
    "zookeeper.ssl.protocol": ("string", ""),
    "zookeeper.ssl.truststore.location": ("string", ""),
    "zookeeper.ssl.truststore.password": ("password", ""),
    "zookeeper.ssl.truststore.type": ("string", ""),
}
"""Keys whose type or default differs from Kafka's on purpose."""


@pytest.mark.parametrize("name", sorted(BROKER_KEYS.keys() - DIRECTORY_KEYS.keys()))
def test_a_key_is_kafka_s(name: str) -> None:
    row = BROKER_KEYS[name]
    ours = (row.rule.type, default_text(row))
    if name in OURS:
        assert ours == OURS[name]
        return
    kafka = KAFKA[name]
    default = {"null": ""}.get(kafka.default, kafka.default)
    if kafka.type == "LIST":
        default = default.removeprefix("[").removesuffix("]").replace(", ", ",")
    assert ours == (kafka.type.lower(), default)
    low = re.match(r"\[(-?\d+),", kafka.valid)
    if low is not None and isinstance(row.rule, Integer):
        assert row.rule.low == int(low[1])


DYNAMIC_IN_KAFKA = """
compression.gzip.level compression.lz4.level compression.type compression.zstd.level cordoned.log.dirs
group.consumer.assignment.interval.ms group.coordinator.cached.buffer.max.bytes group.share.assignment.interval.ms
group.streams.assignment.interval.ms listener.security.protocol.map listeners log.cleaner.backoff.ms
log.cleaner.dedupe.buffer.size log.cleaner.delete.retention.ms log.cleaner.io.buffer.load.factor
log.cleaner.io.buffer.size log.cleaner.io.max.bytes.per.second log.cleaner.max.compaction.lag.ms
log.cleaner.min.cleanable.ratio log.cleaner.min.compaction.lag.ms log.cleaner.threads log.cleanup.policy
log.flush.interval.messages log.flush.interval.ms log.index.interval.bytes log.index.size.max.bytes
log.local.retention.bytes log.local.retention.ms log.message.timestamp.after.max.ms
log.message.timestamp.before.max.ms log.message.timestamp.type log.preallocate log.retention.bytes log.retention.ms
log.roll.jitter.ms log.roll.ms log.segment.bytes log.segment.delete.delay.ms max.connection.creation.rate
max.connections max.connections.per.ip max.connections.per.ip.overrides max.decompressed.message.bytes
message.max.bytes min.insync.replicas num.io.threads num.network.threads num.recovery.threads.per.data.dir
num.replica.fetchers producer.id.expiration.ms transaction.partition.verification.enable
unclean.leader.election.enable
"""
"""Of ``DynamicBrokerConfig.ALL_DYNAMIC_CONFIGS`` of Kafka 4.4.0, without remote storage, quotas and security. None of
the keys of classic groups and of their offsets."""


def test_dynamic_keys_are_those_of_kafka() -> None:
    static = {"listeners", "listener.security.protocol.map"}
    assert (BROKER_KEYS.keys() & DYNAMIC_IN_KAFKA.split()) - static == DYNAMIC_KEYS


def test_a_file_copied_from_a_broker_passes() -> None:
    """Kafka's own config/server.properties, without its comments."""
    copied = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.bootstrap.servers": "localhost:9093",
        "listeners": "PLAINTEXT://:9092,CONTROLLER://:9093",
        "inter.broker.listener.name": "PLAINTEXT",
        "advertised.listeners": "PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL",
        "num.network.threads": "3",
        "num.io.threads": "8",
        "socket.send.buffer.bytes": "102400",
        "socket.receive.buffer.bytes": "102400",
        "socket.request.max.bytes": "104857600",
        "log.dirs": "/tmp/kraft-combined-logs",
        "num.partitions": "1",
        "num.recovery.threads.per.data.dir": "1",
        "offsets.topic.replication.factor": "1",
        "share.coordinator.state.topic.replication.factor": "1",
        "transaction.state.log.replication.factor": "1",
        "log.retention.hours": "168",
        "log.segment.bytes": "1073741824",
        "log.retention.check.interval.ms": "300000",
    }
    config = BrokerConfig.from_mapping(copied)
    assert config.broker_listeners == [Address("PLAINTEXT", "", 9092)]
    (note,) = config.notes
    assert note.startswith("Kafka keys without effect here: controller.quorum.bootstrap.servers, ")


def test_listener_without_protocol_is_refused() -> None:
    with pytest.raises(InvalidConfigError, match="IN has no protocol of Kafka's"):
        BrokerConfig.from_mapping({"listeners": "IN://:1"})


@pytest.mark.parametrize(
    "given",
    [
        {"listeners": "PLAINTEXT://a:1,PLAINTEXT://a:2"},
        {"listeners": "a:1"},
        {"listeners": "PLAINTEXT://a:70000"},
        {"listeners": "CONTROLLER://:1", "controller.listener.names": "CONTROLLER"},
        {"listeners": "CLIENTS://:1"},
        {"listeners": "CLIENTS://:1", "listener.security.protocol.map": "CLIENTS:TLS"},
        {"security.inter.broker.protocol": "SSL"},
        {"listeners": "SSL://:1", "inter.broker.listener.name": "SSL", "security.inter.broker.protocol": "SSL"},
        {"listener.name.ssl.sasl.jaas.config": "…"},
        {"listener.name.ssl.ssl.client.auth": "maybe"},
        {"listener.name.ssl.plain.sasl.server.callback.handler.class": "example.Handler"},
        {"ssl.engine.factory.class": "example.Factory"},
        {"listener.security.protocol.map": "CLIENTS"},
        {"super.users": "User:ann;bob"},
        {"authorizer.class.name": "kafka.security.authorizer.AclAuthorizer"},
        {"allow.everyone.if.no.acl.found": "maybe"},
        {"group.min.session.timeout.ms": "10", "group.max.session.timeout.ms": "9"},
        {"group.consumer.session.timeout.ms": "10000"},
        {"group.consumer.max.heartbeat.interval.ms": "4999"},
        {"group.consumer.assignment.interval.ms": "15001"},
        {"group.consumer.assignors": ""},
        {
            "group.consumer.max.heartbeat.interval.ms": "45000",
            "group.consumer.heartbeat.interval.ms": "45000",
        },
        {"fetch.max.bytes": "1023"},
        {"log.cleaner.threads": "0"},
        {"log.cleaner.threads": "2", "log.cleaner.dedupe.buffer.size": "2097152"},
        {"offsets.topic.compression.codec": "5"},
        {"log.retention.hours": "-2"},
        {"replica.fetch.wait.max.ms": "501", "replica.lag.time.max.ms": "500"},
        {"replica.selector.class": "example.Selector"},
        {"inter.broker.listener.name": "OTHER"},
        {
            "listeners": "PLAINTEXT://:1,INSIDE://:2",
            "controller.listener.names": "INSIDE",
            "listener.security.protocol.map": "INSIDE:PLAINTEXT",
            "inter.broker.listener.name": "inside",
        },
    ],
)
def test_invalid_broker_settings_are_refused(given: dict[str, str]) -> None:
    with pytest.raises(InvalidConfigError):
        BrokerConfig.from_mapping(given)


def test_data_dirs_may_be_several_but_data_dir_must_be_one() -> None:
    assert BrokerConfig.from_mapping({"log.dirs": " /a, /b,", "log.dir": "/c"}).data_dirs == ("/a", "/b")
    config = BrokerConfig.from_mapping({"log.dir": "/c"})
    assert (config.data_dirs, config.data_dir) == (("/c",), "/c")
    with pytest.raises(InvalidConfigError, match="one log directory"):
        assert BrokerConfig.from_mapping({"log.dirs": "/a,/b"}).data_dir


def test_keys_without_effect_are_accepted_with_values_of_their_type() -> None:
    given = {
        "sasl.kerberos.service.name": "kafka",
        "sasl.kerberos.ticket.renew.jitter": "0.05",
        "num.io.threads": "8",
        "share.coordinator.threads": "1",
        "principal.builder.class": (  # the default
            "org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder"
        ),
        "zookeeper.connect": "zk:2181",  # of older versions
    }
    config = BrokerConfig.from_mapping(given)
    assert config.without_effect == {name: text for name, text in given.items() if name != "zookeeper.connect"}
    assert config.notes == (f"Kafka keys without effect here: {', '.join(sorted(given))}",)
    for name, text in (
        ("num.io.threads", "many"),
        ("sasl.kerberos.ticket.renew.jitter", "x"),
        ("request.timeout.ms", ""),
    ):
        with pytest.raises(InvalidConfigError, match=name.replace(".", r"\.")):
            BrokerConfig.from_mapping({name: text})


def test_no_key_is_in_two_tables() -> None:
    assert not kafka_only_keys().keys() & BROKER_KEYS.keys()
    assert dynamic_kafka_only_keys() <= kafka_only_keys().keys()
    assert internal_kafka_only_keys() <= kafka_only_keys().keys()
    assert not dynamic_kafka_only_keys() & internal_kafka_only_keys()


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_a_key_that_could_not_do_what_it_says_is_refused(name: str) -> None:
    with pytest.raises(InvalidConfigError, match=name.replace(".", r"\.")):
        BrokerConfig.from_mapping({name: "true"})
    known = kafka_only_keys().get(name)
    default = "" if known is None or known.default is None else known.default
    for off in (default, "false"):
        assert BrokerConfig.from_mapping({name: off}).given == {}
