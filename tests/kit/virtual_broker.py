"""A broker on a simulated machine: its disk forgets, its process dies, its time is the world's.

The broker is the real one, from its composition root down to its log; what it stands on is replaced: file system,
clock, chance, event loop, threads, sockets.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from random import Random
from typing import Final

from seglog.broker.app import Node
from seglog.broker.ground import BrokerGround
from seglog.cluster.formats import OURS, Formats
from seglog.cluster.store import MetadataStore
from seglog.core.addresses import Address
from seglog.core.broker_config import BrokerConfig
from seglog.core.clock import Clock
from seglog.core.errors import SeglogError
from seglog.core.fs import Fs
from seglog.core.worker import Worker
from seglog.net.connection import ClientConnection, FrameHandler
from seglog.net.connection_quotas import ConnectionQuotas
from seglog.net.listener import Listener, ListenerSecurity
from seglog.storage.formats.life_file import BOOT_ID
from tests.kit.crash_fs import Call, CrashFs
from tests.kit.memory_fs import MemoryFs
from tests.kit.virtual_loop import VirtualClock, VirtualLoop, VirtualWorkers, World
from tests.kit.virtual_net import Network
from tests.kit.virtual_store import ADDRESS, VirtualServer, open_in

DIRECTORY: Final = "/logs"
PORT: Final = 9092
CLUSTER_ID: Final = "simulated-cluster-0000"


class Machine:
    """A host with a disk, and a broker that runs there, or not: alone, or in the cluster of ``server``, its metadata
    store.

    ``life`` counts its starts; it ``is_up`` when its start is over. ``failures``: of starts and stops. A subclass that
    checks the broker overrides the methods ``on_…``.
    """

    def __init__(
        self,
        world: World,
        network: Network,
        host: str,
        *,
        settings: Mapping[str, str],
        thread_seconds: Callable[[], float],
        server: VirtualServer | None = None,
        formats: Formats = OURS,
    ) -> None:
        self.world = world
        self.network = network
        self.host = host
        self.clock = VirtualClock(world)
        self.disk = MemoryFs(clock=self.clock)
        self.life = 0
        self.is_up = False
        self.answers = False
        self.has_closed = True
        """Its last process has closed everything, or there was none."""
        self.node: Node | None = None
        self.failures: list[SeglogError | OSError] = []
        self.cluster_id = CLUSTER_ID
        """That of its flags."""
        self.formats = formats
        """Those of the release that is installed."""
        self.server = server
        self._boots = 0
        self._thread_seconds = thread_seconds
        self.settings = {
            "listeners": f"PLAINTEXT://{host}:{PORT}",
            "seglog.insecure.listeners": "true",
            "log.dirs": DIRECTORY,
            "num.recovery.threads.per.data.dir": "1",
            **({} if server is None else {"cluster.store": ADDRESS}),
            **settings,
        }
        self.loop: VirtualLoop | None = None
        self._fs: CrashFs | None = None

    @property
    def is_running(self) -> bool:
        """Whether there is a process, which may be starting or stopping."""
        return self.loop is not None

    def on_up(self) -> None:
        """It begins to answer; its start is not over yet."""

    def on_step(self) -> None:
        """It answers, and has done one thing more."""

    def on_down(self, left: str) -> None:
        """It has ended. ``left`` of the disk is sure to be there: "all", or what was "flushed"."""

    def on_change(self, call: Call) -> None:
        """It is about to change the disk."""

    def start(self) -> None:
        assert not self.is_running
        self.life += 1
        self.has_closed = False
        self.world.note("start", self.host, self.life)
        if self.server is not None:  # alone, it is never asked
            self._write_boot_id()
        loop = self.loop = VirtualLoop(self.world, self.host, self._thread_seconds, self._look)
        fs = self._fs = CrashFs(self.disk, before_change=self._note)
        node = self.node = self._node(loop, fs)
        loop.create_task(self._start(node))

    def _node(self, loop: VirtualLoop, fs: Fs) -> Node:
        ground = BrokerGround(
            fs=fs,
            clock=self.clock,
            rng=Random(f"{self.world.seed} {self.host} {self.life}"),
            workers=VirtualWorkers(loop),
            dial=self.network.dial(loop),
            make_worker=self._make_worker,
            listener=self._make_listener,
            open_store=self._open_store,
            owner_socket=lambda _: None,
        )
        return Node(
            BrokerConfig.from_mapping(self.settings), cluster_id=self.cluster_id, ground=ground, formats=self.formats
        )

    async def _open_store(self, _address: str, /, *, clock: Clock, patience_ms: int = 0, **_: object) -> MetadataStore:
        assert self.server is not None
        assert self.loop is not None
        return await open_in(self.server, self.loop, clock=clock, patience_ms=patience_ms)

    def _write_boot_id(self) -> None:
        """As the kernel does, on no disk."""
        path = ""
        for part in BOOT_ID.split("/")[1:-1]:
            path = f"{path}/{part}"
            if not self.disk.exists(path):
                self.disk.mkdir(path)
        with self.disk.unlimited():
            self.disk.write(BOOT_ID, b"boot-%d\n" % self._boots)

    async def _start(self, node: Node) -> None:
        try:
            await node.start()
        except (SeglogError, OSError) as error:
            self._failed(error)
        else:
            self.is_up = True
            self.world.note("up", self.host)
            await node.over.wait()
            if self.is_up:
                self.stop()

    def _failed(self, error: SeglogError | OSError) -> None:
        """The process has ended, as `seglog serve` does."""
        self.world.note("failed", self.host, type(error).__name__)
        self.failures.append(error)
        loop = self.loop
        assert loop is not None
        self.world.after(0.0, lambda: self._has_ended(loop))

    def stop(self) -> None:
        """Begin to stop it cleanly."""
        assert self.is_up
        assert self.loop is not None
        assert self.node is not None
        self.world.note("stop", self.host)
        self.is_up = False
        self.loop.create_task(self._stop(self.node))

    async def _stop(self, node: Node) -> None:
        try:
            await node.stop()
        except (SeglogError, OSError) as error:
            self._failed(error)
            return
        self.has_closed = True
        loop = self.loop
        assert loop is not None
        loop.end_steps()
        self.world.after(0.0, lambda: self._has_ended(loop))

    def _has_ended(self, loop: VirtualLoop) -> None:
        if loop is self.loop:
            self.kill()

    def kill(self) -> None:
        """``kill -9``: what it has written is in the page cache, and stays.

        If an fsync has failed before, the machine is started anew with the process: the page cache still shows what the
        disk will never have, and whoever reads it again takes it for safe.
        """
        if self.disk.has_lost:
            self.lose_power()
            return
        self.world.note("kill", self.host)
        self._die(silence=0.01)
        self.on_down("all")

    def lose_power(self) -> None:
        """Lose what was not fsynced, or a part of it."""
        self.world.note("power cut", self.host)
        if self.is_running:
            self._die(silence=3.0)
        self._boots += 1
        self.disk.crash(self.world.rng)
        self.on_down("flushed")

    def lose_power_at_change(self, number: int, torn: float) -> None:
        """The same in the middle of something: at the n-th change of the disk from now."""
        assert self._fs is not None
        self._fs.crash_after(number, torn)

    def disarm(self) -> None:
        """No `lose_power_at_change` any more."""
        if self._fs is not None:
            self._fs.disarm()

    def _die(self, silence: float) -> None:
        loop, self.loop = self.loop, None
        assert loop is not None
        assert self._fs is not None
        self.is_up = self.answers = False
        self._fs.die()  # also for what its coroutines still try while they end
        self.network.process_died(loop, silence)
        loop.kill()
        self.disk.locked.clear()

    def _look(self) -> None:
        if self._fs is not None and self._fs.crashed:
            self.lose_power()
        elif self.answers:
            self.on_step()

    def _note(self, call: Call) -> None:
        self.world.note(self.host, call.operation, call.path)
        self.on_change(call)

    def _make_worker(self, clock: Clock, on_disk_error: Callable[[OSError], object], _name: str | None) -> Worker:
        assert self.loop is not None
        return VirtualWorker(clock, on_disk_error, self.loop, self._thread_seconds)

    def _make_listener(
        self,
        address: Address,
        handler: FrameHandler,
        shared: ConnectionQuotas,
        /,
        *,
        security: ListenerSecurity | None = None,
    ) -> Listener:
        assert security is None or not security.uses_tls, "connections of the simulator are not encrypted"
        begins, ends = self._begins_to_answer, self._answers_no_more
        return VirtualListener(self.network, address, handler, shared, begins, ends, security)

    def _begins_to_answer(self) -> None:
        self.answers = True
        self.on_up()

    def _answers_no_more(self) -> None:
        """It is about to close its logs."""
        self.answers = False


class VirtualWorker(Worker):
    """A thread's work, a task at a time, on the loop of its process."""

    def __init__(
        self,
        clock: Clock,
        on_disk_error: Callable[[OSError], object],
        loop: VirtualLoop,
        seconds: Callable[[], float],
    ) -> None:
        super().__init__(clock, on_disk_error, None)
        self._loop = loop
        self._seconds = seconds
        self._queue: deque[Callable[[], None]] = deque()
        self._is_over = False

    def submit(self, task: Callable[[], None]) -> None:
        if self._is_over:
            task()
            return
        self._queue.append(task)
        self._loop.call_later(self._seconds(), self._run_next)

    def schedule(self, delay_ms: int, task: Callable[[], None]) -> None:
        self._loop.call_later(delay_ms / 1000 + self._seconds(), self._run_due, task)

    def stop(self) -> None:
        self._is_over = True
        while self._queue:
            self._run_next()
        super().stop()

    def _run_next(self) -> None:
        if self._queue:
            self._run(self._queue.popleft())

    def _run_due(self, task: Callable[[], None]) -> None:
        if not self._is_over:
            self._run(task)


