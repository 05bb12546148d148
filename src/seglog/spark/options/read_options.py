"""The options of ``spark.read.format("seglog")``: names, values and valid combinations.

Options of Spark's Kafka connector keep their names and meanings (``KafkaSourceProvider.scala``). Spark passes option
names in lower case; messages use the spelling of the table below.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from seglog.core.errors import InvalidConfigError
from seglog.core.types import TopicPartition
from seglog.spark.options import values as text
from seglog.spark.options.bounds import EARLIEST, LATEST, Bound, TimestampBound, option_name, parse_offsets
from seglog.spark.options.topic_pattern import compile_java

DEFAULT_MAX_BYTES: Final = 128 << 20
DEFAULT_MAX_TRIGGER_DELAY_MS: Final = 15 * 60 * 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscribe:
    """These topics, whole."""

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
"""None: every topic there is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """The options of one ``load()``, checked.

    ``notes`` are warnings about options that have no effect here. ``columns``, ``keys`` and ``until`` are None if they
    are not set; ``replica`` is ``longest``, a broker's id or a log directory.
    """

    paths: tuple[str, ...]
    view: str = "records"
    selection: Selection = None
    starting: Bound = EARLIEST
    ending: Bound = LATEST
    fail_on_data_loss: bool = True
    include_headers: bool = False
    min_partitions: int | None = None
    max_records: int | None = None
    max_bytes: int = DEFAULT_MAX_BYTES
    parallelism: int | None = None
    columns: tuple[str, ...] | None = None
    keys: tuple[bytes | None, ...] | None = None
    read_committed: bool = False
    include_control: bool = False
    until: str | None = None
    replica: str = "longest"
    permissive: bool = False
    max_offsets_per_trigger: int | None = None
    min_offsets_per_trigger: int | None = None
    max_trigger_delay_ms: int = DEFAULT_MAX_TRIGGER_DELAY_MS
    notes: tuple[str, ...] = ()


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
    return text.per_partition(name, value, low=0, example=text.TIMESTAMPS_EXAMPLE)


OPTIONS: Final[Mapping[str, Callable[[str, str], Any]]] = {
    "path": lambda name, value: (text.text(name, value),),
    "paths": lambda name, value: tuple(text.json_list(name, value, '["/data/a", "/data/b"]')),
    "view": text.choice("records", "batches", "segments", "group-offsets"),
    "subscribe": _subscribe,
    "subscribePattern": _pattern,
    "assign": lambda name, value: Assign(partitions=text.partitions(name, value)),
    "startingOffsets": parse_offsets,
    "endingOffsets": parse_offsets,
    "startingOffsetsByTimestamp": _timestamps,
    "endingOffsetsByTimestamp": _timestamps,
    "startingTimestamp": text.number(0),
    "endingTimestamp": text.number(0),
    "startingOffsetsByTimestampStrategy": text.choice("error", "latest"),
    "failOnDataLoss": text.boolean,
    "includeHeaders": text.boolean,
    "minPartitions": text.number(),
    "maxRecordsPerPartition": text.number(),
    "maxBytesPerPartition": text.size,
    "parallelism": text.number(),
    "columns": text.names,
    "keyEquals": lambda name, value: (text.key(name, value),),
    "keyIn": text.keys,
    "isolationLevel": text.choice("read_uncommitted", "read_committed"),
    "kafka.isolation.level": text.choice("read_uncommitted", "read_committed"),
    "includeControl": text.boolean,
    "until": text.choice("highWatermark", "logEnd"),
    "replica": text.text,
    "mode": text.choice("failFast", "permissive"),
    "maxOffsetsPerTrigger": text.number(),
    "minOffsetsPerTrigger": text.number(),
    "maxTriggerDelay": text.duration_ms,
    "groupIdPrefix": text.text,
    "kafkaConsumer.pollTimeoutMs": text.text,
    "fetchOffset.numRetries": text.text,
    "fetchOffset.retryIntervalMs": text.text,
}
"""Every option with its parser. Spark passes ``load([…])`` as ``paths``."""

