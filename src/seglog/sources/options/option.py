"""A table of options: each row has an option's name, parser and default, and its row in the documentation.

The parsers take an option's name and text. Their `InvalidConfigError` names both, and the values that are allowed.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from seglog.client.client_config import ClientConfig, Use, is_known, names_of_properties
from seglog.core.errors import InvalidConfigError
from seglog.core.suggestions import did_you_mean
from seglog.core.types import MAX_INT32, MAX_INT64, TopicPartition, validate_topic

KAFKA: Final = "kafka."
"""The prefix of properties of Kafka's clients."""


class Option(NamedTuple):
    """One option. ``values``, ``default_text`` and ``doc`` are Markdown for `docs/spark.md`.

    ``use`` says where it has an effect: everywhere, in streams only, for typed keys and values (values), or nowhere
    (options of the Kafka connector that concern its brokers).
    """

    name: str
    parse: Callable[[str, str], Any]
    values: str
    doc: str
    default: Any = None
    default_text: str = ""
    use: str = "any"


class OptionTable(Mapping[str, Option]):
    """Options by name. Spark passes names in lower case; `find` takes them in any case."""

    def __init__(self, *rows: Option) -> None:
        self._rows = {row.name: row for row in rows}
        self._by_lower = {row.name.lower(): row for row in rows}

    def __getitem__(self, name: str) -> Option:
        return self._rows[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def find(self, name: str) -> Option | None:
        return self._by_lower.get(name.lower())

    def unknown(self, name: str) -> InvalidConfigError:
        """The error for an option that does not exist; it suggests the nearest one."""
        return InvalidConfigError(f"unknown option {name!r}{did_you_mean(name, self, cutoff=0.0)}")


def check_properties(properties: Iterable[str]) -> None:
    """Refuse a property of Kafka's clients, named without ``kafka.``, that none of them has."""
    for name in properties:
        if not is_known(name):
            known = [f"{KAFKA}{one}" for one in names_of_properties()]
            raise InvalidConfigError(f"unknown option {f'{KAFKA}{name}'!r}{did_you_mean(f'{KAFKA}{name}', known)}")


def client_config(properties: Mapping[str, str], use: Use) -> ClientConfig:
    """The configuration of a client with properties that `check_properties` has passed."""
    try:
        return ClientConfig.from_mapping(properties, use=use)
    except InvalidConfigError as error:
        raise InvalidConfigError(f"option {KAFKA}{error}") from None


class OptionValues(dict[str, Any]):
    """The values that a user gave, by name of the option; `of` is the default where there is none."""

    def __init__(self, table: OptionTable) -> None:
        super().__init__()
        self._table = table

    def add(self, option: Option, text: str) -> None:
        self[option.name] = option.parse(option.name, text)

    def of(self, name: str) -> Any:
        return self[name] if name in self else self._table[name].default


_PARTITIONS_EXAMPLE: Final = '{"flights": [0, 1]}'


def text(name: str, value: str) -> str:
    if not value.strip():
        raise InvalidConfigError(f"option {name} is empty")
    return value


def word(name: str, value: str) -> str:
    """Text without surrounding spaces."""
    return text(name, value).strip()


def boolean(name: str, value: str) -> bool:
    if value.strip().lower() not in ("true", "false"):
        raise InvalidConfigError(
            f"option {name} is {value!r}: it must be true or false{did_you_mean(value, ('true', 'false'))}"
        )
    return value.strip().lower() == "true"


def number(low: int = 1, high: int = MAX_INT64) -> Callable[[str, str], int]:
    """A whole number from ``low`` to ``high``."""

    def parse(name: str, value: str) -> int:
        if not re.fullmatch(r"\s*-?[0-9]{1,19}\s*", value) or not low <= int(value) <= high:
            bounds = f"from {low} to {high}" if high < MAX_INT64 else f"of at least {low}"
            raise InvalidConfigError(f"option {name} is {value!r}: it must be a whole number {bounds}")
        return int(value)

    return parse


def choice(*words: str) -> Callable[[str, str], str]:
    """One of ``words``, in any case."""

    def parse(name: str, value: str) -> str:
        for word in words:
            if value.strip().lower() == word.lower():
                return word
        raise InvalidConfigError(f"option {name} is {value!r}: {' or '.join(words)}{did_you_mean(value, words)}")

    return parse


_UNITS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


def size(name: str, value: str) -> int:
    """A size in bytes, with Spark's suffixes."""
    match = re.fullmatch(r"([0-9]{1,19})\s*([kmg]?)b?", value.strip().lower())
    if not match or int(match[1]) == 0:
        raise InvalidConfigError(f"option {name} is {value!r}: it must be a size above 0, as in 134217728 or 128m")
    return int(match[1]) * _UNITS[match[2]]


_MILLISECONDS: Final = {
    "": 1, "us": 0.001, "ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000,
}  # fmt: skip


def duration_ms(name: str, value: str) -> int:
    """A duration in milliseconds, in the syntax of Spark's ``JavaUtils.timeStringAs``; the default unit is ms.

    >>> duration_ms("maxTriggerDelay", "15m")
    900000
    """
    match = re.fullmatch(r"([0-9]{1,15})\s*([a-z]*)", value.strip().lower())
    if not match or match[2] not in _MILLISECONDS:
        raise InvalidConfigError(f"option {name} is {value!r}: it must be a time, as in 500ms, 30s, 15m, 2h or 1d")
    return int(int(match[1]) * _MILLISECONDS[match[2]])


def json_object(name: str, value: str, example: str) -> dict[str, Any]:
    try:
        parsed = json.loads(value)
    except (ValueError, RecursionError) as error:
        raise InvalidConfigError(
            f"option {name} is {value[:200]!r}, which is not JSON; write it as in {example}"
        ) from error
    if not isinstance(parsed, dict):
        raise InvalidConfigError(f"option {name} is {value[:200]!r}: it must be a JSON object, as in {example}")
    return parsed


def json_list(name: str, value: str, example: str) -> list[str]:
    """A JSON list of strings that are not empty."""
    try:
        parsed = json.loads(value)
    except (ValueError, RecursionError):
        parsed = None
    if not isinstance(parsed, list) or not parsed or not all(isinstance(each, str) and each for each in parsed):
        raise InvalidConfigError(f"option {name} is {value[:200]!r}: it must be a JSON list, as in {example}")
    return parsed


def topic(name: str, value: str) -> str:
    name_of_topic = word(name, value)
    try:
        return validate_topic(name_of_topic)
    except ValueError as error:
        raise InvalidConfigError(f"option {name}: {error}") from error


def partitions(name: str, value: str) -> tuple[TopicPartition, ...]:
    """``{"topic": [0, 1]}``, sorted, without repetitions. As in the connector, there may be no partition at all."""
    found: set[TopicPartition] = set()
    for each, numbers in json_object(name, value, _PARTITIONS_EXAMPLE).items():
        if not isinstance(numbers, list) or not all(_is_int(partition, 0, MAX_INT32) for partition in numbers):
            raise InvalidConfigError(
                f"option {name}, topic {each!r}: it must have a list of partitions, as in {_PARTITIONS_EXAMPLE}"
            )
        found.update(TopicPartition(topic(name, each), partition) for partition in numbers)
        if not numbers:
            topic(name, each)
    return tuple(sorted(found))


EVERY: Final = -1
"""Stands for all partitions of a topic, in `per_partition`."""


def per_partition(
    name: str, value: str, *, low: int, example: str, words: Mapping[str, int] = MappingProxyType({})
) -> dict[TopicPartition, int]:
    """``{"topic": {"0": number}}``, with offsets or timestamps of at least ``low``.

    A topic may have one of ``words`` instead, in any case; its number is then that of the partition `EVERY`.
    """
    found: dict[TopicPartition, int] = {}
    for each, entries in json_object(name, value, example).items():
        if words and isinstance(entries, str):
            number = words.get(entries.strip().lower())
            if number is None:
                raise InvalidConfigError(
                    f"option {name}, topic {each!r}: {entries!r} is not valid: {' or '.join(words)}, or a value for "
                    f"each partition, as in {example}{did_you_mean(entries, words)}"
                )
            found[TopicPartition(topic(name, each), EVERY)] = number
            continue
        if not isinstance(entries, dict):
            raise InvalidConfigError(
                f"option {name}, topic {each!r}: it must have a value for each partition, as in {example}"
            )
        for key, entry in entries.items():
            partition = int(key) if re.fullmatch(r"[0-9]{1,10}", key) else -1
            if not _is_int(partition, 0, MAX_INT32) or not _is_int(entry, low, MAX_INT64):
                raise InvalidConfigError(
                    f"option {name}, topic {each!r}: {key!r}: {entry!r} is not valid; write it as in {example}"
                )
            found[TopicPartition(topic(name, each), partition)] = entry
    return found


def _is_int(value: object, low: int, high: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def key(name: str, value: str) -> bytes:
    """A record's key: the text itself in UTF-8, or bytes as ``hex:00ff`` or ``base64:AP8=``.

    A key that begins like one of these needs the prefix ``text:``, as in ``text:hex:…``.

    >>> key("keyEquals", "N14228"), key("keyEquals", "hex:00ff"), key("keyEquals", "text:hex:00ff")
    (b'N14228', b'\\x00\\xff', b'hex:00ff')
    """
    form, colon, rest = value.partition(":")
    try:
        if colon and form == "hex":
            return bytes.fromhex(rest)
        if colon and form == "base64":
            return b64decode(rest, validate=True)
    except ValueError as error:
        raise InvalidConfigError(
            f"option {name} is {value!r}: {error}; if it is plain text, write text:{value}"
        ) from error
    return (rest if colon and form == "text" else value).encode()


def keys(name: str, value: str) -> tuple[bytes | None, ...]:
    """A JSON list of keys as `key` takes them; null stands for records without a key."""
    try:
        parsed = json.loads(value)
    except (ValueError, RecursionError):
        parsed = None
    if not isinstance(parsed, list) or not all(each is None or isinstance(each, str) for each in parsed):
        raise InvalidConfigError(
            f'option {name} is {value[:200]!r}: it must be a JSON list of keys, as in ["N14228", "hex:00ff"]'
        )
    return tuple(dict.fromkeys(None if each is None else key(name, each) for each in parsed))


def names(name: str, value: str) -> tuple[str, ...]:
    """``offset, value`` or ``["offset", "value"]``."""
    if value.strip().startswith("["):
        return tuple(json_list(name, value, '["offset", "value"]'))
    found = tuple(each.strip() for each in value.split(",") if each.strip())
    if not found:
        raise InvalidConfigError(f"option {name} is {value!r}: it names no column")
    return found
