"""Time that a program makes itself: event loops without a clock, threads or sockets, all driven by one `World`.

Whatever happens has its place in one queue, by time and then by order, and every choice comes from one seeded
``random.Random``: a seed gives the same run again, event by event, and hours pass in a second. Each process of a
simulated system has a `VirtualLoop` of its own, so that it can die alone.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Iterator, Sequence
from concurrent.futures import Executor
from contextvars import Context
from functools import partial
from hashlib import blake2b
from typing import Any, Final, TypeVar, TypeVarTuple, Unpack

from tests.kit.crash_fs import SimulatedCrash

T = TypeVar("T")
Of = TypeVar("Of")
Ts = TypeVarTuple("Ts")
_EPOCH_MS: Final = 1_700_000_000_000
_LAST_WORDS: Final = 10_000
"""Callbacks that a dying loop may still run."""
_REMEMBERED: Final = 60


class World:
    """The queue of all that will happen, and the trace of what did."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.now = 0.0
        self.steps = 0
        self.last: deque[str] = deque(maxlen=_REMEMBERED)
        self.errors: list[BaseException] = []
        self._queue: list[tuple[float, int, asyncio.Handle | Callable[[], None], VirtualLoop | None]] = []
        self._order = itertools.count()
        self._trace = blake2b(digest_size=16)

    def at(self, when: float, act: asyncio.Handle | Callable[[], None], loop: VirtualLoop | None = None) -> None:
        """Have it happen at ``when`` (seconds from the start), in no process or in that of ``loop``."""
        heapq.heappush(self._queue, (max(when, self.now), next(self._order), act, loop))

    def after(self, seconds: float, act: Callable[[], None]) -> None:
        self.at(self.now + seconds, act)

    def between(self, low: float, high: float) -> float:
        return low + (high - low) * self.rng.random()

    def note(self, *what: object) -> None:
        """Something that two runs of a seed must have in common."""
        line = f"{self.now:.6f} {' '.join(map(str, what))}"
        self._trace.update(line.encode())
        self.last.append(line)

    @property
    def trace(self) -> str:
        """A hash of all notes so far."""
        return self._trace.hexdigest()

    def step(self) -> bool:
        """Let the next thing happen; False if there is none. Raises what a callback failed with."""
        while self._queue:
            when, _, act, loop = heapq.heappop(self._queue)
            self.now = when
            if isinstance(act, asyncio.Handle):
                assert loop is not None
                if act.cancelled() or loop.is_dead:
                    continue
                if loop.is_paused:
                    loop.held.append(act)
                    continue
                self.steps += 1
                loop.run_handle(act)
            else:
                self.steps += 1
                act()
            if self.errors:
                raise self.errors[0]
            return True
        return False

    def run(self, until: Callable[[], bool], seconds: float) -> bool:
        """Let things happen until that is so, at most for so long; whether it is."""
        end = self.now + seconds
        while not until():
            if not self._queue or self._queue[0][0] > end:
                self.now = end
                return until()
            self.step()
        return True

    def take_ready(self, loop: VirtualLoop) -> list[asyncio.Handle]:
        """Take out everything of a loop; what it was to run at once is returned."""
        mine = sorted(entry for entry in self._queue if entry[3] is loop)
        self._queue = [entry for entry in self._queue if entry[3] is not loop]
        heapq.heapify(self._queue)
        acts = [*loop.held, *(act for _, _, act, _ in mine)]
        return [act for act in acts if isinstance(act, asyncio.Handle) and not isinstance(act, asyncio.TimerHandle)]


def is_crash(error: BaseException | None) -> bool:
    """Whether it says that the process has just died, perhaps to a task group."""
    if isinstance(error, BaseExceptionGroup):
        return error.split(SimulatedCrash)[1] is None
    return isinstance(error, SimulatedCrash)


class VirtualClock:
    """`seglog.core.clock.Clock` of a process in a `World`; ``skew_ms`` is how wrong its wall clock goes."""

    def __init__(self, world: World, skew_ms: int = 0) -> None:
        self._world = world
        self.skew_ms = skew_ms

    def now_ms(self) -> int:
        return _EPOCH_MS + int(self._world.now * 1000) + self.skew_ms

    def monotonic(self) -> float:
        return self._world.now


class VirtualLane:
    """A thread of its own: what is given to it is done one after the other."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self._busy_until = 0.0

    async def run(self, act: Callable[[], T], /) -> T:
        loop = self._loop
        self._busy_until = max(self._busy_until, loop.world.now + loop.thread_seconds())
        return await loop.in_thread(act, self._busy_until)

    async def close(self) -> None:
        await self.run(lambda: None)


class VirtualWorkers:
    """`seglog.core.ground.Workers` of a process: threads that take virtual time."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    async def run(self, act: Callable[[], T], /) -> T:
        loop = self._loop
        return await loop.in_thread(act, loop.world.now + loop.thread_seconds())

    def lane(self, _name: str, /) -> VirtualLane:
        return VirtualLane(self._loop)

    def spread(
        self, act: Callable[[Of], T], items: Sequence[Of], /, *, threads: int, name: str
    ) -> Iterator[tuple[Of, Callable[[], T]]]:
        """One after the other: real threads would do it in another order each time."""
        del threads, name
        return ((item, partial(act, item)) for item in items)


