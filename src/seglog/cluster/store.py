"""The metadata store: a small tree of versioned values, with compare-and-set, watches and sessions.

Names are paths without a leading slash (``brokers/1``); a name's children are the names directly below it. What a
session has made goes when the session ends, or when its process is silent for longer than its time to live. It is for
metadata only: records, group offsets and transactions are in topics.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import ClassVar, Final, NamedTuple, Protocol

from seglog.core.error_codes import ErrorCode
from seglog.core.errors import SeglogError

ANY_VERSION: Final = -1
MISSING: Final = -2
"""The version of a name that has no value."""
MAX_VALUE_BYTES: Final = 1_000_000
"""One value, so that with its name it fits into `MAX_COMMIT_BYTES`."""
MAX_COMMIT_BYTES: Final = 1_040_000
"""All steps of a commit by `size_of`: ZooKeeper takes no request of 1 MiB (``jute.maxbuffer``)."""
CERTAIN: Final = 2 / 3
"""For which part of its time to live after it was last confirmed a session is certain. The rest is for a confirmation
that is on its way, and for clocks that do not go at the same speed."""
_STEP_BYTES: Final = 256
_NAME: Final = re.compile(r"[^/\x00]{1,255}(/[^/\x00]{1,255}){0,15}")


Names = list[str]
Versions = list[int]
WatchCallback = Callable[[frozenset[str] | None], None]
"""Is told the names that may have changed, or None: anything may have."""


class StoreError(SeglogError):
    """The store did not do what it was asked to."""


class NameExistsError(StoreError):
    """There is a value of that name already."""


class NoSuchNameError(StoreError):
    """There is no value of that name."""


class VersionChangedError(StoreError):
    """Someone else has changed the value since it was read."""


class SessionLostError(StoreError):
    """The session has ended: what it had made is gone."""


class StoreClosedError(StoreError):
    """The store was closed."""


class StoreFailedError(StoreError):
    """The store's own disk or connection fails. Nothing was changed; it may be tried again."""

    code = ErrorCode.UNKNOWN_SERVER_ERROR
    retriable: ClassVar[bool] = True


class StoreAwayError(StoreFailedError):
    """No server of the store answers: it may be started later."""


class UnknownOutcomeError(StoreFailedError):
    """The connection was lost with the change under way, and nobody can say whether it was made: read, then decide."""


class VersionedValue(NamedTuple):
    """A value; its version is 0 when it is created and grows by one with each change. A name that is deleted and made
    anew begins at 0 again."""

    value: bytes
    version: int


class StoreSession(Protocol):
    """A lease of this process on what it makes with it, renewed until it is closed."""

    @property
    def is_alive(self) -> bool:
        """It has not been closed, and the store has not said that it is over."""

    @property
    def is_certain(self) -> bool:
        """It is alive, and was confirmed so lately that nobody else can have seen its end. While this is False a broker
        decides nothing that only the holder of the session may decide; it may become True again."""

    async def close(self) -> None:
        """End it, and with it what it has made."""


class Change(NamedTuple):
    """One step of a commit: ``value`` is to be there (None: nothing is), if ``version`` is what is there now.

    ``version`` is `MISSING` to create, else that of the value, or `ANY_VERSION`. What is created with a ``session``
    goes with it.
    """

    name: str
    value: bytes | None
    version: int
    session: StoreSession | None = None


class Check(NamedTuple):
    """One step of a commit that changes nothing: the value is at ``version`` (`ANY_VERSION`: it is there)."""

    name: str
    version: int


CommitStep = Change | Check


