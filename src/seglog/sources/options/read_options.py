"""The options of ``spark.read.format("seglog")``: names, values and valid combinations.

Options of Spark's Kafka connector keep their names and meanings (``KafkaSourceProvider.scala``). The fields of
`ReadOptions` declare the options whose values they are; `_COMBINED` declares those that lead to a field together. All
else about an option is read from there: `seglog.table`, the command line and the reference pages, too.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from seglog.client.client_config import READ, ClientConfig
from seglog.core.errors import InvalidConfigError
from seglog.core.settings import (
    Boolean,
    Duration,
    Options,
    OptionValues,
    Parsed,
    Size,
    UnfitError,
    int64,
    not_empty,
    one_of,
    option,
    setting,
    settings_of,
)
from seglog.core.suggestions import did_you_mean
from seglog.core.types import TopicPartition
from seglog.records.timestamps import TimestampRange
from seglog.sources.options import rules
from seglog.sources.options.topic_pattern import compile_java
from seglog.values.value_options import (
    NO_FORMATS,
    ONLY_WRITES,
    VALUE_OPTIONS,
    ValueOptions,
    dead_letter_directory,
    parse_value_options,
)

LATEST: Final = -1
EARLIEST: Final = -2
"""Stand for the offset at an end of the log, in options as in Kafka's protocol."""

_ENDS: Final = {"earliest": EARLIEST, "latest": LATEST}

