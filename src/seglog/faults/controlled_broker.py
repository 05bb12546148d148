"""`seglog serve --control`: a broker that programs on this machine control over HTTP."""

from __future__ import annotations

import asyncio
import os
import secrets
import stat
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import asynccontextmanager
from ipaddress import ip_address
from typing import Any, Final, NamedTuple, TypeVar

from seglog.broker.app import Node
from seglog.broker.ground import BrokerGround
from seglog.core.addresses import Address, parse_host_port
from seglog.core.errors import InvalidConfigError
from seglog.core.fs import OsFs
from seglog.faults.broker_control import BrokerControl
from seglog.faults.control_pages import MAX_BODY, ControlPages
from seglog.faults.movable_clock import MovableClock, MovableLoop
from seglog.net.http import HttpListener

__all__ = ["CONTROL_SETTINGS", "ControlAddress", "ControlledBroker"]

T = TypeVar("T")
_LEAST_TOKEN: Final = 16
CONTROL_SETTINGS: Final[Mapping[str, str]] = {"connections.max.idle.ms": "-1"}
"""Defaults of a broker under control: no connection ends because the clock was moved."""


class ControlAddress(NamedTuple):
    """``token`` is None if the user has it in a file."""

    url: str
    token: str | None


class ControlledBroker:
    """Runs one broker: `run` makes its event loop, ``ground`` its surroundings, `serving` the control over HTTP."""

    def __init__(self, where: str, token_file: str | None) -> None:
        """`InvalidConfigError` for an address that other machines reach, or a token that other users can read."""
        self._wanted = _loopback(where)
        self._is_told = token_file is None
        self._token = secrets.token_urlsafe(24) if token_file is None else _read_token(token_file)
        self.address: ControlAddress | None = None
        self._clock = MovableClock()
        self._control = BrokerControl(self._clock)

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        with asyncio.Runner(loop_factory=lambda: MovableLoop(self._clock)) as runner:
            return runner.run(main)

    def ground(self) -> BrokerGround:
        """Call it on the broker's event loop."""
        return self._control.ground()

    @asynccontextmanager
    async def serving(self, node: Node) -> AsyncIterator[None]:
        """Take requests while the broker runs. OSError if the port is taken."""
        self._control.use(node)
        pages = ControlPages(self._control, self._token)
        listener = HttpListener(self._wanted.host, self._wanted.port, pages, max_body=MAX_BODY)
        await listener.start()
        pages.listens_on(listener.port)
        try:
            host = f"[{listener.host}]" if ":" in listener.host else listener.host
            self.address = ControlAddress(f"http://{host}:{listener.port}", self._token if self._is_told else None)
            yield
        finally:
            await listener.stop()


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
