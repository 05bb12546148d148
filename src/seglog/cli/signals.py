"""SIGTERM and SIGINT, for commands that run until one of them arrives."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from seglog.cli.output import FINE

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


class Termination:
    """Whether SIGTERM has arrived; work checks it between two steps, so that no step is left unfinished."""

    def __init__(self) -> None:
        self.has_come = False

    def note(self) -> None:
        self.has_come = True


@contextmanager
def note_termination(*, wanted: bool = True) -> Iterator[Termination]:
    """Only note the first SIGTERM. The second one kills, as usual."""
    found = Termination()
    if not wanted:
        yield found
        return

    def note(*_: object) -> None:
        found.note()
        signal.signal(signal.SIGTERM, before)

    before = signal.signal(signal.SIGTERM, note)
    try:
        yield found
    finally:
        signal.signal(signal.SIGTERM, before)


def leave_on_signals() -> None:
    """Exit at once with code 0 while modules are loaded: nothing is open yet."""
    for number in _SIGNALS:
        signal.signal(number, lambda *_: os._exit(FINE))


@contextmanager
def act_on_signals(act: Callable[[], object]) -> Iterator[None]:
    """Call ``act`` in the running loop at each signal. Afterwards signals are ignored, because everything is closed.

    The loop's own handlers do not do: once the loop removes them, a signal kills.
    """
    loop = asyncio.get_running_loop()
    called = False

    def call(*_: object) -> None:
        nonlocal called
        if not called:  # among a thousand at once, each interrupts the handler of the one before
            called = True
            loop.call_soon_threadsafe(come)

    def come() -> None:
        nonlocal called
        called = False
        act()

    for number in _SIGNALS:
        signal.signal(number, call)
    try:
        yield
    finally:
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)
