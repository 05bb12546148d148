"""Finds compiled loops by their sources' contents alone, so that a package can be moved together with its cache."""

from __future__ import annotations

import hashlib
import os

from numba.core.caching import UserProvidedCacheLocator

from seglog.core.fs import OsFs


class MovableCacheLocator(UserProvidedCacheLocator):
    """numba's locator for ``config.CACHE_DIR``, without the two facts that change when files move.

    numba puts the hash of the source's absolute path into the name of the directory, and before 0.68 the source's
    modification time into the index.
    """

    @classmethod
    def get_suitable_cache_subpath(cls, py_file: str) -> str:
        return os.path.basename(os.path.dirname(os.path.abspath(py_file)))

    def get_source_stamp(self) -> str:
        return hashlib.sha256(OsFs().read(self._py_file)).hexdigest()
