"""The configurations of consumer groups. The metadata store has a group's own values as texts, as JSON, at
``config/groups/<group>``, where the group's name is percent-encoded. A group without values has no entry."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from typing import Final
from urllib.parse import quote, unquote

from seglog.broker.configuration import Configuration
from seglog.broker.requests import ApiError
from seglog.broker.store_writes import delete, read, write
from seglog.cluster.cluster_view import ClusterView, NamedValue
from seglog.cluster.store import (
    MISSING,
    MetadataStore,
    NameExistsError,
    NoSuchNameError,
    VersionChangedError,
    VersionedValue,
)
from seglog.coordinators.consumer.group_config import GROUP_KEYS, GroupConfigBounds, group_config
from seglog.core.error_codes import ErrorCode
from seglog.core.errors import InvalidConfigError

_FOLDER: Final = "config/groups"
_MAX_NAME: Final = 255
"""The longest part of a name in the store (`seglog.cluster.store`)."""
_log: Final = logging.getLogger("seglog.broker")


class GroupConfigs:
    """Read from the broker's view, written to the store."""

    def __init__(self, store: MetadataStore, view: ClusterView, configuration: Configuration) -> None:
        self._configuration = configuration
        self._store = store
        self._view = view

    @property
    def bounds(self) -> GroupConfigBounds:
        """Those of this broker."""
        config = self._configuration.current
        return GroupConfigBounds._make(getattr(config, name) for name in GroupConfigBounds._fields)

    def names(self) -> list[str]:
        """The groups that have values of their own."""
        return [unquote(name.removeprefix(f"{_FOLDER}/")) for name in self._view.configs if name.startswith(_FOLDER)]

    def given(self, group_id: str) -> dict[str, str]:
        """A group's own values."""
        value = self._view.configs.get(f"{_FOLDER}/{_encoded(group_id)}")
        return {} if value is None else _decode(group_id, value)

    def in_force(self, group_id: str) -> dict[str, str]:
        """The values of a group that are in force, by key."""
        return group_config(self.given(group_id), self.bounds)

    async def change(
        self, group_id: str, update: Callable[[Mapping[str, str]], Mapping[str, str]], *, validate_only: bool
    ) -> None:
        """Change a group's own values with ``update``, which raises an error if they are not valid. `ApiError` if the
        store fails."""
        name = f"{_FOLDER}/{_encoded(group_id)}"
        if len(name) - len(_FOLDER) - 1 > _MAX_NAME:
            message = f"a group with a name of more than {_MAX_NAME} characters, percent-encoded, has no configuration"
            raise ApiError(ErrorCode.INVALID_REQUEST, message)
        while True:
            found = await read(self._store.get(name))
            before = {} if found is None else _decode(group_id, found.value)
            after = dict(update(before))
            if validate_only or after == before:
                return
            try:
                await self._write(name, after, found)
            except (NameExistsError, NoSuchNameError, VersionChangedError):
                continue  # another broker changed it: read again
            return

    async def _write(self, name: str, after: Mapping[str, str], found: VersionedValue | None) -> None:
        if after:
            value = json.dumps(after, sort_keys=True).encode()
            version = await write(self._store, name, value, MISSING if found is None else found.version)
            self._view.note(name, value, version)
        elif found is not None:
            await delete(self._store, name, found.version)
            self._view.note_all([NamedValue(name, None)])


def _encoded(group_id: str) -> str:
    """A part of a name in the store, which is neither ``.`` nor ``..``."""
    return quote(group_id, safe="", errors="surrogatepass").replace(".", "%2E")


def _decode(group_id: str, value: bytes) -> dict[str, str]:
    """Values that this release does not know, or cannot read, do not count."""
    try:
        told = {str(key): str(text) for key, text in json.loads(value).items()}
        for key in told.keys() & GROUP_KEYS.keys():
            GROUP_KEYS[key].parse(told[key])
    except (ValueError, AttributeError, InvalidConfigError) as error:
        _log.error("the configuration of group %s in the metadata store cannot be read: %s", group_id, error)
        return {}
    return told
