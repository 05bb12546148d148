"""Flushes that ``flush.messages`` asks a leader for, off the event loop (group commit).

While a log is being flushed, appends to it go on; the next flush is for all of them. So one partition costs one fsync
at a time, however many clients write to it, and no client waits for the flush of another partition.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from seglog.core.errors import LogClosedError, LogDirFullError, LogDirOfflineError
from seglog.core.ground import Workers
from seglog.replication.replica import Replica

_FULL_AGAIN_SECONDS: Final = 1.0
_logger: Final = logging.getLogger("seglog.replication")


class GroupFlushes:
    """One task for each partition that is being flushed; `close` waits for them."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._tasks: dict[Replica, asyncio.Task[None]] = {}
        self._is_closed = False

    def due(self, partition: Replica) -> None:
        """Flush its log, and tell it. If that is under way, once more afterwards."""
        if partition not in self._tasks and not self._is_closed:
            name = f"seglog-flush-{partition.topic_partition}"
            self._tasks[partition] = asyncio.get_running_loop().create_task(self._flush(partition), name=name)

    async def _flush(self, partition: Replica) -> None:
        log = partition.log
        try:
            while log.needs_flush and not self._is_closed:
                try:
                    await self._workers.run(log.flush)
                except (LogDirOfflineError, LogClosedError):
                    return  # those who wait are told by what has failed or closed the log
                except LogDirFullError as error:  # an index that has not found its place
                    _logger.warning("%s is not flushed: %s", log.topic_partition, error)
                    await asyncio.sleep(_FULL_AGAIN_SECONDS)
                else:
                    partition.flushed()
        finally:
            del self._tasks[partition]

    async def close(self) -> None:
        """Wait for the flushes that have begun; no others begin."""
        self._is_closed = True
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
