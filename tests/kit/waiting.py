"""Wait for an effect in another process: nothing reports it, so ask until it is there."""

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
    """Ask ``condition`` until it is true. After ``seconds`` raise RuntimeError, which names ``what`` as it is then.

    ``every``, also in seconds, is the precision with which the caller can measure the wait."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(f"waited {seconds:.0f} s for {what if isinstance(what, str) else what()}")
        time.sleep(every)  # what is waited for, such as another process, does not notify


def stays(condition: Callable[[], bool], seconds: float) -> bool:
    """Whether ``condition`` is true whenever it is asked, for so long."""
    deadline = time.monotonic() + seconds
    while condition():
        if time.monotonic() > deadline:
            return True
        time.sleep(_POLL_SECONDS)  # as above
    return False
