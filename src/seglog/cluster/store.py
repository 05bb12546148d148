"""The metadata store: a small tree of versioned values, with compare-and-set, watches and sessions.

Names are paths without a leading slash (``brokers/1``); the children of a name are the names directly below it. A value
that was created with a session is deleted when the session ends, or when its process is silent for longer than its time
to live. The store is only for metadata: records, group offsets and transactions are in topics.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Collection, Coroutine, Iterator, Sequence
from typing import Any, ClassVar, Final, NamedTuple, Protocol

from seglog.core.error_codes import ErrorCode
from seglog.core.errors import SeglogError

ANY_VERSION: Final = -1
MISSING: Final = -2
"""The version of a name that has no value."""
MAX_VALUE_BYTES: Final = 1_000_000
"""The largest value; with its name it fits into `MAX_COMMIT_BYTES`."""
MAX_COMMIT_BYTES: Final = 1_040_000
"""The largest commit, by `size_of`: ZooKeeper refuses requests of 1 MiB (``jute.maxbuffer``)."""
CERTAIN: Final = 2 / 3
"""A session is certain for this part of its time to live after its last confirmation. The rest allows for a
confirmation in flight, and for clocks that run at different speeds."""
_STEP_BYTES: Final = 256
_NAME: Final = re.compile(r"[^/\x00]{1,255}(/[^/\x00]{1,255}){0,15}")


Names = list[str]
Versions = list[int]
WatchCallback = Callable[[frozenset[str] | None], None]
"""Is called with the names that may have changed, or None: anything may have."""


class StoreError(SeglogError):
    """The store refused or failed.

    Clients get the code with which Kafka's brokers answer if their controller cannot be reached, and retry.
    """

    code = ErrorCode.REQUEST_TIMED_OUT
    retriable: ClassVar[bool] = True


class CommitConflictError(StoreError):
    """A step of a commit does not fit the current values. Nothing was changed."""


class NameExistsError(CommitConflictError):
    """The name has a value already."""


class NoSuchNameError(CommitConflictError):
    """The name has no value."""


class VersionChangedError(CommitConflictError):
    """The value was changed since it was read."""


class SessionLostError(StoreError):
    """The session has ended; its values are gone."""


class StoreClosedError(StoreError):
    """The store was closed."""


class StoreFailedError(StoreError):
    """The store's disk or connection fails. Nothing was changed; the call may be retried."""


class NoSuchStoreError(StoreFailedError):
    """The address is that of no metadata store, and none was to be created."""


class StoreAwayError(StoreFailedError):
    """No server of the store answers; it may start later."""


class StoreRefusedError(StoreError):
    """The store refuses this client: its certificate, its login, or its permissions. To try again does not help."""


class UnknownOutcomeError(StoreFailedError):
    """The connection was lost during the change, and it is unknown whether it was made: read, then decide."""


class VersionedValue(NamedTuple):
    """A value; its version is 0 when it is created and rises by one with each change. A name that is deleted and
    created again starts at 0 again."""

    value: bytes
    version: int


class StoreSession(Protocol):
    """A lease of this process on the values that it creates with it, renewed until it is closed."""

    @property
    def is_alive(self) -> bool:
        """It is not closed, and the store has not said that it has ended."""

    @property
    def is_certain(self) -> bool:
        """It is alive, and was confirmed so recently that no other client can have seen its end. While this is False, a
        broker decides nothing that only the holder of the session may decide. It may become True again."""

    async def close(self) -> None:
        """End the session and delete its values."""


class Change(NamedTuple):
    """A step of a commit: set ``value`` (None: delete it) if ``version`` is the current version.

    ``version`` is `MISSING` to create, otherwise that of the value, or `ANY_VERSION`. A value that is created with a
    ``session`` is deleted with it.
    """

    name: str
    value: bytes | None
    version: int
    session: StoreSession | None = None


class Check(NamedTuple):
    """A step of a commit that changes nothing: the value must be at ``version`` (`ANY_VERSION`: it must exist)."""

    name: str
    version: int


CommitStep = Change | Check


