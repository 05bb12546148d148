"""Kafka's configuration of topics and log directories, and the broker's names for the defaults of topics.

Keys, defaults and ranges are those of Kafka 4.4 (``TopicConfig.java``, ``LogConfig.java``, ``ServerLogConfigs.java``,
``CleanerConfig.java``, ``ServerTopicConfigSynonyms.java``); keys that begin with ``seglog.`` are ours.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import ClassVar, Final

from seglog.core.errors import InvalidConfigError
from seglog.core.settings import (
    Boolean,
    Enumeration,
    Names,
    Real,
    Rule,
    ScaledInteger,
    Setting,
    check,
    int32,
    int64,
    setting,
    settings_of,
    unknown,
)
from seglog.core.types import MAX_INT64, TimestampType

COMPACT: Final = "compact"
DELETE: Final = "delete"
PRODUCER: Final = "producer"
"""The ``compression.type`` that keeps the batches of the producer."""

UNLIMITED_DECOMPRESSED: Final = 2**31 - 9
"""The greatest ``max.decompressed.message.bytes``: Java has no longer arrays."""
MIN_SEGMENT_BYTES: Final = 1024**2
"""The least ``segment.bytes`` since Kafka 4.0 (KIP-1030)."""

_COMPRESSION = {name: name for name in ("uncompressed", "zstd", "lz4", "snappy", "gzip", PRODUCER)}
_TIMESTAMP_TYPES = {"CreateTime": TimestampType.CREATE_TIME, "LogAppendTime": TimestampType.LOG_APPEND_TIME}
_TIMESTAMP_TYPE: Final = setting(
    Enumeration(_TIMESTAMP_TYPES),
    "CreateTime: timestamp of the producer; LogAppendTime: of the append",
    default=TimestampType.CREATE_TIME,
)
_HOUR: Final = 60 * 60 * 1000
_DAY: Final = 24 * _HOUR


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """A topic's configuration. Attributes are the topic keys with underscores for dots, always in their valid range.

    Create it with `from_mapping` from Kafka's keys, or with attributes as keyword arguments. ``segment_bytes`` is the
    size in force: that of ``internal.segment.bytes`` if given, for tests with small segments.

    >>> config = LogConfig.from_mapping({"cleanup.policy": "compact", "segment.ms": "3600000"})
    >>> config.compact, config.segment_ms, config.retention_ms
    (True, 3600000, 604800000)
    >>> config.overrides()
    {'cleanup.policy': 'compact', 'segment.ms': '3600000'}
    >>> LogConfig.from_mapping({"segment.bytes": "1000"})
    Traceback (most recent call last):
        ...
    seglog.core.errors.InvalidConfigError: segment.bytes='1000' is not allowed: 1048576 to 2147483647
    """

    cleanup_policy: frozenset[str] = setting(
        Names((COMPACT, DELETE)),
        "what removes old records: delete, compact, both, or neither (empty)",
        default=frozenset({DELETE}),
    )
    compression_gzip_level: int = setting(
        int32(1, 9, also=-1), "level if compression.type is gzip; -1: the default of zlib", default=-1
    )
    compression_lz4_level: int = setting(int32(1, 17), "level if compression.type is lz4", default=9)
    compression_type: str = setting(
        Enumeration(_COMPRESSION),
        "codec of stored batches; producer keeps the codec of the producer, uncompressed uses none",
        default=PRODUCER,
    )
    compression_zstd_level: int = setting(int32(-131072, 22), "level if compression.type is zstd", default=3)
    delete_retention_ms: int = setting(
        int64(0), "ms that compaction keeps tombstones and transaction markers", default=_DAY
    )
    file_delete_delay_ms: int = setting(
        int64(0), "ms between renaming a file to .deleted and unlinking it", default=60_000
    )
    flush_messages: int = setting(int64(1), "records between two fsyncs of the log", default=MAX_INT64)
    flush_ms: int = setting(int64(0), "ms between two fsyncs of the log", default=MAX_INT64)
    index_interval_bytes: int = setting(int32(0), "bytes of log between two index entries", default=4096)
    max_compaction_lag_ms: int = setting(
        int64(1), "ms after which a record becomes eligible for compaction", default=MAX_INT64
    )
    max_decompressed_message_bytes: int = setting(
        int32(1, UNLIMITED_DECOMPRESSED),
        "bytes of the largest record in a compressed batch, uncompressed",
        default=UNLIMITED_DECOMPRESSED,
    )
    max_message_bytes: int = setting(int32(0), "bytes of the largest batch", default=1024 * 1024 + 12)
    message_timestamp_after_max_ms: int = setting(
        int64(0), "ms that the CreateTime of a record may be ahead of the clock", default=_HOUR
    )
    message_timestamp_before_max_ms: int = setting(
        int64(0), "ms that the CreateTime of a record may be behind the clock", default=MAX_INT64
    )
    message_timestamp_type: TimestampType = _TIMESTAMP_TYPE
    min_cleanable_dirty_ratio: float = setting(
        Real(0, 1), "dirty part of a log at which compaction starts", default=0.5
    )
    min_compaction_lag_ms: int = setting(int64(0), "ms that a record is not compacted", default=0)
    min_insync_replicas: int = setting(int32(1), "replicas that must be in sync for a write with acks=all", default=1)
    preallocate: bool = setting(Boolean(), "whether a new segment file gets its full size at once", default=False)
    retention_bytes: int = setting(
        int64(-MAX_INT64 - 1), "bytes of a partition beyond which old segments are deleted; -1: no limit", default=-1
    )
    retention_ms: int = setting(int64(-1), "ms after which old segments are deleted; -1: no limit", default=7 * _DAY)
    segment_bytes: int = setting(int32(MIN_SEGMENT_BYTES), "bytes at which a segment is rolled", default=1024**3)
    segment_index_bytes: int = setting(
        int32(4), "most bytes of an index file; a full index rolls the segment", default=10 * 1024**2
    )
    segment_jitter_ms: int = setting(
        int64(0), "most random ms subtracted from segment.ms, so that logs do not all roll at once", default=0
    )
    segment_ms: int = setting(int64(1), "ms after which a segment is rolled", default=7 * _DAY)
    unclean_leader_election_enable: bool = setting(
        Boolean(), "whether a replica outside the ISR may become leader", default=False
    )
    seglog_validate_records: bool = setting(
        Boolean(), "whether an append decodes and checks each record, not only the batch", default=False
    )
    max_segment_ms: int = field(default=0, init=False, repr=False, compare=False)
    """Milliseconds after which a segment is rolled. In a compacted topic the active segment must not keep records from
    the cleaner for too long."""
    stores_as_is: bool = field(default=False, init=False, repr=False, compare=False)
    """Whether a valid batch is stored unchanged, because no rule of the topic depends on its records."""
    _given: Mapping[str, str] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check(self, _BY_ATTRIBUTE)
        if self.min_compaction_lag_ms > self.max_compaction_lag_ms:
            raise InvalidConfigError(
                f"min.compaction.lag.ms={self.min_compaction_lag_ms} is not allowed: "
                f"at most max.compaction.lag.ms={self.max_compaction_lag_ms}"
            )
        changed = {
            row.name: row.rule.format(value)
            for row in _BY_ATTRIBUTE
            if (value := getattr(self, row.attribute)) != row.default
        }
        small = changed.get(INTERNAL_SEGMENT_BYTES.name)
        if small is not None and int(small) >= MIN_SEGMENT_BYTES:
            changed["segment.bytes"] = changed.pop(INTERNAL_SEGMENT_BYTES.name)
        object.__setattr__(self, "_given", changed)
        # Every append reads these two.
        longest = min(self.max_compaction_lag_ms, self.segment_ms) if self.compact else self.segment_ms
        object.__setattr__(self, "max_segment_ms", longest)
        as_is = (
            self.compression_type == PRODUCER
            and self.message_timestamp_type is TimestampType.CREATE_TIME
            and self.message_timestamp_before_max_ms == MAX_INT64
            and not self.compact
            and not self.seglog_validate_records
            and self.max_decompressed_message_bytes == UNLIMITED_DECOMPRESSED
        )
        object.__setattr__(self, "stores_as_is", as_is)

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, object]) -> LogConfig:
        """The configuration of a topic with these keys; values are Kafka's texts or Python's own types.

        Raises `InvalidConfigError` for an unknown key, a value out of its range, and a key without effect here (tiered
        storage) unless it has its default.
        """
        return _defaults().with_overrides(mapping)

    def with_overrides(self, mapping: Mapping[str, object]) -> LogConfig:
        """This configuration with other values for some keys, which join its `overrides`."""
        if not mapping:
            return self
        texts = [(name, value) for name, value in mapping.items() if isinstance(value, str)]
        if len(texts) < len(mapping):
            return self._overridden(mapping)
        return _overridden(self, tuple(self._given.items()), tuple(texts))

    def _overridden(self, mapping: Mapping[str, object]) -> LogConfig:
        values = {}
        given = dict(self._given)
        for name, value in mapping.items():
            row = TOPIC_KEYS.get(name)
            if row is None:
                raise unknown(name, TOPIC_KEYS, "topic configuration")
            parsed = row.parse(value)
            given[name] = row.rule.format(parsed)
            if row.attribute:
                values[row.attribute] = parsed
        if INTERNAL_SEGMENT_BYTES.name in given:
            values["segment_bytes"] = int(given[INTERNAL_SEGMENT_BYTES.name])
        made = replace(self, **values)
        object.__setattr__(made, "_given", given)
        return made

    def as_defaults(self) -> LogConfig:
        """The same values as defaults of topics: it has no `overrides`."""
        made = replace(self)
        object.__setattr__(made, "_given", {})
        return made

    def overrides(self) -> dict[str, str]:
        """The given keys with their texts, sorted: the form in which a topic's configuration is stored."""
        return dict(sorted(self._given.items()))

    @property
    def compact(self) -> bool:
        return COMPACT in self.cleanup_policy

    @property
    def delete(self) -> bool:
        return DELETE in self.cleanup_policy


