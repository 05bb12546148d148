"""The surroundings of a broker or a log directory, as one value: file system, clock, randomness, threads and network.

The defaults are those of this machine. Tests and the simulator replace the ones that they control; everything above is
the code that ships.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from random import Random, SystemRandom
from typing import Final, Protocol, TypeVar

from seglog.core.clock import Clock, SystemClock
from seglog.core.fs import Fs, OsFs
from seglog.core.worker import Worker

T = TypeVar("T")
Of = TypeVar("Of")

Dial = Callable[[asyncio.BaseProtocol, str, int], Awaitable[None]]
"""Connects a protocol to a host and port. OSError if nothing listens there."""


MakeWorker = Callable[[Clock, Callable[[OSError], object], str | None], Worker]
"""`Worker`'s parameters. The simulator makes workers that run on its virtual loop."""


class Lane(Protocol):
    """A thread of its own: what is given to it runs off the event loop, one thing after the other."""

    async def run(self, act: Callable[[], T], /) -> T: ...

    async def close(self) -> None:
        """Wait for what was given to it, and end the thread."""


class Workers(Protocol):
    """How work that blocks leaves the event loop."""

    async def run(self, act: Callable[[], T], /) -> T:
        """The result of ``act``, which runs beside the loop and beside everything else that was given to `run`."""

    def lane(self, name: str, /) -> Lane: ...

    def spread(
        self, act: Callable[[Of], T], items: Sequence[Of], /, *, threads: int, name: str
    ) -> Iterator[tuple[Of, Callable[[], T]]]:
        """Call ``act`` for all ``items``, on so many threads; yield each item with a function that returns or raises
        what ``act`` did. For callers that are off the event loop."""


class ThreadLane:
    """The thread starts with the first thing that it is given."""

    def __init__(self, name: str) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=name)

    async def run(self, act: Callable[[], T], /) -> T:
        return await _run_in(self._executor, act)

    async def close(self) -> None:
        await _run_in(None, self._executor.shutdown)


class Threads:
    """Threads of this process, by the executors of the event loop that runs."""

    __slots__ = ()

    async def run(self, act: Callable[[], T], /) -> T:
        return await _run_in(None, act)

    def lane(self, name: str, /) -> ThreadLane:
        return ThreadLane(name)

    def spread(
        self, act: Callable[[Of], T], items: Sequence[Of], /, *, threads: int, name: str
    ) -> Iterator[tuple[Of, Callable[[], T]]]:
        if min(threads, len(items)) <= 1:
            yield from ((item, partial(act, item)) for item in items)
            return
        with ThreadPoolExecutor(min(threads, len(items)), thread_name_prefix=name) as pool:
            futures = [pool.submit(act, item) for item in items]
        yield from ((item, future.result) for item, future in zip(items, futures, strict=True))


async def _run_in(executor: Executor | None, act: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(executor, act)


async def connect(protocol: asyncio.BaseProtocol, host: str, port: int) -> None:
    """`Dial` over TCP."""
    await asyncio.get_running_loop().create_connection(lambda: protocol, host, port)


THREADS: Final = Threads()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """Passed from the composition root down to everything that reads a clock, draws a number, opens a file, dials
    another broker or blocks."""

    fs: Fs = field(default_factory=OsFs)
    clock: Clock = field(default_factory=SystemClock)
    rng: Random = field(default_factory=SystemRandom)
    workers: Workers = THREADS
    dial: Dial = connect
    make_worker: MakeWorker = Worker
    """Makes the thread of a log directory."""
