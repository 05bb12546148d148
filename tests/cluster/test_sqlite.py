"""The store in a SQLite file: the contract, and what is its own: crashes, its file, the event loop."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from seglog.cluster.sqlite import SqliteStore
from seglog.cluster.store import StoreFailedError
from tests.cluster.contract import SOON, StoreContract

_PROGRAM = """
import asyncio, sys
from seglog.cluster.sqlite import SqliteStore
async def main():
    store = await SqliteStore.open(sys.argv[1])
    session = await store.session(1000, lambda: None)
    await store.create("alive", b"", session)
    for number in range(100_000):
        await store.create(f"done/{number}", b"")
        print(number, flush=True)
asyncio.run(main())
"""


class TestSqliteStore(StoreContract):
    async def open_store(self, path: Path) -> SqliteStore:
        return await SqliteStore.open(path / "seglog.metadata")


def test_what_was_answered_survives_a_kill_and_the_lease_does_not(tmp_path: Path) -> None:
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
        store.watch("alive", gone.set)
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
    """Someone else holds the write lock: whoever changes waits, and everything else does not."""

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