@lru_cache(maxsize=1)
def _defaults() -> LogConfig:
    return LogConfig()


@lru_cache(maxsize=256)
def _overridden(
    config: LogConfig, _given: tuple[tuple[str, str], ...], mapping: tuple[tuple[str, str], ...]
) -> LogConfig:
    """Most topics of a directory have one of a few configurations. ``_given`` are the overrides of ``config``, which
    equality ignores."""
    return config._overridden(dict(mapping))


INTERNAL_SEGMENT_BYTES: Final = Setting(
    "internal.segment.bytes",
    int32(14),
    1024**3,
    "bytes at which a segment is full, instead of segment.bytes and below its minimum; for tests",
    "segment_bytes",
)
"""Kafka accepts any number. 14 was the least segment.bytes before Kafka 4.0."""


@dataclass(frozen=True, slots=True)
class _DefaultOnly:
    """The type of a Kafka key that seglog does not support: only its default is valid."""

    default: str
    reason: str
    type: str

    @property
    def allowed(self) -> str:
        return f"only {self.default or 'the empty list'}, since {self.reason}"

    def parse(self, value: object) -> str:
        text = ("true" if value else "false") if isinstance(value, bool) else str(value).strip()
        if text.lower() != self.default:
            raise ValueError(self.reason)
        return self.default

    def format(self, value: object) -> str:
        return str(value)


