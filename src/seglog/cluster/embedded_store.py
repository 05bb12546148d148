"""The metadata store of a broker that is alone: in its process, for no other client.

Values are in memory, and every call is answered without a wait, except a commit of values that outlive the process.
These are in one small regular file, replaced as a whole, as JSON::

    {"version": 1, "values": {"producer-ids": [7, "8000"]}}

with each value's version and text (bytes that are not UTF-8 as surrogates). Values that another file already has are
not in it: see `Backing`. Sessions last as long as the process, and are always certain.
"""

from __future__ import annotations

import asyncio
import json
import os.path
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol, Self

from seglog.cluster.store import (
    ANY_VERSION,
    MISSING,
    Change,
    CommitStep,
    MetadataStore,
    NameExistsError,
    Names,
    NoSuchNameError,
    SessionLostError,
    StoreClosedError,
    StoreFailedError,
    StoreSession,
    VersionChangedError,
    VersionedValue,
    Versions,
    WatchCallback,
    Watches,
    check_commit,
    is_within,
)
from seglog.core.fs import write_atomically
from seglog.core.ground import Ground

_VERSION: Final = 1


class Backing(Protocol):
    """Stores the values below the names in ``roots`` elsewhere. Its methods block."""

    @property
    def roots(self) -> Collection[str]: ...

    def load(self) -> Mapping[str, bytes]:
        """Return its values at the start."""

    def change(self, changes: Sequence[Change], /) -> Mapping[str, bytes | None]:
        """Make these changes durable. Return the values that follow from them, None for deleted ones. If it raises, the
        commit fails with that error and changes nothing."""


class EmbeddedSession:
    """It ends when it is closed, or with the store."""

    def __init__(self, store: EmbeddedStore) -> None:
        self.is_alive = True
        self._store = store

    @property
    def is_certain(self) -> bool:
        return self.is_alive

    async def close(self) -> None:
        self._store.end_session(self)

    def end(self) -> None:
        """Its values are gone."""
        self.is_alive = False


class StoreEntry(NamedTuple):
    """A value in memory, and the session that it goes with."""

    value: bytes
    version: int
    session: StoreSession | None = None


