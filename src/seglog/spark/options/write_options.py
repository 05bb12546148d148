"""The options of ``df.write.format("seglog")``, and the columns that a frame must have.

Names and meanings are those of the sink of Spark's Kafka connector (``KafkaWriter.scala``), of Kafka's producer
(``compression.type``, ``batch.size``), and of Delta for ``txnAppId`` and ``txnVersion``. ``kafka.compression.type``
and ``kafka.batch.size``, as the connector is given them, are the same as without ``kafka.``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from seglog.core.config import PRODUCER, LogConfig
from seglog.core.errors import InvalidConfigError
from seglog.core.types import MAX_INT32, MAX_INT64
from seglog.records.compression import Codec, check_level
from seglog.spark.options import values as parsers

DEFAULT_BATCH_SIZE: Final = 16384
"""``batch.size`` of Kafka's producer."""
DEFAULT_BUFFER_BYTES: Final = 16 << 20
"""Bytes of rows that a task holds before it writes them; it needs about five times as much memory."""
STREAM_LINGER_SECONDS: Final = 5
"""How long a stream keeps the directory open after a micro-batch by default, for the next one."""

_HEADERS: Final = "array<struct<key:string,value:binary>>"
_COLUMNS: Final[Mapping[str, tuple[str, ...]]] = {
    "key": ("string", "binary"),
    "value": ("string", "binary"),
    "topic": ("string",),
    "partition": ("int",),
    "timestamp": ("timestamp",),
    "headers": (_HEADERS,),
}
"""The columns that are written, with their allowed Spark types. Other columns are ignored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """A job's name in the ledger. Each version of an application is adopted once, in ascending order."""

    application: str
    version: int

    @property
    def key(self) -> str:
        """The application's name in the ledger."""
        return f"txn:{self.application}"


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """The options of one ``save()`` or ``start()``, checked; ``ignored`` are ``kafka.*`` options without effect."""

    path: str
    topic: str | None = None
    compression: Codec | None = None
    level: int | None = None
    batch_size: int = DEFAULT_BATCH_SIZE
    buffer_bytes: int = DEFAULT_BUFFER_BYTES
    num_partitions: int | None = None
    create_topics: Mapping[str, int | None] = field(default_factory=dict)
    topic_config: Mapping[str, str] = field(default_factory=dict)
    transaction: Transaction | None = None
    allow_foreign: bool = False
    linger_seconds: int | None = None
    ignored: tuple[str, ...] = ()

    def codec(self, config: LogConfig) -> tuple[Codec, int | None]:
        """Codec and level of batches for a topic: its own ``compression.type`` if it has one, else the option's."""
        if config.compression_type == PRODUCER:
            return self.compression or Codec.NONE, self.level
        codec = Codec.parse(config.compression_type)
        if codec == self.compression:
            return codec, self.level
        levels = {
            Codec.GZIP: config.compression_gzip_level,
            Codec.LZ4: config.compression_lz4_level,
            Codec.ZSTD: config.compression_zstd_level,
        }
        return codec, levels.get(codec)


def check_columns(columns: Mapping[str, str], topic: str | None) -> None:
    """Refuse a frame that cannot be written, as the connector does.

    ``columns`` has the name and the type (``simpleString``) of each. `InvalidConfigError` names the column.
    """
    if topic is None and "topic" not in columns:
        raise InvalidConfigError("the frame has no column topic: add it, or set the option topic")
    if "value" not in columns:
        raise InvalidConfigError(f"the frame has no column value; it has {', '.join(columns) or 'none'}")
    for name, allowed in _COLUMNS.items():
        found = columns.get(name)
        if found is None or (name == "topic" and topic is not None):
            continue
        plain = re.sub(r" collate \w+", "", found)
        if plain not in allowed and not (name == "headers" and plain == "array<void>"):
            raise InvalidConfigError(f"column {name} is {found}: it must be {' or '.join(allowed)}")


def check_mode(*, overwrite: bool) -> None:
    if overwrite:
        raise InvalidConfigError(
            "mode overwrite is not supported, because a log can only be appended to: use .mode('append'), "
            "and delete the topic first to start over"
        )


def _codec(name: str, value: str) -> Codec:
    try:
        return Codec.parse(parsers.text(name, value).strip().lower())
    except InvalidConfigError as error:
        raise InvalidConfigError(f"option {name}: {error}") from error


