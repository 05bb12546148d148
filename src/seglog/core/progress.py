"""A bar on the terminal for work that takes a while."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol


class ProgressCallback(Protocol):
    """Advances by an amount, in the unit of the total (mostly bytes)."""

    def __call__(self, amount: int) -> None: ...


@contextmanager
def progress(label: str, total: int) -> Iterator[ProgressCallback]:
    """Show a bar on stderr after two seconds, if stderr is a terminal."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield _draw_nothing
        return
    bar = _LateBar(label, total)
    try:
        yield bar
    finally:
        bar.close()


def _nothing() -> None:
    pass


def _draw_nothing(amount: int) -> None:
    del amount


class _LateBar:
    """A progress bar that draws and imports nothing during the first two seconds."""

    def __init__(self, label: str, total: int) -> None:
        from seglog.core.clock import SystemClock

        self._label = label
        self._total = total
        self._done = 0
        self._now = SystemClock().monotonic
        self._start = self._now()
        self._draw: ProgressCallback | None = None
        self._stop: Callable[[], None] = _nothing

    def __call__(self, amount: int) -> None:
        self._done += amount
        if self._draw is not None:
            self._draw(amount)
        elif self._now() - self._start > 2:
            self._begin()

    def _begin(self) -> None:
        from rich.console import Console
        from rich.progress import Progress as RichProgress

        bar = RichProgress(console=Console(stderr=True), transient=True)
        bar.start()
        task = bar.add_task(self._label, total=self._total, completed=self._done)
        self._draw = lambda amount: bar.advance(task, amount)
        self._stop = bar.stop

    def close(self) -> None:
        self._stop()
