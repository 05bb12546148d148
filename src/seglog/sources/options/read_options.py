"""The options of ``spark.read.format("seglog")``: names, values and valid combinations.

Options of Spark's Kafka connector keep their names and meanings (``KafkaSourceProvider.scala``).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from seglog.client.client_config import READ, ClientConfig
from seglog.core.errors import InvalidConfigError
from seglog.core.suggestions import did_you_mean
from seglog.core.types import TopicPartition
from seglog.sources.options import option as text
from seglog.sources.options.option import Option, OptionTable, OptionValues
from seglog.sources.options.topic_pattern import compile_java
from seglog.sources.options.value_options import READ_ROWS
from seglog.values.value_options import ValueOptions, dead_letter_directory, parse_value_options

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


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """The options of one ``load()``, checked.

    ``client`` says how to reach brokers; None: the records come from ``paths``. With both, brokers say what there is,
    and files under ``paths`` are read in their place. ``notes`` are warnings about options without effect. ``columns``,
    ``keys`` and ``until`` are None if they are not set. ``replica`` is ``longest``, a broker's id or a log directory.
    ``permissive``: damage is left out. ``null_timestamps``: a timestamp that is out of range is null.
    """

    paths: tuple[str, ...]
    client: ClientConfig | None
    view: str
    selection: Selection
    starting: Bound
    ending: Bound
    fail_on_data_loss: bool
    include_headers: bool
    min_partitions: int | None
    max_records: int | None
    max_bytes: int
    max_memory: int
    parallelism: int | None
    columns: tuple[str, ...] | None
    keys: tuple[bytes | None, ...] | None
    read_committed: bool
    include_control: bool
    until: str | None
    replica: str
    permissive: bool
    null_timestamps: bool
    formats: ValueOptions
    dead_letters: str | None
    max_offsets_per_trigger: int | None
    min_offsets_per_trigger: int | None
    max_trigger_delay_ms: int
    commit_to_group: str | None
    poll_timeout_ms: int
    offset_retries: int
    offset_retry_ms: int
    notes: tuple[str, ...]

    @property
    def is_divided(self) -> bool:
        """Whether options say how many tasks there are."""
        return self.min_partitions is not None or self.max_records is not None


def _subscribe(name: str, value: str) -> Subscribe:
    topics = [topic.strip() for topic in value.split(",") if topic.strip()]
    if not topics:
        raise InvalidConfigError(f"option {name} is {value!r}: it names no topic")
    return Subscribe(topics=tuple(dict.fromkeys(text.topic(name, topic) for topic in topics)))


def _pattern(name: str, value: str) -> SubscribePattern:
    pattern = text.text(name, value).strip()
    try:
        compile_java(pattern)
    except (re.error, RecursionError) as error:
        raise InvalidConfigError(f"option {name} is {value!r}, which is not a regular expression: {error}") from error
    return SubscribePattern(pattern=pattern)


def _timestamps(name: str, value: str) -> Mapping[TopicPartition, int]:
    example = '{"flights": {"0": 1357000000000}} (milliseconds since 1970)'
    return text.per_partition(name, value, low=0, example=example)


def parse_offsets(name: str, value: str) -> Offsets:
    """``earliest``, ``latest``, ``{"topic": {"0": 12}}`` or ``{"topic": "earliest"}``."""
    word = value.strip().lower()
    if word in _ENDS:
        return _ENDS[word]
    if re.fullmatch(r"[a-z_-]+", word):
        raise InvalidConfigError(
            f"option {name} is {value!r}: earliest or latest, or offsets of partitions{did_you_mean(word, _ENDS)}"
        )
    example = '{"flights": {"0": 1234, "1": -2}} (-2 is earliest, -1 latest), or earliest, or latest'
    return text.per_partition(name, value, low=EARLIEST, example=example, words=_ENDS)


def option_name(side: Literal["starting", "ending"], bound: Bound) -> str:
    """The option that sets such a bound."""
    if not isinstance(bound, TimestampBound):
        return f"{side}Offsets"
    return f"{side}Timestamp" if isinstance(bound.timestamps, int) else f"{side}OffsetsByTimestamp"


_BY_PARTITION: Final = '`{"a": {"0": 1357000000000}}`'
_OFFSETS: Final = '`earliest`, `latest` or `{"a": {"0": 17, "1": -2}, "b": "latest"}`'
_ISOLATION: Final = text.choice("read_uncommitted", "read_committed")
_TRUE_FALSE: Final = "`true`, `false`"
_VIEWS: Final = ("records", "latest", "latest-parts", "batches", "segments", "group-offsets", "transactions", "tasks")
RECORD_VIEWS: Final = frozenset({"records", "latest", "latest-parts"})
"""Views with the columns of a record."""
_MOST_MEMORY: Final = 1 << 30
"""Arrow's arrays of bytes end at 2 GiB."""
OPTIONS: Final = OptionTable(
    Option("path", lambda name, value: (text.text(name, value),),
           "a log directory, a partition's directory, a glob, or several of these, separated by commas",
           "Directories of several brokers count as one set of topics: see "
           "[below](#directories-of-several-brokers).", default=(), default_text="required"),
    Option("paths", lambda name, value: tuple(text.json_list(name, value, '["/a", "/b"]')), "a JSON list",
           "The form in which Spark passes `load([…])`.", default=()),
    Option("subscribe", _subscribe, "`a,b`",
           "Topics. At most one of `subscribe`, `subscribePattern` and `assign` may be set.",
           default_text="every topic except Kafka's internal ones"),
    Option("subscribePattern", _pattern, "a Java regular expression",
           "Topics whose whole name matches."),
    Option("assign", lambda name, value: Assign(partitions=text.partitions(name, value)), '`{"a": [0, 1]}`',
           "Partitions. Without any, as in `{}`, a query has no records."),
    Option("startingOffsets", parse_offsets, _OFFSETS,
           "The first offset to read, of each partition or of all partitions of a topic; -2 is the earliest. A batch "
           "query refuses `latest` and -1.",
           default_text="`earliest`; in streams `latest`"),
    Option("endingOffsets", parse_offsets, _OFFSETS,
           "The offset at which to stop, in the same form; -1 is the latest. Refuses `earliest` and -2. Not in "
           "streams.",
           default=LATEST, default_text="`latest`"),
    Option("startingOffsetsByTimestamp", _timestamps, _BY_PARTITION,
           "Start at the first record with this timestamp (ms) or a later one. Overrides `startingOffsets`."),
    Option("endingOffsetsByTimestamp", _timestamps, _BY_PARTITION,
           "Stop before the first such record. Overrides `endingOffsets`. Not in streams."),
    Option("startingTimestamp", text.number(0), "milliseconds",
           "The same for all partitions. Overrides both."),
    Option("endingTimestamp", text.number(0), "milliseconds",
           "The same for all partitions. Overrides both. Not in streams."),
    Option("startingOffsetsByTimestampStrategy", text.choice("error", "latest"), "`error`, `latest`",
           "What to do if every record is earlier than the timestamp.", default="error"),
    Option("failOnDataLoss", text.boolean, _TRUE_FALSE,
           "`false`: read from the nearest offset that exists, with a warning.", default=True),
    Option("minPartitions", text.number(), "a number",
           "Plan at least about this many tasks, with the same ranges as the connector."),
    Option("maxRecordsPerPartition", text.number(), "a number",
           "Plan tasks of at most this many offsets, with the same ranges as the connector."),
    Option("maxBytesPerPartition", text.size, "bytes, as in `128m`",
           "Split larger tasks, so that one large partition keeps all cores busy: in directories at batch boundaries "
           "that the sparse index knows, through brokers by an estimate from the first batches.",
           default=128 << 20, default_text="`128m`"),
    Option("parallelism", text.number(), "a number",
           "How many tasks run at once. Large partitions are split to use that many cores; if there are more than four "
           "partitions per core, or more than 32, small ones share a task. seglog sees `--conf`, `--master`, "
           "`--num-executors` and similar flags, but not `spark-defaults.conf`; if the number is only set there, it "
           "plans tasks of 32 MiB.",
           default_text="from the driver's command line"),
    Option("includeHeaders", text.boolean, _TRUE_FALSE,
           "Add the column `headers`.", default=False),
    Option("columns", text.names, "`key, offset` or a JSON list",
           "Only these are decoded; also `isTombstone` (the record has no value), `isControl, isTransactional, "
           'producerId, producerEpoch, sequence, leaderEpoch`. `.schema("offset bigint, value binary")` does the same.',
           default_text="the seven columns of the connector"),
    Option("keyEquals", lambda name, value: (text.key(name, value),), "text, `hex:…` or `base64:…`",
           "Only records with this key. The worker compares keys before it copies a record, so others never leave it."),
    Option("keyIn", text.keys, "a JSON list of keys",
           "Only records with one of these keys; `null` stands for no key."),
    Option("isolationLevel", _ISOLATION, "`read_uncommitted`, `read_committed`",
           "`read_committed` reads up to the last stable offset, without aborted transactions.",
           default_text="`read_uncommitted`"),
    Option("kafka.isolation.level", _ISOLATION, "the same",
           "The connector's name for `isolationLevel`."),
    Option("includeControl", text.boolean, _TRUE_FALSE,
           "Return transaction markers as rows.", default=False),
    Option("until", text.choice("highWatermark", "logEnd"), "`highWatermark`, `logEnd`",
           "Where the log ends for this query. A warning names the file with the high watermark: `seglog.watermarks` "
           "of a running `seglog serve`, which is never stale, or `replication-offset-checkpoint`, which is up to five "
           "seconds old.",
           default_text="`highWatermark` if the directory is in use or there are several replicas; else `logEnd`"),
    Option("replica", text.text, "`longest`, a broker's id, a log directory",
           "Which of several replicas to read; `longest` is the one that can be read the furthest.", default="longest"),
    Option("mode", text.choice("failFast", "permissive"), "`failFast`, `permissive`",
           "`failFast`: damage ends the query with file, position, offset and reason, and so does a timestamp that is "
           "out of range. `permissive`: damage is skipped and such a timestamp is null; both are counted and logged.",
           default="failFast"),
    *READ_ROWS,
    Option("deadLetter", lambda _, value: dead_letter_directory(value), "a directory's absolute path",
           "With `mode=permissive`: records whose key or value cannot be decoded are also written there.",
           use="values"),
    Option("view", text.choice(*_VIEWS), ", ".join(f"`{view}`" for view in _VIEWS),
           "See [below](#views). Not in streams.", default="records"),
    Option("maxMemoryPerTask", text.size, "bytes, as in `128m`",
           "With `view=latest`: beyond this, a task spills to `SPARK_LOCAL_DIRS`, or to the directory for temporary "
           "files. At most `1g`.",
           default=128 << 20, default_text="`128m`"),
    Option("maxOffsetsPerTrigger", text.number(), "a number",
           "At most this many offsets in a micro-batch.", use="stream"),
    Option("minOffsetsPerTrigger", text.number(), "a number",
           "Wait until there are this many new offsets …", use="stream"),
    Option("maxTriggerDelay", text.duration_ms, "a duration, as in `15m`",
           "… but not longer than this.", default=15 * 60 * 1000, default_text="`15m`", use="stream"),
    Option("kafka.bootstrap.servers", text.word, "`host:port, …`",
           "Read through these brokers instead of from directories; with `path`, "
           "[from both](#through-brokers-with-mounted-files).", use="broker"),
    Option("commitToGroup", text.word, "a group id",
           "Commit the offsets of finished micro-batches to this consumer group, so that lag tools see the query. "
           "Spark's checkpoint alone decides where the query continues.", use="broker"),
    Option("kafkaConsumer.pollTimeoutMs", text.number(), "milliseconds",
           "How long a task waits for a partition without a leader, or for a broker that does not answer.",
           default=120_000, default_text="120000", use="broker"),
    Option("fetchOffset.numRetries", text.number(0), "a number",
           "How often the driver asks again for offsets while a leader is missing …", default=3, default_text="3",
           use="broker"),
    Option("fetchOffset.retryIntervalMs", text.number(0), "milliseconds",
           "… and how long it waits before each attempt.", default=1_000, default_text="1000", use="broker"),
    Option("groupIdPrefix", text.text, "", "", use="none"),
)  # fmt: skip
"""Every option of the source. Those of Kafka's client (``kafka.*``) have no effect on files."""
_ONLY_FILES: Final = ("until", "replica")
"""Options that choose among files. A broker hands out what is committed."""

