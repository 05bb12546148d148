"""A copy of a part of the metadata store in memory, kept up by its watch."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from seglog.cluster.store import MetadataStore, StoreClosedError, StoreFailedError, VersionedValue

_MANY: Final = 1000
"""From so many names on all are read anew: one pass is cheaper than a search for each."""
_RETRY_SECONDS: Final = 0.1


def _nothing(names: frozenset[str]) -> None:
    del names


class Mirror:
    """All values at and below ``name``, by full name, as `values`.

    Each value in it is what the store had at some time, and never an older one than before; those that are changed in
    one commit may come one after the other. After the last change the copy is equal to the store.

    ``changed`` is called on the loop, with the names that are new, different or gone, after `values` has them.
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
        """During a read: what is known from elsewhere, and later than what the read may find."""
        self._is_all_told = False
        self._is_started = False
        self._end_watch: Callable[[], None] | None = None
        self._reading: asyncio.Task[None] | None = None

    @property
    def is_current(self) -> bool:
        """Nothing that the store has told of is still to be read."""
        return self._is_started and self._reading is None

    async def start(self) -> None:
        """Returns with everything in `values`; ``changed`` is called for what comes later. Raises what the store does
        when it fails at this."""
        self._end_watch = self._store.watch(self.name, self._tell)
        try:
            self._take(await self._store.load(self.name), None)
        except BaseException:
            await self.stop()
            raise
        self._is_started = True  # not before: two reads at once could end in the wrong order
        self._read_soon()

    async def stop(self) -> None:
        """The copy stays as it is. ``changed`` is called no more."""
        if self._end_watch is not None:
            self._end_watch()
            self._end_watch = None
        self._is_started = False
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._reading])

    def note(self, name: str, value: VersionedValue | None) -> None:
        """What the store has just said to someone else here (None: there is none), and is later than what `values` has.
        ``changed`` is not called. What is being read at this moment may be from before it, and is read again."""
        if value is None:
            self._values.pop(name, None)
        else:
            self._values[name] = value
        self._noted.add(name)

    def read_again(self, name: str) -> None:
        """As if the store had told of it."""
        self._tell(frozenset([name]))

    def _tell(self, names: frozenset[str] | None) -> None:
        if names is None:
            self._is_all_told = True
        else:
            self._told |= names
        self._read_soon()

    def _read_soon(self) -> None:
        if self._is_started and self._reading is None and (self._told or self._is_all_told):
            self._reading = asyncio.get_running_loop().create_task(self._read())

    async def _read(self) -> None:
        """One read at a time: the answer to a later one is never older."""
        try:
            while self._told or self._is_all_told:
                names, self._told = self._told, set()
                is_all, self._is_all_told = self._is_all_told or len(names) >= _MANY, False
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
        """``found`` is all there is of ``asked`` (None: of everything); the names that are different now."""
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