@dataclass(frozen=True, slots=True)
class ThrottledReplicas:
    """A list of ``partition:broker``, or ``*`` for all replicas of a topic (``ThrottledReplicaListValidator``)."""

    type: ClassVar[str] = "list"
    allowed: ClassVar[str] = "the literal '*' or a list of partition:broker"

    def parse(self, value: object) -> str:
        items = [item.strip() for item in str(value).split(",")]
        if "".join(items) != "*" and not all(re.fullmatch(r"([0-9]+:[0-9]+)?", item) for item in items):
            raise ValueError("not a list of replicas")
        return ",".join(items)

    def format(self, value: object) -> str:
        return str(value)


def _throttled(side: str) -> Setting:
    name = f"{side}.replication.throttled.replicas"
    text = f"replicas whose traffic counts in {side}.replication.throttled.rate, as partition:broker, or *"
    return Setting(name, ThrottledReplicas(), "", text, "")


def _refused(name: str, default: str, kind: str, reason: str) -> Setting:
    return Setting(name, _DefaultOnly(default, reason, kind), default, f"not supported: {reason}", "")


_TIERED: Final = "seglog has no tiered storage"
REFUSED_TOPIC_KEYS: Final = {
    row.name: row
    for row in (
        _refused("remote.storage.enable", "false", "boolean", _TIERED),
        _refused("remote.log.copy.disable", "false", "boolean", _TIERED),
        _refused("remote.log.delete.on.disable", "false", "boolean", _TIERED),
        _refused("remote.copy.lag.ms", "0", "long", _TIERED),
        _refused("remote.copy.lag.bytes", "-1", "long", _TIERED),
        _refused("local.retention.ms", "-2", "long", _TIERED),
        _refused("local.retention.bytes", "-2", "long", _TIERED),
        _refused("errors.deadletterqueue.group.enable", "false", "boolean", "seglog has no share groups"),
    )
}
"""Kafka's keys whose default is accepted, so that a configuration copied from a broker is valid."""

_FIELDS = settings_of(LogConfig)
_BY_ATTRIBUTE = [INTERNAL_SEGMENT_BYTES if row.name == "segment.bytes" else row for row in _FIELDS.values()]
TOPIC_KEYS: Final[dict[str, Setting]] = {
    **_FIELDS,
    INTERNAL_SEGMENT_BYTES.name: INTERNAL_SEGMENT_BYTES,
    **REFUSED_TOPIC_KEYS,
    **{row.name: row for row in map(_throttled, ("leader", "follower"))},
}
"""All topic keys, by name."""


