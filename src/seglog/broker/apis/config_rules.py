"""Which configuration values are allowed, in Kafka's words, and how a configuration is described."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from enum import IntEnum
from typing import Any, Final

from seglog.broker.configuration import Configuration
from seglog.broker.requests import ApiError
from seglog.cluster.model import REFUSED_REPLICAS, Refusal, encode_refusals
from seglog.coordinators.consumer.group_config import GROUP_KEYS, GroupConfigBounds, check_group_config
from seglog.core.broker_config import BROKER_KEYS, DYNAMIC_KEYS, DYNAMIC_ONLY_KEYS, LISTENER_DYNAMIC_KEYS, default_text
from seglog.core.config import (
    INTERNAL_SEGMENT_BYTES,
    SYNONYMS,
    TOPIC_KEYS,
    LogConfig,
    LogDirConfig,
    ThrottledReplicas,
)
from seglog.core.error_codes import ErrorCode
from seglog.core.errors import InvalidConfigError
from seglog.core.kafka_broker_keys import dynamic_kafka_only_keys, internal_kafka_only_keys, kafka_only_keys
from seglog.core.settings import Boolean, Enumeration, Integer, Names, Real, ScaledInteger, Setting
from seglog.core.types import MAX_INT32, MAX_INT64


class ConfigSource(IntEnum):
    """The origin of a value (``ConfigSource``)."""

    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT = 3
    STATIC = 4
    DEFAULT = 5
    GROUP = 8


_TYPES: Final = {
    "boolean": 1,
    "string": 2,
    "int": 3,
    "short": 4,
    "long": 5,
    "double": 6,
    "list": 7,
    "class": 8,
    "password": 9,
}
_KAFKAS_TYPES: Final = {
    "controller.listener.names": "list",
    "log.dir": "list",
    "log.dirs": "list",
    "offsets.topic.replication.factor": "short",
    "transaction.state.log.replication.factor": "short",
}
"""The types of keys that have another one here."""


# What may be


def complaint(row: Setting, text: str) -> str | None:
    """Why ``text`` is not a valid value, in the words of Kafka's ``ConfigDef``; None if it is valid."""
    try:
        row.parse(text)
    except InvalidConfigError:
        rule = row.rule.number if isinstance(row.rule, ScaledInteger) else row.rule
        reason = _reason(rule, text)
        if isinstance(rule, Real) and reason.startswith("Value"):
            text = str(float(text))  # Kafka says what it has parsed
        if isinstance(rule, ThrottledReplicas):
            text, reason = f"[{', '.join(item.strip() for item in text.split(','))}]", f"{row.name} {_REPLICAS}"
        return f"Invalid value {text} for configuration {row.name}: {reason}"
    return None


_REPLICAS: Final = (
    "must be the literal '*' or a list of replicas in the following format: "
    "[partitionId]:[brokerId],[partitionId]:[brokerId],..."
)


def _reason(rule: object, text: str) -> str:
    match rule:
        case Integer() | Real():
            try:
                number = int(text) if isinstance(rule, Integer) else float(text)
            except ValueError:
                return f"Not a number of type {rule.type.upper()}"
            if abs(number) > _LARGEST.get(rule.type, abs(number)):
                return f"Not a number of type {rule.type.upper()}"
            if number < rule.low:
                return f"Value must be at least {rule.low:g}" if isinstance(rule, Real) else _at_least(rule.low)
            return f"Value must be no more than {rule.high:g}" if isinstance(rule, Real) else _at_most(rule.high)
        case Boolean():
            return "Expected value to be either true or false"
        case Enumeration():
            return f"String must be one of: {rule.allowed}"
        case Names():
            return f"String must be one of: {', '.join(rule.names)}"
        case _:
            return str(getattr(rule, "allowed", "it is not allowed"))


_LARGEST: Final = {"int": MAX_INT32, "long": MAX_INT64}
"""Of Java's types: what is larger is no number for Kafka, and not one that is too large."""


def _at_least(low: int) -> str:
    return f"Value must be at least {low}"


def _at_most(high: int) -> str:
    return f"Value must be no more than {high}"


def check_topic_config(given: Mapping[str, str | None]) -> dict[str, str]:
    """A topic's own configuration. `ApiError` if it is not valid."""
    nulls = [name for name, value in given.items() if value is None]
    if nulls:
        raise ApiError(ErrorCode.INVALID_CONFIG, f"Null value not supported for topic configs: {','.join(nulls)}")
    texts = {name: value for name, value in given.items() if value is not None}
    for name, text in texts.items():
        row = TOPIC_KEYS.get(name)
        if row is None:
            raise ApiError(ErrorCode.INVALID_CONFIG, f"Unknown topic config name: {name}")
        why = complaint(row, text)
        if why is not None:
            raise ApiError(ErrorCode.INVALID_CONFIG, why)
    try:
        config = LogConfig.from_mapping(texts)
    except InvalidConfigError as error:
        least, most = texts.get("min.compaction.lag.ms"), texts.get("max.compaction.lag.ms")
        if least is None or most is None:
            raise
        message = f"conflict topic config setting min.compaction.lag.ms ({least}) > max.compaction.lag.ms ({most})"
        raise ApiError(ErrorCode.INVALID_CONFIG, message) from error
    return config.overrides()


