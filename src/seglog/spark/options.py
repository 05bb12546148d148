"""What ``spark.read.format("seglog").option(…)`` takes: names, values and the ways in which they may be combined.

Names and meanings are those of Spark's Kafka connector (``KafkaSourceProvider.scala``) where it has them. Spark hands
options over with their names in lower case; messages use the spelling of the table below.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final

from seglog.core.errors import InvalidConfigError
from seglog.core.types import MAX_INT32, MAX_INT64, TopicPartition, validate_topic

LATEST: Final = -1
EARLIEST: Final = -2
"""The numbers that stand for an offset which is looked up, in options as in the protocol."""

DEFAULT_MAX_BYTES: Final = 128 << 20

Offsets = int | Mapping[TopicPartition, int]
"""EARLIEST, LATEST, or an offset for each partition (in which -2 and -1 are allowed as well)."""


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
    """The options of one ``load()``, checked; ``ignored`` are the ``kafka.*`` ones, of no use to a reader of files."""

    paths: tuple[str, ...]
    selection: Selection = None
    starting: Offsets = EARLIEST
    ending: Offsets = LATEST
    include_headers: bool = False
    min_partitions: int | None = None
    max_bytes: int = DEFAULT_MAX_BYTES
    ignored: tuple[str, ...] = ()


def _text(name: str, value: str) -> str:
    if not value.strip():
        raise InvalidConfigError(f"option {name} is empty")
    return value


def _boolean(name: str, value: str) -> bool:
    if value.lower() not in ("true", "false"):
        raise InvalidConfigError(f"option {name} is {value!r}: true or false")
    return value.lower() == "true"


def _positive(name: str, value: str) -> int:
    if not re.fullmatch(r"[0-9]{1,19}", value) or not 0 < int(value) <= MAX_INT64:
        raise InvalidConfigError(f"option {name} is {value!r}: a whole number above 0")
    return int(value)


_UNITS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


def _size(name: str, value: str) -> int:
    match = re.fullmatch(r"([0-9]{1,19})\s*([kmg]?)b?", value.strip().lower())
    if not match or int(match[1]) == 0:
        raise InvalidConfigError(f"option {name} is {value!r}: bytes, as in 134217728 or 128m, above 0")
    return int(match[1]) * _UNITS[match[2]]


def _json(name: str, value: str, example: str) -> dict[str, Any]:
    try:
        parsed = json.loads(value)
    except (ValueError, RecursionError) as error:
        raise InvalidConfigError(f"option {name} is {value!r}: not JSON as in {example}") from error
    if not isinstance(parsed, dict):
        raise InvalidConfigError(f"option {name} is {value!r}: a JSON object as in {example}")
    return parsed


def _topic(name: str, topic: str) -> str:
    try:
        return validate_topic(topic)
    except ValueError as error:
        raise InvalidConfigError(f"option {name}: {error}") from error


def _paths(name: str, value: str) -> tuple[str, ...]:
    try:
        parsed = json.loads(value)
    except (ValueError, RecursionError):
        parsed = None
    if not isinstance(parsed, list) or not parsed or not all(isinstance(path, str) and path for path in parsed):
        raise InvalidConfigError(f'option {name} is {value!r}: a JSON list of paths, as in ["/data/a", "/data/b"]')
    return tuple(parsed)


def _subscribe(name: str, value: str) -> Subscribe:
    topics = [topic.strip() for topic in value.split(",") if topic.strip()]
    if not topics:
        raise InvalidConfigError(f"option {name} is {value!r}: no topic in it")
    return Subscribe(topics=tuple(dict.fromkeys(_topic(name, topic) for topic in topics)))


def _pattern(name: str, value: str) -> SubscribePattern:
    try:
        re.compile(_text(name, value))
    except re.error as error:
        raise InvalidConfigError(f"option {name} is {value!r}: no regular expression, {error}") from error
    return SubscribePattern(pattern=value)


def _assign(name: str, value: str) -> Assign:
    example = '{"flights": [0, 1]}'
    partitions: list[TopicPartition] = []
    for topic, numbers in _json(name, value, example).items():
        if not isinstance(numbers, list) or not all(_is_int(number, 0, MAX_INT32) for number in numbers):
            raise InvalidConfigError(f"option {name}, topic {topic!r}: a list of partitions as in {example}")
        partitions.extend(TopicPartition(_topic(name, topic), number) for number in numbers)
    if not partitions:
        raise InvalidConfigError(f"option {name} is {value!r}: no partition in it")
    return Assign(partitions=tuple(sorted(set(partitions))))


def _offsets(name: str, value: str) -> Offsets:
    if value.lower() in ("earliest", "latest"):
        return EARLIEST if value.lower() == "earliest" else LATEST
    example = '{"flights": {"0": 1234, "1": -2}} (-2 is earliest, -1 latest), or earliest, or latest'
    offsets: dict[TopicPartition, int] = {}
    for topic, partitions in _json(name, value, example).items():
        if not isinstance(partitions, dict):
            raise InvalidConfigError(f"option {name}, topic {topic!r}: offsets of partitions as in {example}")
        for number, offset in partitions.items():
            partition = int(number) if re.fullmatch(r"[0-9]{1,10}", number) else -1
            if not _is_int(partition, 0, MAX_INT32) or not _is_int(offset, EARLIEST, MAX_INT64):
                entry = f"{number!r}: {offset!r}"
                raise InvalidConfigError(f"option {name}, topic {topic!r}: {entry} is not as in {example}")
            offsets[TopicPartition(_topic(name, topic), partition)] = offset
    return offsets


def _is_int(value: object, low: int, high: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


_TABLE: Final[Mapping[str, Callable[[str, str], Any]]] = {
    "path": lambda name, value: (_text(name, value),),
    "paths": _paths,
    "subscribe": _subscribe,
    "subscribePattern": _pattern,
    "assign": _assign,
    "startingOffsets": _offsets,
    "endingOffsets": _offsets,
    "includeHeaders": _boolean,
    "minPartitions": _positive,
    "maxBytesPerPartition": _size,
}
"""Every option there is, with what makes a value of its text. ``paths`` is how Spark hands over ``load([…])``."""

_SPELLING: Final = {name.lower(): name for name in _TABLE}
_SPARKS_OWN: Final = frozenset({"owner", "provider", "location", "comment", "external", "is_managed_location"})
"""What Spark adds to the options of ``CREATE TABLE … USING seglog``."""


def parse_options(options: Mapping[str, str]) -> ReadOptions:
    """Check all options together; `InvalidConfigError` names the option, its value and what may stand there.

    >>> parse_options({"path": "/data", "subscribe": "flights", "startingOffsets": "earliest"}).selection
    Subscribe(topics=('flights',))
    >>> parse_options({"path": "/data", "startingOffset": "earliest"})
    Traceback (most recent call last):
        ...
    seglog.core.errors.InvalidConfigError: unknown option 'startingOffset'; did you mean startingOffsets?
    """
    values: dict[str, Any] = {}
    ignored = []
    for key, text in options.items():
        lower = key.lower()
        if lower.startswith("kafka."):
            ignored.append(key)
        elif lower in _SPELLING:
            name = _SPELLING[lower]
            values[name] = _TABLE[name](name, text)
        elif lower not in _SPARKS_OWN and not lower.startswith("option."):
            raise InvalidConfigError(_unknown(key))
    selections = [name for name in ("subscribe", "subscribePattern", "assign") if name in values]
    if len(selections) > 1:
        raise InvalidConfigError(
            f"options {' and '.join(selections)} exclude each other: give one, or none for all topics"
        )
    paths = values.get("path", ()) + values.get("paths", ())
    if not paths:
        raise InvalidConfigError(
            "option path is missing: a log directory, a partition's directory, or a glob" + _hint(options)
        )
    starting, ending = values.get("startingOffsets", EARLIEST), values.get("endingOffsets", LATEST)
    if LATEST in (starting if isinstance(starting, dict) else {0: starting}).values():
        raise InvalidConfigError("option startingOffsets: latest (-1) would leave nothing to read in a batch query")
    if EARLIEST in (ending if isinstance(ending, dict) else {0: ending}).values():
        raise InvalidConfigError("option endingOffsets: earliest (-2) would leave nothing to read in a batch query")
    return ReadOptions(
        paths=paths,
        selection=values[selections[0]] if selections else None,
        starting=starting,
        ending=ending,
        include_headers=values.get("includeHeaders", False),
        min_partitions=values.get("minPartitions"),
        max_bytes=values.get("maxBytesPerPartition", DEFAULT_MAX_BYTES),
        ignored=tuple(sorted(ignored)),
    )


def _hint(options: Mapping[str, str]) -> str:
    # Spark 4.3 makes the reader of a catalog's table with no options at all; of a temporary view it has them.
    return "" if options else " (instead of CREATE TABLE … USING seglog make a TEMPORARY VIEW: Spark keeps its options)"


def _unknown(key: str) -> str:
    nearest = get_close_matches(key.lower(), _SPELLING, n=1, cutoff=0.0)
    return f"unknown option {key!r}; did you mean {_SPELLING[nearest[0]]}?"
