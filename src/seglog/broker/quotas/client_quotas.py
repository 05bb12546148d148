"""Quotas by user, client id and address. The metadata store has them as JSON, one value for each entity::

    config/quotas/client-id=app,user=alice = {"entity": {"client-id": "app", "user": "alice"},
                                              "quotas": {"producer_byte_rate": 1048576.0}}

A null in place of a name is the default of its type, whose part of the store's name has no ``=``. An entity whose name
would be too long for the store is named by a digest. An entity without quotas has no value.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from hashlib import sha256
from types import MappingProxyType
from typing import Final
from urllib.parse import quote

from seglog.broker.store_writes import delete, read, write
from seglog.cluster.cluster_view import Changes, ClusterView, NamedValue
from seglog.cluster.store import MISSING, MetadataStore, NameExistsError, NoSuchNameError, VersionChangedError

_log: Final = logging.getLogger("seglog.broker")
FOLDER: Final = "config/quotas"
USER: Final = "user"
CLIENT_ID: Final = "client-id"
IP: Final = "ip"
PRODUCE: Final = "producer_byte_rate"
FETCH: Final = "consumer_byte_rate"
REQUEST: Final = "request_percentage"
MUTATION: Final = "controller_mutation_rate"
CONNECTION: Final = "connection_creation_rate"
_MAX_NAME: Final = 255
"""The longest part of a name in the store (`seglog.cluster.store`)."""

Entity = tuple[tuple[str, str | None], ...]
"""Types and names, in the order of types. None is the default of a type."""
Quotas = Mapping[str, float]
"""By the names of quotas."""


class Other(Enum):
    """In place of a user or client id."""

    DEFAULT = "default"
    ABSENT = "absent"


_DEFAULT: Final = Other.DEFAULT
_ABSENT: Final = Other.ABSENT
Name = str | Other
Limits = Mapping[tuple[Name, Name], float]
"""One quota by user and client id."""
Sharing = tuple[str, str]
"""Who uses one quota together: a user's client, all clients of a user (no client id), or a client id of any user."""


def applied(limits: Limits, user: str, client: str) -> tuple[float, Sharing] | None:
    """The quota of a client, and with whom it shares it; None without a limit. The most specific level that has a
    quota decides (``ClientQuotaManager.DefaultQuotaCallback``).

    >>> applied({("ann", Other.ABSENT): 5.0, (Other.DEFAULT, "app"): 7.0}, "ann", "app")
    (5.0, ('ann', ''))
    """
    if (user, client) in limits or (user, _DEFAULT) in limits:
        sharing = user, client
    elif (user, _ABSENT) in limits:
        sharing = user, ""
    elif (_DEFAULT, client) in limits or (_DEFAULT, _DEFAULT) in limits:
        sharing = user, client
    else:
        sharing = (user, "") if (_DEFAULT, _ABSENT) in limits else ("", client)
    for level in _levels(*sharing):
        if level in limits:
            return limits[level], sharing
    return None


def _levels(user: str, client: str) -> tuple[tuple[Name, Name], ...]:
    """Where the quota may be, the most specific level first."""
    if user and client:
        return (user, client), (user, _DEFAULT), (_DEFAULT, client), (_DEFAULT, _DEFAULT)
    if user:
        return (user, _ABSENT), (_DEFAULT, _ABSENT)
    return ((_ABSENT, client), (_ABSENT, _DEFAULT)) if client else ()


class ClientQuotas:
    """Read from the broker's view, written to the store. ``changed`` are called after the quotas have changed."""

    def __init__(self, store: MetadataStore, view: ClusterView) -> None:
        self._store = store
        self._view = view
        self._entities: dict[str, tuple[Entity, Quotas]] = {}
        """By their names in the store."""
        self._limits: dict[str, dict[tuple[Name, Name], float]] = {
            one: {} for one in (PRODUCE, FETCH, REQUEST, MUTATION)
        }
        self.limits: Mapping[str, Limits] = MappingProxyType(self._limits)
        self.of_ips: Mapping[str | None, int] = {}
        """``connection_creation_rate`` by address or host; None is the default. Another mapping after each change."""
        self.changed: list[Callable[[], None]] = []
        self._take_up(view.configs)
        view.listeners.append(self._changed)

    def __iter__(self) -> Iterator[tuple[Entity, Quotas]]:
        return iter(self._entities.values())

    def _changed(self, changes: Changes) -> None:
        names = [name for name in changes.configs if name.startswith(f"{FOLDER}/")]
        if names:
            self._take_up(names)
            for changed in self.changed:
                changed()

    def _take_up(self, names: Iterable[str]) -> None:
        for name in names:
            if not name.startswith(f"{FOLDER}/"):
                continue
            before = self._entities.pop(name, None)
            if before is not None:
                self._limit(before[0], before[1], is_there=False)
            value = self._view.configs.get(name)
            now = None if value is None else _decode(name, value)
            if now is not None:
                self._entities[name] = now
                self._limit(*now, is_there=True)

    def _limit(self, entity: Entity, quotas: Quotas, *, is_there: bool) -> None:
        parts = dict(entity)
        if IP in parts and CONNECTION in quotas:
            others = {name: most for name, most in self.of_ips.items() if name != parts[IP]}
            self.of_ips = {**others, parts[IP]: int(quotas[CONNECTION])} if is_there else others
        user, client = (parts[one] or _DEFAULT if one in parts else _ABSENT for one in (USER, CLIENT_ID))
        for name, value in quotas.items():
            limits = self._limits.get(name)
            if limits is not None and is_there:
                limits[user, client] = value
            elif limits is not None:
                limits.pop((user, client), None)

    async def change(self, entity: Entity, changes: Mapping[str, float | None]) -> None:
        """Set or (None) remove quotas. `ApiError` if the store fails."""
        name = store_name(entity)
        while True:
            found = await read(self._store.get(name))
            before = {} if found is None else (_decode(name, found.value) or (entity, {}))[1]
            after = {key: one for key, one in {**before, **changes}.items() if one is not None}
            if after == before:
                return
            try:
                if after:
                    value = json.dumps({"entity": dict(entity), "quotas": after}, sort_keys=True).encode()
                    version = await write(self._store, name, value, MISSING if found is None else found.version)
                    self._view.note(name, value, version)
                elif found is not None:
                    await delete(self._store, name, found.version)
                    self._view.note_all([NamedValue(name, None)])
            except (NameExistsError, NoSuchNameError, VersionChangedError):
                continue  # another broker changed it: read again
            return


def store_name(entity: Entity) -> str:
    """
    >>> store_name((("client-id", None), ("user", "CN=ann")))
    'config/quotas/client-id,user=CN%3Dann'
    """
    text = ",".join(
        kind if name is None else f"{kind}={quote(name, safe='', errors='surrogatepass')}" for kind, name in entity
    )
    if len(text) > _MAX_NAME:
        text = sha256(text.encode()).hexdigest()
    return f"{FOLDER}/{text}"


def _decode(name: str, value: bytes) -> tuple[Entity, Quotas] | None:
    try:
        found = json.loads(value)
        entity = tuple((str(kind), None if one is None else str(one)) for kind, one in sorted(found["entity"].items()))
        return (entity, {str(key): float(one) for key, one in found["quotas"].items()}) if entity else None
    except (ValueError, AttributeError, TypeError, KeyError) as error:
        _log.error("%s in the metadata store cannot be read, so it limits no client: %s", name, error)
        return None