class _Connection(ClientConnection):
    security: ListenerSecurity | None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if self.security is not None:
            assert isinstance(transport, asyncio.Transport)
            self.security.begin(self, transport)


class VirtualListener(Listener):
    """Connections of a `Network` in place of sockets."""

    def __init__(
        self,
        network: Network,
        address: Address,
        handler: FrameHandler,
        shared: ConnectionQuotas,
        begins: Callable[[], None],
        ends: Callable[[], None],
        security: ListenerSecurity | None,
    ) -> None:
        super().__init__(address, handler, shared, security=security)
        self._authentication = security
        self._begins = begins
        self._ends = ends
        self._network = network
        self._served = handler
        self._limits = shared
        self._accepted: dict[ClientConnection, None] = {}

    async def start(self) -> Address:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        self._network.bind((self.address.host, self.address.port), loop, self._accept)
        self._begins()
        return self.address

    def _accept(self) -> ClientConnection:
        limits = self._limits
        connection = _Connection(
            listener=self.address.name, handler=self._served, limits=limits, now=limits.now, closed=self._closed
        )
        connection.security = self._authentication
        limits.add(connection)
        self._accepted[connection] = None
        return connection

    def _closed(self, connection: ClientConnection) -> None:
        self._limits.discard(connection)
        self._accepted.pop(connection, None)

    async def stop(self) -> None:
        self._ends()
        self._network.unbind((self.address.host, self.address.port))
        for connection in list(self._accepted):  # in an order that a run can repeat
            connection.close()
