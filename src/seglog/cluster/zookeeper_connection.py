"""One connection to ZooKeeper as coroutines, through kazoo. No other module imports kazoo.

kazoo has threads of its own and calls back from them. ``call_soon_threadsafe`` brings its events and states to the
event loop in order. Two requests are added to kazoo: watches of whole trees (addWatch, ZOOKEEPER-1416, ZooKeeper 3.6)
and reads of many nodes in one request (multiRead, ZOOKEEPER-3402). TLS is Python's own, because kazoo's reads its files
in its own way and leaves answers in OpenSSL's buffer, and so is the login. All that uses private names of kazoo, so its
version has an upper bound.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, Final, NamedTuple

from kazoo.client import KazooClient
from kazoo.exceptions import (
    EXCEPTIONS,
    AuthFailedError,
    BadVersionError,
    ConnectionDropped,
    ConnectionLoss,
    InvalidACLError,
    KazooException,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    OperationTimeoutError,
    RolledBackError,
    SessionExpiredError,
    SessionMovedError,
)
from kazoo.handlers.threading import KazooTimeoutError, SequentialThreadingHandler
from kazoo.handlers.utils import AsyncResult
from kazoo.protocol.connection import ConnectionHandler
from kazoo.protocol.serialization import SASL, Watch
from kazoo.protocol.states import KazooState, ZnodeStat
from kazoo.security import ACL, CREATOR_ALL_ACL, OPEN_ACL_UNSAFE, READ_ACL_UNSAFE, make_acl

from seglog.cluster.zookeeper_security import PLAIN, Access, LoginRefusedError, ZooKeeperSecurity, digest_login
from seglog.core.errors import InvalidConfigError

CONNECTED: Final = KazooState.CONNECTED
SUSPENDED: Final = KazooState.SUSPENDED
LOST: Final = KazooState.LOST
_STOP_SECONDS: Final = 5.0
_DROPPED_LOGINS: Final = 3
"""After so many connections in a row that end during the login, it counts as refused."""
_INT: Final = struct.Struct("!i")
_HEADER: Final = struct.Struct("!iBi")
_STAT: Final = struct.Struct("!qqqqiiiqiiq")
_PERSISTENT_RECURSIVE: Final = 1


_log: Final = logging.getLogger(__name__)
_log.setLevel(logging.INFO)  # kazoo's lines at DEBUG have all values, and the proofs of logins


class LoginDroppedError(ConnectionDropped):
    """The server has ended the connection during the login, without an answer."""


class ConnectionLostError(Exception):
    """The connection broke during a request, which may have been done or not."""


class SessionEndedError(Exception):
    """The session has ended. The request was not done."""


class ZooKeeperRefusedError(Exception):
    """ZooKeeper refused a request that should succeed."""


class NotAllowedError(ZooKeeperRefusedError):
    """ZooKeeper knows this client as another user than the nodes' creator, or as none."""


class OpRefusedError(Exception):
    """Step ``index`` of a transaction is the first that failed: its node is missing, or exists, or has another version.
    Nothing was done."""

    def __init__(self, index: int, reason: str) -> None:
        super().__init__(f"step {index}: {reason}")
        self.index = index
        self.reason = reason


_CREATOR_AND_CREATE: Final = [*CREATOR_ALL_ACL, make_acl("world", "anyone", read=True, create=True)]
_ACLS: Final = {
    Access.PRIVATE: CREATOR_ALL_ACL,
    Access.READABLE: [*CREATOR_ALL_ACL, *READ_ACL_UNSAFE],
    Access.SHARED: _CREATOR_AND_CREATE,
}
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


