"""SIGTERM and SIGINT, for what serves until one of them comes."""

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
    """Whether SIGTERM has come, for work that checks it between two steps and so leaves none half done."""

    has_come = False


@contextmanager
def note_termination(*, wanted: bool = True) -> Iterator[Termination]:
    """Within it the first SIGTERM is only noted. The second one kills, as always."""
    found = Termination()
    if not wanted:
        yield found
        return

    def note(*_: object) -> None:
        found.has_come = True
        signal.signal(signal.SIGTERM, before)

    before = signal.signal(signal.SIGTERM, note)
    try:
        yield found
    finally:
        signal.signal(signal.SIGTERM, before)


def leave_on_signals() -> None:
    """They end the process at once, and well, for as long as modules are loaded: nothing is open yet."""
    for number in _SIGNALS:
        signal.signal(number, lambda *_: os._exit(FINE))


@contextmanager
def act_on_signals(act: Callable[[], object]) -> Iterator[None]:
    """Within it ``act`` is called by the running loop whenever one comes. Behind it all is closed: whoever asks for the
    end once more changes nothing any more.

    Not by the loop's own handlers: from the moment in which it takes them away, a signal kills.
    """
    loop = asyncio.get_running_loop()
    called = False

    def call(*_: object) -> None:
        nonlocal called
        if not called:  # of a thousand at once each interrupts the one before
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
