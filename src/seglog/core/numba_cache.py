"""Where numba keeps compiled loops between runs.

numba's own cache fails at import if it finds no writable directory, and notices changes of one file only. So this
module chooses the directory, and names it after the sources of the loops. Its parent is the first writable one of
``NUMBA_CACHE_DIR``, the package's ``__pycache__`` and the user's cache, or a new temporary directory. Names depend on
contents, never on paths: a cache that moves with its package stays valid.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Final

from seglog.core.fs import OsFs

_ENVIRONMENT: Final = "NUMBA_CACHE_DIR"
_LOCATORS: Final = "seglog.core.numba_locator.MovableCacheLocator,ZipCacheLocator"


def _stamp(sources: Collection[str]) -> str:
    """A word that changes with the contents of any of these files."""
    digest = hashlib.sha256()
    for source in sorted(sources, key=os.path.basename):
        try:
            content = OsFs().read(source)
        except OSError:  # inside of a zip: the path, with the version in it, must do
            content = os.path.abspath(source).encode()
        digest.update(f"{os.path.basename(source)}:{len(content)}\n".encode() + content)
    return digest.hexdigest()[:12]


def _is_usable(directory: str) -> bool:
    """Whether the directory is writable and belongs to this user: the cached code will run."""
    try:
        os.makedirs(directory, mode=0o700, exist_ok=True)
        if hasattr(os, "getuid") and os.stat(directory).st_uid not in (os.getuid(), 0):
            return False
        with tempfile.TemporaryFile(dir=directory):
            return True
    except OSError:
        return False


def choose_cache_directory(sources: Collection[str]) -> str:
    """A writable directory for code compiled from ``sources``, the Python files of one package. Created if need be."""
    name = f"seglog-numba-{_stamp(sources)}"
    package = os.path.dirname(os.path.abspath(min(sources)))
    parents = [
        os.environ.get(_ENVIRONMENT, ""),
        os.path.join(package, "__pycache__"),
        os.environ.get("XDG_CACHE_HOME", "") or os.path.join(os.path.expanduser("~"), ".cache"),
    ]
    for parent in parents:
        if os.path.isabs(parent) and _is_usable(os.path.join(parent, name)):
            return os.path.join(parent, name)
    return tempfile.mkdtemp(prefix=name + "-")


@contextmanager
def numba_cache(directory: str) -> Iterator[None]:
    """Functions decorated in this context are cached in ``directory``. numba's settings are restored afterwards."""
    from numba.core import config

    before = config.CACHE_DIR, config.CACHE_LOCATOR_CLASSES
    config.CACHE_DIR, config.CACHE_LOCATOR_CLASSES = directory, _LOCATORS
    try:
        yield
    finally:
        config.CACHE_DIR, config.CACHE_LOCATOR_CLASSES = before