class Attempt(NamedTuple):
    """An attempt to connect to a server: ``why`` it failed, "" if it did not, and whether the next one fails too."""

    server: tuple[str, int]
    why: str = ""
    is_refusal: bool = False


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
        security: ZooKeeperSecurity = PLAIN,
        access: Callable[[str], Access] = lambda _: Access.READABLE,
    ) -> None:
        """``access``: of the nodes that are created here, by their paths."""
        self._loop = asyncio.get_running_loop()
        self._on_state = on_state
        self._security = security
        self._access = access
        self.fault = ""
        """Why the last attempt to connect failed; "" if it did not."""
        self.refusal = ""
        """Why all servers refuse this client, and will: its certificate or its login. "" if one may not."""
        self.is_refused = asyncio.Event()
        self._refusals: dict[tuple[str, int], str] = {}
        self._is_closing = False
        self._is_ended = False
        self._ending = threading.Lock()
        # No limit on retries: the session's timeout ends them. Delays are in seconds.
        retry = {"max_tries": -1, "delay": 0.05, "max_delay": 0.5}
        self._client = KazooClient(
            ",".join(servers),
            timeout=timeout_ms / 1000,
            connection_retry=retry,
            handler=_Sockets(security),
            logger=_log,
        )
        self._handler = _Handler(
            self._client,
            security,
            lambda path: self._in_loop(on_event, path),
            lambda attempt: self._in_loop(self._attempted, attempt),
        )
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

    def _attempted(self, attempt: Attempt) -> None:
        self.fault = attempt.why
        if attempt.is_refusal:
            if self._refusals.get(attempt.server) != attempt.why:
                self._client.logger.warning("ZooKeeper: %s", attempt.why)
            self._refusals[attempt.server] = attempt.why
        else:
            self._refusals.pop(attempt.server, None)
        if self._handler.addresses <= self._refusals.keys():
            self.refuse(attempt.why)

    def refuse(self, why: str) -> None:
        """Say to those that wait for the connection that it is of no use to them."""
        self.refusal = why
        self.is_refused.set()

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
            raise _not_done("", error) from error

    async def make(self, path: str, value: bytes = b"", *, is_ephemeral: bool = False) -> bool:
        """Create a node; False if it exists."""
        try:
            await self._answer(self._client.create_async(path, value, acl=self._acl(path), ephemeral=is_ephemeral))
        except NodeExistsError:
            return False
        except KazooException as error:
            raise _not_done(f"{path}: ", error) from error
        return True

    def _acl(self, path: str) -> Sequence[ACL]:
        return _ACLS[self._access(path)] if self._security.sets_acls else OPEN_ACL_UNSAFE

    async def exists(self, path: str) -> bool:
        return await self._ask(self._client.exists_async(path)) is not None

    async def children(self, path: str) -> list[str]:
        """Return the names of the children; none if the node does not exist."""
        try:
            found: list[str] = await self._answer(self._client.get_children_async(path))
        except NoNodeError:
            return []
        except KazooException as error:
            raise _not_done(f"{path}: ", error) from error
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
                request.create(one.path, one.value, acl=self._acl(one.path), ephemeral=one.is_ephemeral)
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
    return _not_done(f"step {index}: ", error)


def _not_done(where: str, error: KazooException) -> ZooKeeperRefusedError:
    if isinstance(error, NoAuthError):
        return NotAllowedError(
            f"{where}the ACL of this node does not allow this client: its creator connects with another "
            "cluster.store.jaas.config or certificate in zookeeper.ssl.keystore.location"
        )
    if isinstance(error, InvalidACLError):
        return NotAllowedError(
            f"{where}zookeeper.set.acl=true, but this server of ZooKeeper authenticates no clients here: without "
            "cluster.store.jaas.config, it must ask for the certificate in zookeeper.ssl.keystore.location"
        )
    return ZooKeeperRefusedError(f"{where}{type(error).__name__}: {error}")


class _Sockets(SequentialThreadingHandler):
    """kazoo's threads, with TLS by a context of ours. kazoo would sleep while OpenSSL holds answers that it has read
    and decrypted with an earlier one."""

    def __init__(self, security: ZooKeeperSecurity) -> None:
        super().__init__()
        self._make_context = security.context

    def create_connection(self, address: tuple[str, int], hostname: str, timeout: float, **_: object) -> socket.socket:
        context = None if self._make_context is None else self._make_context()
        plain = socket.create_connection(address, timeout)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if context is None:
            return plain
        try:
            return context.wrap_socket(plain, server_hostname=hostname)
        except BaseException:
            plain.close()
            raise

    def select(
        self, readers: list[socket.socket], /, *others: Any
    ) -> tuple[list[socket.socket], list[socket.socket], list[socket.socket]]:
        held = [one for one in readers if isinstance(one, ssl.SSLSocket) and one.pending()]
        if not held:
            return super().select(readers, *others)
        found = super().select([one for one in readers if one not in held], [], [], 0)
        return [*held, *found[0]], [], []


