"""A metadata store in a simulated world: one server, and a client for each process.

Calls take their time there and back, in order for each client. They may be lost, or made without an answer; the server
may be away for some hosts or for all; and an older copy may be put in its place.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

from seglog.cluster.embedded_store import StoreEntry, apply_steps
from seglog.cluster.store import (
    CERTAIN,
    Change,
    CommitStep,
    MetadataStore,
    Names,
    SessionLostError,
    StoreAwayError,
    StoreClosedError,
    StoreError,
    StoreFailedError,
    UnknownOutcomeError,
    VersionedValue,
    Versions,
    WatchCallback,
    Watches,
    check_commit,
    is_within,
)
from seglog.core.clock import Clock
from tests.kit.virtual_loop import VirtualLoop, World

T = TypeVar("T")
_RENEWALS: Final = 5
"""How often in its time to live a session is renewed."""
_GIVES_UP_SECONDS: Final = 0.5
"""How long a client waits at least for a server that is away."""
ADDRESS: Final = "virtual:store"


class Fate(NamedTuple):
    """The fate of a call: ``seconds`` each way, or until the client gives up."""

    seconds: float
    is_applied: bool = True
    is_answered: bool = True


class _ServerLease:
    """A session as the server knows it."""

    __slots__ = ("expires", "seconds")

    def __init__(self, seconds: float, now: float) -> None:
        self.seconds = seconds
        self.expires = now + seconds

    def renew(self, now: float) -> None:
        self.expires = now + self.seconds


class VirtualServer:
    """The values, and who has leases and watches. ``fate`` says what becomes of each call of a host, ``delay`` how long
    it takes until a client learns of a change; ``changed`` gets each change of a value, in the order of commits,
    with the process that made it; None: the server itself, or an operator."""

    def __init__(
        self,
        world: World,
        fate: Callable[[str], Fate] = lambda _: Fate(0.001),
        delay: Callable[[], float] = lambda: 0.001,
        *,
        changed: Callable[[str, bytes | None, VirtualLoop | None], None] = lambda _name, _value, _loop: None,
    ) -> None:
        self.world = world
        self.entries: dict[str, StoreEntry] = {}
        self.away: set[str] = set()
        """Hosts whose calls do not arrive, and which learn nothing."""
        self.is_down = False
        """Away for all: no session expires then."""
        self.copies = 0
        """How often another copy was put in its place: calls of before are lost."""
        self._changed = changed
        self._fate = fate
        self._delay = delay
        self._clients: dict[VirtualStore, None] = {}
        self._leases: dict[VirtualSession, _ServerLease] = {}

    # Values

    def values(self) -> dict[str, VersionedValue]:
        return {name: VersionedValue(entry.value, entry.version) for name, entry in self.entries.items()}

    def commit(self, steps: Sequence[CommitStep], by: VirtualLoop | None = None) -> Versions:
        """At once: for operators, whose command does nothing else. Errors of `MetadataStore.commit`."""
        for step in steps:
            if isinstance(step, Change) and step.session is not None and step.session not in self._leases:
                raise SessionLostError("the session has ended")
        after, versions = apply_steps(self.entries, steps, ADDRESS)
        for name, entry in after.items():
            if entry is None:
                self.entries.pop(name, None)
            else:
                self.entries[name] = entry
        self._tell({step.name: step.value for step in steps if isinstance(step, Change)}, by)
        return versions

    def _tell(self, changes: Mapping[str, bytes | None], by: VirtualLoop | None) -> None:
        if not changes:
            return
        for name, value in changes.items():
            self._changed(name, value, by)
        names = frozenset(changes)
        for client in self._clients:
            client.learns_later(names, self.world.now + self._delay())

    def put_back(self, values: Mapping[str, VersionedValue]) -> None:
        """Be what an older copy was. No broker may be running."""
        self.copies += 1
        self._leases.clear()
        self._clients.clear()
        self.entries = {name: StoreEntry(*value) for name, value in values.items()}

    # Who is there

    def fate(self, host: str) -> Fate:
        fate = self._fate(host)
        if host in self.away:
            return Fate(max(fate.seconds, _GIVES_UP_SECONDS), is_applied=False, is_answered=False)
        return fate

    def join(self, client: VirtualStore) -> None:
        self._clients[client] = None

    def leave(self, client: VirtualStore) -> None:
        self._clients.pop(client, None)

    def go_away(self, hosts: Collection[str], *, for_all: bool) -> None:
        self.away.update(hosts)
        self.is_down = for_all

    def come_back(self) -> None:
        """For all hosts. Sessions that could not be renewed meanwhile get their whole time again."""
        if self.is_down:
            for lease in self._leases.values():
                lease.renew(self.world.now)
        self.is_down = False
        self.away.clear()
        for client in self._clients:
            client.catches_up(self.world.now + self._delay())

    # Leases

    @property
    def sessions(self) -> list[VirtualSession]:
        return list(self._leases)

    def begin(self, session: VirtualSession, seconds: float) -> None:
        self._leases[session] = _ServerLease(seconds, self.world.now)
        self.world.after(seconds, lambda: self._expire(session))

    def renew(self, session: VirtualSession) -> bool:
        lease = self._leases.get(session)
        if lease is None:
            return False
        lease.renew(self.world.now)
        return True

    def end(self, session: VirtualSession) -> None:
        """Remove the values that belong to the session."""
        if self._leases.pop(session, None) is not None:
            gone = sorted(name for name, entry in self.entries.items() if entry.session is session)
            for name in gone:
                del self.entries[name]
            self._tell(dict.fromkeys(gone), None)

    def _expire(self, session: VirtualSession) -> None:
        lease, now = self._leases.get(session), self.world.now
        if lease is None:
            return
        if self.is_down:
            self.world.after(lease.seconds, lambda: self._expire(session))
        elif lease.expires > now:
            self.world.at(lease.expires, lambda: self._expire(session))
        else:
            self.world.note("session expires", session.host)
            self.end(session)


class VirtualSession:
    """A lease, renewed by timers of its process."""

    def __init__(self, store: VirtualStore, time_to_live_ms: int, lost: Callable[[], None]) -> None:
        self.is_alive = True
        self.seconds = time_to_live_ms / 1000
        self.renewed_at = store.now()
        self.lost = lost
        self.host = store.host
        self._store = store

    @property
    def is_certain(self) -> bool:
        return self.is_alive and self._store.now() - self.renewed_at < self.seconds * CERTAIN

    async def close(self) -> None:
        await self._store.end_session(self)

    def end(self) -> None:
        self.is_alive = False

    def confirmed(self, at: float) -> None:
        self.renewed_at = max(self.renewed_at, at)


class VirtualStore(MetadataStore):
    """Made by `open_in`; see `seglog.cluster.store.MetadataStore` for what its methods do."""

    def __init__(self, server: VirtualServer, loop: VirtualLoop, clock: Clock) -> None:
        self.host = loop.name
        self.now = clock.monotonic
        self._server = server
        self._loop = loop
        self._watches = Watches(loop)
        self._sessions: list[VirtualSession] = []
        self._is_closed = False
        self._applied_at = self._answered_at = self._learns_at = 0.0
        self._has_missed = False

    # Values

    async def get(self, name: str) -> VersionedValue | None:
        return (await self.get_many((name,))).get(name)

    async def get_many(self, names: Collection[str]) -> dict[str, VersionedValue]:
        def find() -> dict[str, VersionedValue]:
            entries = self._server.entries
            return {name: VersionedValue(*entries[name][:2]) for name in names if name in entries}

        return await self._call(find)

    async def load(self, name: str) -> dict[str, VersionedValue]:
        return await self._call(
            lambda: {found: value for found, value in self._server.values().items() if is_within(found, name)}
        )

    async def list(self, name: str) -> Names:
        skip = len(name) + 1 if name else 0
        found = await self.load(name)
        return sorted({one[skip:].split("/", 1)[0] for one in found if one != name})

    async def commit(self, steps: Sequence[CommitStep]) -> Versions:
        session = check_commit(steps)
        if session is not None and not session.is_alive:
            raise SessionLostError("the session has ended")
        return await self._call(lambda: self._server.commit(steps, self._loop), changes=True)

    # Watches and sessions

    def watch(self, name: str, changed: WatchCallback) -> Callable[[], None]:
        self._check_open()
        self._server.join(self)
        return self._watches.add(name, changed)

    async def session(self, time_to_live_ms: int, lost: Callable[[], None]) -> VirtualSession:
        if time_to_live_ms < 1:
            raise ValueError(f"a session of {time_to_live_ms} ms")
        session = VirtualSession(self, time_to_live_ms, lost)
        await self._call(lambda: self._server.begin(session, session.seconds), changes=True)
        self._sessions.append(session)
        self._renew_later(session)
        return session

    async def end_session(self, session: VirtualSession) -> None:
        if session in self._sessions:
            self._sessions.remove(session)
            session.end()
            await self._call(lambda: self._server.end(session), changes=True)

    async def close(self) -> None:
        if self._is_closed:
            return
        self._watches.end_all()
        try:
            for session in list(self._sessions):
                await self.end_session(session)
        except StoreError:
            self._sessions.clear()  # they end by their time
        finally:
            self._is_closed = True
            self._server.leave(self)

    def _renew_later(self, session: VirtualSession) -> None:
        self._loop.call_later(session.seconds / _RENEWALS, self._renew, session)

    def _renew(self, session: VirtualSession) -> None:
        if not session.is_alive or self._is_closed:
            return
        asked_at = self.now()

        def renewed(answer: bool | StoreError) -> None:
            if answer is True:
                session.confirmed(asked_at)
            elif answer is False and session in self._sessions:
                self._sessions.remove(session)
                session.end()
                session.lost()

        self._begin(lambda: self._server.renew(session), renewed, changes=False)
        self._renew_later(session)

    # What the server says

    def learns_later(self, names: frozenset[str], at: float) -> None:
        """In order, after a while; what it misses while the server is away it learns afterwards."""
        if self.host in self._server.away:
            self._has_missed = True
            return
        self._learns_at = max(self._learns_at, at)
        self._server.world.at(self._learns_at, lambda: self._learn(names))

    def catches_up(self, at: float) -> None:
        if self._has_missed:
            self._has_missed = False
            self._learns_at = max(self._learns_at, at)
            self._server.world.at(self._learns_at, lambda: self._learn(None))

    def _learn(self, names: frozenset[str] | None) -> None:
        if self.host in self._server.away:
            self._has_missed = True
        elif not self._loop.is_dead:
            self._watches.tell(names)

    # Calls

    def _check_open(self) -> None:
        if self._is_closed:
            raise StoreClosedError(f"{ADDRESS} is closed")

    async def _call(self, act: Callable[[], T], *, changes: bool = False) -> T:
        self._check_open()
        answer: asyncio.Future[T] = self._loop.create_future()
        if self._loop.is_dead:
            answer.cancel()
            return await answer

        def answered(found: T | StoreError) -> None:
            if answer.done():
                return
            if isinstance(found, StoreError):
                answer.set_exception(found)
            else:
                answer.set_result(found)

        self._begin(act, answered, changes=changes)
        return await answer

    def _begin(self, act: Callable[[], T], answered: Callable[[T | StoreError], None], *, changes: bool) -> None:
        """Calls of one client come to the server, and their answers back, in order."""
        server, loop = self._server, self._loop
        world, copies = server.world, server.copies
        fate = server.fate(self.host)

        def answer(found: T | StoreError) -> None:
            self._answered_at = max(self._answered_at, world.now + fate.seconds)
            world.at(self._answered_at, lambda: tell(found))

        def tell(found: T | StoreError) -> None:
            if not loop.is_dead:
                loop.call_soon(answered, found)

        def apply() -> None:
            found: T | StoreError
            lost = (UnknownOutcomeError if changes else StoreFailedError)(f"{ADDRESS} did not answer")
            if not fate.is_applied or server.copies != copies or self.host in server.away:
                answer(lost)
                return
            try:
                found = act()
            except StoreError as error:
                found = error
            answer(found if fate.is_answered else lost)

        self._applied_at = max(self._applied_at, world.now + fate.seconds)
        world.at(self._applied_at, apply)


async def open_in(server: VirtualServer, loop: VirtualLoop, *, clock: Clock, patience_ms: int = 0) -> MetadataStore:
    """A client of the server for the process of ``loop``. `StoreAwayError` if it does not answer in time."""
    store = VirtualStore(server, loop, clock)
    until = clock.monotonic() + patience_ms / 1000
    while True:
        try:
            await store.get("cluster")
        except StoreFailedError as error:
            if clock.monotonic() >= until:
                raise StoreAwayError(f"{ADDRESS} does not answer") from error
        else:
            return store
