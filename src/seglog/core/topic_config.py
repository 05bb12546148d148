"""Kafka's configuration of topics: one table of key, type, range, default and meaning.

Keys, defaults and ranges are those of Kafka 4.3 (``TopicConfig.java``, ``LogConfig.java``); keys that begin
with ``seglog.`` are ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from seglog.core.errors import InvalidConfigError
from seglog.core.settings import (
    Boolean,
    Choice,
    Names,
    Real,
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
"""The value of ``compression.type`` that leaves batches as their producer made them."""

MIN_SEGMENT_BYTES: Final = 1024**2
"""Least ``segment.bytes`` since Kafka 4.0 (KIP-1030)."""

_COMPRESSION = {name: name for name in ("uncompressed", "zstd", "lz4", "snappy", "gzip", PRODUCER)}
_TIMESTAMP_TYPES = {"CreateTime": TimestampType.CREATE_TIME, "LogAppendTime": TimestampType.LOG_APPEND_TIME}
_TIMESTAMP_TYPE: Final = setting(
    "message.timestamp.type",
    Choice(_TIMESTAMP_TYPES),
    "whether a record's timestamp is its producer's or the time of the append",
    default=TimestampType.CREATE_TIME,
)
_HOUR: Final = 60 * 60 * 1000
_DAY: Final = 24 * _HOUR


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """A topic's configuration. An attribute is the topic key with dots as underscores, always in its valid range.

    Make it with `from_mapping` from Kafka's keys, or with attributes as keyword arguments. ``segment_bytes`` is the
    size that counts: of ``internal.segment.bytes``, for tests with small segments, where that is given.

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
        "cleanup.policy",
        Names((COMPACT, DELETE)),
        "what happens to old data: delete, compact, both, or neither (empty: keep for ever)",
        default=frozenset({DELETE}),
    )
    compression_gzip_level: int = setting(
        "compression.gzip.level",
        int32(1, 9, also=-1),
        "level if compression.type is gzip; -1: zlib's own default",
        default=-1,
    )
    compression_lz4_level: int = setting(
        "compression.lz4.level", int32(1, 17), "level if compression.type is lz4", default=9
    )
    compression_type: str = setting(
        "compression.type",
        Choice(_COMPRESSION),
        "codec that batches are stored with; producer: as they come, uncompressed: none",
        default=PRODUCER,
    )
    compression_zstd_level: int = setting(
        "compression.zstd.level", int32(-131072, 22), "level if compression.type is zstd", default=3
    )
    delete_retention_ms: int = setting(
        "delete.retention.ms",
        int64(0),
        "ms for which compaction keeps tombstones and transaction markers",
        default=_DAY,
    )
    file_delete_delay_ms: int = setting(
        "file.delete.delay.ms", int64(0), "ms between marking a file as deleted and unlinking it", default=60_000
    )
    flush_messages: int = setting(
        "flush.messages", int64(1), "records after which the log is flushed to the disk", default=MAX_INT64
    )
    flush_ms: int = setting("flush.ms", int64(0), "ms after which the log is flushed to the disk", default=MAX_INT64)
    index_interval_bytes: int = setting(
        "index.interval.bytes", int32(0), "bytes of log between two entries of the indexes", default=4096
    )
    max_compaction_lag_ms: int = setting(
        "max.compaction.lag.ms",
        int64(1),
        "ms after which a record must become eligible for compaction",
        default=MAX_INT64,
    )
    max_message_bytes: int = setting(
        "max.message.bytes", int32(0), "bytes of the largest batch that an append may hold", default=1024 * 1024 + 12
    )
    message_timestamp_after_max_ms: int = setting(
        "message.timestamp.after.max.ms",
        int64(0),
        "ms that a record's CreateTime may be ahead of the clock",
        default=_HOUR,
    )
    message_timestamp_before_max_ms: int = setting(
        "message.timestamp.before.max.ms",
        int64(0),
        "ms that a record's CreateTime may be behind the clock",
        default=MAX_INT64,
    )
    message_timestamp_type: TimestampType = _TIMESTAMP_TYPE
    min_cleanable_dirty_ratio: float = setting(
        "min.cleanable.dirty.ratio",
        Real(0, 1),
        "part of a compacted log that is dirty before it is cleaned",
        default=0.5,
    )
    min_compaction_lag_ms: int = setting(
        "min.compaction.lag.ms", int64(0), "ms for which a record is safe from compaction", default=0
    )
    min_insync_replicas: int = setting(
        "min.insync.replicas", int32(1), "replicas that must be in sync for a write with acks=all", default=1
    )
    preallocate: bool = setting(
        "preallocate", Boolean(), "give a new segment file its full size at once", default=False
    )
    retention_bytes: int = setting(
        "retention.bytes",
        int64(-MAX_INT64 - 1),
        "bytes of a partition over which old segments go; -1: no limit",
        default=-1,
    )
    retention_ms: int = setting(
        "retention.ms", int64(-1), "ms after which old segments go; -1: no limit", default=7 * _DAY
    )
    segment_bytes: int = setting(
        "segment.bytes", int32(MIN_SEGMENT_BYTES), "bytes at which a segment is full", default=1024**3
    )
    segment_index_bytes: int = setting(
        "segment.index.bytes",
        int32(4),
        "bytes that an index file has room for; full: a new segment",
        default=10 * 1024**2,
    )
    segment_jitter_ms: int = setting(
        "segment.jitter.ms",
        int64(0),
        "largest random ms taken off segment.ms, against all logs rolling at once",
        default=0,
    )
    segment_ms: int = setting(
        "segment.ms", int64(1), "ms after which a segment is rolled though not full", default=7 * _DAY
    )
    unclean_leader_election_enable: bool = setting(
        "unclean.leader.election.enable",
        Boolean(),
        "whether a replica that is not in sync may become leader",
        default=False,
    )
    seglog_validate_records: bool = setting(
        "seglog.validate.records",
        Boolean(),
        "decode and check every record of an append, not its batch alone",
        default=False,
    )
    max_segment_ms: int = field(default=0, init=False, repr=False, compare=False)
    """Milliseconds after which a segment is rolled: a compacted topic must not keep records from the cleaner."""
    stores_as_is: bool = field(default=False, init=False, repr=False, compare=False)
    """Whether a batch in order is stored as it comes, and no rule of the topic asks for a look at its records."""
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
        # Every append asks for these two.
        longest = min(self.max_compaction_lag_ms, self.segment_ms) if self.compact else self.segment_ms
        object.__setattr__(self, "max_segment_ms", longest)
        as_is = (
            self.compression_type == PRODUCER
            and self.message_timestamp_type is TimestampType.CREATE_TIME
            and self.message_timestamp_before_max_ms == MAX_INT64
            and not self.compact
            and not self.seglog_validate_records
        )
        object.__setattr__(self, "stores_as_is", as_is)

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, object]) -> LogConfig:
        """The configuration of a topic with these keys; values are Kafka's texts or Python's own types.

        Raises `InvalidConfigError` for an unknown key, a value out of its range, and a key that is Kafka's but means
        nothing here (tiered storage, replication throttles) unless it has its default.
        """
        return cls().with_overrides(mapping)

    def with_overrides(self, mapping: Mapping[str, object]) -> LogConfig:
        """This configuration with other values for some keys; `overrides` then has these and those of before."""
        values = {}
        given = dict(self._given)
        for name, value in mapping.items():
            row = TOPIC_KEYS.get(name)
            if row is None:
                raise unknown(name, TOPIC_KEYS, "topic configuration")
            parsed = row.parse(value)
            given[name] = row.rule.format(parsed)
            if name not in REFUSED_TOPIC_KEYS:
                values[row.attribute] = parsed
        if INTERNAL_SEGMENT_BYTES.name in given:
            values["segment_bytes"] = int(given[INTERNAL_SEGMENT_BYTES.name])
        made = replace(self, **values)
        object.__setattr__(made, "_given", given)
        return made

    def as_defaults(self) -> LogConfig:
        """The same values as what topics start from: nothing in it counts as a topic's own override."""
        made = replace(self)
        object.__setattr__(made, "_given", {})
        return made

    def overrides(self) -> dict[str, str]:
        """The keys that were given a value, with their texts, sorted; what a topic's configuration is stored as."""
        return dict(sorted(self._given.items()))

    @property
    def compact(self) -> bool:
        return COMPACT in self.cleanup_policy

    @property
    def delete(self) -> bool:
        return DELETE in self.cleanup_policy


