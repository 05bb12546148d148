"""The options of ``df.write.format("seglog")``, and the columns that a frame must have.

Names and meanings are those of the sink of Spark's Kafka connector (``KafkaWriter.scala``), of Kafka's producer
(``compression.type``, ``batch.size``), and of Delta (``txnAppId``, ``txnVersion``). The fields of `WriteOptions`
declare the options whose values they are, and `_COMBINED` those that lead to a field together.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Self

from seglog.client.client_config import WRITE, ClientConfig
from seglog.core.config import PRODUCER, TOPIC_KEYS, LogConfig
from seglog.core.errors import InvalidConfigError
from seglog.core.settings import (
    Boolean,
    Options,
    OptionValues,
    Parsed,
    UnfitError,
    int32,
    int64,
    not_empty,
    one_of,
    option,
    setting,
    settings_of,
)
from seglog.core.suggestions import did_you_mean
from seglog.core.types import MAX_INT32
from seglog.records.compression import Codec, check_level
from seglog.sources.options import rules
from seglog.sources.options.read_options import BROKER, NOWHERE
from seglog.sources.options.read_options import OPTIONS as SOURCE_OPTIONS
from seglog.values.value_options import NO_FORMATS, VALUE_OPTIONS, ValueOptions, parse_value_options

STREAM_LINGER_SECONDS: Final = 5
"""How long a stream keeps the directory open after a micro-batch, unless the option says otherwise."""

_HEADERS: Final = "array<struct<key:string,value:binary>>"
_COLUMNS: Final[Mapping[str, tuple[str, ...]]] = {
    "key": ("string", "binary"),
    "value": ("string", "binary"),
    "topic": ("string",),
    "partition": ("int",),
    "timestamp": ("timestamp",),
    "headers": (_HEADERS,),
}
"""The columns that the sink writes, with the Spark types that they may have. It ignores other columns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AppTransaction:
    """A job's name in the ledger. An application's versions are adopted once each, in ascending order."""

    application: str
    version: int

    @property
    def key(self) -> str:
        """The application's name in the ledger."""
        return f"txn:{self.application}"


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerOptions:
    """How a job writes through brokers. ``mark_topic`` is where its marks are; None: nowhere is it said.

    ``txn_topic`` remembers the versions of an application; None for a job that has none.
    """

    client: ClientConfig
    exactly_once: bool
    prefix: str
    mark_topic: str | None
    txn_topic: str | None
    fail_on_data_loss: bool


def _codec(value: str) -> Codec:
    try:
        return Codec.parse(not_empty(value).lower())
    except InvalidConfigError as error:
        raise UnfitError(f": {error}") from error


