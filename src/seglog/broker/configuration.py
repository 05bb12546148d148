"""A broker's configuration in force: what it was started with, and over that what was changed while it runs.

Dynamic configuration is in the metadata store as texts: ``config/brokers/default`` for all brokers, and
``config/brokers/<id>`` for one, which goes before. A value that is there is taken up at every start.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from seglog.broker.topic_changes import TopicChanges
from seglog.cluster.model import TopicRules, TopicState
from seglog.cluster.store import MetadataStore, NameExistsError, VersionChangedError
from seglog.coordinators.settings import OFFSETS_TOPIC, GroupSettings
from seglog.core.broker_config import BrokerConfig
from seglog.core.config import TOPIC_KEYS
from seglog.core.errors import InvalidConfigError, SeglogError

if TYPE_CHECKING:
    from seglog.cluster.cluster_view import Changes, ClusterView

DEFAULT: Final = "default"
_log: Final = logging.getLogger("seglog.broker")
_FOLDER: Final = "config/brokers"


class Configuration:
    """``current`` is in force; ``static`` is what the broker was started with."""

    def __init__(self, static: BrokerConfig, store: MetadataStore, node_id: int) -> None:
        self.static = static
        self.current = static
        self.node_id = node_id
        self.of_cluster: Mapping[str, str] = {}
        self.of_broker: Mapping[str, str] = {}
        self._store = store
        self.written: Callable[[str, bytes, int], None] = lambda *_: None
        """Is told of a value of the store that was changed by us, and of its version."""

    async def load(self) -> None:
        """Take up what the store has. `InvalidConfigError` if that cannot be in force."""
        self.of_cluster = await self._read(DEFAULT)
        self.of_broker = await self._read(str(self.node_id))
        self.current = self.merged(self.of_cluster, self.of_broker)

    def merged(self, of_cluster: Mapping[str, str], of_broker: Mapping[str, str]) -> BrokerConfig:
        """The configuration with other dynamic values. `InvalidConfigError`."""
        if not of_cluster and not of_broker:
            return self.static
        return BrokerConfig.from_mapping({**self.static.given, **of_cluster, **of_broker})

    async def change(
        self,
        name: str,
        update: Callable[[Mapping[str, str]], Mapping[str, str]],
        changes: TopicChanges,
        took_effect: Callable[[BrokerConfig], None],
        *,
        check: Callable[[BrokerConfig, BrokerConfig], None],
        validate_only: bool,
    ) -> None:
        """Make other values of this broker's (its id) or of all brokers' (`DEFAULT`); ``update`` makes them from what
        there is. `InvalidConfigError` if they cannot be in force, or not in place of those that are (``check``), and
        then nothing is changed."""
        while True:
            found = await self._store.get(f"{_FOLDER}/{name}")
            before = {} if found is None else _decode(found.value)
            after = dict(update(before))
            of_cluster = after if name == DEFAULT else self.of_cluster
            of_broker = self.of_broker if name == DEFAULT else after
            config = self.merged(of_cluster, of_broker)
            check(self.current, config)
            if validate_only or after == before:
                return
            value = json.dumps(after, sort_keys=True).encode()
            try:
                if found is None:
                    version = await self._store.create(f"{_FOLDER}/{name}", value)
                else:
                    version = await self._store.cas(f"{_FOLDER}/{name}", value, found.version)
            except (NameExistsError, VersionChangedError):
                continue  # someone was faster: look again
            break
        await self._take_effect(of_cluster, of_broker, changes, took_effect)
        self.written(f"{_FOLDER}/{name}", value, version)

    async def _take_effect(
        self,
        of_cluster: Mapping[str, str],
        of_broker: Mapping[str, str],
        changes: TopicChanges,
        took_effect: Callable[[BrokerConfig], None],
    ) -> None:
        config = self.merged(of_cluster, of_broker)
        if config.directory != self.current.directory:
            await changes.reconfigure(config.directory)
        self.of_cluster, self.of_broker, self.current = of_cluster, of_broker, config
        took_effect(config)

    async def follow(
        self, view: ClusterView, changes: TopicChanges, took_effect: Callable[[BrokerConfig], None]
    ) -> None:
        """Take up what other brokers change of these values, until it is cancelled."""
        names = {f"{_FOLDER}/{DEFAULT}", f"{_FOLDER}/{self.node_id}"}
        has_changed = asyncio.Event()
        has_changed.set()

        def seen(told: Changes) -> None:
            if told.configs & names:
                has_changed.set()

        view.listeners.append(seen)
        self.written = view.note
        try:
            while True:
                await has_changed.wait()
                has_changed.clear()
                try:
                    of_cluster = _decode(view.configs.get(f"{_FOLDER}/{DEFAULT}", b"{}"))
                    of_broker = _decode(view.configs.get(f"{_FOLDER}/{self.node_id}", b"{}"))
                    if (of_cluster, of_broker) == (self.of_cluster, self.of_broker):
                        continue
                    await self._take_effect(of_cluster, of_broker, changes, took_effect)
                except SeglogError as error:  # what was in force stays so
                    _log.error("the changed configuration of the cluster cannot be in force here: %s", error)
        finally:
            view.listeners.remove(seen)

    async def _read(self, name: str) -> Mapping[str, str]:
        found = await self._store.get(f"{_FOLDER}/{name}")
        return {} if found is None else _decode(found.value)


def _decode(value: bytes) -> dict[str, str]:
    """`InvalidConfigError`."""
    try:
        return {str(key): str(text) for key, text in json.loads(value).items()}
    except (ValueError, AttributeError) as error:
        raise InvalidConfigError(f"{value[:100]!r} in the metadata store is no configuration") from error


_FACTOR: Final = 3
"""Kafka's default of ``offsets.topic.replication.factor``."""
_MIN_INSYNC: Final = TOPIC_KEYS["min.insync.replicas"]
_UNCLEAN: Final = TOPIC_KEYS["unclean.leader.election.enable"]


def topic_rules(topic: TopicState, config: BrokerConfig) -> TopicRules:
    """What a topic's own configuration, and a broker's where it has none, says of its leaders."""
    defaults, overrides = config.directory.topics, topic.config
    min_insync, unclean = defaults.min_insync_replicas, defaults.unclean_leader_election_enable
    try:
        if _MIN_INSYNC.name in overrides:
            min_insync = _MIN_INSYNC.parse(overrides[_MIN_INSYNC.name])
        if _UNCLEAN.name in overrides:
            unclean = _UNCLEAN.parse(overrides[_UNCLEAN.name])
    except InvalidConfigError as error:  # a later seglog may know more values
        _log.error("topic %s: %s", topic.name, error)
    replicas = 0
    if topic.name == OFFSETS_TOPIC:
        replicas = group_settings(config, is_alone=False).offsets_topic_replication_factor
    return TopicRules(min_insync, unclean, replicas)


def group_settings(config: BrokerConfig, *, is_alone: bool = True) -> GroupSettings:
    """What a broker's configuration says of groups. In a cluster groups outlive a broker, if nothing else is said."""
    settings = GroupSettings._make(getattr(config, name) for name in GroupSettings._fields)
    if is_alone or "offsets.topic.replication.factor" in config.given:
        return settings
    return settings._replace(offsets_topic_replication_factor=_FACTOR)