INTERNAL_SEGMENT_BYTES: Final = Setting(
    "internal.segment.bytes",
    int32(14),
    1024**3,
    "bytes at which a segment is full, instead of segment.bytes and below its minimum; for tests",
    "segment_bytes",
)
"""Kafka takes any number here. 14 was the least segment.bytes before Kafka 4.0."""


@dataclass(frozen=True, slots=True)
class _Refused:
    """The rule of a key that Kafka has and seglog does nothing for: only its default is taken."""

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


def _refused(name: str, default: str, kind: str, reason: str) -> Setting:
    return Setting(name, _Refused(default, reason, kind), default, f"not supported: {reason}", "")


_TIERED: Final = "seglog has no tiered storage"
_THROTTLED: Final = "seglog does not throttle replication"
REFUSED_TOPIC_KEYS: Final = {
    row.name: row
    for row in (
        _refused("remote.storage.enable", "false", "boolean", _TIERED),
        _refused("remote.log.copy.disable", "false", "boolean", _TIERED),
        _refused("remote.log.delete.on.disable", "false", "boolean", _TIERED),
        _refused("local.retention.ms", "-2", "long", _TIERED),
        _refused("local.retention.bytes", "-2", "long", _TIERED),
        _refused("leader.replication.throttled.replicas", "", "list", _THROTTLED),
        _refused("follower.replication.throttled.replicas", "", "list", _THROTTLED),
    )
}
"""Keys of Kafka's that are taken with their default only, so that a configuration copied from a broker passes."""

_FIELDS = settings_of(LogConfig)
_BY_ATTRIBUTE = [INTERNAL_SEGMENT_BYTES if row.name == "segment.bytes" else row for row in _FIELDS.values()]
TOPIC_KEYS: Final[dict[str, Setting]] = {
    **_FIELDS,
    INTERNAL_SEGMENT_BYTES.name: INTERNAL_SEGMENT_BYTES,
    **REFUSED_TOPIC_KEYS,
}
"""Every topic key that is known, by name."""