__all__ = ["COMPACT", "DELETE", "DIRECTORY_KEYS", "PRODUCER", "SYNONYMS", "TOPIC_KEYS", "LogConfig", "LogDirConfig"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDirConfig:
    """The configuration of a log directory, part of a broker's properties in Kafka.

    ``topics`` has the defaults of its topics. `from_mapping` reads them under the broker's names for topic keys
    (``log.retention.hours``, ``log.segment.bytes`` ...).

    >>> config = LogDirConfig.from_mapping({"log.retention.hours": "24", "log.cleaner.threads": "2"})
    >>> config.topics.retention_ms, config.log_cleaner_threads
    (86400000, 2)
    """

    log_cleaner_backoff_ms: int = setting(
        int64(0), "ms that the cleaner sleeps when no log needs cleaning", default=15_000
    )
    log_cleaner_dedupe_buffer_size: int = setting(
        int64(0), "bytes for the offset maps of all cleaner threads", default=128 * 1024**2
    )
    log_cleaner_enable: bool = setting(Boolean(), "whether compacted topics are cleaned", default=True)
    log_cleaner_io_buffer_load_factor: float = setting(
        Real(0.01, 1), "part of an offset map that may be full", default=0.9
    )
    log_cleaner_io_buffer_size: int = setting(
        int32(0), "bytes of I/O buffers of all cleaner threads", default=512 * 1024
    )
    log_cleaner_io_max_bytes_per_second: float = setting(
        Real(1, sys.float_info.max), "most bytes a second that the cleaner reads and writes", default=sys.float_info.max
    )
    log_cleaner_threads: int = setting(int32(0), "logs cleaned in parallel", default=1)
    log_flush_offset_checkpoint_interval_ms: int = setting(
        int32(0), "ms between two recovery-point checkpoints", default=60_000
    )
    log_flush_scheduler_interval_ms: int = setting(int64(1), "ms between two checks of flush.ms", default=MAX_INT64)
    log_flush_start_offset_checkpoint_interval_ms: int = setting(
        int32(0), "ms between two log-start-offset checkpoints", default=60_000
    )
    log_initial_task_delay_ms: int = setting(
        int64(0), "ms between opening the directory and the first background task", default=30_000
    )
    log_retention_check_interval_ms: int = setting(
        int64(1), "ms between two checks for segments to delete", default=300_000
    )
    num_partitions: int = setting(int32(1), "partitions of a topic that is created without a number", default=1)
    num_recovery_threads_per_data_dir: int = setting(int32(1), "logs loaded and recovered in parallel", default=2)
    producer_id_expiration_check_interval_ms: int = setting(
        int32(1), "ms between two checks for expired producers", default=600_000
    )
    producer_id_expiration_ms: int = setting(
        int32(1), "ms after which the state of an idle producer expires", default=24 * _HOUR
    )
    replica_high_watermark_checkpoint_interval_ms: int = setting(
        int64(1), "ms between two high-watermark checkpoints", default=5_000
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
            # Each is parsed: an invalid value is an error even if another name wins.
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
            topic.default // rule.factor if isinstance(rule, ScaledInteger) else topic.default,
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
        _broker("max.decompressed.message.bytes", "max.decompressed.message.bytes"),
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
            ("log.retention.minutes", ScaledInteger(int32(1, also=-1), 60_000)),
            ("log.retention.hours", ScaledInteger(int32(1, also=-1), _HOUR)),
        ),
        _broker("segment.bytes", "log.segment.bytes"),
        _broker("segment.index.bytes", "log.index.size.max.bytes"),
        _broker("segment.jitter.ms", "log.roll.jitter.ms", ("log.roll.jitter.hours", ScaledInteger(int32(0), _HOUR))),
        _broker("segment.ms", "log.roll.ms", ("log.roll.hours", ScaledInteger(int32(1), _HOUR))),
        _broker("unclean.leader.election.enable", "unclean.leader.election.enable"),
        _broker("seglog.validate.records", "seglog.validate.records"),
    )
)
"""A broker's names for the defaults of its topics. If several are given, the first wins."""

_DIRECTORY_FIELDS: Final = settings_of(LogDirConfig)
_BROKER_NAMES: Final = {row.name: row for rows in SYNONYMS.values() for row in rows}
DIRECTORY_KEYS: Final[dict[str, Setting]] = dict(sorted({**_BROKER_NAMES, **_DIRECTORY_FIELDS}.items()))
"""All keys of `LogDirConfig.from_mapping`, by name."""


def _unknown_directory_key(name: str) -> InvalidConfigError:
    if name in SYNONYMS:
        return InvalidConfigError(
            f"{name!r} is a topic's configuration: as the default of all topics it is {SYNONYMS[name][0].name!r}"
        )
    return unknown(name, DIRECTORY_KEYS, "log directory configuration")
