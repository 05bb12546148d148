"""Work that would hold up the event loop: pure functions run in one thread, and loops over many items run in slices.

All connections share the loop, so a step of it should take a few milliseconds at most. A thread alone does not ensure
that: Python lets it run for 5 ms at a time before the loop's turn, and a garbage collection stops both. While the
thread works, turns are shorter and garbage collection waits.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from types import SimpleNamespace
from typing import Any, Final, TypeVar

from seglog.core.ground import Workers

T = TypeVar("T")
LARGE_FRAME: Final = 4 << 10
"""A request of more bytes, other than Produce, is decoded, and its response encoded, in the thread."""
SLICE: Final = 500
"""Topics or partitions of a request that are handled in one step of the loop."""
_TURN_SECONDS: Final = 0.0005
_CONTAINERS: Final = (SimpleNamespace, dict, list, tuple)


class Offload:
    """One thread of a broker: large requests take their memory one after the other."""

    def __init__(self, workers: Workers) -> None:
        self._lane = workers.lane("seglog-offload")

    async def run(self, work: Callable[[], T]) -> T:
        """The result of ``work``, which must not touch anything that the loop changes."""
        return await self._lane.run(lambda: _in_short_turns(work))

    async def close(self) -> None:
        await self._lane.close()


def _in_short_turns(work: Callable[[], T]) -> T:
    with _short_turns, no_collections:
        return work()


class _Pause:
    """Pauses something in the whole process while it has users. ``pause`` returns how to resume."""

    def __init__(self, pause: Callable[[], Callable[[], object]]) -> None:
        self._pause = pause
        self._resume: Callable[[], object] = lambda: None
        self._lock = threading.Lock()
        self._users = 0

    def __enter__(self) -> None:
        with self._lock:
            if self._users == 0:
                self._resume = self._pause()
            self._users += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0:
                self._resume()


def _shorten_turns() -> Callable[[], object]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(_TURN_SECONDS)
    return lambda: sys.setswitchinterval(before)


def _stop_collections() -> Callable[[], object]:
    """The objects of a large request are not garbage, and each pass over them takes a tenth of a second."""
    was_enabled = gc.isenabled()
    gc.disable()
    return _resume_collections if was_enabled else lambda: None


def _resume_collections() -> None:
    """The next collection of young objects would pass over all those that were made meanwhile. Two calls make them old
    at once, unless the process has frozen others, which would thaw."""
    if not _has_frozen():
        gc.freeze()
        gc.unfreeze()
    gc.enable()


def _has_frozen() -> bool:
    """Whether the process has frozen objects, as `seglog serve` does once. The interpreter counts them one by one, some
    milliseconds for all modules, and a follower's request for a hundred partitions comes here too: once found, they
    are not counted again."""
    if not _frozen.is_set() and gc.get_freeze_count():
        _frozen.set()
    return _frozen.is_set()


_frozen: Final = threading.Event()
_short_turns: Final = _Pause(_shorten_turns)
no_collections: Final = _Pause(_stop_collections)
"""``with no_collections`` around work on the objects of a large request."""


def drop(garbage: list[Any]) -> None:
    """Free messages and answers, of which ``garbage`` has the last references, one object after the other. In
    `Offload.run`: freed at once, they would hold up the loop."""
    while garbage:
        one = garbage.pop()
        if isinstance(one, SimpleNamespace | dict):
            values = list(one.values() if isinstance(one, dict) else one.__dict__.values())
            garbage += [value for value in values if isinstance(value, _CONTAINERS)]
        elif isinstance(one, list | tuple) and one and isinstance(one[0], _CONTAINERS):
            garbage += one


async def in_turns(items: Iterable[T], every: int = SLICE) -> AsyncIterator[T]:
    """Each of ``items``; other connections have their turn after each ``every`` items."""
    for number, item in enumerate(items, 1):
        yield item
        if not number % every:
            await asyncio.sleep(0)


async def slices(items: Sequence[T]) -> AsyncIterator[Sequence[T]]:
    """``items`` in slices; other connections have their turn after each."""
    for start in range(0, len(items), SLICE):
        yield items[start : start + SLICE]
        await asyncio.sleep(0)
