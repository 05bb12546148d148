"""The store of a lone broker: the contract, its file, which values last, and values that another file keeps."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import pytest

from seglog.cluster.embedded_store import EmbeddedStore
from seglog.cluster.sqlite_file import read_first_release
from seglog.cluster.sqlite_store import SqliteStore
from seglog.cluster.store import (
    ANY_VERSION,
    MISSING,
    Change,
    MetadataStore,
    NameExistsError,
    SessionLostError,
    StoreClosedError,
    StoreFailedError,
    VersionedValue,
)
from seglog.core.errors import LogDirFullError
from seglog.core.fs import OsFs
from seglog.core.ground import Ground
from tests.cluster.contract_watches import Told, WatchContract
from tests.kit.crash_fs import CrashFs, SimulatedCrash
from tests.kit.memory_fs import MemoryFs

T = TypeVar("T")
PATH = "/data/seglog.store"


class TestEmbeddedStore(WatchContract):
    async def open_stores(self, path: Path) -> tuple[MetadataStore, MetadataStore]:
        store = await EmbeddedStore.open(path / "seglog.store", Ground())
        return store, store


def on(fs: MemoryFs) -> Ground:
    if not fs.exists("/data"):
        fs.mkdir("/data")
    return Ground(fs=fs)


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


class Shelf:
    """A backing that keeps ``topics`` in a dict; each topic has a state that follows from it."""

    roots: Collection[str] = ("topics", "states")

    def __init__(self) -> None:
        self.topics: dict[str, bytes] = {"topics/old": b"1"}
        self.refusal: Exception | None = None

    def load(self) -> Mapping[str, bytes]:
        return {**self.topics, **{name.replace("topics", "states"): b"led" for name in self.topics}}

    def change(self, changes: Sequence[Change], /) -> Mapping[str, bytes | None]:
        if self.refusal is not None:
            raise self.refusal
        for one in changes:
            if one.value is None:
                del self.topics[one.name]
            else:
                self.topics[one.name] = one.value
        return {one.name.replace("topics", "states"): one.value and b"led" for one in changes}


def test_closing_ends_sessions_and_every_later_call() -> None:
    async def work() -> None:
        store = await EmbeddedStore.open(PATH, on(MemoryFs()))
        session = await store.session(1000, lambda: None)
        await store.create("alive", b"", session)
        await store.close()
        await store.close()
        assert not session.is_alive
        for call in (store.get("alive"), store.create("late", b"")):
            with pytest.raises(StoreClosedError):
                await call

    run(work())


def test_a_session_that_was_closed_makes_nothing() -> None:
    async def work() -> None:
        store = await EmbeddedStore.open(PATH, on(MemoryFs()))
        session = await store.session(1000, lambda: None)
        await session.close()
        with pytest.raises(SessionLostError):
            await store.create("late", b"", session)
        await store.close()

    run(work())


def test_only_lasting_values_without_a_session_outlive_the_process() -> None:
    fs = MemoryFs()

    async def first() -> None:
        store = await EmbeddedStore.open(PATH, on(fs), lasting=("config", "ids"))
        session = await store.session(1000, lambda: None)
        await store.create("config/brokers/1", b'{"a": "\xff"}')
        await store.cas("config/brokers/1", b'{"b": "\xff"}', 0)
        await store.commit([Change("ids", b"1000", MISSING), Change("brokers/1", b"", MISSING)])
        await store.create("config/leased", b"", session)
        await store.create("configs", b"")
        await store.close()

    async def again() -> dict[str, VersionedValue]:
        store = await EmbeddedStore.open(PATH, on(fs), lasting=("config", "ids"))
        found = await store.load("")
        await store.close()
        return found

    run(first())
    assert run(again()) == {"config/brokers/1": VersionedValue(b'{"b": "\xff"}', 1), "ids": VersionedValue(b"1000", 0)}


@pytest.mark.parametrize("crash_at", range(1, 12))
def test_answered_commits_survive_a_power_cut(crash_at: int) -> None:
    disk = MemoryFs()
    disk.mkdir("/data")
    disk.fsync_dir("/")
    fs = CrashFs(disk, crash_at=crash_at)
    answered: list[int] = []

    async def write() -> None:
        store = await EmbeddedStore.open(PATH, Ground(fs=fs))
        for number in range(3):
            await store.commit([Change("count", b"%d" % number, MISSING if number == 0 else ANY_VERSION)])
            answered.append(number)

    async def look() -> VersionedValue | None:
        store = await EmbeddedStore.open(PATH, Ground(fs=disk))
        found = await store.get("count")
        await store.close()
        return found

    with suppress(SimulatedCrash):
        run(write())
    disk.crash(Random(crash_at))
    found = run(look())
    assert (-1 if found is None else int(found.value)) >= max(answered, default=-1)


def test_a_file_that_is_damaged_or_of_a_later_version_is_refused() -> None:
    fs = MemoryFs()
    for data, message in ((b"{", "damaged"), (b'{"version": 9}', "later seglog"), (b'{"version": 1}', "damaged")):
        ground = on(fs)
        fs.write(PATH, data)
        with pytest.raises(StoreFailedError, match=message):
            run(EmbeddedStore.open(PATH, ground))


def test_values_of_an_earlier_store_are_imported_once() -> None:
    fs = MemoryFs()
    asked: list[str] = []

    def former() -> Mapping[str, VersionedValue]:
        asked.append("former")
        return {"ids": VersionedValue(b"7000", 7), "brokers/1": VersionedValue(b"", 0)}

    async def load() -> dict[str, VersionedValue]:
        store = await EmbeddedStore.open(PATH, on(fs), lasting=("ids",), former=former)
        found = await store.load("")
        await store.close()
        return found

    assert run(load()) == run(load()) == {"ids": VersionedValue(b"7000", 7)}
    assert asked == ["former"]


def test_values_of_the_backing_are_read_from_and_written_to_it() -> None:
    fs, shelf = MemoryFs(), Shelf()

    async def work() -> None:
        store = await EmbeddedStore.open(PATH, on(fs), backing=shelf)
        assert await store.load("") == {"topics/old": VersionedValue(b"1", 0), "states/old": VersionedValue(b"led", 0)}
        told = Told()
        store.watch("", told)
        assert await store.commit([Change("topics/new", b"2", MISSING), Change("count", b"1", MISSING)]) == [0, 0]
        await told.until("topics/new", "states/new", "count")
        await store.delete("topics/old")
        await told.until("topics/old", "states/old")
        assert (await store.load("states")).keys() == {"states/new"}
        shelf.refusal = LogDirFullError("no room")
        with pytest.raises(LogDirFullError):
            await store.create("topics/third", b"")
        with pytest.raises(NameExistsError):
            await store.create("topics/new", b"")
        assert (await store.load("topics")).keys() == {"topics/new"}
        await store.close()

    run(work())
    assert shelf.topics == {"topics/new": b"2"}
    assert b"topics" not in fs.read(PATH)


def test_the_sqlite_file_of_the_first_release_is_read_and_left_as_it_is(tmp_path: Path) -> None:
    """Including the write-ahead log that a killed broker leaves."""
    former = tmp_path / "seglog.metadata"

    async def first_release() -> dict[str, bytes]:
        store = await SqliteStore.open(former)
        await store.create("producer-ids", b"3000")
        await store.create("config/brokers/default", b"{}")
        left = {file.name: file.read_bytes() for file in tmp_path.iterdir()}  # before it is closed
        await store.close()
        return left

    left = run(first_release())
    for name, data in left.items():
        (tmp_path / name).write_bytes(data)
    expected = {"producer-ids": VersionedValue(b"3000", 0), "config/brokers/default": VersionedValue(b"{}", 0)}
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    assert read_first_release(OsFs(), str(former)) == expected
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before
    for file in tmp_path.iterdir():
        file.unlink()
    former.write_bytes(b"no database" * 1000)
    with pytest.raises(StoreFailedError, match="first release"):
        read_first_release(OsFs(), str(former))