class EmbeddedStore(MetadataStore):
    """Made by `open`; `seglog.cluster.store.MetadataStore` describes its methods."""

    def __init__(self, path: str, ground: Ground, lasting: Collection[str] | None, backing: Backing | None) -> None:
        """For `open`."""
        self._path = path
        self._fs = ground.fs
        self._lane = ground.workers.lane("seglog-store")
        self._lasting = lasting
        self._backing = backing
        self._entries: dict[str, StoreEntry] = {}
        self._filed: dict[str, StoreEntry] = {}
        """Those of `_entries` that are in the file."""
        self._watches = Watches(asyncio.get_running_loop())
        self._sessions: list[EmbeddedSession] = []
        self._writing = asyncio.Lock()
        self._under_way: set[asyncio.Task[Versions]] = set()
        self._is_closed = False

    @classmethod
    async def open(
        cls,
        path: str | os.PathLike[str],
        ground: Ground,
        *,
        lasting: Collection[str] | None = None,
        backing: Backing | None = None,
        former: Callable[[], Mapping[str, VersionedValue]] = dict,
    ) -> Self:
        """Open the store whose file is at ``path``. If there is none, start with the result of ``former`` and write
        that. Only values below the names ``lasting`` outlive the process; None: all do. Raises `StoreFailedError`, and
        the errors of ``backing``."""
        store = cls(os.fspath(path), ground, lasting, backing)
        try:
            store._entries = await store._lane.run(lambda: store._load(former))
            store._filed = {name: entry for name, entry in store._entries.items() if store._is_kept(name, entry)}
        except OSError as error:
            await store._lane.close()
            raise StoreFailedError(f"{store._path}: {error}") from error
        except BaseException:
            await store._lane.close()
            raise
        return store

    # Values

    async def get(self, name: str) -> VersionedValue | None:
        entry = self._all().get(name)
        return None if entry is None else VersionedValue(entry.value, entry.version)

    async def get_many(self, names: Collection[str]) -> dict[str, VersionedValue]:
        entries = self._all()
        return {name: VersionedValue(*entries[name][:2]) for name in names if name in entries}

    async def load(self, name: str) -> dict[str, VersionedValue]:
        return {found: VersionedValue(*entry[:2]) for found, entry in self._all().items() if is_within(found, name)}

    async def list(self, name: str) -> Names:
        skip = len(name) + 1 if name else 0
        return sorted(
            {found[skip:].split("/", 1)[0] for found in self._all() if found != name and is_within(found, name)}
        )

    async def commit(self, steps: Sequence[CommitStep]) -> Versions:
        session = check_commit(steps)
        self._all()
        if session is not None and not session.is_alive:
            raise SessionLostError(f"the session in {self._path} has ended")
        if not any(isinstance(step, Change) and self._outlives(step) for step in steps):
            return self._apply(steps)
        work = asyncio.get_running_loop().create_task(self._commit_lasting(steps))
        self._under_way.add(work)
        work.add_done_callback(self._over)
        return await asyncio.shield(work)  # what is on the disk must be in memory too, even if the caller is cancelled

    # Watches and sessions

    def watch(self, name: str, changed: WatchCallback) -> Callable[[], None]:
        self._all()
        return self._watches.add(name, changed)

    async def session(self, time_to_live_ms: int, lost: Callable[[], None]) -> EmbeddedSession:
        """``lost`` is never called: no other client could end the session."""
        del lost
        if time_to_live_ms < 1:
            raise ValueError(f"a session cannot have a time to live of {time_to_live_ms} ms")
        self._all()
        session = EmbeddedSession(self)
        self._sessions.append(session)
        return session

    def end_session(self, session: EmbeddedSession) -> None:
        if session not in self._sessions:
            return
        self._sessions.remove(session)
        session.end()
        gone = frozenset(name for name, entry in self._entries.items() if entry.session is session)
        for name in gone:
            del self._entries[name]
        if gone:
            self._watches.tell(gone)

    async def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._watches.end_all()
        for session in list(self._sessions):
            self.end_session(session)
        await asyncio.gather(*self._under_way, return_exceptions=True)
        await self._lane.close()

    # Changes

    def _all(self) -> Mapping[str, StoreEntry]:
        if self._is_closed:
            raise StoreClosedError(f"{self._path} is closed")
        return self._entries

    def _outlives(self, step: Change) -> bool:
        """Whether the step must be durable when it is answered."""
        return self._is_backed(step.name) or (step.session is None and self._is_in_file(step.name))

    def _is_backed(self, name: str) -> bool:
        return self._backing is not None and _is_below(name, self._backing.roots)

    def _is_in_file(self, name: str) -> bool:
        return not self._is_backed(name) and (self._lasting is None or _is_below(name, self._lasting))

    def _is_kept(self, name: str, entry: StoreEntry) -> bool:
        return entry.session is None and self._is_in_file(name)

    def _over(self, work: asyncio.Task[Versions]) -> None:
        self._under_way.discard(work)
        if not work.cancelled():
            work.exception()  # the caller may have been cancelled

    async def _commit_lasting(self, steps: Sequence[CommitStep]) -> Versions:
        """Commit lasting values, one commit at a time; other commits do not wait."""
        async with self._writing:
            after, _ = apply_steps(self._entries, steps, self._path)
            filed = {name: entry for name, entry in after.items() if self._is_in_file(name)}
            backed = [step for step in steps if isinstance(step, Change) and self._is_backed(step.name)]
            is_filed = len(backed) < sum(isinstance(step, Change) and self._outlives(step) for step in steps)
            try:
                kept = {**self._filed, **filed} if is_filed else None
                followed = await self._lane.run(lambda: self._keep(backed, kept))
            except OSError as error:
                raise StoreFailedError(f"{self._path}: {error}") from error
            more = [
                Change(name, value, ANY_VERSION if name in self._entries else MISSING)
                for name, value in followed.items()
                if value is not None or name in self._entries
            ]
            versions = self._apply([*steps, *more])[: len(steps)]
            for name, entry in filed.items():
                if entry is None or entry.session is not None:
                    self._filed.pop(name, None)
                else:
                    self._filed[name] = entry
            return versions

    def _keep(
        self, backed: Sequence[Change], after: Mapping[str, StoreEntry | None] | None
    ) -> Mapping[str, bytes | None]:
        """Runs in the thread."""
        followed = self._backing.change(backed) if self._backing is not None and backed else {}
        if after is not None:
            kept = {name: entry for name, entry in after.items() if entry is not None and self._is_kept(name, entry)}
            write_atomically(self._fs, self._path, _encode(kept))
        return followed

    def _apply(self, steps: Sequence[CommitStep]) -> Versions:
        after, versions = apply_steps(self._entries, steps, self._path)
        for name, entry in after.items():
            if entry is None:
                self._entries.pop(name, None)
            else:
                self._entries[name] = entry
        changed = frozenset(step.name for step in steps if isinstance(step, Change))
        if changed:
            self._watches.tell(changed)
        return versions

    # The file

    def _load(self, former: Callable[[], Mapping[str, VersionedValue]]) -> dict[str, StoreEntry]:
        """Runs in the thread."""
        try:
            found = _decode(self._fs.read(self._path), self._path)
        except FileNotFoundError:
            taken_over = {name: value for name, value in former().items() if self._is_in_file(name)}
            found = {name: StoreEntry(*value) for name, value in taken_over.items()}
            if found:
                write_atomically(self._fs, self._path, _encode(found))
        if self._backing is not None:
            found.update((name, StoreEntry(value, 0)) for name, value in self._backing.load().items())
        return found


