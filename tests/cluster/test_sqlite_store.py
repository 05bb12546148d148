"""The store in an SQLite file: the contract, crashes, the file, and the event loop."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

import pytest

from seglog.cluster.sqlite_file import SqliteFile
from seglog.cluster.sqlite_store import SqliteStore
from seglog.cluster.store import MISSING, Change, StoreFailedError, in_commits
from tests.cluster.contract import SOON, SharedStoreContract, alive, certain
from tests.cluster.contract_watches import Told, WatchContract

_PROGRAM = """
import asyncio, sys
from seglog.cluster.sqlite_store import SqliteStore
async def main():
    store = await SqliteStore.open(sys.argv[1])
    session = await store.session(1000, lambda: None)
    await store.create("alive", b"", session)
    for number in range(100_000):
        await store.create(f"done/{number}", b"")
        print(number, flush=True)
asyncio.run(main())
"""


def test_only_its_user_can_read_a_new_file(tmp_path: Path) -> None:
    """It has salted passwords and ACLs. SQLite gives its other files the same permissions."""

    async def main() -> None:
        store = await SqliteStore.open(tmp_path / "store")
        await store.create("x", b"")
        assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}
        await store.close()

    before = os.umask(0o022)
    try:
        asyncio.run(main())
    finally:
        os.umask(before)


class TestSqliteStore(SharedStoreContract, WatchContract):
    def address(self, path: Path) -> str:
        return f"sqlite:{path / 'seglog.metadata'}"

    @contextmanager
    def no_write(self, path: Path) -> Iterator[None]:
        with closing(sqlite3.connect(path / "seglog.metadata", timeout=SOON, isolation_level=None)) as db:
            db.execute("BEGIN IMMEDIATE")
            yield
            db.execute("ROLLBACK")


def test_close_does_not_wait_for_a_locked_file(tmp_path: Path) -> None:
    """The call that waits for the lock gives up, calls queued behind it too, and the sessions end by their time."""

    async def work() -> float:
        store = await SqliteStore.open(tmp_path / "store")
        await store.session(60_000, lambda: None)
        with closing(sqlite3.connect(tmp_path / "store", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            commits = [asyncio.ensure_future(store.create(f"a/{number}", b"")) for number in range(3)]
            await asyncio.sleep(0)
            began = time.monotonic()
            await store.close()
            took = time.monotonic() - began
            for commit in commits:
                with pytest.raises(StoreFailedError, match="locked"):
                    await commit
        return took

    assert asyncio.run(work()) < 10  # 40 s: four times as long as one waits


def test_answered_commits_survive_a_kill_and_leases_expire(tmp_path: Path) -> None:
    path = tmp_path / "store"
    process = subprocess.Popen([sys.executable, "-c", _PROGRAM, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for _ in range(20):
        process.stdout.readline()
    os.kill(process.pid, signal.SIGKILL)
    told = 20 + len(process.stdout.read().split())
    process.wait()
    process.stdout.close()

    async def look() -> None:
        store = await SqliteStore.open(path)
        assert len(await store.list("done")) >= told
        gone = asyncio.Event()
        store.watch("alive", lambda _: gone.set())
        if await store.get("alive") is not None:
            await asyncio.wait_for(gone.wait(), SOON)
        assert await store.get("alive") is None
        await store.close()

    asyncio.run(look())


def test_a_lease_that_others_have_ended_is_said(tmp_path: Path) -> None:
    async def run() -> None:
        store = await SqliteStore.open(tmp_path / "store")
        lost = asyncio.Event()
        session = await store.session(300, lost.set)
        with sqlite3.connect(tmp_path / "store") as other:
            other.execute("DELETE FROM sessions")
        other.close()
        await asyncio.wait_for(lost.wait(), SOON)
        assert not session.is_alive
        await store.close()

    asyncio.run(run())


def test_a_file_of_a_later_version_or_of_none_is_refused(tmp_path: Path) -> None:
    later, none = tmp_path / "later", tmp_path / "none"
    with sqlite3.connect(later) as database:
        database.execute("PRAGMA user_version=99")
    database.close()
    none.write_bytes(b"no database" * 1000)
    for path in (later, none, tmp_path / "missing" / "store"):
        with pytest.raises(StoreFailedError, match=path.name):
            asyncio.run(SqliteStore.open(path))


def test_one_file_is_left(tmp_path: Path) -> None:
    async def run() -> None:
        store = await SqliteStore.open(tmp_path / "store")
        await store.create("a", b"")
        await store.close()

    asyncio.run(run())
    assert os.listdir(tmp_path) == ["store"]


def test_the_loop_goes_on_while_the_disk_is_busy(tmp_path: Path) -> None:
    """Another process holds the write lock: only writers wait."""

    async def run() -> None:
        store = await SqliteStore.open(tmp_path / "store")
        other = sqlite3.connect(tmp_path / "store", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        change = asyncio.create_task(store.create("a", b""))
        for _ in range(100):
            await asyncio.sleep(0)
        assert not change.done()
        other.execute("ROLLBACK")
        other.close()
        assert await change == 0
        await store.close()

    asyncio.run(run())


def test_a_file_of_the_first_version_keeps_its_content(tmp_path: Path) -> None:
    """As seglog 0.1 wrote it: no numbers of commits, and leases by the time of day."""
    with sqlite3.connect(tmp_path / "store") as first:
        first.executescript("""
            CREATE TABLE entries
                (name TEXT PRIMARY KEY, value BLOB NOT NULL, version INTEGER NOT NULL, session TEXT) WITHOUT ROWID;
            CREATE TABLE sessions (id TEXT PRIMARY KEY, expires_ms INTEGER NOT NULL) WITHOUT ROWID;
            INSERT INTO entries VALUES ('cluster', x'01', 0, NULL), ('config/a', x'02', 7, NULL),
                ('brokers/1', x'03', 1, 'lease');
            INSERT INTO sessions VALUES ('lease', 17);
            PRAGMA user_version=1;
        """)
    first.close()

    async def run() -> None:
        stores = await asyncio.gather(*(SqliteStore.open(tmp_path / "store") for _ in range(4)))
        expected = {"brokers/1": (b"\3", 1), "cluster": (b"\1", 0), "config/a": (b"\2", 7)}
        assert await stores[1].load("") == expected
        told = Told()
        stores[0].watch("", told)  # from here on leases are looked at
        await stores[0].get("cluster")  # what others change from here on is told
        assert await stores[1].cas("config/a", b"new", 7) == 8
        await stores[1].delete("cluster")
        await told.until("config/a", "cluster", "brokers/1")  # nobody renews its lease
        assert await stores[2].load("") == {"config/a": (b"new", 8)}
        for store in stores:
            await store.close()

    asyncio.run(run())


def test_watcher_that_missed_too_much_is_told_to_reload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("seglog.cluster.sqlite_file.MAX_DELETED", 100)
    one, other = SqliteFile(str(tmp_path / "store")), SqliteFile(str(tmp_path / "store"))
    one.connect()
    other.connect()
    one.begin_watch()
    for name in map(str, range(150)):
        other.commit([Change(name, b"", MISSING)], None)
        other.commit([Change(name, None, 0)], None)
        if name == "40":
            assert one.changes() == frozenset(str(number) for number in range(41))
    assert one.changes() is None
    assert one.changes() == frozenset()
    other.commit([Change("last", b"", MISSING)], None)
    assert one.changes() == frozenset(["last"])
    with sqlite3.connect(tmp_path / "store") as rows:
        assert rows.execute("SELECT count(*) FROM deleted").fetchone()[0] <= 100
    rows.close()
    for file in (one, other):
        file.disconnect([])


MANY = [Change(f"many/{number}", bytes(50), MISSING) for number in range(10_000)]


def test_a_change_is_found_without_a_look_at_all_names(tmp_path: Path) -> None:
    one, other = SqliteFile(str(tmp_path / "store")), SqliteFile(str(tmp_path / "store"))
    one.connect()
    other.connect()
    one.begin_watch()
    for commit in in_commits(MANY):
        other.commit(commit, None)
    one.changes()
    other.commit([Change("many/7", b"", 0)], None)
    steps: list[None] = []
    one._db.set_progress_handler(lambda: steps.append(None), 1)
    assert one.changes() == frozenset(["many/7"])
    assert 0 < len(steps) < 1_000
    for file in (one, other):
        file.disconnect([])


def test_changes_by_others_are_reported_before_the_next_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("seglog.cluster.sqlite_store._LOOK_SECONDS", 10 * SOON)

    async def run() -> None:
        one, other = await SqliteStore.open(tmp_path / "store"), await SqliteStore.open(tmp_path / "store")
        told = Told()
        other.watch("many", told)
        await other.get("")
        for number in range(20):
            await one.create(f"many/{number}", b"")
            await told.until(f"many/{number}")
        await one.close()
        await other.close()

    asyncio.run(run())


def test_a_lease_that_cannot_be_renewed_is_in_doubt(tmp_path: Path) -> None:
    """Another process holds the write lock for more than two thirds of the lease's time, and releases it."""

    async def run() -> None:
        store = await SqliteStore.open(tmp_path / "store")
        session = await store.session(900, lambda: None)
        other = sqlite3.connect(tmp_path / "store", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        async with asyncio.timeout(SOON):
            while certain(session):
                await asyncio.sleep(0.01)
            assert alive(session)
            other.execute("ROLLBACK")
            while not certain(session):
                await asyncio.sleep(0.01)
        other.close()
        await store.close()

    asyncio.run(run())


def test_time_while_file_was_unavailable_does_not_end_leases(tmp_path: Path) -> None:
    """A file that was locked, or whose disk was full, ends no leases when it is back; later silence does."""
    file = SqliteFile(str(tmp_path / "store"))
    file.connect()
    file.begin_session("other", 2000)

    def is_there() -> bool:
        with sqlite3.connect(tmp_path / "store") as db:
            found = db.execute("SELECT count(*) FROM sessions").fetchone()
        db.close()
        return bool(found == (1,))

    for now in (100.0, 100.6, 101.2, 101.8, 150.0, 150.6, 151.2, 151.8):
        file.end_silent(partial(float, now))
        assert is_there(), now
    locked = iter((152.2, 157.0))  # the file was locked from the check to the commit
    file.end_silent(lambda: next(locked))
    assert is_there()
    for now in (157.0, 157.6, 158.2, 158.8):
        file.end_silent(partial(float, now))
        assert is_there(), now
    file.end_silent(partial(float, 159.2))
    assert not is_there()
    file.disconnect([])


def test_a_file_that_is_removed_is_reported_and_one_that_is_replaced_is_not_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Brokers continued in the removed file without a word, beside others on the new one, each group with its own
    leader."""

    async def run() -> None:
        path, away = tmp_path / "store", tmp_path / "away"
        away.mkdir()
        store = await SqliteStore.open(path)
        session = await store.session(900, lambda: None)
        for file in tmp_path.glob("store*"):
            file.rename(away / file.name)
        await store.create("in the file without a name", b"")
        async with asyncio.timeout(SOON):
            while f"{path} was removed" not in caplog.text:
                await asyncio.sleep(0.01)
            while not certain(session):
                await asyncio.sleep(0.01)
        await (await SqliteStore.open(path)).close()
        with pytest.raises(StoreFailedError, match="the file was replaced while this process used it"):
            await store.create("in one of two", b"")
        async with asyncio.timeout(SOON):
            while certain(session):
                await asyncio.sleep(0.01)
            for file in away.iterdir():
                file.rename(tmp_path / file.name)
            while not certain(session):
                await asyncio.sleep(0.01)
        assert await store.list("") == ["in the file without a name"]
        await store.create("in the file", b"")
        await store.close()

    asyncio.run(run())