_SPELLING: Final = {name.lower(): name for name in OPTIONS}
_SPARKS_OWN: Final = frozenset({"owner", "provider", "location", "comment", "external", "is_managed_location"})
"""Spark adds these to the options of ``CREATE TABLE … USING seglog``."""
_OF_STREAMS: Final = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay")
_OF_BROKERS: Final = ("groupIdPrefix", "kafkaConsumer.pollTimeoutMs", "fetchOffset.numRetries",
                      "fetchOffset.retryIntervalMs")  # fmt: skip
"""Options of the connector that are about fetching from a broker."""
_REFUSED: Final = {
    "kafka.auto.offset.reset": "set option startingOffsets to earliest or latest",
    "kafka.key.deserializer": "keys are bytes: cast the column",
    "kafka.value.deserializer": "values are bytes: cast the column",
    "kafka.enable.auto.commit": "Spark keeps the offsets",
    "kafka.interceptor.classes": "records are returned as they are in the files",
}
"""The connector refuses these too, so that a query means the same in both."""


_HINT: Final = " (a SQL table keeps its options only if it is created without a list of columns)"


def parse_options(options: Mapping[str, str], *, stream: bool | None = False) -> ReadOptions:
    """Check all options together; an `InvalidConfigError` names the option, its value and the allowed values.

    A ``stream`` refuses options about ends and starts at LATEST by default. A batch query refuses a start at the latest
    offset and an end at the earliest, and notes options of streams. ``stream=None`` means not known yet, as when Spark
    asks for the schema: then only options that both refuse are refused.

    >>> parse_options({"path": "/data", "subscribe": "flights", "startingOffsets": "earliest"}).selection
    Subscribe(topics=('flights',))
    >>> parse_options({"path": "/data", "startingOffset": "earliest"})
    Traceback (most recent call last):
        ...
    seglog.core.errors.InvalidConfigError: unknown option 'startingOffset'; did you mean startingOffsets?
    """
    values, brokers = _values(options)
    paths = values.get("path", ()) + values.get("paths", ())
    if not paths:
        raise InvalidConfigError(
            "option path is missing: set it to a log directory, a partition's directory or a glob"
            + ("" if options else _HINT)
        )
    selection = _only_one(values, "subscribe", "subscribePattern", "assign")
    keys = _only_one(values, "keyEquals", "keyIn")
    starting = _bound(values, "starting", LATEST if stream else EARLIEST)
    ending = _bound(values, "ending", LATEST)
    if stream:
        _check_stream(values)
    elif stream is False:
        _check_batch(starting, ending)
    most, least = values.get("maxOffsetsPerTrigger"), values.get("minOffsetsPerTrigger")
    if most is not None and least is not None and least > most:
        raise InvalidConfigError(f"option minOffsetsPerTrigger {least} is above maxOffsetsPerTrigger {most}")
    return ReadOptions(
        paths=paths,
        view=values.get("view", "records"),
        selection=selection,
        starting=starting,
        ending=ending,
        fail_on_data_loss=values.get("failOnDataLoss", True),
        include_headers=values.get("includeHeaders", False),
        min_partitions=values.get("minPartitions"),
        max_records=values.get("maxRecordsPerPartition"),
        max_bytes=values.get("maxBytesPerPartition", DEFAULT_MAX_BYTES),
        parallelism=values.get("parallelism"),
        columns=values.get("columns"),
        keys=keys,
        read_committed=_isolation(values) == "read_committed",
        include_control=values.get("includeControl", False),
        until=values.get("until"),
        replica=values.get("replica", "longest"),
        permissive=values.get("mode") == "permissive",
        max_offsets_per_trigger=most,
        min_offsets_per_trigger=least,
        max_trigger_delay_ms=values.get("maxTriggerDelay", DEFAULT_MAX_TRIGGER_DELAY_MS),
        notes=_notes(values, brokers, stream=stream),
    )


