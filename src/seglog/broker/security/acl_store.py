"""ACLs in the metadata store: a JSON list of entries for each pattern, at ``config/acls/<type>-<pattern>-<name>``.

The name is percent-encoded; a long one is a digest. The value has everything, so names are never decoded.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from seglog.broker.requests import ApiError
from seglog.broker.security.acls import Acl, AclFilter, Entry, Operation, Pattern, PatternType, Permission, ResourceType
from seglog.broker.security.authorizer import Authorizer
from seglog.broker.security.users import encoded_name
from seglog.broker.store_writes import delete, read, write
from seglog.cluster.cluster_view import ClusterView, NamedValue
from seglog.cluster.store import (
    MAX_VALUE_BYTES,
    MISSING,
    MetadataStore,
    NameExistsError,
    NoSuchNameError,
    VersionChangedError,
)
from seglog.core.error_codes import ErrorCode

if TYPE_CHECKING:
    from seglog.cluster.cluster_view import Changes

_log: Final = logging.getLogger("seglog.security")
FOLDER: Final = "config/acls"
_LONGEST: Final = 200
_SECONDS: Final = 1.0
"""How long an answer waits until a change counts on the broker that made it. Mostly it does at once."""
_Update = Callable[[Sequence[Entry]], Collection[Entry]]


class StoredAcls:
    """Keeps an `Authorizer` current with the broker's view, and writes changes to the store."""

    def __init__(self, store: MetadataStore, view: ClusterView, authorizer: Authorizer) -> None:
        self._store = store
        self._view = view
        self._authorizer = authorizer
        self._patterns: dict[str, Pattern] = {}
        """By the names that have values."""
        view.listeners.append(self._changed)
        self._take_over(view.configs)

    def _changed(self, changes: Changes) -> None:
        self._take_over(changes.configs)

    def _take_over(self, names: Iterable[str]) -> None:
        for name in names:
            if not name.startswith(f"{FOLDER}/"):
                continue
            value = self._view.configs.get(name)
            found = None if value is None else decode(name, value)
            if value is not None and found is None:
                continue  # the last readable value stays in force
            before = self._patterns.pop(name, None)
            if found is not None:
                self._patterns[name] = found[0]
                self._authorizer.put(*found)
            elif before is not None:
                self._authorizer.put(before, ())

    async def add(self, acls: Sequence[Acl]) -> Mapping[Acl, ApiError]:
        """Add ACLs, which may exist already; returns those that could not be added."""
        wanted: dict[Pattern, list[Acl]] = {}
        for acl in acls:
            wanted.setdefault(acl.pattern, []).append(acl)
        failed: dict[Acl, ApiError] = {}
        for pattern, some in wanted.items():
            try:
                await self._change(pattern, partial(_union, [acl.entry for acl in some]))
            except ApiError as error:
                failed.update(dict.fromkeys(some, error))
        return failed

    async def remove(self, wanted: AclFilter) -> Mapping[Acl, ApiError | None]:
        """Remove the ACLs that match; returns them, each with the error that kept it."""
        found: dict[Pattern, list[Acl]] = {}
        for acl in await load(self._store):
            if wanted.matches(acl):
                found.setdefault(acl.pattern, []).append(acl)
        removed: dict[Acl, ApiError | None] = {}
        for pattern, some in found.items():
            error: ApiError | None = None
            try:
                await self._change(pattern, partial(_difference, [acl.entry for acl in some]))
            except ApiError as failed:
                error = failed
            removed.update(dict.fromkeys(some, error))
        return removed

    async def _change(self, pattern: Pattern, update: _Update) -> None:
        """Return when the change counts here: the view may have read the value before, and not told of it yet."""
        name, value, version = await change_acls(self._store, pattern, update)
        view = self._view
        if value is None:
            view.note_all([NamedValue(name, None)])
            await view.until(lambda: name not in view.configs, _SECONDS)
        else:
            view.note(name, value, version)
            await view.until(lambda: view.versions.get(name, MISSING) >= version, _SECONDS)


def _union(more: Sequence[Entry], before: Sequence[Entry]) -> Collection[Entry]:
    return {*before, *more}


def _difference(gone: Sequence[Entry], before: Sequence[Entry]) -> Collection[Entry]:
    return {*before}.difference(gone)


async def load(store: MetadataStore) -> list[Acl]:
    """All ACLs that can be read. `ApiError` if the store fails."""
    values = await read(store.load(FOLDER))
    found = [decoded for name, value in values.items() if (decoded := decode(name, value.value)) is not None]
    return [Acl(pattern, entry) for pattern, entries in found for entry in entries]


async def change_acls(store: MetadataStore, pattern: Pattern, update: _Update) -> tuple[str, bytes | None, int]:
    """Change the entries of a pattern; returns name, value and version in the store. `ApiError` if the store fails."""
    name = name_of(pattern)
    while True:
        found = await read(store.get(name))
        known = None if found is None else decode(name, found.value)
        if found is not None and known is None:
            raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, f"{name} in the metadata store cannot be read")
        after = update(() if known is None else known[1])
        try:
            if not after:
                if found is not None:
                    await delete(store, name, found.version)
                return name, None, 0
            value = encode(pattern, after)
            if len(value) > MAX_VALUE_BYTES:
                message = f"too many ACLs for one resource pattern: they take {len(value)} bytes of {MAX_VALUE_BYTES}"
                raise ApiError(ErrorCode.INVALID_REQUEST, message)
            if found is not None and value == found.value:
                return name, value, found.version
            return name, value, await write(store, name, value, MISSING if found is None else found.version)
        except (NameExistsError, NoSuchNameError, VersionChangedError):
            continue  # another broker changed it: read again


def name_of(pattern: Pattern) -> str:
    """
    >>> name_of(Pattern(ResourceType.TOPIC, "or.ders", PatternType.PREFIXED))
    'config/acls/topic-prefixed-or%2Eders'
    """
    encoded = encoded_name(pattern.name)
    if len(encoded) > _LONGEST:
        encoded = f"%sha256-{hashlib.sha256(encoded.encode()).hexdigest()}"
    return f"{FOLDER}/{pattern.resource.name.lower()}-{pattern.type.name.lower()}-{encoded}"


def encode(pattern: Pattern, entries: Iterable[Entry]) -> bytes:
    value = {
        "resource": [pattern.resource.name, pattern.name, pattern.type.name],
        "entries": [
            [entry.permission.name, entry.operation.name, entry.principal, entry.host] for entry in sorted(entries)
        ],
    }
    return json.dumps(value, separators=(",", ":")).encode()


def decode(name: str, value: bytes) -> tuple[Pattern, tuple[Entry, ...]] | None:
    """None for a value that cannot be read, which is logged.

    >>> acl = Pattern(ResourceType.GROUP, "g"), (Entry("User:a", "*", Operation.READ, Permission.ALLOW),)
    >>> decode("", encode(*acl)) == acl
    True
    """
    try:
        told = json.loads(value)
        kind, text, pattern_type = told["resource"]
        pattern = Pattern(ResourceType[kind], str(text), PatternType[pattern_type])
        entries = tuple(
            Entry(str(principal), str(host), Operation[operation], Permission[permission])
            for permission, operation, principal, host in told["entries"]
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        _log.error("the ACLs at %s in the metadata store cannot be read: %s", name, error)
        return None
    return pattern, entries
