"""A real store that fails, or delays its answers, when a test says so."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence

from seglog.cluster.store import (
    ANY_VERSION,
    MISSING,
    Change,
    CommitStep,
    MetadataStore,
    Names,
    StoreClosedError,
    StoreError,
    StoreFailedError,
    StoreSession,
    UnknownOutcomeError,
    VersionedValue,
    Versions,
    WatchCallback,
)

BEFORE = "before"
UNKNOWN = "unknown"
AFTER = "after"


class Faulty:
    """Everything goes to ``store``.

    `fail` makes the next commits fail: with `BEFORE` they are not done, with `AFTER` they are done, and with `UNKNOWN`
    and `AFTER` their outcome is unknown to the caller. `hold_commits` delays commits until `release`, `hold_answers`
    the answers of reads.
    """

    def __init__(self, store: MetadataStore) -> None:
        self.store = store
        self.held = asyncio.Event()
        self.repeats = False
        self.commits: list[Sequence[CommitStep]] = []
        self.refused: list[str] = []
        self.sessions: list[StoreSession] = []
        self.users: list[Callable[[], Awaitable[None]]] = []
        """Stop those who use the store."""
        self._going: asyncio.Event | None = None
        self._is_of_answers = False
        self._is_gone = False
        self._failures: list[tuple[str, str]] = []

    async def stop_users(self) -> None:
        for stop in self.users:
            await stop()

    def fail(self, *how: str, at: str = "") -> None:
        """Apply one of ``how`` to each following commit that has a step whose name begins with ``at``."""
        self._failures += [(one, at) for one in how]

    def hold_commits(self) -> None:
        self._going, self._is_of_answers = asyncio.Event(), False
        self.held.clear()

    def hold_answers(self) -> None:
        self._going, self._is_of_answers = asyncio.Event(), True
        self.held.clear()

    def forget_reads(self) -> None:
        """Answer no more reads: the writer is dead, and its write may still arrive."""
        self._is_gone = True

    def release(self) -> None:
        if self._going is not None:
            self._going.set()
            self._going = None

    async def _hold(self, *, is_answer: bool) -> None:
        if self._going is not None and self._is_of_answers == is_answer:
            self.held.set()
            await self._going.wait()

    def _failure(self, steps: Sequence[CommitStep]) -> str:
        if self._failures and any(step.name.startswith(self._failures[0][1]) for step in steps):
            return self._failures.pop(0)[0]
        return ""

    async def get(self, name: str) -> VersionedValue | None:
        found = await self.store.get(name)
        await self._hold(is_answer=True)
        return found

    async def get_many(self, names: Collection[str]) -> dict[str, VersionedValue]:
        if self._is_gone:
            raise StoreClosedError("the process has gone")
        found = await self.store.get_many(names)
        await self._hold(is_answer=True)
        return found

    async def load(self, name: str) -> dict[str, VersionedValue]:
        found = await self.store.load(name)
        await self._hold(is_answer=True)
        return found

    async def list(self, name: str) -> Names:
        return await self.store.list(name)

    async def commit(self, steps: Sequence[CommitStep]) -> Versions:
        self.commits.append(steps)
        await self._hold(is_answer=False)
        how = self._failure(steps)
        if how == BEFORE:
            raise StoreFailedError("the disk is full")
        if how == UNKNOWN:
            raise UnknownOutcomeError("the connection was lost")
        try:
            versions = await self.store.commit(steps)
        except StoreError as error:
            self.refused.append(str(error))
            raise
        if how == AFTER:
            raise UnknownOutcomeError("the connection was lost")
        return versions

    async def create(self, name: str, value: bytes, session: StoreSession | None = None) -> int:
        return (await self.commit([Change(name, value, MISSING, session)]))[0]

    async def cas(self, name: str, value: bytes, version: int) -> int:
        return (await self.commit([Change(name, value, version)]))[0]

    async def delete(self, name: str, version: int = ANY_VERSION) -> None:
        await self.commit([Change(name, None, version)])

    def watch(self, name: str, changed: WatchCallback) -> Callable[[], None]:
        """With ``repeats`` every change is reported three times, once late, and then that anything has changed."""
        loop = asyncio.get_running_loop()

        def tell(names: frozenset[str] | None) -> None:
            changed(names)
            if self.repeats:
                loop.call_soon(changed, names)
                loop.call_later(0.02, changed, names)
                loop.call_later(0.03, changed, None)

        return self.store.watch(name, tell)

    async def session(self, time_to_live_ms: int, lost: Callable[[], None]) -> StoreSession:
        session = await self.store.session(time_to_live_ms, lost)
        self.sessions.append(session)
        return session

    async def until_broken(self) -> str:
        return await self.store.until_broken()

    async def close(self) -> None:
        await self.store.close()
