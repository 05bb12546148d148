"""Carries out changes of logs that fsync, off the event loop: new leader epochs, truncations, new log starts.

Each directory has one pass at a time; what is wanted meanwhile is the next pass (`LogDir.carry_out`). So a broker that
takes over a thousand partitions waits a few times for each disk, and serves its clients meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Final

from seglog.core.errors import LogClosedError, SeglogError
from seglog.core.ground import Workers
from seglog.replication.replica import Replica
from seglog.storage.directory.log_changes import LogChange
from seglog.storage.directory.log_dir import LogDir

Settled = Callable[[Replica, SeglogError | None], object]
_Wanted = tuple[Replica, LogChange, "asyncio.Future[SeglogError | None]"]
_logger: Final = logging.getLogger("seglog.replication")


class LogChanges:
    """``settled`` is called after each change, with its error. A replica has at most one change under way."""

    def __init__(self, workers: Workers, settled: Settled = lambda *_: None) -> None:
        self._workers = workers
        self._settled = settled
        self._wanted: dict[LogDir, list[_Wanted]] = {}
        self._passes: dict[LogDir, asyncio.Task[None]] = {}
        self._under_way: dict[Replica, asyncio.Future[SeglogError | None]] = {}
        self._is_closed = False

    async def carry_out(self, replica: Replica, change: LogChange) -> SeglogError | None:
        """`want`, and wait for it. If the caller is cancelled, the change goes on."""
        result = self.want(replica, change)
        await asyncio.wait([result])
        return result.result()

    def want(self, replica: Replica, change: LogChange) -> asyncio.Future[SeglogError | None]:
        """Carry out the change. The result of the future is its error: it raises nothing.

        Until then `Replica.is_changing`: the replica takes over no state and no answer of its leader.
        """
        loop = asyncio.get_running_loop()
        result: asyncio.Future[SeglogError | None] = loop.create_future()
        if self._is_closed:
            result.set_result(LogClosedError(f"{replica.topic_partition}: this broker stops"))
            return result
        replica.begin_change()
        directory = replica.directory
        self._under_way[replica] = result
        self._wanted.setdefault(directory, []).append((replica, change, result))
        if directory not in self._passes:
            name = f"seglog-log-changes {directory.path}"
            self._passes[directory] = loop.create_task(self._run(directory), name=name)
        return result

    async def _run(self, directory: LogDir) -> None:
        try:
            while wanted := self._wanted.pop(directory, None):
                await self._carry_out(directory, wanted)
        finally:
            del self._passes[directory]

    async def _carry_out(self, directory: LogDir, wanted: list[_Wanted]) -> None:
        changes = [change for _, change, _ in wanted]
        outcomes: list[str | SeglogError | None]
        try:
            outcomes = list(await self._workers.run(partial(directory.carry_out, changes)))
        except Exception as bug:  # the replicas must not wait for ever
            _logger.exception("%d changes of logs in %s failed", len(changes), directory.path)
            outcomes = [SeglogError(f"{directory.path}: {bug!r}")] * len(changes)
        for (replica, change, result), outcome in zip(wanted, outcomes, strict=True):
            error = outcome if isinstance(outcome, SeglogError) else None
            replica.end_change(change, saved=outcome if isinstance(outcome, str) else None)
            del self._under_way[replica]
            result.set_result(error)
            self._settled(replica, error)

    async def until_settled(self, replica: Replica) -> None:
        """Wait until no change of this replica's log is under way."""
        while (result := self._under_way.get(replica)) is not None:
            await asyncio.wait([result])

    async def close(self) -> None:
        """Wait for changes that were wanted; carry out no others."""
        self._is_closed = True
        await asyncio.gather(*self._passes.values(), return_exceptions=True)
