"""Keeps the garbage collection of Spark's reused Python workers short."""

from __future__ import annotations

import gc
from functools import cache


@cache
def freeze_imports() -> None:
    """Exclude all loaded objects from Python's garbage collection; once in a process.

    Spark's daemon runs a full collection after each task: about 50 ms with numba and pyarrow loaded.
    """
    gc.collect()
    gc.freeze()