def _topics(value: str) -> dict[str, int | None]:
    example = '{"flights": 4, "carriers": 1}'
    parsed = rules.parse_json(value)
    if parsed is None:
        parsed = {topic.strip(): None for topic in value.split(",") if topic.strip()}
    if not isinstance(parsed, dict) or not parsed:
        raise UnfitError(f" is {value!r}: it must be names separated by commas, or JSON as in {example}")
    for topic, partitions in parsed.items():
        rules.topic(topic)
        if partitions is not None and (not isinstance(partitions, int) or not 0 < partitions <= MAX_INT32):
            raise UnfitError(f" has {partitions!r} partitions for {topic}; write it as in {example}")
    return parsed


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """The options of one ``save()`` or ``start()``, checked. ``ignored`` are ``kafka.*`` options without effect.

    ``brokers`` is None if the records go to the directory ``path``, which is empty otherwise. ``prefix``,
    ``mark_topic``, ``txn_topic`` and ``fail_on_data_loss`` are as in `BrokerOptions`, for a directory that a broker has
    open; ``batch_size_given``: it is not the default.
    """

    path: str
    brokers: BrokerOptions | None
    compression: Codec | None
    level: int | None
    batch_size: int
    batch_size_given: bool
    topic_config: Mapping[str, str]
    transaction: AppTransaction | None
    mark_topic: str | None
    txn_topic: str
    formats: ValueOptions = NO_FORMATS
    ignored: tuple[str, ...] = ()
    topic: str | None = setting(
        Parsed("a name", rules.topic),
        "The topic of all rows. Created if it does not exist, with `numPartitions` and `topic.*`.",
        default=None,
        otherwise="the column `topic`",
    )
    num_partitions: int | None = setting(
        int32(1),
        "The number of partitions of a topic that is created.",
        default=None,
        name="numPartitions",
        otherwise="1",
    )
    create_topics: Mapping[str, int | None] | None = setting(
        Parsed('`a,b` or `{"a": 4}`', _topics),
        "Topics that the column `topic` names and that are to be created.",
        default=None,
        name="createTopics",
    )
    buffer_bytes: int = setting(
        int64(1 << 16, 1 << 30, unit="64 KiB to 1 GiB, in bytes"),
        "The rows that a task buffers before it writes them. The task takes about five times as much memory.",
        default=16 << 20,
        name="bufferBytes",
    )
    allow_foreign: bool = setting(
        Boolean(),
        "Also write to topics that a Kafka broker created: only safe if they have one replica.",
        default=False,
        name="allowForeign",
    )
    linger_seconds: int | None = setting(
        int64(0, 24 * 60 * 60, unit="seconds"),
        "How long the directory stays open after the last job.",
        default=None,
        name="lingerSeconds",
        otherwise="0; in streams 5",
    )
    prefix: str = setting(
        Parsed("a text", not_empty),
        "The prefix of the sink's transactional ids and groups, for access rules.",
        default="seglog",
        name="transactionalIdPrefix",
        use=BROKER,
    )
    fail_on_data_loss: bool = setting(
        Boolean(),
        "`false`: continue with a warning if the mark of the last batch is missing, or a decided transaction has timed "
        "out.",
        default=True,
        name="failOnDataLoss",
        use=BROKER,
    )

    def ledger_entry(self, job: str) -> tuple[str, int]:
        """The name and version of a batch job in the ledger: those of its transaction, or the job's own."""
        return (f"job:{job}", 0) if self.transaction is None else (self.transaction.key, self.transaction.version)

    def for_broker(self) -> Self:
        """With the default ``batch.size`` of brokers, for a directory that a broker has open."""
        return self if self.batch_size_given else replace(self, batch_size=_BATCH_OF_BROKERS)

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


def check_marks(options: WriteOptions) -> None:
    """Refuse a sink through brokers that has no topic for its marks. The frame has a column topic, or the options name
    one (`check_columns`)."""
    if options.brokers is not None and options.brokers.exactly_once and options.brokers.mark_topic is None:
        raise InvalidConfigError(
            "option markTopic is missing: with the column topic, exactly-once needs a topic that exists for its marks; "
            "or set delivery=at-least-once"
        )


def check_columns(columns: Mapping[str, str], topic: str | None, encoded: Collection[str] = ()) -> None:
    """Refuse a frame that cannot be written, as the connector does.

    ``columns`` has the name and the type (``simpleString``) of each. Those in ``encoded`` have the type of a schema.
    `InvalidConfigError` names the column.
    """
    for name in columns:
        plain = name.lower()
        is_sinks = plain in _COLUMNS and not (plain == "topic" and topic is not None)
        if name != plain and is_sinks and plain not in columns:
            raise InvalidConfigError(
                f"column {name} would not be written, because the sink's column is {plain}, in lower case: rename it, "
                f"as in withColumnRenamed('{name}', '{plain}') or SELECT {name} AS {plain}, or drop it"
            )
    if topic is None and "topic" not in columns:
        raise InvalidConfigError("the frame has no column topic: add it, or set the option topic")
    if "value" not in columns:
        raise InvalidConfigError(f"the frame has no column value; it has {', '.join(columns) or 'none'}")
    for name, allowed in _COLUMNS.items():
        found = columns.get(name)
        if found is None or name in encoded or (name == "topic" and topic is not None):
            continue
        plain = re.sub(r" collate \w+", "", found)
        if plain not in allowed and not (name == "headers" and plain == "array<void>"):
            raise InvalidConfigError(f"column {name} is {found}: it must be {' or '.join(allowed)}")


