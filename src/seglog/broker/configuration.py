"""A broker's configuration in force: its static configuration, overridden by dynamic values.

The metadata store has dynamic values as texts: ``config/brokers/default`` applies to all brokers, and
``config/brokers/<id>`` overrides it for one. A broker loads both at each start.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from seglog.broker.topics.topic_changes import TopicChanges
from seglog.cluster.model import TopicRules, TopicState
from seglog.cluster.store import MetadataStore, NameExistsError, VersionChangedError
from seglog.coordinators.settings import GroupSettings
from seglog.coordinators.transactions.settings import TransactionSettings
from seglog.core.broker_config import BrokerConfig
from seglog.core.config import TOPIC_KEYS
from seglog.core.errors import InvalidConfigError, SeglogError
from seglog.core.settings import NameSet
from seglog.core.topic_names import OFFSETS_TOPIC, TRANSACTION_TOPIC

if TYPE_CHECKING:
    from seglog.cluster.cluster_view import Changes, ClusterView

DEFAULT: Final = "default"
_log: Final = logging.getLogger("seglog.broker")
_FOLDER: Final = "config/brokers"


class Configuration:
    """``static`` is the configuration that the broker was started with; ``current`` is in force."""

    def __init__(self, static: BrokerConfig, store: MetadataStore, node_id: int) -> None:
        self.static = static
        self.current = static
        self.node_id = node_id
        self.of_cluster: Mapping[str, str] = {}
        self.of_broker: Mapping[str, str] = {}
        self._store = store
        self._written: Callable[[str, bytes, int], None] = lambda *_: None
        """Called with the name, value and version of each change that this broker writes."""

    async def load(self) -> None:
        """Load the dynamic values. `InvalidConfigError` if they cannot be in force."""
        self.of_cluster = await self._read(DEFAULT)
        self.of_broker = await self._read(str(self.node_id))
        self.current = self.merged(self.of_cluster, self.of_broker)

    def merged(self, of_cluster: Mapping[str, str], of_broker: Mapping[str, str]) -> BrokerConfig:
        """The static configuration with these dynamic values. `InvalidConfigError`."""
        if not of_cluster and not of_broker:
            return self.static
        return BrokerConfig.from_mapping({**self.static.given, **of_cluster, **of_broker})

    def dynamic(self, key: str) -> str | None:
        """The dynamic value of a key, of this broker or of all."""
        return self.of_broker.get(key, self.of_cluster.get(key))

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
        """Change the dynamic values of this broker (``name`` is its id) or of all brokers (`DEFAULT`) with ``update``.
        `InvalidConfigError`, and no change, if the new values are invalid or ``check`` refuses them in place of the old
        ones."""
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
                continue  # another broker changed it: read again
            break
        await self._take_effect(of_cluster, of_broker, changes, took_effect)
        self._written(f"{_FOLDER}/{name}", value, version)

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
        """Apply the changes that other brokers make, until it is cancelled."""
        names = {f"{_FOLDER}/{DEFAULT}", f"{_FOLDER}/{self.node_id}"}
        has_changed = asyncio.Event()
        has_changed.set()

        def seen(changes: Changes) -> None:
            if changes.configs & names:
                has_changed.set()

        view.listeners.append(seen)
        self._written = view.note
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
                except SeglogError as error:
                    _log.error(
                        "the cluster's new configuration is not valid on this broker, which keeps its old one: %s",
                        error,
                    )
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
        raise InvalidConfigError(f"{value[:100]!r} in the metadata store is not a configuration") from error


_FACTOR: Final = 3
_MIN_ISR: Final = 2
"""Kafka's default of ``offsets.topic.replication.factor``."""
_MIN_INSYNC: Final = TOPIC_KEYS["min.insync.replicas"]
_UNCLEAN: Final = TOPIC_KEYS["unclean.leader.election.enable"]


def topic_rules(topic: TopicState, config: BrokerConfig) -> TopicRules:
    """The rules for a topic's leaders: from its own configuration, or from the broker's."""
    defaults, overrides = config.directory.topics, topic.config
    min_insync, unclean = defaults.min_insync_replicas, defaults.unclean_leader_election_enable
    try:
        if _MIN_INSYNC.name in overrides:
            min_insync = _MIN_INSYNC.parse(overrides[_MIN_INSYNC.name])
        if _UNCLEAN.name in overrides:
            unclean = _UNCLEAN.parse(overrides[_UNCLEAN.name])
    except InvalidConfigError as error:  # a later release may know more values
        _log.error("topic %s: %s", topic.name, error)
    replicas = 0
    if topic.name == OFFSETS_TOPIC:
        replicas = group_settings(config, is_alone=False).offsets_topic_replication_factor
    elif topic.name == TRANSACTION_TOPIC:
        replicas = transaction_settings(config, is_alone=False).transaction_state_log_replication_factor
    return TopicRules(min_insync, unclean, replicas)


def group_settings(config: BrokerConfig, *, is_alone: bool = True) -> GroupSettings:
    """The broker's settings of consumer groups. In a cluster, the offsets topic has Kafka's replication factor by
    default, so that groups survive a broker."""
    settings = GroupSettings._make(getattr(config, name) for name in GroupSettings._fields)
    assignors = config.group_consumer_assignors
    if isinstance(assignors, NameSet):
        settings = settings._replace(group_consumer_assignors=assignors.order)
    if is_alone or "offsets.topic.replication.factor" in config.given:
        return settings
    return settings._replace(offsets_topic_replication_factor=_FACTOR)


def transaction_settings(config: BrokerConfig, *, is_alone: bool) -> TransactionSettings:
    """As `group_settings`."""
    settings = TransactionSettings._make(getattr(config, name) for name in TransactionSettings._fields)
    if not is_alone and "transaction.state.log.replication.factor" not in config.given:
        settings = settings._replace(transaction_state_log_replication_factor=_FACTOR)
    if not is_alone and "transaction.state.log.min.isr" not in config.given:
        settings = settings._replace(transaction_state_log_min_isr=_MIN_ISR)
    return settings
