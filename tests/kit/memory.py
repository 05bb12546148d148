"""Directories in memory, for tests of which time is a part: of sessions, of failovers, of requests that wait.

A disk that is busy with something else for seconds would be one more fault in them, which nobody has asked for.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

_MEMORY: Final = "/dev/shm"
_NEEDED_BYTES: Final = 256 << 20
"""More than several tests need at once. If less is free, as in a small container, the directory is an ordinary one."""


@contextmanager
def directory_in_memory() -> Iterator[Path]:
    """Empty; gone afterwards. Where there is no such memory it is on the disk."""
    has_room = os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).free > _NEEDED_BYTES
    with TemporaryDirectory(
        prefix="seglog-test-", dir=_MEMORY if has_room else None, ignore_cleanup_errors=True
    ) as path:
        yield Path(path)