Offsets = int | Mapping[TopicPartition, int]
"""EARLIEST, LATEST, or an offset for each partition, which may also be one of these. The partition `EVERY` of a topic
stands for all of its partitions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimestampBound:
    """The first offset of a record with this timestamp (ms) or a later one, for all partitions or for each.

    If no record is that late, an end is the latest offset, and ``strategy`` decides about a start.
    """

    timestamps: int | Mapping[TopicPartition, int]
    strategy: Literal["error", "latest"] = "error"


Bound = Offsets | TimestampBound


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscribe:
    """All partitions of these topics."""

    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscribePattern:
    """The topics whose whole name matches a regular expression."""

    pattern: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Assign:
    """These partitions."""

    partitions: tuple[TopicPartition, ...]


Selection = Subscribe | SubscribePattern | Assign | None
"""None: every topic."""


STREAM: Final = "stream"
BROKER: Final = "broker"
NOWHERE: Final = "none"
"""The uses of options that have an effect in streams, through brokers, or nowhere: options of the Kafka connector."""
_VIEWS: Final = ("records", "latest", "latest-parts", "batches", "segments", "group-offsets", "transactions", "tasks")
RECORD_VIEWS: Final = frozenset({"records", "latest", "latest-parts"})
"""Views with the columns of a record."""
_PERMISSIVE: Final = "permissive"
_READ_COMMITTED: Final = "read_committed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """The options of one ``load()``, checked.

    ``client`` says how to reach brokers; None: the records come from ``paths``. With both, brokers say what there is,
    and files under ``paths`` are read in their place. ``notes`` are warnings about options without effect. ``columns``,
    ``keys`` and ``until`` are None if they are not set. ``replica`` is ``longest``, a broker's id or a log directory.
    ``permissive``: damage is left out. ``null_timestamps``: a timestamp that is out of range is null. ``times`` are
    those of the wanted records; None: all. A batch has at most ``batch_rows`` rows and ``batch_bytes``, unless a single
    record is larger. No option sets these three.
    """

    paths: tuple[str, ...] = ()
    client: ClientConfig | None = None
    selection: Selection = None
    starting: Bound = EARLIEST
    ending: Bound = LATEST
    keys: tuple[bytes | None, ...] | None = None
    read_committed: bool = False
    permissive: bool = False
    null_timestamps: bool = False
    formats: ValueOptions = NO_FORMATS
    notes: tuple[str, ...] = ()
    times: TimestampRange | None = None
    batch_rows: int = 65536
    batch_bytes: int = 8 << 20
    fail_on_data_loss: bool = setting(
        Boolean(),
        "`false`: read from the nearest offset that exists, with a warning.",
        default=True,
        name="failOnDataLoss",
    )
    min_partitions: int | None = setting(
        int64(1),
        "Plan at least about this many tasks, with the same ranges as the connector.",
        default=None,
        name="minPartitions",
    )
    max_records: int | None = setting(
        int64(1),
        "Plan tasks of at most this many offsets, with the same ranges as the connector.",
        default=None,
        name="maxRecordsPerPartition",
    )
    max_bytes: int = setting(
        Size(),
        "Split larger tasks, so that one large partition keeps all cores busy: in directories at batch boundaries that "
        "the sparse index knows, through brokers by an estimate from the first batches.",
        default=128 << 20,
        name="maxBytesPerPartition",
    )
    parallelism: int | None = setting(
        int64(1),
        "How many tasks run at once. Large partitions are split to use that many cores; if there are more than four "
        "partitions per core, or more than 32, small ones share a task. seglog sees `--conf`, `--master`, "
        "`--num-executors` and similar flags, but not `spark-defaults.conf`; if the number is only set there, it plans "
        "tasks of 32 MiB.",
        default=None,
        otherwise="from the driver's command line",
    )
    include_headers: bool = setting(Boolean(), "Add the column `headers`.", default=False, name="includeHeaders")
    columns: tuple[str, ...] | None = setting(
        Parsed("`key, offset` or a JSON list", rules.names),
        "Only these are decoded; also `isTombstone` (the record has no value), `isControl, isTransactional, "
        'producerId, producerEpoch, sequence, leaderEpoch`. `.schema("offset bigint, value binary")` does the same.',
        default=None,
        otherwise="the seven columns of the connector",
    )
    include_control: bool = setting(
        Boolean(), "Return transaction markers as rows.", default=False, name="includeControl"
    )
    until: str | None = setting(
        one_of("highWatermark", "logEnd"),
        "Where the log ends for this query. A warning names the file with the high watermark: `seglog.watermarks` of a "
        "running `seglog serve`, which is never stale, or `replication-offset-checkpoint`, which is up to five seconds "
        "old.",
        default=None,
        otherwise="`highWatermark` if the directory is in use or there are several replicas; else `logEnd`",
    )
    replica: str = setting(
        Parsed("`longest`, a broker's id, a log directory", rules.path),
        "Which of several replicas to read; `longest` is the one that can be read the furthest.",
        default="longest",
    )
    dead_letters: str | None = setting(
        Parsed("a directory's absolute path", dead_letter_directory),
        "With `mode=permissive`: records whose key or value cannot be decoded are also written there.",
        default=None,
        name="deadLetter",
        use="values",
    )
    view: str = setting(one_of(*_VIEWS), "See [below](#views). Not in streams.", default="records")
    max_memory: int = setting(
        Size(1 << 30),  # Arrow's arrays of bytes end at 2 GiB
        "With `view=latest`: beyond this, a task spills to `SPARK_LOCAL_DIRS`, or to the directory for temporary "
        "files. At most `1g`.",
        default=128 << 20,
        name="maxMemoryPerTask",
    )
    max_offsets_per_trigger: int | None = setting(
        int64(1), "At most this many offsets in a micro-batch.", default=None, name="maxOffsetsPerTrigger", use=STREAM
    )
    min_offsets_per_trigger: int | None = setting(
        int64(1), "Wait until there are this many new offsets …", default=None, name="minOffsetsPerTrigger", use=STREAM
    )
    max_trigger_delay_ms: int = setting(
        Duration(), "… but not longer than this.", default=15 * 60 * 1000, name="maxTriggerDelay", use=STREAM
    )
    commit_to_group: str | None = setting(
        Parsed("a group id", not_empty),
        "Commit the offsets of finished micro-batches to this consumer group, so that lag tools see the query. Spark's "
        "checkpoint alone decides where the query continues.",
        default=None,
        name="commitToGroup",
        use=BROKER,
    )
    poll_timeout_ms: int = setting(
        int64(1, unit="milliseconds"),
        "How long a task waits for a partition without a leader, or for a broker that does not answer.",
        default=120_000,
        name="kafkaConsumer.pollTimeoutMs",
        use=BROKER,
    )
    offset_retries: int = setting(
        int64(0),
        "How often the driver asks again for offsets while a leader is missing …",
        default=3,
        name="fetchOffset.numRetries",
        use=BROKER,
    )
    offset_retry_ms: int = setting(
        int64(0, unit="milliseconds"),
        "… and how long it waits before each attempt.",
        default=1_000,
        name="fetchOffset.retryIntervalMs",
        use=BROKER,
    )

    @property
    def is_divided(self) -> bool:
        """Whether options say how many tasks there are."""
        return self.min_partitions is not None or self.max_records is not None


def _subscribe(value: str) -> Subscribe:
    topics = [topic.strip() for topic in value.split(",") if topic.strip()]
    if not topics:
        raise UnfitError(f" is {value!r}: it names no topic")
    return Subscribe(topics=tuple(dict.fromkeys(rules.topic(topic) for topic in topics)))


def _pattern(value: str) -> SubscribePattern:
    pattern = not_empty(value)
    try:
        compile_java(pattern)
    except (re.error, RecursionError) as error:
        raise UnfitError(f" is {value!r}, which is not a regular expression: {error}") from error
    return SubscribePattern(pattern=pattern)


def _timestamps(value: str) -> Mapping[TopicPartition, int]:
    example = '{"flights": {"0": 1357000000000}} (milliseconds since 1970)'
    return rules.per_partition(value, low=0, example=example)


def parse_offsets(value: str) -> Offsets:
    """``earliest``, ``latest``, ``{"topic": {"0": 12}}`` or ``{"topic": "earliest"}``."""
    word = value.strip().lower()
    if word in _ENDS:
        return _ENDS[word]
    if re.fullmatch(r"[a-z_-]+", word):
        raise UnfitError(f" is {value!r}: earliest or latest, or offsets of partitions{did_you_mean(word, _ENDS)}")
    example = '{"flights": {"0": 1234, "1": -2}} (-2 is earliest, -1 latest), or earliest, or latest'
    return rules.per_partition(value, low=EARLIEST, example=example, words=_ENDS)


def option_name(side: Literal["starting", "ending"], bound: Bound) -> str:
    """The option that sets such a bound."""
    if not isinstance(bound, TimestampBound):
        return f"{side}Offsets"
    return f"{side}Timestamp" if isinstance(bound.timestamps, int) else f"{side}OffsetsByTimestamp"


_OFFSETS: Final = Parsed('`earliest`, `latest` or `{"a": {"0": 17, "1": -2}, "b": "latest"}`', parse_offsets)
_BY_PARTITION: Final = Parsed('`{"a": {"0": 1357000000000}}`', _timestamps)
_TIMESTAMP: Final = int64(0, unit="milliseconds")
_ISOLATION: Final = one_of("read_uncommitted", _READ_COMMITTED)


_COMBINED: Final = (
    option("path", Parsed("a log directory, a partition's directory, a glob, or several of these, separated by "
              "commas", lambda value: (rules.path(value),)),
              "Directories of several brokers count as one set of topics: see "
              "[below](#directories-of-several-brokers).", default=(), otherwise="required"),
    option("paths", Parsed("a JSON list", lambda value: tuple(rules.json_list(value, '["/a", "/b"]'))),
              "The form in which Spark passes `load([…])`.", default=()),
    option("subscribe", Parsed("`a,b`", _subscribe),
              "Topics. At most one of `subscribe`, `subscribePattern` and `assign` may be set.",
              otherwise="every topic except Kafka's internal ones"),
    option("subscribePattern", Parsed("a Java regular expression", _pattern), "Topics whose whole name matches."),
    option("assign", Parsed('`{"a": [0, 1]}`', lambda value: Assign(partitions=rules.partitions(value))),
              "Partitions. Without any, as in `{}`, a query has no records."),
    option("startingOffsets", _OFFSETS,
              "The first offset to read, of each partition or of all partitions of a topic; -2 is the earliest. A "
              "batch query refuses `latest` and -1.", otherwise="`earliest`; in streams `latest`"),
    option("endingOffsets", _OFFSETS,
              "The offset at which to stop, in the same form; -1 is the latest. Refuses `earliest` and -2. Not in "
              "streams.", default=LATEST, otherwise="`latest`"),
    option("startingOffsetsByTimestamp", _BY_PARTITION,
              "Start at the first record with this timestamp (ms) or a later one. Overrides `startingOffsets`."),
    option("endingOffsetsByTimestamp", _BY_PARTITION,
              "Stop before the first such record. Overrides `endingOffsets`. Not in streams."),
    option("startingTimestamp", _TIMESTAMP, "The same for all partitions. Overrides both."),
    option("endingTimestamp", _TIMESTAMP, "The same for all partitions. Overrides both. Not in streams."),
    option("startingOffsetsByTimestampStrategy", one_of("error", "latest"),
              "The action if every record is earlier than the timestamp.", default="error"),
    option("keyEquals", Parsed("text, `hex:…` or `base64:…`", lambda value: (rules.key(value),)),
              "Only records with this key. The worker compares keys before it copies a record, so others never leave "
              "it."),
    option("keyIn", Parsed("a JSON list of keys", rules.keys),
              "Only records with one of these keys; `null` stands for no key."),
    option("isolationLevel", _ISOLATION,
              "`read_committed` reads up to the last stable offset, without aborted transactions.",
              otherwise="`read_uncommitted`"),
    option("kafka.isolation.level", _ISOLATION, "The connector's name for `isolationLevel`."),
    option("mode", one_of("failFast", _PERMISSIVE),
              "`failFast`: damage ends the query with file, position, offset and reason, and so does a timestamp that "
              "is out of range. `permissive`: damage is skipped and such a timestamp is null; both are counted and "
              "logged.", default="failFast"),
    option(f"kafka.{rules.SERVERS}", rules.BROKERS,
              "Read through these brokers instead of from directories; with `path`, "
              "[from both](#through-brokers-with-mounted-files).", use=BROKER),
    option("groupIdPrefix", Parsed("", not_empty), "", use=NOWHERE),
)  # fmt: skip
_FIELDS: Final = settings_of(ReadOptions)
OPTIONS: Final = Options(
    *_COMBINED, *_FIELDS.values(), *(row for row in VALUE_OPTIONS.values() if row.use != ONLY_WRITES)
)
"""Every option of the source. Those of Kafka's client (``kafka.*``) have no effect on files."""
_ONLY_FILES: Final = ("until", "replica")
"""Options that choose among files. A broker hands out what is committed."""

