"""The limit of open files, and what to do when it is reached."""

from __future__ import annotations

import errno
import os
import resource
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Final, TypeVar

Of = TypeVar("Of")
_MAC_OPEN_MAX: Final = 10240
KEPT_BACK: Final = 128
"""File descriptors that logs leave for short use: a log that cannot get one takes its whole directory out of use."""
_FEWEST_SEALED: Final = 16
_MOST_SEALED: Final = 4096
_SHARE_OF_SEALED: Final = 8


def allow_open_files() -> int:
    """Raise the soft limit to the hard one, as Java does at its start; returns the limit.

    Each log keeps a file open, and many shells allow 1,024.
    """
    allowed, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MAC_OPEN_MAX if sys.platform == "darwin" and not 0 <= most < _MAC_OPEN_MAX else most
    if wanted != allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))
    return wanted


def allowed_open_files() -> int:
    """The soft limit of open files (``ulimit -n``)."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if allowed == resource.RLIM_INFINITY else allowed


def free_descriptors() -> int:
    """How many more files this process may open."""
    allowed = allowed_open_files()
    return allowed if allowed == sys.maxsize else allowed - _open_descriptors()


def _open_descriptors() -> int:
    """How many are open. Linux since 6.2 knows their number; elsewhere they are counted."""
    with suppress(OSError):
        if (found := os.stat("/proc/self/fd").st_size) > 0:
            return found
    return len(os.listdir("/dev/fd"))


def most_sealed_files() -> int:
    """How many sealed segments stay open between reads: an eighth of the limit, 16 to 4,096."""
    return max(_FEWEST_SEALED, min(allowed_open_files() // _SHARE_OF_SEALED, _MOST_SEALED))


def room_for_logs() -> int:
    """How many more logs this process may open, each with the file of its active segment."""
    return max(0, free_descriptors() - KEPT_BACK - most_sealed_files())


def with_descriptors(path: str, act: Callable[[], Of]) -> Of:
    """The result of ``act``, which opens a file. At the soft limit, raise it and try again."""
    try:
        return act()
    except OSError as error:
        if error.errno != errno.EMFILE:
            raise
        allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if allow_open_files() != allowed:
            return with_descriptors(path, act)
        raise OSError(errno.EMFILE, f"Too many open files: {allowed} are allowed (ulimit -n)", path) from error
