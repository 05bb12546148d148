"""The metadata store of simulated worlds: the contract of all stores, and what a simulation does to it."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from seglog.cluster.store import (
    MISSING,
    Change,
    MetadataStore,
    SessionLostError,
    StoreFailedError,
    UnknownOutcomeError,
    VersionChangedError,
    VersionedValue,
)
from tests.cluster.contract import Work, certain
from tests.cluster.contract_watches import WatchContract
from tests.kit.virtual_loop import VirtualClock, VirtualLoop, World
from tests.kit.virtual_store import Fate, VirtualServer, VirtualStore


class TestVirtualStore(WatchContract):
    async def open_stores(self, path: Path) -> tuple[MetadataStore, MetadataStore]:
        raise NotImplementedError  # see `run`

    def run(self, path: Path, work: Work) -> None:
        del path
        world = World(1)
        server = VirtualServer(world, lambda _: Fate(world.between(0.0, 0.003)), lambda: world.between(0.0, 0.003))

        async def with_two(one: VirtualStore, other: VirtualStore) -> None:
            await work(one, other)
            await one.close()
            await other.close()

        play(world, server, with_two)


def play(
    world: World, server: VirtualServer, work: Callable[[VirtualStore, VirtualStore], Coroutine[Any, Any, None]]
) -> None:
    """Two clients, which the server takes for two hosts."""
    loop, clock = VirtualLoop(world, "one"), VirtualClock(world)
    one, other = VirtualStore(server, loop, clock), VirtualStore(server, loop, clock)
    other.host = "other"
    task = loop.create_task(work(one, other))
    assert world.run(task.done, 1000.0)
    task.result()
    loop.kill()


def test_a_lost_call_was_made_or_not() -> None:
    world = World(1)
    fates = [
        Fate(0.01, is_answered=False),
        Fate(0.01, is_applied=False, is_answered=False),
        Fate(0.01, is_applied=False),
    ]

    async def work(one: VirtualStore, other: VirtualStore) -> None:
        with pytest.raises(UnknownOutcomeError):
            await one.create("made", b"")
        with pytest.raises(UnknownOutcomeError):
            await one.create("not made", b"")
        with pytest.raises(StoreFailedError):
            await one.get("made")
        assert await other.load("") == {"made": VersionedValue(b"", 0)}

    play(world, VirtualServer(world, lambda _: fates.pop(0) if fates else Fate(0.001)), work)


def test_returning_client_is_told_to_reload() -> None:
    world = World(1)
    server = VirtualServer(world)

    async def work(one: VirtualStore, other: VirtualStore) -> None:
        told: list[frozenset[str] | None] = []
        one.watch("", told.append)
        server.go_away(["one"], for_all=False)
        await other.create("a", b"")
        with pytest.raises(UnknownOutcomeError):
            await one.create("b", b"")
        assert told == []
        server.come_back()
        assert await one.load("") == {"a": VersionedValue(b"", 0)}
        await one.get("a")
        assert told == [None]

    play(world, server, work)


def test_a_session_ends_by_its_time_unless_the_store_is_away_for_all() -> None:
    world = World(1)
    server = VirtualServer(world)

    async def work(one: VirtualStore, other: VirtualStore) -> None:
        lost: list[float] = []
        session = await one.session(3_000, lambda: lost.append(world.now))
        await one.create("alive", b"", session)
        server.go_away(["one", "other"], for_all=True)
        began = world.now
        while world.now < began + 10:
            with pytest.raises(StoreFailedError):
                await other.get("alive")
        assert session.is_alive
        assert not session.is_certain
        server.come_back()
        while not certain(session):
            await one.get("alive")
        server.go_away(["one"], for_all=False)
        while await other.get("alive") is not None:
            pass
        assert not lost
        server.come_back()
        while not lost:
            await one.get("alive")
        with pytest.raises(SessionLostError):
            await one.create("late", b"", session)

    play(world, server, work)


def test_an_older_copy_takes_its_place() -> None:
    world = World(1)
    server = VirtualServer(world)

    async def work(one: VirtualStore, other: VirtualStore) -> None:
        await one.commit([Change("a", b"1", MISSING), Change("b", b"1", MISSING)])
        copy = server.values()
        assert await one.cas("a", b"2", 0) == 1
        await one.delete("b")
        server.put_back(copy)
        with pytest.raises(VersionChangedError):
            await other.cas("a", b"3", 1)
        assert await other.load("") == copy

    play(world, server, work)