def check_mode(*, overwrite: bool) -> None:
    if overwrite:
        raise InvalidConfigError(
            "mode overwrite is not supported, because a log can only be appended to: use .mode('append') or INSERT "
            "INTO, and delete the topic first to start over"
        )


_LEVELS: Final = {f"compression.{codec.name.lower()}.level": codec for codec in (Codec.GZIP, Codec.LZ4, Codec.ZSTD)}
_LEVEL: Final = int64(-131072, 22)
_COMBINED: Final = (
    option("path", Parsed("a log directory, or several, separated by commas", not_empty),
              "Created if it does not exist. Several directories must belong to running brokers of one cluster.",
              otherwise="required"),
    option("compression.type", Parsed("`none`, `gzip`, `snappy`, `lz4`, `zstd`", _codec),
              "The codec of batches, unless the topic's `compression.type` names one.", otherwise="`none`"),
    option("compression.level", _LEVEL, "The level of that codec.", otherwise="the codec's own"),
    *(option(name, _LEVEL, "The level if `compression.type` is this codec, as in Kafka's producer.")
      for name in _LEVELS),
    option("batch.size", int32(1, unit="bytes"), "The size at which a batch is full, as in Kafka's producer.",
              default=16384, otherwise="`16384`; through brokers `262144`"),
    option("txnAppId", Parsed("a name", not_empty),
              "The name of an application. A batch job with this name and `txnVersion`, which it needs, is written "
              "once, however often it runs."),
    option("txnVersion", int64(0), "The version of that job. It must increase from job to job."),
    option(f"kafka.{rules.SERVERS}", rules.BROKERS, "Write through these brokers instead of to a directory.",
              use=BROKER),
    option("delivery", one_of("exactly-once", "at-least-once"),
              "`exactly-once`: transactions, so that after any failure each micro-batch, and each job with `txnAppId`, "
              "is in the topics once. `at-least-once`: it may be there in part, or twice.", default="exactly-once",
              use=BROKER),
    option("markTopic", Parsed("a topic that exists", rules.topic),
              "The mark of the last batch is a group offset of its partition 0. No record is written to it. With the "
              "column `topic`, `exactly-once` needs it.", otherwise="the option `topic`", use=BROKER),
    option("txnTopic", Parsed("a compacted topic", rules.topic),
              "Where a job with `txnAppId` records its version, for longer than brokers keep the mark. Created if it "
              "does not exist.", otherwise="`<transactionalIdPrefix>-txn-versions`", use=BROKER),
    option("includeHeaders", Boolean(),
              "Without effect: the column `headers` is written if the frame has it.", use=NOWHERE),
)  # fmt: skip
_FIELDS: Final = settings_of(WriteOptions)
OPTIONS: Final = Options(*_COMBINED, *_FIELDS.values(), *VALUE_OPTIONS.values())
"""Every option of the sink, except ``topic.<key of Kafka's topic configuration>``."""

_ONLY_DIRECTORIES: Final = ("numPartitions", "createTopics", "allowForeign", "lingerSeconds")
_OF_MARKS: Final = frozenset({"markTopic", "txnTopic", "transactionalIdPrefix", "failOnDataLoss"})
"""Options of brokers that also count for a directory, while a broker has it open."""
_BATCH_OF_BROKERS: Final = 256 << 10
"""A request has one batch of a partition, so small batches cost many requests."""
_TRANSACTION_TIMEOUT: Final = 900.0
"""The most that brokers allow unless they are configured otherwise: a micro-batch may take long."""
_KAFKA: Final = frozenset({"compression.type", "batch.size", *_LEVELS})
"""Keys of Kafka's producer that the connector takes with the prefix ``kafka.``; here both spellings work."""
_REFUSED: Final = {
    "kafka.key.serializer": "keys are bytes or text: cast the column",
    "kafka.value.serializer": "values are bytes or text: cast the column, or set valueFormat",
}
"""The connector refuses these too (``KafkaSourceProvider.kafkaParamsForProducer``)."""
_SPARKS_OWN: Final = frozenset({"checkpointlocation", "queryname", "owner", "provider", "location"})


