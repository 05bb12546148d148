"""What the metadata stores have in common: changes of one value are commits of one step, and watches are kept here."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from seglog.cluster.store import (
    ANY_VERSION,
    MISSING,
    Change,
    CommitStep,
    StoreSession,
    Versions,
    WatchCallback,
    check_there,
    is_within,
)


class Committing(ABC):
    """`MetadataStore.create`, `cas` and `delete`, of a store that can commit."""

    @abstractmethod
    async def commit(self, steps: Sequence[CommitStep]) -> Versions:
        """See `seglog.cluster.store.MetadataStore`."""

    async def until_broken(self) -> str:
        """See `seglog.cluster.store.MetadataStore`; one without threads that could die waits for ever."""
        never: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        return await never

    async def create(self, name: str, value: bytes, session: StoreSession | None = None) -> int:
        return (await self.commit([Change(name, value, MISSING, session)]))[0]

    async def cas(self, name: str, value: bytes, version: int) -> int:
        return (await self.commit([Change(name, value, check_there(name, version))]))[0]

    async def delete(self, name: str, version: int = ANY_VERSION) -> None:
        await self.commit([Change(name, None, version)])


class Watches:
    """Who wants to know of what, in one store. False while nobody does."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._all: list[_Watch] = []

    def __bool__(self) -> bool:
        return bool(self._all)

    def add(self, name: str, changed: WatchCallback) -> Callable[[], None]:
        """What is returned ends it."""
        watch = _Watch(name, changed)
        self._all.append(watch)

        def end() -> None:
            watch.is_over = True
            if watch in self._all:
                self._all.remove(watch)

        return end

    def tell(self, names: frozenset[str] | None) -> None:
        """Soon, to each what it watches of these names; None: that anything may have changed."""
        for watch in self._all:
            told = names if names is None else frozenset(name for name in names if is_within(name, watch.name))
            if told is None or told:
                self._loop.call_soon(watch.tell, told)

    def end_all(self) -> None:
        for watch in self._all:
            watch.is_over = True
        self._all.clear()


class _Watch:
    __slots__ = ("changed", "is_over", "name")

    def __init__(self, name: str, changed: WatchCallback) -> None:
        self.name = name
        self.changed = changed
        self.is_over = False

    def tell(self, names: frozenset[str] | None) -> None:
        if not self.is_over:
            self.changed(names)
