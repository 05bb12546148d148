"""The metadata store in one SQLite file: for one machine, with one or more processes.

A thread does all the work, so the event loop never waits for the disk. Changes are durable when they are answered (WAL,
``synchronous=FULL``). Renewals of leases are not: a lease means nothing after a crash. Changes of other processes show
in ``PRAGMA data_version``, which is polled while there is a watch or a session.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Self, TypeVar
from uuid import uuid4

from seglog.cluster.sqlite_file import FileWatch, SqliteFile
from seglog.cluster.store import (
    CERTAIN,
    BackgroundTasks,
    CommitStep,
    MetadataStore,
    Names,
    SessionLostError,
    StoreClosedError,
    StoreFailedError,
    VersionedValue,
    Versions,
    WatchCallback,
    Watches,
    check_commit,
)
from seglog.core.clock import Clock, SystemClock

_LOOK_SECONDS: Final = 0.5
"""How often leases are checked."""
_REMOVED_SECONDS: Final = 60.0
"""How often the log says that the file was removed."""
_RENEWALS: Final = 3
"""How often a lease is renewed in its time to live."""
_log: Final = logging.getLogger("seglog.cluster")

T = TypeVar("T")


class SqliteSession:
    """A lease: a row with a number that rises while it is renewed."""

    def __init__(self, store: SqliteStore, key: str, time_to_live_ms: int, lost: Callable[[], None]) -> None:
        self.key = key
        self.seconds = time_to_live_ms / 1000
        self.renew_at = 0.0
        """In the loop's time."""
        self.renewed_at = 0.0
        """In the clock's time: a process that was stopped sees at once for how long."""
        self.lost = lost
        self.is_alive = True
        self._store = store

    @property
    def is_certain(self) -> bool:
        return self.is_alive and self._store.seconds() - self.renewed_at < self.seconds * CERTAIN

    async def close(self) -> None:
        await self._store.end_session(self)

    def end(self) -> None:
        """The session is over, closed or lost."""
        self.is_alive = False

    def renewed(self, at: float, *, next_at: float) -> None:
        """It was confirmed ``at`` a time of the clock; the next renewal is due at ``next_at`` of the loop."""
        self.renewed_at = at
        self.renew_at = next_at