class MetadataStore(Protocol):
    """All methods are called from the event loop that the store was opened in, and never block it.

    What one client was answered, all clients can read from then on. Every method may raise `StoreFailedError` and
    `StoreClosedError`.
    """

    async def get(self, name: str) -> VersionedValue | None: ...

    async def get_many(self, names: Collection[str]) -> dict[str, VersionedValue]:
        """Those of the names that have a value."""

    async def load(self, name: str) -> dict[str, VersionedValue]:
        """The value at ``name`` and all values below it, by full name. "" has everything. What is changed meanwhile may
        be there in part: watch first."""

    async def list(self, name: str) -> Names:
        """The last parts of the names of all children, sorted. "" has those at the top."""

    async def commit(self, steps: Sequence[CommitStep]) -> Versions:
        """All steps or none, one after the other, on the disk when this returns; the versions that they have made
        (`MISSING` by a delete; for a `Check`, its own).

        The error is of the first step that cannot be done, and names it: `NameExistsError`, `NoSuchNameError`,
        `VersionChangedError`. `SessionLostError`; all sessions in one commit are the same one. `UnknownOutcomeError`.
        ValueError for more than `MAX_COMMIT_BYTES` (see `in_commits`).
        """

    async def create(self, name: str, value: bytes, session: StoreSession | None = None) -> int:
        """A commit of one new value. `NameExistsError`, `SessionLostError`."""
        return (await self.commit([Change(name, value, MISSING, session)]))[0]

    async def cas(self, name: str, value: bytes, version: int) -> int:
        """A commit of one value whose version is ``version`` (or `ANY_VERSION`). `NoSuchNameError`,
        `VersionChangedError`."""
        return (await self.commit([Change(name, value, check_there(name, version))]))[0]

    async def delete(self, name: str, version: int = ANY_VERSION) -> None:
        """`NoSuchNameError`, `VersionChangedError`. Children stay."""
        await self.commit([Change(name, None, version)])

    def watch(self, name: str, changed: WatchCallback) -> Callable[[], None]:
        """Call ``changed`` on the loop soon after the value or anything below it was made, changed or deleted, whoever
        did it, until the function that is returned is called. "" is all names.

        Several changes may be told of at once, and one more than once. None says that anything may have changed: it
        comes after a time in which changes could not be seen. Whatever changes after the next call of this store has
        returned is told.
        """

    async def session(self, time_to_live_ms: int, lost: Callable[[], None]) -> StoreSession:
        """A new session; ``lost`` is called on the loop if it ends without being closed."""

    async def until_broken(self) -> str:
        """Return when this store can never work again in this process, and say why. Cancel it. A store without threads
        that could die waits for ever."""
        never: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        return await never

    async def close(self) -> None:
        """End all sessions and close. Calls that are under way are done before."""


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


def check_name(name: str) -> str:
    """``name`` if it may be one, else ValueError.

    >>> check_name("config/topics/web")
    'config/topics/web'
    """
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no name in a metadata store")
    return name


def check_there(name: str, version: int) -> int:
    """``version`` if a value can have it, else ValueError: compare-and-set makes nothing."""
    if version < ANY_VERSION:
        raise ValueError(f"{name}: there is no version {version}")
    return version


def is_within(name: str, tree: str) -> bool:
    """
    >>> [is_within(name, "a/b") for name in ("a/b", "a/b/c", "a/bc", "a")]
    [True, True, False, False]
    """
    return not tree or name == tree or name.startswith(f"{tree}/")


def size_of(step: CommitStep) -> int:
    """Bytes that a step takes of a commit: ZooKeeper's request has the name once, with three bytes for one that must be
    escaped, the value, and less than `_STEP_BYTES` around them."""
    value = step.value if isinstance(step, Change) else None
    return 3 * len(step.name.encode()) + len(value or b"") + _STEP_BYTES


def in_commits(steps: Sequence[CommitStep], checks: Sequence[Check] = ()) -> Iterator[list[CommitStep]]:
    """Steps in commits that are small enough, each of which begins with ``checks``.

    >>> [len(commit) for commit in in_commits([Change("a", bytes(400_000), MISSING)] * 5, [Check("epoch", 3)])]
    [3, 3, 2]
    """
    room = MAX_COMMIT_BYTES - sum(map(size_of, checks))
    commit: list[CommitStep] = []
    size = 0
    for step in steps:
        if commit and size + size_of(step) > room:
            yield [*checks, *commit]
            commit, size = [], 0
        commit.append(step)
        size += size_of(step)
    if commit:
        yield [*checks, *commit]


def check_commit(steps: Sequence[CommitStep]) -> StoreSession | None:
    """The session of a commit. ValueError if it cannot be one."""
    sessions: list[StoreSession] = []
    for step in steps:
        check_name(step.name)
        least = MISSING
        if isinstance(step, Check) or step.value is None:
            least = ANY_VERSION
        elif len(step.value) > MAX_VALUE_BYTES:
            raise ValueError(f"{step.name}: a value of {len(step.value)} bytes: at most {MAX_VALUE_BYTES} are metadata")
        if step.version < least:
            raise ValueError(f"{step.name}: version {step.version} of {step!r:.80}")
        if isinstance(step, Change) and step.session is not None and step.session not in sessions:
            if step.version != MISSING:
                raise ValueError(f"{step.name}: a value gets its session when it is made")
            sessions.append(step.session)
    if len(sessions) > 1:
        raise ValueError("a commit with two sessions")
    size = sum(map(size_of, steps))
    if size > MAX_COMMIT_BYTES:
        raise ValueError(f"a commit of {size} bytes: at most {MAX_COMMIT_BYTES} in one")
    return sessions[0] if sessions else None
