"""Keys of a Kafka 4.4 broker that have no effect here, as facts: name, type and default.

Printed from ``AbstractKafkaConfig.CONFIG_DEF`` and ``DynamicBrokerConfig.ALL_DYNAMIC_CONFIGS``. ``*`` after the name: a
broker may change it while it runs. ``!``: Kafka does not describe it. ``-``: it has no default.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Final

from seglog.core.settings import Boolean, Integer, Real, Rule, Setting, Typed, int32, int64
from seglog.core.types import MAX_INT32, MAX_INT64

_DYNAMIC: Final = "*"
_INTERNAL: Final = "!"
_NO_DEFAULT: Final = "-"
_LARGEST: Final = 1.7976931348623157e308
_RULES: Final[Mapping[str, Rule]] = {
    "boolean": Boolean(),
    "short": Integer(type="short", low=-(2**15), high=2**15 - 1),
    "int": int32(-MAX_INT32 - 1),
    "long": int64(-MAX_INT64 - 1),
    "double": Real(-_LARGEST, _LARGEST),
}
_PASSWORD: Final = "password"


@cache
def kafka_only_keys() -> Mapping[str, Setting]:
    """All of them, by name. Kafka accepts only some of the values that these rules accept; the type is Kafka's."""
    rows = (line.split(" ") for line in _KEYS.splitlines())
    return {name.rstrip(_DYNAMIC + _INTERNAL): _setting(name, kind, default) for name, kind, default in rows}


@cache
def dynamic_kafka_only_keys() -> frozenset[str]:
    return _marked(_DYNAMIC)


@cache
def internal_kafka_only_keys() -> frozenset[str]:
    return _marked(_INTERNAL)


def _marked(mark: str) -> frozenset[str]:
    names = (line.split(" ")[0] for line in _KEYS.splitlines())
    return frozenset(name.rstrip(mark) for name in names if name.endswith(mark))


def _setting(name: str, kind: str, default: str) -> Setting:
    rule = _RULES.get(kind) or Typed(kind)
    plain = name.rstrip(_DYNAMIC + _INTERNAL)
    value = {_NO_DEFAULT: None, '""': ""}.get(default, default)
    return Setting(plain, rule, value, "no effect in seglog", "", is_secret=kind == _PASSWORD)


