"""The contract of every metadata store: values, commits and sessions (watches and mirrors: `contract_watches`). An
implementation subclasses it and names a store."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from seglog.cluster.store import (
    ANY_VERSION,
    MAX_COMMIT_BYTES,
    MAX_VALUE_BYTES,
    MISSING,
    Change,
    Check,
    CommitStep,
    MetadataStore,
    NameExistsError,
    NoSuchNameError,
    SessionLostError,
    StoreClosedError,
    StoreError,
    StoreSession,
    VersionChangedError,
    VersionedValue,
    in_commits,
)
from seglog.cluster.store_address import open_store
from seglog.core.clock import SystemClock

SOON = 60.0
TIMEOUT_MS = 4000

_CHILD = """
import asyncio, sys
from seglog.cluster.store_address import open_store
from seglog.cluster.store import SessionLostError
from seglog.core.clock import SystemClock

async def main():
    store = await open_store(sys.argv[1], clock=SystemClock(), session_timeout_ms=2000)
    lost = asyncio.Event()
    session = await store.session(2000, lost.set)
    await store.create("alive/child", b"", session)
    assert session.is_certain
    print("ready", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    print("certain" if session.is_certain else "uncertain", flush=True)
    try:
        await store.create("alive/late", b"", session)
        print("created", flush=True)
    except SessionLostError:
        print("refused", flush=True)
    await asyncio.wait_for(lost.wait(), 60)
    print("alive" if session.is_alive else "lost", flush=True)
    await store.close()

asyncio.run(main())
"""

Work = Callable[[MetadataStore, MetadataStore], Coroutine[Any, Any, None]]


def alive(session: StoreSession) -> bool:
    return session.is_alive


def certain(session: StoreSession) -> bool:
    return session.is_certain


class StoreContract(ABC):
    """The contract of any store. If it has a single client, that is both clients of a test."""

    @abstractmethod
    async def open_stores(self, path: Path) -> tuple[MetadataStore, MetadataStore]:
        """Open two clients of the store of ``path``."""

    def run(self, path: Path, work: Work) -> None:
        async def with_two() -> None:
            one, other = await self.open_stores(path)
            try:
                await work(one, other)
            finally:
                await one.close()
                await other.close()

        asyncio.run(with_two())

    # Values

    def test_a_value_is_seen_by_all(self, tmp_path: Path) -> None:
        async def work(one: MetadataStore, other: MetadataStore) -> None:
            assert await one.get("a") is None
            assert await one.create("a", b"1") == 0
            assert await other.get("a") == VersionedValue(b"1", 0)
            assert await other.cas("a", b"", 0) == 1
            assert await one.get("a") == VersionedValue(b"", 1)
            assert await one.cas("a", b"3", -1) == 2
            await one.delete("a", 2)
            assert await other.get("a") is None
            assert await other.create("a", b"") == 0

        self.run(tmp_path, work)

    def test_failed_conditions_and_illegal_names_are_refused(self, tmp_path: Path) -> None:
        async def work(one: MetadataStore, other: MetadataStore) -> None:
            await one.create("a", b"1")
            with pytest.raises(NameExistsError):
                await other.create("a", b"2")
            for act in (other.cas("a", b"2", 1), other.delete("a", 1)):
                with pytest.raises(VersionChangedError):
                    await act
            for act in (other.cas("b", b"2", 0), other.delete("b")):
                with pytest.raises(NoSuchNameError):
                    await act
            for name in ("", "/a", "a/", "a//b", "a" * 256):
                with pytest.raises(ValueError, match="not a legal name"):
                    await one.create(name, b"")
            with pytest.raises(ValueError, match="the limit is"):
                await one.create("large", b"x" * (MAX_VALUE_BYTES + 1))
            with pytest.raises(ValueError, match="is not a version"):
                await one.cas("b", b"", MISSING)
            assert await one.get("a") == VersionedValue(b"1", 0)

        self.run(tmp_path, work)

    def test_the_largest_value_and_strange_names(self, tmp_path: Path) -> None:
        async def work(one: MetadataStore, other: MetadataStore) -> None:
            names = ["é" * 255 + "/ü", "./..", ".", "..", "=", "a:b/c%2F", "a/b:c", "a b/\x01\x7f\uffff", "a/b/c"]
            for number, name in enumerate(names):
                await one.create(name, b"%d" % number)
            assert await other.load("") == {name: VersionedValue(b"%d" % n, 0) for n, name in enumerate(names)}
            large = os.urandom(MAX_VALUE_BYTES)
            await one.create("large", large)
            assert await other.get("large") == VersionedValue(large, 0)

        self.run(tmp_path, work)

    def test_children_are_those_directly_below(self, tmp_path: Path) -> None:
        async def work(one: MetadataStore, other: MetadataStore) -> None:
            for name in ("a", "a/b", "a/c/d", "a-b", "ab", "a/b/e", "b"):
                await one.create(name, b"")
            assert await other.list("") == ["a", "a-b", "ab", "b"]
            assert await other.list("a") == ["b", "c"]
            assert await other.list("a/c") == ["d"]
            assert await other.list("b") == await other.list("none") == []
            await one.delete("a")
            assert await other.list("a") == ["b", "c"]
            await one.delete("a/c/d")
            assert await other.list("a") == ["b"]

        self.run(tmp_path, work)

    def test_a_part_is_loaded(self, tmp_path: Path) -> None:
        async def work(one: MetadataStore, other: MetadataStore) -> None:
            names = ("a/b", "a/c/d", "a-b", "ab", "a/c/d/e", "b")
            for name in names:
                await one.create(name, name.encode())
            assert await other.cas("a/b", b"new", 0) == 1
            every = {name: VersionedValue(name.encode(), 0) for name in names} | {"a/b": VersionedValue(b"new", 1)}
            assert await one.load("") == every
            assert await one.load("a") == {name: every[name] for name in ("a/b", "a/c/d", "a/c/d/e")}
            assert await one.load("a/c") == {name: every[name] for name in ("a/c/d", "a/c/d/e")}
            assert await one.load("b") == {"b": every["b"]}
            assert await one.load("none") == {}
            assert await other.get_many(["a", "a/b", "a/c", "b"]) == {name: every[name] for name in ("a/b", "b")}

        self.run(tmp_path, work)

    # Commits

    def test_a_commit_is_all_or_nothing(self, tmp_path: Path) -> None:
        async def work(one: MetadataStore, other: MetadataStore) -> None:
            steps: list[CommitStep] = [Change("a", b"1", MISSING), Change("b/c", b"1", MISSING), Change("a", b"2", 0)]
            assert await one.commit(steps) == [0, 0, 1]
            before = await other.load("")
            made = Change("new/er", b"", MISSING)
            for bad, error in (
                (Change("a", b"", MISSING), NameExistsError),
                (Change("a", b"", 0), VersionChangedError),
                (Change("b", b"", 0), NoSuchNameError),
                (Change("a", None, 0), VersionChangedError),
                (Change("b", None, ANY_VERSION), NoSuchNameError),
                (Check("b/c", 7), VersionChangedError),
                (Check("b", ANY_VERSION), NoSuchNameError),
            ):
                worse = Change("b/c", b"", 17)
                with pytest.raises(error, match=f"{bad.name} "):
                    await other.commit([made, Change("b/c", b"9", 0), bad, worse])
                assert await one.load("") == before
            steps = [Check("b/c", 0), Check("a", ANY_VERSION), Change("b/c", None, 0), Change("a", b"3", ANY_VERSION)]
            assert await other.commit([*steps, made]) == [0, ANY_VERSION, MISSING, 2, 0]
            assert await one.load("") == {"a": VersionedValue(b"3", 2), "new/er": VersionedValue(b"", 0)}
            assert await one.commit([]) == []

        self.run(tmp_path, work)

    def test_a_commit_has_a_bound(self, tmp_path: Path) -> None:
        async def work(one: MetadataStore, other: MetadataStore) -> None:
            await one.create("epoch", b"")
            steps = [Change(f"many/{number:04}", os.urandom(1000), MISSING) for number in range(1000)]
            with pytest.raises(ValueError, match=f"the limit is {MAX_COMMIT_BYTES}"):
                await one.commit(steps)
            for commit in in_commits(steps, [Check("epoch", 0)]):
                assert (await one.commit(commit))[0] == 0
            assert await other.load("many") == {name: VersionedValue(value or b"", 0) for name, value, _, _ in steps}
            for bad in (Check("epoch", MISSING), Change("epoch", None, MISSING), Change("epoch", b"", -3)):
                with pytest.raises(ValueError, match="version"):
                    await one.commit([bad])

        self.run(tmp_path, work)

    def test_concurrent_compare_and_sets_are_each_applied_once(self, tmp_path: Path) -> None:
        async def work(one: MetadataStore, other: MetadataStore) -> None:
            await one.commit([Change(name, b"0", MISSING) for name in ("count", "same")])

            async def add(store: MetadataStore) -> None:
                while True:
                    found = await store.get_many(["count", "same"])
                    value = b"%d" % (int(found["count"].value) + 1)
                    try:
                        await store.commit([Change(name, value, found["count"].version) for name in ("count", "same")])
                    except VersionChangedError:
                        continue
                    return

            await asyncio.gather(*(add(store) for store in (one, other) for _ in range(20)))
            assert await one.load("") == {name: VersionedValue(b"40", 40) for name in ("count", "same")}

        self.run(tmp_path, work)

    # Sessions

    def test_values_of_a_session_are_removed_when_it_ends(self, tmp_path: Path) -> None:
        async def work(one: MetadataStore, other: MetadataStore) -> None:
            gone = asyncio.Event()
            session = await one.session(60_000, lambda: None)
            assert certain(session)
            await one.create("alive/1", b"", session)
            await one.commit([Change("alive/2", b"", MISSING, session), Change("stays", b"", MISSING)])
            await one.cas("alive/2", b"1", 0)
            other.watch("alive", lambda _: gone.set())
            await other.get("alive")
            assert alive(session)
            await session.close()
            assert not alive(session)
            assert not certain(session)
            while await other.load("") != {"stays": VersionedValue(b"", 0)}:
                await asyncio.wait_for(gone.wait(), SOON)
                gone.clear()
            with pytest.raises(SessionLostError):
                await one.create("late", b"", session)
            with pytest.raises(ValueError, match="only a new value can have a session"):
                await one.commit([Change("stays", b"", 0, session)])

        self.run(tmp_path, work)

    def test_a_session_lives_longer_than_its_time_while_its_store_does(self, tmp_path: Path) -> None:
        async def work(one: MetadataStore, other: MetadataStore) -> None:
            lost: list[bool] = []
            session = await one.session(2000, lambda: lost.append(True))
            await one.create("alive", b"", session)
            shorter = await other.session(2000, lambda: None)
            deadline = asyncio.get_running_loop().time() + 4
            while asyncio.get_running_loop().time() < deadline:
                assert await other.get("alive") is not None
                await asyncio.sleep(0.05)
            assert session.is_alive
            assert shorter.is_alive
            assert lost == []

        self.run(tmp_path, work)


class SharedStoreContract(StoreContract):
    """The contract of a store that several processes share: also leases that end, and clients that close."""

    @abstractmethod
    def address(self, path: Path) -> str:
        """The address of the store of ``path``."""

    def no_write(self, path: Path) -> AbstractContextManager[object]:
        """Inside, no client is in the middle of a write that blocks others."""
        del path
        return nullcontext()

    async def open_store(self, path: Path) -> MetadataStore:
        """Open another client."""
        return await open_store(self.address(path), clock=SystemClock(), session_timeout_ms=TIMEOUT_MS)

    async def open_stores(self, path: Path) -> tuple[MetadataStore, MetadataStore]:
        return await self.open_store(path), await self.open_store(path)

    def test_a_process_that_is_silent_for_too_long_loses_its_session(self, tmp_path: Path) -> None:
        """It is stopped for longer than its time to live. When it wakes it is not certain, and can create nothing."""

        async def work(one: MetadataStore, other: MetadataStore) -> None:
            command = [sys.executable, "-c", _CHILD, self.address(tmp_path)]
            child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            assert child.stdin is not None
            assert child.stdout is not None
            try:
                told: list[str] = [await asyncio.to_thread(child.stdout.readline)]
                gone = asyncio.Event()
                one.watch("alive", lambda _: gone.set())
                assert await one.get("alive/child") is not None
                with self.no_write(tmp_path):  # it would keep the others out for as long as it is stopped
                    child.send_signal(signal.SIGSTOP)
                    os.waitpid(child.pid, os.WUNTRACED)
                while await other.get("alive/child") is not None:
                    await asyncio.wait_for(gone.wait(), SOON)
                    gone.clear()
                child.stdin.write("\n")
                child.stdin.flush()
                child.send_signal(signal.SIGCONT)
                rest, _ = await asyncio.to_thread(child.communicate)
                assert [*told, *rest.splitlines(keepends=True)] == ["ready\n", "uncertain\n", "refused\n", "lost\n"]
            finally:
                child.kill()
                child.wait()
                child.stdin.close()
                child.stdout.close()
            assert await other.load("alive") == {}

        self.run(tmp_path, work)

    def test_closing_ends_everything(self, tmp_path: Path) -> None:
        async def work(one: MetadataStore, other: MetadataStore) -> None:
            session = await one.session(60_000, lambda: None)
            await one.create("alive", b"", session)
            await one.close()
            await one.close()
            assert not session.is_alive
            assert await other.get("alive") is None
            with pytest.raises(StoreClosedError):
                await one.get("alive")
            with pytest.raises(StoreError):
                await one.create("late", b"", session)

        self.run(tmp_path, work)