def _topics(name: str, value: str) -> dict[str, int | None]:
    example = '{"flights": 4, "carriers": 1}'
    try:
        parsed = json.loads(value)
    except (ValueError, RecursionError):
        parsed = {topic.strip(): None for topic in value.split(",") if topic.strip()}
    if not isinstance(parsed, dict) or not parsed:
        raise InvalidConfigError(
            f"option {name} is {value!r}: it must be names separated by commas, or JSON as in {example}"
        )
    for topic, partitions in parsed.items():
        parsers.topic(name, topic)
        if partitions is not None and (not isinstance(partitions, int) or not 0 < partitions <= MAX_INT32):
            raise InvalidConfigError(
                f"option {name} has {partitions!r} partitions for {topic}; write it as in {example}"
            )
    return parsed


_LEVELS: Final = {f"compression.{codec.name.lower()}.level": codec for codec in (Codec.GZIP, Codec.LZ4, Codec.ZSTD)}
_LEVEL: Final = parsers.number(-131072, 22)
OPTIONS: Final[Mapping[str, Callable[[str, str], Any]]] = {
    "path": parsers.word,
    "topic": parsers.topic,
    "includeHeaders": parsers.boolean,
    "compression.type": _codec,
    "compression.level": _LEVEL,
    **dict.fromkeys(_LEVELS, _LEVEL),
    "batch.size": parsers.number(1, MAX_INT32),
    "bufferBytes": parsers.number(1 << 16, 1 << 30),
    "numPartitions": parsers.number(1, MAX_INT32),
    "createTopics": _topics,
    "txnAppId": parsers.word,
    "txnVersion": parsers.number(0, MAX_INT64),
    "allowForeign": parsers.boolean,
    "lingerSeconds": parsers.number(0, 24 * 60 * 60),
}
"""Every option with its parser, except ``topic.<key of Kafka's topic configuration>``."""

_SPELLING: Final = {name.lower(): name for name in OPTIONS}
_KAFKA: Final = frozenset({"compression.type", "batch.size", *_LEVELS})
"""Keys of the producer that also have an effect with the connector's prefix ``kafka.``."""
_SPARKS_OWN: Final = frozenset({"checkpointlocation", "queryname", "owner", "provider", "location"})


def parse_write_options(options: Mapping[str, str]) -> WriteOptions:
    """Check all options together; an `InvalidConfigError` names the option, its value and the allowed values.

    >>> parse_write_options({"path": "/data", "topic": "flights", "compression.type": "zstd"}).compression
    <Codec.ZSTD: 4>
    """
    values: dict[str, Any] = {}
    topic_config: dict[str, str] = {}
    ignored = []
    for key, text in options.items():
        lower = key.lower()
        if lower.startswith("kafka."):
            if lower.removeprefix("kafka.") not in _KAFKA:
                ignored.append(key)
                continue
            lower = lower.removeprefix("kafka.")
        if lower.startswith("topic."):
            topic_config[lower.removeprefix("topic.")] = text
        elif lower in _SPELLING:
            name = _SPELLING[lower]
            values[name] = OPTIONS[name](name, text)
        elif lower not in _SPARKS_OWN:
            raise parsers.unknown(key, _SPELLING)
    if "path" not in values:
        raise InvalidConfigError("option path is missing: set it to the log directory to write to")
    if "://" in values["path"] and not values["path"].startswith("file:"):
        raise InvalidConfigError(
            f"path {values['path']!r}: seglog writes to a file system that all workers share, not to an object store"
        )
    LogConfig.from_mapping(topic_config)
    codec, level = _compression(values)
    return WriteOptions(
        path=values["path"],
        topic=values.get("topic"),
        compression=codec,
        level=level,
        batch_size=values.get("batch.size", DEFAULT_BATCH_SIZE),
        buffer_bytes=values.get("bufferBytes", DEFAULT_BUFFER_BYTES),
        num_partitions=values.get("numPartitions"),
        create_topics=values.get("createTopics", {}),
        topic_config=topic_config,
        transaction=_transaction(values),
        allow_foreign=values.get("allowForeign", False),
        linger_seconds=values.get("lingerSeconds"),
        ignored=tuple(sorted(ignored)),
    )


def _compression(values: Mapping[str, Any]) -> tuple[Codec | None, int | None]:
    codec: Codec | None = values.get("compression.type")
    levels = [values[name] for name, its in _LEVELS.items() if its == codec and name in values]
    level = values.get("compression.level", levels[0] if levels else None)
    if level is not None and codec is None:
        raise InvalidConfigError("option compression.level needs compression.type")
    if codec is not None:
        check_level(codec, level)
    return codec, level


def _transaction(values: Mapping[str, Any]) -> Transaction | None:
    given = [name for name in ("txnAppId", "txnVersion") if name in values]
    if not given:
        return None
    if len(given) == 1:
        raise InvalidConfigError(f"option {given[0]} has no effect alone: set both txnAppId and txnVersion")
    return Transaction(application=values["txnAppId"], version=values["txnVersion"])
