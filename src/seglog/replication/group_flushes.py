"""Flushes a leader's logs off the event loop, as ``flush.messages`` asks for (group commit).

Appends continue while a log is being flushed; the next flush covers all of them. So one partition costs one fsync at a
time, however many clients write to it, and no client waits for the flush of another partition.
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
    """Each partition that is being flushed has a task; `close` waits for them."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._tasks: dict[Replica, asyncio.Task[None]] = {}
        self._is_closed = False

    def due(self, partition: Replica) -> None:
        """Flush the partition's log, then call `Replica.flushed`. If a flush is running, another one follows."""
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
                    return  # whatever failed or closed the log wakes the waiters
                except LogDirFullError as error:  # there is no room for an index; the records count
                    _logger.warning("%s is not flushed completely: %s", log.topic_partition, error)
                    partition.flushed()
                    await asyncio.sleep(_FULL_AGAIN_SECONDS)
                else:
                    partition.flushed()
        finally:
            del self._tasks[partition]

    async def close(self) -> None:
        """Wait for flushes that have begun; start no others."""
        self._is_closed = True
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