class _Handler(ConnectionHandler):
    """kazoo's connection, which calls ``event`` with the paths of all watches and remembers the session timeout.
    ``attempted`` is called after each attempt to connect."""

    session_seconds = 0.0

    def __init__(
        self,
        client: KazooClient,
        security: ZooKeeperSecurity,
        event: Callable[[str], None],
        attempted: Callable[[Attempt], None],
    ) -> None:
        login: dict[str, str] | None = None if security.login is None else {}
        super().__init__(client, client._conn_retry.copy(), logger=client.logger, sasl_options=login)
        self._security = security
        self._event = event
        self._attempted = attempted
        self._dropped_logins = 0
        self.addresses: set[tuple[str, int]] = set()
        """All that the names of the servers stand for."""

    def _expand_client_hosts(self) -> list[tuple[str, str, int]]:
        found = super()._expand_client_hosts()
        self.addresses = {(ip, port) for _, ip, port in found}
        return found

    def _read_watch_event(self, buffer: bytes, offset: int) -> None:
        self._event(Watch.deserialize(buffer, offset)[0].path)

    def _connect(self, host: str, hostip: str, port: int) -> tuple[float, float]:
        server, name = (hostip, port), f"{host}:{port}"
        try:
            read_ms, connect_ms = super()._connect(host, hostip, port)
        except (InvalidConfigError, LoginRefusedError) as error:
            self._attempted(Attempt(server, f"{name}: {error}", is_refusal=True))
            raise ConnectionDropped(str(error)) from error
        except LoginDroppedError as error:
            self._attempted(Attempt(server, f"{name}: {error}"))
            raise
        except (ConnectionDropped, KazooTimeoutError) as error:
            why, is_refusal = str(error), False
            if self._security.explain is not None:
                why, is_refusal = self._security.explain(error.__context__ or error)
            elif error.__context__ is None:  # the server has closed the connection, or does not answer
                why += "; if this port is for TLS, set zookeeper.ssl.client.enable=true"
            self._attempted(Attempt(server, f"{name}: {why}", is_refusal=is_refusal))
            raise
        self._dropped_logins = 0
        self._attempted(Attempt(server))
        self.session_seconds = read_ms * 1.5 / 1000  # kazoo's read timeout is two thirds of the session's
        return read_ms, connect_ms

    def _authenticate_with_sasl(self, host: str, timeout: float) -> None:
        """kazoo's needs a package more, and does not notice a server that does not know the password."""
        del host
        assert self._security.login is not None
        login = self._security.login()
        talk = digest_login(login)
        said = next(talk)
        for xid in count(1):
            self._submit(SASL(said), timeout, xid)
            try:
                header, buffer, offset = self._read_header(timeout)
                if header.err:
                    raise EXCEPTIONS[header.err]
            except AuthFailedError as error:
                raise LoginRefusedError(f"the login of {login.user} by {login.key} is refused") from error
            except ConnectionDropped as error:  # as servers do that know no logins, and those that stop
                self._dropped_logins += 1
                if self._dropped_logins >= _DROPPED_LOGINS:
                    raise LoginRefusedError(f"the login of {login.user} by {login.key} is refused") from error
                raise LoginDroppedError(
                    f"the login of {login.user} by {login.key} is refused, or the server is stopping"
                ) from error
            try:
                said = talk.send(bytes(SASL.deserialize(buffer, offset)[0] or b""))
            except StopIteration:
                return
            except LoginRefusedError as error:
                raise LoginRefusedError(f"{login.key}: {error}") from None


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
        """``GetDataResponse {buffer data; Stat stat}``, or the error code of a node that is missing or may not be
        read."""
        found: list[Znode | None] = []
        while True:
            kind, done, _ = _HEADER.unpack_from(data, offset)
            offset += _HEADER.size
            if done:
                return found
            (number,) = _INT.unpack_from(data, offset)
            offset += _INT.size
            if kind == cls._ERROR:
                if number != NoNodeError.code:
                    raise EXCEPTIONS[number]
                found.append(None)
                continue
            value = bytes(data[offset : offset + max(number, 0)])
            offset += len(value)
            stat = _STAT.unpack_from(data, offset)
            offset += _STAT.size
            found.append(Znode(value, stat[4], stat[1]))
