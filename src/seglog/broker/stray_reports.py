"""How many strays a broker keeps: replicas that the cluster does not name. Metrics and the metadata store say it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Final

from seglog.cluster.model import strays_name
from seglog.cluster.store import ANY_VERSION, MetadataStore, StoreError
from seglog.core.ground import Ground
from seglog.storage.directory.log_dirs import LogDirs
from seglog.storage.directory.strays import size_of

_log: Final = logging.getLogger("seglog.broker")
_CHECK_SECONDS: Final = 5.0
"""While there are strays: `seglog cluster strays` removes them without the broker's help."""
_RETRY_SECONDS: Final = 1.0


class StrayReports:
    """`changed` requests a new count; `run` takes it. ``counted`` is the last: the strays and their bytes."""

    def __init__(self, store: MetadataStore, directories: LogDirs, node_id: int, *, ground: Ground) -> None:
        self.counted = (0, 0)
        self._store = store
        self._directories = directories
        self._name = strays_name(node_id)
        self._ground = ground
        self._has_changed = asyncio.Event()

    def changed(self) -> None:
        self._has_changed.set()

    async def run(self) -> None:
        """Report each new count, until it is cancelled."""
        reported, count = None, 0
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_CHECK_SECONDS if count else None):
                    await self._has_changed.wait()
            self._has_changed.clear()
            count, size = await self._ground.workers.run(self._measure)
            self.counted = (count, size)
            value = b"%d %d" % (count, size)
            if value == reported:
                continue
            try:
                if await self._store.get(self._name) is None:
                    await self._store.create(self._name, value)
                else:
                    await self._store.cas(self._name, value, ANY_VERSION)
                reported = value
            except StoreError as error:
                _log.warning("the number of strays cannot be read from the metadata store: %s", error)
                await asyncio.sleep(_RETRY_SECONDS)
                self.changed()

    def _measure(self) -> tuple[int, int]:
        strays = self._directories.strays()
        return len(strays), sum(size_of(self._ground.fs, one.path) for one in strays)
