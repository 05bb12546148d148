"""Waiting for what a broker in another process does to its files: it tells nobody, so it is asked again and again."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

SECONDS: Final = 60.0
_POLL_SECONDS: Final = 0.05


def wait_until(
    condition: Callable[[], bool],
    what: str | Callable[[], str],
    seconds: float = SECONDS,
    *,
    every: float = _POLL_SECONDS,
) -> None:
    """Ask ``condition`` until it says yes. RuntimeError, which names ``what`` as it is then, after ``seconds``.

    ``every``, also in seconds, is how exactly the time until then can be told."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(f"waited {seconds:.0f} s for {what if isinstance(what, str) else what()}")
        time.sleep(every)
