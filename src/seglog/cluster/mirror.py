"""An in-memory copy of a part of the metadata store, which its watch keeps current."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from seglog.cluster.store import BackgroundTasks, MetadataStore, StoreClosedError, StoreFailedError, VersionedValue

_MANY: Final = 1000
"""From this number of names on everything is loaded, if they are also `_SHARE` of all names: then one pass is cheaper
than a lookup for each name."""
_SHARE: Final = 1 / 2
_RETRY_SECONDS: Final = 0.1


def _nothing(names: frozenset[str]) -> None:
    del names


class Mirror:
    """All values at and below ``name``, by full name, in `values`.

    A value is one that the store had at some time, and never older than a previous one. Values that one commit changes
    may appear one after the other. After the last change the copy equals the store.

    ``changed`` is called on the loop with the names that are new, different or gone, after `values` has them.
    """

    def __init__(
        self, store: MetadataStore, name: str = "", changed: Callable[[frozenset[str]], None] = _nothing
    ) -> None:
        self.name = name
        self.changed = changed
        self._store = store
        self._values: dict[str, VersionedValue] = {}
        self.values: Mapping[str, VersionedValue] = MappingProxyType(self._values)
        self._told: set[str] = set()
        self._noted: set[str] = set()
        """Names that were noted during a read, with values later than the read may return."""
        self._is_all_told = False
        self._is_started = False
        self._end_watch: Callable[[], None] | None = None
        self._reading: asyncio.Task[None] | None = None
        self._background = BackgroundTasks()

    async def start(self) -> None:
        """Load everything into `values`; ``changed`` is called for later changes. Raises the store's errors."""
        self._end_watch = self._store.watch(self.name, self._tell)
        try:
            self._take(await self._store.load(self.name), None)
        except BaseException:
            await self.stop()
            raise
        self._is_started = True  # not earlier: two reads at once could end in the wrong order
        self._read_soon()

    async def stop(self) -> None:
        """Keep the copy as it is, and call ``changed`` no more."""
        if self._end_watch is not None:
            self._end_watch()
            self._end_watch = None
        self._is_started = False
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._reading])

    async def until_failed(self) -> BaseException:
        """Return the error that has ended a read: the copy may have missed changes."""
        return await self._background.until_failed()

    def note(self, name: str, value: VersionedValue | None) -> None:
        """Take over a value (None: deleted) that the store has returned elsewhere in this process, and that is later
        than the one in `values`. ``changed`` is not called. A read in flight may return an older value, so it is
        repeated."""
        if value is None:
            self._values.pop(name, None)
        else:
            self._values[name] = value
        self._noted.add(name)

    def read_again(self, name: str) -> None:
        """Read the name as if the store had reported a change of it."""
        self._tell(frozenset([name]))

    def _tell(self, names: frozenset[str] | None) -> None:
        if names is None:
            self._is_all_told = True
        else:
            self._told |= names
        self._read_soon()

    def _read_soon(self) -> None:
        if self._is_started and self._reading is None and (self._told or self._is_all_told):
            self._reading = self._background.begin(self._read(), "seglog-store-read")

    async def _read(self) -> None:
        """Read changed names, one read at a time, so that a later answer is never older."""
        try:
            while self._told or self._is_all_told:
                names, self._told = self._told, set()
                is_many = len(names) >= max(_MANY, _SHARE * len(self._values))
                is_all, self._is_all_told = self._is_all_told or is_many, False
                self._noted.clear()
                try:
                    if is_all:
                        changed = self._take(await self._store.load(self.name), None)
                    else:
                        changed = self._take(await self._store.get_many(names), names)
                except StoreFailedError:
                    self._told |= names
                    self._is_all_told = self._is_all_told or is_all
                    await asyncio.sleep(_RETRY_SECONDS)
                    continue
                except StoreClosedError:
                    return
                if changed:
                    asyncio.get_running_loop().call_soon(self._say, changed)
        finally:
            self._reading = None

    def _say(self, names: frozenset[str]) -> None:
        if self._is_started:
            self.changed(names)

    def _take(self, found: Mapping[str, VersionedValue], asked: set[str] | None) -> frozenset[str]:
        """Take over ``found``, the values of the ``asked`` names (None: of all). Return the names that are different
        now."""
        noted, self._noted = self._noted, set()
        self._told |= noted if asked is None else asked & noted
        before = self._values.keys() if asked is None else asked & self._values.keys()
        changed = {name for name in before if name not in found and name not in noted}
        for name in changed:
            del self._values[name]
        for name, value in found.items():
            if self._values.get(name) != value and name not in noted:
                self._values[name] = value
                changed.add(name)
        return frozenset(changed)