class MetadataStore(Protocol):
    """All methods are called on the event loop in which the store was opened, and never block it.

    After a call has returned, all clients can read its result. Every method may raise `StoreFailedError` and
    `StoreClosedError`.
    """

    async def get(self, name: str) -> VersionedValue | None: ...

    async def get_many(self, names: Collection[str]) -> dict[str, VersionedValue]:
        """Return the values of those names that have one."""

    async def load(self, name: str) -> dict[str, VersionedValue]:
        """Return the value at ``name`` and all values below it, by full name; "" loads everything. Changes made
        meanwhile may be included in part: watch first."""

    async def list(self, name: str) -> Names:
        """Return the last parts of the names of all children, sorted; "" lists the top level."""

    async def commit(self, steps: Sequence[CommitStep]) -> Versions:
        """Apply all steps or none, in order, durably. Return the new versions (`MISSING` for a deletion; for a `Check`,
        its own version).

        The error is that of the first step that fails, and names it: `NameExistsError`, `NoSuchNameError`,
        `VersionChangedError`. Also `SessionLostError` and `UnknownOutcomeError`. All sessions of one commit must be the
        same. ValueError for more than `MAX_COMMIT_BYTES` (see `in_commits`).
        """

    async def create(self, name: str, value: bytes, session: StoreSession | None = None) -> int:
        """Commit one new value. Raises `NameExistsError`, `SessionLostError`."""
        return (await self.commit([Change(name, value, MISSING, session)]))[0]

    async def cas(self, name: str, value: bytes, version: int) -> int:
        """Commit one value whose version is ``version`` (or `ANY_VERSION`). Raises `NoSuchNameError`,
        `VersionChangedError`."""
        if version < ANY_VERSION:
            raise ValueError(f"{name}: {version} is not a version")
        return (await self.commit([Change(name, value, version)]))[0]

    async def delete(self, name: str, version: int = ANY_VERSION) -> None:
        """Delete one value; its children stay. Raises `NoSuchNameError`, `VersionChangedError`."""
        await self.commit([Change(name, None, version)])

    def watch(self, name: str, changed: WatchCallback) -> Callable[[], None]:
        """Call ``changed`` on the loop soon after the value or anything below it was created, changed or deleted by any
        client, until the returned function is called. "" watches all names.

        A call may cover several changes, and a change may be in several calls. None means that anything may have
        changed: it follows a time in which changes could not be seen. All changes after the next call of this store has
        returned are covered.
        """

    async def session(self, time_to_live_ms: int, lost: Callable[[], None]) -> StoreSession:
        """Open a session; ``lost`` is called on the loop if it ends without being closed."""

    async def until_broken(self) -> str:
        """Return the reason when this store can never work again in this process. A store without threads that could
        die waits for ever; cancel it."""
        never: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        return await never

    async def close(self) -> None:
        """End all sessions and close the store, after calls in flight."""


class BackgroundTasks:
    """Tasks that come and go with the work of their owner. Nothing awaits them: `until_failed` reports an error."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._failed: asyncio.Future[BaseException] | None = None
        self._failure: BaseException | None = None

    def begin(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled() or (error := task.exception()) is None:
            return
        self._failure = self._failure or error
        if self._failed is not None and not self._failed.done():
            self._failed.set_result(error)

    async def until_failed(self) -> BaseException:
        """Return the first error that has ended a task. One task may wait at a time."""
        if self._failure is None:
            self._failed = asyncio.get_running_loop().create_future()
            return await self._failed
        return self._failure


class Watches:
    """The watches of one store. False if there are none."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._all: list[_Watch] = []

    def __bool__(self) -> bool:
        return bool(self._all)

    def add(self, name: str, changed: WatchCallback) -> Callable[[], None]:
        """Add a watch; the returned function ends it."""
        watch = _Watch(name, changed)
        self._all.append(watch)

        def end() -> None:
            watch.end()
            if watch in self._all:
                self._all.remove(watch)

        return end

    def tell(self, names: frozenset[str] | None) -> None:
        """Call each watch soon with those of the names that it covers; None: anything may have changed."""
        for watch in self._all:
            told = names if names is None else frozenset(name for name in names if is_within(name, watch.name))
            if told is None or told:
                self._loop.call_soon(watch.tell, told)

    def end_all(self) -> None:
        for watch in self._all:
            watch.end()
        self._all.clear()


class _Watch:
    __slots__ = ("_changed", "_is_over", "name")

    def __init__(self, name: str, changed: WatchCallback) -> None:
        self.name = name
        self._changed = changed
        self._is_over = False

    def end(self) -> None:
        self._is_over = True

    def tell(self, names: frozenset[str] | None) -> None:
        if not self._is_over:
            self._changed(names)


def check_name(name: str) -> str:
    """Return ``name`` if it is legal; otherwise raise ValueError.

    >>> check_name("config/topics/web")
    'config/topics/web'
    """
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not a legal name in a metadata store")
    return name


def is_within(name: str, tree: str) -> bool:
    """
    >>> [is_within(name, "a/b") for name in ("a/b", "a/b/c", "a/bc", "a")]
    [True, True, False, False]
    """
    return not tree or name == tree or name.startswith(f"{tree}/")


def size_of(step: CommitStep) -> int:
    """Return the bytes of a step in a commit. ZooKeeper's request has the name once, with three bytes for an escaped
    one, the value, and less than `_STEP_BYTES` around them."""
    value = step.value if isinstance(step, Change) else None
    return 3 * len(step.name.encode()) + len(value or b"") + _STEP_BYTES


def in_commits(steps: Sequence[CommitStep], checks: Sequence[Check] = ()) -> Iterator[list[CommitStep]]:
    """Divide steps into commits that are small enough, each of which begins with ``checks``.

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
    """Return the session of a commit, if it has one. ValueError if the commit is not legal."""
    sessions: list[StoreSession] = []
    for step in steps:
        check_name(step.name)
        least = MISSING
        if isinstance(step, Check) or step.value is None:
            least = ANY_VERSION
        elif len(step.value) > MAX_VALUE_BYTES:
            raise ValueError(f"{step.name}: a value of {len(step.value)} bytes: the limit is {MAX_VALUE_BYTES}")
        if step.version < least:
            raise ValueError(f"{step.name}: version {step.version} of {step!r:.80}")
        if isinstance(step, Change) and step.session is not None and step.session not in sessions:
            if step.version != MISSING:
                raise ValueError(f"{step.name}: only a new value can have a session")
            sessions.append(step.session)
    if len(sessions) > 1:
        raise ValueError("a commit with two sessions")
    size = sum(map(size_of, steps))
    if size > MAX_COMMIT_BYTES:
        raise ValueError(f"a commit of {size} bytes: the limit is {MAX_COMMIT_BYTES}")
    return sessions[0] if sessions else None