class SqliteStore(MetadataStore):
    """Made by `open`; `seglog.cluster.store.MetadataStore` describes its methods."""

    def __init__(self, path: str, clock: Clock) -> None:
        """For `open`."""
        self._path = path
        self.seconds = clock.monotonic
        self._loop = asyncio.get_running_loop()
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="seglog-metadata")
        self._file = SqliteFile(path)
        self._file_watch: FileWatch | None = None
        self._watches = Watches(self._loop)
        self._sessions: list[SqliteSession] = []
        self._timer: asyncio.TimerHandle | None = None
        self._looking: asyncio.Task[None] | None = None
        self._background = BackgroundTasks()
        self._must_look = False
        self._is_closed = False
        self._removed_at = -_REMOVED_SECONDS
        """When the log last said that the file was removed; used by the thread."""

    @classmethod
    async def open(cls, path: str | os.PathLike[str], clock: Clock | None = None) -> Self:
        """Open or create the store's file; ``:memory:`` is private to this store. Raises `StoreFailedError`."""
        store = cls(os.fspath(path), clock or SystemClock())
        try:
            await store._call(store._file.connect)
        except BaseException:
            store._is_closed = True
            store._executor.shutdown()
            raise
        return store

    # Values

    async def get(self, name: str) -> VersionedValue | None:
        return await self._call(lambda: self._file.find(name))

    async def get_many(self, names: Collection[str]) -> dict[str, VersionedValue]:
        return await self._call(lambda: self._file.find_many(names))

    async def load(self, name: str) -> dict[str, VersionedValue]:
        return await self._call(lambda: self._file.load(name))

    async def list(self, name: str) -> Names:
        return await self._call(lambda: self._file.children(name))

    async def commit(self, steps: Sequence[CommitStep]) -> Versions:
        session = check_commit(steps)
        key = None
        if session is not None:
            assert isinstance(session, SqliteSession)
            if not session.is_alive:
                raise SessionLostError(f"the session in {self._path} has ended")
            key = session.key
        versions = await self._call(lambda: self._file.commit(steps, key))
        self._look_soon()
        return versions

    # Watches and sessions

    def watch(self, name: str, changed: WatchCallback) -> Callable[[], None]:
        if not self._watches:
            self._submit(self._file.begin_watch)
        end = self._watches.add(name, changed)
        if self._file_watch is None and self._path != ":memory:":
            self._file_watch = FileWatch(self._path, lambda: self._loop.call_soon_threadsafe(self._look_soon))
            self._file_watch.start()
        self._look_later()
        return end

    async def session(self, time_to_live_ms: int, lost: Callable[[], None]) -> SqliteSession:
        if time_to_live_ms < 1:
            raise ValueError(f"a session cannot have a time to live of {time_to_live_ms} ms")
        session = SqliteSession(self, uuid4().hex, time_to_live_ms, lost)
        self._renewed([session])
        await self._call(lambda: self._file.begin_session(session.key, time_to_live_ms))
        self._sessions.append(session)
        self._look_later()
        return session

    async def end_session(self, session: SqliteSession) -> None:
        if session in self._sessions:
            self._sessions.remove(session)
            session.end()
            await self._call(lambda: self._file.end_sessions([session.key]))
            self._look_soon()

    async def close(self) -> None:
        if self._is_closed:
            return
        keys = [session.key for session in self._sessions]
        for session in self._sessions:
            session.end()
        self._sessions.clear()
        self._watches.end_all()
        if self._timer is not None:
            self._timer.cancel()
        self._file.give_up()
        done = self._submit(lambda: self._disconnect(keys))
        self._is_closed = True
        try:
            await done
            if self._looking is not None:
                await self._looking
        finally:
            self._executor.shutdown()

    def _disconnect(self, sessions: Sequence[str]) -> None:
        """Runs in the thread."""
        if self._file_watch is not None:
            self._file_watch.end()
        try:
            self._file.disconnect(sessions)
        except sqlite3.OperationalError as error:  # another process holds the file's lock
            _log.warning("%s: sessions were not closed, they end by their timeouts: %s", self._path, error)

    def _submit(self, act: Callable[[], T]) -> asyncio.Future[T]:
        if self._is_closed:
            raise StoreClosedError(f"{self._path} is closed")
        return self._loop.run_in_executor(self._executor, act)

    async def _call(self, act: Callable[[], T]) -> T:
        try:
            return await self._submit(act)
        except sqlite3.Error as error:
            raise StoreFailedError(f"{self._path}: {error}") from error

    async def until_broken(self) -> str:
        error = await self._background.until_failed()
        return f"{self._path}: leases are not renewed any more: {error!r}"

    # Leases and changes

    def _look_soon(self) -> None:
        """After a change, call the watches of this process at once."""
        if self._looking is not None:
            self._must_look = True
        elif self._watches and not self._is_closed:
            self._looking = self._background.begin(self._look(), "seglog-store-look")

    def _look_later(self) -> None:
        if self._timer is None and not self._is_closed and (self._watches or self._sessions):
            shortest = min((one.seconds for one in self._sessions), default=_LOOK_SECONDS * _RENEWALS * 2)
            self._timer = self._loop.call_later(min(_LOOK_SECONDS, shortest / _RENEWALS / 2), self._timer_rings)

    def _timer_rings(self) -> None:
        self._timer = None
        if self._looking is None:
            self._looking = self._background.begin(self._look(), "seglog-store-look")
        else:
            self._look_later()

    async def _look(self) -> None:
        """Renew leases, and call watches and ended sessions."""
        now = self._loop.time()
        sessions = list(self._sessions)
        due = [one for one in sessions if one.renew_at <= now]
        is_watched = bool(self._watches)
        began = self.seconds()
        try:
            names, lost = await self._call(lambda: self._look_around(due, is_watched))
        except (StoreFailedError, StoreClosedError):  # a lease ends only when the file says so
            names, lost = frozenset(), []
        else:
            self._renewed([one for one in due if one not in lost], began)
        finally:
            self._looking = None
        if names is None or names:
            self._watches.tell(names)
        for session in lost:
            if session in self._sessions:
                self._sessions.remove(session)
                session.end()
                self._loop.call_soon(session.lost)
        if self._must_look:
            self._must_look = False
            self._look_soon()
        self._look_later()

    def _look_around(
        self, due: Sequence[SqliteSession], is_watched: bool
    ) -> tuple[frozenset[str] | None, Sequence[SqliteSession]]:
        """Runs in the thread."""
        if due:
            self._say_if_removed()
        lost = self._file.renew([session.key for session in due])
        self._file.end_silent(self.seconds)
        names = self._file.changes() if is_watched else frozenset()
        return names, [session for session in due if session.key in lost]

    def _say_if_removed(self) -> None:
        now = self.seconds()
        if now - self._removed_at >= _REMOVED_SECONDS and self._file.is_removed():
            self._removed_at = now
            _log.error(
                "%s was removed. Brokers that have it open continue, no other can start, and it is gone with the "
                "last of them. If it was moved, move it back; otherwise stop all brokers, and restore a backup or "
                "rebuild it with `seglog cluster rebuild`",
                self._path,
            )

    def _renewed(self, sessions: Sequence[SqliteSession], began: float | None = None) -> None:
        for session in sessions:
            at = self.seconds() if began is None else began
            session.renewed(at, next_at=self._loop.time() + session.seconds / _RENEWALS)