def _values(options: Mapping[str, str]) -> tuple[dict[str, Any], list[str]]:
    """The parsed options by name, and the names of options for a Kafka client."""
    values: dict[str, Any] = {}
    brokers = []
    for key, value in options.items():
        lower = key.lower()
        if lower in _REFUSED:
            raise InvalidConfigError(f"option {key} is not supported: {_REFUSED[lower]}")
        if lower in _SPELLING:
            name = _SPELLING[lower]
            values[name] = OPTIONS[name](name, value)
        elif lower.startswith("kafka."):
            brokers.append(key)
        elif lower not in _SPARKS_OWN and not lower.startswith("option."):
            raise text.unknown(key, _SPELLING)
    return values, sorted(brokers)


def _only_one(values: Mapping[str, Any], *names: str) -> Any:
    given = [name for name in names if name in values]
    if len(given) > 1:
        raise InvalidConfigError(f"options {' and '.join(given)} exclude each other: give one of them")
    return values[given[0]] if given else None


def _isolation(values: Mapping[str, Any]) -> str | None:
    """By our name or the connector's; both may be given if they agree."""
    levels = {values[name] for name in ("isolationLevel", "kafka.isolation.level") if name in values}
    if len(levels) > 1:
        raise InvalidConfigError(
            f"options isolationLevel {values['isolationLevel']} and kafka.isolation.level "
            f"{values['kafka.isolation.level']} contradict each other: give one of them"
        )
    return levels.pop() if levels else None


def _bound(values: Mapping[str, Any], side: str, default: int) -> Bound:
    """By the connector's precedence: one timestamp, then timestamps of partitions, then offsets."""
    strategy: Literal["error", "latest"] = values.get("startingOffsetsByTimestampStrategy", "error")
    for name in (f"{side}Timestamp", f"{side}OffsetsByTimestamp"):
        if name in values:
            return TimestampBound(timestamps=values[name], strategy=strategy)
    bound: Bound = values.get(f"{side}Offsets", default)
    return bound


def _check_stream(values: Mapping[str, Any]) -> None:
    for name in ("endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp"):
        if name in values:
            raise InvalidConfigError(f"option {name}: a stream has no end; use a batch query, or Trigger.AvailableNow")
    if values.get("view", "records") != "records":
        raise InvalidConfigError(
            f"option view is {values['view']!r}: a stream has only the view records; use a batch query"
        )


def _check_batch(starting: Bound, ending: Bound) -> None:
    for bound, side, wrong, word in (
        (starting, "starting", LATEST, "latest"),
        (ending, "ending", EARLIEST, "earliest"),
    ):
        if isinstance(bound, TimestampBound):
            continue
        if wrong in ({bound} if isinstance(bound, int) else set(bound.values())):
            raise InvalidConfigError(
                f"option {side}Offsets: {word} ({wrong}) would leave nothing to read in a batch query"
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
    if set(start) != set(end):
        odd = min(set(start) ^ set(end))
        raise InvalidConfigError(f"options {names[0]} and {names[1]} must name the same partitions; only one has {odd}")
    for partition in start:
        if 0 <= end[partition] < start[partition]:
            raise InvalidConfigError(f"{partition}: {names[0]} {start[partition]} is above {names[1]} {end[partition]}")


def _notes(values: Mapping[str, Any], brokers: list[str], *, stream: bool | None) -> tuple[str, ...]:
    brokers = brokers + [name for name in _OF_BROKERS if name in values]
    notes = [f"seglog reads files and connects to no broker: it ignores {', '.join(brokers)}"] if brokers else []
    if not stream:
        notes += [f"option {name} is ignored in a batch query" for name in _OF_STREAMS if name in values]
    return tuple(notes)
