"""The configuration of a topic for tools that read a directory: from a file, from the directory, or from a broker.

Kafka keeps configurations in its metadata, not beside the log. Each key has an origin, so that a tool can say where a
number comes from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, TypeVar

from seglog.core.config import DIRECTORY_KEYS, REFUSED_TOPIC_KEYS, SYNONYMS, TOPIC_KEYS, LogConfig, LogDirConfig
from seglog.core.errors import InvalidConfigError
from seglog.core.fs import Fs
from seglog.storage.formats.paths import TOPICS
from seglog.storage.formats.topics_file import read_topics
from seglog.storage.offline.kraft_metadata import read_kraft_metadata

T = TypeVar("T")
DEFAULT: Final = "Kafka's default"
_SMALL_SEGMENT: Final = "internal.segment.bytes"


class TopicConfig(NamedTuple):
    """``origins`` names the source of each key that is not Kafka's default; ``is_known``: some source has the topic.

    ``ignored`` are keys whose value seglog does not have, such as tiered storage, with the reasons.
    """

    log: LogConfig
    origins: Mapping[str, str]
    is_known: bool
    cleaner_enabled: bool
    ignored: Mapping[str, str]

    def origin(self, key: str) -> str:
        return self.origins.get(key, DEFAULT)


class ConfigLayer(NamedTuple):
    """Keys from one source. ``broker`` are names of a broker's properties, the defaults of all topics."""

    origin: str
    topic: Mapping[str, str]
    broker: Mapping[str, str]
    knows_topic: bool = True


def split_properties(origin: str, given: Mapping[str, str]) -> ConfigLayer:
    """A file of properties: keys of topics, a broker's ``server.properties``, or both. Other keys of a broker are left
    out. `InvalidConfigError` if no key is known: it is another file."""
    topic = {key: value for key, value in given.items() if key in TOPIC_KEYS and key not in SYNONYMS_OF_ITSELF}
    broker = {key: value for key, value in given.items() if key in DIRECTORY_KEYS}
    if given and not topic and not broker and not any(key in _OTHER_BROKER_KEYS for key in given):
        raise InvalidConfigError(
            f"{origin} has no key of a topic or broker, such as retention.ms or log.retention.hours"
        )
    return ConfigLayer(origin, topic, broker, knows_topic=bool(topic))


SYNONYMS_OF_ITSELF: Final = frozenset(key for key, rows in SYNONYMS.items() if any(row.name == key for row in rows))
"""Keys that topic and broker have in common, such as ``compression.type``: in a file they are the broker's."""
_OTHER_BROKER_KEYS: Final = frozenset({"node.id", "broker.id", "log.dirs", "log.dir", "listeners", "process.roles"})


def directory_layers(fs: Fs, log_dir: str, topic: str | None) -> list[ConfigLayer]:
    """What a log directory itself knows: KRaft's metadata log in it, and ``seglog.topics``."""
    layers = []
    kraft = read_kraft_metadata(fs, log_dir)
    if kraft is not None:
        defaults = {key: value for key, value in kraft.brokers.get("", {}).items() if key in DIRECTORY_KEYS}
        of_topic = kraft.configs.get(topic or "", {})
        layers.append(ConfigLayer("__cluster_metadata-0", of_topic, defaults, knows_topic=topic in kraft.topics))
    entry = read_topics(fs, log_dir).get(topic or "")
    if entry is not None:
        layers.append(ConfigLayer(TOPICS, entry.config, {}))
    return layers


def merge(layers: list[ConfigLayer]) -> TopicConfig:
    """Later layers win; keys of the topic win over those of the broker. `InvalidConfigError` names origin and key."""
    broker: dict[str, str] = {}
    origins: dict[str, str] = {}
    topic: dict[str, str] = {}
    ignored: dict[str, str] = {}
    for layer in layers:
        broker.update(layer.broker)
        for key, rows in SYNONYMS.items():
            if any(row.name in layer.broker for row in rows):
                origins[key] = layer.origin
        origins.update((key, layer.origin) for key in layer.broker if key not in _TOPIC_NAMES)
    defaults = _checked(lambda: LogDirConfig.from_mapping(broker), layers)
    for layer in layers:
        for key, value in layer.topic.items():
            if key not in TOPIC_KEYS:
                ignored[key] = "seglog does not know this key"
            elif key in REFUSED_TOPIC_KEYS:
                if not _is_default(key, value):
                    ignored[key] = REFUSED_TOPIC_KEYS[key].doc.removeprefix("not supported: ")
            else:
                name = _SMALL_SEGMENT if key == "segment.bytes" and _is_small(value) else key
                topic[name] = value
                origins[key] = layer.origin
    config = _checked(lambda: defaults.topics.with_overrides(topic), layers)
    return TopicConfig(
        config,
        origins,
        any(layer.knows_topic for layer in layers),
        defaults.log_cleaner_enable and defaults.log_cleaner_threads > 0,
        ignored,
    )


_TOPIC_NAMES: Final = frozenset(row.name for rows in SYNONYMS.values() for row in rows)


def _checked(make: Callable[[], T], layers: list[ConfigLayer]) -> T:
    try:
        return make()
    except InvalidConfigError as error:
        named = ", ".join(dict.fromkeys(layer.origin for layer in layers if layer.topic or layer.broker))
        raise InvalidConfigError(f"{error} (from {named})") from error


def _is_default(key: str, value: str) -> bool:
    try:
        REFUSED_TOPIC_KEYS[key].parse(value)
    except InvalidConfigError:
        return False
    return True


def _is_small(value: str) -> bool:
    """Brokers before 4.0 accept segments below 1 MiB."""
    return value.strip().isdecimal() and 14 <= int(value) < 1 << 20