def check_group_texts(given: Mapping[str, str], bounds: GroupConfigBounds) -> Mapping[str, str]:
    """A group's own configuration. `ApiError` if it is not valid."""
    for name, text in given.items():
        row = GROUP_KEYS.get(name)
        why = f"Unknown group config name: {name}" if row is None else complaint(row, text)
        if why is not None:
            raise ApiError(ErrorCode.INVALID_CONFIG, why)
    try:
        check_group_config(given, bounds)
    except InvalidConfigError as error:
        raise ApiError(ErrorCode.INVALID_CONFIG, str(error)) from error
    return given


def check_threads(before: LogDirConfig, after: LogDirConfig) -> None:
    """`InvalidConfigError` if a number of threads changes by more than a factor of two (``DynamicThreadPool``,
    ``LogCleaner.validateReconfiguration``)."""
    for name in ("log.cleaner.threads", "num.recovery.threads.per.data.dir"):
        attribute = BROKER_KEYS[name].attribute
        old, new = getattr(before, attribute), getattr(after, attribute)
        if new < old // 2:
            raise InvalidConfigError(f"{name}={new}: it cannot be reduced to less than half the current value {old}")
        if new > old * 2:
            raise InvalidConfigError(
                f"{name}={new}: it cannot be increased to more than double the current value {old}"
            )


# What there is

_Layer = tuple[str, str, ConfigSource]
"""A key, its value, and the origin of the value."""


def describe_topic(
    overrides: Mapping[str, str], configuration: Configuration, wanted: Collection[str] | None
) -> list[dict[str, Any]]:
    """All keys of a topic, or the ``wanted`` ones, with values and origins."""
    found = []
    defaults = configuration.current.directory.topics
    for name, row in TOPIC_KEYS.items():
        if wanted is not None and name not in wanted:
            continue
        if name == INTERNAL_SEGMENT_BYTES.name and name not in overrides:
            continue
        layers: list[_Layer] = [(name, overrides[name], ConfigSource.TOPIC)] if name in overrides else []
        for synonym in SYNONYMS.get(name, ()):
            layers += _layers(synonym, configuration)
        if name in _SYNONYMS_WITHOUT_EFFECT:
            layers += _layers_without_effect(kafka_only_keys()[_SYNONYMS_WITHOUT_EFFECT[name]], configuration)
        if layers and layers[0][2] is ConfigSource.TOPIC:
            value, source = layers[0][1], ConfigSource.TOPIC
        elif not row.attribute or name == INTERNAL_SEGMENT_BYTES.name:
            value, source = row.rule.format(row.default), ConfigSource.DEFAULT
        else:
            value = row.rule.format(getattr(defaults, row.attribute))
            source = layers[0][2] if layers else ConfigSource.DEFAULT
        found.append(_described(row, value, source, layers, read_only=False))
    return found


def describe_group(
    given: Mapping[str, str], configuration: Configuration, wanted: Collection[str] | None
) -> list[dict[str, Any]]:
    """All keys of a group, or the ``wanted`` ones, with values and origins."""
    found = []
    for name, row in GROUP_KEYS.items():
        if wanted is not None and name not in wanted:
            continue
        layers = list(_layers(BROKER_KEYS[f"group.{name}"], configuration))
        if name in given:
            layers.insert(0, (name, row.rule.format(row.parse(given[name])), ConfigSource.GROUP))
        found.append(_described(row, layers[0][1], layers[0][2], layers, read_only=False))
    return found


_EMPTY: Final = frozenset({"authorizer.class.name", "sasl.oauthbearer.expected.audience", "ssl.cipher.suites"})
"""Keys whose default is an empty text or list, not null."""
_DYNAMIC: Final = DYNAMIC_KEYS | LISTENER_DYNAMIC_KEYS


