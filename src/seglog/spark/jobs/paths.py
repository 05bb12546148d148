"""Paths as a job takes them: one, or several, as texts or path objects."""

from __future__ import annotations

import os
from collections.abc import Sequence

Path = str | os.PathLike[str]
Paths = Path | Sequence[Path]


def listed(paths: Paths) -> list[str]:
    """
    >>> listed("/data"), listed(["/data", "/more"])
    (['/data'], ['/data', '/more'])
    """
    if isinstance(paths, (str, os.PathLike)):
        return [os.fspath(paths)]
    return [os.fspath(path) for path in paths]
