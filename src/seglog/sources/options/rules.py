"""Rules of options that `seglog.core.settings` does not have: topics, partitions, keys, columns, Kafka's properties.

Their parsers raise `UnfitError`, whose text goes on after "option NAME".
"""

from __future__ import annotations

import json
import re
from base64 import b64decode
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final

from seglog.client.client_config import WITHOUT_EFFECT, ClientConfig, Use, is_known, names_of_properties
from seglog.core.errors import InvalidConfigError
from seglog.core.settings import Options, Parsed, UnfitError, not_empty
from seglog.core.suggestions import did_you_mean
from seglog.core.types import MAX_INT32, MAX_INT64, TopicPartition, validate_topic

KAFKA: Final = "kafka."
"""The prefix of properties of Kafka's clients."""
SERVERS: Final = "bootstrap.servers"
_PARTITIONS_EXAMPLE: Final = '{"flights": [0, 1]}'
_MOST_SHOWN: Final = 200


def parse_json(value: str) -> Any:
    """None if it is not JSON."""
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return None


def json_object(value: str, example: str) -> dict[str, Any]:
    shown = repr(value[:_MOST_SHOWN])
    try:
        parsed = json.loads(value)
    except (ValueError, RecursionError) as error:
        raise UnfitError(f" is {shown}, which is not JSON; write it as in {example}") from error
    if not isinstance(parsed, dict):
        raise UnfitError(f" is {shown}: it must be a JSON object, as in {example}")
    return parsed


def json_list(value: str, example: str) -> list[str]:
    """A JSON list of strings that are not empty."""
    parsed = parse_json(value)
    if not isinstance(parsed, list) or not parsed or not all(isinstance(each, str) and each for each in parsed):
        raise UnfitError(f" is {value[:_MOST_SHOWN]!r}: it must be a JSON list, as in {example}")
    return parsed


def path(value: str) -> str:
    """A path, whose name may begin or end with white space."""
    not_empty(value)
    return value


def topic(value: str) -> str:
    try:
        return validate_topic(not_empty(value))
    except UnfitError:
        raise
    except ValueError as error:
        raise UnfitError(f": {error}") from error


def partitions(value: str) -> tuple[TopicPartition, ...]:
    """``{"topic": [0, 1]}``, sorted, without repetitions. As in the connector, there may be no partition at all."""
    found: set[TopicPartition] = set()
    for each, numbers in json_object(value, _PARTITIONS_EXAMPLE).items():
        if not isinstance(numbers, list) or not all(_is_int(partition, 0, MAX_INT32) for partition in numbers):
            raise UnfitError(f", topic {each!r}: it must have a list of partitions, as in {_PARTITIONS_EXAMPLE}")
        name = topic(each)
        found.update(TopicPartition(name, partition) for partition in numbers)
    return tuple(sorted(found))


EVERY: Final = -1
"""Stands for all partitions of a topic, in `per_partition`."""


def per_partition(
    value: str, *, low: int, example: str, words: Mapping[str, int] = MappingProxyType({})
) -> dict[TopicPartition, int]:
    """``{"topic": {"0": number}}``, with offsets or timestamps of at least ``low``.

    A topic may have one of ``words`` instead, in any case; its number is then that of the partition `EVERY`.
    """
    found: dict[TopicPartition, int] = {}
    for each, entries in json_object(value, example).items():
        where = f", topic {each!r}: "
        if words and isinstance(entries, str):
            number = words.get(entries.strip().lower())
            if number is None:
                raise UnfitError(
                    f"{where}{entries!r} is not valid: {' or '.join(words)}, or a value for each partition, as in "
                    f"{example}{did_you_mean(entries, words)}"
                )
            found[TopicPartition(topic(each), EVERY)] = number
            continue
        if not isinstance(entries, dict):
            raise UnfitError(f"{where}it must have a value for each partition, as in {example}")
        for key, entry in entries.items():
            partition = int(key) if re.fullmatch(r"[0-9]{1,10}", key) else -1
            if not _is_int(partition, 0, MAX_INT32) or not _is_int(entry, low, MAX_INT64):
                raise UnfitError(f"{where}{key!r}: {entry!r} is not valid; write it as in {example}")
            found[TopicPartition(topic(each), partition)] = entry
    return found


def _is_int(value: object, low: int, high: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def key(value: str) -> bytes:
    """A record's key: the text itself in UTF-8, or bytes as ``hex:00ff`` or ``base64:AP8=``.

    A key that begins like one of these needs the prefix ``text:``, as in ``text:hex:…``.

    >>> key("N14228"), key("hex:00ff"), key("text:hex:00ff")
    (b'N14228', b'\\x00\\xff', b'hex:00ff')
    """
    form, colon, rest = value.partition(":")
    try:
        if colon and form == "hex":
            return bytes.fromhex(rest)
        if colon and form == "base64":
            return b64decode(rest, validate=True)
    except ValueError as error:
        raise UnfitError(f" is {value!r}: {error}; if it is plain text, write text:{value}") from error
    return (rest if colon and form == "text" else value).encode()


def keys(value: str) -> tuple[bytes | None, ...]:
    """A JSON list of keys as `key` takes them; null stands for records without a key."""
    parsed = parse_json(value)
    if not isinstance(parsed, list) or not all(each is None or isinstance(each, str) for each in parsed):
        raise UnfitError(f' is {value[:_MOST_SHOWN]!r}: it must be a JSON list of keys, as in ["N14228", "hex:00ff"]')
    return tuple(dict.fromkeys(None if each is None else key(each) for each in parsed))


def names(value: str) -> tuple[str, ...]:
    """``offset, value`` or ``["offset", "value"]``."""
    if value.strip().startswith("["):
        return tuple(json_list(value, '["offset", "value"]'))
    found = tuple(each.strip() for each in value.split(",") if each.strip())
    if not found:
        raise UnfitError(f" is {value!r}: it names no column")
    return found


BROKERS: Final = Parsed("`host:port, …`", not_empty)


def check_properties(properties: Iterable[str]) -> None:
    """Refuse a property of Kafka's clients, named without ``kafka.``, that none of them has."""
    for name in properties:
        if not is_known(name):
            whole = f"{KAFKA}{name}"
            known = ([f"{KAFKA}{one}" for one in names] for names in (names_of_properties(), sorted(WITHOUT_EFFECT)))
            near = next(filter(None, (did_you_mean(whole, each) for each in known)), "")
            raise InvalidConfigError(f"unknown option {whole!r}{near}")


_OTHER_NAMES: Final = {"topics": "subscribe"}
"""Names of other interfaces for options that are spelled otherwise."""


def unknown_option(name: str, options: Options, refused: Mapping[str, str]) -> InvalidConfigError:
    """The error for an option that does not exist, perhaps a property of Kafka's clients: ``refused``
    says for some of those what to do instead."""
    whole = f"{KAFKA}{name.lower()}"
    if whole in refused:
        return InvalidConfigError(f"unknown option {name!r}: {refused[whole]}")
    meant = whole if is_known(name.lower()) else _OTHER_NAMES.get(name.lower(), "")
    if meant == whole or meant in options:
        return InvalidConfigError(f"unknown option {name!r}; did you mean {meant}?")
    return options.unknown(name)


def client_config(properties: Mapping[str, str], use: Use) -> ClientConfig:
    """The configuration of a client with properties that `check_properties` has passed."""
    try:
        return ClientConfig.from_mapping(properties, use=use)
    except InvalidConfigError as error:
        raise InvalidConfigError(f"option {KAFKA}{error}") from None