_SPARKS_OWN: Final = frozenset({"owner", "provider", "location", "comment", "external", "is_managed_location"})
"""Options that Spark adds in ``CREATE TABLE … USING seglog``."""
_REFUSED: Final = {
    "kafka.auto.offset.reset": "set option startingOffsets to earliest or latest",
    "kafka.key.deserializer": "keys are bytes: cast the column",
    "kafka.value.deserializer": "values are bytes: cast the column",
    "kafka.enable.auto.commit": "Spark keeps the offsets",
    "kafka.interceptor.classes": "records are returned as they are in the files",
    "checkpointlocation": "it is one of writeStream",
}
"""The connector refuses those of Kafka too, so that a query means the same in both."""
_HINT: Final = (
    " (a SQL table keeps its options only if it is created without a list of columns; otherwise give them with the "
    "query: SELECT … FROM t WITH (path = '…'))"
)


def parse_options(options: Mapping[str, str], *, stream: bool | None = False) -> ReadOptions:
    """Check all options together; an `InvalidConfigError` names the option, its value and the allowed values.

    A ``stream`` refuses options about ends and starts at LATEST by default. A batch query refuses a start at the latest
    offset and an end at the earliest, and notes options of streams. With ``stream=None``, before it is known which of
    the two will follow, it refuses only what both refuse.

    >>> parse_options({"path": "/data", "subscribe": "flights", "startingOffsets": "earliest"}).selection
    Subscribe(topics=('flights',))
    >>> parse_options({"path": "/data", "startingOffset": "earliest"})
    Traceback (most recent call last):
        ...
    seglog.core.errors.InvalidConfigError: unknown option 'startingOffset'; did you mean startingOffsets?
    """
    values, properties = _values(options)
    paths = values.of("path") + values.of("paths")
    client = None
    if rules.SERVERS in properties:
        client = rules.client_config(properties, READ)
        _check_brokers(values, paths)
    elif not paths:
        raise InvalidConfigError(
            "option path is missing: set it to a log directory, a partition's directory or a glob; or set "
            f"kafka.{rules.SERVERS} to read through brokers" + ("" if options else _HINT)
        )
    _check_latest(values)
    selection = _only_one(values, "subscribe", "subscribePattern", "assign")
    keys = _only_one(values, "keyEquals", "keyIn")
    starting = _bound(values, "starting", LATEST if stream else EARLIEST)
    ending = _bound(values, "ending", LATEST)
    if stream:
        _check_stream(values)
    elif stream is False:
        _check_batch(starting, ending)
    most, least = values.of("maxOffsetsPerTrigger"), values.of("minOffsetsPerTrigger")
    if most is not None and least is not None and least > most:
        raise InvalidConfigError(f"option minOffsetsPerTrigger {least} is above maxOffsetsPerTrigger {most}")
    is_permissive = values.of("mode") == _PERMISSIVE
    return ReadOptions(
        paths=paths,
        client=client,
        selection=selection,
        starting=starting,
        ending=ending,
        keys=keys,
        read_committed=_isolation(values) == _READ_COMMITTED,
        permissive=is_permissive,
        null_timestamps=is_permissive,
        formats=_formats(values, options),
        notes=_notes(values, client, properties, stream=stream),
        **values.by_attribute(_FIELDS.values()),
    )


