"""`seglog serve --control`: a broker that programs on this machine control over HTTP."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import stat
import sys
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack
from ipaddress import ip_address
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from seglog.broker.app import Node
from seglog.broker.ground import BrokerGround
from seglog.cluster.store import StoreFailedError
from seglog.core.addresses import Address, parse_host_port
from seglog.core.errors import InvalidConfigError
from seglog.core.fs import OsFs
from seglog.faults.broker_control import BrokerControl
from seglog.faults.control_pages import MAX_BODY, ControlPages
from seglog.faults.fault import FaultError
from seglog.faults.kept_ports import KeptPorts
from seglog.faults.movable_clock import MovableClock, MovableLoop, workers_of
from seglog.faults.replay import replay
from seglog.net.http import HttpListener

__all__ = ["ControlAddress", "ControlledBroker", "MakeNode"]

T = TypeVar("T")
_LEAST_TOKEN: Final = 16
_KILLED: Final = 128 + signal.SIGKILL


class MakeNode(Protocol):
    def __call__(self, ground: BrokerGround, keys: Mapping[str, str], /) -> Node:
        """A broker that has not started. ``keys`` override its configuration."""


class ControlAddress(NamedTuple):
    """``token`` is None if the user has it in a file."""

    url: str
    token: str | None


class _Running(NamedTuple):
    """``watch`` ends the process if the broker fails."""

    node: Node
    control: BrokerControl
    watch: asyncio.Task[None]


class ControlledBroker:
    """A broker that HTTP requests stop and start again while its process and its control stay.

    `run` makes the event loop, `serve` does everything else."""

    def __init__(self, where: str, token_file: str | None) -> None:
        """`InvalidConfigError` for an address that other machines reach, or a token that other users can read."""
        self._wanted = _loopback(where)
        self._is_told = token_file is None
        self._token = secrets.token_urlsafe(24) if token_file is None else _read_token(token_file)
        self.address: ControlAddress | None = None
        self._clock = MovableClock()
        self._over = asyncio.Event()
        self._failure: BaseException | None = None
        self._make: MakeNode
        self._keys: Mapping[str, str] = {}
        self._node: Node
        self._bootstrap = ""
        self._running: _Running | None = None
        self._ports = KeptPorts()
        self._one_at_a_time = asyncio.Lock()
        self._changes: set[asyncio.Task[None]] = set()

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        with asyncio.Runner(loop_factory=lambda: MovableLoop(self._clock)) as runner:
            return runner.run(main)

    def end(self) -> None:
        """Let `serve` return."""
        self._over.set()
        self._node.over.set()

    async def serve(self, make: MakeNode, say_ready: Callable[[Node], None]) -> BaseException | None:
        """Run until `end`, or until the broker fails; its failure. Errors of `Node.start`; OSError if the port of the
        control is taken."""
        self._make = make
        async with AsyncExitStack() as stack:
            await self._change(self._start)
            if self._running is None:
                return None
            stack.push_async_callback(self._change, self._stop)
            pages = ControlPages(self.do, self._token)
            listener = HttpListener(self._wanted.host, self._wanted.port, pages, max_body=MAX_BODY)
            await listener.start()
            stack.push_async_callback(listener.stop)
            pages.listens_on(listener.port)
            host = f"[{listener.host}]" if ":" in listener.host else listener.host
            self.address = ControlAddress(f"http://{host}:{listener.port}", self._token if self._is_told else None)
            say_ready(self._node)
            await self._over.wait()
        self._ports.release()
        return self._failure

    async def do(self, verb: str, argument: Mapping[str, Any]) -> Any:
        """The command in a request. `FaultError` if it is not a valid one."""
        acts: dict[str, Callable[[Mapping[str, Any]], Awaitable[Any]]] = {
            "status": self._status,
            "start": lambda _: self._change(self._start),
            "stop": lambda _: self._change(self._stop),
            "restart": lambda _: self._change(self._stop, self._start),
            "kill": self._kill,
            "replay": self._replay,
        }
        if verb in acts:
            return await acts[verb](argument)
        return await self._running_now().control.do(verb, argument)

    def _running_now(self) -> _Running:
        if self._running is None:
            raise FaultError("the broker is stopped: start it first")
        return self._running

    async def _status(self, _: Mapping[str, Any]) -> dict[str, Any]:
        return {"running": self._running is not None, "bootstrap": self._bootstrap, "pid": os.getpid()}

    async def _kill(self, _: Mapping[str, Any]) -> None:
        os.kill(os.getpid(), signal.SIGKILL)
        os._exit(_KILLED)  # the first process of a container ignores its own SIGKILL

    async def _replay(self, argument: Mapping[str, Any]) -> list[dict[str, Any]]:
        bootstrap = self._running_now().node.bootstrap
        workers = workers_of(asyncio.get_running_loop())
        return [one._asdict() for one in await workers.run(lambda: replay(argument["path"], bootstrap))]

    async def _change(self, *acts: Callable[[], Awaitable[None]]) -> None:
        """Stop or start the broker, to the end even if the request's connection ends."""

        async def change() -> None:
            async with self._one_at_a_time:
                try:
                    for act in acts:
                        await act()
                except StoreFailedError:
                    if not self._over.is_set():  # else it was told to end while it waited for its metadata store
                        raise

        task = asyncio.get_running_loop().create_task(change())
        self._changes.add(task)
        task.add_done_callback(self._changes.discard)
        await asyncio.shield(task)

    async def _start(self) -> None:
        if self._running is not None:
            return
        control = BrokerControl(self._clock)
        if sys.platform != "linux":  # elsewhere only one socket is bound to a port at a time
            self._ports.release()
        self._node = node = self._make(control.ground(), self._keys)
        try:
            await node.start()
        finally:
            self._ports.release()
        control.use(node)
        self._bootstrap = node.bootstrap
        self._keys = {"listeners": ",".join(map(str, node.addresses))}
        if node.metrics_address is not None:
            self._keys = {**self._keys, "metrics.listener": str(node.metrics_address)}
        self._running = _Running(node, control, asyncio.get_running_loop().create_task(self._watch(node)))

    async def _watch(self, node: Node) -> None:
        await node.over.wait()
        self._over.set()

    async def _stop(self) -> None:
        if self._running is None:
            return
        (node, control, watch), self._running = self._running, None
        watch.cancel()
        control.close()
        try:
            await node.stop()
        finally:
            self._failure = node.failure
            self._ports.keep([(one.host, one.port) for one in node.addresses])


def _loopback(where: str) -> Address:
    try:
        address = parse_host_port(where)
        is_loopback = address.host == "localhost" or ip_address(address.host).is_loopback
    except ValueError as error:
        raise InvalidConfigError(f"--control {where}: {error}") from error
    if not is_loopback:
        raise InvalidConfigError(f"--control {where}: only this machine may control a broker; use 127.0.0.1")
    return address


def _read_token(path: str) -> str:
    if os.stat(path).st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise InvalidConfigError(f"{path} can be read or written by other users: chmod 600 {path}")
    token = OsFs().read(path).decode("ascii", "replace").strip()
    if len(token) < _LEAST_TOKEN or not token.isprintable() or " " in token:
        raise InvalidConfigError(f"{path} needs one line with a token of at least {_LEAST_TOKEN} characters")
    return token
