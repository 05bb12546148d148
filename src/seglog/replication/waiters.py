"""Who waits for a partition to grow: fetches that found too little (Kafka's fetch purgatory, without its tables)."""

from __future__ import annotations

import asyncio
from typing import Protocol


class GrowthListener(Protocol):
    """Who is to be told that a partition has grown, or is led elsewhere."""

    def grown(self, size: int, /) -> None:
        """So many bytes more can be read."""


class GrowthWaiter:
    """Waits until ``bytes_wanted`` more bytes were appended to the partitions that it was added to, or for its time.

    It is woken too often rather than too late: whoever waited looks again.
    """

    __slots__ = ("_future", "_timer", "_wanted")

    def __init__(self, bytes_wanted: int, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        self._wanted = bytes_wanted
        self._future: asyncio.Future[bool] = loop.create_future()
        self._timer = loop.call_later(seconds, self._time_is_up)

    def grown(self, size: int) -> None:
        """So many bytes more can be read."""
        self._wanted -= size
        if self._wanted <= 0 and not self._future.done():
            self._future.set_result(True)

    def _time_is_up(self) -> None:
        if not self._future.done():
            self._future.set_result(False)

    def end(self) -> None:
        """It is not waited for any more."""
        self._timer.cancel()

    async def wait(self) -> bool:
        """Whether it was woken before its time was up."""
        try:
            return await self._future
        finally:
            self._timer.cancel()