def _values(options: Mapping[str, str]) -> tuple[OptionValues, dict[str, str]]:
    """The parsed options by name, and the properties of a Kafka client, without ``kafka.``."""
    values, properties = OptionValues(OPTIONS), {}
    for key, value in options.items():
        lower = key.lower()
        if lower in _REFUSED:
            raise InvalidConfigError(f"option {key} is not supported: {_REFUSED[lower]}")
        if lower.startswith("kafka."):
            properties[lower.removeprefix("kafka.")] = value
        if (found := OPTIONS.find(key)) is not None:
            values.add(found, value)
        elif lower.startswith("kafka."):
            pass
        elif lower not in _SPARKS_OWN and not lower.startswith("option."):
            raise rules.unknown_option(key, OPTIONS, _REFUSED)
    rules.check_properties(properties)
    return values, properties


def _formats(values: OptionValues, options: Mapping[str, str]) -> ValueOptions:
    formats = parse_value_options(options)
    if "deadLetter" in values:
        if not formats.columns:
            raise InvalidConfigError("option deadLetter has no effect without valueFormat or keyFormat")
        if values.of("mode") != _PERMISSIVE:
            raise InvalidConfigError("option deadLetter needs mode=permissive: with failFast the query ends")
    if formats.columns and values.of("view") not in RECORD_VIEWS:
        raise InvalidConfigError(f"options valueFormat and keyFormat: the view {values.of('view')} has no such columns")
    if values.of("view") == "latest-parts" and any(one.column == "key" for one in formats.columns):
        raise InvalidConfigError(
            "option keyFormat: the view latest-parts has keys as bytes, by which they are compared"
        )
    return formats