_SERVERS: Final = "bootstrap.servers"
_SPARKS_OWN: Final = frozenset({"owner", "provider", "location", "comment", "external", "is_managed_location"})
"""Options that Spark adds in ``CREATE TABLE … USING seglog``."""
_REFUSED: Final = {
    "kafka.auto.offset.reset": "set option startingOffsets to earliest or latest",
    "kafka.key.deserializer": "keys are bytes: cast the column",
    "kafka.value.deserializer": "values are bytes: cast the column",
    "kafka.enable.auto.commit": "Spark keeps the offsets",
    "kafka.interceptor.classes": "records are returned as they are in the files",
}
"""The connector refuses these too, so that a query means the same in both."""
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
    if _SERVERS in properties:
        client = text.client_config(properties, READ)
        _check_brokers(values, paths)
    elif not paths:
        raise InvalidConfigError(
            "option path is missing: set it to a log directory, a partition's directory or a glob; or set "
            f"kafka.{_SERVERS} to read through brokers" + ("" if options else _HINT)
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
    return ReadOptions(
        paths=paths,
        client=client,
        view=values.of("view"),
        selection=selection,
        starting=starting,
        ending=ending,
        fail_on_data_loss=values.of("failOnDataLoss"),
        include_headers=values.of("includeHeaders"),
        min_partitions=values.of("minPartitions"),
        max_records=values.of("maxRecordsPerPartition"),
        max_bytes=values.of("maxBytesPerPartition"),
        max_memory=values.of("maxMemoryPerTask"),
        parallelism=values.of("parallelism"),
        columns=values.of("columns"),
        keys=keys,
        read_committed=_isolation(values) == "read_committed",
        include_control=values.of("includeControl"),
        until=values.of("until"),
        replica=values.of("replica"),
        permissive=values.of("mode") == "permissive",
        null_timestamps=values.of("mode") == "permissive",
        formats=_formats(values, options),
        dead_letters=values.of("deadLetter"),
        max_offsets_per_trigger=most,
        min_offsets_per_trigger=least,
        max_trigger_delay_ms=values.of("maxTriggerDelay"),
        commit_to_group=values.of("commitToGroup"),
        poll_timeout_ms=values.of("kafkaConsumer.pollTimeoutMs"),
        offset_retries=values.of("fetchOffset.numRetries"),
        offset_retry_ms=values.of("fetchOffset.retryIntervalMs"),
        notes=_notes(values, client, properties, stream=stream),
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
        if (option := OPTIONS.find(key)) is not None:
            values.add(option, value)
        elif lower.startswith("kafka."):
            pass
        elif lower not in _SPARKS_OWN and not lower.startswith("option."):
            raise OPTIONS.unknown(key)
    text.check_properties(properties)
    return values, properties


def _formats(values: OptionValues, options: Mapping[str, str]) -> ValueOptions:
    formats = parse_value_options(options)
    if "deadLetter" in values:
        if not formats.columns:
            raise InvalidConfigError("option deadLetter has no effect without valueFormat or keyFormat")
        if values.of("mode") != "permissive":
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
    if values.of("maxMemoryPerTask") > _MOST_MEMORY:
        raise InvalidConfigError(f"option maxMemoryPerTask is {values['maxMemoryPerTask']}: at most 1g")
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
    wide = {one.topic for one in (*start, *end) if one.partition == text.EVERY}
    wide &= {one.topic for one in start} & {one.topic for one in end}
    if differ := [one for one in set(start) ^ set(end) if one.topic not in wide]:
        odd = min(differ)
        which = f"topic {odd.topic!r}" if odd.partition == text.EVERY else str(odd)
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
    ignored = [name for name in values if OPTIONS[name].use == "none"]
    if client is not None:
        names = [f"kafka.{name}" for name in client.without_effect] + ignored
        notes = [f"these options have no effect: {', '.join(names)}"] if names else []
    else:
        names = sorted(f"kafka.{name}" for name in properties if f"kafka.{name}" != "kafka.isolation.level")
        names += ignored
        names += [name for name in values if OPTIONS[name].use == "broker" and name not in names]
        notes = [f"seglog reads files and connects to no broker: it ignores {', '.join(names)}"] if names else []
    if not stream:
        notes += [f"option {name} is ignored in a batch query" for name in values if OPTIONS[name].use == "stream"]
    return tuple(notes)
