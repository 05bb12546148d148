"""One connection to ZooKeeper as coroutines, through kazoo. No other module imports kazoo.

kazoo has threads of its own and calls back from them. ``call_soon_threadsafe`` brings its events and states to the
event loop in order. Two requests are added to kazoo: watches of whole trees (addWatch, ZOOKEEPER-1416, ZooKeeper 3.6)
and reads of many nodes in one request (multiRead, ZOOKEEPER-3402). They use private names of kazoo, so its version has
an upper bound.
"""

from __future__ import annotations

import asyncio
import struct
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from kazoo.client import KazooClient
from kazoo.exceptions import (
    BadVersionError,
    ConnectionLoss,
    KazooException,
    NodeExistsError,
    NoNodeError,
    OperationTimeoutError,
    RolledBackError,
    SessionExpiredError,
    SessionMovedError,
)
from kazoo.handlers.utils import AsyncResult
from kazoo.protocol.connection import ConnectionHandler
from kazoo.protocol.serialization import Watch
from kazoo.protocol.states import KazooState, ZnodeStat

CONNECTED: Final = KazooState.CONNECTED
SUSPENDED: Final = KazooState.SUSPENDED
LOST: Final = KazooState.LOST
_STOP_SECONDS: Final = 5.0
_INT: Final = struct.Struct("!i")
_HEADER: Final = struct.Struct("!iBi")
_STAT: Final = struct.Struct("!qqqqiiiqiiq")
_PERSISTENT_RECURSIVE: Final = 1


class ConnectionLostError(Exception):
    """The connection broke during a request, which may have been done or not."""


class SessionEndedError(Exception):
    """The session has ended. The request was not done."""


class ZooKeeperRefusedError(Exception):
    """ZooKeeper refused a request that should succeed."""


class OpRefusedError(Exception):
    """Step ``index`` of a transaction is the first that failed: its node is missing, or exists, or has another version.
    Nothing was done."""

    def __init__(self, index: int, reason: str) -> None:
        super().__init__(f"step {index}: {reason}")
        self.index = index
        self.reason = reason


NO_NODE: Final = "no node"
EXISTS: Final = "exists"
BAD_VERSION: Final = "bad version"
_REASONS: Final = ((NoNodeError, NO_NODE), (NodeExistsError, EXISTS), (BadVersionError, BAD_VERSION))


class CreateOp(NamedTuple):
    path: str
    value: bytes
    is_ephemeral: bool = False


class SetDataOp(NamedTuple):
    path: str
    value: bytes
    version: int


class DeleteOp(NamedTuple):
    path: str
    version: int


class CheckOp(NamedTuple):
    path: str
    version: int


ZooKeeperOp = CreateOp | SetDataOp | DeleteOp | CheckOp


class Znode(NamedTuple):
    value: bytes
    version: int
    transaction: int
    """The zxid of its last change; all changes of one transaction have the same."""


