"""What a task leaves in order behind it in a Python worker, which Spark uses again for the next one."""

from __future__ import annotations

import gc
from functools import cache


@cache
def freeze_imports() -> None:
    """Take what is loaded by now out of the sight of Python's garbage collection; once in a process.

    Spark's daemon runs a whole collection after each task, with numba and pyarrow loaded some 50 ms.
    """
    gc.collect()
    gc.freeze()
