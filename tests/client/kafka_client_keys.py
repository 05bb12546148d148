"""Kafka 4.4.0's definitions of its clients' keys: name, type, default, valid values.

Printed from ``ConsumerConfig.configDef()`` and ``ProducerConfig.configDef()`` of its jars; keys of both are in the
first table. Defaults that are classes are left out.
"""

BOTH = """
bootstrap.servers | LIST | required | any
client.dns.lookup | STRING | use_all_dns_ips | [use_all_dns_ips, resolve_canonical_bootstrap_servers_only]
client.id | STRING |  | null
config.providers | LIST | [] | any
connections.max.idle.ms | LONG | 540000 | null
enable.metrics.push | BOOLEAN | true | null
interceptor.classes | LIST | [] | any
metadata.max.age.ms | LONG | 300000 | [0,...]
metadata.recovery.rebootstrap.trigger.ms | LONG | 300000 | [0,...]
metadata.recovery.strategy | STRING | rebootstrap | (case insensitive) [REBOOTSTRAP, NONE]
metric.reporters | LIST | a class | any
metrics.num.samples | INT | 2 | [1,...]
metrics.recording.level | STRING | INFO | [INFO, DEBUG, TRACE]
metrics.sample.window.ms | LONG | 30000 | [0,...]
reconnect.backoff.max.ms | LONG | 1000 | [0,...]
reconnect.backoff.ms | LONG | 50 | [0,...]
request.timeout.ms | INT | 30000 | [0,...]
retry.backoff.max.ms | LONG | 1000 | [0,...]
retry.backoff.ms | LONG | 100 | [0,...]
sasl.client.callback.handler.class | CLASS | null | null
sasl.jaas.config | PASSWORD | null | null
sasl.kerberos.kinit.cmd | STRING | /usr/bin/kinit | null
sasl.kerberos.min.time.before.relogin | LONG | 60000 | null
sasl.kerberos.service.name | STRING | null | null
sasl.kerberos.ticket.renew.jitter | DOUBLE | 0.05 | null
sasl.kerberos.ticket.renew.window.factor | DOUBLE | 0.8 | null
sasl.login.callback.handler.class | CLASS | null | null
sasl.login.class | CLASS | null | null
sasl.login.connect.timeout.ms | INT | null | null
sasl.login.read.timeout.ms | INT | null | null
sasl.login.refresh.buffer.seconds | SHORT | 300 | [0,...,3600]
sasl.login.refresh.min.period.seconds | SHORT | 60 | [0,...,900]
sasl.login.refresh.window.factor | DOUBLE | 0.8 | [0.5,...,1.0]
sasl.login.refresh.window.jitter | DOUBLE | 0.05 | [0.0,...,0.25]
sasl.login.retry.backoff.max.ms | LONG | 10000 | null
sasl.login.retry.backoff.ms | LONG | 100 | null
sasl.mechanism | STRING | GSSAPI | null
sasl.oauthbearer.assertion.algorithm | STRING | RS256 | (case insensitive) [ES256, RS256]
sasl.oauthbearer.assertion.claim.aud | STRING | null | null
sasl.oauthbearer.assertion.claim.exp.seconds | INT | 300 | [0,...,86400]
sasl.oauthbearer.assertion.claim.iss | STRING | null | null
sasl.oauthbearer.assertion.claim.jti.include | BOOLEAN | false | null
sasl.oauthbearer.assertion.claim.nbf.seconds | INT | 60 | [0,...,3600]
sasl.oauthbearer.assertion.claim.sub | STRING | null | null
sasl.oauthbearer.assertion.file | STRING | null | null
sasl.oauthbearer.assertion.private.key.file | STRING | null | null
sasl.oauthbearer.assertion.private.key.passphrase | PASSWORD | null | null
sasl.oauthbearer.assertion.template.file | STRING | null | null
sasl.oauthbearer.client.credentials.client.id | STRING | null | null
sasl.oauthbearer.client.credentials.client.secret | PASSWORD | null | null
sasl.oauthbearer.clock.skew.seconds | INT | 30 | null
sasl.oauthbearer.expected.audience | LIST | [] | any
sasl.oauthbearer.expected.issuer | STRING | null | null
sasl.oauthbearer.header.urlencode | BOOLEAN | false | null
sasl.oauthbearer.jwks.endpoint.refresh.ms | LONG | 3600000 | null
sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms | LONG | 10000 | null
sasl.oauthbearer.jwks.endpoint.retry.backoff.ms | LONG | 100 | null
sasl.oauthbearer.jwks.endpoint.url | STRING | null | null
sasl.oauthbearer.jwt.retriever.class | CLASS | a class | null
sasl.oauthbearer.jwt.validator.class | CLASS | a class | null
sasl.oauthbearer.scope | STRING | null | null
sasl.oauthbearer.scope.claim.name | STRING | scope | null
sasl.oauthbearer.sub.claim.name | STRING | sub | null
sasl.oauthbearer.token.endpoint.url | STRING | null | null
security.protocol | STRING | PLAINTEXT | (case insensitive) [SASL_SSL, PLAINTEXT, SSL, SASL_PLAINTEXT]
security.providers | STRING | null | null
send.buffer.bytes | INT | 131072 | [-1,...]
socket.connection.setup.timeout.max.ms | LONG | 30000 | null
socket.connection.setup.timeout.ms | LONG | 10000 | null
ssl.cipher.suites | LIST | [] | any
ssl.enabled.protocols | LIST | [TLSv1.2, TLSv1.3] | any
ssl.endpoint.identification.algorithm | STRING | https | null
ssl.engine.factory.class | CLASS | null | null
ssl.key.password | PASSWORD | null | null
ssl.keymanager.algorithm | STRING | SunX509 | null
ssl.keystore.certificate.chain | PASSWORD | null | null
ssl.keystore.key | PASSWORD | null | null
ssl.keystore.location | STRING | null | null
ssl.keystore.password | PASSWORD | null | null
ssl.keystore.type | STRING | JKS | null
ssl.protocol | STRING | TLSv1.3 | null
ssl.provider | STRING | null | null
ssl.secure.random.implementation | STRING | null | null
ssl.trustmanager.algorithm | STRING | PKIX | null
ssl.truststore.certificates | PASSWORD | null | null
ssl.truststore.location | STRING | null | null
ssl.truststore.password | PASSWORD | null | null
ssl.truststore.type | STRING | JKS | null
"""

