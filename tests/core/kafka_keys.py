"""Kafka 4.4.0's definitions of its own keys: name, type, default, valid values.

Printed from ``LogConfig.configKeys()`` and ``AbstractKafkaConfig.CONFIG_DEF`` of its jars; of a broker's keys, those
that concern log directories.
"""

from __future__ import annotations

from typing import NamedTuple


class KafkaKey(NamedTuple):
    name: str
    type: str
    default: str
    valid: str


def keys(table: str) -> dict[str, KafkaKey]:
    rows = (KafkaKey(*(field.strip() for field in line.split(" | "))) for line in table.strip().splitlines())
    return {row.name: row for row in rows}


TOPIC_KEYS = """
cleanup.policy | LIST | [delete] | [compact, delete]
compression.gzip.level | INT | -1 | [1,...,9] or -1
compression.lz4.level | INT | 9 | [1,...,17]
compression.type | STRING | producer | [uncompressed, zstd, lz4, snappy, gzip, producer]
compression.zstd.level | INT | 3 | [-131072,...,22]
delete.retention.ms | LONG | 86400000 | [0,...]
errors.deadletterqueue.group.enable | BOOLEAN | false | null
file.delete.delay.ms | LONG | 60000 | [0,...]
flush.messages | LONG | 9223372036854775807 | [1,...]
flush.ms | LONG | 9223372036854775807 | [0,...]
follower.replication.throttled.replicas | LIST | [] | [partitionId]:[brokerId],[partitionId]:[brokerId],...
index.interval.bytes | INT | 4096 | [0,...]
internal.segment.bytes | INT | null | null
leader.replication.throttled.replicas | LIST | [] | [partitionId]:[brokerId],[partitionId]:[brokerId],...
local.retention.bytes | LONG | -2 | [-2,...]
local.retention.ms | LONG | -2 | [-2,...]
max.compaction.lag.ms | LONG | 9223372036854775807 | [1,...]
max.decompressed.message.bytes | INT | 2147483639 | [1,...,2147483639]
max.message.bytes | INT | 1048588 | [0,...]
message.timestamp.after.max.ms | LONG | 3600000 | [0,...]
message.timestamp.before.max.ms | LONG | 9223372036854775807 | [0,...]
message.timestamp.type | STRING | CreateTime | [CreateTime, LogAppendTime]
min.cleanable.dirty.ratio | DOUBLE | 0.5 | [0,...,1]
min.compaction.lag.ms | LONG | 0 | [0,...]
min.insync.replicas | INT | 1 | [1,...]
preallocate | BOOLEAN | false | null
remote.copy.lag.bytes | LONG | -1 | [-1,...]
remote.copy.lag.ms | LONG | 0 | [-1,...]
remote.log.copy.disable | BOOLEAN | false | null
remote.log.delete.on.disable | BOOLEAN | false | null
remote.storage.enable | BOOLEAN | false | null
retention.bytes | LONG | -1 | null
retention.ms | LONG | 604800000 | [-1,...]
segment.bytes | INT | 1073741824 | [1048576,...]
segment.index.bytes | INT | 10485760 | [4,...]
segment.jitter.ms | LONG | 0 | [0,...]
segment.ms | LONG | 604800000 | [1,...]
unclean.leader.election.enable | BOOLEAN | false | null
"""

DIRECTORY_KEYS = """
compression.gzip.level | INT | -1 | [1,...,9] or -1
compression.lz4.level | INT | 9 | [1,...,17]
compression.type | STRING | producer | [uncompressed, zstd, lz4, snappy, gzip, producer]
compression.zstd.level | INT | 3 | [-131072,...,22]
log.cleaner.backoff.ms | LONG | 15000 | [0,...]
log.cleaner.dedupe.buffer.size | LONG | 134217728 | null
log.cleaner.delete.retention.ms | LONG | 86400000 | [0,...]
log.cleaner.enable | BOOLEAN | true | null
log.cleaner.io.buffer.load.factor | DOUBLE | 0.9 | null
log.cleaner.io.buffer.size | INT | 524288 | [0,...]
log.cleaner.io.max.bytes.per.second | DOUBLE | 1.7976931348623157E308 | null
log.cleaner.max.compaction.lag.ms | LONG | 9223372036854775807 | [1,...]
log.cleaner.min.cleanable.ratio | DOUBLE | 0.5 | [0,...,1]
log.cleaner.min.compaction.lag.ms | LONG | 0 | [0,...]
log.cleaner.threads | INT | 1 | [0,...]
log.cleanup.policy | LIST | [delete] | [compact, delete]
log.flush.interval.messages | LONG | 9223372036854775807 | [1,...]
log.flush.interval.ms | LONG | null | null
log.flush.offset.checkpoint.interval.ms | INT | 60000 | [0,...]
log.flush.scheduler.interval.ms | LONG | 9223372036854775807 | null
log.flush.start.offset.checkpoint.interval.ms | INT | 60000 | [0,...]
log.index.interval.bytes | INT | 4096 | [0,...]
log.index.size.max.bytes | INT | 10485760 | [4,...]
log.initial.task.delay.ms | LONG | 30000 | [0,...]
log.message.timestamp.after.max.ms | LONG | 3600000 | [0,...]
log.message.timestamp.before.max.ms | LONG | 9223372036854775807 | [0,...]
log.message.timestamp.type | STRING | CreateTime | [CreateTime, LogAppendTime]
log.preallocate | BOOLEAN | false | null
log.retention.bytes | LONG | -1 | null
log.retention.check.interval.ms | LONG | 300000 | [1,...]
log.retention.hours | INT | 168 | null
log.retention.minutes | INT | null | null
log.retention.ms | LONG | null | null
log.roll.hours | INT | 168 | [1,...]
log.roll.jitter.hours | INT | 0 | [0,...]
log.roll.jitter.ms | LONG | null | null
log.roll.ms | LONG | null | null
log.segment.bytes | INT | 1073741824 | [1048576,...]
log.segment.delete.delay.ms | LONG | 60000 | [0,...]
max.decompressed.message.bytes | INT | 2147483639 | [1,...,2147483639]
message.max.bytes | INT | 1048588 | [0,...]
min.insync.replicas | INT | 1 | [1,...]
num.partitions | INT | 1 | [1,...]
num.recovery.threads.per.data.dir | INT | 2 | [1,...]
producer.id.expiration.check.interval.ms | INT | 600000 | [1,...]
producer.id.expiration.ms | INT | 86400000 | [1,...]
replica.high.watermark.checkpoint.interval.ms | LONG | 5000 | null
unclean.leader.election.enable | BOOLEAN | false | null
"""
