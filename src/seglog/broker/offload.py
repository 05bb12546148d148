"""Work that would hold up the event loop: pure functions in one thread, and loops over many items in slices.

All connections share the loop, so a step of it should take a few milliseconds at most. A thread alone does not ensure
that: Python lets it run for 5 ms each time before the loop has its turn, and a garbage collection stops both. While
there is work in the thread, turns are shorter and collections wait.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Final, TypeVar

T = TypeVar("T")
LARGE_FRAME: Final = 32 << 10
"""Bytes of a request, other than Produce, from which on it is read, and its answer written, in the thread."""
SLICE: Final = 500
"""Items of a request, topics or partitions, that are handled in one step of the loop."""
_TURN_SECONDS: Final = 0.0005
_thread: Final = ThreadPoolExecutor(1, thread_name_prefix="seglog-aside")
"""One for the process: what it needs in memory is then bounded by one request."""


async def offload(work: Callable[[], T]) -> T:
    """The result of ``work``, which must not touch what the loop changes."""
    return await asyncio.get_running_loop().run_in_executor(_thread, _quietly, work)


def _quietly(work: Callable[[], T]) -> T:
    turn = sys.getswitchinterval()
    sys.setswitchinterval(_TURN_SECONDS)
    try:
        with no_collections():
            return work()
    finally:
        sys.setswitchinterval(turn)


class _Collections:
    """How many wait until garbage may be collected again."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._number = 0
        self._were_on = False

    def stop(self) -> None:
        with self._lock:
            if self._number == 0:
                self._were_on = gc.isenabled()
                gc.disable()
            self._number += 1

    def go_on(self) -> None:
        with self._lock:
            self._number -= 1
            if self._number == 0 and self._were_on:
                gc.enable()


_collections: Final = _Collections()


@contextmanager
def no_collections() -> Iterator[None]:
    """Meanwhile the objects of a large request, none of them garbage, are not gone through again and again: each time
    takes a tenth of a second."""
    _collections.stop()
    try:
        yield
    finally:
        _collections.go_on()


def drop(items: list[Any]) -> None:
    """Free many objects, for `offload`: all at once they would hold up the loop."""
    while items:
        del items[-SLICE:]


async def slices(items: Sequence[T]) -> AsyncIterator[Sequence[T]]:
    """``items`` in slices; other connections have their turn after each."""
    for start in range(0, len(items), SLICE):
        yield items[start : start + SLICE]
        await asyncio.sleep(0)