_KEYS: Final = """\
add.partitions.to.txn.retry.backoff.max.ms int 100
add.partitions.to.txn.retry.backoff.ms int 20
alter.config.policy.class.name class -
alter.log.dirs.replication.quota.window.num int 11
alter.log.dirs.replication.quota.window.size.seconds int 1
background.threads* int 10
broker.heartbeat.interval.ms int 2000
client.quota.callback.class class -
config.providers* list ""
controller.performance.always.log.threshold.ms! long 2000
controller.performance.sample.period.ms! long 60000
controller.quorum.append.linger.ms int 25
controller.quorum.auto.join.enable boolean false
controller.quorum.bootstrap.servers list ""
controller.quorum.election.backoff.max.ms int 1000
controller.quorum.election.timeout.ms int 1000
controller.quorum.fetch.max.bytes int 1048576
controller.quorum.fetch.snapshot.max.bytes int 1048576
controller.quorum.fetch.timeout.ms int 2000
controller.quorum.request.timeout.ms int 2000
controller.quorum.retry.backoff.ms int 20
controller.quorum.voters list ""
controller.socket.timeout.ms int 30000
cordoned.log.dirs* list ""
create.topic.policy.class.name class -
delete.records.purgatory.purge.interval.requests int 1
early.start.listeners list -
errors.deadletterqueue.auto.create.topics.enable* boolean false
errors.deadletterqueue.topic.name.prefix* string dlq.
fetch.purgatory.purge.interval.requests int 1000
follower.fetch.last.tiered.offset.enable* boolean false
group.consumer.assignor.offload.enable! boolean true
group.coordinator.append.linger.ms int -1
group.coordinator.background.threads int 2
group.coordinator.cached.buffer.max.bytes* int 1048588
group.coordinator.rebalance.protocols list classic,consumer,streams
group.coordinator.threads int 4
group.share.assignment.interval.ms* int 1000
group.share.assignor.offload.enable! boolean true
group.share.assignors list simple
group.share.delivery.count.limit int 5
group.share.dlq.manager.class.name! string org.apache.kafka.server.share.dlq.DefaultShareGroupDLQManager
group.share.heartbeat.interval.ms int 5000
group.share.initialize.retry.interval.ms! int 30000
group.share.max.assignment.interval.ms int 15000
group.share.max.delivery.count.limit int 10
group.share.max.heartbeat.interval.ms int 15000
group.share.max.partition.max.record.locks int 4000
group.share.max.record.lock.duration.ms int 60000
group.share.max.session.timeout.ms int 60000
group.share.max.share.sessions int 2000
group.share.max.size int 200
group.share.min.assignment.interval.ms int 0
group.share.min.delivery.count.limit int 2
group.share.min.heartbeat.interval.ms int 5000
group.share.min.partition.max.record.locks int 100
group.share.min.record.lock.duration.ms int 15000
group.share.min.session.timeout.ms int 45000
group.share.partition.max.record.locks int 2000
group.share.persister.class.name! string org.apache.kafka.server.share.persister.DefaultStatePersister
group.share.record.lock.duration.ms int 30000
group.share.session.timeout.ms int 45000
group.streams.acceptable.recovery.lag! long 10000
group.streams.assignment.interval.ms* int 1000
group.streams.assignor.offload.enable! boolean true
group.streams.assignors list sticky
group.streams.heartbeat.interval.ms int 5000
group.streams.initial.rebalance.delay.ms int 3000
group.streams.max.assignment.interval.ms int 15000
group.streams.max.heartbeat.interval.ms int 15000
group.streams.max.session.timeout.ms int 60000
group.streams.max.size int 2147483647
group.streams.max.standby.replicas int 2
group.streams.max.warmup.replicas! int 20
group.streams.min.assignment.interval.ms int 0
group.streams.min.heartbeat.interval.ms int 5000
group.streams.min.session.timeout.ms int 45000
group.streams.min.task.offset.interval.ms! int 15000
group.streams.num.standby.replicas int 0
group.streams.num.warmup.replicas! int 2
group.streams.rack.aware.assignment.tags list ""
group.streams.session.timeout.ms int 45000
group.streams.task.offset.interval.ms! int 60000
group.streams.topology.description.plugin.class class -
initial.broker.registration.timeout.ms int 60000
internal.metadata.delete.delay.millis! long 60000
internal.metadata.log.segment.bytes! int -
internal.metadata.max.batch.size.in.bytes! int 8388608
kafka.metrics.polling.interval.secs int 10
kafka.metrics.reporters list ""
log.dir.failure.timeout.ms long 30000
log.local.retention.bytes* long -2
log.local.retention.ms* long -2
log.remote.copy.lag.bytes* long -1
log.remote.copy.lag.ms* long 0
max.connections.per.ip.overrides* string ""
metadata.log.dir string -
metadata.log.max.record.bytes.between.snapshots long 20971520
metadata.log.max.snapshot.interval.ms long 3600000
metadata.log.segment.bytes int 1073741824
metadata.log.segment.ms long 604800000
metadata.max.idle.interval.ms int 500
metadata.max.retention.bytes long 104857600
metadata.max.retention.ms long 604800000
metric.reporters* list org.apache.kafka.common.metrics.JmxReporter
metrics.num.samples int 2
metrics.recording.level string INFO
metrics.sample.window.ms long 30000
num.io.threads* int 8
num.network.threads* int 3
num.replica.alter.log.dirs.threads int -
num.replica.fetchers* int 1
offsets.load.buffer.size int 5242880
principal.builder.class* class org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder
process.roles list -
producer.purgatory.purge.interval.requests int 1000
queued.max.requests int 500
remote.fetch.max.wait.ms* int 500
remote.list.offsets.request.timeout.ms* long 30000
remote.log.index.file.cache.total.size.bytes* long 1073741824
remote.log.index.file.cache.ttl.ms! long 900000
remote.log.manager.copier.thread.pool.size* int 10
remote.log.manager.copy.max.bytes.per.second* long 9223372036854775807
remote.log.manager.copy.quota.window.num int 11
remote.log.manager.copy.quota.window.size.seconds int 1
remote.log.manager.expiration.thread.pool.size* int 10
remote.log.manager.fetch.max.bytes.per.second* long 9223372036854775807
remote.log.manager.fetch.quota.window.num int 11
remote.log.manager.fetch.quota.window.size.seconds int 1
remote.log.manager.follower.thread.pool.size* int 2
remote.log.manager.task.interval.ms long 30000
remote.log.manager.task.retry.backoff.max.ms! long 30000
remote.log.manager.task.retry.backoff.ms! long 500
remote.log.manager.task.retry.jitter! double 0.2
remote.log.manager.thread.pool.size int 2
remote.log.metadata.custom.metadata.max.bytes int 128
remote.log.metadata.manager.class.name string \
org.apache.kafka.server.log.remote.metadata.storage.TopicBasedRemoteLogMetadataManager
remote.log.metadata.manager.class.path string -
remote.log.metadata.manager.impl.prefix string rlmm.config.
remote.log.metadata.manager.listener.name string -
remote.log.reader.max.pending.tasks int 100
remote.log.reader.threads* int 10
remote.log.storage.manager.class.name string -
remote.log.storage.manager.class.path string -
remote.log.storage.manager.impl.prefix string rsm.config.
remote.log.storage.system.enable boolean false
replica.socket.receive.buffer.bytes int 65536
request.timeout.ms int 30000
sasl.client.callback.handler.class class -
sasl.jaas.config* password -
sasl.kerberos.kinit.cmd* string /usr/bin/kinit
sasl.kerberos.min.time.before.relogin* long 60000
sasl.kerberos.principal.to.local.rules* list DEFAULT
sasl.kerberos.service.name* string -
sasl.kerberos.ticket.renew.jitter* double 0.05
sasl.kerberos.ticket.renew.window.factor* double 0.8
sasl.login.callback.handler.class class -
sasl.login.class class -
sasl.login.connect.timeout.ms int -
sasl.login.read.timeout.ms int -
sasl.login.refresh.buffer.seconds* short 300
sasl.login.refresh.min.period.seconds* short 60
sasl.login.refresh.window.factor* double 0.8
sasl.login.refresh.window.jitter* double 0.05
sasl.login.retry.backoff.max.ms long 10000
sasl.login.retry.backoff.ms long 100
sasl.mechanism.controller.protocol string GSSAPI
sasl.oauthbearer.assertion.algorithm string RS256
sasl.oauthbearer.assertion.claim.aud string -
sasl.oauthbearer.assertion.claim.exp.seconds int 300
sasl.oauthbearer.assertion.claim.iss string -
sasl.oauthbearer.assertion.claim.jti.include boolean false
sasl.oauthbearer.assertion.claim.nbf.seconds int 60
sasl.oauthbearer.assertion.claim.sub string -
sasl.oauthbearer.assertion.file string -
sasl.oauthbearer.assertion.private.key.file string -
sasl.oauthbearer.assertion.private.key.passphrase password -
sasl.oauthbearer.assertion.template.file string -
sasl.oauthbearer.jwt.retriever.class class org.apache.kafka.common.security.oauthbearer.DefaultJwtRetriever
sasl.oauthbearer.jwt.validator.class class org.apache.kafka.common.security.oauthbearer.DefaultJwtValidator
sasl.server.callback.handler.class class -
security.providers string -
server.max.startup.time.ms! long 9223372036854775807
share.coordinator.append.linger.ms int -1
share.coordinator.cached.buffer.max.bytes* int 1048588
share.coordinator.cold.partition.snapshot.interval.ms! int 300000
share.coordinator.load.buffer.size int 5242880
share.coordinator.snapshot.update.records.per.snapshot int 500
share.coordinator.state.topic.compression.codec int 0
share.coordinator.state.topic.min.isr short 2
share.coordinator.state.topic.num.partitions int 50
share.coordinator.state.topic.prune.interval.ms! int 300000
share.coordinator.state.topic.replication.factor short 3
share.coordinator.state.topic.segment.bytes int 104857600
share.coordinator.threads int 1
share.coordinator.write.timeout.ms int 5000
share.fetch.purgatory.purge.interval.requests int 1000
socket.connection.setup.timeout.max.ms long 30000
socket.connection.setup.timeout.ms long 10000
socket.listen.backlog.size int 50
socket.receive.buffer.bytes int 102400
socket.send.buffer.bytes int 102400
ssl.allow.dn.changes boolean false
ssl.allow.san.changes boolean false
ssl.engine.factory.class* class -
ssl.keymanager.algorithm* string SunX509
ssl.provider* string -
ssl.secure.random.implementation* string -
ssl.trustmanager.algorithm* string PKIX
telemetry.max.bytes int 1048576
transaction.state.log.load.buffer.size int 5242880
transaction.two.phase.commit.enable boolean false
unclean.leader.election.interval.ms! long 300000
unstable.api.versions.enable! boolean false
unstable.feature.versions.enable! boolean false
"""