def describe_broker(configuration: Configuration, wanted: Collection[str] | None) -> list[dict[str, Any]]:
    """All keys of this broker, or the ``wanted`` ones."""
    found = []
    for name, row in BROKER_KEYS.items():
        if wanted is not None and name not in wanted:
            continue
        own = list(_layers(row, configuration))
        layers = list(own)
        for synonym in _later_names(name):
            layers += _layers(synonym, configuration)
        value, source = (own[0][1], own[0][2]) if own else (None, ConfigSource.DEFAULT)
        found.append(
            _described(row, value if name in _EMPTY else value or None, source, layers, read_only=name not in _DYNAMIC)
        )
    for name, row in DYNAMIC_ONLY_KEYS.items():
        dynamic = ConfigSource.DYNAMIC_BROKER, ConfigSource.DYNAMIC_DEFAULT
        layers = [layer for layer in _layers(row, configuration) if layer[2] in dynamic]
        if layers and (wanted is None or name in wanted):
            found.append(_described(row, layers[0][1], layers[0][2], layers, read_only=False))
    return found + [
        _described_without_effect(row, configuration)
        for name, row in kafka_only_keys().items()
        if name not in internal_kafka_only_keys() and (wanted is None or name in wanted)
    ]


_SYNONYMS_WITHOUT_EFFECT: Final = {
    f"{name}.{unit}": f"log.{name}.{unit}"
    for name in ("local.retention", "remote.copy.lag")
    for unit in ("bytes", "ms")
}
"""A broker's names for keys of topics that are accepted with their defaults only."""


def _layers_without_effect(row: Setting, configuration: Configuration) -> list[_Layer]:
    layers: list[_Layer] = []
    for texts, source in (
        (configuration.of_broker, ConfigSource.DYNAMIC_BROKER),
        (configuration.of_cluster, ConfigSource.DYNAMIC_DEFAULT),
        (configuration.static.without_effect, ConfigSource.STATIC),
    ):
        if row.name in texts:
            layers.append((row.name, texts[row.name], source))
    if row.default is not None:
        layers.append((row.name, row.default, ConfigSource.DEFAULT))
    return layers


def _described_without_effect(row: Setting, configuration: Configuration) -> dict[str, Any]:
    layers = _layers_without_effect(row, configuration)
    value, source = (layers[0][1], layers[0][2]) if layers else (None, ConfigSource.DEFAULT)
    return _described(row, value, source, layers, read_only=row.name not in dynamic_kafka_only_keys())


def describe_refusals(refused: Mapping[str, Refusal]) -> dict[str, Any]:
    """See `REFUSED_REPLICAS`."""
    return {
        "name": REFUSED_REPLICAS,
        "value": encode_refusals(refused),
        "read_only": True,
        "is_default": False,
        "config_source": int(ConfigSource.STATIC),
        "is_sensitive": False,
        "synonyms": [],
        "config_type": _TYPES["string"],
        "documentation": "Replicas that this broker does not serve although their disk works, and why.",
    }


def broker_row(name: str) -> Setting | None:
    """The row of a key of brokers, with or without effect here."""
    return BROKER_KEYS.get(name) or DYNAMIC_ONLY_KEYS.get(name) or kafka_only_keys().get(name)


def describe_defaults(configuration: Configuration, wanted: Collection[str] | None) -> list[dict[str, Any]]:
    """The dynamic defaults of all brokers."""
    return [
        _described(
            row, text, ConfigSource.DYNAMIC_DEFAULT, [(name, text, ConfigSource.DYNAMIC_DEFAULT)], read_only=False
        )
        for name, text in configuration.of_cluster.items()
        if (wanted is None or name in wanted) and (row := broker_row(name)) is not None
    ]


def _layers(row: Setting, configuration: Configuration) -> Iterator[_Layer]:
    """The values of a broker's key, the one in force first."""
    for texts, source in (
        (configuration.of_broker, ConfigSource.DYNAMIC_BROKER),
        (configuration.of_cluster, ConfigSource.DYNAMIC_DEFAULT),
        (configuration.static.given, ConfigSource.STATIC),
    ):
        if row.name in texts:
            yield row.name, texts[row.name], source
    default = default_text(row)
    if default or (default is not None and row.name in _EMPTY):
        yield row.name, default, ConfigSource.DEFAULT


def _later_names(name: str) -> Iterator[Setting]:
    """Keys that apply if this one is not given."""
    for rows in SYNONYMS.values():
        names = [row.name for row in rows]
        if name in names:
            yield from rows[names.index(name) + 1 :]


def _described(
    row: Setting, value: str | None, source: ConfigSource, layers: list[_Layer], *, read_only: bool
) -> dict[str, Any]:
    return {
        "name": row.name,
        "value": None if row.is_secret else value,
        "read_only": read_only,
        "is_default": source is ConfigSource.DEFAULT,
        "config_source": int(source),
        "is_sensitive": row.is_secret,
        "synonyms": [
            {"name": name, "value": None if row.is_secret else text, "source": int(at)} for name, text, at in layers
        ],
        "config_type": _TYPES.get(_KAFKAS_TYPES.get(row.name, row.rule.type), 0),
        "documentation": row.doc,
    }
