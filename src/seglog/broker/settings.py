"""A broker's configuration in force: what it was started with, and over that what was changed while it runs.

Dynamic configuration is in the metadata store as texts: ``config/brokers/default`` for all brokers, and
``config/brokers/<id>`` for one, which goes before. A value that is there is taken up at every start.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Final

from seglog.broker.changes import TopicChanges
from seglog.cluster.store import MetadataStore, NameExistsError, VersionChangedError
from seglog.core.broker_config import BrokerConfig

DEFAULT: Final = "default"
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
                    await self._store.create(f"{_FOLDER}/{name}", value)
                else:
                    await self._store.cas(f"{_FOLDER}/{name}", value, found.version)
            except (NameExistsError, VersionChangedError):
                continue  # someone was faster: look again
            break
        if config.directory != self.current.directory:
            await changes.reconfigure(config.directory)
        self.of_cluster, self.of_broker, self.current = of_cluster, of_broker, config
        took_effect(config)

    async def _read(self, name: str) -> Mapping[str, str]:
        found = await self._store.get(f"{_FOLDER}/{name}")
        return {} if found is None else _decode(found.value)


def _decode(value: bytes) -> dict[str, str]:
    return {str(key): str(text) for key, text in json.loads(value).items()}