_OF_THE_SOURCE: Final = frozenset(name.lower() for name in SOURCE_OPTIONS.keys() - OPTIONS.keys())
_OF_THE_SINK: Final = frozenset(name.lower() for name in OPTIONS.keys() - SOURCE_OPTIONS.keys())
_HINT: Final = (
    ". Spark hands a writer no options of a table in its catalog: insert into a temporary view with a list of columns, "
    "which keeps its options, or give them with the statement: INSERT INTO t WITH (path = '…', topic = '…') SELECT …, "
    "or df.writeTo('t').option(…).append()"
)


def refuse_options_of_the_sink(options: Mapping[str, str]) -> None:
    """`InvalidConfigError` if a query has an option of the sink alone."""
    for key in options:
        if key.lower() in _OF_THE_SINK:
            raise InvalidConfigError(
                f"option {key} is for writing: a query selects topics by the option subscribe; a view to write to has "
                "a list of columns, such as (key STRING, value STRING)"
            )


def parse_write_options(options: Mapping[str, str]) -> WriteOptions:
    """Check all options together; an `InvalidConfigError` names the option, its value and the allowed values.

    >>> parse_write_options({"path": "/data", "topic": "flights", "compression.type": "zstd"}).compression
    <Codec.ZSTD: 4>
    """
    values = OptionValues(OPTIONS)
    topic_config: dict[str, str] = {}
    properties: dict[str, str] = {}
    for key, text in options.items():
        lower = key.lower()
        if lower in _REFUSED:
            raise InvalidConfigError(f"option {key} is not supported: {_REFUSED[lower]}")
        if lower.startswith("kafka."):
            lower = lower.removeprefix("kafka.")
            properties[lower] = text
            if lower not in _KAFKA:
                continue
        if lower.startswith("topic."):
            topic_config[lower.removeprefix("topic.")] = text
        elif (found := OPTIONS.find(lower)) is not None:
            values.add(found, text)
        elif lower in _OF_THE_SOURCE:
            raise InvalidConfigError(f"option {key} is for reading: a sink has the option topic, or the column topic")
        elif lower not in _SPARKS_OWN and not lower.startswith("option."):
            raise rules.unknown_option(key, OPTIONS, _REFUSED)
    rules.check_properties(properties)
    brokers = None
    if "path" not in values:
        if rules.SERVERS not in properties:
            raise InvalidConfigError(
                "option path is missing: set it to the log directory to write to; or set "
                f"kafka.{rules.SERVERS} to write through brokers" + ("" if options else _HINT)
            )
        brokers = _brokers(values, properties, topic_config)
    elif "://" in values["path"] and not values["path"].startswith("file:"):
        raise InvalidConfigError(
            f"path {values['path']!r}: seglog writes to a file system that all workers share, not to an object store"
        )
    _check_topic(topic_config)
    codec, level = _compression(values)
    return WriteOptions(
        path=values.get("path", ""),
        brokers=brokers,
        compression=codec,
        level=level,
        batch_size=values.of("batch.size") if brokers is None else values.get("batch.size", _BATCH_OF_BROKERS),
        batch_size_given="batch.size" in values,
        topic_config=topic_config,
        transaction=_transaction(values),
        mark_topic=values.get("markTopic", values.of("topic")),
        txn_topic=_txn_topic(values),
        formats=parse_value_options(options),
        ignored=_ignored(values, properties, brokers),
        **values.by_attribute(_FIELDS.values()),
    )