def apply_steps(
    entries: Mapping[str, StoreEntry], steps: Sequence[CommitStep], where: str
) -> tuple[dict[str, StoreEntry | None], Versions]:
    """Apply a commit to values in memory: the entries that it changes, None for one that goes, and the versions of the
    steps. Raises what `MetadataStore.commit` does for the first step that cannot be done; ``where`` names the store.
    """
    after: dict[str, StoreEntry | None] = {}
    return after, [_apply_step(entries, after, step, where) for step in steps]


def _apply_step(
    entries: Mapping[str, StoreEntry], after: dict[str, StoreEntry | None], step: CommitStep, where: str
) -> int:
    name = step.name
    found = after[name] if name in after else entries.get(name)
    if isinstance(step, Change) and step.version == MISSING:
        if found is not None:
            raise NameExistsError(f"{name} exists in {where}")
        assert step.value is not None
        after[name] = StoreEntry(step.value, 0, step.session)
        return 0
    if found is None:
        raise NoSuchNameError(f"there is no {name} in {where}")
    if step.version not in (ANY_VERSION, found.version):
        raise VersionChangedError(f"{name} in {where} is at version {found.version}, not {step.version}")
    if not isinstance(step, Change):
        return step.version
    if step.value is None:
        after[name] = None
        return MISSING
    after[name] = StoreEntry(step.value, found.version + 1, found.session)
    return found.version + 1


def _is_below(name: str, roots: Iterable[str]) -> bool:
    return any(is_within(name, root) for root in roots)


def _encode(entries: Mapping[str, StoreEntry]) -> bytes:
    values = {name: [entry.version, entry.value.decode(errors="surrogateescape")] for name, entry in entries.items()}
    return json.dumps({"version": _VERSION, "values": values}, sort_keys=True).encode() + b"\n"


def _decode(data: bytes, path: str) -> dict[str, StoreEntry]:
    try:
        told: dict[str, Any] = json.loads(data)
        if told["version"] == _VERSION:
            return {
                str(name): StoreEntry(str(text).encode(errors="surrogateescape"), int(version))
                for name, (version, text) in told["values"].items()
            }
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise StoreFailedError(
            f"{path} is damaged: {error!r}. It has the dynamic configuration of brokers and the last producer id: "
            "restore it from a backup. Without it both start again, and a producer id may be given out twice"
        ) from error
    raise StoreFailedError(f"{path} has version {told['version']}: a later seglog wrote it")
