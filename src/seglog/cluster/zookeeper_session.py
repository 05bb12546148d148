"""A session in ZooKeeper that is given up by whoever can no longer keep it, and known to be certain or not."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import Final
from uuid import uuid4

from seglog.cluster.store import CERTAIN, SessionLostError, StoreFailedError
from seglog.cluster.zookeeper_connection import (
    CONNECTED,
    LOST,
    ConnectionLostError,
    SessionEndedError,
    ZooKeeperConnection,
    ZooKeeperRefusedError,
)
from seglog.cluster.zookeeper_writer import ZooKeeperWriter
from seglog.core.clock import Clock

_CONFIRMATIONS: Final = 6
"""How often in its time a session is confirmed."""
_STALL: Final = 1 / 3
"""For which part of a session's time the event loop may stand still."""
_LOOKS: Final = 4
"""How often in that time it is looked at."""


class ZooKeeperSession:
    """Made by `open`. Its own connection, on which what belongs to it is made."""

    def __init__(
        self,
        servers: Sequence[str],
        writers: str,
        address: str,
        time_to_live_ms: int,
        clock: Clock,
        lost: Callable[[], None],
        ended: Callable[[ZooKeeperSession], None],
    ) -> None:
        """For `open`. ``ended`` is called whichever way it ends."""
        self.is_alive = True
        self._address = address
        self._seconds = time_to_live_ms / 1000
        self._now = clock.monotonic
        self._lost = lost
        self._ended = ended
        self._is_connected = asyncio.Event()
        self._confirmed_at = 0.0
        self._anchor = f"{writers}/{uuid4().hex}"
        self._connection = ZooKeeperConnection(servers, time_to_live_ms, on_state=self._state, on_event=lambda _: None)
        self._watchdog: Watchdog | None = None
        self._confirming: asyncio.Task[None] | None = None
        self.writer = ZooKeeperWriter(
            self._connection, self._anchor, address, self._connected, self._seconds, anchor=self._anchor
        )

    async def open(self) -> None:
        """`StoreFailedError` if no server answers in the session's time."""
        self._connection.start()
        try:
            async with asyncio.timeout(self._seconds * 2):
                await self._is_connected.wait()
                began = self._now()
                await self._connection.make(self._anchor, is_ephemeral=True)
        except (TimeoutError, ConnectionLostError, SessionEndedError, ZooKeeperRefusedError) as error:
            await self.close()
            raise StoreFailedError(f"{self._address}: no session: {str(error) or 'no server answers'}") from error
        self._confirmed_at = began
        self._watchdog = Watchdog(self._granted() * _STALL, self._now, self._connection.end)
        self._watchdog.start()
        self._confirming = asyncio.get_running_loop().create_task(self._confirm())

    @property
    def connection(self) -> ZooKeeperConnection:
        return self._connection

    @property
    def is_certain(self) -> bool:
        return (
            self.is_alive
            and self._is_connected.is_set()
            and self._now() - self._confirmed_at < self._granted() * CERTAIN
        )

    def _granted(self) -> float:
        """Seconds that the server keeps the session without a word: it has bounds of its own."""
        return min(self._seconds, self._connection.timeout_seconds or self._seconds)

    async def _confirm(self) -> None:
        """Ask for the session's node again and again: an answer confirms it as of the time of the question. This comes
        from the event loop, unlike kazoo's own heartbeat."""
        while self.is_alive:
            await self._is_connected.wait()
            began = self._now()
            try:
                if not await self._connection.exists(self._anchor):
                    self._over()
                    return
                self._confirmed_at = began
            except (ConnectionLostError, ZooKeeperRefusedError):
                pass
            except SessionEndedError:
                self._over()
                return
            await asyncio.sleep(self._granted() / _CONFIRMATIONS)

    def _state(self, state: str) -> None:
        if state == CONNECTED:
            self._is_connected.set()
        else:
            self._is_connected.clear()
            if state == LOST:
                self._over()

    def _over(self) -> None:
        if self.is_alive:
            self.is_alive = False
            self._ended(self)
            self._is_connected.set()  # who waits for it hears of the end
            # Its connection makes a new session by itself, which nobody wants.
            threading.Thread(target=self._connection.end, name="seglog-session-end", daemon=True).start()
            self._end_watchdog()
            if self._confirming is not None and self._confirming is not asyncio.current_task():
                self._confirming.cancel()
            self._lost()

    def _end_watchdog(self) -> None:
        if self._watchdog is not None:
            self._watchdog.end()

    async def _connected(self) -> None:
        try:
            async with asyncio.timeout(self._seconds):
                await self._is_connected.wait()
        except TimeoutError as error:
            raise StoreFailedError(f"{self._address}: no server answers") from error
        if not self.is_alive:
            raise SessionLostError(f"the session in {self._address} has ended")

    async def close(self) -> None:
        if self.is_alive:
            self.is_alive = False
            self._ended(self)
            self._end_watchdog()
            if self._confirming is not None:
                self._confirming.cancel()
            await self._connection.close()


class Watchdog(threading.Thread):
    """Calls ``stalled``, in this thread and once, when the event loop that it was made in stands still for ``seconds``.

    kazoo's heartbeat comes from a thread of its own: a broker that hangs would keep its session, and all that it leads.
    """

    def __init__(self, seconds: float, now: Callable[[], float], stalled: Callable[[], None]) -> None:
        super().__init__(name="seglog-watchdog", daemon=True)
        self._seconds = seconds
        self._now = now
        self._stalled = stalled
        self._is_over = threading.Event()
        self._loop = asyncio.get_running_loop()
        self._beat_at = now()
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._beat()
        super().start()

    def _beat(self) -> None:
        self._beat_at = self._now()
        self._timer = self._loop.call_later(self._seconds / _LOOKS, self._beat)

    def run(self) -> None:
        looked_at = self._now()
        while not self._is_over.wait(self._seconds / _LOOKS):
            now = self._now()
            is_late = now - looked_at > self._seconds / 2  # this thread stood still too: the loop gets a turn first
            looked_at = now
            if not is_late and now - self._beat_at > self._seconds:
                self._stalled()
                return

    def end(self) -> None:
        self._is_over.set()
        if self._timer is not None:
            self._timer.cancel()
