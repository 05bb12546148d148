"""A session in ZooKeeper that knows whether it is certain, and that ends if its process stalls."""

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
from seglog.cluster.zookeeper_security import Access, ZooKeeperSecurity
from seglog.cluster.zookeeper_writer import ZooKeeperWriter
from seglog.core.clock import Clock

_CONFIRMATIONS: Final = 6
"""How often a session is confirmed in its time."""
_STALL: Final = 1 / 3
"""The event loop may stall for this part of a session's time."""
_LOOKS: Final = 4
"""How often that is checked in this time."""


class ZooKeeperSession:
    """Made by `open`. It has its own connection, which creates its values."""

    def __init__(
        self,
        servers: Sequence[str],
        writers: str,
        address: str,
        time_to_live_ms: int,
        clock: Clock,
        lost: Callable[[], None],
        ended: Callable[[ZooKeeperSession], None],
        *,
        security: ZooKeeperSecurity,
        access: Callable[[str], Access],
    ) -> None:
        """For `open`. ``ended`` is called however it ends; the last two are of `ZooKeeperConnection`."""
        self.is_alive = True
        self._address = address
        self._seconds = time_to_live_ms / 1000
        self._now = clock.monotonic
        self._lost = lost
        self._ended = ended
        self._is_connected = asyncio.Event()
        self._confirmed_at = 0.0
        self._anchor = f"{writers}/{uuid4().hex}"
        self._connection = ZooKeeperConnection(
            servers,
            time_to_live_ms,
            on_state=self._state,
            on_event=lambda _: None,
            security=security,
            access=access,
        )
        self._watchdog: Watchdog | None = None
        self.confirming: asyncio.Task[None] | None = None
        self.writer = ZooKeeperWriter(
            self._connection, self._anchor, address, self._connected, self._seconds, anchor=self._anchor
        )

    async def open(self) -> None:
        """Connect. Raises `StoreFailedError` if no server answers in the session's time."""
        self._connection.start()
        try:
            async with asyncio.timeout(self._seconds * 2):
                await self._is_connected.wait()
                began = self._now()
                await self._connection.make(self._anchor, is_ephemeral=True)
        except (TimeoutError, ConnectionLostError, SessionEndedError, ZooKeeperRefusedError) as error:
            await self.close()
            why = self._connection.fault or str(error) or "no server answers"
            raise StoreFailedError(f"{self._address}: no session: {why}") from error
        self._confirmed_at = began
        self._watchdog = Watchdog(self._granted() * _STALL, self._now, self._connection.end)
        self._watchdog.start()
        self.confirming = asyncio.get_running_loop().create_task(self._confirm(), name="seglog-session-confirm")

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
        """Return the seconds after which the server ends a silent session: the server has its own bounds."""
        return min(self._seconds, self._connection.timeout_seconds or self._seconds)

    async def _confirm(self) -> None:
        """Ask for the session's node at intervals: an answer confirms the session as of the time of the question.
        Unlike kazoo's heartbeat, the question comes from the event loop."""
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
            self._is_connected.set()  # wake those that wait for the connection
            # Close the connection, or kazoo would open a new session.
            threading.Thread(target=self._connection.end, name="seglog-session-end", daemon=True).start()
            self._end_watchdog()
            if self.confirming is not None and self.confirming is not asyncio.current_task():
                self.confirming.cancel()
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
            if self.confirming is not None:
                self.confirming.cancel()
            await self._connection.close()


class Watchdog(threading.Thread):
    """Calls ``stalled``, once and in this thread, if the event loop in which it was made stalls for ``seconds``.

    kazoo sends heartbeats from its own thread: without the watchdog a hanging broker would keep its session, and lead
    on.
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
            is_late = now - looked_at > self._seconds / 2  # this thread was stalled too: give the loop a turn first
            looked_at = now
            if not is_late and now - self._beat_at > self._seconds:
                self._stalled()
                return

    def end(self) -> None:
        self._is_over.set()
        if self._timer is not None:
            self._timer.cancel()