CONSUMER = """
allow.auto.create.topics | BOOLEAN | true | null
auto.commit.interval.ms | INT | 5000 | [0,...]
auto.offset.reset | STRING | latest | [latest, earliest, none, by_duration:PnDTnHnMn.nS]
check.crcs | BOOLEAN | true | null
client.rack | STRING |  | null
default.api.timeout.ms | INT | 60000 | [0,...]
enable.auto.commit | BOOLEAN | true | null
exclude.internal.topics | BOOLEAN | true | null
fetch.max.bytes | INT | 52428800 | [0,...]
fetch.max.wait.ms | INT | 500 | [0,...]
fetch.min.bytes | INT | 1 | [0,...]
group.id | STRING | null | null
group.instance.id | STRING | null | non-empty string
group.protocol | STRING | classic | (case insensitive) [CONSUMER, CLASSIC]
group.remote.assignor | STRING | null | null
heartbeat.interval.ms | INT | 3000 | null
internal.throw.on.fetch.stable.offset.unsupported | BOOLEAN | false | null
isolation.level | STRING | read_uncommitted | [read_committed, read_uncommitted]
key.deserializer | CLASS | required | null
max.partition.fetch.bytes | INT | 1048576 | [0,...]
max.poll.interval.ms | INT | 300000 | [1,...]
max.poll.records | INT | 500 | [1,...]
partition.assignment.strategy | LIST | a class | any
receive.buffer.bytes | INT | 65536 | [-1,...]
session.timeout.ms | INT | 45000 | null
share.acknowledgement.mode | STRING | implicit | [implicit, explicit]
share.acquire.mode | STRING | BATCH_OPTIMIZED | [batch_optimized, record_limit]
value.deserializer | CLASS | required | null
"""

PRODUCER = """
acks | STRING | all | [all, -1, 0, 1]
batch.size | INT | 16384 | [0,...]
buffer.memory | LONG | 33554432 | [0,...]
compression.gzip.level | INT | -1 | [1,...,9] or -1
compression.lz4.level | INT | 9 | [1,...,17]
compression.type | STRING | none | [none, gzip, snappy, lz4, zstd]
compression.zstd.level | INT | 3 | [-131072,...,22]
delivery.timeout.ms | INT | 120000 | [0,...]
enable.idempotence | BOOLEAN | true | null
key.serializer | CLASS | required | null
linger.ms | LONG | 5 | [0,...]
max.block.ms | LONG | 60000 | [0,...]
max.in.flight.requests.per.connection | INT | 5 | [1,...]
max.request.size | INT | 1048576 | [0,...]
metadata.max.idle.ms | LONG | 300000 | [5000,...]
partitioner.adaptive.partitioning.enable | BOOLEAN | true | null
partitioner.availability.timeout.ms | LONG | 0 | [0,...]
partitioner.class | CLASS | null | null
partitioner.ignore.keys | BOOLEAN | false | null
receive.buffer.bytes | INT | 32768 | [-1,...]
retries | INT | 2147483647 | [0,...,2147483647]
transaction.timeout.ms | INT | 60000 | null
transaction.two.phase.commit.enable | BOOLEAN | false | null
transactional.id | STRING | null | non-empty string
value.serializer | CLASS | required | null
"""