class VirtualLoop(asyncio.BaseEventLoop):
    """The event loop of one process. What it gives to threads is done at once, some time later: ``thread_seconds`` says
    how much. `pause` stops it as SIGSTOP does, `kill` ends it as ``kill -9`` does. ``after_step`` is called after each
    callback that it has run, until the process ends."""

    def __init__(
        self,
        world: World,
        name: str,
        thread_seconds: Callable[[], float] = lambda: 0.0,
        after_step: Callable[[], None] = lambda: None,
    ) -> None:
        self.is_dead = True  # while the loop that it takes itself for is made
        super().__init__()
        self.is_dead = False
        self.world = world
        self.name = name
        self._after_step = after_step
        self.thread_seconds = thread_seconds
        self.is_paused = False
        self.held: list[asyncio.Handle] = []
        """Run what came due during the pause."""
        self._paused_until = 0.0
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._last_words: deque[asyncio.Handle] = deque()

    # asyncio's side

    def time(self) -> float:
        return self.world.now

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return not self.is_dead

    def is_closed(self) -> bool:
        return self.is_dead

    def call_soon(
        self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        if self.is_dead:
            self._last_words.append(handle)
        else:
            self.world.at(self.world.now, handle, self)
        return handle

    def call_soon_threadsafe(
        self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def call_later(
        self, delay: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.world.now + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        if not self.is_dead:
            self.world.at(when, handle, self)
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """It stays in the queue until its time."""

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: object = None,
        context: Context | None = None,
    ) -> asyncio.Task[T]:
        called = f"{self.name}-task" if name is None else str(name)
        task: asyncio.Task[T] = asyncio.Task(coro, loop=self, name=called, context=context)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        return task

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[Unpack[Ts]], T], *args: *Ts
    ) -> asyncio.Future[T]:
        """In any order: what needs one has a `VirtualLane`."""
        del executor
        return self.in_thread(partial(func, *args), self.world.now + self.thread_seconds())

    def in_thread(self, act: Callable[[], T], begin: float) -> asyncio.Future[T]:
        """``act`` happens at ``begin``, and its result is known here some time later."""
        future: asyncio.Future[T] = self.create_future()
        if self.is_dead:
            future.cancel()
            return future

        async def work() -> T:
            asyncio._set_running_loop(None)  # as in a thread
            try:
                return act()
            finally:
                asyncio._set_running_loop(self)

        def done(task: asyncio.Task[T]) -> None:
            self.call_later(self.thread_seconds(), _pass_on, task, future)

        self.call_at(begin, lambda: self.create_task(work()).add_done_callback(done))
        return future

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not self.is_dead and not is_crash(error):
            self.world.errors.append(error or RuntimeError(str(context)))

    # The world's side

    def run_handle(self, handle: asyncio.Handle) -> None:
        asyncio._set_running_loop(self)
        try:
            handle._run()
        finally:
            asyncio._set_running_loop(None)
        self._after_step()

    def pause(self, seconds: float) -> None:
        """It does nothing for so long, and then all that came due meanwhile."""
        self._paused_until = max(self._paused_until, self.world.now + seconds)
        self.is_paused = True
        self.world.after(seconds, self._resume_if_due)

    def _resume_if_due(self) -> None:
        if self.world.now >= self._paused_until:
            self.resume()

    def resume(self) -> None:
        self.is_paused, self._paused_until = False, 0.0
        held, self.held = self.held, []
        if not self.is_dead:
            for handle in held:
                self.world.at(self.world.now, handle, self)

    def end_steps(self) -> None:
        """Call ``after_step`` no more: the process has closed everything."""
        self._after_step = lambda: None

    def kill(self) -> None:
        """Nothing of this process happens any more. Its coroutines are ended one by one, deaf and mute, so that none is
        left to end by itself, in another life."""
        self.end_steps()
        self.is_dead = True
        self._last_words.extend(self.world.take_ready(self))
        self.held.clear()
        for _ in range(_LAST_WORDS):
            if not self._last_words:
                if not self._tasks:
                    return
                for task in list(self._tasks):
                    task.cancel()
            while self._last_words:
                self.run_handle(self._last_words.popleft())


def _pass_on(done: asyncio.Task[T], to: asyncio.Future[T]) -> None:
    if done.cancelled():
        return
    error = done.exception()
    if to.done():  # its waiter has gone
        return
    if error is None:
        to.set_result(done.result())
    else:
        to.set_exception(error)
