"""Verification: every byte of log directories, partitions and single files held to all that is known of it.

Logs are cut into stretches of some MiB that are looked at side by side: by compiled loops in threads where
``seglog[fast]`` is installed and they are worth their loading, else in processes. Nothing is changed, and nothing needs
to be closed: a directory that is in use may be looked at, and what is being written there is a note at most.

``strict``: a Kafka up to 3.9 leaves index entries behind that look as if a bit had flipped in one of a newer Kafka.
They are notes; in a directory that only Kafka from 4.0 on or we have written, ask for them to be damage.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext, suppress
from multiprocessing import get_context
from typing import Final

from seglog.core.errors import MissingExtraError
from seglog.core.extras import require
from seglog.core.fs import Fs, OsFs
from seglog.records.compression import DEFAULT_LIMIT
from seglog.storage.formats.paths import is_partition, list_segments
from seglog.storage.offline.verify.run import Run, Verified

__all__ = ["Verified", "measure", "verify"]

_WORTH_LOADING: Final = 32 << 20
"""Bytes of logs from which on the time that it takes to load the compiled loops, or to start processes, comes back."""


def verify(
    paths: Sequence[str],
    *,
    fs: Fs | None = None,
    strict: bool = False,
    workers: int | None = None,
    fast: bool | None = None,
    limit: int = DEFAULT_LIMIT,
    since_manifest: bool = False,
    progress: Callable[[int], None] | None = None,
) -> Verified:
    """Look at log directories, partitions' directories and single files of any kind.

    ``workers``: threads or processes (default: one for each CPU). ``fast``: whether to use compiled loops (default: if
    they can be imported, and there is enough to do); the findings are the same. ``limit``: most bytes that a batch may
    decompress to. ``since_manifest``: of sealed segments in a manifest only presence, size and end are checked; a bit
    that flipped in one is not found. ``progress`` is told how many more bytes of logs were looked at.

    Raises `InvalidLogDirError` where ``paths`` has what is none of these, and OSError.
    """
    fs = fs or OsFs()
    absolute = [os.path.abspath(path) for path in paths]
    enough = measure(paths, fs=fs) >= _WORTH_LOADING
    if fast is None:
        fast = enough and _can_be_fast()
    count = workers or os.cpu_count() or 1
    pool: AbstractContextManager[Executor | None] = nullcontext()
    if count > 1 and fast:
        pool = ThreadPoolExecutor(count)
    elif count > 1 and enough and isinstance(fs, OsFs):
        pool = ProcessPoolExecutor(count, mp_context=get_context("spawn"))
    with pool as executor:
        run = Run(
            fs, executor, count, strict=strict, fast=fast, limit=limit, progress=progress, since_manifest=since_manifest
        )
        for path in absolute:
            run.look_at(path)
        return run.result()


def measure(paths: Sequence[str], *, fs: Fs | None = None) -> int:
    """Bytes of logs that `verify` would look at."""
    fs = fs or OsFs()
    total = 0
    for path in paths:
        if not fs.stat(os.path.realpath(path)).is_dir:
            total += fs.stat(os.path.realpath(path)).size
            continue
        for directory in (path, *(os.path.join(path, name) for name in fs.listdir(path))):
            if is_partition(fs, directory):
                with suppress(FileNotFoundError):  # a log in use loses files meanwhile
                    total += sum(fs.stat(segment.log).size for segment in list_segments(fs, directory))
    return total


def _can_be_fast() -> bool:
    try:
        require("seglog.storage.offline.verify.compiled_batches", "fast", purpose="fast verification")
    except MissingExtraError:
        return False
    return True
