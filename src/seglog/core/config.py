"""Kafka's configuration of a log directory: its own keys, and the broker's names for the defaults of topics.

Keys, defaults and ranges are those of Kafka 4.3 (``ServerLogConfigs.java``, ``CleanerConfig.java``,
``ServerTopicConfigSynonyms.java``, ``KafkaConfig.scala``). The topics' own keys: `seglog.core.topic_config`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from seglog.core.errors import InvalidConfigError
from seglog.core.settings import (
    Boolean,
    Real,
    Rule,
    Scaled,
    Setting,
    check,
    int32,
    int64,
    setting,
    settings_of,
    unknown,
)
from seglog.core.topic_config import COMPACT, DELETE, PRODUCER, TOPIC_KEYS, LogConfig
from seglog.core.types import MAX_INT64

__all__ = ["COMPACT", "DELETE", "DIRECTORY_KEYS", "PRODUCER", "SYNONYMS", "TOPIC_KEYS", "LogConfig", "LogDirConfig"]

_HOUR: Final = 60 * 60 * 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDirConfig:
    """Configuration of a log directory, as Kafka has it in a broker's properties.

    ``topics`` is what its topics start from. `from_mapping` takes it as a broker does, under the broker's names for
    topic keys (``log.retention.hours``, ``log.segment.bytes`` ...).

    >>> config = LogDirConfig.from_mapping({"log.retention.hours": "24", "log.cleaner.threads": "2"})
    >>> config.topics.retention_ms, config.log_cleaner_threads
    (86400000, 2)
    """

    log_cleaner_backoff_ms: int = setting(
        "log.cleaner.backoff.ms", int64(0), "ms that the cleaner sleeps when there is nothing to clean", default=15_000
    )
    log_cleaner_dedupe_buffer_size: int = setting(
        "log.cleaner.dedupe.buffer.size",
        int64(0),
        "bytes for the offset maps of all cleaner threads",
        default=128 * 1024**2,
    )
    log_cleaner_enable: bool = setting(
        "log.cleaner.enable", Boolean(), "whether compacted topics are cleaned", default=True
    )
    log_cleaner_io_buffer_load_factor: float = setting(
        "log.cleaner.io.buffer.load.factor", Real(0.01, 1), "part of an offset map that may be full", default=0.9
    )
    log_cleaner_io_buffer_size: int = setting(
        "log.cleaner.io.buffer.size", int32(0), "bytes of I/O buffers of all cleaner threads", default=512 * 1024
    )
    log_cleaner_io_max_bytes_per_second: float = setting(
        "log.cleaner.io.max.bytes.per.second",
        Real(1, sys.float_info.max),
        "bytes a second that the cleaner may read and write",
        default=sys.float_info.max,
    )
    log_cleaner_threads: int = setting("log.cleaner.threads", int32(0), "logs cleaned at the same time", default=1)
    log_flush_offset_checkpoint_interval_ms: int = setting(
        "log.flush.offset.checkpoint.interval.ms", int32(0), "ms between two recovery-point checkpoints", default=60_000
    )
    log_flush_scheduler_interval_ms: int = setting(
        "log.flush.scheduler.interval.ms",
        int64(1),
        "ms between two looks for logs that flush.ms makes due",
        default=MAX_INT64,
    )
    log_flush_start_offset_checkpoint_interval_ms: int = setting(
        "log.flush.start.offset.checkpoint.interval.ms",
        int32(0),
        "ms between two log-start-offset checkpoints",
        default=60_000,
    )
    log_initial_task_delay_ms: int = setting(
        "log.initial.task.delay.ms",
        int64(0),
        "ms between opening the directory and its first background task",
        default=30_000,
    )
    log_retention_check_interval_ms: int = setting(
        "log.retention.check.interval.ms", int64(1), "ms between two looks for segments that may go", default=300_000
    )
    num_partitions: int = setting(
        "num.partitions", int32(1), "partitions of a topic that is created without a number", default=1
    )
    num_recovery_threads_per_data_dir: int = setting(
        "num.recovery.threads.per.data.dir", int32(1), "logs loaded and recovered at the same time", default=2
    )
    producer_id_expiration_check_interval_ms: int = setting(
        "producer.id.expiration.check.interval.ms",
        int32(1),
        "ms between two looks for expired producers",
        default=600_000,
    )
    producer_id_expiration_ms: int = setting(
        "producer.id.expiration.ms",
        int32(1),
        "ms after which an idle producer's sequence numbers are forgotten",
        default=24 * _HOUR,
    )
    replica_high_watermark_checkpoint_interval_ms: int = setting(
        "replica.high.watermark.checkpoint.interval.ms",
        int64(1),
        "ms between two high-watermark checkpoints",
        default=5_000,
    )
    topics: LogConfig = field(default_factory=LogConfig)

    def __post_init__(self) -> None:
        check(self, _DIRECTORY_FIELDS.values())
        if self.log_cleaner_dedupe_buffer_size // max(self.log_cleaner_threads, 1) <= 1024**2:
            raise InvalidConfigError(
                f"log.cleaner.dedupe.buffer.size={self.log_cleaner_dedupe_buffer_size} is not allowed: "
                f"more than 1048576 for each of the {self.log_cleaner_threads} cleaner threads"
            )

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, object]) -> LogDirConfig:
        """The configuration of a directory with these broker keys; `InvalidConfigError` as for `LogConfig`."""
        values = {}
        for name, value in mapping.items():
            if name in _DIRECTORY_FIELDS:
                values[_DIRECTORY_FIELDS[name].attribute] = _DIRECTORY_FIELDS[name].parse(value)
            elif name not in _BROKER_NAMES:
                raise _unknown_directory_key(name)
        topic_values: dict[str, object] = {}
        for topic_key, synonyms in SYNONYMS.items():
            # every name is parsed, so that a bad value is an error also where another name goes before it
            parsed = [row.parse(mapping[row.name]) for row in synonyms if row.name in mapping]
            if parsed:
                topic_values[topic_key] = parsed[0]
        return cls(topics=LogConfig.from_mapping(topic_values).as_defaults(), **values)


def _broker(topic_key: str, *names: str | tuple[str, Rule]) -> tuple[str, tuple[Setting, ...]]:
    topic = TOPIC_KEYS[topic_key]
    rows = [(name, topic.rule) if isinstance(name, str) else name for name in names]
    return topic_key, tuple(
        Setting(
            name,
            rule,
            topic.default // rule.factor if isinstance(rule, Scaled) else topic.default,
            f"default of {topic_key}",
            "",
        )
        for name, rule in rows
    )


SYNONYMS: Final = dict(
    (
        _broker("cleanup.policy", "log.cleanup.policy"),
        _broker("compression.gzip.level", "compression.gzip.level"),
        _broker("compression.lz4.level", "compression.lz4.level"),
        _broker("compression.type", "compression.type"),
        _broker("compression.zstd.level", "compression.zstd.level"),
        _broker("delete.retention.ms", "log.cleaner.delete.retention.ms"),
        _broker("file.delete.delay.ms", "log.segment.delete.delay.ms"),
        _broker("flush.messages", "log.flush.interval.messages"),
        _broker("flush.ms", "log.flush.interval.ms", "log.flush.scheduler.interval.ms"),
        _broker("index.interval.bytes", "log.index.interval.bytes"),
        _broker("max.compaction.lag.ms", "log.cleaner.max.compaction.lag.ms"),
        _broker("max.message.bytes", "message.max.bytes"),
        _broker("message.timestamp.after.max.ms", "log.message.timestamp.after.max.ms"),
        _broker("message.timestamp.before.max.ms", "log.message.timestamp.before.max.ms"),
        _broker("message.timestamp.type", "log.message.timestamp.type"),
        _broker("min.cleanable.dirty.ratio", "log.cleaner.min.cleanable.ratio"),
        _broker("min.compaction.lag.ms", "log.cleaner.min.compaction.lag.ms"),
        _broker("min.insync.replicas", "min.insync.replicas"),
        _broker("preallocate", "log.preallocate"),
        _broker("retention.bytes", "log.retention.bytes"),
        _broker(
            "retention.ms",
            ("log.retention.ms", int64(1, also=-1)),
            ("log.retention.minutes", Scaled(int32(1, also=-1), 60_000)),
            ("log.retention.hours", Scaled(int32(1, also=-1), _HOUR)),
        ),
        _broker("segment.bytes", "log.segment.bytes"),
        _broker("segment.index.bytes", "log.index.size.max.bytes"),
        _broker("segment.jitter.ms", "log.roll.jitter.ms", ("log.roll.jitter.hours", Scaled(int32(0), _HOUR))),
        _broker("segment.ms", "log.roll.ms", ("log.roll.hours", Scaled(int32(1), _HOUR))),
        _broker("unclean.leader.election.enable", "unclean.leader.election.enable"),
        _broker("seglog.validate.records", "seglog.validate.records"),
    )
)
"""A broker's names for the defaults of its topics' keys; of several that are given, the first counts."""

_DIRECTORY_FIELDS: Final = settings_of(LogDirConfig)
_BROKER_NAMES: Final = {row.name: row for rows in SYNONYMS.values() for row in rows}
DIRECTORY_KEYS: Final[dict[str, Setting]] = dict(sorted({**_BROKER_NAMES, **_DIRECTORY_FIELDS}.items()))
"""Every key that `LogDirConfig.from_mapping` takes, by name."""


def _unknown_directory_key(name: str) -> InvalidConfigError:
    if name in SYNONYMS:
        return InvalidConfigError(
            f"{name!r} is a topic's configuration: as the default of all topics it is {SYNONYMS[name][0].name!r}"
        )
    return unknown(name, DIRECTORY_KEYS, "log directory configuration")