def _check_topic(config: Mapping[str, str]) -> None:
    for name in config:
        if name not in TOPIC_KEYS:
            near = did_you_mean(f"topic.{name}", [f"topic.{one}" for one in TOPIC_KEYS])
            raise InvalidConfigError(f"unknown option {f'topic.{name}'!r}{near}")
    try:
        LogConfig.from_mapping(config)
    except InvalidConfigError as error:
        raise InvalidConfigError(f"option topic.{error}") from None


def _brokers(values: OptionValues, properties: Mapping[str, str], topic_config: Mapping[str, str]) -> BrokerOptions:
    given = [name for name in _ONLY_DIRECTORIES if name in values] + [f"topic.{name}" for name in topic_config]
    if given:
        raise InvalidConfigError(f"option {given[0]} is for directories: create topics at the brokers")
    if properties.get("partitioner.class", "").rpartition(".")[2] not in ("", "DefaultPartitioner"):
        raise InvalidConfigError("option kafka.partitioner.class is not supported: set the column partition")
    client = rules.client_config(properties, WRITE)
    if client.acks == 0:
        raise InvalidConfigError("option kafka.acks is 0: a task must know that its records were written")
    exactly_once = values.of("delivery") == "exactly-once"
    mark_topic: str | None = values.get("markTopic", values.of("topic"))
    if exactly_once:
        if not client.enable_idempotence:
            raise InvalidConfigError("option delivery is exactly-once: it needs kafka.acks=all and idempotence")
        if "transaction.timeout.ms" not in properties:
            client = replace(client, transaction_timeout=_TRANSACTION_TIMEOUT)
    elif "txnAppId" in values:
        raise InvalidConfigError("option txnAppId needs delivery=exactly-once")
    return BrokerOptions(
        client=client,
        exactly_once=exactly_once,
        prefix=values.of("transactionalIdPrefix"),
        mark_topic=mark_topic,
        txn_topic=_txn_topic(values) if "txnAppId" in values else None,
        fail_on_data_loss=values.of("failOnDataLoss"),
    )


def _txn_topic(values: OptionValues) -> str:
    if "txnTopic" in values:
        if values["txnTopic"] == values.of("topic"):
            raise InvalidConfigError(
                f"option txnTopic is {values['txnTopic']!r}, the topic of the rows: versions need one of their own"
            )
        return str(values["txnTopic"])
    prefix: str = values.of("transactionalIdPrefix")
    try:
        return rules.topic(f"{prefix}-txn-versions")
    except UnfitError:
        if "txnAppId" not in values:
            return ""
        raise InvalidConfigError(
            f"option txnTopic is missing: transactionalIdPrefix={prefix!r} cannot begin the name of a topic"
        ) from None


def _ignored(values: OptionValues, properties: Mapping[str, str], brokers: BrokerOptions | None) -> tuple[str, ...]:
    if brokers is not None:
        return tuple(f"kafka.{name}" for name in brokers.client.without_effect)
    names = {f"kafka.{name}" for name in properties if name not in _KAFKA}
    names |= {name for name in values if OPTIONS[name].use == BROKER and name not in _OF_MARKS}
    return tuple(sorted(names))


def _compression(values: Mapping[str, Any]) -> tuple[Codec | None, int | None]:
    codec: Codec | None = values.get("compression.type")
    levels = [values[name] for name, its in _LEVELS.items() if its == codec and name in values]
    level = values.get("compression.level", levels[0] if levels else None)
    if level is not None and codec is None:
        raise InvalidConfigError("option compression.level needs compression.type")
    if codec is not None:
        check_level(codec, level)
    return codec, level


def _transaction(values: Mapping[str, Any]) -> AppTransaction | None:
    given = [name for name in ("txnAppId", "txnVersion") if name in values]
    if not given:
        return None
    if len(given) == 1:
        raise InvalidConfigError(f"option {given[0]} has no effect alone: set both txnAppId and txnVersion")
    return AppTransaction(application=values["txnAppId"], version=values["txnVersion"])
