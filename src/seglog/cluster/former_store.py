"""The metadata store of the first release, which a broker that was alone had beside its logs: read, never written."""

from __future__ import annotations

import os.path
import sqlite3
import tempfile
from collections.abc import Mapping

from seglog.cluster.sqlite_file import SqliteFile
from seglog.cluster.store import StoreFailedError, VersionedValue
from seglog.core.fs import Fs, OsFs

_BESIDE = ("", "-wal")
"""A broker that was killed has left its last changes in the second."""


def read_former(fs: Fs, path: str) -> Mapping[str, VersionedValue]:
    """All values of the SQLite file at ``path``; it is copied, and stays as it is. `StoreFailedError`."""
    own = OsFs()
    with tempfile.TemporaryDirectory(prefix="seglog-") as directory:
        copy = os.path.join(directory, os.path.basename(path))
        for suffix in _BESIDE:
            if fs.exists(path + suffix):
                own.write(copy + suffix, fs.read(path + suffix))
        file = SqliteFile(copy)
        try:
            file.connect()
            try:
                return file.load("")
            finally:
                file.disconnect(())
        except sqlite3.Error as error:
            raise StoreFailedError(
                f"{path}: {error}. It has the dynamic configuration and the last producer id of a broker of the first "
                "release: put it back from a backup, or move it away to begin anew"
            ) from error
