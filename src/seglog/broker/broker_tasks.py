"""The tasks of a running broker, and everything that it closes when it stops."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any, Final, TypeVar

from seglog.cluster.store import StoreFailedError

T = TypeVar("T")
_log: Final = logging.getLogger("seglog.broker")


class BrokerTasks:
    """``over`` is set when the broker must stop; ``failure`` is the error of the task that ended it."""

    def __init__(self) -> None:
        self.over = asyncio.Event()
        self.failure: BaseException | None = None
        self._closing = AsyncExitStack()

    def at_stop(self, close: Callable[..., Awaitable[object] | None], *arguments: object) -> None:
        """Call ``close(*arguments)`` when the broker stops, before what was registered earlier."""

        async def closing() -> None:
            if (waiting := close(*arguments)) is not None:
                await waiting

        self._closing.push_async_callback(closing)

    def begin(self, name: str, work: Coroutine[Any, Any, None], *, is_vital: bool = False) -> None:
        """Run ``work`` until the broker stops. If it ``is_vital`` and fails, the broker is `over`."""
        task = asyncio.get_running_loop().create_task(work, name=f"seglog-{name}")

        def ended(task: asyncio.Task[None]) -> None:
            if task.cancelled() or (error := task.exception()) is None:
                return
            _log.critical("%s has ended: %s", task.get_name(), error, exc_info=error)
            if is_vital:
                self.failure = error
                self.over.set()

        task.add_done_callback(ended)
        self.at_stop(_end, task)

    async def unless_over(self, work: Coroutine[Any, Any, T], store: str) -> T:
        """The result of ``work``, which waits for ``store``. `StoreFailedError` if the broker must stop first."""
        loop = asyncio.get_running_loop()
        working, ending = loop.create_task(work), loop.create_task(self.over.wait())
        try:
            await asyncio.wait((working, ending), return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                raise StoreFailedError(f"{store} did not answer before this broker was ended")
            return working.result()
        finally:
            for task in (working, ending):
                task.cancel()
            await asyncio.gather(working, ending, return_exceptions=True)

    async def stop(self) -> None:
        """Close everything, the last opened first."""
        await self._closing.aclose()


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
