"""The file of `seglog.cluster.sqlite_store`: its tables, and operations on them, all in one thread.

Every commit has a number, one more than the last. Every entry has the number of the commit that changed it, and so has
each recently deleted name. So two indexes find everything that has changed since a commit.
"""

from __future__ import annotations

import os
import sqlite3
import tempfile
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final, NamedTuple

from seglog.cluster.store import (
    ANY_VERSION,
    MISSING,
    Change,
    CommitStep,
    NameExistsError,
    NoSuchNameError,
    SessionLostError,
    StoreFailedError,
    VersionChangedError,
    VersionedValue,
)
from seglog.core.fs import Fs, OsFs, write_private

_FORMAT: Final = 2
"""In ``PRAGMA user_version``: a file of a later seglog is refused, one of an earlier is converted."""
_NEW: Final = """
    CREATE TABLE entries (name TEXT PRIMARY KEY, value BLOB NOT NULL, version INTEGER NOT NULL, session TEXT,
        number INTEGER NOT NULL DEFAULT 0) WITHOUT ROWID;
    CREATE TABLE sessions (id TEXT PRIMARY KEY, time_to_live_ms INTEGER NOT NULL, renewals INTEGER NOT NULL)
        WITHOUT ROWID;
"""
_FROM_1: Final = """
    ALTER TABLE entries ADD COLUMN number INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE sessions RENAME TO sessions_1;
    CREATE TABLE sessions (id TEXT PRIMARY KEY, time_to_live_ms INTEGER NOT NULL, renewals INTEGER NOT NULL)
        WITHOUT ROWID;
    INSERT INTO sessions SELECT id, 1000, 0 FROM sessions_1;
    DROP TABLE sessions_1;
"""
_SINCE_2: Final = """
    CREATE INDEX entries_by_number ON entries (number);
    CREATE INDEX entries_by_session ON entries (session) WHERE session IS NOT NULL;
    CREATE TABLE deleted (name TEXT PRIMARY KEY, number INTEGER NOT NULL) WITHOUT ROWID;
    CREATE INDEX deleted_by_number ON deleted (number);
    CREATE TABLE commits (number INTEGER NOT NULL, forgotten INTEGER NOT NULL);
    INSERT INTO commits VALUES (0, 0);
"""
_BUSY_SECONDS: Final = 10.0
_BUSY_STEP_SECONDS: Final = 0.5
"""How long SQLite itself waits for a lock. In between, `SqliteFile.give_up` ends the wait."""
_OPENINGS: Final = 100
_PRIMARY_CODE: Final = 0xFF
"""The mask of a primary result code of SQLite, without its extension (``SQLITE_BUSY_SNAPSHOT``)."""
MAX_DELETED: Final = 10_000
"""Deleted names that are kept for watches. A watch that is further behind gets None: anything may have changed."""
_TIDY_EVERY: Final = 64
"""Commits between two checks of the number of deleted names."""
_POLL_SECONDS: Final = 0.03
_LEASES_SECONDS: Final = 0.25
"""How often the leases of others are checked."""
_AWAY: Final = 1 / 3
"""If the file is away for this part of a lease's time, the lease starts again: its holder renews it that often."""


class FileReplacedError(sqlite3.OperationalError):
    """Another file has the name of the open one. Other brokers use that file, and each store would elect a leader."""

    sqlite_errorcode = sqlite3.SQLITE_READONLY_DBMOVED


class _Lease(NamedTuple):
    renewals: int
    since: float
    """When this number was seen first, in seconds of this process's clock."""


