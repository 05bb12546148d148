"""Requests that wait for a partition to grow (Kafka's fetch purgatory, without its tables)."""

from __future__ import annotations

import asyncio
from typing import Protocol


class GrowthListener(Protocol):
    """Is called when a partition has grown, or has another leader."""

    def grown(self, size: int, /) -> None:
        """``size`` more bytes can be read."""


class GrowthWaiter:
    """Waits until the partitions it was added to have grown by ``bytes_wanted``, or until its time is over.

    It may wake too early, never too late: the caller checks again.
    """

    __slots__ = ("_future", "_timer", "_wanted")

    def __init__(self, bytes_wanted: int, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        self._wanted = bytes_wanted
        self._future: asyncio.Future[bool] = loop.create_future()
        self._timer = loop.call_later(seconds, self._time_is_up)

    def grown(self, size: int) -> None:
        """``size`` more bytes can be read."""
        self._wanted -= size
        if self._wanted <= 0 and not self._future.done():
            self._future.set_result(True)

    def _time_is_up(self) -> None:
        if not self._future.done():
            self._future.set_result(False)

    def end(self) -> None:
        """Cancel the wait."""
        self._timer.cancel()

    async def wait(self) -> bool:
        """Return whether it was woken before its time was over."""
        try:
            return await self._future
        finally:
            self._timer.cancel()