def _only_one(values: Mapping[str, Any], *names: str) -> Any:
    given = [name for name in names if name in values]
    if len(given) > 1:
        raise InvalidConfigError(f"options {' and '.join(given)} exclude each other: give one of them")
    return values[given[0]] if given else None


def _isolation(values: Mapping[str, Any]) -> str | None:
    """The level by our name or the connector's; if both are set, they must agree."""
    levels = {values[name] for name in ("isolationLevel", "kafka.isolation.level") if name in values}
    if len(levels) > 1:
        raise InvalidConfigError(
            f"options isolationLevel {values['isolationLevel']} and kafka.isolation.level "
            f"{values['kafka.isolation.level']} contradict each other: give one of them"
        )
    return levels.pop() if levels else None


def _bound(values: OptionValues, side: str, default: int) -> Bound:
    """By the connector's precedence: one timestamp, then timestamps of partitions, then offsets."""
    strategy: Literal["error", "latest"] = values.of("startingOffsetsByTimestampStrategy")
    for name in (f"{side}Timestamp", f"{side}OffsetsByTimestamp"):
        if name in values:
            return TimestampBound(timestamps=values[name], strategy=strategy)
    bound: Bound = values.get(f"{side}Offsets", default)
    return bound


def _check_stream(values: OptionValues) -> None:
    for name in ("endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp"):
        if name in values:
            raise InvalidConfigError(f"option {name}: a stream has no end; use a batch query, or Trigger.AvailableNow")
    view = values.of("view")
    if view != "records":
        why = (
            "a key's newest value is known only where the log ends, and a stream has no end" if "latest" in view else ""
        )
        raise InvalidConfigError(
            f"option view is {view!r}: {why or 'a stream has only the view records'}; use a batch query"
        )


