"""Where numba keeps compiled loops between runs.

numba's own cache fails at import where it finds no directory to write to, and sees changes of one file only. So the
directory is chosen here: under the first writable one of ``NUMBA_CACHE_DIR``, the package's ``__pycache__``, the user's
cache and a fresh temporary directory, in one named after the sources that the loops are made of.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_ENVIRONMENT: Final = "NUMBA_CACHE_DIR"


def _stamp(source: str) -> str:
    """A word that changes with ``source`` or any file named ``*kernels.py`` beside it."""
    directory, name = os.path.split(os.path.abspath(source))
    digest = hashlib.sha256(directory.encode())
    try:
        for beside in sorted(os.listdir(directory)):
            if beside == name or beside.endswith("kernels.py"):
                found = os.stat(os.path.join(directory, beside))
                digest.update(f"{beside}:{found.st_mtime_ns}:{found.st_size}\n".encode())
    except OSError:  # inside of a zip: its path, with the version in it, must do
        digest.update(name.encode())
    return digest.hexdigest()[:12]


def _is_usable(directory: str) -> bool:
    """Whether we can write there, and nobody else put it there: what is cached is code that will run."""
    try:
        os.makedirs(directory, mode=0o700, exist_ok=True)
        if hasattr(os, "getuid") and os.stat(directory).st_uid not in (os.getuid(), 0):
            return False
        with tempfile.TemporaryFile(dir=directory):
            return True
    except OSError:
        return False


def choose_cache_directory(source: str) -> str:
    """A writable directory for what is compiled from ``source`` and the kernels beside it; created if need be."""
    name = f"seglog-numba-{_stamp(source)}"
    parents = [
        os.environ.get(_ENVIRONMENT, ""),
        os.path.join(os.path.dirname(os.path.abspath(source)), "__pycache__"),
        os.environ.get("XDG_CACHE_HOME", "") or os.path.join(os.path.expanduser("~"), ".cache"),
    ]
    for parent in parents:
        if os.path.isabs(parent) and _is_usable(os.path.join(parent, name)):
            return os.path.join(parent, name)
    return tempfile.mkdtemp(prefix=name + "-")


@contextmanager
def numba_cache(directory: str) -> Iterator[None]:
    """Functions decorated inside are cached in ``directory``; numba's setting is put back afterwards."""
    from numba.core import config

    before = config.CACHE_DIR
    config.CACHE_DIR = directory
    try:
        yield
    finally:
        config.CACHE_DIR = before
