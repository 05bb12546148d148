"""The metadata store in one SQLite file: for one machine, by one process or several.

A thread of its own does all the work, so that the event loop never waits for the disk. Changes are durable when they
are answered (WAL, ``synchronous=FULL``); renewals of leases are not, since a lease means nothing after a crash. What
other processes change shows in ``PRAGMA data_version``, which is asked for while there is a watch or a session.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Final, Self, TypeVar
from uuid import uuid4

from seglog.cluster.store import (
    ANY_VERSION,
    NameExistsError,
    NoSuchNameError,
    Session,
    SessionLostError,
    StoreClosedError,
    StoreFailedError,
    VersionChangedError,
    Versioned,
    check_name,
    check_value,
)
from seglog.core.clock import Clock, SystemClock

_SCHEMA: Final = """
    CREATE TABLE IF NOT EXISTS entries
        (name TEXT PRIMARY KEY, value BLOB NOT NULL, version INTEGER NOT NULL, session TEXT) WITHOUT ROWID;
    CREATE TABLE IF NOT EXISTS sessions (id TEXT PRIMARY KEY, expires_ms INTEGER NOT NULL) WITHOUT ROWID;
"""
_FORMAT: Final = 1
"""In ``PRAGMA user_version``: a file of a later seglog is refused."""
_BUSY_SECONDS: Final = 10.0
_LOOK_SECONDS: Final = 0.5
"""How often changes of others are looked for."""
_RENEWALS: Final = 3
"""How often in its time to live a lease is renewed."""

T = TypeVar("T")
_Names = list[str]
_Rows = list[tuple[str, int, str | None]]


class _Watch:
    """Who wants to know of what, and what was there when it was looked at last."""

    __slots__ = ("changed", "name", "seen")

    def __init__(self, name: str, changed: Callable[[], None]) -> None:
        self.name = name
        self.changed = changed
        self.seen: frozenset[tuple[str, int, str | None]] | None = None


class SqliteSession:
    """A lease, as a row with the time at which it ends unless it is renewed."""

    def __init__(self, store: SqliteStore, key: str, time_to_live_ms: int, lost: Callable[[], None]) -> None:
        self.key = key
        self.time_to_live_ms = time_to_live_ms
        self.renew_at = 0.0
        self.lost = lost
        self.is_alive = True
        self._store = store

    async def close(self) -> None:
        await self._store.end_session(self)


class SqliteStore:
    """Made by `open`; see `seglog.cluster.store.MetadataStore` for what its methods do."""

    def __init__(self, path: str, clock: Clock) -> None:
        """For `open`."""
        self._path = path
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="seglog-metadata")
        self._watches: list[_Watch] = []
        self._sessions: list[SqliteSession] = []
        self._timer: asyncio.TimerHandle | None = None
        self._looking: asyncio.Task[None] | None = None
        self._is_closed = False
        self._state = (-1, -1)
        self._db: sqlite3.Connection

    @classmethod
    async def open(cls, path: str | os.PathLike[str], clock: Clock | None = None) -> Self:
        """Open or make the store's file; ``:memory:`` is one that nobody else sees. `StoreFailedError`."""
        store = cls(os.fspath(path), clock or SystemClock())
        try:
            await store._call(store._connect)
        except BaseException:
            store._is_closed = True
            store._executor.shutdown()
            raise
        return store

    # Values

    async def get(self, name: str) -> Versioned | None:
        return await self._call(lambda: self._find(name))

    async def list(self, name: str) -> _Names:
        return await self._call(lambda: self._children(name))

    async def create(self, name: str, value: bytes, session: Session | None = None) -> int:
        check_name(name)
        check_value(value)
        assert session is None or isinstance(session, SqliteSession)
        version = await self._call(lambda: self._create(name, value, session))
        self._look_soon()
        return version

    async def cas(self, name: str, value: bytes, version: int) -> int:
        check_value(value)
        new_version = await self._call(lambda: self._cas(name, value, version))
        self._look_soon()
        return new_version

    async def delete(self, name: str, version: int = ANY_VERSION) -> None:
        await self._call(lambda: self._delete(name, version))
        self._look_soon()

    # Watches and sessions

    def watch(self, name: str, changed: Callable[[], None]) -> Callable[[], None]:
        watch = _Watch(name, changed)
        self._submit(lambda: self._begin_watch(watch))
        self._watches.append(watch)
        self._look_later()

        def end() -> None:
            if watch in self._watches:
                self._watches.remove(watch)

        return end

    async def session(self, time_to_live_ms: int, lost: Callable[[], None]) -> SqliteSession:
        if time_to_live_ms < 1:
            raise ValueError(f"a session of {time_to_live_ms} ms")
        session = SqliteSession(self, uuid4().hex, time_to_live_ms, lost)
        await self._call(lambda: self._begin_session(session))
        self._sessions.append(session)
        self._look_later()
        return session

    async def end_session(self, session: SqliteSession) -> None:
        if session in self._sessions:
            self._sessions.remove(session)
            session.is_alive = False
            await self._call(lambda: self._end_sessions([session.key]))
            self._look_soon()

    async def close(self) -> None:
        if self._is_closed:
            return
        keys = [session.key for session in self._sessions]
        for session in self._sessions:
            session.is_alive = False
        self._sessions.clear()
        self._watches.clear()
        if self._timer is not None:
            self._timer.cancel()
        done = self._submit(lambda: self._disconnect(keys))
        self._is_closed = True
        try:
            await done
            if self._looking is not None:
                await self._looking
        finally:
            self._executor.shutdown()

    def _submit(self, act: Callable[[], T]) -> asyncio.Future[T]:
        if self._is_closed:
            raise StoreClosedError(f"{self._path} is closed")
        return self._loop.run_in_executor(self._executor, act)

    async def _call(self, act: Callable[[], T]) -> T:
        try:
            return await self._submit(act)
        except sqlite3.Error as error:
            raise StoreFailedError(f"{self._path}: {error}") from error

    def _look_soon(self) -> None:
        """After a change of one's own: watches here are told at once."""
        if self._watches and not self._is_closed and self._looking is None:
            self._looking = self._loop.create_task(self._look())

    def _look_later(self) -> None:
        if self._timer is None and not self._is_closed and (self._watches or self._sessions):
            shortest = min((one.time_to_live_ms for one in self._sessions), default=1 << 62) / 1000 / _RENEWALS / 2
            self._timer = self._loop.call_later(min(_LOOK_SECONDS, shortest), self._timer_rings)

    def _timer_rings(self) -> None:
        self._timer = None
        if self._looking is None:
            self._looking = self._loop.create_task(self._look())
        else:
            self._look_later()

    async def _look(self) -> None:
        """Renew leases, and tell those who watch what has changed, or that their session is over."""
        watches, sessions = list(self._watches), list(self._sessions)
        try:
            changed, lost = await self._call(lambda: self._look_around(watches, sessions))
        except (StoreFailedError, StoreClosedError):  # a lease that cannot be renewed ends by its time
            changed, lost = (), [one for one in sessions if self._loop.time() > one.renew_at + _ttl(one)]
        finally:
            self._looking = None
        for watch in changed:
            if watch in self._watches:
                watch.changed()
        for session in lost:
            if session in self._sessions:
                self._sessions.remove(session)
                session.is_alive = False
                session.lost()
        self._look_later()

    # In the thread

    def _connect(self) -> None:
        self._db = sqlite3.connect(self._path, timeout=_BUSY_SECONDS, isolation_level=None)
        (version,) = self._db.execute("PRAGMA user_version").fetchone()
        if version > _FORMAT:
            self._db.close()
            raise StoreFailedError(f"{self._path} is of a later version of seglog ({version}, not {_FORMAT})")
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=FULL")
        if version < _FORMAT:
            self._db.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} PRAGMA user_version={_FORMAT}; COMMIT;")

    def _disconnect(self, sessions: _Names) -> None:
        try:
            self._end_sessions(sessions)
        finally:
            self._db.close()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    def _find(self, name: str) -> Versioned | None:
        row = self._db.execute("SELECT value, version FROM entries WHERE name = ?", (name,)).fetchone()
        return None if row is None else Versioned(bytes(row[0]), row[1])

    def _children(self, name: str) -> _Names:
        prefix = f"{name}/" if name else ""
        return sorted({found[len(prefix) :].split("/", 1)[0] for found, _, _ in self._below(name)})

    def _below(self, name: str) -> _Rows:
        """Everything below a name, not itself."""
        if not name:
            return self._db.execute("SELECT name, version, session FROM entries").fetchall()
        return self._db.execute(  # all that begins with "name/": a slash's successor is "0"
            "SELECT name, version, session FROM entries WHERE name > ? AND name < ?", (f"{name}/", f"{name}0")
        ).fetchall()

    def _create(self, name: str, value: bytes, session: SqliteSession | None) -> int:
        with self._transaction():
            if session is not None:
                self._check_alive(session)
            try:
                key = None if session is None else session.key
                self._db.execute("INSERT INTO entries VALUES (?, ?, 0, ?)", (name, value, key))
            except sqlite3.IntegrityError as error:
                raise NameExistsError(f"{name} exists in {self._path}") from error
        return 0

    def _check_alive(self, session: SqliteSession) -> None:
        row = self._db.execute("SELECT expires_ms FROM sessions WHERE id = ?", (session.key,)).fetchone()
        if row is None or not session.is_alive:
            raise SessionLostError(f"the session in {self._path} has ended")

    def _cas(self, name: str, value: bytes, version: int) -> int:
        with self._transaction():
            found = self._check_version(name, version)
            self._db.execute("UPDATE entries SET value = ?, version = ? WHERE name = ?", (value, found + 1, name))
        return found + 1

    def _delete(self, name: str, version: int) -> None:
        with self._transaction():
            self._check_version(name, version)
            self._db.execute("DELETE FROM entries WHERE name = ?", (name,))

    def _check_version(self, name: str, version: int) -> int:
        found = self._find(name)
        if found is None:
            raise NoSuchNameError(f"there is no {name} in {self._path}")
        if version not in (ANY_VERSION, found.version):
            raise VersionChangedError(f"{name} in {self._path} is at version {found.version}, not {version}")
        return found.version

    def _begin_watch(self, watch: _Watch) -> None:
        watch.seen = self._seen(watch.name)

    def _seen(self, name: str) -> frozenset[tuple[str, int, str | None]]:
        own = self._db.execute("SELECT name, version, session FROM entries WHERE name = ?", (name,)).fetchall()
        return frozenset([*own, *self._below(name)])

    def _begin_session(self, session: SqliteSession) -> None:
        session.renew_at = self._loop.time() + _ttl(session) / _RENEWALS
        expires_ms = self._clock.now_ms() + session.time_to_live_ms
        with self._transaction():
            self._db.execute("INSERT INTO sessions VALUES (?, ?)", (session.key, expires_ms))

    def _end_sessions(self, keys: Sequence[str]) -> None:
        if keys:
            with self._transaction():
                self._db.executemany("DELETE FROM entries WHERE session = ?", [(key,) for key in keys])
                self._db.executemany("DELETE FROM sessions WHERE id = ?", [(key,) for key in keys])

    def _look_around(
        self, watches: Sequence[_Watch], sessions: Sequence[SqliteSession]
    ) -> tuple[Sequence[_Watch], Sequence[SqliteSession]]:
        lost = self._renew(sessions)
        now_ms = self._clock.now_ms()
        over = [key for (key,) in self._db.execute("SELECT id FROM sessions WHERE expires_ms < ?", (now_ms,))]
        self._end_sessions(over)
        (data_version,) = self._db.execute("PRAGMA data_version").fetchone()
        state = (data_version, self._db.total_changes)  # changes of others, and of this connection
        if state == self._state:
            return [], lost
        self._state = state
        changed = []
        for watch in watches:
            seen = self._seen(watch.name)
            if watch.seen is not None and seen != watch.seen:
                changed.append(watch)
            watch.seen = seen
        return changed, lost

    def _renew(self, sessions: Sequence[SqliteSession]) -> Sequence[SqliteSession]:
        """Prolong the leases that are due; those that have ended before."""
        now = self._loop.time()
        due = [session for session in sessions if session.renew_at <= now]
        if not due:
            return []
        lost = []
        expires = self._clock.now_ms()
        self._db.execute("PRAGMA synchronous=NORMAL")  # no fsync each few seconds for what a crash ends anyway
        try:
            with self._transaction():
                for session in due:
                    changed = self._db.execute(
                        "UPDATE sessions SET expires_ms = ? WHERE id = ?",
                        (expires + session.time_to_live_ms, session.key),
                    )
                    if changed.rowcount == 0:
                        lost.append(session)
                    session.renew_at = now + _ttl(session) / _RENEWALS
        finally:
            self._db.execute("PRAGMA synchronous=FULL")
        return lost


def _ttl(session: SqliteSession) -> float:
    return session.time_to_live_ms / 1000