def _check_latest(values: OptionValues) -> None:
    if values.of("view").startswith("latest") and values.of("includeControl"):
        raise InvalidConfigError(
            f"option includeControl: a transaction's marker has no key; the view is {values['view']}"
        )


def _check_batch(starting: Bound, ending: Bound) -> None:
    for bound, side, wrong, word in (
        (starting, "starting", LATEST, "latest"),
        (ending, "ending", EARLIEST, "earliest"),
    ):
        if isinstance(bound, TimestampBound):
            continue
        given = {None: bound} if isinstance(bound, int) else bound
        where = next((one for one, value in given.items() if value == wrong), None)
        if wrong in given.values():
            which = "" if where is None else f", topic {where.topic!r}"
            raise InvalidConfigError(
                f"option {side}Offsets{which}: {word} ({wrong}) would leave nothing to read in a batch query"
            )
    start = starting.timestamps if isinstance(starting, TimestampBound) else starting
    end = ending.timestamps if isinstance(ending, TimestampBound) else ending
    if isinstance(starting, TimestampBound) != isinstance(ending, TimestampBound):
        return
    if isinstance(start, int) and isinstance(end, int) and 0 <= end < start:
        raise InvalidConfigError(f"startingTimestamp {start} is above endingTimestamp {end}")
    if not isinstance(start, Mapping) or not isinstance(end, Mapping):
        return
    names = option_name("starting", starting), option_name("ending", ending)
    # A topic with a word matches all that the other option has for it.
    wide = {one.topic for one in (*start, *end) if one.partition == rules.EVERY}
    wide &= {one.topic for one in start} & {one.topic for one in end}
    if differ := [one for one in set(start) ^ set(end) if one.topic not in wide]:
        odd = min(differ)
        which = f"topic {odd.topic!r}" if odd.partition == rules.EVERY else str(odd)
        raise InvalidConfigError(
            f"options {names[0]} and {names[1]} must name the same partitions; only one has {which}"
        )
    for partition in set(start) & set(end):
        if 0 <= end[partition] < start[partition]:
            raise InvalidConfigError(f"{partition}: {names[0]} {start[partition]} is above {names[1]} {end[partition]}")


def _check_brokers(values: OptionValues, paths: Collection[str]) -> None:
    for name in _ONLY_FILES:
        if name in values:
            raise InvalidConfigError(f"option {name} is for directories: a broker hands out what is committed")
    if values.of("view") == "segments" and not paths:
        raise InvalidConfigError("option view is 'segments': brokers do not show their files; name a directory")


def _notes(
    values: Mapping[str, Any], client: ClientConfig | None, properties: Collection[str], *, stream: bool | None
) -> tuple[str, ...]:
    ignored = [name for name in values if OPTIONS[name].use == NOWHERE]
    if client is not None:
        names = [f"kafka.{name}" for name in client.without_effect] + ignored
        notes = [f"these options have no effect: {', '.join(names)}"] if names else []
    else:
        names = sorted(f"kafka.{name}" for name in properties if f"kafka.{name}" != "kafka.isolation.level")
        names += ignored
        names += [name for name in values if OPTIONS[name].use == BROKER and name not in names]
        notes = [f"seglog reads files and connects to no broker: it ignores {', '.join(names)}"] if names else []
    if not stream:
        notes += [f"option {name} is ignored in a batch query" for name in values if OPTIONS[name].use == STREAM]
    return tuple(notes)
