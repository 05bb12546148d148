"""The metadata store in ZooKeeper: reads, commits and watches.

Below ``/seglog/<cluster>`` there are two nodes::

    names/<first part of the name>/<its other parts>     a value; parts are escaped, with ":" between them
    names/<first part>/=                                 the value of a name of one part
    writers/<a writer>-<number>                          the last transaction of that writer

A node in ``names/*/`` is a value, and nothing else is. A name without a value has no node; a value's version is its
node's; deleting a value leaves the values below its name. The nodes directly below ``names`` are never deleted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, Self, TypeVar
from urllib.parse import quote, unquote
from uuid import uuid4

from seglog.cluster.store import (
    MISSING,
    Change,
    CommitStep,
    MetadataStore,
    NameExistsError,
    Names,
    NoSuchNameError,
    NoSuchStoreError,
    SessionLostError,
    StoreAwayError,
    StoreClosedError,
    StoreFailedError,
    StoreRefusedError,
    VersionChangedError,
    VersionedValue,
    Versions,
    WatchCallback,
    Watches,
    check_commit,
    is_within,
)
from seglog.cluster.zookeeper_connection import (
    BAD_VERSION,
    CONNECTED,
    EXISTS,
    CheckOp,
    ConnectionLostError,
    CreateOp,
    DeleteOp,
    NotAllowedError,
    OpRefusedError,
    SessionEndedError,
    SetDataOp,
    ZooKeeperConnection,
    ZooKeeperOp,
    ZooKeeperRefusedError,
)
from seglog.cluster.zookeeper_security import PLAIN, Access, ZooKeeperSecurity
from seglog.cluster.zookeeper_session import ZooKeeperSession
from seglog.cluster.zookeeper_writer import ZooKeeperWriter
from seglog.core.clock import Clock

_log = logging.getLogger(__name__)

_ROOT: Final = "/seglog"
SECRET: Final = ("brokers", "config")
"""First parts of names with secrets: registrations of brokers; SCRAM, delegation tokens, ACLs, and keys of brokers."""
_READ_AT_ONCE: Final = 200
"""Nodes in one request. An answer is bounded only by the sizes of the values."""
_RETRY_SECONDS: Final = 0.5
_THREAD_CHECKS: Final = 6
"""How often kazoo's threads are checked in a session's time."""
_AGAIN_SECONDS: Final = 0.05

T = TypeVar("T")


_SELF: Final = "="
"""No escaped name contains it."""


class ZooKeeperPaths:
    """The nodes of one cluster.

    >>> paths = ZooKeeperPaths("logs")
    >>> paths.of("topics/web/0"), paths.of("cluster"), paths.of("./a:b")
    ('/seglog/logs/names/topics/web:0', '/seglog/logs/names/cluster/=', '/seglog/logs/names/%2E/a%3Ab')
    >>> paths.name("/seglog/logs/names/topics/web:0"), paths.name("/seglog/logs/names/topics")
    ('topics/web/0', None)
    """

    def __init__(self, cluster: str) -> None:
        self.cluster = cluster
        self.root = f"{_ROOT}/{cluster}"
        self.names = f"{self.root}/names"
        self.writers = f"{self.root}/writers"

    def folder(self, name: str) -> str:
        return f"{self.names}/{_escape(name.partition('/')[0])}"

    def of(self, name: str) -> str:
        first, slash, rest = name.partition("/")
        leaf = ":".join(map(_escape, rest.split("/"))) if slash else _SELF
        return f"{self.names}/{_escape(first)}/{leaf}"

    def access(self, path: str) -> Access:
        """Of a node, if ACLs are set. Clusters of several users may be below the root. Brokers register with a secret,
        and credentials are configuration; even its names tell users and tokens."""
        if path == _ROOT:
            return Access.SHARED
        secret = (self.folder(name) for name in SECRET)
        return Access.PRIVATE if any(f"{path}/".startswith(f"{one}/") for one in secret) else Access.READABLE

    def name(self, path: str) -> str | None:
        first, slash, leaf = path.removeprefix(f"{self.names}/").partition("/")
        if not slash or not path.startswith(f"{self.names}/"):
            return None
        return "/".join(map(unquote, [first] if leaf == _SELF else [first, *leaf.split(":")]))


def _escape(part: str) -> str:
    """ZooKeeper refuses control characters, and nodes named "." or ".."."""
    return quote(part, safe="") if part.strip(".") else part.replace(".", "%2E")


class ZooKeeperStore(MetadataStore):
    """Made by `open`; `seglog.cluster.store.MetadataStore` describes its methods.

    One session with ZooKeeper reads, commits and watches values; each `session` is another one. Every read follows a
    ``sync``: without it a lagging server would return old values.
    """

    def __init__(
        self,
        servers: Sequence[str],
        cluster: str,
        clock: Clock,
        timeout_ms: int,
        *,
        security: ZooKeeperSecurity,
        must_exist: bool = False,
    ) -> None:
        """For `open`."""
        self._security = security
        self._must_exist = must_exist
        self._others: Sequence[str] | None = None
        """If the cluster is missing and must exist: the clusters that there are."""
        self._servers = servers
        self._address = f"zookeeper://{','.join(servers)}/{cluster}"
        self._clock = clock
        self._timeout_ms = timeout_ms
        self._paths = ZooKeeperPaths(cluster)
        self._loop = asyncio.get_running_loop()
        self._folders: set[str] = set()
        self._watches = Watches(self._loop)
        self._told: set[str] = set()
        self._sessions: list[ZooKeeperSession] = []
        self._under_way = 0
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        self._watching: asyncio.Task[None] | None = None
        self._is_watched = asyncio.Event()
        self._is_connected = asyncio.Event()
        self._is_closed = False
        self._connection = ZooKeeperConnection(
            servers,
            timeout_ms,
            on_state=self._state,
            on_event=self._event,
            security=security,
            access=self._paths.access,
        )
        self._writer = ZooKeeperWriter(
            self._connection, f"{self._paths.writers}/{uuid4().hex}", self._address, self._connected, timeout_ms / 1000
        )

    @classmethod
    async def open(
        cls,
        servers: Sequence[str],
        cluster: str,
        *,
        clock: Clock,
        session_timeout_ms: int,
        patience_ms: int,
        must_exist: bool = False,
        security: ZooKeeperSecurity = PLAIN,
    ) -> Self:
        """Connect, and create the nodes of the cluster unless it ``must_exist``. Raises `StoreAwayError` if no server
        answers within ``patience_ms``, `StoreRefusedError` if all refuse this client, and `NoSuchStoreError`."""
        store = cls(servers, cluster, clock, session_timeout_ms, security=security, must_exist=must_exist)
        connection = store._connection
        connection.start()
        ready, refused = (asyncio.ensure_future(event.wait()) for event in (store._is_watched, connection.is_refused))
        try:
            await asyncio.wait((ready, refused), timeout=patience_ms / 1000, return_when=asyncio.FIRST_COMPLETED)
            if not ready.done():
                if connection.refusal:
                    raise StoreRefusedError(f"{store._address}: {connection.refusal}")
                why = f": {connection.fault}" if connection.fault else ""
                raise StoreAwayError(f"{store._address}: no server of ZooKeeper 3.6 or later answers{why}")
        except BaseException:
            await store.close()
            raise
        finally:
            ready.cancel()
            refused.cancel()
        if store._others is not None:
            await store.close()
            there = ", ".join(store._others) or "none"
            raise NoSuchStoreError(f"{store._address}: there is no such cluster; clusters there: {there}")
        return store

    # The connection

    def _state(self, state: str) -> None:
        if state != CONNECTED:
            self._is_connected.clear()
            return
        self._is_connected.set()
        if self._watching is not None:
            self._watching.cancel()
        self._watching = self._loop.create_task(self._watch(), name="seglog-store-watch")

    async def _watch(self) -> None:
        """Watch again after each new connection, and report that anything may have changed before."""
        while True:
            try:
                if self._must_exist and not await self._is_there():
                    break
                self._must_exist = False  # a later connection finds it, or makes it again
                for path in (_ROOT, self._paths.root, self._paths.names, self._paths.writers):
                    await self._connection.make(path)
                await self._connection.watch_tree(self._paths.names)
            except (ConnectionLostError, SessionEndedError):
                return  # `_state` starts another one
            except ZooKeeperRefusedError as error:
                if isinstance(error, NotAllowedError):
                    self._connection.refuse(str(error))
                _log.error("%s: %s", self._address, error)
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            break
        self._is_watched.set()
        self._watches.tell(None)

    async def _is_there(self) -> bool:
        await self._connection.sync(_ROOT)
        if await self._connection.exists(self._paths.names):
            return True
        others = await self._connection.children(_ROOT)
        self._others = sorted(one for one in others if one != self._paths.cluster)
        return False

    async def until_broken(self) -> str:
        while True:
            for connection in (self._connection, *(session.connection for session in self._sessions)):
                if (thread := connection.dead_thread()) is not None:
                    return f"{self._address}: kazoo's {thread} has died; restart the broker"
            for task in (self._watching, *(session.confirming for session in self._sessions)):
                if task is not None and task.done() and not task.cancelled() and (error := task.exception()):
                    return f"{self._address}: {task.get_name()} has ended: {error!r}; restart the broker"
            await asyncio.sleep(self._timeout_ms / 1000 / _THREAD_CHECKS)

    async def _connected(self) -> None:
        """Wait for the connection. Raises `StoreFailedError` if that takes too long."""
        try:
            async with asyncio.timeout(self._timeout_ms / 1000):
                await self._is_connected.wait()
        except TimeoutError as error:
            raise StoreFailedError(f"{self._address}: no server answers") from error

    def _check_open(self) -> None:
        if self._is_closed:
            raise StoreClosedError(f"{self._address} is closed")

    def _event(self, path: str) -> None:
        name = self._paths.name(path)
        if name is not None:
            if not self._told:
                self._loop.call_soon(self._tell_names)
            self._told.add(name)

    def _tell_names(self) -> None:
        names, self._told = frozenset(self._told), set()
        self._watches.tell(names)

    # Values

    async def get(self, name: str) -> VersionedValue | None:
        return (await self.get_many([name])).get(name)

    async def get_many(self, names: Collection[str]) -> dict[str, VersionedValue]:
        return await self._do(lambda: self._read(list(names)))

    async def load(self, name: str) -> dict[str, VersionedValue]:
        async def work() -> dict[str, VersionedValue]:
            return await self._read([found for found in await self._names(name) if is_within(found, name)])

        return await self._do(work)

    async def list(self, name: str) -> Names:
        skip = len(name) + 1 if name else 0
        found = await self._do(lambda: self._names(name))
        below = (one[skip:] for one in found if not name or one.startswith(f"{name}/"))
        return sorted({one.partition("/")[0] for one in below})

    async def _names(self, name: str) -> Names:
        """Return all names that share the first part with ``name``."""
        await self._connection.sync(self._paths.names)
        if name:
            folders = [self._paths.folder(name)]
        else:
            folders = [f"{self._paths.names}/{one}" for one in await self._connection.children(self._paths.names)]
        found: Names = []
        for folder, leaves in zip(folders, await asyncio.gather(*map(self._connection.children, folders)), strict=True):
            names = (self._paths.name(f"{folder}/{leaf}") for leaf in leaves)
            found += [one for one in names if one is not None]
        return found

    async def _read(self, names: Sequence[str]) -> dict[str, VersionedValue]:
        await self._connection.sync(self._paths.names)
        found: dict[str, VersionedValue] = {}
        for start in range(0, len(names), _READ_AT_ONCE):
            some = names[start : start + _READ_AT_ONCE]
            nodes = await self._connection.read([self._paths.of(name) for name in some])
            found |= {n: VersionedValue(node.value, node.version) for n, node in zip(some, nodes, strict=True) if node}
        return found

    async def _do(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Do ``work``, which changes nothing, and repeat it after a lost connection."""
        self._check_open()
        with self._in_flight():
            return await self._try(work)

    async def _try(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        try:
            async with asyncio.timeout(2 * self._timeout_ms / 1000):
                while True:
                    await self._connected()
                    try:
                        return await work()
                    except (ConnectionLostError, SessionEndedError):
                        await asyncio.sleep(_AGAIN_SECONDS)
        except TimeoutError as error:
            raise StoreFailedError(f"{self._address}: no answer") from error
        except ZooKeeperRefusedError as error:
            raise StoreFailedError(f"{self._address}: {error}") from error

    @contextmanager
    def _in_flight(self) -> Iterator[None]:
        """`close` waits for what runs inside."""
        self._under_way += 1
        self._is_idle.clear()
        try:
            yield
        finally:
            self._under_way -= 1
            if self._under_way == 0:
                self._is_idle.set()

    # Commits

    async def commit(self, steps: Sequence[CommitStep]) -> Versions:
        session = check_commit(steps)
        self._check_open()
        if not steps:
            return []
        writer = self._writer
        if session is not None:
            assert isinstance(session, ZooKeeperSession)
            if not session.is_alive:
                raise SessionLostError(f"the session in {self._address} has ended")
            writer = session.writer
        with self._in_flight():
            return await self._commit(writer, steps)

    async def _commit(self, writer: ZooKeeperWriter, steps: Sequence[CommitStep]) -> Versions:
        operations = [self._operation(step) for step in steps]
        while True:
            await self._make_folders(step.name for step in steps if isinstance(step, Change))
            try:
                results = await writer.commit(operations)
            except OpRefusedError as error:
                step = steps[error.index]
                if error.reason == EXISTS:
                    raise NameExistsError(f"{step.name} exists in {self._address}") from error
                if error.reason == BAD_VERSION:
                    raise VersionChangedError(
                        f"{step.name} in {self._address} is no longer at version {step.version}"
                    ) from error
                if step.version != MISSING:
                    raise NoSuchNameError(f"there is no {step.name} in {self._address}") from error
                self._folders.discard(self._paths.folder(step.name))  # it was deleted by hand
            else:
                return [_version(step, result) for step, result in zip(steps, results, strict=True)]

    def _operation(self, step: CommitStep) -> ZooKeeperOp:
        path = self._paths.of(step.name)
        if not isinstance(step, Change):
            return CheckOp(path, step.version)
        if step.value is None:
            return DeleteOp(path, step.version)
        if step.version == MISSING:
            return CreateOp(path, step.value, is_ephemeral=step.session is not None)
        return SetDataOp(path, step.value, step.version)

    async def _make_folders(self, names: Iterable[str]) -> None:
        for folder in {self._paths.folder(name) for name in names} - self._folders:

            async def make(folder: str = folder) -> bool:
                return await self._connection.make(folder)

            await self._try(make)
            self._folders.add(folder)

    # Watches and sessions

    def watch(self, name: str, changed: WatchCallback) -> Callable[[], None]:
        self._check_open()
        return self._watches.add(name, changed)

    async def session(self, time_to_live_ms: int, lost: Callable[[], None]) -> ZooKeeperSession:
        if time_to_live_ms < 1:
            raise ValueError(f"a session cannot have a time to live of {time_to_live_ms} ms")
        self._check_open()
        await self._connected()
        session = ZooKeeperSession(
            self._servers,
            self._paths.writers,
            self._address,
            time_to_live_ms,
            self._clock,
            lost,
            self._session_ended,
            security=self._security,
            access=self._paths.access,
        )
        self._sessions.append(session)
        await session.open()
        return session

    def _session_ended(self, session: ZooKeeperSession) -> None:
        if session in self._sessions:
            self._sessions.remove(session)

    async def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._watches.end_all()
        try:
            async with asyncio.timeout(self._timeout_ms / 1000):
                await self._is_idle.wait()
        except TimeoutError:
            _log.warning("%s is closed with %d requests in flight", self._address, self._under_way)
        if self._watching is not None:
            self._watching.cancel()
        await asyncio.gather(*(session.close() for session in list(self._sessions)), self._connection.close())


def _version(step: CommitStep, result: int) -> int:
    if not isinstance(step, Change):
        return step.version
    if step.value is None:
        return MISSING
    return 0 if step.version == MISSING else result
