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
        self._is_stopping = False

    def at_stop(self, close: Callable[..., Awaitable[object] | None], *arguments: object) -> None:
        """Call ``close(*arguments)`` when the broker stops, before what was registered earlier."""

        async def closing() -> None:
            if (waiting := close(*arguments)) is not None:
                await waiting

        self._closing.push_async_callback(closing)

    def begin(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        """Run ``work`` until the broker stops. If it ends earlier, the broker is `over`.

        A broker must not go on leading partitions, or coordinating groups, with a part of it missing: another broker
        takes over, and a restart brings the part back."""

        def ended(task: asyncio.Task[None]) -> None:
            if self._is_stopping or task.cancelled():
                return
            error = task.exception() or RuntimeError(f"{task.get_name()} has ended without an error")
            while isinstance(error, BaseExceptionGroup):  # of a task's own tasks: the first that failed
                error = error.exceptions[0]
            _log.critical("%s has ended, and with it this broker: %s", task.get_name(), error, exc_info=error)
            self.failure = self.failure or error
            self.over.set()

        self._begin(name, work).add_done_callback(ended)

    def begin_once(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        """Run ``work``, which ends by itself. The broker goes on if it fails: nothing depends on it."""

        def ended(task: asyncio.Task[None]) -> None:
            if not task.cancelled() and (error := task.exception()) is not None:
                _log.critical("%s has failed: %s", task.get_name(), error, exc_info=error)

        self._begin(name, work).add_done_callback(ended)

    def _begin(self, name: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work, name=f"seglog-{name}")
        self.at_stop(_end, task)
        return task

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
        self._is_stopping = True
        await self._closing.aclose()


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
