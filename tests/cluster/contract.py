"""What every metadata store keeps to. An implementation joins with a subclass that says how two clients of one store
are opened."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from seglog.cluster.store import (
    MAX_VALUE_BYTES,
    MetadataStore,
    NameExistsError,
    NoSuchNameError,
    Session,
    SessionLostError,
    StoreClosedError,
    VersionChangedError,
    Versioned,
)

SOON = 10.0


def alive(session: Session) -> bool:
    return session.is_alive


class StoreContract(ABC):
    """``open_store`` opens one more client of the store that belongs to ``path``."""

    @abstractmethod
    async def open_store(self, path: Path) -> MetadataStore: ...

    def run(self, path: Path, work: Callable[[MetadataStore, MetadataStore], Coroutine[Any, Any, None]]) -> None:
        async def with_two() -> None:
            one, other = await self.open_store(path), await self.open_store(path)
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
            assert await other.get("a") == Versioned(b"1", 0)
            assert await other.cas("a", b"", 0) == 1
            assert await one.get("a") == Versioned(b"", 1)
            assert await one.cas("a", b"3", -1) == 2
            await one.delete("a", 2)
            assert await other.get("a") is None

        self.run(tmp_path, work)

    def test_what_does_not_fit_is_refused(self, tmp_path: Path) -> None:
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
                with pytest.raises(ValueError, match="no name"):
                    await one.create(name, b"")
            with pytest.raises(ValueError, match="at most"):
                await one.create("large", b"x" * (MAX_VALUE_BYTES + 1))
            assert await one.get("a") == Versioned(b"1", 0)

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

        self.run(tmp_path, work)

    def test_of_many_who_change_at_once_each_counts_once(self, tmp_path: Path) -> None:
        async def work(one: MetadataStore, other: MetadataStore) -> None:
            await one.create("count", b"0")

            async def add(store: MetadataStore) -> None:
                while True:
                    found = await store.get("count")
                    assert found is not None
                    try:
                        await store.cas("count", b"%d" % (int(found.value) + 1), found.version)
                    except VersionChangedError:
                        continue
                    return

            await asyncio.gather(*(add(store) for store in (one, other) for _ in range(20)))
            assert await one.get("count") == Versioned(b"40", 40)

        self.run(tmp_path, work)

    # Watches

    def test_a_watch_tells_of_changes_here_and_elsewhere(self, tmp_path: Path) -> None:
        async def work(one: MetadataStore, other: MetadataStore) -> None:
            changed = asyncio.Event()
            end = one.watch("a", changed.set)
            await one.get("a")  # the watch is there
            for change in (
                other.create("a", b""),
                other.cas("a", b"1", 0),
                one.create("a/b/c", b""),
                other.delete("a/b/c"),
                one.delete("a"),
            ):
                await change
                await asyncio.wait_for(changed.wait(), SOON)
                changed.clear()
            marker = asyncio.Event()
            one.watch("ab", marker.set)
            await one.get("a")
            end()
            await other.create("a", b"")
            await other.create("ab", b"")
            await asyncio.wait_for(marker.wait(), SOON)
            assert not changed.is_set()

        self.run(tmp_path, work)

    # Sessions

    def test_what_a_session_made_goes_with_it(self, tmp_path: Path) -> None:
        async def work(one: MetadataStore, other: MetadataStore) -> None:
            gone = asyncio.Event()
            session = await one.session(10_000, lambda: None)
            await one.create("alive/1", b"", session)
            await one.create("stays", b"")
            other.watch("alive", gone.set)
            await other.get("alive")
            assert alive(session)
            await session.close()
            assert not session.is_alive
            await asyncio.wait_for(gone.wait(), SOON)
            assert await other.list("") == ["stays"]
            with pytest.raises(SessionLostError):
                await one.create("late", b"", session)

        self.run(tmp_path, work)

    def test_a_session_lives_longer_than_its_time_while_its_store_does(self, tmp_path: Path) -> None:
        async def work(one: MetadataStore, other: MetadataStore) -> None:
            lost: list[bool] = []
            session = await one.session(600, lambda: lost.append(True))
            await one.create("alive", b"", session)
            shorter = await other.session(600, lambda: None)
            deadline = asyncio.get_running_loop().time() + 2
            while asyncio.get_running_loop().time() < deadline:
                assert await other.get("alive") is not None
                await asyncio.sleep(0.05)
            assert session.is_alive
            assert shorter.is_alive
            assert lost == []

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

        self.run(tmp_path, work)
