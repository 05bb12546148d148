"""Slow work of a log directory, in a thread or when its owner asks: flushes, late deletions, regular tasks."""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Final

from seglog.core.clock import Clock
from seglog.core.errors import LogClosedError, LogDirFullError, LogDirOfflineError

_LONGEST_WAIT: Final = 60.0
"""Seconds. A changed wall clock or a debugger can lengthen a wait; this limits by how much."""
_logger = logging.getLogger("seglog")

Task = Callable[[], None]


class Worker:
    """Runs tasks in order, in its own thread or in its owner's. Thread-safe.

    Without a thread, `submit` runs the task at once in the caller and lets its errors through; scheduled tasks run in
    `run_due`. With a thread, every task runs in it. A due task runs between two submitted ones, which may arrive faster
    than they can be done. Once `stop` is called, `submit` runs the task in the caller, so that `stop` can end.

    If a task fails with an OSError, the worker calls ``on_disk_error``. `LogDirOfflineError`, `LogDirFullError` and
    `LogClosedError` end a task silently. Any other error is a bug: `run_due` or `stop` raises it.
    """

    def __init__(self, clock: Clock, on_disk_error: Callable[[OSError], object], thread_name: str | None) -> None:
        """``thread_name``: None for no thread."""
        self._clock = clock
        self._on_disk_error = on_disk_error
        self._thread_name = thread_name
        self._condition = threading.Condition()
        self._submitted: deque[Task] = deque()
        self._due: list[tuple[float, int, Task]] = []
        self._order = itertools.count()
        self._stopping = False  # guarded by _condition
        self._error: BaseException | None = None  # set by the thread; `stop` reads it after the thread has ended
        self._thread: threading.Thread | None = None  # set by the owner
        if thread_name is not None:
            self._thread = threading.Thread(target=self._work, name=thread_name, daemon=True)
            self._thread.start()

    def submit(self, task: Task) -> None:
        with self._condition:
            queued = self._thread is not None and not self._stopping
            if queued:
                self._submitted.append(task)
                self._condition.notify()
        if not queued:
            task()

    def schedule(self, delay_ms: int, task: Task) -> None:
        with self._condition:
            heapq.heappush(self._due, (self._clock.monotonic() + delay_ms / 1000, next(self._order), task))
            self._condition.notify()

    def every(self, delay_ms: int, period_ms: Callable[[], int], task: Task) -> None:
        """Run after ``delay_ms``, and again ``period_ms()`` after each run ends."""

        def again() -> None:
            try:
                task()
            finally:
                self.schedule(period_ms(), again)

        self.schedule(delay_ms, again)

    def run_due(self) -> None:
        """Run the tasks that are due. With a thread, only wake it: it runs them."""
        if self._thread is not None:
            with self._condition:
                self._condition.notify()
            return
        due = self._take_due()
        while due:
            self._run(due.popleft())

    def stop(self) -> None:
        """Run the submitted tasks and drop the scheduled ones. Raises the first error of a task in the thread."""
        if self._thread is not None:
            with self._condition:
                self._stopping = True
                self._condition.notify()
            self._thread.join()
            self._thread = None
        self._due.clear()
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _take_due(self) -> deque[Task]:
        """The due tasks. The caller pops each before running it: a task may keep a file open."""
        with self._condition:
            now = self._clock.monotonic()
            taken = deque[Task]()
            while self._due and self._due[0][0] <= now:
                taken.append(heapq.heappop(self._due)[2])
            return taken

    def _work(self) -> None:
        while True:
            with self._condition:
                if not self._submitted and not self._stopping:
                    wait = _LONGEST_WAIT
                    if self._due:
                        wait = min(wait, max(0.0, self._due[0][0] - self._clock.monotonic()))
                    self._condition.wait(wait)
                if self._stopping and not self._submitted:
                    return
                tasks = deque([self._submitted.popleft()] if self._submitted else [])
            if not self._stopping:
                tasks += self._take_due()
            while tasks:
                try:
                    self._run(tasks.popleft())
                except BaseException as error:  # `stop` raises it in the owner's thread
                    _logger.exception("background task of thread %s failed", self._thread_name)
                    self._error = self._error or error

    def _run(self, task: Task) -> None:
        try:
            task()
        except (LogDirOfflineError, LogDirFullError, LogClosedError):
            return
        except OSError as error:
            self._on_disk_error(error)
