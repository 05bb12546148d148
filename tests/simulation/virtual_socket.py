"""Blocking sockets in a simulated network: a call of one lets the world go on until it can return.

So a client that blocks its thread takes part in a simulation, as long as the thread is that which runs the world, and
no event of the world calls it.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from typing import cast

from seglog.client.bootstrap import Dial, HostPort
from seglog.core.errors import BrokerUnavailableError
from tests.kit.virtual_loop import VirtualLoop, World
from tests.kit.virtual_net import Network


class WorldClock:
    """`seglog.core.clock.SleepingClock` of a world."""

    def __init__(self, world: World) -> None:
        self._world = world

    def now_ms(self) -> int:
        return int(self._world.now * 1000)

    def monotonic(self) -> float:
        return self._world.now

    def sleep(self, seconds: float) -> None:
        self._world.run(lambda: False, seconds)


class VirtualSocket(asyncio.Protocol):
    """The methods of ``socket.socket`` that a client needs."""

    def __init__(self, world: World, timeout: float) -> None:
        self._world = world
        self._timeout = timeout
        self._data = bytearray()
        self._is_over = False
        self._transport: asyncio.Transport | None = None

    # The network's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._data += data

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._is_over = True

    @property
    def is_connected(self) -> bool:
        return self._transport is not None

    # The client's side

    def setsockopt(self, *_: int) -> None:
        pass

    def settimeout(self, timeout: float) -> None:
        self._timeout = timeout

    def sendall(self, data: bytes) -> None:
        if self._is_over or self._transport is None:
            raise ConnectionResetError("the connection was cut")
        self._transport.write(data)

    def recv_into(self, buffer: memoryview) -> int:
        if not self._world.run(lambda: bool(self._data) or self._is_over, self._timeout):
            raise TimeoutError("timed out")
        size = min(len(buffer), len(self._data))
        buffer[:size] = self._data[:size]
        del self._data[:size]
        return size

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()
            self._is_over = True


def dial(network: Network, loop: VirtualLoop) -> Dial:
    """`seglog.client.bootstrap.connect` from the host of ``loop``."""

    def connect(addresses: Sequence[HostPort], timeout: float) -> tuple[socket.socket, HostPort]:
        for address in addresses:
            found = _connected(network, loop, address, timeout)
            if found is not None:
                return cast(socket.socket, found), address
        raise BrokerUnavailableError(f"no broker answers at {', '.join(map(str, addresses))}")

    return connect


def _connected(network: Network, loop: VirtualLoop, address: HostPort, timeout: float) -> VirtualSocket | None:
    found = VirtualSocket(network.world, timeout)
    task = loop.create_task(network.connect(loop, lambda: found, (address.host, address.port)))
    network.world.run(lambda: found.is_connected or (task.done() and task.exception() is not None), timeout)
    if found.is_connected:
        return found
    task.cancel()
    return None
