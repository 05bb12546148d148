"""A clock that runs as this machine's does, and that a test moves ahead; an event loop whose timers follow it.

The loop moves from timer to timer. Before each step it carries out everything that is ready, bytes of clients as well,
and waits for work that it gave to threads. So timers run in their order, each at its own time, and no real time passes.
A long move takes a thousand steps or so: each timer runs late by at most a thousandth of the move.
"""

from __future__ import annotations

import asyncio
import selectors
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeVar
from weakref import WeakSet

from seglog.core.clock import Clock, SystemClock
from seglog.core.ground import THREADS, Lane, Workers
from seglog.core.worker import Worker

T = TypeVar("T")
Of = TypeVar("Of")
_STEPS: Final = 1000
"""A broker has some four timers a second: all steps of a week would take ten minutes."""
_TURN_SECONDS: Final = 0.05
"""How long the loop waits for a thread before it asks again. A thread that ends wakes it."""


class MovableClock:
    """`seglog.core.clock.Clock`, ``ahead`` seconds of this machine's."""

    def __init__(self, ahead: float = 0.0) -> None:
        self.ahead = ahead
        self._system = SystemClock()

    def now_ms(self) -> int:
        return self._system.now_ms() + round(self.ahead * 1000)

    def monotonic(self) -> float:
        return self._system.monotonic() + self.ahead

    def move(self, seconds: float) -> None:
        """ValueError for time that goes back."""
        if seconds < 0:
            raise ValueError(f"time does not go back: {seconds}")
        self.ahead += seconds


class MovableLoop(asyncio.SelectorEventLoop):
    """An event loop with the time of a `MovableClock`."""

    def __init__(self, clock: MovableClock) -> None:
        self.clock = clock
        self.workers = CountedWorkers()
        self._left = self._least_step = 0.0
        self._moved: asyncio.Future[None] | None = None
        super().__init__(_MovableSelector(self))

    def time(self) -> float:
        return self.clock.monotonic()

    async def move(self, seconds: float) -> None:
        """Move the clock, and return when everything that became due has been done. One move at a time."""
        while self._moved is not None:
            await asyncio.shield(self._moved)
        self._moved = self.create_future()
        self._left, self._least_step = seconds, seconds / _STEPS
        await self._moved

    @property
    def is_moving(self) -> bool:
        return self._moved is not None

    def step(self, until_next: float | None) -> None:
        """Nothing is ready, and the next timer is so many seconds ahead."""
        if self._left > 0:
            seconds = self._left if until_next is None else min(max(until_next, self._least_step), self._left)
            self.clock.move(seconds)
            self._left -= seconds
        elif self._moved is not None:
            moved, self._moved = self._moved, None
            if not moved.done():  # its caller has gone
                moved.set_result(None)


class _MovableSelector(selectors.DefaultSelector):
    """Where an event loop waits. While its clock is moved, it does not wait but takes a step."""

    def __init__(self, loop: MovableLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        loop = self._loop
        if not loop.is_moving:
            return super().select(timeout)
        found = super().select(0)
        if found or (timeout is not None and timeout <= 0):
            return found
        if loop.workers.busy:
            return super().select(_TURN_SECONDS)
        loop.step(timeout)
        return []


class CountedWorkers:
    """`Workers` in threads. ``busy`` counts the acts that are under way."""

    def __init__(self) -> None:
        self.busy = 0

    async def run(self, act: Callable[[], T], /) -> T:
        found: T = await self.counted(lambda: THREADS.run(act))
        return found

    def lane(self, name: str, /) -> Lane:
        return _CountedLane(self, THREADS.lane(name))

    def spread(
        self, act: Callable[[Of], T], items: Sequence[Of], /, *, threads: int, name: str
    ) -> Iterator[tuple[Of, Callable[[], T]]]:
        return THREADS.spread(act, items, threads=threads, name=name)

    async def counted(self, run: Callable[[], Any]) -> Any:
        self.busy += 1
        try:
            return await run()
        finally:
            self.busy -= 1


class _CountedLane:
    def __init__(self, workers: CountedWorkers, lane: Lane) -> None:
        self._workers = workers
        self._lane = lane

    async def run(self, act: Callable[[], T], /) -> T:
        found: T = await self._workers.counted(lambda: self._lane.run(act))
        return found

    async def close(self) -> None:
        await self._lane.close()


class MovableWorkers:
    """The threads of log directories, which wait by a clock of their own."""

    def __init__(self) -> None:
        self._made: WeakSet[Worker] = WeakSet()

    def make(self, clock: Clock, on_disk_error: Callable[[OSError], object], thread_name: str | None) -> Worker:
        worker = Worker(clock, on_disk_error, thread_name)
        self._made.add(worker)
        return worker

    async def run_due(self) -> None:
        """Wait until every thread has done everything that is due."""
        for worker in list(self._made):
            worker.run_due()
            for _ in range(2):  # due tasks run behind the submitted one that the thread takes with them
                done = threading.Event()
                worker.submit(done.set)
                await THREADS.run(done.wait)


def workers_of(loop: asyncio.AbstractEventLoop) -> Workers:
    """The threads that a loop waits for while its clock is moved."""
    return loop.workers if isinstance(loop, MovableLoop) else THREADS