class ZooKeeperConnection:
    """A session with ZooKeeper. On the loop, ``on_state`` is called with `CONNECTED`, `SUSPENDED` and `LOST`, and
    ``on_event`` with the path of a node that was created, changed or deleted below a watch."""

    def __init__(
        self,
        servers: Sequence[str],
        timeout_ms: int,
        *,
        on_state: Callable[[str], None],
        on_event: Callable[[str], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_state = on_state
        self._is_closing = False
        self._is_ended = False
        self._ending = threading.Lock()
        # No limit on retries: the session's timeout ends them. Delays are in seconds.
        retry = {"max_tries": -1, "delay": 0.05, "max_delay": 0.5}
        self._client = KazooClient(",".join(servers), timeout=timeout_ms / 1000, connection_retry=retry)
        self._handler = _Handler(self._client, lambda path: self._in_loop(on_event, path))
        self._client._connection = self._handler
        self._client.add_listener(self._state)

    def start(self) -> None:
        self._client.start_async()

    def dead_thread(self) -> str | None:
        """Return the name of a thread of kazoo's that has died. Nothing restarts it, and requests would wait for
        ever."""
        if self._is_closing or self._is_ended:
            return None
        threads = [*self._client.handler._workers, self._handler._connection_routine]
        dead = [thread.name for thread in threads if thread is not None and not thread.is_alive()]
        return None if self._ending.locked() or not dead else dead[0]

    @property
    def timeout_seconds(self) -> float:
        """The session timeout that the server granted."""
        return self._handler.session_seconds

    def _state(self, state: str) -> None:
        """Runs in kazoo's thread."""
        if not self._is_closing:
            self._in_loop(self._on_state, state)

    def _in_loop(self, act: Callable[..., object], *arguments: object) -> None:
        """Call ``act`` on the loop, from any thread."""
        try:
            self._loop.call_soon_threadsafe(act, *arguments)
        except RuntimeError:  # the loop was closed before the store
            self._is_closing = True

    def end(self) -> None:
        """Close the session, from any thread. Returns when the server knows, or cannot be reached."""
        with self._ending:
            if not self._is_ended:
                self._client.stop()
                self._client.close()
                self._is_ended = True

    async def close(self) -> None:
        """As `end`; after some seconds a thread finishes it."""
        self._is_closing = True
        done = asyncio.Event()

        def end() -> None:
            try:
                self.end()
            except (KazooException, OSError) as error:
                self._client.logger.warning("a connection to ZooKeeper did not close: %s", error)
            finally:
                self._in_loop(done.set)

        threading.Thread(target=end, name="seglog-zookeeper-close", daemon=True).start()
        try:
            async with asyncio.timeout(_STOP_SECONDS):
                await done.wait()
        except TimeoutError:
            self._client.logger.warning("a connection to ZooKeeper is still closing")

    # Requests. All may raise `ConnectionLostError`, `SessionEndedError` and `ZooKeeperRefusedError`.

    async def _answer(self, result: AsyncResult) -> Any:
        future: asyncio.Future[Any] = self._loop.create_future()

        def settle(result: AsyncResult) -> None:
            if future.done():
                return
            if result.exception is None:
                future.set_result(result.value)
            else:
                future.set_exception(result.exception)

        result.rawlink(lambda result: self._in_loop(settle, result))
        try:
            return await future
        except (ConnectionLoss, OperationTimeoutError) as error:
            raise ConnectionLostError(str(error) or "the connection was lost") from error
        except (SessionExpiredError, SessionMovedError) as error:
            raise SessionEndedError(str(error) or "the session has expired") from error

    def _call(self, request: object) -> AsyncResult:
        result: AsyncResult = self._client.handler.async_result()
        self._client._call(request, result)
        return result

    async def _ask(self, result: AsyncResult) -> Any:
        try:
            return await self._answer(result)
        except KazooException as error:
            raise ZooKeeperRefusedError(f"{type(error).__name__}: {error}") from error

    async def make(self, path: str, value: bytes = b"", *, is_ephemeral: bool = False) -> bool:
        """Create a node; False if it exists."""
        try:
            await self._answer(self._client.create_async(path, value, ephemeral=is_ephemeral))
        except NodeExistsError:
            return False
        except KazooException as error:
            raise ZooKeeperRefusedError(f"{path}: {type(error).__name__}: {error}") from error
        return True

    async def exists(self, path: str) -> bool:
        return await self._ask(self._client.exists_async(path)) is not None

    async def children(self, path: str) -> list[str]:
        """Return the names of the children; none if the node does not exist."""
        try:
            found: list[str] = await self._answer(self._client.get_children_async(path))
        except NoNodeError:
            return []
        except KazooException as error:
            raise ZooKeeperRefusedError(f"{path}: {type(error).__name__}: {error}") from error
        return found

    async def read(self, paths: Sequence[str]) -> list[Znode | None]:
        found: list[Znode | None] = await self._ask(self._call(_MultiRead(paths)))
        return found

    async def sync(self, path: str) -> None:
        """Later reads see everything that any client was answered before this."""
        await self._ask(self._client.sync_async(path))

    async def watch_tree(self, path: str) -> None:
        """Report everything that is created, changed or deleted below ``path``, until the connection is lost."""
        await self._ask(self._call(_AddWatch(path)))

    async def transact(self, operations: Sequence[ZooKeeperOp]) -> list[int]:
        """Do all operations or none. Return the new version for each `SetDataOp`, 0 for the others. Raises
        `OpRefusedError`."""
        request = self._client.transaction()
        for one in operations:
            if isinstance(one, CreateOp):
                request.create(one.path, one.value, ephemeral=one.is_ephemeral)
            elif isinstance(one, SetDataOp):
                request.set_data(one.path, one.value, one.version)
            elif isinstance(one, DeleteOp):
                request.delete(one.path, one.version)
            else:
                request.check(one.path, one.version)
        results = await self._ask(request.commit_async())
        for index, result in enumerate(results):
            if isinstance(result, KazooException) and not isinstance(result, RolledBackError):
                raise _refused(index, result)
        return [result.version if isinstance(result, ZnodeStat) else 0 for result in results]


def _refused(index: int, error: KazooException) -> Exception:
    for kind, reason in _REASONS:
        if isinstance(error, kind):
            return OpRefusedError(index, reason)
    if isinstance(error, (SessionExpiredError, SessionMovedError)):
        return SessionEndedError(str(error))
    return ZooKeeperRefusedError(f"step {index}: {type(error).__name__}: {error}")


class _Handler(ConnectionHandler):
    """kazoo's connection, which calls ``event`` with the paths of all watches and remembers the session timeout."""

    session_seconds = 0.0

    def __init__(self, client: KazooClient, event: Callable[[str], None]) -> None:
        super().__init__(client, client._conn_retry.copy(), logger=client.logger)
        self._event = event

    def _read_watch_event(self, buffer: bytes, offset: int) -> None:
        self._event(Watch.deserialize(buffer, offset)[0].path)

    def _connect(self, host: str, hostip: str, port: int) -> tuple[float, float]:
        read_ms, connect_ms = super()._connect(host, hostip, port)
        self.session_seconds = read_ms * 1.5 / 1000  # kazoo's read timeout is two thirds of the session's
        return read_ms, connect_ms


def _string(text: str) -> bytes:
    data = text.encode()
    return _INT.pack(len(data)) + data


class _AddWatch:
    """``AddWatchRequest {ustring path; int mode}``; the answer is empty."""

    type = 106

    def __init__(self, path: str) -> None:
        self.path = path

    def serialize(self) -> bytes:
        return _string(self.path) + _INT.pack(_PERSISTENT_RECURSIVE)

    @staticmethod
    def deserialize(data: bytes, offset: int) -> None:
        del data, offset


class _MultiRead:
    """For each node ``MultiHeader {int type; boolean done; int err}`` and ``GetDataRequest {ustring path; boolean
    watch}``, and at the end a header that is done."""

    type = 22
    _GET_DATA: Final = 4
    _ERROR: Final = -1

    def __init__(self, paths: Sequence[str]) -> None:
        self.paths = paths

    def serialize(self) -> bytes:
        header = _HEADER.pack(self._GET_DATA, 0, -1)
        return b"".join(header + _string(path) + b"\0" for path in self.paths) + _HEADER.pack(-1, 1, -1)

    @classmethod
    def deserialize(cls, data: bytes, offset: int) -> list[Znode | None]:
        """``GetDataResponse {buffer data; Stat stat}``, or the error code of a missing node."""
        found: list[Znode | None] = []
        while True:
            kind, done, _ = _HEADER.unpack_from(data, offset)
            offset += _HEADER.size
            if done:
                return found
            (number,) = _INT.unpack_from(data, offset)
            offset += _INT.size
            if kind == cls._ERROR:
                found.append(None)
                continue
            value = bytes(data[offset : offset + max(number, 0)])
            offset += len(value)
            stat = _STAT.unpack_from(data, offset)
            offset += _STAT.size
            found.append(Znode(value, stat[4], stat[1]))
