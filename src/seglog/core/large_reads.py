"""When a thread may hold a large batch: a scan whose threads read ahead lets only one of them do so at a time."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from threading import local
from typing import Final

LARGE_BYTES: Final = 9 << 20
"""Bytes of a read that is large: more than those of a chunk of a file or of a part of a scan."""
LARGE_COMPRESSED_BYTES: Final = 2 << 20
"""Bytes of a compressed batch that is large: it may become many times as large."""


class _Thread(local):
    wait: Callable[[], object] | None = None


_thread: Final = _Thread()


def set_gate(wait: Callable[[], object]) -> None:
    """From now on this thread calls ``wait`` before each large read; it returns when the thread may go on."""
    _thread.wait = wait


def await_turn() -> None:
    """Call this before memory is taken for a large read. Without a gate, the thread goes on at once."""
    if _thread.wait is not None:
        _thread.wait()
        _give_back()


@cache
def _malloc_trim() -> Callable[[int], int] | None:
    found: Callable[[int], int] | None = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return found


def _give_back() -> None:
    """glibc keeps tens of megabytes that a thread has freed for that thread alone: return those of all threads."""
    if (trim := _malloc_trim()) is not None:
        trim(0)
