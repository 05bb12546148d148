"""How many files this process may have open at a time, and what is done when they are not enough."""

from __future__ import annotations

import errno
import os
import resource
import sys
from collections.abc import Callable
from typing import Final, TypeVar

Of = TypeVar("Of")
_MAC_OPEN_MAX: Final = 10240
KEPT_BACK: Final = 128
"""File descriptors for what is open for a moment only: a log that has none takes the whole directory out of use."""
_FEWEST_SEALED: Final = 16
_MOST_SEALED: Final = 4096
_SHARE_OF_SEALED: Final = 8


def allow_open_files() -> int:
    """Take all the file descriptors that the hard limit allows, as Java does at its start; how many that is.

    Each log keeps one open, and many a shell allows 1,024.
    """
    allowed, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MAC_OPEN_MAX if sys.platform == "darwin" and not 0 <= most < _MAC_OPEN_MAX else most
    if wanted != allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))
    return wanted


def allowed_open_files() -> int:
    """How many files this process may have open at a time (``ulimit -n``)."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if allowed == resource.RLIM_INFINITY else allowed


def free_descriptors() -> int:
    """How many more files this process may open."""
    allowed = allowed_open_files()
    return allowed if allowed == sys.maxsize else allowed - len(os.listdir("/dev/fd"))


def most_sealed_files() -> int:
    """How many sealed segments stay open between two reads: an eighth of what the process may open, 16 to 4,096."""
    return max(_FEWEST_SEALED, min(allowed_open_files() // _SHARE_OF_SEALED, _MOST_SEALED))


def room_for_logs() -> int:
    """How many more logs this process may open, each with its active segment's file."""
    return max(0, free_descriptors() - KEPT_BACK - most_sealed_files())


def with_descriptors(path: str, act: Callable[[], Of]) -> Of:
    """``act``, which needs a file descriptor, with as many as this process may have once the soft limit is reached."""
    try:
        return act()
    except OSError as error:
        if error.errno != errno.EMFILE:
            raise
        allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if allow_open_files() != allowed:
            return with_descriptors(path, act)
        raise OSError(errno.EMFILE, f"Too many open files: {allowed} are allowed (ulimit -n)", path) from error
