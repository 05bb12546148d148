"""A network in memory: connections with delays, that are cut, stall, and come and go with the processes at their ends.

Within a connection bytes keep their order, as TCP's do, in pieces of any size; between connections nothing is ordered.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from seglog.core.ground import Dial
from tests.kit.virtual_loop import VirtualLoop, World

_HIGH_WATER: Final = 64 << 10
Address = tuple[str, int]
Factory = Callable[[], asyncio.BaseProtocol]


class Bound(NamedTuple):
    """Who listens at an address."""

    loop: VirtualLoop
    factory: Factory


class Link:
    """The way from one host to another. ``delay`` is how many seconds a piece takes, from and to; while it ``is_down``
    nothing gets through, and everything does, in order, when it is up again."""

    def __init__(self, delay: Callable[[], float]) -> None:
        self.delay = delay
        self.is_down = False
        self._held: deque[Callable[[], None]] = deque()

    def pass_on(self, act: Callable[[], None]) -> None:
        if self.is_down or self._held:
            self._held.append(act)
        else:
            act()

    def heal(self) -> None:
        self.is_down = False
        while self._held:
            self._held.popleft()()


class Network:
    """All links, listeners and connections of a world."""

    def __init__(
        self, world: World, delay: Callable[[], float] | None = None, loses: Callable[[], bool] = lambda: False
    ) -> None:
        """``loses`` is asked with each piece that is sent: whether its connection is cut."""
        self.world = world
        self.loses = loses
        self.delay = delay or (lambda: world.between(0.0001, 0.002))
        self.ends: dict[End, None] = {}
        self._links: dict[tuple[str, str], Link] = {}
        self._bound: dict[Address, Bound] = {}
        self._numbers = 0

    def link(self, source: str, target: str) -> Link:
        link = self._links.get((source, target))
        if link is None:
            link = self._links[source, target] = Link(self.delay)
        return link

    def links(self) -> list[Link]:
        return list(self._links.values())

    def bind(self, address: Address, loop: VirtualLoop, factory: Factory) -> None:
        """OSError if a live process listens there."""
        before = self._bound.get(address)
        if before is not None and not before.loop.is_dead:
            raise OSError(f"{address} is taken")
        self._bound[address] = Bound(loop, factory)

    def unbind(self, address: Address) -> None:
        self._bound.pop(address, None)

    async def connect(self, loop: VirtualLoop, factory: Factory, address: Address) -> asyncio.BaseProtocol:
        """The protocol, connected. `ConnectionRefusedError` without a listener."""
        there, back = self.link(loop.name, address[0]), self.link(address[0], loop.name)
        done: asyncio.Future[asyncio.BaseProtocol] = loop.create_future()

        def arrive() -> None:
            bound = self._bound.get(address)
            if bound is None or bound.loop.is_dead:
                self._later(back, lambda: _fail(done))
                return
            self._numbers += 1
            near, far = (
                End(self, there, loop, self._numbers, address[0]),
                End(self, back, bound.loop, -self._numbers, loop.name),
            )
            near.join(far)
            far.join(near)
            self.world.note("connect", loop.name, address[0], self._numbers)
            far.begin(bound.factory())
            self._later(back, lambda: _connected(done, near, factory))

        self._later(there, arrive)
        return await done

    def _later(self, link: Link, act: Callable[[], None]) -> None:
        self.world.after(link.delay(), lambda: link.pass_on(act))

    def cut(self, end: End) -> None:
        """Both sides learn of it, each at its own time; what is on its way may or may not arrive before."""
        for one in (end, end.other):
            one.cut()
            self.world.after(one.link.delay(), one.reset)

    def dial(self, loop: VirtualLoop) -> Dial:
        """`seglog.core.ground.Ground.dial` of a process."""

        async def dial(protocol: asyncio.BaseProtocol, host: str, port: int) -> None:
            await self.connect(loop, lambda: protocol, (host, port))

        return dial

    def process_died(self, loop: VirtualLoop, silence: float) -> None:
        """Its connections end: after ``silence`` seconds at most, since a machine without power says nothing. What it
        was to send in this very step has not left it."""
        for end in [end for end in self.ends if end.loop is loop]:
            end.died(self.world.steps)
            self.ends.pop(end, None)
            self.world.after(self.world.between(0.0, silence), end.other.reset)


def _fail(done: asyncio.Future[Any]) -> None:
    if not done.done():
        done.set_exception(ConnectionRefusedError("no listener"))


def _connected(done: asyncio.Future[asyncio.BaseProtocol], end: End, factory: Factory) -> None:
    if done.done() or end.loop.is_dead:
        end.close()
        return
    protocol = factory()
    end.begin(protocol)
    done.set_result(protocol)


class End(asyncio.Transport):
    """One side of a connection: the transport that its protocol writes to."""

    other: End

    def __init__(self, network: Network, link: Link, loop: VirtualLoop, number: int, peer: str) -> None:
        super().__init__({"peername": (peer, abs(number))})
        self.link = link
        self.loop = loop
        self.is_cut = False
        self.died_in = -1
        self.number = number
        self._network = network
        self._protocol: asyncio.BaseProtocol | None = None
        self._closing = False
        self._paused = False
        self._full = False
        self._arrived: deque[bytes | None] = deque()
        self._flying = 0
        self._high = _HIGH_WATER
        self._last = 0.0
        network.ends[self] = None

    def join(self, other: End) -> None:
        self.other = other

    def cut(self) -> None:
        """It delivers nothing any more."""
        self.is_cut = True

    def died(self, step: int) -> None:
        """Its process has ended in this step."""
        self.cut()
        self.died_in = step

    def begin(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol
        self.loop.call_soon(protocol.connection_made, self)
        self._wake()

    # What a protocol calls

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """In pieces, each when the one before has arrived."""
        if self._closing or self.is_cut or self.loop.is_dead or not data:
            return
        if self._network.loses():
            self._network.cut(self)
            return
        data = bytes(data)
        rng = self._network.world.rng
        at = rng.randrange(1, len(data)) if len(data) > 1 and rng.random() < 0.1 else len(data)
        for piece in (data[:at], data[at:]):
            if piece:
                self._flying += len(piece)
                self._send(piece)
        if self._flying > self._high and not self._full and isinstance(self._protocol, asyncio.BaseProtocol):
            self._full = True
            self._protocol.pause_writing()

    def _send(self, piece: bytes | None) -> None:
        world = self._network.world
        self._last = max(self._last, world.now + self.link.delay())
        step = world.steps

        def land() -> None:
            if step != self.died_in:
                self.link.pass_on(lambda: self.other.arrive(piece))

        world.at(self._last, land)

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            if not self.is_cut and not self.loop.is_dead:
                self._send(None)
            self._lose(None)

    def abort(self) -> None:
        self.close()

    def is_closing(self) -> bool:
        return self._closing

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        del low
        self._high = _HIGH_WATER if high is None else high

    def get_write_buffer_size(self) -> int:
        return self._flying

    def pause_reading(self) -> None:
        self._paused = True

    def resume_reading(self) -> None:
        self._paused = False
        self._wake()

    # What the network does

    def arrive(self, piece: bytes | None) -> None:
        """None: the other side has closed."""
        if self._closing or self.loop.is_dead:
            return
        self._network.world.note("arrive", self.number, -1 if piece is None else len(piece))
        self._arrived.append(piece)
        self._wake()

    def reset(self) -> None:
        if not self._closing and not self.loop.is_dead:
            self._network.world.note("reset", self.number)
            self._closing = True
            self._arrived.clear()
            self._lose(ConnectionResetError("the connection was cut"))

    def _lose(self, error: Exception | None) -> None:
        self._network.ends.pop(self, None)
        if self._protocol is not None and not self.loop.is_dead:
            self.loop.call_soon(self._protocol.connection_lost, error)

    def _wake(self) -> None:
        if self._arrived and self._protocol is not None:
            self.loop.call_soon(self._deliver)

    def _deliver(self) -> None:
        while self._arrived and not self._paused and not self._closing:
            piece = self._arrived.popleft()
            if piece is None:
                self.close()
                return
            self._give(piece)

    def _give(self, piece: bytes) -> None:
        if isinstance(self._protocol, asyncio.BufferedProtocol):
            buffer = self._protocol.get_buffer(-1)
            view = memoryview(buffer)
            size = min(len(view), len(piece))
            view[:size] = piece[:size]
            if size < len(piece):
                self._arrived.appendleft(piece[size:])
            self._protocol.buffer_updated(size)
        else:
            assert isinstance(self._protocol, asyncio.Protocol)
            size = len(piece)
            self._protocol.data_received(piece)
        self.other.taken(size)

    def taken(self, size: int) -> None:
        """The other side has read so much."""
        self._flying -= size
        if self._full and self._flying <= self._high // 4 and self._protocol is not None and not self._closing:
            self._full = False
            self.loop.call_soon(self._protocol.resume_writing)