class SqliteFile:
    """Call `connect` first. All other methods raise sqlite3.Error if the disk fails or another process holds the
    lock."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._db: sqlite3.Connection
        self._identity: tuple[int, int] | None = None
        """Device and inode of the opened file; None for one in memory."""
        self._state = (-1, -1)
        self._told = 0
        """The commit up to which watches know everything."""
        self._leases: dict[str, _Lease] = {}
        self._leases_at = 0.0
        self._has_given_up = threading.Event()

    def give_up(self) -> None:
        """Stop waiting for locks, from any thread: the process ends, and its leases end by their time."""
        self._has_given_up.set()

    def connect(self) -> None:
        """Open the file. Raises `StoreFailedError` for one of a later version.

        If several processes open a new file together, SQLite reports at once that it is locked while one of them
        changes the journal mode: its timeout does not apply to that.
        """
        for _ in range(_OPENINGS):
            try:
                self._connect()
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode != sqlite3.SQLITE_BUSY:
                    raise
            else:
                return
            threading.Event().wait(_BUSY_SECONDS / _OPENINGS)
        self._connect()

    def _connect(self) -> None:
        if self._path != ":memory:":
            with suppress(OSError):  # it is there already, or SQLite says why it cannot be
                write_private(self._path, b"")
        self._db = sqlite3.connect(self._path, timeout=_BUSY_STEP_SECONDS, isolation_level=None)
        try:
            if self._format() < _FORMAT:
                self._upgrade()
            else:
                self._db.execute("PRAGMA journal_mode=WAL")
                self._db.execute("PRAGMA synchronous=FULL")
            self._identity = self._found()
        except BaseException:
            self._db.close()
            raise

    def is_removed(self) -> bool:
        """Whether the open file has no name any more; it is lost with the last process that has it open."""
        return self._identity is not None and self._found() is None

    def _found(self) -> tuple[int, int] | None:
        """Return device and inode of the file that has the name now."""
        try:
            found = os.stat(self._path)
        except FileNotFoundError:
            return None
        return found.st_dev, found.st_ino

    def _format(self) -> int:
        (version,) = self._db.execute("PRAGMA user_version").fetchone()
        if version > _FORMAT:
            raise StoreFailedError(f"{self._path} was written by a later seglog (version {version}, not {_FORMAT})")
        return int(version)

    def _upgrade(self) -> None:
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=FULL")
        with self._transaction():
            found = self._format()  # another process may have upgraded it meanwhile
            if found < _FORMAT:
                for statement in ((_NEW, _FROM_1)[found] + _SINCE_2).split(";"):
                    self._db.execute(statement)
                self._db.execute(f"PRAGMA user_version={_FORMAT}")

    def disconnect(self, sessions: Sequence[str]) -> None:
        try:
            self.end_sessions(sessions)
        finally:
            self._db.close()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._lock()
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise

    def _lock(self) -> None:
        """Begin a write transaction when no other process has one. Raises `FileReplacedError`: with a WAL, SQLite does
        not notice that."""
        if self._identity is not None and self._found() not in (None, self._identity):
            raise FileReplacedError(
                "the file was replaced while this process used it: move the former one back, or restart all brokers"
            )
        for _ in range(int(_BUSY_SECONDS / _BUSY_STEP_SECONDS) - 1):
            if self._has_given_up.is_set():
                self._db.execute("PRAGMA busy_timeout=0")
                break
            try:
                self._db.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & _PRIMARY_CODE != sqlite3.SQLITE_BUSY:
                    raise
            else:
                return
        self._db.execute("BEGIN IMMEDIATE")

    # Values

    def find(self, name: str) -> VersionedValue | None:
        row = self._db.execute("SELECT value, version FROM entries WHERE name = ?", (name,)).fetchone()
        return None if row is None else VersionedValue(bytes(row[0]), row[1])

    def find_many(self, names: Collection[str]) -> dict[str, VersionedValue]:
        with self._snapshot():
            found = ((name, self.find(name)) for name in names)
            return {name: value for name, value in found if value is not None}

    def load(self, name: str) -> dict[str, VersionedValue]:
        with self._snapshot():
            rows = self._db.execute(f"SELECT name, value, version FROM entries{_below(name)}", _range(name)).fetchall()
            own = self.find(name)
        found = {found: VersionedValue(bytes(value), version) for found, value, version in rows}
        return found if own is None else {name: own, **found}

    def children(self, name: str) -> list[str]:
        skip = len(name) + 1 if name else 0
        rows = self._db.execute(f"SELECT name FROM entries{_below(name)}", _range(name))
        return sorted({found[skip:].split("/", 1)[0] for (found,) in rows})

    @contextmanager
    def _snapshot(self) -> Iterator[None]:
        """All reads inside see one moment."""
        self._db.execute("BEGIN")
        try:
            yield
        finally:
            self._db.execute("COMMIT")

    def commit(self, steps: Sequence[CommitStep], session: str | None) -> list[int]:
        with self._transaction():
            if session is not None and not self._renewals(session):
                raise SessionLostError(f"the session in {self._path} has ended")
            number = self._next_number() if any(isinstance(step, Change) for step in steps) else 0
            versions = [self._take(step, session, number) for step in steps]
            self._forget(number)
        return versions

    def _next_number(self) -> int:
        self._db.execute("UPDATE commits SET number = number + 1")
        (number,) = self._db.execute("SELECT number FROM commits").fetchone()
        return int(number)

    def _take(self, step: CommitStep, session: str | None, number: int) -> int:
        name = step.name
        if isinstance(step, Change) and step.version == MISSING:
            key = None if step.session is None else session
            try:
                self._db.execute("INSERT INTO entries VALUES (?, ?, 0, ?, ?)", (name, step.value, key, number))
            except sqlite3.IntegrityError as error:
                raise NameExistsError(f"{name} exists in {self._path}") from error
            return 0
        row = self._db.execute("SELECT version FROM entries WHERE name = ?", (name,)).fetchone()
        if row is None:
            raise NoSuchNameError(f"there is no {name} in {self._path}")
        version = int(row[0])
        if step.version not in (ANY_VERSION, version):
            raise VersionChangedError(f"{name} in {self._path} is at version {version}, not {step.version}")
        if not isinstance(step, Change):
            return step.version
        if step.value is None:
            self._db.execute("DELETE FROM entries WHERE name = ?", (name,))
            self._db.execute("INSERT OR REPLACE INTO deleted VALUES (?, ?)", (name, number))
            return MISSING
        self._db.execute(
            "UPDATE entries SET value = ?, version = ?, number = ? WHERE name = ?",
            (step.value, version + 1, number, name),
        )
        return version + 1

    def _forget(self, number: int) -> None:
        """Keep only the latest deleted names."""
        if number == 0 or number % _TIDY_EVERY:
            return
        (count,) = self._db.execute("SELECT count(*) FROM deleted").fetchone()
        if count <= MAX_DELETED:
            return
        last = self._db.execute(
            "SELECT number FROM deleted ORDER BY number DESC LIMIT 1 OFFSET ?", (MAX_DELETED // 2,)
        ).fetchone()
        self._db.execute("DELETE FROM deleted WHERE number <= ?", last)
        self._db.execute("UPDATE commits SET forgotten = ?", last)

    # Changes

    def begin_watch(self) -> None:
        """From here on `changes` returns everything."""
        (self._told,) = self._db.execute("SELECT number FROM commits").fetchone()

    def changes(self) -> frozenset[str] | None:
        """Return the names that any process has changed since the last call, None if they are too many to know."""
        (data_version,) = self._db.execute("PRAGMA data_version").fetchone()
        state = (data_version, self._db.total_changes)  # changes of others, and of this connection
        if state == self._state:
            return frozenset()
        with self._snapshot():
            number, forgotten = self._db.execute("SELECT number, forgotten FROM commits").fetchone()
            told, self._told, self._state = self._told, number, state
            if number == told:
                return frozenset()
            if forgotten > told:
                return None
            rows = self._db.execute(
                "SELECT name FROM entries WHERE number > ? UNION ALL SELECT name FROM deleted WHERE number > ?",
                (told, told),
            )
            return frozenset(name for (name,) in rows)

    # Sessions

    def begin_session(self, key: str, time_to_live_ms: int) -> None:
        with self._transaction():
            self._db.execute("INSERT INTO sessions VALUES (?, ?, 1)", (key, time_to_live_ms))

    def _renewals(self, key: str) -> int:
        row = self._db.execute("SELECT renewals FROM sessions WHERE id = ?", (key,)).fetchone()
        return 0 if row is None else int(row[0])

    def renew(self, keys: Sequence[str]) -> frozenset[str]:
        """Renew leases. Return those of them that have ended before."""
        if not keys:
            return frozenset()
        lost = []
        self._db.execute("PRAGMA synchronous=NORMAL")  # no fsync every few seconds: a crash ends leases anyway
        try:
            with self._transaction():
                for key in keys:
                    changed = self._db.execute("UPDATE sessions SET renewals = renewals + 1 WHERE id = ?", (key,))
                    if changed.rowcount == 0:
                        lost.append(key)
        finally:
            self._db.execute("PRAGMA synchronous=FULL")
        return frozenset(lost)

    def end_sessions(self, keys: Sequence[str]) -> None:
        if not keys:
            return
        with self._transaction():
            number = self._next_number()
            for key in keys:
                self._end_session(key, number)
            self._forget(number)

    def _end_session(self, key: str, number: int) -> None:
        self._db.execute("INSERT OR REPLACE INTO deleted SELECT name, ? FROM entries WHERE session = ?", (number, key))
        self._db.execute("DELETE FROM entries WHERE session = ?", (key,))
        self._db.execute("DELETE FROM sessions WHERE id = ?", (key,))

    def end_silent(self, clock: Callable[[], float]) -> None:
        """End the leases that were not renewed in their time. That is measured by this process's clock since it saw the
        last renewal, not by the time of day: setting a clock ends no lease. Time in which this process could not check
        does not count, because the file was locked or its disk full: others could not renew then either. If that took
        longer than a third of a lease, the lease gets its full time again."""
        now = clock()
        if now < self._leases_at:
            return
        absent = max(0.0, now - self._leases_at - 2 * _LEASES_SECONDS)
        self._leases_at = now + _LEASES_SECONDS
        seen: dict[str, _Lease] = {}
        silent: list[tuple[str, int]] = []
        for key, time_to_live_ms, renewals in self._db.execute("SELECT id, time_to_live_ms, renewals FROM sessions"):
            lease = self._leases.get(key)
            if lease is None or lease.renewals != renewals or absent > time_to_live_ms * _AWAY / 1000:
                lease = _Lease(renewals, now)
            elif now - (lease := lease._replace(since=lease.since + absent)).since > time_to_live_ms / 1000:
                silent.append((key, renewals))
            seen[key] = lease
        self._leases = seen
        if silent:
            with self._transaction():
                if clock() - now > _LEASES_SECONDS:
                    return  # the file was locked meanwhile, so no lease could be renewed: the next call counts again
                number = self._next_number()
                for key, renewals in silent:
                    if self._renewals(key) == renewals:  # not renewed in between
                        self._end_session(key, number)


class FileWatch(threading.Thread):
    """Calls ``changed``, in this thread, soon after any process has changed the file at ``path``.

    It polls ``PRAGMA data_version``, which is in shared memory. 33 polls per second cost 0.6 % of a core, most of it
    for waking up; a timer of the event loop and a round trip to another thread would cost twice that.
    """

    def __init__(self, path: str, changed: Callable[[], object]) -> None:
        super().__init__(name="seglog-metadata-watch", daemon=True)
        self._path = path
        self._changed = changed
        self._is_over = threading.Event()

    def run(self) -> None:
        db = sqlite3.connect(self._path, timeout=_BUSY_SECONDS, isolation_level=None)
        try:
            seen = None
            while not self._is_over.wait(_POLL_SECONDS):
                try:
                    found = db.execute("PRAGMA data_version").fetchone()
                except sqlite3.Error:
                    found = None  # `changed` meets the error
                if found is None or found != seen:
                    seen = found
                    self._changed()
        except RuntimeError:
            return  # the event loop was closed before the store
        finally:
            db.close()

    def end(self) -> None:
        self._is_over.set()
        self.join()


def _below(name: str) -> str:
    return " WHERE name > ? AND name < ?" if name else ""


def _range(name: str) -> tuple[str, ...]:
    """The range of all names that begin with "name/": the successor of a slash is "0"."""
    return (f"{name}/", f"{name}0") if name else ()


def read_first_release(fs: Fs, path: str) -> dict[str, VersionedValue]:
    """Return all values of the SQLite file at ``path``, which the first release wrote for a broker that was alone. The
    file is copied, with the WAL that a killed broker leaves, and never written. `StoreFailedError`."""
    own = OsFs()
    with tempfile.TemporaryDirectory(prefix="seglog-") as directory:
        copy = os.path.join(directory, os.path.basename(path))
        for suffix in ("", "-wal"):
            if fs.exists(path + suffix):
                own.write(copy + suffix, fs.read(path + suffix))
        file = SqliteFile(copy)
        try:
            file.connect()
            try:
                return file.load("")
            finally:
                file.disconnect(())
        except sqlite3.Error as error:
            raise StoreFailedError(
                f"{path}: {error}. It has the dynamic configuration and the last producer id of a broker of the first "
                "release: restore it from a backup, or move it away to start without them"
            ) from error
